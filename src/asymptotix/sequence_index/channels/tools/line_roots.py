"""Roots of a function along a line, between given places."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from .line_intervals import first_places
from .root_finding import monotone_root

#: Most roots along a line, most extrema that may hide two more roots, and steps towards each of them.
_MOST_ROOTS, _MOST_EXTREMA, _STEPS = 6, 2, 18
#: Most changes of branch along a line, and bisections of each, to the last digit.
_MOST_CHANGES, _HALVINGS = 4, 50


def line_roots(
    residual: Callable[[jax.Array], jax.Array],
    line: jax.Array,
    affine: bool,
    branch: Callable[[jax.Array], jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return roots of a function of one number between increasing points ``line``, and a mask of those that exist.

    A cell in which the slope changes its sign and the function does not is split at its extremum, because two roots may
    hide in it. If a line has more roots than there is room for, the roots nearest to its middle are found.

    Parameters
    ----------
    residual : callable
        The function.
    line : array (m,)
    affine : bool
        Whether the function is affine.
    branch : callable, optional
        Returns numbers that identify the branch of the function at a point. Where the branch changes the function may
        jump; a change of its sign there is no root.
    """
    if affine:
        value, slope = jax.value_and_grad(residual)(0.0)
        s = -value / jnp.where(slope == 0, 1.0, slope)
        return s[None], (slope != 0)[None]
    line, whole = (line, True) if branch is None else _with_changes(branch, line)
    value, slope = jax.vmap(jax.value_and_grad(residual))(line)
    central = np.abs(np.arange(len(line) - 1) - 0.5 * len(line))
    cell, found = first_places(whole & (value[1:] * value[:-1] <= 0), central, _MOST_ROOTS)
    turning = (slope[1:] * slope[:-1] < 0) & (value[1:] * value[:-1] > 0) & (value[:-1] * slope[:-1] < 0) & whole
    corner, turns = first_places(turning, central, _MOST_EXTREMA)
    a, b = line[corner], line[corner + 1]
    extremum = jax.vmap(lambda a, b: root_between(jax.grad(residual), a, b, _STEPS))(a, b)
    hidden = turns & (jax.vmap(residual)(extremum) * value[corner] < 0)
    lower, upper = jnp.concatenate([line[cell], a, extremum]), jnp.concatenate([line[cell + 1], extremum, b])
    roots = jax.vmap(lambda a, b: root_between(residual, a, b, _STEPS))(lower, upper)
    return roots, jnp.concatenate([found, hidden, hidden])


def _with_changes(branch: Callable[[jax.Array], jax.Array], line: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the points of a line and both sides of changes of branch, sorted, and a mask of cells with one branch."""

    def halve(_: object, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, b = ends
        middle = 0.5 * (a + b)
        same = (jax.vmap(branch)(middle) == before).all(1)
        return jnp.where(same, middle, a), jnp.where(same, b, middle)

    branches = jax.vmap(branch)(line)
    central = np.abs(np.arange(len(line) - 1) - 0.5 * len(line))
    cell, _ = first_places((branches[1:] != branches[:-1]).any(1), central, _MOST_CHANGES)
    before = branches[cell]
    a, b = jax.lax.fori_loop(0, _HALVINGS, halve, (line[cell], line[cell + 1]))
    line = jnp.sort(jnp.concatenate([line, a, b]))
    branches = jax.vmap(branch)(line)
    return line, (branches[1:] == branches[:-1]).all(1)


def root_between(function: Callable[[jax.Array], jax.Array], a: jax.Array, b: jax.Array, steps: int) -> jax.Array:
    """Return a root in [a, b] of a function with different signs at a and b."""
    sign = jnp.sign(function(b) - function(a))

    def increasing(s: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, slope = jax.jvp(function, (s,), (jnp.ones_like(s),))
        return sign * value, sign * slope

    return monotone_root(increasing, a, b, steps)
