"""Moments of a standard normal variable in an interval, also far out in the tail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    import jax

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)
#: The interval is cut where the log density is this much below its maximum in the interval.
_CUT = 38.0


def truncated_normal(lower: jax.Array, upper: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return log-mass, mean and variance of N(0, 1) in [lower, upper] (broadcast, infinities allowed).

    The method is Gauss-Legendre quadrature around the most likely point, because differences of distribution functions
    lose all digits in the tail. An empty interval has log-mass -inf, mean at its end and variance zero. Relative errors
    are below 1e-13.
    """
    nearest = jnp.clip(0.0, lower, upper)
    reach = jnp.sqrt(nearest**2 + 2 * _CUT)
    a, b = jnp.maximum(lower, -reach), jnp.minimum(upper, reach)
    half = jnp.maximum(0.5 * (b - a), 0.0)
    offset = 0.5 * (a + b) - nearest
    d = offset[..., None] + half[..., None] * _NODES  # distance from the most likely point
    density = _WEIGHTS * jnp.exp(-0.5 * d**2 - d * nearest[..., None])
    mass = density.sum(-1)
    safe = jnp.where(mass > 0, mass, 1.0)
    mean = (density * d).sum(-1) / safe
    variance = (density * (d - mean[..., None]) ** 2).sum(-1) / safe
    log_mass = jnp.log(mass * half) - 0.5 * nearest**2 - 0.5 * np.log(2 * np.pi)
    return jnp.where(half > 0, log_mass, -jnp.inf), nearest + mean, variance
