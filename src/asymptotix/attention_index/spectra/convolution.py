"""Free convolution of a spectrum with a semicircle: the interface of all implementations, and their quadrature rule.

mu_delta and J(delta, eps) are those of Boncoraglio et al., arXiv:2509.24914, Claim 1 and eq. (7). The paper does not
state that dJ/d delta is a single integral over mu_delta.

Equations ai-convolution, ai-moments of docs/theory/attention_index.md. Equation out-detached of
docs/theory/outliers.md.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ...numerics import checks, interrupts
from .measures import Array, ComplexArray, Measure, off_support

RESOLVED = 1e-9
"""Size of the last Legendre coefficients of an integrand, relative to the integral, at which no panel is halved more.

Larger: less accurate integrals. The error of a Gauss rule is about the square of the last coefficient.
"""

ROUNDED = 1e-14
"""Rounding error of the distance of two nodes, relative to the length of the support. Smaller: useless halvings."""

SMALLEST_PANEL = 1e-13
"""Length of a panel, relative to that of the support, below which the panel is not halved."""


class SpectralMoments(NamedTuple):
    """J(delta, eps) = int_eps^inf (x - eps)^2 mu_delta(dx), its derivatives, and the mass above eps."""

    J: float
    J_delta: float
    """dJ/d delta."""
    J_eps: float
    """dJ/d eps."""
    mass: float
    """mu_delta((eps, inf))."""
    divergence: float
    """J_delta / (2 delta) = int int (xi(x) - xi(y))/(x - y) mu_delta mu_delta with xi(x) = (x - eps)_+."""


class PanelRule(NamedTuple):
    """Gauss rules on panels: ends (count, 2) of the panels in the integration variable of :meth:`Convolution._panels`.

    The nodes x, the weights times the density, and g(x + i0) are each (count, order).
    """

    panels: Array
    x: Array
    weight: Array
    g: ComplexArray

    def flat(self) -> tuple[Array, Array, ComplexArray]:
        """Return x, weight and g of all panels as flat arrays."""
        return self.x.ravel(), self.weight.ravel(), self.g.ravel()


class Convolution(abc.ABC):
    """mu_delta, the free convolution of a law mu_0 with the semicircle of radius 2 delta.

    It is the spectrum of S_0 + delta GOE for a matrix S_0 with the spectrum mu_0. With the Stieltjes transforms
    G_0(z) = int mu_0(ds)/(z - s) and g(z) = int mu_delta(dx)/(z - x), and g(x) for g(x + i0),

        g(z) = G_0(z - delta^2 g(z)),    mu_delta(x) = -Im g(x)/pi,
        dJ/d delta = 2 delta DIV,        DIV = 2 int_eps (x - eps) Re g(x) mu_delta(dx),

    where J(delta, eps) = int_eps (x - eps)^2 mu_delta(dx). No derivative is taken by differences.

    Parameters
    ----------
    parts : sequence of Measure
        Their sum is mu_0.
    delta : float
        Strength of the GOE noise, positive.
    """

    def __init__(self, parts: Sequence[Measure], delta: float) -> None:
        self._parts = list(parts)
        self.delta = float(checks.positive("delta", delta))
        if not np.isfinite(self.delta):
            raise ValueError(f"delta must be finite, got {delta}")

    @property
    @abc.abstractmethod
    def edges(self) -> Array:
        """Ends of the bulks (intervals that carry mu_delta), (bulks, 2), ascending."""

    @abc.abstractmethod
    def stieltjes(self, x: ArrayLike) -> ComplexArray:
        """Return the Stieltjes transform g(x + i0) of mu_delta: complex with Im g <= 0, real outside the bulks."""

    @abc.abstractmethod
    def mass_above(self, x: ArrayLike) -> Array:
        """Return mu_delta((x, inf)), the mass above each x."""

    @abc.abstractmethod
    def _coordinate(self, x: float) -> float:
        """Return the value of the integration variable of :meth:`_panels` at the eigenvalue x."""

    @abc.abstractmethod
    def _panels(self, low: float) -> Array:
        """Return the ends (count, 2) of panels of the integration variable above ``low``, cut at singular points."""

    @abc.abstractmethod
    def _resolved(self, panels: Array, order: int | None) -> PanelRule:
        """Return the Gauss rule on panels (count, 2), halved until ``order`` nodes (None: a default) resolve g."""

    def outlier(self, theta: ArrayLike) -> tuple[Array, Array]:
        """Return the outlier of S_0 + delta GOE due to a single eigenvalue theta of S_0, and the eigenvectors' overlap.

        With G(z) = int mu_0(ds)/(z - s) and F = -G', the outlier exists where delta^2 F(theta) < 1.

        Parameters
        ----------
        theta : float or array
            Point off the support of mu_0, or an atom that stands for single eigenvalues and is left out of G and F.

        Returns
        -------
        x, overlap : arrays
            theta + delta^2 G(theta) and the squared overlap 1 - delta^2 F(theta); nan and 0 where there is no outlier.
        """
        theta = np.asarray(theta, dtype=float)
        G, F = off_support(self._parts, theta)
        overlap = 1 - self.delta**2 * F
        return np.where(overlap > 0, theta + self.delta**2 * G, np.nan), np.maximum(overlap, 0.0)

    @property
    def bulks(self) -> int:
        """Number of separate intervals that carry mu_delta."""
        return len(self.edges)

    def density(self, x: ArrayLike) -> Array:
        """Return the density of mu_delta."""
        return -self.stieltjes(x).imag / np.pi

    def cdf(self, x: ArrayLike) -> Array:
        """Return mu_delta((-inf, x])."""
        return 1.0 - self.mass_above(x)

    def nodes(self, low: float = -np.inf, *, order: int | None = None) -> tuple[Array, Array, Array]:
        """Return a quadrature rule of mu_delta on (low, inf).

        Parameters
        ----------
        low : float
            Left end of the integration.
        order : int, optional
            Nodes per panel; panels are halved until this number resolves the density.

        Returns
        -------
        x, weight, h : arrays
            sum(weight f(x)) is int_low f dmu_delta to about 1e-12 relative; h = Re g(x).
        """
        panels = self._panels(low if np.isinf(low) else self._coordinate(low))
        x, weight, g = self._resolved(panels, order).flat()
        return x, weight, g.real

    def nodes_cut_at(self, *cuts: float) -> tuple[Array, Array, ComplexArray]:
        """Return a quadrature rule of the whole law for functions of x with kinks or jumps at the points ``cuts``.

        Every cut is a boundary of panels. The law is integrated once; a panel that contains a cut is divided at it.

        Returns
        -------
        x, weight, g : arrays
            As from :meth:`nodes`, with g(x + i0) itself in place of h.
        """
        whole = self._whole
        places = np.array([cut if np.isinf(cut) else self._coordinate(cut) for cut in cuts])
        inside = (whole.panels[:, :1] < places) & (places < whole.panels[:, 1:])
        hit = inside.any(axis=1)
        if not hit.any():
            return whole.flat()
        parts = []
        for (low, high), within in zip(whole.panels[hit], inside[hit], strict=True):
            ends = np.unique([low, *places[within], high])
            parts.append(np.stack([ends[:-1], ends[1:]], axis=1))
        new = self._resolved(np.concatenate(parts), None)
        return PanelRule(*(np.concatenate([old[~hit], cut]) for old, cut in zip(whole, new, strict=True))).flat()

    def moments(self, eps: float) -> SpectralMoments:
        """Return J and its derivatives at the threshold ``eps``."""
        x, weight, h = self.nodes(checks.number("eps", eps))
        excess = weight * (x - eps)
        divergence = 2 * float(excess @ h)
        return SpectralMoments(
            J=float(excess @ (x - eps)),
            J_delta=2 * self.delta * divergence,
            J_eps=-2 * float(excess.sum()),
            mass=float(weight.sum()),
            divergence=divergence,
        )

    def cube(self) -> float:
        """Return the integral of mu_delta(x)^3 dx, which gives the error of the Bayes-optimal denoiser."""
        _, weight, g = self._whole.flat()
        return float(weight @ (g.imag / np.pi) ** 2)

    def noise_left(self) -> float:
        """Return the Bayes-optimal denoiser's error, int delta^2 (1 - delta^2 |g|^2) mu_delta, from positive terms."""
        _, weight, g = self._whole.flat()
        return float(weight @ posterior_variance(self.delta, g))

    @cached_property
    def _whole(self) -> PanelRule:
        return self._resolved(self._panels(-np.inf), None)


