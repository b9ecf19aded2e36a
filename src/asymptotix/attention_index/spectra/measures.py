"""Measures that add up to a target's law mu_0, with the integrals for its free convolution with a semicircle."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
ComplexArray = NDArray[np.complex128]

DEGREE = 24
"""Number of Legendre coefficients of a density on each piece, and of nodes of its Gauss rule. Fewer: less accurate."""

FAR = 2.2 + 1 / 2.2
"""Sum of a point's distances to both ends of a piece, in half lengths of the piece, beyond which a Gauss rule is used.

The bound is a Bernstein ellipse of parameter 2.2, where the rule has an error of 2.2^{-48} = 4e-17. Smaller: a larger
error.
"""

SAME = 1e-12
"""Distance, relative to the value of an atom, within which a point counts as the atom itself."""

AXIS = 1e-7
"""Smallest Im w at which G_0(w) is evaluated off the support, relative to the distance of w from the support.

G_0 is real on the axis there; -Im G_0/Im w at small Im w gives F of :class:`Sums`. Larger: a larger error of F.
"""


@cache
def _kernels() -> ModuleType:
    """Return the module of compiled integrals, imported at the first call, because numba is slow to import."""
    from . import spectrum_kernels

    return spectrum_kernels


class Sums(NamedTuple):
    """Integrals over mu_0 at points w = u + iv, with G_0(w) = int mu_0(ds)/(w - s); each array has the shape of u."""

    F: Array
    """int mu_0(ds) / |w - s|^2 = -Im G_0 / v."""
    H: Array
    """int mu_0(ds) (u - s) / |w - s|^2 = Re G_0."""
    A: Array
    """int mu_0(ds) / |w - s|^4."""
    B: Array
    """int mu_0(ds) (u - s) / |w - s|^4."""


def off_support(parts: Sequence[Measure], z: ArrayLike) -> tuple[Array, Array]:
    """Return G = int mu_0(ds)/(z - s) and F = int mu_0(ds)/(z - s)^2 at real z off the support; mu_0 sums the parts.

    An atom at z itself is left out.
    """
    z = np.asarray(z, dtype=float)
    G, F = np.sum([part.away_from(z.ravel()) for part in parts], axis=0)
    return G.reshape(z.shape), F.reshape(z.shape)


class Measure(abc.ABC):
    """A positive measure on the real line; the law mu_0 of a target's eigenvalues is a sum of such measures."""

    @property
    @abc.abstractmethod
    def islands(self) -> Array:
        """Ends of the intervals of the support, (count, 2), ascending; both ends are equal for an atom."""

    @property
    @abc.abstractmethod
    def island_masses(self) -> Array:
        """Mass on each interval of the support, (count,)."""

    @property
    @abc.abstractmethod
    def second_moment(self) -> float:
        """Integral of s^2 over the measure."""

    @abc.abstractmethod
    def sums(self, u: Array, height: Array) -> Sums:
        """Return the integrals over this measure at w = u + i sqrt(height); u and height >= 0 are real arrays (n,).

        Where height = 0 and u is off the support, A may be wrong.
        """

    @abc.abstractmethod
    def argument(self, u: Array, v: Array) -> Array:
        """Return the integral of arg(w - s) over the measure at w = u + iv; u and v >= 0 are real arrays (n,)."""

    def away_from(self, z: Array) -> tuple[Array, Array]:
        """Return the integrals of 1/(z - s) and 1/(z - s)^2 at real z (n,) off the support, without an atom at z."""
        sums = self.sums(z, np.zeros_like(z))
        return sums.H, sums.F


class Atomic(Measure):
    """Point masses.

    Parameters
    ----------
    values, weights : arrays
        Distinct values, ascending, and their masses.
    """

    def __init__(self, values: Array, weights: Array) -> None:
        self.values, self.weights = np.asarray(values, dtype=float), np.asarray(weights, dtype=float)

    @property
    def islands(self) -> Array:
        return np.stack([self.values, self.values], axis=1)

    @property
    def island_masses(self) -> Array:
        return self.weights

    @property
    def second_moment(self) -> float:
        return float(self.weights @ self.values**2)

    def sums(self, u: Array, height: Array) -> Sums:
        return Sums(*_kernels().atom_sums(u, height, self.values, self.weights))

    def argument(self, u: Array, v: Array) -> Array:
        angles = np.empty(len(u))
        for part in _blocks(len(u), len(self.values)):
            angles[part] = np.arctan2(v[part, None], u[part, None] - self.values) @ self.weights
        return angles

    def away_from(self, z: Array) -> tuple[Array, Array]:
        distance = z[:, None] - self.values
        inverse = 1 / np.where(np.abs(distance) <= SAME * np.abs(self.values), np.inf, distance)
        return inverse @ self.weights, inverse**2 @ self.weights


def zeros(mass: float) -> list[Measure]:
    """Return a list with an atom of this mass at zero, or an empty list if the mass is zero."""
    return [Atomic(np.zeros(1), np.array([mass]))] if mass > 0 else []


class Thinned(Measure):
    """Another measure times ``share`` in (0, 1]: the bulk of a finite matrix, where spikes have the other mass."""

    def __init__(self, measure: Measure, share: float) -> None:
        self.measure, self.share = measure, share

    @property
    def islands(self) -> Array:
        return self.measure.islands

    @property
    def island_masses(self) -> Array:
        return self.share * self.measure.island_masses

    @property
    def second_moment(self) -> float:
        return self.share * self.measure.second_moment

    def sums(self, u: Array, height: Array) -> Sums:
        return Sums(*(self.share * total for total in self.measure.sums(u, height)))

    def argument(self, u: Array, v: Array) -> Array:
        return self.share * self.measure.argument(u, v)

    def away_from(self, z: Array) -> tuple[Array, Array]:
        G, F = self.measure.away_from(z)
        return self.share * G, self.share * F


