"""One path and one output: the order parameter is a number, and the action is a function of one variable.

With one head in every layer, prior variances s_l, relative widths r_l, y_l = U^(l) / (s_l U^(l+1)) for l = 1..L and
y_{L+1} = u / s_{L+1}, the entropy is

    S_0 = sum_{l=1}^{L+1} r_l (y_l - ln y_l - ln s_l),    U = prod_l s_l y_l.

At fixed U the entropy is least at y_l = 1 + lambda / r_l, where U determines lambda = dS_0 / d ln U. Equal widths and
variances s2 give

    S_0(U) = (L + 1) U^{1/(L+1)} / s2 - ln U,    U^(l) = U^{(L+2-l)/(L+1)}    (second: at s2 = 1).

This corrects the paper. Tiberi et al., arXiv:2405.15926, has U s2^{-(L+1)} - ln U for one head below eq. (12), while
the elimination from its own eqs. (32) and (33) gives the formula above. Both have the same minimum without data, U =
s2^{L+1}, but for L >= 1 their slopes differ elsewhere. The L + 1 layers share a factor U, each at the cost of
U^{1/(L+1)}; the printed form has the cost of one factor U, and so makes U far too small wherever the data favour a
large U.

In the eigenbasis of the kernel of the inputs, with eigenvalues kappa_i at U = 1 and components q_i of the labels,

    S(U) = S_0(U) + (1/N) sum_i [ ln(U kappa_i + T) + q_i^2 / (U kappa_i + T) ].

Equation ap-single of docs/theory/attention_paths.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import root_scalar

from ...core.status import Status
from ...numerics import checks
from .action import checked_ratios, checked_variances
from .elimination import Matrix
from .order_parameter import OrderParameter

ROOT_TOLERANCE = 1e-15
"""Absolute error of t at the minimum."""

STEP = 0.1
"""Spacing in ln U of the search for minima. Every eigenvalue's share of S varies over a length of order one."""


