"""Averages of a link of one index and one token without noise, by deterministic quadrature.

The roots z_j of g(z_j) = g(z) do not depend on the overlap: they are found once, for all nodes z. An average is then a
sum over nodes of z and of the noise of omega, with posteriors that are sums over roots of N(z_j; omega, V)/|g'(z_j)|.
Where the link is constant the posterior is the prior truncated to all intervals with that value. Both posteriors are
smooth functions of z except where the number of roots changes: at extrema, and at other places with the same output.
Where the slope of the link is small or changes fast, at the node or at another root, they vary fast: intervals of z are
halved until both halves together give the same averages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .....numerics.arrays import Array
from .....numerics.precision import double_precision
from ...protocol import Averager, Averages
from ...tools.truncated_normal import truncated_normal
from .pieces import Pieces

#: Largest |z| of a node, and of a root.
_FARTHEST, _FARTHEST_ROOT = 7.0, 11.0
#: Number of nodes in an interval of z, largest length of an interval, and number of nodes of the noise.
_ORDER, _LENGTH, _NOISES = 12, 0.75, 96
#: Distances from the ends of constant pieces at which intervals end: the prior is cut there.
_AROUND = np.array([sign * d for d in (0.004, 0.02, 0.08, 0.3) for sign in (-1, 1)])
#: Values of V = 1-q at which averages over an interval and over its halves must agree (the smallest is that of known
#: directions), number of nodes of the noise of omega there, and the value at which the evidence must agree, too.
_TRIED, _TRIED_NOISES, _EVIDENCE = (1.0, 0.7, 0.3, 0.1, 1e-2, 1e-3, 1e-5), 24, 0.3
#: Largest difference between an interval and its halves, as a share of the whole average, and the most halvings.
_AGREES, _HALVINGS = 3e-7, 30
#: Most intervals that still disagree. Beyond it the link is too rough for a quadrature, and is sampled.
_MOST_INTERVALS = 2**12
_BISECTIONS = 60
#: Largest relative difference of values that are equal up to rounding.
_SAME = 2e-15
#: A root is vague if the output rises by less than this share of itself, 500 roundings, from the extremum beside it:
#: larger rises determine the distance from the extremum to a thousandth.
_VAGUE = 1e-13
#: Most pieces of a link for which averages are quadratures: memory grows with the cube of their number.
MOST = 32

#: Function of places (m,) that returns values and slopes of the link there.
Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class ScalarAverager(Averager):
    """Averages of a link of one index without noise.

    Parameters
    ----------
    cut : Pieces
        Intervals, ascending, on each of which the link is strictly monotone or constant.
    evaluate : callable
        Returns the link and its slope at places (m,).
    """

    #: A bound: with three times as many nodes in finer intervals eight links changed by up to 1.3e-6 (1-q from 0.5 to
    #: 1e-5); roots that rounding hides beside an extremum, see ``_VAGUE``, change the evidence by up to 1.4e-5.
    accuracy = 2e-5

    def __init__(self, cut: Pieces, evaluate: Evaluate) -> None:
        inside = reached(cut.ends)
        ends, flat, saturated = cut.ends[inside], cut.flat[inside], cut.saturated[inside]
        moving = _Roots(ends[~flat], saturated[~flat], evaluate)
        around = np.add.outer(ends[flat], _AROUND)
        intervals = _intervals(np.concatenate([ends.ravel(), around.ravel(), moving.same_output(ends.ravel())]))
        constant = _within(intervals.mean(1), ends[flat]).any(1)
        z_flat, on_flat = (part.ravel() for part in _rule(intervals[constant]))
        z, weights = moving.nodes(intervals[~constant])
        self._flat = _FlatNodes.of(z_flat, ends[flat], cut.value[inside][flat, 0])
        self._roots, self._log_weights = moving.of(z)
        good = np.isfinite(self._log_weights).any(1)  # False at an extremum, up to rounding
        self._roots, self._log_weights = self._roots[good], self._log_weights[good]
        self._z = np.concatenate([z[good], z_flat])
        self._weights = np.concatenate([weights[good], on_flat])
        #: Whether the nodes cover the whole prior and resolve the link; False where it overflows or is too rough.
        self.whole = moving.resolved and bool(self._weights.sum() > 1 - 1e-9)
        self._noise, self._noise_weights = _noise(_NOISES)

    def __call__(self, V: np.ndarray) -> Averages:
        g, G, log_evidence = self._posterior(float(V[0, 0]))
        moment, evidence, curvature = (self._mean(x) for x in (g**2, log_evidence, G**2))
        return Averages(np.full((1, 1, 1), moment), np.array([evidence]), np.full((1, 1), curvature))

    def moments_and_operators(
        self, V: np.ndarray, frame: np.ndarray, basis: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        g, G, _ = self._posterior(float(V[0, 0]))
        return np.full((1, 1, 1), self._mean(g**2)), np.full((1, 1, 1), self._mean(G**2))

    def _mean(self, values: np.ndarray) -> float:
        return float(self._weights @ values @ self._noise_weights)

    @double_precision()
    def _posterior(self, v: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return g_out, d g_out/d omega and log Z_out at prior variance v, arrays (nodes of z, nodes of omega)."""
        q = max(1 - v, 0.0)
        omega = q * self._z[:, None] + np.sqrt(q * v) * self._noise
        moving = len(self._roots)
        parts = []
        if moving:
            log_mass, shift, variance = _compiled_sums(self._roots.T, self._log_weights.T, omega[:moving], v)
            parts.append((log_mass - 0.5 * np.log(2 * np.pi * v), shift, variance))
        if moving < len(omega):
            parts.append(_cut_to(self._flat.intervals, self._flat.counts, omega[moving:], v))
        log_mass, shift, variance = (np.concatenate([np.asarray(x) for x in part]) for part in zip(*parts, strict=True))
        return shift / v, variance / v**2 - 1 / v, log_mass


