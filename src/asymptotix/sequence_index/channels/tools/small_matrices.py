"""Cholesky factors of tiny matrices, unrolled: mapped over many samples they fuse, where library calls do not."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

#: Beyond this size the unrolled loops take longer to compile than they save.
_UNROLLED = 6


def _factor(A: Any) -> list[list[Any]]:
    n = A.shape[-1]
    L: list[list[Any]] = [[None] * n for _ in range(n)]
    for i in range(n):
        for j in range(i + 1):
            s = A[i, j] - sum((L[i][k] * L[j][k] for k in range(j)), 0.0)
            L[i][j] = jnp.sqrt(jnp.maximum(s, jnp.finfo(s.dtype).tiny)) if i == j else s / L[j][j]
    return L


def solve_positive(A: Any, b: Any) -> Any:
    """X with A x = b, A (n, n) symmetric and positive."""
    n = A.shape[-1]
    if n > _UNROLLED:
        return jnp.linalg.solve(A, b)
    L = _factor(A)
    x: list[Any] = [None] * n
    for i in range(n):
        x[i] = (b[i] - sum((L[i][k] * x[k] for k in range(i)), 0.0)) / L[i][i]
    for i in reversed(range(n)):
        x[i] = (x[i] - sum((L[k][i] * x[k] for k in range(i + 1, n)), 0.0)) / L[i][i]
    return jnp.stack(x)


def half_log_det(A: Any) -> Any:
    """Half the log-determinant of a symmetric positive matrix; very negative where it is singular."""
    if A.shape[-1] > _UNROLLED:
        return 0.5 * jnp.linalg.slogdet(A)[1]
    L = _factor(A)
    return sum((jnp.log(L[i][i]) for i in range(len(L))), jnp.zeros((), A.dtype))


def cholesky(A: Any) -> Any:
    """Lower Cholesky factor as an array."""
    n = A.shape[-1]
    if n > _UNROLLED:
        return jnp.linalg.cholesky(A)
    L = _factor(A)
    return jnp.stack([jnp.stack([L[i][j] if j <= i else jnp.zeros((), A.dtype) for j in range(n)]) for i in range(n)])
