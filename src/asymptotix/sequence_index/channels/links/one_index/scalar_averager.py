"""Averages of a link of one index and one token without noise, by deterministic quadrature.

The roots z_j of g(z_j) = g(z) do not depend on the overlap: they are found once, for all nodes z. An average is then a
sum over nodes of z and of the noise of omega, with posteriors that are sums over roots of N(z_j; omega, V)/|g'(z_j)|.
Where the link is constant the posterior is the prior truncated to all intervals with that value. Both posteriors are
smooth functions of z except where the number of roots changes: at extrema, and at other places with the same output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .....numerics.precision import double_precision
from ...protocol import Averager, Averages
from ...tools.truncated_normal import truncated_normal
from .pieces import Pieces

#: Largest |z| of a node, and of a root.
_FARTHEST, _FARTHEST_ROOT = 7.0, 11.0
#: Nodes of a short interval of z and of other intervals, length of a short one, largest length, and nodes of the noise.
_FEWER, _ORDER, _SHORT, _LENGTH, _NOISES = 8, 16, 0.2, 0.75, 96
#: Intervals end at these distances from places where the number of roots changes: roots are close together there.
_AROUND = np.array([0.0, *(sign * d for d in (0.004, 0.02, 0.08, 0.3) for sign in (-1, 1))])
_BISECTIONS = 60
#: Largest relative difference of values that are equal up to rounding.
_SAME = 2e-15
#: Most intervals: memory grows with the cube of their number.
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
        Returns the link and its slope.
    """

    #: Measured against three times as many nodes, for 1-q from 0.5 to 1e-5.
    accuracy = 2e-5

    def __init__(self, cut: Pieces, evaluate: Evaluate) -> None:
        inside = reached(cut.ends)
        ends, flat = cut.ends[inside], cut.flat[inside]
        z, weights = _nodes(ends, flat, evaluate)
        on_flat = _within(z, ends[flat]).any(1)
        self._flat = _FlatNodes.of(z[on_flat], ends[flat], cut.value[inside][flat, 0])
        z_moving, moving = z[~on_flat], ends[~flat]
        self._roots, self._log_weights = _weighted_roots(z_moving, moving, cut.saturated[inside][~flat], evaluate)
        good = np.isfinite(self._log_weights).any(1)  # False at an extremum, up to rounding
        self._roots, self._log_weights = self._roots[good], self._log_weights[good]
        self._z = np.concatenate([z_moving[good], z[on_flat]])
        self._weights = np.concatenate([weights[~on_flat][good], weights[on_flat]])
        #: Whether the nodes cover the whole prior; False where the link overflows.
        self.whole = bool(self._weights.sum() > 1 - 1e-9)
        x, noise_weights = np.polynomial.legendre.leggauss(_NOISES)
        self._noise = _FARTHEST * x
        self._noise_weights = _FARTHEST * noise_weights * np.exp(-0.5 * self._noise**2) / np.sqrt(2 * np.pi)

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
        """Return score, its slope and log Z_out, arrays (nodes of z, nodes of the noise)."""
        q = max(1 - v, 0.0)
        omega = q * self._z[:, None] + np.sqrt(q * v) * self._noise
        moving = len(self._roots)
        parts = []
        if moving:
            log_mass, shift, variance = _sums(self._roots.T, self._log_weights.T, omega[:moving], v)
            parts.append((log_mass - 0.5 * np.log(2 * np.pi * v), shift, variance))
        if moving < len(omega):
            parts.append(_cut_to(self._flat.intervals, self._flat.counts, omega[moving:], v))
        log_mass, shift, variance = (np.concatenate([np.asarray(x) for x in part]) for part in zip(*parts, strict=True))
        return shift / v, variance / v**2 - 1 / v, log_mass


class _FlatNodes(NamedTuple):
    """Nodes where the link is constant: all intervals (m, K, 2), and which of them (m, K) have the node's value."""

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


