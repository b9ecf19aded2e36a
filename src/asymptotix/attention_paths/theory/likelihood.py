"""Likelihood of the labels at a given order parameter, for samplers: log N(Y; 0, K(U) + T I) and its gradient.

    K^{(mu c),(nu c')} = (s_0 / d) sum_{pi pi'} U^{(pi c),(pi' c')} C_{pi pi'}^{mu nu},
    C_{pi pi'}^{mu nu} = xi^pi(mu) . xi^pi'(nu) / N0.

With A = (K + T I)^-1 and v = A Y, the derivative of ln N with respect to K is -(A - v v^T)/2. It takes one Cholesky
factor and one explicit inverse; reverse-mode differentiation of the factorisation would take several times longer. K is
linear in U, so the derivative with respect to U is a contraction of this matrix with C.

The kernel is that of Tiberi et al., arXiv:2405.15926, eq. (10), with the factor s_0 that the paper leaves out. Given U,
Y is Gaussian at any width.

Equation ap-kernel of docs/theory/attention_paths.md.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.arrays import Array
from .energy import path_features
from .path_table import SMALL_BYTES, PathTable, table_bytes


class PathKernels(NamedTuple):
    """The kernels of all pairs of paths, or the features that give them; one of the two is None.

    Attributes
    ----------
    tensor : array (pairs, entries) or None
        (s_0 / d) C_{pi pi'} for all d^2 pairs and P^2 entries; for one output the sums of a `PathTable`. There are only
        two axes, because with three XLA copies the tensor at every derivative.
    features : array (d, r, P) or None
        sqrt(s_0 / (d N0)) xi in the r principal directions of token space.
    """

    tensor: Array | None
    features: Any


def path_kernels(xi: np.ndarray, s_0: float, outputs: int = 1) -> PathKernels:
    """Return the kernels of attended inputs xi, shape (P, d, N0), in the form that is cheaper for a sampler."""
    P, d, N0 = xi.shape
    scale = math.sqrt(s_0 / (d * N0))
    if not stored_bytes(P, d, N0, outputs):
        return PathKernels(None, path_features(xi, scale))
    if outputs == 1:
        return PathKernels(PathTable(path_features(xi, scale)).sums, None)
    rows = scale * xi.transpose(1, 0, 2).reshape(d * P, N0)
    tensor = (rows @ rows.T).reshape(d, P, d, P).transpose(0, 2, 1, 3)
    return PathKernels(tensor.reshape(d * d, P * P), None)


def stored_bytes(examples: int, paths: int, features: int, outputs: int = 1) -> int:
    """Return the memory of the tensor in bytes; 0 where the features are used instead."""
    if outputs == 1:
        return table_bytes(examples, paths, features)
    needed = 8 * (paths * examples) ** 2
    return needed if needed <= SMALL_BYTES else 0


def kernel(F: Array, kernels: PathKernels, outputs: int = 1) -> Array:
    """Return K(U), (P C, P C), examples slowest, for U = F F^T; F (d C, k) has its rows sorted by path, then output."""
    C = outputs
    if kernels.tensor is None:
        X = kernels.features
        d, r, P = X.shape
        # M_c = sum_pi F_(pi c) xi^pi: one feature vector per column of F and direction of token space.
        M = F.reshape(d, -1).T @ X.reshape(d, r * P)
        M = M.reshape(C, -1, P).transpose(1, 2, 0).reshape(-1, P * C)
        return M.T @ M
    U = F @ F.T
    d = len(U) // C
    if C == 1:
        # Rows of the upper triangle one by one: the derivative of indexing with an array is a slow loop on CPUs.
        return symmetric(jnp.concatenate([U[i, i:] for i in range(d)]) @ kernels.tensor)
    P = math.isqrt(kernels.tensor.shape[-1])
    blocks = U.reshape(d, C, d, C).transpose(1, 3, 0, 2).reshape(C * C, d * d)
    K = (blocks @ kernels.tensor).reshape(C, C, P, P)
    return K.transpose(2, 0, 3, 1).reshape(P * C, P * C)


@jax.custom_vjp
def symmetric(packed: jax.Array) -> jax.Array:
    """Return the symmetric matrix with this upper triangle, given row by row; its derivative needs no slow scatter."""
    places = np.zeros((size := (math.isqrt(8 * len(packed) + 1) - 1) // 2, size), np.int32)
    places[np.triu_indices(size)] = np.arange(len(packed))
    return packed[np.maximum(places, places.T)]


def _packed(_: None, slope: jax.Array) -> tuple[jax.Array]:
    rows, columns = np.triu_indices(len(slope))
    # Each off-diagonal entry occurs twice in the matrix.
    return (jnp.where(rows == columns, 0.5, 1.0) * (slope + slope.T).ravel()[len(slope) * rows + columns],)


symmetric.defvjp(lambda packed: (symmetric(packed), None), _packed)


@jax.custom_vjp
def log_gaussian(K: jax.Array, Y: Array) -> jax.Array:
    """Return ln N(Y; 0, K) of a vector Y, differentiable with respect to K; nan where K is not positive definite."""
    return _forward(K, Y)[0]


def _forward(K: jax.Array, Y: Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    factor = jax.lax.linalg.cholesky(K, symmetrize_input=False)
    white = jax.scipy.linalg.solve_triangular(factor, Y, lower=True)
    log_det = jnp.log(jnp.diag(factor)).sum()
    return -0.5 * (white @ white) - log_det - 0.5 * len(Y) * math.log(2 * math.pi), (factor, white)


def _backward(kept: tuple[jax.Array, jax.Array], slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    factor, white = kept
    inverse = _inverse(factor)
    v = jax.scipy.linalg.solve_triangular(factor, white, lower=True, trans=1)
    return slope * 0.5 * (jnp.outer(v, v) - inverse), -slope * v


def _inverse(factor: jax.Array) -> jax.Array:
    """Return (l l^T)^-1 from the Cholesky factor l, by halves: three quarters of the time of two triangular solves."""
    n = len(factor) // 2
    top = jax.scipy.linalg.solve_triangular(factor[:n, :n], jnp.eye(n), lower=True)
    bottom = jax.scipy.linalg.solve_triangular(factor[n:, n:], jnp.eye(len(factor) - n), lower=True)
    off = -bottom @ (factor[n:, :n] @ top)
    corner = bottom.T @ off
    return jnp.block([[top.T @ top + off.T @ off, corner.T], [corner, bottom.T @ bottom]])


log_gaussian.defvjp(_forward, _backward)


def log_likelihood(
    F: Array, kernels: PathKernels, labels: Array, temperature: float | jax.Array, outputs: int = 1
) -> jax.Array:
    """Return ln N(Y; 0, K(F F^T) + T I) of labels Y of shape (P,) or (P, C), with F as in :func:`kernel`."""
    Y = labels.reshape(-1)
    return log_gaussian(kernel(F, kernels, outputs) + temperature * jnp.eye(len(Y)), Y)
