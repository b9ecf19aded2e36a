"""Roots of phi(x) = y by a fixed number of steps, so that all samples share one compiled program."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from .small_matrices import least_squares, solve_positive

#: Largest relative residual of a root, and distance below which two roots are the same.
_RESIDUAL, _SAME = 2e-6, 1e-4
#: Least slope, relative to the size of outputs, at which their rounding does not move a root.
_KNOWN = 1e-12


def monotone_root(
    function: Callable[[jax.Array], tuple[jax.Array, ...]], lower: jax.Array, upper: jax.Array, steps: int = 60
) -> jax.Array:
    """Return the root of an increasing function z -> (value, slope) in [lower, upper], by Newton steps and bisections.

    Every third step is a bisection, except the last four: where rounding gives values near the root the wrong sign, a
    late bisection would move far from the root. With at most twelve steps the bracket must be narrow already, and only
    steps that Newton would take out of the bracket are bisections.
    """
    bisecting = steps > 12

    def step(i: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
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


def gauss_newton(
    phi: Callable[[jax.Array], jax.Array], y: jax.Array, x: jax.Array, steps: int, polish: int
) -> tuple[jax.Array, jax.Array]:
    """Return the point x after damped ``steps`` and undamped ``polish`` steps, and whether it is a root of phi(x) = y.

    See :func:`least_residual` and :func:`polished`.
    """
    return polished(phi, y, least_residual(phi, y, x, steps), polish)


def least_residual(
    phi: Callable[[jax.Array], jax.Array], y: jax.Array, x: jax.Array, steps: int, longest: float = 2.0
) -> jax.Array:
    """Return x (n,) after damped least-squares steps (Levenberg-Marquardt) of length <= ``longest`` for phi(x) = y."""

    def damped(
        state: tuple[jax.Array, jax.Array, jax.Array], _: object
    ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], None]:
        x, damping, best = state
        J = jax.jacfwd(phi)(x)
        A, b = J.T @ J, J.T @ (phi(x) - y)
        ridge = damping * jnp.diag(A) + 1e-13 * jnp.trace(A) + 1e-300  # in the scale of each coordinate
        step = -solve_positive(A + jnp.diag(ridge), b)
        step *= jnp.minimum(1.0, longest / (jnp.sqrt((step**2).sum()) + 1e-12))
        value = ((phi(x + step) - y) ** 2).sum()
        better = value < best
        new = jnp.where(better, 0.1 * damping, jnp.maximum(8 * damping, 1e-3))
        return (jnp.where(better, x + step, x), new, jnp.where(better, value, best)), None

    state = (x, jnp.asarray(1e-3), ((phi(x) - y) ** 2).sum())
    return jax.lax.scan(damped, state, None, length=steps)[0][0]


def polished(
    phi: Callable[[jax.Array], jax.Array], y: jax.Array, x: jax.Array, steps: int
) -> tuple[jax.Array, jax.Array]:
    """Return x (n,) after undamped least-squares steps shorter than 0.1, and whether it is a root of phi(x) = y.

    A root meets three conditions. Every residual is small relative to its own output, up to the rounding of y to single
    precision, or to the slope of that output. The last step is small: near a fold of phi, points that are no roots have
    small residuals too. Slopes are so large that rounding does not move the root. An output that saturates is small and
    has the same relative precision as others. Relative to a number of order one its residual would be small wherever it
    saturates more; such points would have nearly all the weight, because a root has more weight the smaller its slopes.
    """

    def undamped(x: jax.Array, _: object) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
        J = jax.jacfwd(phi)(x)
        scale = jnp.maximum(jnp.maximum(jnp.abs(y), jnp.sqrt((J**2).sum(1))), 1e-300)
        step, least = least_squares(J / scale[:, None], (y - phi(x)) / scale)
        size = jnp.abs(step).max()
        return jnp.where(size < 0.1, x + step, x), (size, least, scale)

    x, last = jax.lax.scan(undamped, x, None, length=steps)
    size, least, scale = (one[-1] for one in last)
    close = (jnp.abs(phi(x) - y) < _RESIDUAL * scale).all()
    return x, close & (size < _SAME) & (least > _KNOWN)


def repeated(x: jax.Array, ok: jax.Array) -> jax.Array:
    """Return a mask (m,) of the points x (m, n) that repeat an earlier point of the mask ``ok`` (m,)."""
    distance = jnp.abs(x[:, None] - x[None]).max(-1)
    earlier = np.tri(len(x), k=-1, dtype=bool)
    return ((distance < _SAME * (1 + jnp.abs(x).max(-1)[:, None])) & ok[None] & earlier).any(1)


def projected(
    phi: Callable[[jax.Array], jax.Array], y: jax.Array, x: jax.Array, steps: int, longest: float = 2.0
) -> tuple[jax.Array, jax.Array]:
    """Return the point near x with phi(x) = y, by least-change Gauss-Newton steps, and its squared residual."""

    def step(
        state: tuple[jax.Array, jax.Array, jax.Array], _: object
    ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], None]:
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
