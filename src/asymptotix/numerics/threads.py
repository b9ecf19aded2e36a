"""Threads of this library, which run compiled loops, and a limit on the threads of BLAS and LAPACK."""

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

#: Largest number of rows of a matrix at which its factorisation gains nothing from a second thread. Larger: big
#: factorisations use one core. Smaller: idle BLAS threads slow down small ones.
SMALL = 256

Item = TypeVar("Item")
Made = TypeVar("Made")


def one_blas_thread(rows: int = 0) -> AbstractContextManager[None]:
    """Scope in which BLAS and LAPACK use one thread, if ``rows``, the size of the matrices, is at most `SMALL`.

    Waiting BLAS threads keep their cores busy. On a busy machine, or together with our own threads, a factorisation of
    small matrices then takes ten times as long.
    """
    return nullcontext() if rows > SMALL else _one_blas_thread


class _OneBlasThread(AbstractContextManager):
    """Limit of BLAS to one thread in this process: the first thread that enters sets it, the last to leave lifts it.

    With one limit per thread, a thread that entered while another was inside would later restore the other's limit.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._limits = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                with suppress(ImportError):  # without threadpoolctl slower, with the same numbers
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
    """Return the number of cores in the affinity of this process, but at most OMP_NUM_THREADS if that is set."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, max(1, int(told))) if told.isdigit() else cores


def each_in_parallel(work: Callable[[Item], object], items: Sequence[Item], threads: int) -> None:
    """Call ``work`` on every item, in any order, in ``threads`` threads, of which the calling thread is one.

    A thread that has finished an item takes the next one. ``work`` should release the interpreter lock and take a
    fraction of a second per item, because interrupts act between items. ``work`` may itself call this function; all
    such calls share the threads of this process.
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
            for item in left:  # shared by the threads: the interpreter takes an item in one step
                if ended():
                    unfinished.set()
                    return
                work(item)
        except BaseException:  # an error in any thread, or a signal in the main one
            stopped.set()
            raise

    pool = _others(available_cores() - 1) if threads > 1 else None
    others = [pool.submit(carried(help_taking)) for _ in range(threads - 1)] if pool else []
    try:
        take()
    finally:  # helpers that have not begun are cancelled: if all threads of the pool wait here, they would never begin
        begun = [other for other in others if not other.cancel()]
        try:
            wait(begun)
        except BaseException:  # a signal while waiting: the others end after their current item
            stopped.set()
            raise
    interrupts.check()
    for other in begun:
        other.result()
    interrupts.check()
    if unfinished.is_set():  # in a thread that the user started, where check() does not raise
        raise KeyboardInterrupt


@lru_cache(maxsize=4)
def _others(count: int) -> ThreadPoolExecutor:
    """Return a pool of ``count`` threads, at least one; it is cached, because starting threads takes a millisecond."""
    return ThreadPoolExecutor(max(1, count), thread_name_prefix="asymptotix")


def in_threads(work: Callable[[Item], Made], items: Sequence[Item], *, first_alone: bool = True) -> list[Made]:
    """Return ``work(item)`` for every item, in order, computed on all available cores.

    The first item runs alone, so that all others use what it compiles. ``first_alone=False`` is for compilers, such as
    numba's, that let threads share one compilation. The result of an item must not depend on other items.
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


if hasattr(os, "register_at_fork"):  # a forked child inherits the pool and held locks, but not the threads
    os.register_at_fork(after_in_child=_others.cache_clear)
    os.register_at_fork(after_in_child=_one_blas_thread.__init__)
