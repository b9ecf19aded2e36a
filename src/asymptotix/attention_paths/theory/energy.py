"""What the data contribute to the action: ln det(K + T I) + Y^T (K + T I)^-1 Y and its slopes in U.

With C outputs the kernel acts on (example, output),

    K^{(mu c),(nu c')} = (s_0 / d) sum_{pi pi'} U^{(pi c),(pi' c')} xi^pi(mu) . xi^pi'(nu) / N0,

and with A = (K + T I)^-1 and v = A Y the slopes are

    D^{(pi c),(pi' c')} = (s_0 / d) sum_{mu nu} A^{(mu c),(nu c')} xi^pi(mu) . xi^pi'(nu) / N0,
    R^{(pi c),(pi' c')} = (s_0 / d) sum_{mu nu} v^{mu c} v^{nu c'} xi^pi(mu) . xi^pi'(nu) / N0.

The d^2 P^2 inner products are stored only where there is one output and they are few: K, D and R are then products with
one matrix. Otherwise everything follows from the attended inputs by matrix products, for each pair of outputs in turn;
where there is one output, a triangular solve takes the place of the inverse.

Tiberi et al., arXiv:2405.15926, eqs. (10) and (12): the print's energy is 1/P of this one, and its kernel lacks s_0.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from .elimination import Matrix

_syrk, _trsm = get_blas_funcs(("syrk", "trsm"), dtype=np.float64)
_potrf, _potrs, _potri = get_lapack_funcs(("potrf", "potrs", "potri"), dtype=np.float64)

RANK_TOLERANCE = 1e-14
"""Directions of token space holding less than this share of the largest direction's variance are dropped."""

TENSOR_BYTES = 64 * 2**20
"""Largest table of inner products between paths that is stored."""


class EnergyValue(NamedTuple):
    """The energy, the Cholesky factor of K + T I (lower, example fastest) and v = (K + T I)^-1 Y, (P, C)."""

    value: float
    factor: Matrix
    mean_weights: Matrix


