"""Proximal map of any twice differentiable loss, by Newton's method in JAX for a batch of samples at once.

This module serves losses that have no compiled kernel. Gradient and Hessian come from automatic differentiation, and
everything is computed in double precision. Samples are processed in lanes: when a descent has ended, the next sample
takes its lane, so that no sample waits for the slowest one.

LAPACK is not used, because it is slow for small matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ...numerics.precision import double_precision
from ...numerics.programs.compiled import compiled
from ...numerics.threads import in_threads
from .newton_limits import ARMIJO, BENT, FLATTEST, LONGEST, MOST_HALVINGS, MOST_SHIFTS, MOST_STEPS, RELATIVE, SINGULAR

PART = 2**10
"""Number of samples in a call of the compiled program. Smaller batches are padded, so that it is compiled once."""

_LANES = 2**8
_FRESH = -1  # value of ``halvings`` at a start, which has no earlier point to be compared with

_ROUNDING = 1e-15
"""Absolute rounding error of a loss, which unlike a sum of squares may be a difference of large terms."""


class _Lanes(NamedTuple):
    """Descents that are made at the same time, one per lane: the first axis of every array."""

    sample: jax.Array  # index of the sample, -1 where none is left
    y: jax.Array  # output
    z: jax.Array  # field
    r: jax.Array  # current point
    value: jax.Array  # objective at r
    step: jax.Array
    size: jax.Array  # share of the step that is tried
    gain: jax.Array  # minus the slope of the objective along the whole step
    bend: jax.Array  # minus its curvature along the whole step, at a saddle; else zero
    steps: jax.Array  # number of steps made
    halvings: jax.Array  # halvings of the last step
    trial: jax.Array  # point to be evaluated next


class _Ends(NamedTuple):
    """Minimisers found so far."""

    p: jax.Array  # minimiser of each sample
    value: jax.Array  # objective there
    taken: jax.Array  # number of samples that have been put into lanes
    found: jax.Array  # number of minimisers found


class BatchedNewton:
    """Minimiser of |r - z|^2/(2 Sigma) + loss(y, r) over r (N,), for many samples (y, z).

    ``loss`` takes one sample and returns a scalar; ``length`` returns the size of a step in r (N,), in units of the
    distance over which the loss may change its shape.
    """

    def __init__(
        self, loss: Callable[[jax.Array, jax.Array], jax.Array], length: Callable[[jax.Array], jax.Array]
    ) -> None:
        self._loss, self._length = loss, length
        self._descend = compiled(self._descend_part)
        self._derivative = compiled(self._derivative_part)

    def descend(self, y: np.ndarray, z: np.ndarray, start: np.ndarray, Sigma: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the minimisers (n, N) reached from ``start`` (n, N) for z (n, N), and the objective there (n,)."""
        p, value = in_parts(lambda count, *part: self._descend(*part, count, Sigma), y, z, start)
        return p, value

    def derivative(self, y: np.ndarray, p: np.ndarray, Sigma: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the trace of dp/dz and ||(dp/dz - 1)/Sigma||_F^2 at the minimisers p (n, N), each (n,)."""
        trace, response = in_parts(lambda _, *part: self._derivative(*part, Sigma), y, p)
        return trace, response

    def _derivative_part(self, y: jax.Array, p: jax.Array, Sigma: jax.Array) -> tuple[jax.Array, jax.Array]:
        H = jax.vmap(jax.hessian(self._loss, argnums=1))(y, p)
        inverse, _ = _inverse_shifted(jnp.eye(p.shape[1]) + Sigma * H, 1.0)
        response = jnp.sum(inverse[:, :, :, None] * H[:, None], axis=2)
        return p.shape[1] - Sigma * jnp.trace(response, axis1=1, axis2=2), jnp.sum(response**2, axis=(1, 2))

    def _descend_part(
        self, y: jax.Array, z: jax.Array, start: jax.Array, count: jax.Array, Sigma: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return minimisers and objectives of the first ``count`` samples; the other samples only fill the arrays."""
        lane, none = jnp.arange(_LANES), jnp.zeros(_LANES)
        first_r = start[:_LANES]
        lanes = _Lanes(
            sample=jnp.where(lane < count, lane, -1), y=y[:_LANES], z=z[:_LANES], r=first_r, value=none, step=first_r,
            size=none, gain=none, bend=none, steps=0 * lane, halvings=0 * lane + _FRESH, trial=first_r,
        )  # fmt: skip
        ends = _Ends(jnp.zeros_like(z), jnp.zeros(len(z)), jnp.minimum(count, _LANES), jnp.asarray(0))
        samples = y, z, start, count

        def look(state: tuple[_Lanes, _Ends]) -> tuple[_Lanes, _Ends]:
            lanes, ended = self._look(state[0], 1 / Sigma)
            return _refilled(lanes, state[1], samples, ended)

        _, ends = jax.lax.while_loop(lambda state: state[1].found < count, look, (lanes, ends))
        return ends.p, ends.value

    def _look(self, lanes: _Lanes, precision: jax.Array) -> tuple[_Lanes, jax.Array]:
        """Evaluate all lanes at their trial points; return them with their next steps, and which ended (lanes,)."""

        def objective(y: jax.Array, z: jax.Array, r: jax.Array) -> jax.Array:
            return 0.5 * precision * jnp.sum((r - z) ** 2) + self._loss(y, r)

        at = lanes.y, lanes.z, lanes.trial
        lower, g = jax.vmap(jax.value_and_grad(objective, argnums=2))(*at)
        H = jax.vmap(jax.hessian(objective, argnums=2))(*at)
        promised = lanes.size * (lanes.gain + 0.5 * lanes.size * lanes.bend)
        moved = (lanes.halvings == _FRESH) | (lower <= lanes.value - ARMIJO * promised)
        inverse, lacking = _inverse_shifted(H, precision)
        direction = jnp.sum(inverse * g[:, None, :], axis=2)
        gain = jnp.sum(g * direction, axis=1)
        unresolved = moved & ~(gain > RELATIVE * jnp.abs(lower) + _ROUNDING)
        downhill, bend = _ways_off_saddles(H, inverse, unresolved & (lacking > 0))
        saddle = bend > BENT * precision
        # where the value no longer resolves the gain, a last step is taken unchecked: it squares the error
        last = unresolved & ~saddle
        step = _where(moved, _where(saddle, downhill, direction), lanes.step)
        longest = jnp.minimum(1.0, LONGEST / jax.vmap(self._length)(step))
        lanes = lanes._replace(
            r=_where(last, lanes.trial - direction, _where(moved, lanes.trial, lanes.r)),
            value=jnp.where(last, lower - 0.5 * gain, jnp.where(moved, lower, lanes.value)),
            step=step,
            size=jnp.where(moved, longest, 0.5 * lanes.size),
            gain=jnp.where(moved, jnp.where(saddle, 0.0, gain), lanes.gain),
            bend=jnp.where(moved, jnp.where(saddle, bend, 0.0), lanes.bend),
            steps=lanes.steps + moved,
            halvings=jnp.where(moved, 0, lanes.halvings + 1),
        )
        return lanes, last | (lanes.halvings >= MOST_HALVINGS) | (lanes.steps > MOST_STEPS)


def in_parts(kernel: Callable[..., Iterable[ArrayLike]], *samples: np.ndarray) -> list[np.ndarray]:
    """Return the outputs, each (n, ...), of kernel(count, *part) over all n samples, PART at a time in threads.

    The last part is padded; ``count`` is the number of its samples without padding. Computes in double precision.
    """

    @double_precision()
    def on(first: int) -> list[np.ndarray]:
        parts = [x[first : first + PART] for x in samples]
        count = len(parts[0])
        filled = [np.concatenate([x, np.repeat(x[:1], PART - count, axis=0)]) if count < PART else x for x in parts]
        return [np.asarray(made)[:count] for made in kernel(count, *filled)]

    made = in_threads(on, range(0, len(samples[0]), PART))
    return [np.concatenate(column) for column in zip(*made, strict=True)]


def _refilled(lanes: _Lanes, ends: _Ends, samples: tuple, ended: jax.Array) -> tuple[_Lanes, _Ends]:
    """Store the minimisers of lanes that ``ended`` in ``ends``, give them the next samples, and return both.

    ``samples`` is (y, z, start, count). The other lanes get their next trial points.
    """
    y, z, start, count = samples
    out = jnp.where(ended & (lanes.sample >= 0), lanes.sample, len(z))  # beyond the end: dropped
    following = ends.taken + jnp.cumsum(ended) - 1
    fresh = ended & (following < count)
    at = jnp.where(fresh, following, 0)
    ends = _Ends(
        ends.p.at[out].set(lanes.r, mode="drop"),
        ends.value.at[out].set(lanes.value, mode="drop"),
        ends.taken + jnp.sum(fresh),
        ends.found + jnp.sum(out < len(z)),
    )
    lanes = lanes._replace(
        sample=jnp.where(ended, jnp.where(fresh, following, -1), lanes.sample),
        y=_where(fresh, y[at], lanes.y),
        z=_where(fresh, z[at], lanes.z),
        trial=_where(fresh, start[at], lanes.r - lanes.size[:, None] * lanes.step),
        steps=jnp.where(ended, 0, lanes.steps),
        halvings=jnp.where(ended, _FRESH, lanes.halvings),
    )
    return lanes, ends


def _where(chosen: jax.Array, yes: jax.Array, no: jax.Array) -> jax.Array:
    """Return, lane by lane, ``yes`` where ``chosen`` (lanes,) is True and ``no`` elsewhere."""
    return jnp.where(jnp.reshape(chosen, (-1,) + (1,) * (yes.ndim - 1)), yes, no)


def _inverse_shifted(M: jax.Array, scale: float | jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return, for M (n, N, N), the inverse of M plus a shift that makes it positive definite, and this shift (n,).

    The shift is zero where M is positive definite; the least other shift is FLATTEST times ``scale``.
    """
    unit = jnp.eye(M.shape[1])

    def shifted(state: tuple) -> tuple:
        shift, _, positive, count = state
        more = jnp.where(count > 0, FLATTEST * scale * 4.0 ** (count - 1), 0.0)
        shift = jnp.where(positive, shift, shift + more)
        return shift, *_inverse(M + shift[:, None, None] * unit), count + 1

    start = jnp.zeros(len(M)), M, jnp.zeros(len(M), bool), 0
    shift, inverse, *_ = jax.lax.while_loop(lambda state: jnp.any(~state[2]) & (state[3] < MOST_SHIFTS), shifted, start)
    return inverse, shift


def _inverse(M: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return M^{-1} (n, N, N), by elimination in place, and whether M is safely positive definite (n,)."""
    n = M.shape[1]

    def eliminate(k: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        rows, positive = state
        pivot = rows[:, k, k]
        positive &= pivot > SINGULAR * M[:, k, k]
        # The column of the inverse replaces the column of the pivot.
        others = jnp.arange(n) != k
        column = jnp.where(others, rows[:, :, k], -1.0)
        row = jnp.where(others, rows[:, k], 1.0) / jnp.where(pivot > 0, pivot, 1.0)[:, None]
        return jnp.where(others[:, None] & others, rows, 0.0) - column[:, :, None] * row[:, None], positive

    return jax.lax.fori_loop(0, n, eliminate, (M, jnp.ones(len(M), bool)))


def _ways_off_saddles(H: jax.Array, inverse: jax.Array, wanted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the directions of lowest curvature of H (n, N) and minus this curvature (n,), zero unless ``wanted``.

    ``inverse`` is the inverse of H plus a shift that makes it positive definite: it is largest along this direction.
    """
    n = H.shape[1]

    def least() -> tuple[jax.Array, jax.Array]:
        def turned(_: jax.Array, v: jax.Array) -> jax.Array:
            v = jnp.sum(inverse * v[:, None, :], axis=2)
            return v / jnp.sqrt(jnp.sum(v**2, axis=1, keepdims=True))

        first = jnp.broadcast_to(1.0 / (1 + jnp.arange(n)), H.shape[:2])  # a vector without symmetry
        v = jax.lax.fori_loop(0, MOST_SHIFTS, turned, first)
        return v, jnp.where(wanted, -jnp.sum(v[:, :, None] * H * v[:, None, :], axis=(1, 2)), 0.0)

    return jax.lax.cond(jnp.any(wanted), least, lambda: (jnp.zeros(H.shape[:2]), jnp.zeros(len(H))))
