"""Adaptive quadrature of exp(f) on intervals, with arrays of fixed shape: one compiled program serves all samples.

A cell is examined at its ends and its middle. The vertex of the parabola through the three values estimates how high f
rises inside, so that a peak a thousand times narrower than the cell attracts the refinement. In every round the
unresolved cells of largest mass are halved; at the end each of the cells of largest mass has a Gauss-Legendre rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

#: Initial cells of a branch, rounds, cells halved per round, cells that get a rule, and nodes of the rule.
_INITIAL, _ROUNDS, _HALVED, _KEPT, _ORDER = 12, 14, 6, 56, 8
#: Largest variation of f over a resolved cell: the rule of order 8 is then exact to about 1e-6.
_RESOLVED = 3.0
#: Cells of mass below exp(-this) of the largest are not halved.
_NEGLIGIBLE = 20.0
#: Number of nodes that :func:`line_nodes` returns.
NODES = _KEPT * _ORDER


class Intervals(NamedTuple):
    """Intervals: centre, half-width, branch, and f at the left end, in the middle and at the right end."""

    centre: jax.Array
    half: jax.Array
    branch: jax.Array
    left: jax.Array
    middle: jax.Array
    right: jax.Array


def line_nodes(
    f: Callable[[jax.Array, jax.Array], jax.Array], low: jax.Array | float, high: jax.Array | float, branches: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return nodes x_k, branches b_k, log-weights w_k: sum_b int exp(f(x, b)) h(x, b) dx = sum_k exp(w_k) h(x_k, b_k).

    Parameters
    ----------
    f : callable
        Log-density of a number x on branch b (an integer).
    low, high : numbers
        Ends of the interval, the same for all branches.
    branches : int
    """
    cells = _refined(jax.vmap(f), low, high, branches)
    # Here and below an ordering in single precision is enough, and much faster.
    _, best = jax.lax.top_k((_height(cells) + jnp.log(cells.half)).astype(jnp.float32), _KEPT)
    nodes, weights = np.polynomial.legendre.leggauss(_ORDER)
    centre, half = cells.centre[best, None], cells.half[best, None]
    x = (centre + half * nodes).ravel()
    branch = jnp.repeat(cells.branch[best], _ORDER)
    log_weights = (jnp.log(half) + np.log(weights)).ravel() + jax.vmap(f)(x, branch)
    return x, branch, log_weights


def _refined(
    f: Callable[[jax.Array, Any], jax.Array], low: jax.Array | float, high: jax.Array | float, branches: int
) -> Intervals:
    width = (high - low) / _INITIAL
    branch = np.repeat(np.arange(branches), _INITIAL)
    places = [jnp.tile(low + width * (np.arange(_INITIAL) + shift), branches) for shift in (0.0, 0.5, 1.0)]
    half = jnp.full(len(branch), 0.5 * width)
    first = Intervals(places[1], half, jnp.asarray(branch), *(f(place, branch) for place in places))
    # Places for later cells have no width, hence no mass.
    room = _ROUNDS * _HALVED
    nothing = jnp.full(room, -jnp.inf)
    empty = Intervals(jnp.zeros(room), jnp.zeros(room), jnp.zeros(room, first.branch.dtype), nothing, nothing, nothing)
    cells = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), first, empty)

    def more(state: tuple[int | jax.Array, Intervals, jax.Array]) -> jax.Array:
        return (state[0] < _ROUNDS) & (state[2] > -jnp.inf).any()

    def halve(state: tuple[int | jax.Array, Intervals, jax.Array]) -> tuple[int | jax.Array, Intervals, jax.Array]:
        number, cells, urgency = state
        _, chosen = jax.lax.top_k(urgency, _HALVED)
        cells = _halved(f, cells, chosen, urgency[chosen] > -jnp.inf, len(branch) + number * _HALVED)
        return number + 1, cells, _urgency(cells)

    return jax.lax.while_loop(more, halve, (0, cells, _urgency(cells)))[1]


def _halved(
    f: Callable[[jax.Array, Any], jax.Array],
    cells: Intervals,
    chosen: jax.Array,
    worth: jax.Array,
    place: int | jax.Array,
) -> Intervals:
    """Return the cells with the ``chosen`` ones (positions) halved: left halves stay there, right ones go to ``place``.

    Chosen cells that are not ``worth`` it (a mask) stay as they are.
    """
    old = jax.tree.map(lambda x: x[chosen], cells)
    half = 0.5 * old.half
    first, second = f(old.centre - half, old.branch), f(old.centre + half, old.branch)
    left = Intervals(old.centre - half, half, old.branch, old.left, first, old.middle)
    right = Intervals(old.centre + half, half, old.branch, old.middle, second, old.right)

    def placed(all_: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        kept = all_.at[chosen].set(jnp.where(worth, x, all_[chosen]))
        added = jnp.where(worth, y, jax.lax.dynamic_slice_in_dim(all_, place, _HALVED))
        return jax.lax.dynamic_update_slice_in_dim(kept, added, place, 0)

    return jax.tree.map(placed, cells, left, right)


def _height(cells: Intervals) -> jax.Array:
    """Return the largest value of f in every cell, estimated by the parabola through its three values."""
    bend, slope = 0.5 * (cells.left + cells.right) - cells.middle, 0.5 * (cells.right - cells.left)
    inside = (bend < 0) & (abs(slope) < -2 * bend)
    vertex = cells.middle - slope**2 / (4 * jnp.where(inside, bend, -1.0))
    ends = jnp.maximum(cells.middle, jnp.maximum(cells.left, cells.right))
    return jnp.maximum(ends, jnp.where(inside, vertex, ends))


def _urgency(cells: Intervals) -> jax.Array:
    """Return the log-mass of every cell, -inf for cells that need no halving: resolved, or of negligible mass."""
    height = _height(cells)
    variation = height - jnp.minimum(cells.middle, jnp.minimum(cells.left, cells.right))
    mass = height + jnp.log(cells.half)
    return jnp.where((variation > _RESOLVED) & (mass > mass.max() - _NEGLIGIBLE), mass, -jnp.inf).astype(jnp.float32)
