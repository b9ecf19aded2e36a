"""Evenly spread random normals inside a compiled program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def kronecker_normals(key: Any, count: int, dim: int) -> Any:
    """Standard normals (count, dim): the additive sequence k a mod 1, shifted by a random vector.

    a_j = phi^-j with phi the root of phi^{dim+1} = phi + 1. Every point is exactly normal over the random shift, so
    averages are unbiased; lists of different keys are independent.
    """
    if dim == 0:
        return jnp.zeros((count, 0))
    phi = 2.0
    for _ in range(64):
        phi = (1 + phi) ** (1 / (dim + 1))
    steps = np.array([phi ** -(j + 1) for j in range(dim)])
    uniforms = (jnp.arange(count)[:, None] * steps + jax.random.uniform(key, (dim,))) % 1.0
    return jax.scipy.special.ndtri(jnp.clip(uniforms, 1e-14, 1 - 1e-14))


def random_rotations(generator: np.random.Generator, shape: tuple[int, ...], tokens: int) -> np.ndarray:
    """Matrices (*shape, M, M) drawn uniformly from the orthogonal group O(M): Gram-Schmidt on the rows of normals."""
    rows = generator.standard_normal((*shape, tokens, tokens))
    for i in range(tokens):
        for _ in range(2):  # the second pass removes what rounding left of the first
            for j in range(i):
                rows[..., i, :] -= (rows[..., i, :] * rows[..., j, :]).sum(-1, keepdims=True) * rows[..., j, :]
        rows[..., i, :] /= np.linalg.norm(rows[..., i, :], axis=-1, keepdims=True)
    return rows