class Energy:
    """Energy of given attended inputs and labels as a function of U.

    Parameters
    ----------
    xi
        Attended inputs, shape (P, d, N0).
    labels
        Y, shape (P, C).
    prior_variance
        s_0, that of the projection.
    """

    def __init__(self, xi: Matrix, labels: Matrix, prior_variance: float) -> None:
        self.examples, self.paths, N0 = xi.shape
        self.outputs = labels.shape[1]
        self._xi, self._scale = xi, float(np.sqrt(prior_variance / (self.paths * N0)))
        self._tensor = None
        if self.outputs == 1 and tensor_bytes(self.examples, self.paths) <= TENSOR_BYTES:
            self._tensor = path_tensor(xi, self._scale)
        # By output, then by example, as the rows of K are kept here.
        self._labels = np.ascontiguousarray(labels.T).ravel()

    @cached_property
    def features(self) -> Matrix:
        """Scaled inputs of the paths, (d, r, P)."""
        return path_features(self._xi, self._scale)

    def at(self, U: Matrix, temperature: float) -> EnergyValue:
        """The energy at a positive definite U, and what its slopes are made of."""
        K = self._lower_kernel(U)
        K[np.diag_indices(len(K))] += temperature
        factor, info = _potrf(K, lower=1, overwrite_a=1, clean=0)
        if info != 0:
            raise np.linalg.LinAlgError(
                f"K + T I is not positive definite in double precision at temperature {temperature}: "
                "a higher temperature is needed"
            )
        v, _ = _potrs(factor, self._labels, lower=1)
        log_det = 2.0 * np.log(np.diag(factor)).sum()
        return EnergyValue(float(log_det + self._labels @ v), factor, v.reshape(self.outputs, -1).T)

    def slopes(self, energy: EnergyValue) -> tuple[Matrix, Matrix]:
        """D and R, each of size d C."""
        if self._tensor is not None:
            return self._tensor_slopes(self._tensor, energy)
        D = self._whitened_slope(energy.factor) if self.outputs == 1 else self._blocked_slope(energy.factor)
        # (d, C, r): projections of v on the features.
        projected = (self.features @ energy.mean_weights).transpose(0, 2, 1).reshape(len(D), -1)
        return D, projected @ projected.T

    def _lower_kernel(self, U: Matrix) -> Matrix:
        """Lower triangle of K, Fortran-ordered as LAPACK reads it, outputs slow and examples fast."""
        if self._tensor is not None:
            return (U[np.triu_indices(self.paths)] @ self._tensor).reshape(self.examples, -1).T
        if self.outputs == 1:
            mixed = np.linalg.cholesky(U).T @ self.features.reshape(self.paths, -1)
            # Stored by rows; the transpose is what BLAS reads without a copy.
            return _syrk(1.0, mixed.reshape(-1, self.examples).T, lower=1)
        U_blocks = U.reshape(self.paths, self.outputs, self.paths, self.outputs)
        columns = self.features.reshape(-1, self.examples)
        upper = np.empty((len(self._labels), len(self._labels)))
        for c, other, place in self._blocks():
            mixed = U_blocks[:, c, :, other] @ self.features.reshape(self.paths, -1)
            upper[place] = columns.T @ mixed.reshape(-1, self.examples)
        return upper.T

    def _tensor_slopes(self, tensor: Matrix, energy: EnergyValue) -> tuple[Matrix, Matrix]:
        """D and R from the table of inner products, which holds (pi, pi') and (pi', pi) together."""
        lower = _potri(energy.factor, lower=1)[0]
        A = np.tril(lower) + np.tril(lower, -1).T
        v = energy.mean_weights
        halves = np.zeros((2, self.paths, self.paths))
        halves[:, *np.triu_indices(self.paths)] = 0.5 * (tensor @ np.stack([A.ravel(), (v * v.T).ravel()], axis=1)).T
        D, R = halves + halves.transpose(0, 2, 1)
        return D, R

    def _whitened_slope(self, factor: Matrix) -> Matrix:
        """D of one output from the Cholesky factor l of K + T I: with w^pi = l^-1 features^pi, D = <w^pi, w^pi'>."""
        columns = self.features.reshape(-1, self.examples).T
        whitened = _trsm(1.0, factor, columns, lower=1).T.reshape(self.paths, -1)
        return whitened @ whitened.T

    def _blocked_slope(self, factor: Matrix) -> Matrix:
        """D of several outputs from A = (K + T I)^-1: block (c, c') is <features^pi A_cc', features^pi'>.

        Whitened features would be C times as many, with zeros in most places.
        """
        upper = _potri(factor, lower=1)[0].T
        columns, rows = self.features.reshape(-1, self.examples), self.features.reshape(self.paths, -1)
        D = np.empty((self.paths, self.outputs) * 2)
        for c, other, place in self._blocks():
            A = upper[place] if c != other else np.triu(upper[place]) + np.triu(upper[place], 1).T
            block = (columns @ A).reshape(self.paths, -1) @ rows.T
            D[:, c, :, other] = block
            D[:, other, :, c] = block.T
        return D.reshape(self.paths * self.outputs, -1)

    def _blocks(self) -> Iterator[tuple[int, int, tuple[slice, slice]]]:
        """Pairs of outputs c <= c', and where their block lies in the upper triangle of K."""
        P = self.examples
        for c in range(self.outputs):
            for other in range(c, self.outputs):
                yield c, other, (slice(c * P, (c + 1) * P), slice(other * P, (other + 1) * P))


def tensor_bytes(examples: int, paths: int) -> int:
    """Memory of `path_tensor`."""
    return 8 * examples**2 * (paths * (paths + 1) // 2)


def path_tensor(xi: Matrix, scale: float) -> Matrix:
    """Scaled inner products of attended inputs for pairs pi <= pi', both orders added where they differ, (pairs, P^2).

    The kernel of one output is K = sum over pi <= pi' of U^{pi pi'} times these rows.
    """
    P, d, N0 = xi.shape
    rows = scale * xi.transpose(1, 0, 2).reshape(d * P, N0)
    products = (rows @ rows.T).reshape(d, P, d, P)
    table = np.empty((d * (d + 1) // 2, P, P))
    for place, (first, second) in enumerate(zip(*np.triu_indices(d), strict=True)):
        block = products[first, :, second]
        table[place] = block if first == second else block + block.T
    return table.reshape(len(table), P * P)


def path_features(xi: Matrix, scale: float) -> Matrix:
    """Scaled inputs as (d, r, P), token space rotated to its rank r <= N0: inner products, hence kernels, are the same.

    With the examples fastest, the kernel, the triangular solve and D are one large product each, without copies.
    """
    P, d, N0 = xi.shape
    X = xi.reshape(P * d, N0)
    if P * d < N0:
        X = np.asarray(np.linalg.qr(X.T, mode="r")).T
    else:
        variances, directions = np.linalg.eigh(X.T @ X)
        # All-zero inputs keep one (zero) direction.
        kept = variances >= RANK_TOLERANCE * variances[-1]
        if not kept.all():
            X = X @ directions[:, kept]
    return np.ascontiguousarray((scale * X).reshape(P, d, -1).transpose(1, 2, 0))
