"""Intervals of a line on which a condition holds, with the moments of a standard normal on each interval."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from .truncated_normal import truncated_normal

_BISECTIONS = 44


def places_on_line(count: int) -> np.ndarray:
    """Return ``count`` points on a line, in standard deviations: dense around the mean, up to 40."""
    return 4 * np.sinh(np.linspace(-1, 1, count) * np.arcsinh(10))


def first_places(flags: jax.Array, order: np.ndarray, most: int) -> tuple[jax.Array, jax.Array]:
    """Return the positions (most,) of set flags, those of least ``order`` first, and a mask of those that exist.

    Maxima are taken one after the other, because sorts and cumulative sums take many times as long.
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


def sorted_few(x: jax.Array) -> jax.Array:
    """Return the entries of a short vector in increasing order, by counting."""
    before = (x[None] < x[:, None]) | ((x[None] == x[:, None]) & np.tri(len(x), k=-1, dtype=bool))
    at = before.sum(1)[:, None] == np.arange(len(x))
    return jnp.where(at, x[:, None], -jnp.inf).max(0)


def member_intervals(
    member: Callable[[jax.Array], jax.Array], nodes: np.ndarray, most: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return log-mass, mean and variance, each (most + 1,), of N(0, 1) on the intervals where ``member(s)`` holds.

    The grid ``nodes`` and bisection give the ends; intervals on which ``member`` is false have log-mass -inf.
    """
    flags = jax.vmap(member)(jnp.asarray(nodes))
    central = np.minimum(np.abs(nodes[1:]), np.abs(nodes[:-1]))
    cell, is_edge = first_places(flags[1:] != flags[:-1], central, most)
    left = flags[cell]

    def halve(_: object, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
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
