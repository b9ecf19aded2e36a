"""Proximal map of any twice differentiable loss, by Newton's method in JAX for a batch of samples at once.

Used for the losses that have no compiled kernel. Gradient and Hessian come from automatic differentiation, and
everything is computed in double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics import interrupts
from ...numerics.precision import double_precision
from .newton_limits import ARMIJO, BENT, FLATTEST, LONGEST, MOST_HALVINGS, MOST_STEPS, RELATIVE, SINGULAR

_PART = 2**12
"""Samples of one call of the compiled program."""

_ROUNDING = 1e-15
"""Absolute error allowed for in the value of a loss: unlike a sum of squares it may be a difference of large terms."""


class BatchedNewton:
    """Minimiser of |r - z|^2/(2 Sigma) + loss(y, r).

    ``loss`` takes one sample and returns a scalar; ``length`` measures a step in r in units of the distance over which
    the loss may change its shape.
    """

    def __init__(
        self, loss: Callable[[jax.Array, jax.Array], jax.Array], length: Callable[[jax.Array], jax.Array]
    ) -> None:
        self._loss, self._length = loss, length
        self._descend = jax.jit(jax.vmap(self._descend_one, in_axes=(0, 0, 0, None)))
        self._derivative = jax.jit(jax.vmap(self._derivative_one, in_axes=(0, 0, None)))

    @double_precision()
    def descend(self, y: np.ndarray, z: np.ndarray, start: np.ndarray, Sigma: float) -> tuple[np.ndarray, np.ndarray]:
        """Minimisers reached from the starting points (n, N), and the objective there (n,)."""
        # In parts of one size: compiled once, and interrupted between two of them.
        size = _PART if len(z) % _PART == 0 else len(z)
        parts = []
        for first in range(0, len(z), size):
            interrupts.check()
            part = slice(first, first + size)
            parts.append(self._descend(y[part], z[part], start[part], Sigma))
        return np.concatenate([p for p, _ in parts]), np.concatenate([value for _, value in parts])

    @double_precision()
    def derivative(self, y: np.ndarray, p: np.ndarray, Sigma: float) -> tuple[np.ndarray, np.ndarray]:
        """Trace of dp/dz and ||(dp/dz - 1)/Sigma||_F^2, each (n,)."""
        trace, response = self._derivative(y, p, Sigma)
        return np.asarray(trace), np.asarray(response)

    def _derivative_one(self, y: Any, p: Any, Sigma: Any) -> tuple[jax.Array, jax.Array]:
        curvature = jnp.linalg.eigvalsh(jax.hessian(self._loss, argnums=1)(y, p))
        damped = jnp.maximum(1 + Sigma * curvature, SINGULAR)
        return jnp.sum(1 / damped), jnp.sum((curvature / damped) ** 2)

    def _descend_one(self, y: Any, z: Any, start: Any, Sigma: Any) -> tuple[jax.Array, jax.Array]:
        def objective(r: jax.Array) -> jax.Array:
            return jnp.sum((r - z) ** 2) / (2 * Sigma) + self._loss(y, r)

        def iterate(state: tuple) -> tuple:
            r, value, _, count = state
            g = jax.grad(objective)(r)
            newton, downhill, bend = _steps(jax.hessian(objective)(r), g, 1 / Sigma)
            gain = g @ newton
            unresolved = ~(gain > RELATIVE * jnp.abs(value) + _ROUNDING)
            saddle = unresolved & (bend > BENT / Sigma)
            # a last step is taken unseen where the value no longer resolves the gain: it squares the error
            last = unresolved & ~saddle
            step, gain, bend = jnp.where(saddle, downhill, newton), jnp.where(saddle, 0.0, gain), saddle * bend
            longest = jnp.where(last, 1.0, jnp.minimum(1.0, LONGEST / self._length(step)))
            promised = longest * gain, longest**2 * bend
            size = _backtrack(objective, r, value, longest * step, promised, last) * longest
            r = r - size * step
            return r, objective(r), last | (size == 0), count + 1

        def unfinished(state: tuple) -> jax.Array:
            return ~state[2] & (state[3] < MOST_STEPS)

        p, value, *_ = jax.lax.while_loop(unfinished, iterate, (start, objective(start), jnp.array(False), 0))
        return p, value


def _steps(H: jax.Array, g: jax.Array, precision: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """|H|^{-1} g, which is Newton's step where H is positive definite and leads away from saddles elsewhere.

    And the direction along which H is least, with how far below zero it is there: the way off a saddle itself.
    """
    curvatures, directions = jnp.linalg.eigh(H)
    newton = directions @ ((directions.T @ g) / jnp.maximum(jnp.abs(curvatures), FLATTEST * precision))
    return newton, directions[:, 0], -curvatures[0]


def _backtrack(
    objective: Callable,
    r: jax.Array,
    value: jax.Array,
    step: jax.Array,
    promised: tuple[jax.Array, jax.Array],
    accept: jax.Array,
) -> jax.Array:
    """Largest power of 1/2 that brings its share of what slope and bend promise; 0 if there is none."""
    gain, bend = promised

    def too_long(state: tuple) -> jax.Array:
        size, halvings = state
        enough = objective(r - size * step) <= value - ARMIJO * size * (gain + 0.5 * size * bend)
        return ~(enough | accept) & (halvings < MOST_HALVINGS)

    size, halvings = jax.lax.while_loop(too_long, lambda state: (0.5 * state[0], state[1] + 1), (jnp.ones(()), 0))
    return jnp.where(halvings < MOST_HALVINGS, size, 0.0)
