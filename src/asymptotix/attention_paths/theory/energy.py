"""Energy, the data's part of the action: ln det(K + T I) + Y^T (K + T I)^-1 Y, and its slopes in U.

With C outputs the kernel acts on (example, output),

    K^{(mu c),(nu c')} = (s_0 / d) sum_{pi pi'} U^{(pi c),(pi' c')} xi^pi(mu) . xi^pi'(nu) / N0,

and with A = (K + T I)^-1 and v = A Y the slopes are

    D^{(pi c),(pi' c')} = (s_0 / d) sum_{mu nu} A^{(mu c),(nu c')} xi^pi(mu) . xi^pi'(nu) / N0,
    R^{(pi c),(pi' c')} = (s_0 / d) sum_{mu nu} v^{mu c} v^{nu c'} xi^pi(mu) . xi^pi'(nu) / N0.

With one output, and if memory allows, the inner products of all pairs of paths are stored in a table, and K and D are
products with this table. Otherwise K and D are computed from the attended inputs by matrix products, for each pair of
outputs in turn; with one output, a triangular solve replaces the inverse.

An energy without a table has a cheaper draft, in single precision and from the leading directions of token space.
Along the other directions, the inputs of different examples are nearly orthogonal, so these directions act on K like
noise, that is like a higher temperature.

Tiberi et al., arXiv:2405.15926, eqs. (10) and (12): the paper's energy is 1/P of this one, and its kernel lacks s_0.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from .elimination import Matrix
from .path_table import PathTable, table_bytes

_BLAS = {np.dtype(kind): get_blas_funcs(("syrk", "trsm"), dtype=kind) for kind in (np.float32, np.float64)}
_potrf, _potrs, _potri = get_lapack_funcs(("potrf", "potrs", "potri"), dtype=np.float64)

RANK_TOLERANCE = 1e-14
"""Directions of token space holding less than this share of the largest direction's variance are dropped."""

LEADING_SHARE = 0.99
"""Share of |features^T v|^2 in the directions of token space along which the whitened features are reported."""

SAMPLED = 4
"""Every fourth example enters the spread over token space of whitened features; all examples have nearly the same."""


class EnergyValue(NamedTuple):
    """The energy, the lower Cholesky factor of K + T I (example fastest), v = (K + T I)^-1 Y, (P, C), and T."""

    value: float
    factor: Matrix
    mean_weights: Matrix
    temperature: float


class Spread(NamedTuple):
    """Spread over token space of the whitened features w^pi = l^-1 features^pi and the projections p^pi of v.

    Here K + T I = l l^T, b_1..b_r are the principal directions of p, and M is the covariance of w over paths and
    examples, of trace one.

    Attributes
    ----------
    total
        |I - T A|^2, which is the sum of (w_mu . U w_nu)^2 over all pairs of examples.
    concentration
        tr M^2, the inverse of the effective number of directions.
    projected
        p^pi . b_i along the q leading directions, (d, q).
    whitened
        w^pi . b_i for every example, (d, q, P).
    rest
        p M p^T for the part of p along the other directions, (d, d).
    """

    total: float
    concentration: float
    projected: Matrix
    whitened: Matrix
    rest: Matrix


class Slopes(NamedTuple):
    """D and R, each (d C, d C), and a function that returns the `Spread` for estimates of the curvature, or None."""

    D: Matrix
    R: Matrix
    spread: Callable[[], Spread] | None


