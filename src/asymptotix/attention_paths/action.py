"""Action of the order parameter of a deep attention network at finite width, and its gradient.

With d = H_1 ... H_L paths, attended inputs xi^pi(x) in R^N0 and prior variance s_0 of the projection, the kernel is

    K(x, x') = (s_0 / d) sum_{pi pi'} U^{pi pi'} C_{pi pi'}(x, x'),    C_{pi pi'}(x, x') = xi^pi(x) . xi^pi'(x') / N0,

and at width N and temperature T the action of P examples with labels Y is

    S(U) = S_0(U) + (1/N) [ ln det(K + T I) + Y^T (K + T I)^-1 Y ],

where S_0 is the entropy of `asymptotix.attention_paths.elimination`, minimal over the deeper layers. The posterior of U
is exp(-N S / 2) at leading order. Its gradient, with A = (K + T I)^-1 and v = A Y, is

    dS/dU = (1/s_1) I (x) (U^(2))^-1 - U^-1 + (D - R) / N,
    D_{pi pi'} = (s_0 / d) sum_{mu nu} A_{mu nu} C_{pi pi'}^{mu nu},    R_{pi pi'} = (s_0 / d) v^T C_{pi pi'} v.

C itself (d^2 P^2 numbers) is never built: everything follows from the attended inputs by matrix products.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from ..core import checks
from .elimination import Matrix, eliminate, entropy, extended_inverse

_syrk, _trsm = get_blas_funcs(("syrk", "trsm"), dtype=np.float64)
_potrf, _potrs = get_lapack_funcs(("potrf", "potrs"), dtype=np.float64)

RANK_TOLERANCE = 1e-14
"""Directions of token space holding less than this share of the largest direction's variance are dropped."""


@dataclass(frozen=True)
class ActionValue:
    """The action at one U, and what comes with it.

    Attributes
    ----------
    value
        S.
    D, R
        Derivatives of ln det(K + T I) and of -Y^T (K + T I)^-1 Y with respect to U, shape (d, d).
    inner
        The eliminated U^(2), ..., U^(L+1) as matrices; the last is 1 x 1.
    prior_slope
        (1/s_1) I (x) (U^(2))^-1, shape (d, d).
    gradient
        dS/dU, shape (d, d).
    mean_weights
        v = (K + T I)^-1 Y, shape (P,): the mean prediction at x is sum_mu K(x, x_mu) v_mu.
    """

    value: float
    D: Matrix
    R: Matrix
    inner: list[Matrix]
    prior_slope: Matrix
    gradient: Matrix
    mean_weights: Matrix


class _Energy(NamedTuple):
    value: float
    factor: Matrix
    mean_weights: Matrix


