"""Executors that compute chunks one by one in this process, or pass them to anything with ``submit`` and futures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from ...numerics import interrupts
from ..chunk_work import FAILED, given_up, work_on

#: Number of chunks submitted at a time per worker. Larger: more are lost with an executor. Smaller: workers may wait.
WAITING = 4
SECONDS_BETWEEN_LOOKS = 0.02
Line = Mapping[str, Any]
Given = tuple[Any, Any] | None
Ended = tuple[str, str]


class Executor(Protocol):
    """Executor of chunks. The scope ``opened`` closes at its end what the executor opened, such as a Dask client.

    ``run`` computes the chunks ``lines`` (:meth:`SweepChunk.to_json`) of the folder ``store`` and yields, in any order,
    the name of each and how it ended, see :func:`work_on`. ``given`` maps a part's name to its problem and algorithm,
    or None if the store has them.
    """

    def opened(self) -> AbstractContextManager[object]: ...

    def run(self, store: str, lines: Sequence[Line], given: Mapping[str, Given]) -> Iterator[Ended]: ...


class InProcess:
    """Executor that computes chunks one after the other, in this process."""

    def opened(self) -> AbstractContextManager[object]:
        return nullcontext()

    def run(self, store: str, lines: Sequence[Line], given: Mapping[str, Given]) -> Iterator[Ended]:
        for line in lines:
            interrupts.check()
            yield work_on(store, line, given[line["part"]])


class Submitting:
    """Executor from any ``submit(function, *arguments)`` that returns futures: ``concurrent.futures``, a Dask client.

    Parameters
    ----------
    submit : callable
    workers : int
        Number of chunks that ``submit`` computes at a time, as far as known; `WAITING` times as many are submitted.
    killing : tuple of exception types
        Exceptions that a future raises when its chunk killed several workers in turn; the chunk then counts as failed.
    """

    def __init__(self, submit: Callable[..., Any], workers: int, killing: tuple[type[Exception], ...] = ()) -> None:
        self._submit, self._workers, self._killing = submit, max(1, workers), killing

    def opened(self) -> AbstractContextManager[object]:
        return nullcontext()

    def run(self, store: str, lines: Sequence[Line], given: Mapping[str, Given]) -> Iterator[Ended]:
        left: list[Line] = list(reversed(lines))
        running: list[tuple[Any, Line]] = []
        try:
            while left or running:
                while left and len(running) < WAITING * self._workers:
                    line = left.pop()
                    running.append((self._submit(work_on, store, dict(line), given[line["part"]]), line))
                done = [pair for pair in running if pair[0].done()]
                if not done:
                    interrupts.check()
                    time.sleep(SECONDS_BETWEEN_LOOKS)
                for pair in done:
                    running.remove(pair)
                    yield self._ended(store, *pair)
        finally:
            for future, _ in running:
                future.cancel()

    def _ended(self, store: str, future: Any, line: Line) -> Ended:
        try:
            return future.result()
        except self._killing as error:
            given_up(store, line, f"{type(error).__name__}: {error}")
            return line["name"], FAILED
