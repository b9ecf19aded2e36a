"""The continuous part of a Marchenko-Pastur law, by its Stieltjes transform in closed form."""

from __future__ import annotations

import numpy as np

from .measures import Array, ComplexArray, Continuous


class MarchenkoPasturDensity(Continuous):
    """The density of a Marchenko-Pastur law between a and b, of mass min(kappa0, 1); see :class:`MarchenkoPastur`.

    With s = sqrt(kappa0) and the root R = sqrt(w - a) sqrt(w - b), whose branch cut is the support,

        G_0(w) = 2 s min(kappa0, 1) / (w s - |1 - kappa0| + s R).

    For kappa0 < 1 the whole law has the transform G_0 + (1 - kappa0)/w, with the term of its zeros.

    Parameters
    ----------
    kappa0 : float
        Rank ratio, positive.
    """

    def __init__(self, kappa0: float) -> None:
        s = float(np.sqrt(kappa0))
        self.kappa0, self._root, self._mass = kappa0, s, min(kappa0, 1.0)
        self._low, self._high = (1 - s) ** 2 / s, (1 + s) ** 2 / s

    @property
    def islands(self) -> Array:
        return np.array([[self._low, self._high]])

    @property
    def island_masses(self) -> Array:
        return np.array([self._mass])

    @property
    def second_moment(self) -> float:
        return 1.0 + self.kappa0

    def transform(self, w: ComplexArray) -> tuple[ComplexArray, ComplexArray]:
        s, R = self._root, np.sqrt(w - self._low) * np.sqrt(w - self._high)
        denominator = w * s - abs(1 - self.kappa0) + s * R
        value = 2 * s * self._mass / denominator
        with np.errstate(divide="ignore", invalid="ignore"):  # at an edge, where the slope is infinite
            slope = -value * s * (1 + (w - 0.5 * (self._low + self._high)) / R) / denominator
        return value, slope

    def away_from(self, z: Array) -> tuple[Array, Array]:
        """Return the integrals of 1/(z - x) and 1/(z - x)^2 over the density at real z (n,) off its support."""
        value, slope = self.transform(z.astype(complex))
        return value.real, -slope.real

    def argument(self, u: Array, v: Array) -> Array:
        """Return the integral of arg(w - x) over the density at w = u + iv.

        The whole law has Im [g w - log g + kappa0 log(s - g)], with its Stieltjes transform g and s = sqrt(kappa0); the
        part of the zeros is subtracted.
        """
        w, zeros = u + 1j * v, max(0.0, 1.0 - self.kappa0)
        g = self.transform(w)[0] + (zeros / w if zeros else 0.0)
        below = np.abs(g.imag)
        angles = np.arctan2(below, g.real) + self.kappa0 * np.arctan2(below, self._root - g.real)
        return angles + g.real * v - below * u - zeros * np.arctan2(v, u)