def posterior_variance(delta: float, g: ComplexArray) -> Array:
    """Return delta^2 (1 - delta^2 |g|^2) at g = g(x + i0); its mean over mu_delta is the Bayes-optimal error."""
    return delta**2 * np.maximum(1 - delta**2 * (g.real**2 + g.imag**2), 0.0)


def adaptive_rule(
    panels: Array,
    evaluate: Callable[[Array], tuple[Array, Array, ComplexArray]],
    order: int,
    *,
    size: float,
    delta: float,
    span: float,
) -> PanelRule:
    """Return Gauss-Legendre rules in an angle for a density with square-root ends, halving panels where needed.

    On [a, b] the variable is t = (a + b)/2 - (b - a)/2 cos(theta), in which a square-root edge at an end is smooth.

    Parameters
    ----------
    panels : array (count, 2)
        Intervals of t, cut at known singular points.
    evaluate : callable
        Maps points t to x, density with respect to t, and g.
    order : int
        Nodes per panel.
    size, delta : float
        Root mean square of x, and the width of the semicircle. The rule resolves integrals of the law with
        1 + (x/size)^2 and with sqrt(size delta) Re g, where Re g ~ 1/delta at atoms and 1/size in a density.
    span : float
        Length of the support in t.
    """
    cosines, scaled, to_tail = _angular_rule(order)
    empty = np.zeros((0, order))
    done = [PanelRule(np.zeros((0, 2)), empty, empty, empty.astype(complex))]
    shortest = SMALLEST_PANEL * span
    while len(panels):
        interrupts.check()
        mid, half = panels.mean(axis=1)[:, None], 0.5 * np.diff(panels, axis=1)
        shape = (len(panels), order)
        points = mid - half * cosines
        x, density, g = (part.reshape(shape) for part in evaluate(points.ravel()))
        weight = half * scaled * density
        integrand = weight * (1 + x**2 / size**2 + 1j * np.sqrt(size * delta) * np.real(g))
        tail = np.abs(integrand @ to_tail).max(axis=1)
        lengths = np.maximum(half[:, 0], shortest)
        noise = ROUNDED * span / lengths * np.abs(integrand).sum(axis=1)  # rounding of nearly equal points
        fine = (tail <= np.maximum(RESOLVED, noise)) | (2 * half[:, 0] <= shortest)
        done.append(PanelRule(panels[fine], x[fine], weight[fine], g[fine]))
        low, high, cut = panels[~fine, 0], panels[~fine, 1], mid[~fine, 0]
        panels = np.concatenate([np.stack([low, cut], axis=1), np.stack([cut, high], axis=1)])
    return PanelRule(*(np.concatenate(parts) for parts in zip(*done, strict=True)))


