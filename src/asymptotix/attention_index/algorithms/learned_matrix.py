"""The learned matrix S at finite dimension, its penalty, and observables where the target S_0 is diagonal."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

from ...numerics.arrays import Array

#: Absolute value above which an eigenvalue of S counts as learned; training leaves removed ones slightly above zero.
RANK_CUT = 1e-2
#: Largest relative distance from a spike at which an eigenvalue of S_0 counts as this spike.
SAME_SPIKE = 1e-9


def learned_matrix(weights: Array, parameterization: str) -> Array:
    """Return S: W W^T / sqrt(m d) for "factorized" weights W (d, m), or the symmetric part of "full" weights (d, d)."""
    if parameterization == "factorized":
        return times(weights, weights.T) / np.float32(np.sqrt(weights.size))
    return 0.5 * (weights + weights.T)


def penalty_and_gradient(S: Array, parameterization: str, penalty: Callable[..., Array] | None) -> tuple[Array, Array]:
    """Return Tr r(S) and its gradient r'(S), (d, d), where r(t) is the user's ``penalty``.

    Without a penalty r(t) is t ("factorized", the norm |W|_F^2) or t^2 ("full", |S|_F^2).
    """
    if penalty is None and parameterization == "full":
        return (S**2).sum(), 2 * S
    if penalty is None:
        return S.trace(), jnp.eye(len(S), dtype=S.dtype)
    values, vectors = jnp.linalg.eigh(S)
    slopes = jax.vmap(jax.grad(penalty))(values)
    return jax.vmap(penalty)(values).sum(), times(vectors * slopes, vectors.T)


def times(a: Array, b: Array) -> jax.Array:
    """Return the product of two matrices in full single precision."""
    return jnp.matmul(a, b, precision="highest")


def spectral_observables(S: np.ndarray, target: np.ndarray, spikes: ArrayLike = ()) -> dict[str, float | np.ndarray]:
    """Return the observables of a learned S (d, d), by their names in :class:`.adam.Adam`, with S_0 = diag(target).

    The outliers of the ``spikes`` of the target are included if there are any.
    """
    dim = len(target)
    eigenvalues, vectors = np.linalg.eigh(S) if np.size(spikes) else (np.linalg.eigvalsh(S), None)
    m, q = float(np.diag(S) @ target / dim), float((S**2).sum() / dim)
    return {
        "m": m,
        "q": q,
        "estimation_error": q - 2 * m + float((target**2).mean()),
        "eigenvalues": eigenvalues,
        "rank": float((abs(eigenvalues) > RANK_CUT).mean()),
        **({} if vectors is None else _outliers(eigenvalues, vectors, target, np.asarray(spikes, float))),
    }


def _outliers(
    eigenvalues: np.ndarray, vectors: np.ndarray, target: np.ndarray, spikes: np.ndarray
) -> dict[str, np.ndarray]:
    """Return eigenvalue and squared overlap of the eigenvector of S that belongs to each spike, descending.

    Each spike gets a different eigenvector, so that the sum of the squared overlaps is largest.
    """
    inside = np.abs(target - spikes[:, None]) <= SAME_SPIKE * spikes[:, None]
    overlaps = inside @ vectors**2
    spike, chosen = linear_sum_assignment(overlaps, maximize=True)
    # Equal spikes share one eigenspace; their learned eigenvalues are in descending order.
    order = np.lexsort((-eigenvalues[chosen], -spikes[spike]))
    return {"outlier_eigenvalue": eigenvalues[chosen[order]], "outlier_overlap": overlaps[spike, chosen][order]}
