"""Logarithms of positive definite matrices as vectors: unbounded coordinates, in which rescaling is a shift."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def to_log(matrices: Sequence[Matrix]) -> Matrix:
    """Return one vector with the upper triangles, row by row, of the logarithms of all matrices.

    Off-diagonal entries are multiplied by sqrt 2, so that lengths are Frobenius norms.
    """
    parts = []
    for X in matrices:
        values, vectors = np.linalg.eigh(X)
        log_X = (vectors * np.log(values)) @ vectors.T
        parts.append(log_X[np.triu_indices(len(X))] * _weights(len(X)))
    return np.concatenate(parts)


def from_log(coordinates: Matrix, sizes: Sequence[int]) -> list[Matrix]:
    """Return the positive definite matrices, of these sizes, from the coordinates that `to_log` gives."""
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
