"""Arithmetic of one mixing layer A(v) = c I + R(v v^T) on M tokens, for many draws at once.

A vector over the tokens is a list of M arrays, and a matrix is a list of M such lists. Each entry holds all draws: the
compiler then fuses whole formulas and handles no tiny matrices. R is the row-wise softmax, or the identity ("linear").
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    import numpy as np

Vector = list[Any]
Matrix = list[list[Any]]


def dot(a: Vector, b: Vector) -> Any:
    """Return the scalar product of two vectors over the tokens (lists of M arrays, one number per draw)."""
    return sum((x * y for x, y in zip(a, b, strict=True)), 0.0)


def attention_rows(v: Vector, activation: str) -> Matrix:
    """Return R(v v^T) with R the row-wise softmax, or the identity for "linear"."""
    if activation == "linear":
        return [[x * y for y in v] for x in v]
    if len(v) == 2:  # two exponentials instead of four
        gap = v[0] - v[1]
        a, b = (jax.nn.sigmoid(logit) for logit in (v[0] * gap, -v[1] * gap))
        return [[a, 1 - a], [1 - b, b]]
    rows = []
    for x in v:
        logits = [x * y for y in v]
        top = logits[0]
        for logit in logits[1:]:
            top = jnp.maximum(top, logit)
        weights = [jnp.exp(logit - top) for logit in logits]
        total = sum(weights, 0.0)
        rows.append([weight / total for weight in weights])
    return rows


def mixing(v: Vector, skip: float, activation: str) -> Matrix:
    """Return A(v) = c I + R(v v^T), with c = ``skip``; see :func:`attention_rows`."""
    rows = attention_rows(v, activation)
    return [[x + skip if i == j else x for j, x in enumerate(row)] for i, row in enumerate(rows)]


def applied(A: Matrix, x: Vector) -> Vector:
    """Return A x."""
    return [dot(row, x) for row in A]


def solved(A: Matrix, b: Vector) -> Vector:
    """Return the solution x of A x = b."""
    n = len(b)
    rows = _eliminated([[*row, y] for row, y in zip(A, b, strict=True)])
    x: Vector = [None] * n
    for i in reversed(range(n)):
        x[i] = (rows[i][n] - sum((rows[i][k] * x[k] for k in range(i + 1, n)), 0.0)) / rows[i][i]
    return x


def determinant(A: Matrix) -> jax.Array:
    """Return |det A| for every draw."""
    if len(A) == 2:
        product = A[0][0] * A[1][1] - A[0][1] * A[1][0]
        return jnp.maximum(jnp.abs(product), _tiny(product))
    product: Any = 1.0
    for i, row in enumerate(_eliminated([[*row] for row in A])):
        product = product * jnp.abs(row[i])
    return product


def _eliminated(rows: Matrix) -> Matrix:
    """Return the upper triangle of a matrix (n, n) or (n, n + 1), by Gaussian elimination with row pivoting."""
    n = len(rows)
    for i in range(n):
        for k in range(i + 1, n):  # comparisons in turn bring the largest entry to the top
            larger = jnp.abs(rows[k][i]) > jnp.abs(rows[i][i])
            pairs = [(jnp.where(larger, y, x), jnp.where(larger, x, y)) for x, y in zip(rows[i], rows[k], strict=True)]
            rows[i], rows[k] = [p[0] for p in pairs], [p[1] for p in pairs]
        pivot = jnp.where(jnp.abs(rows[i][i]) < _tiny(rows[i][i]), _tiny(rows[i][i]), rows[i][i])
        for k in range(i + 1, n):
            factor = rows[k][i] / pivot
            rows[k] = [y - factor * x for x, y in zip(rows[i], rows[k], strict=True)]
        rows[i][i] = pivot
    return rows


def has_inverse(tokens: int, activation: str) -> bool:
    """Return whether R(v v^T) t = r can be solved for v in closed form."""
    return activation == "linear" or tokens == 2


def log_slope(v: Vector, t: Vector, activation: str) -> jax.Array:
    """Return log |det d(R(v v^T) t)/dv| for every draw; softmax needs two tokens.

    Linear: R t = v (v.t), with the Jacobian (v.t) I + v t^T. Softmax with two tokens: the rows depend on v through the
    logits v_1 (v_1 - v_2) and v_2 (v_2 - v_1), whose Jacobian has the determinant -2 (v_1 - v_2)^2.
    """
    if activation == "linear":
        return math.log(2.0) + len(v) * jnp.log(jnp.abs(dot(v, t)) + _tiny(v[0]))
    gap, spread = v[0] - v[1], t[0] - t[1]
    saturation = sum((-jnp.abs(x) - 2 * jnp.log1p(jnp.exp(-jnp.abs(x))) for x in (v[0] * gap, v[1] * gap)), 0.0)
    return jnp.log(2 * (gap * spread) ** 2 + _tiny(gap)) + saturation


def inverted(t: Vector, r: Vector, activation: str) -> tuple[Vector, jax.Array]:
    """Return one of the two solutions +-v of R(v v^T) t = r, and a mask of the draws for which they exist."""
    if activation == "linear":
        square = dot(r, t)
        exists = square > 0
        size = jnp.sqrt(jnp.where(exists, square, 1.0))
        return [x / size for x in r], exists
    # r_1 = a t_1 + (1-a) t_2, r_2 = (1-b) t_1 + b t_2: the ratios are a/(1-a) and b/(1-b), without cancellation.
    first, second = _ratio(r[0] - t[1], t[0] - r[0]), _ratio(r[1] - t[0], t[1] - r[1])
    exists = (first > 0) & (second > 0)
    logit1, logit2 = (jnp.log(jnp.where(exists, x, 2.0)) for x in (first, second))
    exists &= logit1 + logit2 > 0
    gap = jnp.sqrt(jnp.where(exists, logit1 + logit2, 1.0))
    return [logit1 / gap, -logit2 / gap], exists


def _ratio(top: jax.Array, bottom: jax.Array) -> jax.Array:
    return top / jnp.where(bottom == 0, _tiny(bottom), bottom)


def _tiny(x: jax.Array) -> np.floating:
    """Return the smallest normal number of the precision of ``x``."""
    return jnp.finfo(x.dtype).tiny
