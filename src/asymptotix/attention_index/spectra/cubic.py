"""Free convolution of a Marchenko-Pastur law with a semicircle: its Stieltjes transform is a root of a cubic.

Integrals take a tenth of the time of :class:`.biane.BianeConvolution` for the same law, or less.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ...numerics.iteration import increasing_root
from .convolution import Array, ComplexArray, Convolution, PanelRule, adaptive_rule, cut_panels
from .marchenko_pastur_density import MarchenkoPasturDensity
from .measures import zeros

ORDER = 120
"""Number of quadrature nodes per panel. It resolves most laws without halving; fewer nodes save hardly any time."""

SETTLED = 1e-9
"""Relative Newton step after which the root is accurate to rounding, so that no further step is made."""


class CubicConvolution(Convolution):
    """mu_delta, the free convolution of the law of :class:`MarchenkoPastur` with a semicircle of radius 2 delta.

    With s = sqrt(kappa0), the Stieltjes transform g(x) of mu_delta is the inverse function of

        x(g) = 1/g + kappa0/(s - g) + delta^2 g,

    a root of delta^2 g^3 - (delta^2 s + x) g^2 + (1 - kappa0 + x s) g - s = 0. Inside a bulk two roots are complex, and
    the third is real and larger than s.

    Parameters
    ----------
    kappa0 : float
        Rank ratio of the target.
    delta : float
        Strength of the GOE noise, positive.
    """

    def __init__(self, kappa0: float, delta: float) -> None:
        super().__init__([MarchenkoPasturDensity(kappa0), *zeros(max(0.0, 1 - kappa0))], delta)
        self.kappa0 = kappa0
        self._root = float(np.sqrt(kappa0))

    @property
    def edges(self) -> Array:
        return self._x(self._edge_g)

    @cached_property
    def _edge_g(self) -> Array:
        """Values g at the edges, (bulks, 2): the real roots of dx/dg = 0.

        They solve delta^2 g^2 + kappa0 g^2/(s - g)^2 = 1. The left side is infinite at g = s, and its only extrema are
        the zero at g = 0 and a minimum at g = s + s delta^{-2/3}. Every root therefore has a bracket.
        """
        s, far, lowest = self._root, 1.0 / self.delta, self._cusp_g
        left, right = self._critical(-far, 0.0), self._critical(0.0, s)
        if self._criticality(lowest) >= 0:
            return np.array([[left, right]])
        # Outside the bulks x decreases with g: of the two roots in the gap, the larger is the end of the left bulk.
        return np.array([[left, self._critical(lowest, far)], [self._critical(s, lowest), right]])

    @property
    def _cusp_g(self) -> float:
        """Value of g at the point x where a gap between the two bulks is about to open or has just closed."""
        return self._root * (1 + self.delta ** (-2 / 3))

    def _criticality(self, g: float) -> float:
        """Return g^2 (s - g)^2 dx/dg, which is negative where g = g(x) at an x outside the bulks."""
        away = (self._root - g) ** 2
        return (self.delta * g) ** 2 * away + self.kappa0 * g**2 - away

    def _critical(self, low: float, high: float) -> float:
        from scipy.optimize import brentq  # takes half a second to import

        try:
            return float(brentq(self._criticality, low, high, xtol=1e-300, rtol=np.float64(1e-15)))  # pyright: ignore
        except (ValueError, RuntimeError) as error:  # delta so large that rounding hides the target
            raise FloatingPointError(f"the edges of the law are not resolved at delta = {self.delta:.3g}") from error

    def _x(self, g: Array) -> Array:
        return 1 / g + self.kappa0 / (self._root - g) + self.delta**2 * g

    def stieltjes(self, x: ArrayLike) -> ComplexArray:
        x = np.asarray(x, dtype=float)
        flat, g = x.ravel(), np.empty(x.size, dtype=complex)
        position = np.searchsorted(self.edges.ravel(), flat)
        inside = position % 2 == 1
        g[inside] = self._inside(flat[inside])
        g[~inside] = self._outside(flat[~inside], position[~inside] // 2)
        return g.reshape(x.shape)

    def _inside(self, x: Array) -> ComplexArray:
        """Return g(x) at points x (n,) inside a bulk: the complex root of the cubic with Im g <= 0.

        Division by the real root R leaves g^2 + b g + c with c = s/(delta^2 R) = |g|^2 and s = sqrt(kappa0).
        """
        variance, s = self.delta**2, self._root
        linear = 1 - self.kappa0 + x * s
        real = self._real_root(x, linear)
        square = s / (variance * real)
        # Two expressions for b = -2 Re g; each loses digits where its terms are large, in one of the two bulks.
        by_product, by_sum = (square - linear / variance) / real, real - s - x / variance
        losses = (square + np.abs(linear) / variance) / real, real + s + np.abs(x) / variance
        b = np.where(losses[0] < losses[1], by_product, by_sum)
        return -0.5 * b - 1j * np.sqrt(np.maximum(square - 0.25 * b**2, 0))

    def _real_root(self, x: Array, linear: Array) -> Array:
        """Return the cubic's real root at points x (n,) inside a bulk; ``linear`` is its coefficient 1 - kappa0 + x s.

        Newton's method improves Cardano's formula, whose digits cancel for small delta.
        """
        variance, s = self.delta**2, self._root
        quadratic = -(variance * s + x)
        shift = quadratic / (3 * variance)
        p = linear / variance - 3 * shift**2
        half_q = shift**3 - 0.5 * shift * linear / variance - 0.5 * s / variance
        spread = np.sqrt(np.maximum(half_q**2 + (p / 3) ** 3, 0))
        outer = np.cbrt(np.where(half_q > 0, -half_q - spread, -half_q + spread))
        outer = np.where(outer == 0, np.finfo(float).tiny, outer)
        root = np.maximum(outer - p / (3 * outer) - shift, s)
        for _ in range(5):
            value = ((variance * root + quadratic) * root + linear) * root - s
            slope = (3 * variance * root + 2 * quadratic) * root + linear
            before, root = root, np.maximum(root - value / np.where(slope == 0, np.inf, slope), s)
            if (abs(root - before) < SETTLED * root).all():  # a step squares the error
                break
        return root

    def _outside(self, x: Array, gap: Array) -> Array:
        """Return the real g(x) at points x (n,) outside the bulks; ``gap`` (n,) counts the bulks to the left of x."""
        ends = np.concatenate([[0.0], self._edge_g.ravel(), [0.0]]).reshape(-1, 2)
        high, low = ends[gap, 0], ends[gap, 1]

        def shortfall(g: Array, active: Array) -> tuple[Array, Array]:
            return x[active] - self._x(g), 1 / g**2 - self.kappa0 / (self._root - g) ** 2 - self.delta**2

        return increasing_root(shortfall, low, high)

    def mass_above(self, x: ArrayLike) -> Array:
        """Return mu_delta((x, inf)), by parts from int g dx = g x - log g + kappa0 log(s - g) - delta^2 g^2/2."""
        x = np.asarray(x, dtype=float)
        g = self.stieltjes(x)
        p, q = g.real, np.abs(g.imag)
        angles = np.arctan2(q, p) + self.kappa0 * np.arctan2(q, self._root - p)
        return np.clip((angles - q * (x - self.delta**2 * p)) / np.pi, 0.0, 1.0)

    def _coordinate(self, x: float) -> float:
        return x

    def _panels(self, low: float) -> Array:
        cusp = float(self._x(np.array(self._cusp_g)))
        return cut_panels(self.edges, low, np.array([cusp]))

    def _resolved(self, panels: Array, order: int | None) -> PanelRule:
        def evaluate(x: Array) -> tuple[Array, Array, ComplexArray]:
            g = self._inside(x)
            return x, -g.imag / np.pi, g

        size, span = float(np.sqrt(1 + self.kappa0 + self.delta**2)), self.edges[-1, 1] - self.edges[0, 0]
        return adaptive_rule(panels, evaluate, order or ORDER, size=size, delta=self.delta, span=span)
