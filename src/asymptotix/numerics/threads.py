"""Threads: our own, for compiled work on many samples, and those of the linear algebra library, for large matrices."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from . import interrupts

Part = TypeVar("Part")
Made = TypeVar("Made")

#: Rows of a matrix below which a factorisation is not worth more than one thread.
SMALL = 256
#: Parts per thread between two looks for a signal: they differ in what they take, and who is done takes another.
_GROUP = 8


def one_blas_thread(rows: int = 0) -> AbstractContextManager[Any]:
    """Scope in which BLAS and LAPACK use one thread, if the matrices have at most `SMALL` rows.

    Threads that wait for one another spin: on a machine that is busy, or beside threads of our own, a factorisation of
    small matrices then takes ten times as long.
    """
    if rows > SMALL:
        return nullcontext()
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:  # slower, and as right
        return nullcontext()
    return threadpool_limits(1)


def available_cores() -> int:
    """Cores that this process may use: those it is bound to, and no more than OMP_NUM_THREADS, if that is set."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, max(1, int(told))) if told.isdigit() else cores


def in_threads(work: Callable[[Part], Made], parts: Sequence[Part]) -> list[Made]:
    """``work`` of every part, on all available cores where it does not hold the interpreter.

    What a part gives must not depend on the others. A signal to stop is obeyed between groups of parts: none should
    take much longer than a hundredth of a second, nor much less than a thousandth.
    """
    threads = min(available_cores(), len(parts))
    made: list[Made] = []
    with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
        for first in range(0, len(parts), _GROUP * threads):
            interrupts.check()
            group = parts[first : first + _GROUP * threads]
            made += map(work, group) if pool is None else pool.map(work, group)
    return made
