"""Logarithms of positive definite matrices as vectors: coordinates without bounds, in which scale is a shift."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def to_log(matrices: Sequence[Matrix]) -> Matrix:
    """Upper triangles of log X one after another, off-diagonal entries times sqrt 2: lengths are Frobenius norms."""
    parts = []
    for X in matrices:
        values, vectors = np.linalg.eigh(X)
        log_X = (vectors * np.log(values)) @ vectors.T
        parts.append(log_X[np.triu_indices(len(X))] * _weights(len(X)))
    return np.concatenate(parts)


def from_log(coordinates: Matrix, sizes: Sequence[int]) -> list[Matrix]:
    """The positive definite matrices, of these sizes, that `to_log` turned into coordinates."""
    matrices, first = [], 0
    for size in sizes:
        last = first + size * (size + 1) // 2
        log_X = np.zeros((size, size))
        log_X[np.triu_indices(size)] = coordinates[first:last] / _weights(size)
        log_X += np.triu(log_X, 1).T
        values, vectors = np.linalg.eigh(log_X)
        matrices.append((vectors * np.exp(values)) @ vectors.T)
        first = last
    return matrices


def _weights(size: int) -> Matrix:
    rows, columns = np.triu_indices(size)
    return np.where(rows == columns, 1.0, np.sqrt(2.0))