class Action:
    """Action of given attended inputs and labels as a function of the order parameter U.

    Parameters
    ----------
    xi
        Attended inputs, shape (P, d, N0), first layer's head slowest in the path index.
    labels
        Y, shape (P,).
    heads
        Heads per layer, H_1..H_L.
    temperature
        T > 0.
    prior_variance
        One variance for all weights, or L + 2 of them: projection, value matrices of layers 1..L, readout.
    width
        N; inf is the Gaussian-process limit, where the data drop out of S.
    """

    def __init__(
        self,
        xi: ArrayLike,
        labels: ArrayLike,
        heads: Sequence[int],
        temperature: float,
        prior_variance: float | Sequence[float] = 1.0,
        width: float = np.inf,
    ) -> None:
        self.heads = tuple(checks.integer("heads", H, 1) for H in heads)
        if not self.heads:
            raise ValueError("heads must name at least one layer, got none")
        self.paths = int(np.prod(self.heads))
        features = checks.array_of_shape("xi", xi, (None, self.paths, None))
        self.examples = features.shape[0]
        if features.size == 0:
            raise ValueError(f"xi must hold at least one example and one feature, got shape {features.shape}")
        self.labels = checks.array_of_shape("labels", labels, (self.examples,))
        self.prior_variances = _variances(prior_variance, len(self.heads))
        self.temperature = checks.positive("temperature", temperature)
        self.width = checks.positive("width", width)
        scale = np.sqrt(self.prior_variances[0] / (self.paths * features.shape[2]))
        self._features = _path_features(features, scale)

    def replace(self, *, temperature: float | None = None, width: float | None = None) -> Action:
        """The same data at another temperature or width; the features are shared."""
        other = copy.copy(self)
        if temperature is not None:
            other.temperature = checks.positive("temperature", temperature)
        if width is not None:
            other.width = checks.positive("width", width)
        return other

    @property
    def prior_order_parameter(self) -> Matrix:
        """U in the Gaussian-process limit: s_1 ... s_{L+1} I, that is s2^(L+1) I for a single variance s2."""
        return np.prod(self.prior_variances[1:]) * np.eye(self.paths)

    def kernel(self, U: Matrix) -> Matrix:
        """K(U) on the examples, shape (P, P), without the temperature."""
        lower = self._lower_kernel(self._cholesky(U))
        return np.tril(lower) + np.tril(lower, -1).T

    def energy(self, U: Matrix) -> float:
        """The data's share of N S: ln det(K + T I) + Y^T (K + T I)^-1 Y."""
        return self._energy(U).value

    def value(self, U: Matrix, start: Sequence[Matrix] | None = None) -> float:
        """S alone: about half the cost of `at`. `start` as for `at`."""
        inner = eliminate(U, self.heads, self.prior_variances[1:], start)
        return entropy(U, inner, self.heads, self.prior_variances[1:]) + self._energy(U).value / self.width

    def at(self, U: Matrix, start: Sequence[Matrix] | None = None) -> ActionValue:
        """S, its gradient and their parts at a symmetric positive definite U of shape (d, d).

        `start` is where the elimination of the deeper layers begins, such as the `inner` of a nearby U.
        """
        variances = self.prior_variances[1:]
        energy = self._energy(U)
        inner = eliminate(U, self.heads, variances, start)
        D, R = self._energy_slopes(energy)
        prior_slope = extended_inverse(inner[0], self.heads[0]) / variances[0]
        inverse = np.linalg.inv(U)
        return ActionValue(
            value=entropy(U, inner, self.heads, variances) + energy.value / self.width,
            D=D,
            R=R,
            inner=inner,
            prior_slope=prior_slope,
            gradient=prior_slope - 0.5 * (inverse + inverse.T) + (D - R) / self.width,
            mean_weights=energy.mean_weights,
        )

    def _cholesky(self, U: Matrix) -> Matrix:
        if np.shape(U) != (self.paths, self.paths):
            raise ValueError(f"U must have shape {(self.paths, self.paths)}, got {np.shape(U)}")
        try:
            return np.asarray(np.linalg.cholesky(U), dtype=np.float64)
        except np.linalg.LinAlgError:
            least = np.linalg.eigvalsh(U).min()
            raise np.linalg.LinAlgError(f"U must be positive definite, got smallest eigenvalue {least:.3g}") from None

    def _lower_kernel(self, root: Matrix) -> Matrix:
        """Lower triangle of K from U = root root^T."""
        mixed = (root.T @ self._features.reshape(self.paths, -1)).reshape(-1, self.examples)
        # Stored by rows; the transpose is what BLAS reads without a copy.
        return _syrk(1.0, mixed.T, lower=1)

    def _energy(self, U: Matrix) -> _Energy:
        K = self._lower_kernel(self._cholesky(U))
        K[np.diag_indices(self.examples)] += self.temperature
        factor, info = _potrf(K, lower=1, overwrite_a=1, clean=0)
        if info != 0:
            raise np.linalg.LinAlgError(
                f"K + T I is not positive definite in double precision at temperature {self.temperature}: "
                "a higher temperature is needed"
            )
        v, _ = _potrs(factor, self.labels, lower=1)
        log_det = 2.0 * np.log(np.diag(factor)).sum()
        return _Energy(float(log_det + self.labels @ v), factor, v)

    def _energy_slopes(self, energy: _Energy) -> tuple[Matrix, Matrix]:
        """D and R from the Cholesky factor l of K + T I: with w^pi = l^-1 features^pi, D = <w^pi, w^pi'>."""
        columns = self._features.reshape(-1, self.examples).T
        whitened = _trsm(1.0, energy.factor, columns, lower=1).T.reshape(self.paths, -1)
        projected = self._features @ energy.mean_weights
        return whitened @ whitened.T, projected @ projected.T


def required_bytes(examples: int, paths: int, features: int) -> int:
    """Peak memory of building and evaluating an action, in bytes, beyond the attended inputs handed over.

    Four arrays of the size of the attended inputs (a checked copy, the features kept, the weighted or whitened ones, a
    copy in passing) and a few of examples x examples and features x features.
    """
    return 8 * (4 * examples * paths * features + 3 * examples**2 + 3 * features**2 + 8 * paths**2)


def _variances(prior_variance: float | Sequence[float], layers: int) -> tuple[float, ...]:
    if np.ndim(prior_variance) == 0:
        variances = (checks.positive("prior_variance", prior_variance),) * (layers + 2)
    else:
        given = checks.array_of_shape("prior_variance", prior_variance, (layers + 2,))
        variances = tuple(checks.positive("prior_variance", s) for s in given)
    if not np.isfinite(variances).all():
        raise ValueError(f"prior_variance must be finite, got {prior_variance}")
    return variances


def _path_features(xi: Matrix, scale: float) -> Matrix:
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