def cut_panels(intervals: Array, low: float, cuts: Array) -> Array:
    """Return the parts (count, 2) above ``low`` of ascending ``intervals`` (k, 2), divided at the points ``cuts``."""
    starts, ends = np.maximum(intervals[:, 0], low), intervals[:, 1]
    starts, ends = starts[starts < ends], ends[starts < ends]
    interval = np.searchsorted(ends, cuts)
    known = interval < len(ends)
    inner = cuts[known][cuts[known] > starts[interval[known]]]
    return np.stack([np.sort(np.concatenate([starts, inner])), np.sort(np.concatenate([inner, ends]))], axis=1)


@cache
def _angular_rule(order: int) -> tuple[Array, Array, Array]:
    """Return cos(theta) and d theta sin(theta) at the nodes theta in (0, pi), (order,), and a map (order, k).

    The map takes weighted values of a function at the nodes to its last k Legendre coefficients.
    """
    nodes, weights = np.polynomial.legendre.leggauss(order)
    theta = 0.5 * np.pi * (nodes + 1)
    degrees = np.arange(order - max(2, order // 12), order)
    values = np.polynomial.legendre.legvander(nodes, order - 1)[:, degrees]
    return np.cos(theta), 0.5 * np.pi * weights * np.sin(theta), values * (2 * degrees + 1)
