"""Discrete outputs: the posterior is the Gaussian prior cut to the region where the link has the observed value.

One coordinate is integrated exactly along lines, between the points where the link jumps; the others by quadrature
(two indices) or over a list of random lines (more than two).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ....numerics.precision import double_precision
from ...models.link import MultiIndex, SequenceIndex
from ..tools.random_lists import kronecker_normals
from ..tools.truncated_normal import truncated_normal
from .link_channel import LinkChannel, Moments, coloured, flat_link, weighted_moments
from .scalar import ROUNDING

_BISECTIONS = 44
_LARGEST_NUMBER_OF_CUTS = 24
_U, _U_WEIGHTS = np.polynomial.legendre.leggauss(48)


def line_nodes(count: int) -> np.ndarray:
    """Points on a line in standard deviations: dense around the mean, out to 40."""
    return 4 * np.sinh(np.linspace(-1, 1, count) * np.arcsinh(10))


def first_places(flags: Any, order: np.ndarray, most: int) -> tuple[Any, Any]:
    """Places (most,) of the flags that are set, those of least ``order`` first, and which of them exist.

    One maximum after the other: sorts and cumulative sums take many times as long.
    """
    rank = np.empty(len(order), np.int32)
    rank[np.argsort(order, kind="stable")] = np.arange(len(order), 0, -1)
    score = jnp.where(flags, rank, 0)
    places, found = [], []
    for _ in range(most):
        places.append(jnp.argmax(score))
        found.append(score[places[-1]] > 0)
        score = jnp.where(score == score[places[-1]], 0, score)
    return jnp.stack(places), jnp.stack(found)


def sorted_few(x: Any) -> Any:
    """The entries of a short vector in increasing order, by counting."""
    before = (x[None] < x[:, None]) | ((x[None] == x[:, None]) & np.tri(len(x), k=-1, dtype=bool))
    at = before.sum(1)[:, None] == np.arange(len(x))
    return jnp.where(at, x[:, None], -jnp.inf).max(0)


def member_intervals(member: Any, nodes: np.ndarray, most: int) -> tuple[Any, Any, Any]:
    """Log-mass, mean and variance of N(0, 1) on each of the ``most`` + 1 intervals where ``member(s)`` holds.

    The ends are found on the grid ``nodes`` and by bisection; intervals where it does not hold have log-mass -inf.
    """
    flags = jax.vmap(member)(jnp.asarray(nodes))
    central = np.minimum(np.abs(nodes[1:]), np.abs(nodes[:-1]))
    cell, is_edge = first_places(flags[1:] != flags[:-1], central, most)
    left = flags[cell]

    def halve(_: Any, ends: tuple[Any, Any]) -> tuple[Any, Any]:
        a, b = ends
        middle = 0.5 * (a + b)
        same = jax.vmap(member)(middle) == left
        return jnp.where(same, middle, a), jnp.where(same, b, middle)

    a, b = jax.lax.fori_loop(0, _BISECTIONS, halve, (jnp.asarray(nodes)[cell], jnp.asarray(nodes)[cell + 1]))
    cuts = sorted_few(jnp.where(is_edge, 0.5 * (a + b), jnp.inf))
    lower, upper = jnp.append(-jnp.inf, cuts), jnp.append(cuts, jnp.inf)
    middle = 0.5 * (jnp.maximum(lower, nodes[0]) + jnp.minimum(upper, nodes[-1]))
    inside = jax.vmap(member)(middle) & (lower < upper)
    log_mass, mean, variance = truncated_normal(jnp.where(inside, lower, 0.0), jnp.where(inside, upper, 0.0))
    return jnp.where(inside, log_mass, -jnp.inf), mean, variance


class PlaneChannel(LinkChannel):
    """Two indices: exact along lines of one of them, Gauss-Legendre quadrature over the other.

    The quadrature is split where the pattern of values along the lines changes (lines of the plane of indices that do
    not depend on the prior, found once); between them the integrand is smooth, up to square roots at the ends, which
    the substitution u -> 3 u^2 - 2 u^3 takes away.
    """

    _line, _most = line_nodes(193), 6

    def __init__(self, model: SequenceIndex | MultiIndex) -> None:
        super().__init__(model, 0)
        cuts = [pattern_changes(model, axis) for axis in (0, 1)]
        self._free = int(len(cuts[1]) < len(cuts[0]))
        self._cuts = cuts[self._free]
        self.description = (
            f"quadrature over lines, split at {len(self._cuts)} places: two indices and discrete outputs, without noise"
        )

    def footprint(self, draws: int) -> int:
        return 48 * (len(self._cuts) + 3) * (193 + 7 * 48)

    def moments(self, y: Any, omega: Any, prior: Any, key: Any, draws: int) -> Moments:
        free, solved = self._free, 1 - self._free
        deviation = jnp.sqrt(prior[free, free])
        slope = prior[free, solved] / prior[free, free]
        width = jnp.sqrt(prior[solved, solved] - slope * prior[free, solved])
        edges = jnp.concatenate([jnp.array([-30.0, -7.5, 7.5, 30.0]), (self._cuts - omega[free]) / deviation])
        edges = jnp.sort(jnp.clip(edges, -30.0, 30.0))
        u = 0.5 * (_U + 1)
        t = (edges[:-1, None] + jnp.diff(edges)[:, None] * (u**2 * (3 - 2 * u))).ravel()
        weights = (jnp.diff(edges)[:, None] * (3 * u * (1 - u) * _U_WEIGHTS)).ravel()
        tolerance = ROUNDING * (1 + jnp.abs(y))

        def on_line(t: Any) -> tuple[Any, Any, Any]:
            def member(s: Any) -> Any:
                shift = jnp.zeros(2).at[free].set(deviation * t).at[solved].set(slope * deviation * t + width * s)
                return (jnp.abs(self.link(omega + shift) - y) <= tolerance).all()

            return member_intervals(member, self._line, self._most)

        log_mass, mean, variance = jax.vmap(on_line)(t)
        log_weights = log_mass + jnp.log(weights)[:, None] - 0.5 * t[:, None] ** 2 - 0.5 * np.log(2 * np.pi)
        along = jnp.broadcast_to(deviation * t[:, None], mean.shape)
        columns = [along, slope * along + width * mean]
        x = jnp.stack([columns[0] if axis == free else columns[1] for axis in (0, 1)], -1)
        extra = (width**2 * variance)[..., None] * (jnp.arange(2) == solved)
        return weighted_moments(log_weights.ravel(), x.reshape(-1, 2), extra.reshape(-1, 2))


class LineChannel(LinkChannel):
    """More than two indices: random lines along every whitened coordinate, exact along each line."""

    draws = 768
    stochastic = True
    _line, _most = line_nodes(65), 4
    description = "random lines, exact along each: more than two indices and discrete outputs, without noise"

    def __init__(self, model: SequenceIndex | MultiIndex) -> None:
        super().__init__(model, 0)

    def footprint(self, draws: int) -> int:
        return draws * (65 + 5 * 48)

    def moments(self, y: Any, omega: Any, prior: Any, key: Any, draws: int) -> Moments:
        n = self.size
        each = max(1, draws // (2 * n))
        root = jnp.linalg.cholesky(prior)
        tolerance = ROUNDING * (1 + jnp.abs(y))
        half = kronecker_normals(key, each * n, n - 1).reshape(each, n, n - 1)
        others = jnp.concatenate([half, -half])  # what is odd in the other coordinates drops out

        def on_line(axis: int, x: Any) -> tuple[Any, Any, Any]:
            point = jnp.insert(x, axis, 0.0)

            def member(s: Any) -> Any:
                return (jnp.abs(self.link(omega + root @ point.at[axis].set(s)) - y) <= tolerance).all()

            log_mass, mean, variance = member_intervals(member, self._line, self._most)
            points = jnp.broadcast_to(point, (len(mean), n)).at[:, axis].set(mean)
            return log_mass, points, jnp.zeros_like(points).at[:, axis].set(variance)

        parts = [jax.vmap(partial(on_line, axis))(others[:, axis]) for axis in range(n)]
        log_mass = jnp.stack([part[0] for part in parts])
        x, extra = (jnp.stack([part[i] for part in parts]).reshape(-1, n) for i in (1, 2))
        found = weighted_moments(log_mass.ravel() - np.log(2 * each * n), x, extra)
        lines = jnp.exp(jax.scipy.special.logsumexp(log_mass, axis=-1) - jnp.max(log_mass))
        return coloured(found._replace(effective_samples=lines.sum() ** 2 / (lines**2).sum()), root)


@double_precision()
def pattern_changes(model: SequenceIndex | MultiIndex, axis: int) -> np.ndarray:
    """Values of one index at which the sequence of values of the link along the other changes."""
    other = np.linspace(-9, 9, 601) + 0.00217
    link = partial(flat_link, model)
    values = jax.jit(
        jax.vmap(lambda c: jax.vmap(lambda s: link(jnp.zeros(2).at[axis].set(c).at[1 - axis].set(s)))(other))
    )

    def patterns(c: np.ndarray) -> list[bytes]:
        return [_run_lengths(row) for row in np.round(np.asarray(values(c)), 9)]

    grid = np.linspace(-9, 9, 361) + 0.00123
    found = patterns(grid)
    cells = [i for i in range(len(grid) - 1) if found[i] != found[i + 1]]
    if not cells or len(cells) > _LARGEST_NUMBER_OF_CUTS:
        return np.zeros(0)
    a, b, left = grid[cells], grid[np.array(cells) + 1], [found[i] for i in cells]
    for _ in range(50):
        middle = 0.5 * (a + b)
        same = np.array([now == before for now, before in zip(patterns(middle), left, strict=True)])
        a, b = np.where(same, middle, a), np.where(same, b, middle)
    return 0.5 * (a + b)


def _run_lengths(row: np.ndarray) -> bytes:
    """The values of a row (m, k) without repetitions."""
    changes = np.append(True, (row[1:] != row[:-1]).any(1))
    return (row[changes] + 0.0).tobytes()