def _weighted_roots(
    z: np.ndarray, ends: np.ndarray, saturated: np.ndarray, evaluate: Evaluate
) -> tuple[np.ndarray, np.ndarray]:
    """Return, per node z (m,), roots (m, K) in the intervals and log(1/|slope|) at the roots; -inf without a root."""
    if not len(z):
        return np.zeros((0, 1)), np.zeros((0, 1))
    roots, exists = _roots(evaluate(z)[0], ends, evaluate)
    own = _within(z, ends)
    roots = np.where(own, z[:, None], roots)
    slope = np.abs(evaluate(roots.ravel())[1]).reshape(roots.shape)
    with np.errstate(divide="ignore"):
        log_weights = np.where((exists | own) & (slope > 0), -np.log(slope), -np.inf)
    # Where the node's slope rounds to zero the node has more weight than all other roots.
    lost = own & saturated & (slope == 0)
    log_weights = np.where(lost.any(1, keepdims=True), np.where(lost, 0.0, -np.inf), log_weights)
    return roots, log_weights


@jax.jit
def _cut_to(intervals: Any, counts: Any, omega: Any, v: Any) -> tuple[Any, Any, Any]:
    """Return log mass, mean shift and variance of priors truncated to intervals (m, K, 2), for fields (m, noises)."""
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


@jax.jit
def _sums(roots: Any, log_weights: Any, omega: Any, v: Any) -> tuple[Any, Any, Any]:
    """Return log mass, mean shift and variance of the posteriors on roots (K, m) for fields (m, noises)."""
    away = roots[:, :, None] - omega
    log_terms = log_weights[:, :, None] - away**2 / (2 * v)
    top = log_terms.max(0)
    terms = jnp.exp(log_terms - top)
    mass = terms.sum(0)
    shift = (terms * away).sum(0) / mass
    return top + jnp.log(mass), shift, (terms * (away - shift) ** 2).sum(0) / mass


def _nodes(ends: np.ndarray, flat: np.ndarray, evaluate: Evaluate) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes of z and weights under N(0, 1), in intervals between the places where the number of roots changes.

    At these places the integrand has square roots, which the substitution u -> u^2 (3 - 2u) removes.
    """
    critical = np.unique(np.round(evaluate(ends.ravel())[0], 12))
    same, exists = _roots(critical, ends[~flat], evaluate)
    edges = np.concatenate([ends.ravel(), same[exists], [-_FARTHEST, _FARTHEST]])
    edges = np.unique(np.add.outer(edges, _AROUND).ravel())
    edges = edges[np.abs(edges) <= _FARTHEST]
    parts = np.maximum(1, np.ceil(np.diff(edges) / _LENGTH)).astype(int)
    pieces = zip(edges[:-1], edges[1:], parts, strict=True)
    edges = np.concatenate([*(np.linspace(a, b, k + 1)[:-1] for a, b, k in pieces), edges[-1:]])
    a, b, short = edges[:-1], edges[1:], np.diff(edges) < _SHORT
    rules = [_rule(a[chosen], b[chosen], order) for chosen, order in ((short, _FEWER), (~short, _ORDER))]
    z, mass = (np.concatenate(part) for part in zip(*rules, strict=True))
    kept = mass > 1e-13
    return z[kept], mass[kept]


def _rule(a: np.ndarray, b: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes in intervals from a to b, and their weights."""
    x, weights = np.polynomial.legendre.leggauss(order)
    u, width = 0.5 * (x + 1), (b - a)[:, None]
    z = (a[:, None] + width * u**2 * (3 - 2 * u)).ravel()
    return z, (width * 3 * u * (1 - u) * weights).ravel() * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)


def _roots(y: np.ndarray, ends: np.ndarray, evaluate: Evaluate) -> tuple[np.ndarray, np.ndarray]:
    """Return the places (m, K), one per interval, where the link is y (m,), and which of them exist."""
    a, b = (np.broadcast_to(ends[:, side], (len(y), len(ends))).copy() for side in (0, 1))
    low, high = (evaluate(ends[:, side])[0] for side in (0, 1))
    rising = high > low
    exists = (y[:, None] >= np.minimum(low, high)) & (y[:, None] <= np.maximum(low, high))
    for _ in range(_BISECTIONS):
        middle = 0.5 * (a + b)
        above = (evaluate(middle.ravel())[0].reshape(middle.shape) > y[:, None]) == rising
        a, b = np.where(above, a, middle), np.where(above, middle, b)
    return 0.5 * (a + b), exists
