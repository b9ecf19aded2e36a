"""What is read off a learned matrix S at finite dimension, in the basis in which the target S_0 is diagonal."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

#: Eigenvalues of S beyond this count as learned: training leaves what the penalty removes slightly above zero.
RANK_CUT = 1e-2
#: Relative distance of an eigenvalue of S_0 from a spike within which it is that spike.
SAME_SPIKE = 1e-9


def spectral_observables(S: np.ndarray, target: np.ndarray, spikes: ArrayLike = ()) -> dict[str, Any]:
    """Overlaps with S_0 = diag(target), estimation error, eigenvalues and rank of a learned matrix; its outliers."""
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


def _outliers(eigenvalues: np.ndarray, vectors: np.ndarray, target: np.ndarray, spikes: np.ndarray) -> dict[str, Any]:
    """For every spike the learned eigenvector that overlaps most with its eigenspace, each chosen once."""
    inside = np.abs(target - spikes[:, None]) <= SAME_SPIKE * spikes[:, None]
    overlaps = inside @ vectors**2
    spike, chosen = linear_sum_assignment(overlaps, maximize=True)
    # Of equal spikes, which are one eigenspace, the larger eigenvalue is the first.
    order = np.lexsort((-eigenvalues[chosen], -spikes[spike]))
    return {"outlier_eigenvalue": eigenvalues[chosen[order]], "outlier_overlap": overlaps[spike, chosen][order]}