class _FlatNodes(NamedTuple):
    """Constant intervals (m, K, 2), repeated per node, and on which of them (m, K) the link has the node's output."""

    intervals: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, z: np.ndarray, ends: np.ndarray, value: np.ndarray) -> _FlatNodes:
        own = value[np.argmax(_within(z, ends), axis=1)] if len(z) else value[:0]
        same = abs(own[:, None] - value) <= _SAME * (1 + abs(own[:, None]))
        # The first and the last of all intervals extend to infinity.
        reach = np.where(ends == ends.min(initial=0.0), -np.inf, ends)
        reach = np.where(ends == ends.max(initial=0.0), np.inf, reach)
        outside = np.where(abs(ends) >= _FARTHEST_ROOT, reach, ends)
        return cls(np.broadcast_to(outside, (len(z), *ends.shape)), same)


def reached(ends: np.ndarray) -> np.ndarray:
    """Return which of the intervals (K, 2) may hold roots of noticeable weight."""
    return (ends[:, 1] > -_FARTHEST_ROOT) & (ends[:, 0] < _FARTHEST_ROOT)


def _within(z: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return which places (m,) lie in which of the intervals (K, 2), an array (m, K)."""
    return (z[:, None] >= ends[:, 0]) & (z[:, None] <= ends[:, 1])


@jax.jit
def _cut_to(
    intervals: jax.Array, counts: jax.Array, omega: jax.Array, v: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return log mass, mean minus omega and variance of N(omega, v) cut to ``intervals`` (m, K, 2).

    Intervals count where ``counts`` (m, K) is true. ``omega`` and results are (m, noises).
    """
    scale = jnp.sqrt(v)
    ends = (intervals[:, :, None] - omega[:, None, :, None]) / scale
    log_mass, mean, variance = truncated_normal(ends[..., 0], ends[..., 1])
    log_mass = jnp.where(counts[:, :, None], log_mass, -jnp.inf)
    top = log_mass.max(1)
    terms = jnp.exp(log_mass - top[:, None])
    mass = terms.sum(1)
    shift = (terms * mean).sum(1) / mass
    within = (terms * (variance + (mean - shift[:, None]) ** 2)).sum(1) / mass
    return top + jnp.log(mass), scale * shift, v * within


def _sums(xp: Any, roots: Array, log_weights: Array, omega: Array, v: float) -> tuple[Any, Any, Any]:
    """Return log mass, mean minus omega and variance, all like omega (m, noises), of posteriors on roots (K, m)."""
    away = roots[:, :, None] - omega
    log_terms = log_weights[:, :, None] - away**2 / (2 * v)
    top = log_terms.max(0)
    terms = xp.exp(log_terms - top)
    mass = terms.sum(0)
    shift = (terms * away).sum(0) / mass
    return top + xp.log(mass), shift, (terms * (away - shift) ** 2).sum(0) / mass


_compiled_sums = jax.jit(partial(_sums, jnp))


class _Roots:
    """Solver of g(root) = g(z) on K intervals, on each of which the link g is strictly monotone.

    Parameters
    ----------
    ends : array (K, 2)
    saturated : array (K,) of bool
        Whether the slope rounds to zero on an interval.
    evaluate : callable
        Returns the link and its slope.
    """

    def __init__(self, ends: np.ndarray, saturated: np.ndarray, evaluate: Evaluate) -> None:
        self._ends, self._saturated, self._evaluate = ends, saturated, evaluate
        self._values = np.stack([evaluate(ends[:, side])[0] for side in (0, 1)])
        self._rising = self._values[1] > self._values[0]
        #: False once more than _MOST_INTERVALS intervals disagree with their halves in :meth:`nodes`.
        self.resolved = True

    def of(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return, per node z (m,), roots (m, K) in the intervals and log(1/|slope|) at them; -inf without a root."""
        if not len(z):
            return np.zeros((0, 1)), np.zeros((0, 1))
        y = self._evaluate(z)[0]
        roots, exists = self.with_output(y)
        own = _within(z, self._ends)
        roots = np.where(own, z[:, None], roots)
        slope = self._steepness(roots)
        # Beside an extremum the output rounds to one number at many places. The middle one stands for all of them.
        beside = np.minimum(abs(roots - self._ends[:, 0]), abs(roots - self._ends[:, 1]))
        vague = exists & ~own & (slope * beside <= _VAGUE * abs(y[:, None]))
        if (rows := vague.any(1)).any():
            first, last = self._crossings(y[rows], np.greater_equal), self._crossings(y[rows], np.greater)
            roots[rows] = np.where(vague[rows], 0.5 * (first + last), roots[rows])
            slope[rows] = self._steepness(roots[rows])
        with np.errstate(divide="ignore"):
            log_weights = np.where((exists | own) & (slope > 0), -np.log(slope), -np.inf)
        # Where the node's slope rounds to zero the node has more weight than all other roots.
        lost = own & self._saturated & (slope == 0)
        return roots, np.where(lost.any(1, keepdims=True), np.where(lost, 0.0, -np.inf), log_weights)

    def same_output(self, places: np.ndarray) -> np.ndarray:
        """Return all places in the intervals with the output of one of the given places."""
        roots, exists = self.with_output(np.unique(np.round(self._evaluate(places)[0], 12)))
        return roots[exists]

    def with_output(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the places (m, K), one per interval, where the link is y (m,), and whether each exists (m, K)."""
        exists = (y[:, None] >= self._values.min(0)) & (y[:, None] <= self._values.max(0))
        return self._crossings(y, np.greater), exists

    def _crossings(self, y: np.ndarray, over: np.ufunc) -> np.ndarray:
        """Return the places (m, K), one per interval, where over(link, y) changes; ``over`` is > or >=, y is (m,)."""
        a, b = (np.broadcast_to(self._ends[:, side], (len(y), len(self._ends))).copy() for side in (0, 1))
        for _ in range(_BISECTIONS):
            middle = 0.5 * (a + b)
            above = over(self._evaluate(middle.ravel())[0].reshape(middle.shape), y[:, None]) == self._rising
            a, b = np.where(above, a, middle), np.where(above, middle, b)
        return 0.5 * (a + b)

    def _steepness(self, places: np.ndarray) -> np.ndarray:
        """Return the absolute slopes of the link at places (m, K)."""
        return np.abs(self._evaluate(places.ravel())[1]).reshape(places.shape)

    def nodes(self, intervals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return nodes z and weights under N(0, 1) in intervals (n, 2), which are halved until averages agree."""
        if not (len(intervals) and len(self._ends)):
            return np.zeros(0), np.zeros(0)
        parts = self._averages(intervals)
        whole, found = abs(parts).sum(0) + 1e-300, []
        for _ in range(_HALVINGS):
            middle = intervals.mean(1)
            halves = np.stack([intervals[:, 0], middle, middle, intervals[:, 1]], 1).reshape(-1, 2)
            of_halves = self._averages(halves)
            agree = (abs(parts - of_halves.reshape(-1, 2, len(whole)).sum(1)) <= _AGREES * whole).all(1)
            found.append(intervals[agree])
            rest = np.repeat(~agree, 2)
            intervals, parts = halves[rest], of_halves[rest]
            self.resolved = len(intervals) <= _MOST_INTERVALS
            if not (len(intervals) and self.resolved):
                break
        z, mass = (part.ravel() for part in _rule(np.concatenate([*found, intervals])))
        kept = mass > 1e-13
        return z[kept], mass[kept]

    def _averages(self, intervals: np.ndarray) -> np.ndarray:
        """Return what each of n intervals adds to the t averages that decide whether it is halved, an array (n, t)."""
        z, mass = _rule(intervals)
        roots, log_weights = self.of(z.ravel())
        good = np.isfinite(log_weights).any(1)
        log_weights[~good] = 0.0
        noise, noise_weights = _noise(_TRIED_NOISES)
        found = []
        for v in _TRIED:
            omega = (1 - v) * z.ravel()[:, None] + np.sqrt((1 - v) * v) * noise
            log_mass, shift, variance = _sums(np, roots.T, log_weights.T, omega, v)
            found.append(((shift / v) ** 2 if v < 1 else variance**2) @ noise_weights)
            if v == _EVIDENCE:
                found.append(log_mass @ noise_weights)
        shares = np.where(good, found, 0.0).T.reshape(*z.shape, -1)
        return (mass[:, :, None] * shares).sum(1)


def _noise(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ``count`` nodes of a standard normal variable, and their weights."""
    x, weights = np.polynomial.legendre.leggauss(count)
    return _FARTHEST * x, _FARTHEST * weights * np.exp(-0.5 * (_FARTHEST * x) ** 2) / np.sqrt(2 * np.pi)


def _intervals(edges: np.ndarray) -> np.ndarray:
    """Return intervals (n, 2) that cover |z| < _FARTHEST, end at all ``edges``, and are at most _LENGTH long."""
    edges = np.append(edges, [-_FARTHEST, _FARTHEST])
    edges = np.unique(edges[np.abs(edges) <= _FARTHEST])
    parts = np.maximum(1, np.ceil(np.diff(edges) / _LENGTH)).astype(int)
    pieces = zip(edges[:-1], edges[1:], parts, strict=True)
    edges = np.concatenate([*(np.linspace(a, b, k + 1)[:-1] for a, b, k in pieces), edges[-1:]])
    return np.stack([edges[:-1], edges[1:]], 1)


def _rule(intervals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (n, order) in intervals (n, 2), and their weights under N(0, 1).

    Where the number of roots changes the integrand has square roots, which the substitution u -> u^2 (3 - 2u) removes.
    """
    x, weights = np.polynomial.legendre.leggauss(_ORDER)
    u, width = 0.5 * (x + 1), np.diff(intervals, axis=1)
    z = intervals[:, :1] + width * u**2 * (3 - 2 * u)
    return z, width * 3 * u * (1 - u) * weights * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
