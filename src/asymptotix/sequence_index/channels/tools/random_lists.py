"""Random normals that fill space evenly, inside a compiled program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from ....numerics.arrays import Array

#: 2^64 divided by the golden ratio, odd.
_STEP = np.uint64(0x9E3779B97F4A7C15)


def kronecker_normals(key: jax.Array, count: int, dim: int) -> jax.Array:
    """Return standard normals (count, dim) from the additive sequence k a mod 1, shifted by a random vector.

    Over the random shift every point is exactly normal, so that averages are unbiased. Lists of different keys are
    independent.
    """
    if dim == 0:
        return jnp.zeros((count, 0))
    uniforms = (kronecker_sequence(count, dim) + jax.random.uniform(key, (dim,))) % 1.0
    return jax.scipy.special.ndtri(jnp.clip(uniforms, 1e-14, 1 - 1e-14))


def kronecker_sequence(count: int, dim: int) -> np.ndarray:
    """Return the points k a (count, dim), before mod 1; any number of them fills space evenly.

    Here a_j = phi^-j, with phi the root of phi^{dim+1} = phi + 1.
    """
    phi = 2.0
    for _ in range(64):
        phi = (1 + phi) ** (1 / (dim + 1))
    return np.arange(count)[:, None] * np.array([phi ** -(j + 1) for j in range(dim)])


def random_rotations(normals: jax.Array) -> jax.Array:
    """Return uniform draws (..., M, M) from the orthogonal group O(M), by Gram-Schmidt on rows of normals."""
    rows: list[jax.Array] = []
    for i in range(normals.shape[-1]):
        row = normals[..., i, :]
        for _ in range(2):  # the second pass removes rounding errors of the first
            for other in rows:
                row = row - (row * other).sum(-1, keepdims=True) * other
        rows.append(row / jnp.sqrt((row * row).sum(-1, keepdims=True)))
    return jnp.stack(rows, -2)


def starts(numbers: np.ndarray, seed: int) -> np.ndarray:
    """Return where samples with numbers (n,) begin in the sequence of :func:`uniforms_from`, (n,) unsigned."""
    own = np.asarray(numbers, np.uint64) + (np.uint64(seed) << np.uint64(40))
    return _scattered(_scattered(own * _STEP + _STEP) ^ _STEP)


def uniforms_from(start: Array, count: int) -> Any:
    """Return uniform numbers (..., count) in the open unit interval, for NumPy or for JAX in double precision.

    The generator is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), a counter with scattered bits: JAX's own
    generators take longer to compile than a channel.
    """
    bits = _scattered(start[..., None] + np.arange(1, count + 1, dtype=np.uint64) * _STEP)
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def normals_from(uniforms: Array) -> jax.Array:
    """Return standard normals (2 m,) from uniform numbers (2 m,), by the method of Box and Muller."""
    size, angle = jnp.split(uniforms, 2)
    radius = jnp.sqrt(-2 * jnp.log(size))
    return jnp.concatenate([radius * jnp.cos(2 * np.pi * angle), radius * jnp.sin(2 * np.pi * angle)])


def _scattered(bits: Array) -> Any:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def hashed_normals(rows: np.ndarray, count: int) -> np.ndarray:
    """Return independent standard normals (n, count) that are a function of the bits of each row (n, k) of floats.

    The bits are mixed as in the generator SplitMix64, whose constants these are.
    """

    def mixed(x: np.ndarray) -> np.ndarray:
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    if count == 0:
        return np.zeros((len(rows), 0))
    state = np.zeros(len(rows), np.uint64)
    for column in np.ascontiguousarray(rows.T, float).view(np.uint64):
        state = mixed((state ^ column) + _STEP)
    counted = mixed(state[:, None] + _STEP * np.arange(1, count + 1, dtype=np.uint64))
    return ndtri((np.asarray(counted >> np.uint64(12), float) + 0.5) * 2.0**-52)
