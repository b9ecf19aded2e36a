"""Executor that computes chunks on the workers of a Dask cluster."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from typing import Any

from .submitting import Ended, Given, Line, Submitting


class OnDask:
    """Executor that computes chunks on the workers of a Dask client, see :class:`Executor`.

    Parameters
    ----------
    client : distributed.Client
    own : bool
        Whether the client was opened for this sweep and is closed with it.
    """

    def __init__(self, client: Any, *, own: bool) -> None:
        from distributed import KilledWorker  # pyright: ignore[reportMissingImports]

        self._client, self._own = client, own
        self._address = client.scheduler.address
        workers = client.scheduler_info(n_workers=-1)["workers"]
        _warn_of_limits(workers)
        threads = sum(int(told.get("nthreads", 1)) for told in workers.values())
        submit = client.get_executor(pure=False, retries=3).submit
        self._submitting = Submitting(submit, threads, killing=(KilledWorker,))

    def opened(self) -> AbstractContextManager[object]:
        return contextlib.closing(self._client) if self._own else contextlib.nullcontext()

    def run(self, store: str, lines: Sequence[Line], given: Mapping[str, Given]) -> Iterator[Ended]:
        try:
            yield from self._submitting.run(store, lines, given)
        # Only a client that lost its scheduler cancels the futures that it waits for.
        except (CancelledError, asyncio.CancelledError) as error:
            raise RuntimeError(
                f"the Dask scheduler {self._address} was lost; what is done is in {store}, and the same call goes on "
                "with another scheduler or without"
            ) from error


def client_of(address: str) -> Any:
    """Return a new Dask client of the scheduler at ``address``, such as "tcp://host:8786"."""
    try:
        from distributed import Client  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(f"executor={address!r} needs dask.distributed: pip install distributed") from error
    return Client(address, timeout="20s")


def _warn_of_limits(workers: Mapping[str, Mapping[str, Any]]) -> None:
    if limited := [name for name, told in workers.items() if told.get("memory_limit")]:
        # Dask counts JAX's memory against its limit, and pauses, spills or kills the worker.
        warnings.warn(
            f"{len(limited)} of {len(workers)} Dask workers have a memory limit, at which Dask pauses or kills them: "
            "start them with --memory-limit 0 --nthreads 1",
            RuntimeWarning, stacklevel=5,
        )  # fmt: skip
