"""Roots of a function along a line, between given places."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .line_intervals import first_places
from .root_finding import monotone_root


def line_roots(
    residual: Any, line: Any, affine: bool, most: tuple[int, int] = (6, 2), steps: int = 18
) -> tuple[Any, Any, Any]:
    """Roots of a function of one variable between the increasing points ``line``, which exist, and whether that is all.

    A cell in which the slope changes its sign and the function does not is split at its extremum: two roots may hide
    in it. ``most`` bounds the numbers of roots and of such extrema, those in the middle of the line first.
    """
    if affine:
        value, slope = jax.value_and_grad(residual)(0.0)
        s = -value / jnp.where(slope == 0, 1.0, slope)
        return s[None], (slope != 0)[None], True
    value, slope = jax.vmap(jax.value_and_grad(residual))(line)
    central = np.abs(np.arange(len(line) - 1) - 0.5 * len(line))
    cell, found = first_places(value[1:] * value[:-1] <= 0, central, most[0])
    turning = (slope[1:] * slope[:-1] < 0) & (value[1:] * value[:-1] > 0) & (value[:-1] * slope[:-1] < 0)
    corner, turns = first_places(turning, central, most[1])
    a, b = line[corner], line[corner + 1]
    extremum = _between(jax.grad(residual), a, b, steps)
    hidden = turns & (jax.vmap(residual)(extremum) * value[corner] < 0)
    lower, upper = jnp.concatenate([line[cell], a, extremum]), jnp.concatenate([line[cell + 1], extremum, b])
    complete = ((value[1:] * value[:-1] <= 0).sum() <= most[0]) & (turning.sum() <= most[1])
    return _between(residual, lower, upper, steps), jnp.concatenate([found, hidden, hidden]), complete


def _between(function: Any, lower: Any, upper: Any, steps: int) -> Any:
    """One root in each of the intervals, given that the function has different signs at their ends."""

    def one(a: Any, b: Any) -> Any:
        sign = jnp.sign(function(b) - function(a))
        return monotone_root(lambda s: tuple(sign * v for v in jax.value_and_grad(function)(s)), a, b, steps)

    return jax.vmap(one)(lower, upper)