class SinglePath:
    """Action of a network with one head in every layer and one output, at any width.

    The variable is t = ln(1 + lambda / min r), with lambda = dS_0 / d ln U and relative widths r. It grows with ln U,
    is unbounded on both sides, and gives U, the deeper order parameters and S in closed form.

    Parameters
    ----------
    xi
        Attended inputs, shape (P, 1, N0).
    labels
        Y, shape (P,) or (P, 1).
    layers
        L.
    temperature
        T > 0.
    prior_variance, width_ratios
        As for `asymptotix.attention_paths.theory.action.Action`.
    """

    def __init__(
        self,
        xi: ArrayLike,
        labels: ArrayLike,
        layers: int,
        temperature: float,
        prior_variance: float | Sequence[float] = 1.0,
        width_ratios: Sequence[float] | None = None,
    ) -> None:
        attended = checks.array_of_shape("xi", xi, (None, 1, None))[:, 0]
        Y = checks.array_of_shape("labels", np.reshape(labels, -1), (len(attended),))
        self.temperature = checks.positive("temperature", temperature)
        variances = checked_variances(prior_variance, checks.integer("layers", layers, 1))
        self._variances = np.array(variances[1:])
        self._ratios = np.array(checked_ratios(width_ratios, layers))
        values, vectors = np.linalg.eigh(variances[0] * attended @ attended.T / attended.shape[1])
        self._kappa = np.maximum(values, 0.0)
        self._squares = (vectors.T @ Y) ** 2

    def minimise(self, width: float) -> OrderParameter:
        """Return the lowest minimum of S: a grid that covers all minima brackets each, then S' = 0 is solved there."""
        width = checks.positive("width", width, infinite=True)
        if np.isinf(width):
            return self._report(0.0, width, 1, 0.0, "Gaussian-process limit")
        grid = self._grid(width)
        slopes = self._slope(grid, width)
        rises = np.flatnonzero((slopes[:-1] < 0) & (slopes[1:] >= 0))
        found, evaluations = [], len(grid)
        for left in rises:
            bracket = (grid[left], grid[left + 1])
            slope = partial(self._slope, width=width)
            root = root_scalar(slope, bracket=bracket, method="brentq", xtol=ROOT_TOLERANCE)
            if not root.converged:
                raise FloatingPointError(f"no minimum of the action is found near ln U = {self._log_u(root.root):.3g}")
            found.append(root.root)
            evaluations += root.function_calls
        if not found:
            raise FloatingPointError(f"the action at width {width:g} has no minimum in double precision")
        best = min(found, key=lambda t: self._value(t, width))
        return self._report(best, width, evaluations, self._error(best, width), Status.CONVERGED.sentence)

    def _grid(self, width: float) -> Matrix:
        """Return a grid of t with S' < 0 at and below its first value and S' > 0 at and above its last."""
        # T d(energy)/d ln U lies between -|Y|^2 / 4 and U times the sum of the eigenvalues.
        r = self._ratios.min()
        last = np.log1p(self._squares.sum() / (4.0 * self.temperature * width * r)) + STEP
        first = -STEP
        while self._lambda(first) + np.exp(self._log_u(first)) * self._kappa.sum() / (self.temperature * width) >= 0:
            first *= 2.0
        # ln U moves by at most L + 1 times as much as t.
        return np.linspace(first, last, 2 + int((last - first) * len(self._ratios) / STEP))

    def _lambda(self, t: Matrix | float) -> Matrix:
        return self._ratios.min() * np.expm1(t)

    def _layers(self, t: Matrix | float) -> Matrix:
        """Return y_l = 1 + lambda / r_l, layers on the last axis; at the least r_l it is e^t, never zero."""
        r = self._ratios.min()
        return ((self._ratios - r) + r * np.exp(np.asarray(t)[..., None])) / self._ratios

    def _log_u(self, t: Matrix | float) -> Matrix:
        return np.log(self._layers(t) * self._variances).sum(axis=-1)

    def _slope(self, t: Matrix | float, width: float) -> Matrix:
        """Return the derivative dS / d ln U."""
        signal = np.exp(self._log_u(t))[..., None] * self._kappa
        total = signal + self.temperature
        energy = (signal / total * (1.0 - self._squares / total)).sum(axis=-1)
        return self._lambda(t) + energy / width

    def _value(self, t: float, width: float) -> float:
        y = self._layers(t)
        total = np.exp(self._log_u(t)) * self._kappa + self.temperature
        entropy = (self._ratios * (y - np.log(y * self._variances))).sum()
        return float(entropy + (np.log(total) + self._squares / total).sum() / width)

    def _error(self, t: float, width: float) -> float:
        """Return a bound on the error of ln U at a minimum: residual slope plus its rounding, over the curvature."""
        total = np.exp(self._log_u(t)) * self._kappa + self.temperature
        terms = abs(self._lambda(t)) + (1.0 + self._squares / total).sum() / width
        h = 1e-3 * STEP
        curvature = (self._slope(t + h, width) - self._slope(t - h, width)) / (2 * h)
        off = abs(self._slope(t, width)) + 4 * np.finfo(float).eps * terms
        # ln U moves by at most L + 1 times as much as t.
        return float(len(self._ratios) * (off / max(curvature, np.finfo(float).tiny) + ROOT_TOLERANCE))

    def _report(self, t: float, width: float, evaluations: int, error: float, words: str) -> OrderParameter:
        # U^(l) is the product of s_k y_k from layer k = l to the readout.
        orders = np.cumprod((self._layers(t) * self._variances)[::-1])[::-1]
        U, *inner = (np.array([[x]]) for x in orders)
        slope, value = abs(float(self._slope(t, width))), self._value(t, width)
        off = slope * error + 4 * np.finfo(float).eps * abs(value)
        return OrderParameter(U, inner, value, evaluations, slope, U * np.expm1(error), off, Status.CONVERGED, words)
