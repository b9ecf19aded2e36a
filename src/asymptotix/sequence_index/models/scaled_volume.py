"""Volumes of matrices whose rows have scales that no floating-point number can hold."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def scaled_log_volume(log_scales: jax.Array, W: jax.Array) -> jax.Array:
    """Return log sqrt(det A^T A) with A = diag(exp(log_scales)) W; -inf if the columns of W are linearly dependent.

    Let S be the r largest rows and N the other rows. The block A_S gives the scale of the volume, and N enters through
    X = A_N A_S^-1, whose elements are of order one:

        log sqrt(det A^T A) = log |det A_S| + 1/2 log det(I + X^T X).

    Parameters
    ----------
    log_scales : array (k,)
        Logs of the scales of the rows. Scales of zero rows are ignored.
    W : array (k, r)
        Matrix before its rows are scaled.
    """
    k, r = W.shape
    length = jnp.max(jnp.abs(W), axis=1)
    seen = length > 0
    W = W / jnp.where(seen, length, 1.0)[:, None]
    scales = jnp.where(seen, log_scales + jnp.log(jnp.where(seen, length, 1.0)), -jnp.inf)
    total, taken, done, column_scales = jnp.zeros(()), jnp.zeros(k, bool), jnp.zeros(r, bool), jnp.zeros(r)
    for _ in range(r):
        free = ~taken[:, None] & ~done & (W != 0)
        sizes = jnp.where(free, scales[:, None] + jnp.log(jnp.abs(jnp.where(free, W, 1.0))), -jnp.inf)
        i, j = jnp.unravel_index(jnp.argmax(sizes), sizes.shape)
        pivot, row = W[i, j], W[i].at[j].set(0.0)
        total = total + sizes[i, j]
        column = W[:, j] / jnp.where(pivot != 0, pivot, 1.0)
        W = (W - column[:, None] * row).at[:, j].set(column)
        taken, done, column_scales = taken.at[i].set(True), done.at[j].set(True), column_scales.at[j].set(scales[i])
    others = (seen & ~taken)[:, None] & (W != 0)
    X = jnp.where(others, jnp.exp(jnp.where(others, scales[:, None] - column_scales, 0.0)) * W, 0.0)
    A = jnp.eye(r) + X.T @ X
    for i in range(r):  # without LAPACK, which is slow on batches of small matrices and may wait for other batches
        total = total + 0.5 * jnp.log(A[i, i])
        A = A - A[:, i, None] * A[i] / A[i, i]
    return total