class Energy:
    """Energy of given attended inputs and labels as a function of U.

    Parameters
    ----------
    xi
        Attended inputs, shape (P, d, N0).
    labels
        Y, shape (P, C).
    prior_variance
        s_0, the prior variance of the projection.
    """

    def __init__(self, xi: Matrix, labels: Matrix, prior_variance: float) -> None:
        self.examples, self.paths, N0 = xi.shape
        self.outputs = labels.shape[1]
        self._xi, self._scale = xi, float(np.sqrt(prior_variance / (self.paths * N0)))
        is_stored = self.outputs == 1 and table_bytes(self.examples, self.paths, N0) > 0
        self._table = PathTable(self.features) if is_stored else None
        # Sorted by output, then by example, like the rows of K in this class.
        self._labels = np.ascontiguousarray(labels.T).ravel()
        self._noise: Matrix | None = None

    @cached_property
    def features(self) -> np.ndarray:
        """Scaled inputs of the paths, (d, r, P); the r directions of token space are sorted by falling variance."""
        return path_features(self._xi, self._scale)

    @property
    def is_costly(self) -> bool:
        """Whether, with one output, work on the features takes more time than work on P x P matrices."""
        return self.outputs == 1 and self.features.shape[0] * self.features.shape[1] > 2 * self.examples

    @property
    def is_stored(self) -> bool:
        """Whether the inner products of all pairs of paths are stored."""
        return self._table is not None

    @property
    def kernel_scale(self) -> float:
        """Mean diagonal entry of K at U = I."""
        return float(np.vdot(self.features, self.features) / self.examples)

    def leading_directions(self, share: float) -> int:
        """Return the number of directions of token space that hold this share of the features' variance."""
        variances = np.einsum("akm,akm->k", self.features, self.features)
        return 1 + int(np.searchsorted(np.cumsum(variances), share * variances.sum()))

    def draft(self, directions: int) -> Energy:
        """Return the energy in single precision; all but the first ``directions`` of token space act like noise."""
        other = copy.copy(self)
        other.features = self.features[:, :directions].astype(np.float32)
        rest = self.features.reshape(self.paths, -1)[:, directions * self.examples :]
        other._noise, other._table = rest @ rest.T / self.examples if rest.size else None, None
        return other

    def at(self, U: Matrix, temperature: float) -> EnergyValue:
        """Return the energy at a positive definite U, and the quantities from which its slopes are computed."""
        K = self._lower_kernel(U)
        K[np.diag_indices(len(K))] += temperature if self._noise is None else temperature + (U * self._noise).sum()
        factor, info = _potrf(K, lower=1, overwrite_a=1, clean=0)
        if info != 0:
            raise np.linalg.LinAlgError(
                f"K + T I is not positive definite in double precision at temperature {temperature}: "
                "a higher temperature is needed"
            )
        v, _ = _potrs(factor, self._labels, lower=1)
        log_det = 2.0 * np.log(np.diag(factor)).sum()
        return EnergyValue(float(log_det + self._labels @ v), factor, v.reshape(self.outputs, -1).T, temperature)

    def slopes(self, energy: EnergyValue) -> Slopes:
        """Return D and R, and if the features are costly a function for the `Spread` of the whitened features."""
        # Projections of v on the features, (d, C, r) before the reshape.
        v = energy.mean_weights.astype(self.features.dtype, copy=False)
        projected = (self.features @ v).transpose(0, 2, 1).reshape(self.paths * self.outputs, -1).astype(np.float64)
        R = projected @ projected.T
        if self.outputs > 1:
            return Slopes(self._blocked_slope(energy.factor), R, None)
        if self._table is not None:
            D = self._table.slope(_potri(energy.factor, lower=1)[0])
            return Slopes(D, R, partial(self._spread, energy, projected) if self.is_costly else None)
        whitened = self._whitened(energy.factor)
        rows = whitened.reshape(self.paths, -1)
        D = np.asarray(rows @ rows.T, dtype=np.float64)
        if self._noise is not None:
            D += np.trace(_potri(energy.factor, lower=1)[0]) * self._noise
            R += (energy.mean_weights**2).sum() * self._noise
        return Slopes(D, R, partial(_spread, energy, whitened, projected) if self.is_costly else None)

    def _lower_kernel(self, U: Matrix) -> Matrix:
        """Return the lower triangle of K in Fortran order for LAPACK; outputs are slow and examples fast."""
        if self._table is not None:
            return self._table.lower_kernel(U)
        if self.outputs == 1:
            mixed = np.linalg.cholesky(U).T.astype(self.features.dtype) @ self.features.reshape(self.paths, -1)
            # The array is stored by rows, so BLAS reads its transpose without a copy.
            lower = _BLAS[mixed.dtype][0](1.0, mixed.reshape(-1, self.examples).T, lower=1)
            return np.asarray(lower, dtype=np.float64)
        U_blocks = U.reshape(self.paths, self.outputs, self.paths, self.outputs)
        columns = self.features.reshape(-1, self.examples)
        upper = np.empty((len(self._labels), len(self._labels)))
        for c, other, place in self._blocks():
            mixed = U_blocks[:, c, :, other] @ self.features.reshape(self.paths, -1)
            upper[place] = columns.T @ mixed.reshape(-1, self.examples)
        return upper.T

    def _spread(self, energy: EnergyValue, projected: Matrix) -> Spread:
        return _spread(energy, self._whitened(energy.factor), projected)

    def _whitened(self, factor: Matrix) -> Matrix:
        """Return the whitened features w^pi = l^-1 features^pi, (d, r, P), with K + T I = l l^T; D = <w^pi, w^pi'>."""
        columns = self.features.reshape(-1, self.examples).T
        whitened = _BLAS[columns.dtype][1](1.0, factor.astype(columns.dtype, copy=False), columns, lower=1)
        return whitened.T.reshape(self.features.shape)

    def _blocked_slope(self, factor: Matrix) -> Matrix:
        """Return D of several outputs from A = (K + T I)^-1: block (c, c') is <features^pi A_cc', features^pi'>.

        Whitened features are not used: they would be C times as many numbers, most of them zero.
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
        """Yield the pairs of outputs c <= c', and the slices of their block in the upper triangle of K."""
        P = self.examples
        for c in range(self.outputs):
            for other in range(c, self.outputs):
                yield c, other, (slice(c * P, (c + 1) * P), slice(other * P, (other + 1) * P))