def _blocks(points: int, atoms: int) -> Iterator[slice]:
    """Return slices of range(points), so short that a table (points of the slice, atoms) fits into the cache."""
    block = max(1, 2**16 // atoms)
    return (slice(start, start + block) for start in range(0, points, block))


class Continuous(Measure):
    """A measure with a density rho, given by G_0(w) = int rho(s) ds/(w - s) and G_0'(w) off the real axis."""

    @abc.abstractmethod
    def transform(self, w: ComplexArray) -> tuple[ComplexArray, ComplexArray]:
        """Return G_0(w) and G_0'(w) at points w (n,) with Im w > 0."""

    def sums(self, u: Array, height: Array) -> Sums:
        low, high = self.islands[:, 0], self.islands[:, 1]
        away = np.maximum(np.maximum(low - u[:, None], u[:, None] - high), 0).min(axis=1)
        # Off the support G_0 is real on the axis, and Im G_0 at a small height gives G_0' without loss of digits.
        v = np.maximum(np.sqrt(height), AXIS * away)
        g, slope = self.transform(u + 1j * v)
        total = -g.imag / v
        # The difference loses its digits close to the axis; the bounds of Cauchy and Schwarz keep theirs.
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            fourth = np.clip((slope.real + total) / (2 * v**2), total**2 / self.island_masses.sum(), total / v**2)
        return Sums(F=total, H=g.real, A=fourth, B=slope.imag / (2 * v))


class PiecewiseDensity(Continuous):
    """A density on adjacent intervals (pieces), stored as a polynomial with 24 coefficients on each piece.

    The density may jump to zero at both ends of its support. On a piece, with y in [-1, 1], the Legendre polynomials
    have int P_k(y)/(zeta - y) dy = 2 Q_k(zeta), with Q_k the Legendre function of the second kind: exact down to the
    real axis. Far from a piece the recurrence of Q_k loses digits, and a Gauss rule is used instead.

    Parameters
    ----------
    density : callable
        Density at points s, elementwise; analytic on every piece, with its nearest singularity well outside.
    breaks : array (pieces + 1,)
        Ends of the pieces, ascending.
    """

    def __init__(self, density: Callable[[Array], Array], breaks: Array) -> None:
        self._breaks = np.asarray(breaks, dtype=float)
        self._mid, self._half = 0.5 * (self._breaks[1:] + self._breaks[:-1]), 0.5 * np.diff(self._breaks)
        y, rule = np.polynomial.legendre.leggauss(DEGREE)
        nodes = self._mid[:, None] + self._half[:, None] * y
        # Rounding must not move a node across the end of the support.
        values = density(np.clip(nodes, self._breaks[0], self._breaks[-1]))
        degrees = np.arange(DEGREE)
        legendre = np.polynomial.legendre.legvander(y, DEGREE - 1)
        self._coefficients = (values * rule) @ legendre * (degrees + 0.5)
        self._nodes, self._masses = nodes, values * rule * self._half[:, None]

    @property
    def islands(self) -> Array:
        return self._breaks[[0, -1]][None]

    @property
    def island_masses(self) -> Array:
        return np.array([self._masses.sum()])

    @property
    def second_moment(self) -> float:
        return float(np.sum(self._masses * self._nodes**2))

    def transform(self, w: ComplexArray) -> tuple[ComplexArray, ComplexArray]:
        data = (self._mid, self._half, self._nodes, self._masses, self._coefficients)
        return tuple(_kernels().piecewise_transform(w, *data, FAR))

    def argument(self, u: Array, v: Array) -> Array:
        w = u + 1j * v
        zeta, near = self._pieces(w)
        total = np.zeros(len(w))
        point, piece = np.nonzero(near)
        np.add.at(total, point, self._log_integral(zeta[point, piece], piece).imag * self._half[piece])
        for k in range(len(self._half)):
            far = ~near[:, k]
            total[far] += np.angle(w[far, None] - self._nodes[k]) @ self._masses[k]
        return total

    def _pieces(self, w: ComplexArray) -> tuple[ComplexArray, NDArray[np.bool_]]:
        """Return zeta (n, pieces), the points w (n,) in units where a piece is [-1, 1], and whether w is near it."""
        zeta = (w[:, None] - self._mid) / self._half
        return zeta, np.abs(zeta - 1) + np.abs(zeta + 1) < FAR

    def _log_integral(self, zeta: ComplexArray, piece: NDArray[np.intp]) -> ComplexArray:
        """Return sum_k 2 c_k int Q_k d zeta at points zeta (n,), up to a real constant; ``piece`` (n,) selects the c_k.

        The integrals follow from (2k + 1) int Q_k = Q_{k+1} - Q_{k-1}.
        """
        coefficients = 2 * self._coefficients[piece].T
        above, below = np.log(zeta + 1), np.log(zeta - 1)
        before, q = 0.5 * (above - below), 0.5 * zeta * (above - below) - 1
        total = coefficients[0] * 0.5 * ((zeta + 1) * above - (zeta - 1) * below)
        for k in range(1, DEGREE):
            after = ((2 * k + 1) * zeta * q - k * before) / (k + 1)
            total += coefficients[k] * (after - before) / (2 * k + 1)
            before, q = q, after
        return total
