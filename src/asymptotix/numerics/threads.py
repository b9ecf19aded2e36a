"""Threads of the linear algebra library: many matrices of a hundred rows are slower with them, not faster."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

#: Rows of a matrix below which a factorisation is not worth more than one thread.
SMALL = 256


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
