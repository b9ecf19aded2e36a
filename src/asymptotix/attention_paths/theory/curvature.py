"""Newton steps on the action, with a curvature that is estimated from what the gradient costs.

Along geodesics U^(l) -> (U^(l))^1/2 exp(X_l) (U^(l))^1/2 of all layers' order parameters together, the curvature of the
entropy is exact. With Z_l = (U^(l))^1/2 (I (x) U^(l+1))^-1/2 / sqrt(s_l) it is the quadratic form

    r_{L+1} tr(u X_{L+1}^2) / s_{L+1} + sum_l r_l | X_l Z_l - Z_l (I (x) X_{l+1}) |^2,

since traces of products of exponentials are all that S_0 has beyond linear terms. The energy's second derivative along
V = U^1/2 X_1 U^1/2 is, with the whitened features w of `energy` and the projections p of v on the features,

    -sum_{mu nu} (w_mu . V w_nu)^2 + 2 sum_mu (w_mu . V p)^2.

Every product with it would cost an evaluation. But the first sum runs over all pairs of examples and averages itself:
it is tr(M^2) tr(D V D V) where the covariance of w is that of the paths, D, times that of token space, M of trace one.
Only along V = U, where it is known, w_mu . V w_mu does not average out. In the second sum p distinguishes directions of
token space. Along the leading ones it is taken as it is, and along the others it is tr(V D V p M p^T) likewise. At the
minimum some percent of the curvature are in error, of either sign; more at temperatures far below the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...numerics.threads import one_blas_thread
from .action import Action, ActionValue
from .elimination import Matrix, partial_trace

LONGEST = 1.0
"""Largest change of an eigenvalue of log U in one step."""

ACCURACY, MOST_PRODUCTS = 0.05, 100
"""Relative residual at which the equations of a step count as solved, and the most products with the curvature."""


def newton_step(U: Matrix, action: Action, value: ActionValue) -> Matrix:
    """U after one Newton step from where the action has this value, whose `spread` must be known."""
    curvature = Curvature(U, action, value)
    slope = [curvature.root @ value.gradient @ curvature.root, *(np.zeros_like(X) for X in value.inner)]
    with one_blas_thread(len(U)):
        change, directions = np.linalg.eigh(_solve(curvature, slope)[0])
    change *= min(1.0, LONGEST / max(np.abs(change).max(), np.finfo(float).tiny))
    half = curvature.root @ directions
    return (half * np.exp(change)) @ half.T


class Curvature:
    """Curvature of S as a linear map of the changes X_1, ..., X_{L+1} of the order parameters' logarithms.

    Attributes
    ----------
    root
        U^1/2.
    """

    def __init__(self, U: Matrix, action: Action, value: ActionValue) -> None:
        if value.spread is None:
            raise ValueError("an energy that is not made from features tells nothing of its curvature")
        self._layers, self._width, spread = action.layers, action.width, value.spread()
        roots = [_roots(X) for X in (U, *value.inner)]
        self.root = h = roots[0][0]
        self._u = value.inner[-1]
        self._Z = [
            _times_repeated(root, inverse_root) / math.sqrt(s)
            for (root, _), (_, inverse_root), s in zip(roots[:-1], roots[1:], self._layers.variances, strict=False)
        ]
        self._squares = [(Z @ Z.T, Z.T @ Z) for Z in self._Z]
        self._total, self._concentration = spread.total, spread.concentration
        self._D, self._R, self._rest = (h @ X @ h for X in (value.D, value.R, spread.rest))
        self._projected = h @ spread.projected
        d, q, P = spread.whitened.shape
        mixed = h.astype(spread.whitened.dtype) @ spread.whitened.reshape(d, -1)
        self._whitened = mixed.reshape(d * q, P)

    def __call__(self, X: Sequence[Matrix]) -> list[Matrix]:
        layers = self._layers
        result = [np.zeros_like(x) for x in X]
        for i, (Z, (left, right)) in enumerate(zip(self._Z, self._squares, strict=True)):
            H, r = layers.heads[i], layers.ratios[i]
            result[i] += r * _symmetric(left @ X[i] - _times_repeated(Z, X[i + 1]) @ Z.T)
            inner = _symmetric(_times_repeated(right, X[i + 1]) - Z.T @ X[i] @ Z)
            result[i + 1] += r * partial_trace(inner, H)
        result[-1] += layers.ratios[-1] / layers.variances[-1] * _symmetric(self._u @ X[-1])
        result[0] += self._of_energy(X[0]) / self._width
        return result

    def _of_energy(self, X: Matrix) -> Matrix:
        DX = self._D @ X
        seen = self._whitened.T @ (X @ self._projected).astype(self._whitened.dtype).ravel()
        exact = (self._whitened @ seen).reshape(len(X), -1) @ self._projected.T
        # X_1 = I is V = U, where the first sum is known.
        along = np.trace(DX) / np.trace(self._D)
        apart = self._concentration * (DX - along * self._D) @ self._D
        apart -= self._D * (np.trace(apart) / np.trace(self._D))
        first = apart + along * self._total / np.trace(self._D) * self._D
        bent = 2.0 * (DX @ self._rest + exact) - first
        # The last two: geodesics are not straight.
        return _symmetric(bent + DX - self._R @ X)


def _solve(curvature: Curvature, slope: Sequence[Matrix]) -> list[Matrix]:
    """Conjugate gradients for curvature(X) = -slope, ended where the curvature is not positive."""
    X, residual = [np.zeros_like(g) for g in slope], [-g for g in slope]
    direction, size = residual, _dot(residual, residual)
    enough = ACCURACY**2 * size
    for _ in range(MOST_PRODUCTS):
        product = curvature(direction)
        bend = _dot(direction, product)
        if bend <= 0.0:
            # At the first product nothing but the slope is known.
            return X if X[0].any() else direction
        X = [x + size / bend * p for x, p in zip(X, direction, strict=True)]
        residual = [x - size / bend * p for x, p in zip(residual, product, strict=True)]
        before, size = size, _dot(residual, residual)
        if size <= enough:
            break
        direction = [x + size / before * p for x, p in zip(residual, direction, strict=True)]
    return X


def _dot(first: Sequence[Matrix], second: Sequence[Matrix]) -> float:
    return float(sum((x * y).sum() for x, y in zip(first, second, strict=True)))


def _roots(X: Matrix) -> tuple[Matrix, Matrix]:
    """X^1/2 and X^-1/2."""
    values, vectors = np.linalg.eigh(X)
    return (vectors * np.sqrt(values)) @ vectors.T, (vectors / np.sqrt(values)) @ vectors.T


def _times_repeated(Z: Matrix, X: Matrix) -> Matrix:
    """Z (I (x) X)."""
    return (Z.reshape(len(Z), -1, len(X)) @ X).reshape(len(Z), -1)


def _symmetric(X: Matrix) -> Matrix:
    return 0.5 * (X + X.T)
