"""Executor of processes on this machine that share its cores, also for chunks that crash their process."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING

from ...numerics import interrupts
from ...numerics.threads import available_cores
from ..chunk_work import FAILED, given_up
from ..leases import Watch, let_go
from ..sweep_store import SweepStore
from .submitting import Ended, Given, Line, Submitting

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

#: Number of workers that a chunk may crash before it counts as failed.
MOST_DEATHS = 3
#: Number of successive pools that crash before any chunk was begun, after which the sweep stops: no chunk is the cause.
MOST_IDLE_DEATHS = 3
#: Environment variables that set the number of threads of OpenMP, BLAS, numba, and the runtime of JAX on CPUs.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "PJRT_NPROC")


class Pool:
    """Executor of processes on this machine, started once, each with its share of the cores.

    Processes are spawned, because JAX does not work after a fork. If one process crashes (out of memory, killed), its
    whole pool ends. The other processes end by a signal and release their claims; the claim of the crashed one remains
    and shows its chunk, which is tried again after all others, alone, when most memory is free.

    Parameters
    ----------
    workers : int
        Number of processes.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._deaths: Counter[str] = Counter()

    def opened(self) -> AbstractContextManager[object]:
        return nullcontext()

    def run(self, store: str, lines: Sequence[Line], given: Mapping[str, Given]) -> Iterator[Ended]:
        left = {line["name"]: line for line in lines}
        idle_deaths = 0
        while left:
            innocent = [line for name, line in left.items() if not self._deaths[name]]
            together = innocent or [next(iter(left.values()))]
            begun = False
            try:
                with self._started(self._workers if innocent else 1) as pool:
                    for name, ended in Submitting(pool.submit, self._workers).run(store, together, given):
                        begun = True
                        left.pop(name, None)
                        yield name, ended
            except BrokenExecutor as error:
                interrupts.check()  # a signal to the whole process group also stops the driver
                suspects = _left_by_the_dead(store, left)
                idle_deaths = 0 if begun or suspects else idle_deaths + 1
                if idle_deaths == MOST_IDLE_DEATHS:
                    raise RuntimeError(_CANNOT_BEGIN.format(idle_deaths)) from error
                warnings.warn("a worker of the pool died; the pool is started anew", RuntimeWarning, stacklevel=2)
                for name in suspects:
                    self._deaths[name] += 1
                    if self._deaths[name] >= MOST_DEATHS:
                        given_up(store, left.pop(name), f"its worker died {self._deaths[name]} times: {_WHY}")
                        yield name, FAILED

    @contextlib.contextmanager
    def _started(self, workers: int) -> Iterator[ProcessPoolExecutor]:
        context = multiprocessing.get_context("spawn")
        shares = context.SimpleQueue()
        for cores in shares_of_cores(workers):
            shares.put(cores)
        pool = ProcessPoolExecutor(workers, context, _begin, (shares,))
        try:
            # Start all processes now, while the environment sets their numbers of threads.
            with _environment(max(1, available_cores() // workers)):
                for future in [pool.submit(os.getpid) for _ in range(workers)]:
                    future.result()
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_WHY = "the system may have ended it for its memory, or compiled code crashed"
_CANNOT_BEGIN = (
    "{} pools of workers died before one of them began a chunk. A script must call sweep(executor=...) below "
    'if __name__ == "__main__": because every worker imports it; otherwise, is the memory enough for them?'
)


def _left_by_the_dead(store: str, left: Mapping[str, Line]) -> list[str]:
    """Return the names in ``left`` of chunks whose process crashed, as their claims show; remove these claims."""
    kept, watch = SweepStore(store), Watch()
    return [name for name in sorted(kept.claimed() & left.keys()) if watch.frees(kept.claim_path(name))]


def shares_of_cores(workers: int) -> list[tuple[int, ...]]:
    """Return the numbers of the cores for each worker, contiguous; empty tuples if processes cannot be bound."""
    if not hasattr(os, "sched_getaffinity"):
        return [()] * workers
    cores = sorted(os.sched_getaffinity(0))[: available_cores()]
    if workers >= len(cores):
        return [(cores[k % len(cores)],) for k in range(workers)]
    edges = [k * len(cores) // workers for k in range(workers + 1)]
    return [tuple(cores[first:last]) for first, last in itertools.pairwise(edges)]


def _begin(shares: SimpleQueue[tuple[int, ...]]) -> None:
    """Prepare a new worker: it ignores Ctrl-C, which the driver obeys, and ends at once on SIGTERM or SIGHUP.

    The worker takes its cores from the queue ``shares``. Ending at once loses nothing that is stored. A signal that
    waited for the end of a chunk would be forgotten by then, and the driver, which sends it to the workers of a broken
    pool, would wait for ever. A killed driver sends no signal, so each worker watches its driver.
    """
    if cores := shares.get():  # before JAX counts the cores, at its first computation
        os.sched_setaffinity(0, cores)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _end_at_once)
    threading.Thread(target=_end_with_driver, daemon=True).start()


def _end_at_once(number: int, _: FrameType | None) -> None:
    let_go()
    os._exit(128 + number)


def _end_with_driver() -> None:
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


@contextlib.contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Scope in which the environment sets ``threads`` as the number of threads of processes that are started."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
