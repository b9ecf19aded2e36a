"""Threads: our own around compiled loops, and those of linear algebra."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import lru_cache
from typing import Any, TypeVar

from . import interrupts
from .precision import carried

#: Rows of a matrix below which a factorisation is not worth more than one thread.
SMALL = 256

Item = TypeVar("Item")
Made = TypeVar("Made")


def one_blas_thread(rows: int = 0) -> AbstractContextManager[Any]:
    """Scope in which BLAS and LAPACK use one thread, if the matrices have at most `SMALL` rows.

    Threads that wait for one another spin: on a machine that is busy, or beside threads of our own, a factorisation of
    small matrices then takes ten times as long.
    """
    return nullcontext() if rows > SMALL else _one_blas_thread


class _OneBlasThread(AbstractContextManager):
    """The limit is one of the whole process: the first thread that comes sets it, the last that leaves lifts it.

    Each with its own, one that came while another was inside would put back what that one had set.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._limits = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                with suppress(ImportError):  # without it slower, and as right
                    from threadpoolctl import threadpool_limits

                    self._limits.enter_context(threadpool_limits(1))
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limits.close()


_one_blas_thread = _OneBlasThread()


def available_cores() -> int:
    """Cores that this process may use: those it is bound to, and no more than OMP_NUM_THREADS, if that is set."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, max(1, int(told))) if told.isdigit() else cores


def each_in_parallel(work: Callable[[Item], object], items: Sequence[Item], threads: int) -> None:
    """Call ``work`` on every item, in any order; a thread that is done with one takes the next.

    For work that releases the interpreter lock, in items of a fraction of a second: a signal to stop is obeyed between
    two of them. An item may itself do its work in this way: all of them together have the threads of this process.
    """
    interrupts.check()
    obeyed = interrupts.times_obeyed()
    left, stopped, unfinished = iter(items), threading.Event(), threading.Event()

    def ended() -> bool:
        # A signal that has been obeyed no longer waits, so obeyed signals count too: they also end nested work.
        return stopped.is_set() or interrupts.waiting() or interrupts.times_obeyed() != obeyed

    def help_taking() -> None:
        with interrupts.ending_with(ended):
            take()

    def take() -> None:
        try:
            for item in left:  # shared: taking the next one is one step of the interpreter
                if ended():
                    unfinished.set()
                    return
                work(item)
        except BaseException:  # in any of the threads, and a signal in the main one
            stopped.set()
            raise

    pool = _others(available_cores() - 1) if threads > 1 else None
    others = [pool.submit(carried(help_taking)) for _ in range(threads - 1)] if pool else []
    try:
        take()
    finally:  # those that have not begun have nothing to do: where all threads wait like this one, none would begin
        begun = [other for other in others if not other.cancel()]
        try:
            wait(begun)
        except BaseException:  # a signal while waiting: the others end with what they are at
            stopped.set()
            raise
    interrupts.check()
    for other in begun:
        other.result()
    interrupts.check()
    if unfinished.is_set():  # in a thread of the user's own, where a check says nothing
        raise KeyboardInterrupt


@lru_cache(maxsize=4)
def _others(count: int) -> ThreadPoolExecutor:
    """The threads beside those that ask for work to be done; they are kept, for to start them takes a millisecond."""
    return ThreadPoolExecutor(max(1, count), thread_name_prefix="asymptotix")


def in_threads(work: Callable[[Item], Made], items: Sequence[Item], *, first_alone: bool = True) -> list[Made]:
    """What ``work`` makes of every item, in their order, on all available cores.

    The first one alone, so that what it compiles is there for all; unless the compiler sees to that itself, as numba's
    does. What an item gives must not depend on the others.
    """
    made: list[Any] = [None] * len(items)

    def make(place: int) -> None:
        made[place] = work(items[place])

    left = range(len(items))
    if first_alone:
        make(0)
        left = left[1:]
    each_in_parallel(make, left, min(available_cores(), len(items)))
    return made


if hasattr(os, "register_at_fork"):  # a child has the pool, and what threads hold, without the threads
    os.register_at_fork(after_in_child=_others.cache_clear)
    os.register_at_fork(after_in_child=_one_blas_thread.__init__)