def _spread(energy: EnergyValue, whitened: Matrix, projected: Matrix) -> Spread:
    """Return the `Spread` of whitened features (d, r, P) and projections (d, r) of v."""
    left = np.eye(len(energy.factor)) - energy.temperature * np.tril(_potri(energy.factor, lower=1)[0])
    total = 2.0 * (left**2).sum() - (np.diag(left) ** 2).sum()
    sample = whitened[:, :, ::SAMPLED]
    M = np.asarray(np.tensordot(sample, sample, axes=((0, 2), (0, 2))), dtype=np.float64)
    M /= max(np.trace(M), np.finfo(float).tiny)
    paths, sizes, directions = np.linalg.svd(projected, full_matrices=False)
    q = 1 + int(np.searchsorted(np.cumsum(sizes**2), LEADING_SHARE * (sizes**2).sum()))
    rest = (paths[:, q:] * sizes[q:]) @ directions[q:]
    leading = directions[:q].astype(whitened.dtype) @ whitened
    return Spread(float(total), float((M * M).sum()), paths[:, :q] * sizes[:q], leading, rest @ M @ rest.T)


def path_features(xi: Matrix, scale: float) -> Matrix:
    """Return ``scale`` xi for inputs xi (P, d, N0) as (d, r, P), in r <= N0 principal directions of token space.

    No inner product changes. With examples as fastest index, the kernel, the triangular solve and D are one large
    product each, without copies.
    """
    P, d, N0 = xi.shape
    X = xi.reshape(P * d, N0)
    if P * d < N0:
        X = np.asarray(np.linalg.qr(X.T, mode="r")).T
    variances, directions = np.linalg.eigh(X.T @ X)
    # At least one direction is kept, also for inputs that are all zero.
    kept = variances >= RANK_TOLERANCE * variances[-1]
    X = X @ directions[:, kept][:, ::-1]
    return np.ascontiguousarray((scale * X).reshape(P, d, -1).transpose(1, 2, 0))
