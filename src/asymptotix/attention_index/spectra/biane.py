"""Free convolution of any spectrum with a semicircle, in Biane's coordinate along the real axis."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ...numerics.iteration import increasing_root
from .convolution import Array, ComplexArray, Convolution, PanelRule, adaptive_rule, cut_panels
from .measures import Sums

ORDER = 28

RECENT = 16.0
"""Largest delta^2 F(u) inside a closed gap at which panels are cut there; F(u) = int mu_0(ds)/(u - s)^2.

For equally spaced atoms the density ripples by exp(-2 delta^2 F), which is a rounding error beyond this bound.
"""

DENSITY_STEPS = 8
"""Number of Newton steps in which F^{-2} replaces 1/F: enough for a root v(u)^2 over a density far from atoms."""

GRADING = 32.0
"""Ratio of the lengths of neighbouring panels towards the end of a density. Larger: more panels are halved there."""


class BianeConvolution(Convolution):
    """mu_delta, the free convolution of a sum mu_0 of atoms and densities with a semicircle of radius 2 delta.

    For real u let v(u) >= 0 solve int mu_0(ds)/((u - s)^2 + v^2) = 1/delta^2, with v = 0 where the integral stays below
    1/delta^2. With G_0 and g the Stieltjes transforms of mu_0 and mu_delta, at w = u + iv

        x(u) = u + delta^2 Re G_0(w),    mu_delta(x(u)) = v/(pi delta^2),    g(x(u)) = G_0(w),

    and x increases with u: there is one bracketed root per point and no branch to choose. With A and B of
    :class:`Sums`, dx/du = 2 delta^2 (v^2 A + B^2/A) where v > 0. The density is a smooth function of u even where a gap
    is about to close, and the law is integrated over u.

    Parameters
    ----------
    parts : sequence of Measure
        Their sum is mu_0. A density must not vanish faster than a square root at its ends.
    delta : float
        Strength of the GOE noise, positive.
    """

    def _sums(self, u: Array, height: Array) -> Sums:
        total = np.sum([part.sums(u, height) for part in self._parts], axis=0)
        return Sums(*total)

    @cached_property
    def edges(self) -> Array:
        u = self._intervals.ravel()
        return (u + self.delta**2 * self._sums(u, np.zeros_like(u)).H).reshape(-1, 2)

    @cached_property
    def _islands(self) -> tuple[Array, Array]:
        """Ends (count, 2) of the intervals of the support of mu_0, ascending, and their masses (count,)."""
        islands = np.concatenate([part.islands for part in self._parts])
        masses = np.concatenate([part.island_masses for part in self._parts])
        order = np.argsort(islands[:, 0])
        return islands[order], masses[order]

    @cached_property
    def _intervals(self) -> Array:
        """Intervals of u where v(u) > 0, (bulks, 2); their ends solve F(u) = int mu_0(ds)/(u - s)^2 = 1/delta^2."""
        islands, masses = self._islands
        # F >= mass/(u - s)^2 next to an atom; next to a density F is infinite at the end itself.
        atoms = islands[:, 0] == islands[:, 1]
        away = np.where(atoms, self.delta * np.sqrt(masses) * (1 - 1e-15), 0.0)
        away = np.maximum(away, 4e-16 * np.abs(islands).max())
        left = np.concatenate([[-np.inf], islands[:, 1] + away])
        right = np.concatenate([islands[:, 0] - away, [np.inf]])
        is_open = self._narrow(left, right)
        return np.stack([right[is_open][:-1], left[is_open][1:]], axis=1)

    @cached_property
    def _has_density(self) -> bool:
        islands, _ = self._islands
        return bool((islands[:, 0] < islands[:, 1]).any())

    @cached_property
    def _interval_masses(self) -> Array:
        islands, masses = self._islands
        return np.bincount(np.searchsorted(self._intervals[:, 1], islands[:, 0]), masses)

    def _cuts(self) -> Array:
        """Return the points near which v(u) is not smooth: gaps that have just closed, and ends of densities of mu_0.

        Where a density jumps to zero, v falls off within a layer, as wide as the interval extends beyond the jump.
        """
        islands, masses = self._islands
        left, right = np.cbrt(masses[:-1]), np.cbrt(masses[1:])
        narrow = (islands[:-1, 1] * right + islands[1:, 0] * left) / (left + right)
        depth = self.delta**2 * self._sums(narrow, np.zeros_like(narrow)).F
        cuts = [narrow[depth < RECENT]]
        for low, high in islands[islands[:, 0] < islands[:, 1]]:
            k = np.searchsorted(self._intervals[:, 1], low)
            if k == len(self._intervals):
                raise FloatingPointError(f"the edges of the law are not resolved at delta = {self.delta:.3g}")
            for end, sign, layer in ((low, 1, low - self._intervals[k, 0]), (high, -1, self._intervals[k, 1] - high)):
                steps = max(0, int(np.log((high - low) / max(layer, 1e-16 * high)) / np.log(GRADING)))
                cuts.append(end + sign * layer * np.append(0.0, GRADING ** np.arange(steps)))
        return np.concatenate(cuts)

    def _narrow(self, left: Array, right: Array) -> Array:
        """Move the ends (gaps,) of gaps in the support of mu_0 in place to F(u) = 1/delta^2; return which are open.

        Between two islands F^{-1/2} is concave, because it is a mean of order -2 of the linear functions |u - s|.
        Newton's method from outside the gap therefore never oversteps, and a gap is closed if the two sides meet.
        """
        is_open = left < right
        for sign, side, other in ((1, left, right), (-1, right, left)):
            moving = is_open & np.isfinite(side)
            for _ in range(200):
                if not moving.any():
                    break
                u = side[moving]
                F, _, _, B = self._sums(u, np.zeros_like(u))
                lack, slope = self.delta - 1 / np.sqrt(F), sign * B / F**1.5
                step = np.where(lack > 0, lack / np.where(slope > 0, slope, np.nan), 0.0)
                side[moving] = u + sign * np.nan_to_num(step, nan=np.inf)
                is_open &= sign * (other - side) > 0
                moving[moving] = np.abs(side[moving] - u) > 4e-16 * np.abs(u)
                moving &= is_open
        return is_open

    def _height(self, u: Array) -> Array:
        """Return v(u)^2 at points u (n,) inside the intervals where v > 0.

        As a function of v^2, 1/F is increasing and concave, and linear for one atom. Newton's method for 1/F = delta^2
        therefore steps below the root at once and then rises to it. Over a density F^{-2} is nearly linear in v^2 and
        replaces 1/F, but only in the first DENSITY_STEPS steps, because steps next to an atom may oscillate. The start
        is the half circle of an atom far from all others, scaled to the interval and its mass.
        """
        variance, active = self.delta**2, np.arange(len(u))
        interval = np.minimum(np.searchsorted(self._intervals[:, 1], u), len(self._intervals) - 1)
        low, high = self._intervals[interval].T
        circle = 4 * (u - low) * (high - u) / (high - low) ** 2
        height = variance * self._interval_masses[interval] * np.maximum(circle, 1e-6)
        for count in range(100):
            at = height[active]
            F, _, A, _ = self._sums(u[active], at)
            excess = variance * F
            down = F * (1 - excess) / A * (0.5 * (1 + excess) if self._has_density and count < DENSITY_STEPS else 1.0)
            new = np.clip(at - down, 1e-3 * at, variance)  # F <= 1/delta^2 at v = delta
            height[active] = new
            active = active[np.abs(new - at) > 3e-8 * at + 1e-16 * F / A]  # the next step squares this one
            if not len(active):
                break
        return height

    def _evaluate(self, u: Array) -> tuple[Array, Array, ComplexArray]:
        """Return x(u), the density of mu_delta with respect to u, and g(x(u)), at points u (n,) where v > 0."""
        height = self._height(u)
        F, H, A, B = self._sums(u, height)
        v = np.sqrt(height)
        slope = np.minimum(height * A + B**2 / A, F)  # dx/du over 2 delta^2; exceeds F by rounding errors only
        return u + self.delta**2 * H, 2 * v / np.pi * slope, H - 1j * v / self.delta**2

    def _coordinate(self, x: float) -> float:
        return float(self._locate(np.array([x]))[0][0])

    def _panels(self, low: float) -> Array:
        return cut_panels(self._intervals, low, self._cuts())

    def _resolved(self, panels: Array, order: int | None) -> PanelRule:
        size = float(np.sqrt(sum(part.second_moment for part in self._parts) + self.delta**2))
        span = self._intervals[-1, 1] - self._intervals[0, 0]
        return adaptive_rule(panels, self._evaluate, order or ORDER, size=size, delta=self.delta, span=span)

    def _locate(self, x: Array) -> tuple[Array, Array]:
        """Return u(x) and v(u(x))^2 at points x (n,)."""
        bounds = np.concatenate([[-np.inf], self._intervals.ravel(), [np.inf]])
        position = np.searchsorted(self.edges.ravel(), x)
        # |G_0(w)|^2 <= F <= 1/delta^2 holds everywhere on the curve w(u), hence |x - u| <= delta.
        low, high = np.maximum(bounds[position], x - self.delta), np.minimum(bounds[position + 1], x + self.delta)
        inside = position % 2 == 1

        def excess(u: Array, active: Array) -> tuple[Array, Array]:
            height = self._height_anywhere(u, inside[active])
            F, H, A, B = self._sums(u, height)
            slope = 2 * self.delta**2 * (height * A + B**2 / A)  # where A is wrong it is not used
            return u + self.delta**2 * H - x[active], np.where(inside[active], slope, 1 - self.delta**2 * F)

        u = increasing_root(excess, low, high)
        return u, self._height_anywhere(u, inside)

    def _height_anywhere(self, u: Array, inside: Array) -> Array:
        height = np.zeros_like(u)
        height[inside] = self._height(u[inside])
        return height

    def stieltjes(self, x: ArrayLike) -> ComplexArray:
        x = np.asarray(x, dtype=float)
        u, height = self._locate(x.ravel())
        return (self._sums(u, height).H - 1j * np.sqrt(height) / self.delta**2).reshape(x.shape)

    def mass_above(self, x: ArrayLike) -> Array:
        """Return mu_delta((x, inf)), from int g dx = int mu_0(ds) log(w - s) + delta^2 g^2/2."""
        x = np.asarray(x, dtype=float)
        u, height = self._locate(x.ravel())
        v = np.sqrt(height)
        angles = sum(part.argument(u, v) for part in self._parts) - v * self._sums(u, height).H
        return np.clip(np.asarray(angles) / np.pi, 0.0, 1.0).reshape(x.shape)
