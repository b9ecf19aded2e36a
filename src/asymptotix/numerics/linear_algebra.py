"""Square roots, projections and bases of small symmetric matrices, and logits of numbers in [0, 1].

Square roots and projections act on the last two axes, so that one call may take a stack (n, p, p).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks

RELATIVE_TOLERANCE = 1e-9
"""Asymmetry and negative eigenvalues below this share of the largest one count as rounding."""


def symmetrise(matrix: ArrayLike) -> NDArray[np.float64]:
    """Return the symmetric part (A + A^T) / 2 of a matrix A (p, p), or of each matrix of a stack (..., p, p)."""
    a = _square("matrix", matrix)
    return 0.5 * (a + np.swapaxes(a, -1, -2))


def mixed_rows(matrix: NDArray[np.float64], Z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the products (n, P, M) of ``matrix`` (P, P) with every matrix of the stack ``Z`` (n, P, M)."""
    diagonal = np.diag(matrix)
    if (matrix == np.diag(diagonal)).all():
        return diagonal[:, None] * Z
    return np.einsum("pq,nqm->npm", matrix, Z)


def psd_sqrt(matrix: ArrayLike, *, name: str = "matrix", scale: float = 0.0) -> NDArray[np.float64]:
    """Return the symmetric square root R of a positive semi-definite ``matrix`` A (..., p, p), so that R R = A.

    Eigenvalues below zero by rounding count as zero; otherwise LinAlgError is raised, with ``name`` for A. If A is a
    difference of larger numbers, ``scale`` is their size, because A then contains their rounding errors.
    """
    values, vectors = np.linalg.eigh(_symmetric(name, matrix, scale))
    bound = RELATIVE_TOLERANCE * np.abs(values).max(axis=-1, initial=scale, keepdims=True)
    if (values < -bound).any():
        # LinAlgError is also a ValueError: bad input raises it, and a solver can catch it at one grid point.
        raise np.linalg.LinAlgError(
            f"{name} must be positive semi-definite, got smallest eigenvalue {values.min():.3g}"
        )
    return _rebuild(np.sqrt(np.maximum(values, 0.0)), vectors)


def psd_project(matrix: ArrayLike, floor: float = 0.0) -> NDArray[np.float64]:
    """Return the symmetric matrix nearest to ``matrix`` (Frobenius norm) whose eigenvalues are at least ``floor``."""
    checks.non_negative("floor", floor)
    values, vectors = np.linalg.eigh(symmetrise(matrix))
    return _rebuild(np.maximum(values, floor), vectors)


def symmetric_basis(size: int) -> NDArray[np.float64]:
    """Return an orthonormal (Frobenius) basis of the symmetric p x p matrices, (p(p+1)/2, p, p), with p = ``size``.

    The order is that of the upper triangle, row by row: E_ii, and (E_ij + E_ji) / sqrt(2) for i < j.
    """
    size = checks.integer("size", size, 1)
    rows, columns = np.triu_indices(size)
    basis = np.zeros((rows.size, size, size))
    element = np.arange(rows.size)
    entry = np.where(rows == columns, 1.0, np.sqrt(0.5))
    basis[element, rows, columns] = entry
    basis[element, columns, rows] = entry
    return basis


def to_logit(q: ArrayLike, complement: ArrayLike | None = None) -> NDArray[np.float64]:
    """Return log(q / (1 - q)), entry by entry; -inf at q = 0 and +inf at q = 1.

    ``complement`` is 1 - q. Given, it keeps full relative accuracy near q = 1, where the digits of 1 - q cancel.
    """
    q = np.asarray(q, dtype=np.float64)
    rest = 1.0 - q if complement is None else np.asarray(complement, dtype=np.float64)
    if not (np.all(q >= 0) and np.all(rest >= 0)):
        raise ValueError(f"q and its complement must lie in [0, 1], got q = {q} and complement = {rest}")
    if not np.all(abs(q + rest - 1.0) <= 1e-9):
        raise ValueError(f"complement must equal 1 - q, got q + complement = {q + rest}")
    with np.errstate(divide="ignore"):
        return np.log(q) - np.log(rest)


def from_logit(logit: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (q, 1 - q) for a ``logit`` log(q / (1 - q)), entry by entry, both to full relative accuracy."""
    t = np.asarray(logit, dtype=np.float64)
    # The exponential of a negative number never overflows; the larger of the pair is 1 / (1 + decay).
    decay = np.exp(-np.abs(t))
    large, small = 1.0 / (1.0 + decay), decay / (1.0 + decay)
    return np.where(t >= 0, large, small), np.where(t >= 0, small, large)


def _square(name: str, matrix: ArrayLike) -> NDArray[np.float64]:
    a = np.asarray(matrix, dtype=np.float64)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ValueError(f"{name} must be square in its last two axes, got shape {a.shape}")
    if not np.isfinite(a).all():
        raise np.linalg.LinAlgError(
            f"{name} must be finite, got {np.count_nonzero(~np.isfinite(a))} entries that are not"
        )
    return a


def _symmetric(name: str, matrix: ArrayLike, scale: float) -> NDArray[np.float64]:
    a = _square(name, matrix)
    gap = np.abs(a - np.swapaxes(a, -1, -2)).max(axis=(-1, -2), initial=0.0)
    if (gap > RELATIVE_TOLERANCE * np.abs(a).max(axis=(-1, -2), initial=scale)).any():
        raise np.linalg.LinAlgError(f"{name} must be symmetric, got max |A - A^T| = {gap.max():.3g}")
    return symmetrise(a)


def _rebuild(values: NDArray[np.float64], vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return symmetrise((vectors * values[..., None, :]) @ np.swapaxes(vectors, -1, -2))
