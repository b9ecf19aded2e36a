"""Roots of phi(x) = y by steps of fixed number, so that all samples share one compiled program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .small_matrices import solve_positive

_RESIDUAL, _SAME = 2e-6, 1e-4


def monotone_root(function: Any, lower: Any, upper: Any, steps: int = 60) -> Any:
    """Return the root of an increasing function z -> (value, slope) in [lower, upper], by Newton steps and bisections.

    Every third step is a bisection, except the last four: where rounding gives values near the root the wrong sign, a
    late bisection would move far from the root. With at most twelve steps the bracket must be narrow already, and only
    steps that Newton would take out of the bracket are bisections.
    """
    bisecting = steps > 12

    def step(i: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        a, b, z = state
        value, slope = function(z)
        a, b = jnp.where(value <= 0, z, a), jnp.where(value >= 0, z, b)
        newton = z - value / jnp.where(slope == 0, 1.0, slope)
        newtons = (i % 3 != 2) | (i >= steps - 4) | (not bisecting)
        good = (newton >= a) & (newton <= b) & (slope != 0) & newtons
        return a, b, jnp.where(good, newton, 0.5 * (a + b))

    start = (lower, upper, 0.5 * (lower + upper))
    a, b, z = jax.lax.fori_loop(0, steps, step, start)
    return jnp.where(b - a < 1e-13 * (1 + jnp.abs(z)), z, jnp.clip(z, a, b))


def gauss_newton(phi: Any, y: Any, x: Any, steps: int, polish: int, longest: float = 2.0) -> tuple[Any, Any]:
    """Damped least squares (Levenberg-Marquardt) for phi(x) = y, then undamped steps that stay close.

    Returns the point and whether it is a root: the residual is small, up to the rounding of y to single precision, and
    so is the last undamped step, for near a fold of phi points that are no roots have small residuals too.
    """

    def normal_equations(x: Any) -> tuple[Any, Any]:
        J = jax.jacfwd(phi)(x)
        return J.T @ J, J.T @ (phi(x) - y)

    def damped(state: tuple[Any, Any, Any], _: Any) -> tuple[tuple[Any, Any, Any], None]:
        x, damping, best = state
        A, b = normal_equations(x)
        ridge = damping * jnp.diag(A) + 1e-13 * jnp.trace(A) + 1e-300  # in the scale of each coordinate
        step = -solve_positive(A + jnp.diag(ridge), b)
        step *= jnp.minimum(1.0, longest / (jnp.sqrt((step**2).sum()) + 1e-12))
        value = ((phi(x + step) - y) ** 2).sum()
        better = value < best
        new = jnp.where(better, 0.1 * damping, jnp.maximum(8 * damping, 1e-3))
        return (jnp.where(better, x + step, x), new, jnp.where(better, value, best)), None

    def undamped(x: Any, _: Any) -> tuple[Any, Any]:
        A, b = normal_equations(x)
        step = -solve_positive(A + (1e-15 * jnp.trace(A) + 1e-300) * jnp.eye(len(x)), b)
        size = jnp.abs(step).max()
        return jnp.where(size < 0.1, x + step, x), size

    state = (x, jnp.asarray(1e-3), ((phi(x) - y) ** 2).sum())
    x, _, _ = jax.lax.scan(damped, state, None, length=steps)[0]
    x, sizes = jax.lax.scan(undamped, x, None, length=polish)
    close = ((phi(x) - y) ** 2).sum() < (_RESIDUAL * (1 + jnp.sqrt((y**2).sum()))) ** 2
    return x, close & (sizes[-1] < _SAME)


def repeated(x: Any, ok: Any) -> Any:
    """Which of the points x (m, n) repeat an earlier one among those that are ``ok``."""
    distance = jnp.abs(x[:, None] - x[None]).max(-1)
    earlier = np.tri(len(x), k=-1, dtype=bool)
    return ((distance < _SAME * (1 + jnp.abs(x).max(-1)[:, None])) & ok[None] & earlier).any(1)


def projected(phi: Any, y: Any, x: Any, steps: int, longest: float = 2.0) -> tuple[Any, Any]:
    """The point near x with phi(x) = y that least-change Gauss-Newton steps lead to, and the squared residual there."""

    def step(state: tuple[Any, Any, Any], _: Any) -> tuple[tuple[Any, Any, Any], None]:
        x, damping, best = state
        J = jax.jacfwd(phi)(x)
        A = J @ J.T
        ridge = (damping + 1e-10) * jnp.trace(A) + 1e-300
        move = -J.T @ solve_positive(A + ridge * jnp.eye(len(A)), phi(x) - y)
        move *= jnp.minimum(1.0, longest / (jnp.sqrt((move**2).sum()) + 1e-12))
        value = ((phi(x + move) - y) ** 2).sum()
        better = value < best
        new = jnp.where(better, 0.1 * damping, jnp.maximum(8 * damping, 1e-3))
        return (jnp.where(better, x + move, x), new, jnp.where(better, value, best)), None

    start = (x, jnp.asarray(1e-4), ((phi(x) - y) ** 2).sum())
    (x, _, residual), _ = jax.lax.scan(step, start, None, length=steps)
    return x, residual
