"""Which layer of a network comes to rest first."""

from __future__ import annotations

import numpy as np


def similarity(ways: np.ndarray) -> np.ndarray:
    """Tr(K_t K_*) / (|K_t|_F |K_*|_F) along the last axis but two of w (..., steps, rows, columns), K = w w^T.

    K_* is that of the last step.
    """
    grams = np.empty((*ways.shape[:-1], ways.shape[-2]))
    np.matmul(ways, ways.swapaxes(-1, -2), out=grams, dtype=float)
    norms = np.linalg.norm(grams, axis=(-2, -1))
    return np.einsum("...tij,...ij->...t", grams, grams[..., -1, :, :]) / (norms * norms[..., -1:])
