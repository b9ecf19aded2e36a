"""Adaptive quadrature of exp(f) on intervals, with fixed shapes: samples with the widest and the narrowest peaks share
one compiled program.

A cell is examined at its ends and its middle. The vertex of the parabola through the three estimates how high f rises
inside, so that a peak a thousand times narrower than the cell draws the refinement to itself. In every round the cells
with the most left to resolve are halved; at the end those of largest mass carry a Gauss-Legendre rule each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_INITIAL, _ROUNDS, _HALVED, _KEPT, _ORDER = 12, 14, 6, 56, 8
#: f varies by no more than this over a cell on which the rule of order 8 is exact to about 1e-6.
_RESOLVED = 3.0
#: Mass below exp(-this) of the largest does not count.
_NEGLIGIBLE = 20.0
#: Number of nodes that :func:`line_nodes` returns.
NODES = _KEPT * _ORDER


class Intervals(NamedTuple):
    """Intervals: centre, half-width, branch, and f at the left end, in the middle and at the right end of each."""

    centre: Any
    half: Any
    branch: Any
    left: Any
    middle: Any
    right: Any


def line_nodes(f: Callable[[Any, Any], Any], low: Any, high: Any, branches: int) -> tuple[Any, Any, Any]:
    """Nodes x_k, branches b_k and log-weights w_k: sum_b int exp(f(x, b)) h(x, b) dx = sum_k exp(w_k) h(x_k, b_k).

    Parameters
    ----------
    f : callable
        Log-density of a number x on branch b (an integer).
    low, high : numbers
        Ends of the interval, the same for all branches.
    branches : int
    """
    cells = _refined(jax.vmap(f), low, high, branches)
    # Ordering in single precision is enough, here and below, and much faster.
    _, best = jax.lax.top_k((_height(cells) + jnp.log(cells.half)).astype(jnp.float32), _KEPT)
    nodes, weights = np.polynomial.legendre.leggauss(_ORDER)
    centre, half = cells.centre[best, None], cells.half[best, None]
    x = (centre + half * nodes).ravel()
    branch = jnp.repeat(cells.branch[best], _ORDER)
    log_weights = (jnp.log(half) + np.log(weights)).ravel() + jax.vmap(f)(x, branch)
    return x, branch, log_weights


def _refined(f: Callable[[Any, Any], Any], low: Any, high: Any, branches: int) -> Intervals:
    width = (high - low) / _INITIAL
    branch = np.repeat(np.arange(branches), _INITIAL)
    places = [jnp.tile(low + width * (np.arange(_INITIAL) + shift), branches) for shift in (0.0, 0.5, 1.0)]
    half = jnp.full(len(branch), 0.5 * width)
    first = Intervals(places[1], half, jnp.asarray(branch), *(f(place, branch) for place in places))
    # Places of cells that are still to come have no width, hence no mass.
    room = _ROUNDS * _HALVED
    nothing = jnp.full(room, -jnp.inf)
    empty = Intervals(jnp.zeros(room), jnp.zeros(room), jnp.zeros(room, first.branch.dtype), nothing, nothing, nothing)
    cells = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), first, empty)

    def more(state: tuple[Any, Intervals, Any]) -> Any:
        return (state[0] < _ROUNDS) & (state[2] > -jnp.inf).any()

    def halve(state: tuple[Any, Intervals, Any]) -> tuple[Any, Intervals, Any]:
        number, cells, urgency = state
        _, chosen = jax.lax.top_k(urgency, _HALVED)
        cells = _halved(f, cells, chosen, urgency[chosen] > -jnp.inf, len(branch) + number * _HALVED)
        return number + 1, cells, _urgency(cells)

    return jax.lax.while_loop(more, halve, (0, cells, _urgency(cells)))[1]


def _halved(f: Callable[[Any, Any], Any], cells: Intervals, chosen: Any, worth: Any, place: Any) -> Intervals:
    """Put the left half of each chosen cell in its place and the right half at the end, where it is ``worth`` it."""
    old = jax.tree.map(lambda x: x[chosen], cells)
    half = 0.5 * old.half
    first, second = f(old.centre - half, old.branch), f(old.centre + half, old.branch)
    left = Intervals(old.centre - half, half, old.branch, old.left, first, old.middle)
    right = Intervals(old.centre + half, half, old.branch, old.middle, second, old.right)

    def placed(all_: Any, x: Any, y: Any) -> Any:
        kept = all_.at[chosen].set(jnp.where(worth, x, all_[chosen]))
        added = jnp.where(worth, y, jax.lax.dynamic_slice_in_dim(all_, place, _HALVED))
        return jax.lax.dynamic_update_slice_in_dim(kept, added, place, 0)

    return jax.tree.map(placed, cells, left, right)


def _height(cells: Intervals) -> Any:
    """How high f rises in a cell, by the parabola through its three values."""
    bend, slope = 0.5 * (cells.left + cells.right) - cells.middle, 0.5 * (cells.right - cells.left)
    inside = (bend < 0) & (abs(slope) < -2 * bend)
    vertex = cells.middle - slope**2 / (4 * jnp.where(inside, bend, -1.0))
    ends = jnp.maximum(cells.middle, jnp.maximum(cells.left, cells.right))
    return jnp.maximum(ends, jnp.where(inside, vertex, ends))


def _urgency(cells: Intervals) -> Any:
    """Log-mass of the cells that are to be halved; minus infinity for those that are resolved or do not count."""
    height = _height(cells)
    variation = height - jnp.minimum(cells.middle, jnp.minimum(cells.left, cells.right))
    mass = height + jnp.log(cells.half)
    return jnp.where((variation > _RESOLVED) & (mass > mass.max() - _NEGLIGIBLE), mass, -jnp.inf).astype(jnp.float32)
