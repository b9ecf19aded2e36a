"""Newton steps on the action, with a curvature that is estimated at about the cost of the gradient.

Along geodesics U^(l) -> (U^(l))^1/2 exp(X_l) (U^(l))^1/2 of all layers' order parameters together, the curvature of the
entropy is exact. With Z_l = (U^(l))^1/2 (I (x) U^(l+1))^-1/2 / sqrt(s_l) it is the quadratic form

    r_{L+1} tr(u X_{L+1}^2) / s_{L+1} + sum_l r_l | X_l Z_l - Z_l (I (x) X_{l+1}) |^2,

since S_0 consists of linear terms and traces of products of exponentials. The energy's second derivative along
V = U^1/2 X_1 U^1/2 is, with the whitened features w of `energy` and the projections p of v on the features,

    -sum_{mu nu} (w_mu . V w_nu)^2 + 2 sum_mu (w_mu . V p)^2.

Each exact product with this matrix would cost an evaluation of the action. But the first sum runs over all pairs of
examples, so an average replaces it: tr(M^2) tr(D V D V), if the covariance of w is D, over paths, times M, over token
space and of trace one. Only along V = U does w_mu . V w_mu not average out, and there the sum is known. The second sum
depends on the directions of p in token space: it is exact along the leading ones, and replaced by the average
tr(V D V p M p^T) along the others. At the minimum, the curvature has errors of some percent, of either sign; the
errors are larger at temperatures far below the scale of the kernel.
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
    """Return U after one Newton step; ``value`` is the action at U, and its ``spread`` must not be None."""
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
        # X_1 = I means V = U, where the first sum is known.
        along = np.trace(DX) / np.trace(self._D)
        apart = self._concentration * (DX - along * self._D) @ self._D
        apart -= self._D * (np.trace(apart) / np.trace(self._D))
        first = apart + along * self._total / np.trace(self._D) * self._D
        bent = 2.0 * (DX @ self._rest + exact) - first
        # The terms DX and R X arise because geodesics are not straight.
        return _symmetric(bent + DX - self._R @ X)


def _solve(curvature: Curvature, slope: Sequence[Matrix]) -> list[Matrix]:
    """Return X with curvature(X) = -slope, by conjugate gradients that stop where the curvature is not positive."""
    X, residual = [np.zeros_like(g) for g in slope], [-g for g in slope]
    direction, size = residual, _dot(residual, residual)
    enough = ACCURACY**2 * size
    for _ in range(MOST_PRODUCTS):
        product = curvature(direction)
        bend = _dot(direction, product)
        if bend <= 0.0:
            # At the first product only the slope is known, so the step follows it downhill.
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
    """Return X^1/2 and X^-1/2."""
    values, vectors = np.linalg.eigh(X)
    return (vectors * np.sqrt(values)) @ vectors.T, (vectors / np.sqrt(values)) @ vectors.T


def _times_repeated(Z: Matrix, X: Matrix) -> Matrix:
    """Return Z (I_n (x) X) for Z (m, n k) and X (k, k)."""
    return (Z.reshape(len(Z), -1, len(X)) @ X).reshape(len(Z), -1)


def _symmetric(X: Matrix) -> Matrix:
    return 0.5 * (X + X.T)
