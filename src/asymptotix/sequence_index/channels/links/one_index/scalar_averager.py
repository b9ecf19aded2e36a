"""Averages of a link of one index and one token without noise, by deterministic quadrature.

The roots z_j of g(z_j) = g(z) do not depend on the overlap: they are found once, for all nodes z. An average is then a
sum over nodes of z and of the noise of omega, with posteriors that are sums over roots of N(z_j; omega, V)/|g'(z_j)|.
As a function of z it is smooth but where the number of roots changes, at extrema and at whatever has the same output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .....numerics.precision import double_precision
from ...protocol import Averages, OperatorAverager

#: Largest |z| of a node, and of a root.
_FARTHEST, _FARTHEST_ROOT = 7.0, 11.0
#: Nodes per interval of z, of a short one and of others, its greatest length, and nodes of the noise.
_FEWER, _ORDER, _SHORT, _LENGTH, _NOISES = 8, 16, 0.2, 0.75, 96
#: Distances from where the number of roots changes at which intervals end: there roots are close to each other.
_AROUND = np.array([0.0, *(sign * d for d in (0.004, 0.02, 0.08, 0.3) for sign in (-1, 1))])
_BISECTIONS = 60
#: Intervals at most: the numbers that are held at once grow with the cube of theirs.
MOST = 32

#: Of places (m,): the values and the slopes of the link there.
Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class ScalarAverager(OperatorAverager):
    """Averages at one overlap.

    Parameters
    ----------
    ends : array (K, 2)
        Intervals on each of which the link is strictly monotone, from the left to the right.
    evaluate : callable
        The link and its slope.
    """

    #: Seen against three times as many nodes, for 1-q from 0.5 to 1e-5.
    accuracy = 2e-5

    def __init__(self, ends: np.ndarray, evaluate: Evaluate) -> None:
        ends = reached(ends)
        self._z, self._weights = _nodes(ends, evaluate)
        roots, exists = _roots(evaluate(self._z)[0], ends, evaluate)
        own = (self._z[:, None] >= ends[:, 0]) & (self._z[:, None] <= ends[:, 1])
        roots = np.where(own, self._z[:, None], roots)
        slope = np.abs(evaluate(roots.ravel())[1]).reshape(roots.shape)
        with np.errstate(divide="ignore"):
            log_weights = np.where((exists | own) & (slope > 0), -np.log(slope), -np.inf)
        good = np.isfinite(log_weights).any(1)  # not: at an extremum, up to rounding
        #: Whether all of the prior is there, and not beyond where the link overflows.
        self.whole = bool(self._weights[good].sum() > 1 - 1e-9)
        self._z, self._weights = self._z[good], self._weights[good]
        self._roots, self._log_weights = roots[good], log_weights[good]
        x, weights = np.polynomial.legendre.leggauss(_NOISES)
        self._noise = _FARTHEST * x
        self._noise_weights = _FARTHEST * weights * np.exp(-0.5 * self._noise**2) / np.sqrt(2 * np.pi)

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
        """Score, its slope and log Z_out, (nodes of z, nodes of the noise)."""
        q = max(1 - v, 0.0)
        omega = q * self._z[:, None] + np.sqrt(q * v) * self._noise
        found = _sums(self._roots.T, self._log_weights.T, omega, v)
        log_mass, shift, variance = (np.asarray(x) for x in found)
        return shift / v, variance / v**2 - 1 / v, log_mass - 0.5 * np.log(2 * np.pi * v)


def reached(ends: np.ndarray) -> np.ndarray:
    """Those of the intervals (K, 2) in which there may be roots that count."""
    return ends[(ends[:, 1] > -_FARTHEST_ROOT) & (ends[:, 0] < _FARTHEST_ROOT)]


@jax.jit
def _sums(roots: Any, log_weights: Any, omega: Any, v: Any) -> tuple[Any, Any, Any]:
    """Log mass, mean shift and variance of the posteriors on roots (K, m) for fields (m, noises)."""
    away = roots[:, :, None] - omega
    log_terms = log_weights[:, :, None] - away**2 / (2 * v)
    top = log_terms.max(0)
    terms = jnp.exp(log_terms - top)
    mass = terms.sum(0)
    shift = (terms * away).sum(0) / mass
    return top + jnp.log(mass), shift, (terms * (away - shift) ** 2).sum(0) / mass


def _nodes(ends: np.ndarray, evaluate: Evaluate) -> tuple[np.ndarray, np.ndarray]:
    """Nodes of z and their weights under N(0, 1): between all places where the number of roots changes.

    There the integrand has square roots, which the substitution u -> u^2 (3 - 2u) takes away.
    """
    critical = np.unique(np.round(evaluate(ends.ravel())[0], 12))
    same, exists = _roots(critical, ends, evaluate)
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
    """Nodes in intervals from a to b, and their weights."""
    x, weights = np.polynomial.legendre.leggauss(order)
    u, width = 0.5 * (x + 1), (b - a)[:, None]
    z = (a[:, None] + width * u**2 * (3 - 2 * u)).ravel()
    return z, (width * 3 * u * (1 - u) * weights).ravel() * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)


def _roots(y: np.ndarray, ends: np.ndarray, evaluate: Evaluate) -> tuple[np.ndarray, np.ndarray]:
    """The place (m, K) in every interval where the link is y (m,), and which of them exist."""
    a, b = (np.broadcast_to(ends[:, side], (len(y), len(ends))).copy() for side in (0, 1))
    low, high = (evaluate(ends[:, side])[0] for side in (0, 1))
    rising = high > low
    exists = (y[:, None] >= np.minimum(low, high)) & (y[:, None] <= np.maximum(low, high))
    for _ in range(_BISECTIONS):
        middle = 0.5 * (a + b)
        above = (evaluate(middle.ravel())[0].reshape(middle.shape) > y[:, None]) == rising
        a, b = np.where(above, a, middle), np.where(above, middle, b)
    return 0.5 * (a + b), exists
