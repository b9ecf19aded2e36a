"""Observables of a learned matrix S at finite dimension, in the basis in which the target S_0 is diagonal."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

#: Absolute value above which an eigenvalue of S counts as learned; training leaves removed ones slightly above zero.
RANK_CUT = 1e-2
#: Largest relative distance from a spike at which an eigenvalue of S_0 counts as this spike.
SAME_SPIKE = 1e-9


def spectral_observables(S: np.ndarray, target: np.ndarray, spikes: ArrayLike = ()) -> dict[str, float | np.ndarray]:
    """Return overlap with S_0 = diag(target), estimation error, eigenvalues, rank and outliers of a learned matrix."""
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
    """Return the outliers: each spike gets a different eigenvector, for the largest sum of squared overlaps."""
    inside = np.abs(target - spikes[:, None]) <= SAME_SPIKE * spikes[:, None]
    overlaps = inside @ vectors**2
    spike, chosen = linear_sum_assignment(overlaps, maximize=True)
    # Equal spikes share one eigenspace; their learned eigenvalues are in descending order.
    order = np.lexsort((-eigenvalues[chosen], -spikes[spike]))
    return {"outlier_eigenvalue": eigenvalues[chosen[order]], "outlier_overlap": overlaps[spike, chosen][order]}
