"""Who does the chunks: this process, a pool of others on this machine, Dask, or anything with ``submit``."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, ProcessPoolExecutor
from typing import Any, Protocol

from ..numerics import checks, interrupts
from ..numerics.threads import available_cores
from .chunk_work import work_on

#: Chunks that wait in an executor for every worker: enough to keep it busy, few enough to be lost.
WAITING = 4
SECONDS_BETWEEN_LOOKS = 0.02
#: How often a pool is started anew before its chunks are given up: whatever kills its workers may be a chunk.
MOST_POOLS = 20
Given = tuple[Any, Any] | None
Ended = tuple[str, str]


class Executor(Protocol):
    """Works through chunks and says how each ended, in any order."""

    def run(self, store: str, lines: Sequence[Mapping[str, Any]], given: Mapping[str, Given]) -> Iterator[Ended]: ...


class InProcess:
    """One after the other, here."""

    def run(self, store: str, lines: Sequence[Mapping[str, Any]], given: Mapping[str, Given]) -> Iterator[Ended]:
        for line in lines:
            interrupts.check()
            yield work_on(store, line, given[line["part"]])


class Submitting:
    """Anything with ``submit(function, *arguments)`` that returns futures: ``concurrent.futures``, a Dask client.

    Parameters
    ----------
    submit : callable
    workers : int
        How many chunks are worked on at a time, as far as that is known.
    """

    def __init__(self, submit: Callable[..., Any], workers: int) -> None:
        self._submit, self._workers = submit, max(1, workers)

    def run(self, store: str, lines: Sequence[Mapping[str, Any]], given: Mapping[str, Given]) -> Iterator[Ended]:
        left, running = list(reversed(lines)), []
        try:
            while left or running:
                while left and len(running) < WAITING * self._workers:
                    line = left.pop()
                    running.append(self._submit(work_on, store, dict(line), given[line["part"]]))
                done = [future for future in running if future.done()]
                if not done:
                    interrupts.check()
                    time.sleep(SECONDS_BETWEEN_LOOKS)
                for future in done:
                    running.remove(future)
                    yield future.result()
        finally:
            for future in running:
                future.cancel()


class Pool:
    """Processes on this machine, started once, each with its share of the cores.

    They are spawned, because JAX does not live through a fork. One that dies (out of memory, killed) takes its pool
    with it: another is started, and the store knows what is left.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def run(self, store: str, lines: Sequence[Mapping[str, Any]], given: Mapping[str, Given]) -> Iterator[Ended]:
        left = {line["name"]: line for line in lines}
        for _ in range(MOST_POOLS):
            try:
                with self._started() as pool:
                    for name, ended in Submitting(pool.submit, self._workers).run(store, list(left.values()), given):
                        left.pop(name, None)
                        yield name, ended
                return
            except BrokenExecutor:
                interrupts.check()  # who stops a whole group of processes stops the driver too
                warnings.warn("a worker of the pool died; the pool is started anew", RuntimeWarning, stacklevel=2)
        raise RuntimeError(f"{MOST_POOLS} pools of workers died, one after the other: is the memory enough for them?")

    @contextlib.contextmanager
    def _started(self) -> Iterator[ProcessPoolExecutor]:
        share = max(1, available_cores() // self._workers)
        with _environment(share):
            pool = ProcessPoolExecutor(self._workers, multiprocessing.get_context("spawn"), _begin)
            try:
                # All are started now, while the environment says how many threads they may have.
                for future in [pool.submit(os.getpid) for _ in range(self._workers)]:
                    future.result()
                yield pool
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    """In a new worker: Ctrl-C is the driver's to obey; other ends come at once, since nothing kept can be lost.

    A signal that waited for the end of a chunk would be forgotten by then, and the driver, who asks a broken pool to
    end, wait for ever. A driver that is killed can ask nothing: its workers look for that themselves.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda number, _: os._exit(128 + number))
    threading.Thread(target=_end_with_driver, daemon=True).start()


def _end_with_driver() -> None:
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


@contextlib.contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Scope in which new processes are told how many threads they may have."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class OnDask:
    """The workers of a Dask client.

    Parameters
    ----------
    client : distributed.Client
    threads : int
        Of all workers.
    """

    def __init__(self, client: Any, threads: int) -> None:
        self._address = client.scheduler.address
        self._submitting = Submitting(client.get_executor(pure=False, retries=3).submit, threads)

    def run(self, store: str, lines: Sequence[Mapping[str, Any]], given: Mapping[str, Given]) -> Iterator[Ended]:
        try:
            yield from self._submitting.run(store, lines, given)
        # A client that loses its scheduler cancels what it waits for, and nobody else does.
        except (CancelledError, asyncio.CancelledError) as error:
            raise RuntimeError(
                f"the Dask scheduler {self._address} was lost; what is done is in {store}, and the same call goes on "
                "with another scheduler or without"
            ) from error


def as_executor(given: Any) -> Executor:
    """The ``executor`` of a sweep: None, a number of processes, an address of Dask, or an object with ``submit``."""
    if given is None:
        return InProcess()
    if isinstance(given, int) and not isinstance(given, bool):
        workers = checks.integer("executor", given, minimum=1)
        return Pool(workers)
    if isinstance(given, str):
        return _dask(_client_of(given))
    if hasattr(given, "scheduler_info") and hasattr(given, "get_executor"):
        return _dask(given)
    if callable(submit := getattr(given, "submit", None)):
        return Submitting(submit, int(getattr(given, "_max_workers", 0) or available_cores()))
    raise TypeError(
        "executor must be None (this process), a number of processes, the address of a Dask scheduler, a Dask client "
        f"or an object with submit(function, *arguments), got {checks.named(given)}"
    )


def _client_of(address: str) -> Any:
    try:
        from distributed import Client  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(f"executor={address!r} needs dask.distributed: pip install distributed") from error
    return Client(address, timeout="20s")


def _dask(client: Any) -> Executor:
    workers = client.scheduler_info()["workers"]
    if limited := [name for name, told in workers.items() if told.get("memory_limit")]:
        # Dask counts what JAX holds as its own and pauses, spills or kills for it.
        warnings.warn(
            f"{len(limited)} of {len(workers)} Dask workers have a memory limit, at which Dask pauses or kills them: "
            "start them with --memory-limit 0 --nthreads 1",
            RuntimeWarning, stacklevel=3,
        )  # fmt: skip
    threads = sum(int(told.get("nthreads", 1)) for told in workers.values())
    return OnDask(client, threads)
