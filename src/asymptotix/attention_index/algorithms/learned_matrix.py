"""What is read off a learned matrix S at finite dimension, in the basis in which the target S_0 is diagonal."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Eigenvalues of S beyond this count as learned: training leaves what the penalty removes slightly above zero.
RANK_CUT = 1e-2


def spectral_observables(S: np.ndarray, target: np.ndarray) -> dict[str, Any]:
    """Overlaps with S_0 = diag(target), estimation error, eigenvalues and rank of a learned matrix."""
    dim = len(target)
    eigenvalues = np.linalg.eigvalsh(S)
    m, q = float(np.diag(S) @ target / dim), float((S**2).sum() / dim)
    return {
        "m": m,
        "q": q,
        "estimation_error": q - 2 * m + float((target**2).mean()),
        "eigenvalues": eigenvalues,
        "rank": float((abs(eigenvalues) > RANK_CUT).mean()),
    }
