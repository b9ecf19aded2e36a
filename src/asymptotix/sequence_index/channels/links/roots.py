"""Links of full rank without noise: the output fixes the indices up to a finite set of roots."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from ...models.link import MultiIndex, SequenceIndex
from ..tools.small_matrices import half_log_det, solve_positive
from .link_channel import LinkChannel, Moments, coloured, weighted_moments

_STARTS, _STEPS, _POLISH = 48, 20, 3
#: The same for samples of which the first search finds no root, as happens near folds of the link, where undamped
#: steps halve the distance only.
_MORE_STARTS, _MORE_STEPS, _MORE_POLISH = 384, 80, 40
_RESIDUAL, _SAME = 2e-6, 1e-4


class RootChannel(LinkChannel):
    """A sum over the roots of g(z) = y in R^n, of weight N(z; omega, V) / sqrt(det J^T J), J the differential.

    Damped Gauss-Newton from 48 starts around omega, then once more from the mirror images -z of the roots that were
    found (links with a sign symmetry have roots there, however small V is). Samples without any root are searched again
    from 384 starts, half of them twice as far out.
    """

    description = "summation over roots found by Newton's method from 48 starts: the rank of the link is n = P M"
    draws = _STARTS

    def __init__(self, model: SequenceIndex | MultiIndex) -> None:
        super().__init__(model, model.indices * model.tokens)
        wide = np.where(np.arange(_MORE_STARTS) % 2, 1.3, 2.6)[:, None]
        self._starts = {
            _STARTS: 1.3 * _spread(_STARTS, self.size), _MORE_STARTS: wide * _spread(_MORE_STARTS, self.size)
        }  # fmt: skip

    def footprint(self, draws: int) -> int:
        return 2 * draws * (2 * draws + 8 * self.size**2)

    def _in_chunks(
        self, samples: tuple[np.ndarray, ...], rows: np.ndarray, seed: int, draws: int, repeats: int
    ) -> list[np.ndarray]:
        found = super()._in_chunks(samples, rows, seed, draws, repeats)
        lost = np.flatnonzero(~np.isfinite(found[0]))
        if len(lost) and draws == _STARTS:
            again = super()._in_chunks(samples, rows[lost], seed, _MORE_STARTS, 1)
            for field, new in zip(found, again, strict=True):
                field[lost] = new
        return found

    def moments(self, y: Any, omega: Any, prior: Any, key: Any, draws: int) -> Moments:
        root = jnp.linalg.cholesky(prior)
        effort = (_STEPS, _POLISH) if draws == _STARTS else (_MORE_STEPS, _MORE_POLISH)

        def phi(x: Any) -> Any:
            return self.link(omega + root @ x)

        def search(x: Any) -> tuple[Any, Any]:
            return gauss_newton(phi, y, x, *effort)

        first, found = jax.vmap(search)(jnp.asarray(self._starts[draws]))
        mirrored = jnp.linalg.solve(root, (-(omega + first @ root.T) - omega).T).T
        mirrored = jnp.where(found[:, None], mirrored, first)
        second, found_too = jax.vmap(search)(mirrored)
        x, ok = jnp.concatenate([first, second]), jnp.concatenate([found, found_too])
        ok &= ~repeated(x, ok)
        log_density = -0.5 * (x**2).sum(1) - 0.5 * self.size * np.log(2 * np.pi)
        volume = jax.vmap(lambda B: half_log_det(B.T @ B))(jax.vmap(jax.jacfwd(phi))(x))
        return coloured(weighted_moments(jnp.where(ok, log_density - volume, -jnp.inf), x), root)


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


def _spread(count: int, n: int) -> np.ndarray:
    """Fixed, evenly spread normals (count, n)."""
    from scipy.stats import qmc

    uniforms = qmc.Sobol(n, scramble=True, rng=np.random.default_rng(5)).random(1 << (count - 1).bit_length())[:count]
    return ndtri(np.clip(uniforms, 1e-6, 1 - 1e-6))


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
