"""Cholesky factors of small matrices without LAPACK, for programs that are mapped over many samples.

Loops over tiny matrices are unrolled, because they then fuse with the surrounding operations; library calls do not. A
LAPACK call of XLA on a batch also hands parts of the batch to the thread pool on which it runs itself: as many such
calls at once as there are cores, in one program or in several, wait for one another for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ....numerics.arrays import Array

if TYPE_CHECKING:
    from typing import TypeVar

    State = TypeVar("State")

#: Largest size with unrolled loops. Beyond it they take longer to compile than they save.
_UNROLLED = 6


def cholesky(A: Array) -> jax.Array:
    """Return the lower Cholesky factor of a symmetric positive matrix; tiny diagonal entries where it is singular."""
    n = A.shape[-1]
    if n > _UNROLLED:
        return _factor_by_columns(A)
    L = _factor(A)
    return jnp.stack([jnp.stack([L[i][j] if j <= i else jnp.zeros((), A.dtype) for j in range(n)]) for i in range(n)])


def solve_lower(L: Array, b: Array) -> jax.Array:
    """Return x with L x = b, L (n, n) lower triangular, b (n, ...)."""
    n = L.shape[-1]
    if n > _UNROLLED:
        none = jnp.zeros(b.shape, jnp.result_type(L, b))
        return jax.lax.fori_loop(0, n, lambda i, x: x.at[i].set((b[i] - L[i] @ x) / L[i, i]), none)
    return jnp.stack(_forward([[L[i, j] for j in range(n)] for i in range(n)], b))


def solve_positive(A: Array, b: Array) -> jax.Array:
    """Return x with A x = b, A (n, n) symmetric and positive, b (n, ...)."""
    n = A.shape[-1]
    if n > _UNROLLED:
        L = _factor_by_columns(A)
        return solve_lower(L[::-1, ::-1].T, solve_lower(L, b)[::-1])[::-1]
    L = _factor(A)
    x = _forward(L, b)
    for i in reversed(range(n)):
        x[i] = (x[i] - sum((L[k][i] * x[k] for k in range(i + 1, n)), 0.0)) / L[i][i]
    return jnp.stack(x)


def least_squares(A: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return x that minimises |A x - b|, A (k, n), and how far A is from a singular matrix.

    That distance is the smallest length of a column without its projection on earlier columns. The method makes columns
    orthogonal: A^T A has the squared condition number of A, and loses all digits where A is nearly singular.
    """
    n = A.shape[1]

    def with_column(j: int | jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        A, b, R, c = state
        length = jnp.sqrt((A[:, j] ** 2).sum())
        q = A[:, j] / jnp.where(length > 0, length, 1.0)
        row = jnp.where(np.arange(n) > j, q @ A, 0.0)
        return A - q[:, None] * row, b - q * (q @ b), R.at[j].set(row.at[j].set(length)), c.at[j].set(q @ b)

    def solved(i: int | jax.Array, x: jax.Array) -> jax.Array:
        j = n - 1 - i
        return x.at[j].set((c[j] - R[j] @ x) / jnp.where(R[j, j] > 0, R[j, j], 1.0))

    loop = _unrolled if n <= _UNROLLED else jax.lax.fori_loop
    none = jnp.zeros(n, A.dtype)
    *_, R, c = loop(0, n, with_column, (A, b, jnp.zeros((n, n), A.dtype), none))
    return loop(0, n, solved, none), jnp.min(jnp.diagonal(R))


def _unrolled(first: int, end: int, step: Callable[[int, State], State], state: State) -> State:
    for j in range(first, end):
        state = step(j, state)
    return state


def half_log_det(A: Array) -> jax.Array:
    """Return half the log-determinant of a symmetric positive matrix; very negative where it is singular."""
    if len(A) > _UNROLLED:
        return jnp.log(jnp.diagonal(_factor_by_columns(A))).sum()
    L = _factor(A)
    return sum((jnp.log(L[i][i]) for i in range(len(L))), jnp.zeros((), A.dtype))


def _forward(L: list[list[jax.Array]], b: Array) -> list[jax.Array]:
    x: list[jax.Array] = []
    for i in range(len(L)):
        x.append((b[i] - sum((L[i][k] * x[k] for k in range(i)), 0.0)) / L[i][i])
    return x


def _factor(A: Array) -> list[list[jax.Array]]:
    n = A.shape[-1]
    L: list[list[Any]] = [[None] * n for _ in range(n)]
    for i in range(n):
        for j in range(i + 1):
            s = A[i, j] - sum((L[i][k] * L[j][k] for k in range(j)), 0.0)
            L[i][j] = _pivot(s) if i == j else s / L[j][j]
    return L


def _factor_by_columns(A: Array) -> jax.Array:
    rows = jnp.arange(len(A))

    def with_column(j: jax.Array, L: jax.Array) -> jax.Array:
        s = A[:, j] - L @ L[j]
        pivot = _pivot(s[j])
        return L.at[:, j].set(jnp.where(rows > j, s / pivot, jnp.where(rows == j, pivot, 0.0)))

    return jax.lax.fori_loop(0, len(A), with_column, jnp.zeros_like(A))


def _pivot(square: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny))
