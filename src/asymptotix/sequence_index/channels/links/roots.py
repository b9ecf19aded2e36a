"""The channel of links of full rank without noise: the output fixes the indices up to a finite set of roots."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from ....numerics.quadrature import sobol_uniforms
from ... import streams
from ...models.observed_link import ObservedLink
from ...models.scaled_volume import scaled_log_volume
from ..mapped import NumberedSamples
from ..tools.root_finding import gauss_newton, least_residual, polished, repeated
from ..tools.sample_moments import SampleMoments, coloured, weighted_moments
from ..tools.small_matrices import cholesky, solve_lower
from .link_channel import LinkChannel

#: Numbers of starts, damped steps and undamped steps of the search for roots. Fewer miss roots.
_STARTS, _STEPS, _POLISH = 48, 20, 3
#: Number of distinct roots whose mirror images are tried without damped steps.
_MIRRORED = 16
#: Starts and steps of a second search, for samples without a root in the first. These occur near folds of the link,
#: where undamped steps only halve the distance.
_MORE_STARTS, _MORE_STEPS, _MORE_POLISH = 384, 80, 40
#: Fraction of an observed output below which :func:`_nearly_log` is linear.
_NEAR_ZERO = 1e-4


class RootChannel(LinkChannel):
    """Channel that sums over the roots of g(z) = y in R^n with weights N(z; omega, V) / sqrt(det J^T J), J = dg/dz.

    Damped Gauss-Newton searches begin at 48 starts around omega, then at the mirror images -z of the roots that were
    found (links with a sign symmetry have roots there, however small V is). Samples without a root are searched again
    from 384 starts, half of them twice as far out. Half of these searches compare logarithms of outputs:
    where an output saturates, least squares of outputs end at points where it saturates less.
    """

    description = "summation over roots found by Newton's method from 48 starts: the rank of the link is n = P M"
    draws = _STARTS

    def __init__(self, model: ObservedLink) -> None:
        super().__init__(model, model.indices * model.tokens)
        wide = np.where(np.arange(_MORE_STARTS) % 2, 1.3, 2.6)[:, None]
        self._starts = {
            _STARTS: 1.3 * _spread(_STARTS, self.size), _MORE_STARTS: wide * _spread(_MORE_STARTS, self.size)
        }  # fmt: skip

    def footprint(self, draws: int) -> int:
        return 3 * draws * (3 * draws + 8 * self.size**2)

    def in_chunks(
        self, samples: NumberedSamples, rows: np.ndarray, seed: int, draws: int, repeats: int
    ) -> list[np.ndarray]:
        found = super().in_chunks(samples, rows, seed, draws, repeats)
        lost = np.flatnonzero(~np.isfinite(found[0]))
        if len(lost) and draws == _STARTS:
            again = super().in_chunks(samples, rows[lost], seed, _MORE_STARTS, 1)
            for field, new in zip(found, again, strict=True):
                field[lost] = new
        return found

    def moments(self, y: jax.Array, omega: jax.Array, prior: jax.Array, key: jax.Array, draws: int) -> SampleMoments:
        root = cholesky(prior)
        steps, polish = (_STEPS, _POLISH) if draws == _STARTS else (_MORE_STEPS, _MORE_POLISH)
        starts = jnp.asarray(self._starts[draws])

        def phi(x: jax.Array) -> jax.Array:
            return self.link(omega + root @ x)

        def search(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            return gauss_newton(phi, y, x, steps, polish)

        def search_logs(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            nearly_log = partial(_nearly_log, jnp.abs(y))
            near = least_residual(lambda x: nearly_log(phi(x)), nearly_log(y), x, steps)
            return polished(phi, y, near, polish)

        def mirrored(x: jax.Array) -> jax.Array:
            return solve_lower(root, (-(omega + x @ root.T) - omega).T).T

        if draws == _STARTS:
            first, found = jax.vmap(search)(starts)
        else:
            halves = jax.vmap(search)(starts[: draws // 2]), jax.vmap(search_logs)(starts[draws // 2 :])
            first, found = (jnp.concatenate(both) for both in zip(*halves, strict=True))
        second, found_too = jax.vmap(search)(jnp.where(found[:, None], mirrored(first), first))
        x, ok = jnp.concatenate([first, second]), jnp.concatenate([found, found_too])
        ok &= ~repeated(x, ok)
        # Where slopes are small, damped steps would lead away from a mirror image that is a root.
        some = jnp.argsort(~ok)[:_MIRRORED]
        third, exact = jax.vmap(lambda x: polished(phi, y, x, _POLISH))(mirrored(x[some]))
        x, ok = jnp.concatenate([x, third]), jnp.concatenate([ok, ok[some] & exact])
        ok &= ~repeated(x, ok)
        log_density = -0.5 * (x**2).sum(1) - 0.5 * self.size * np.log(2 * np.pi)
        volume = jax.vmap(lambda J: scaled_log_volume(jnp.zeros(len(J)), J))(jax.vmap(jax.jacfwd(phi))(x))
        return coloured(weighted_moments(jnp.where(ok, log_density - volume, -jnp.inf), x), root)


def _nearly_log(size: jax.Array, outputs: jax.Array) -> jax.Array:
    """Return asinh(outputs / (1e-4 size)) (k,), logarithmic except near zero; ``size`` (k,) is |observation|."""
    return jnp.arcsinh(outputs / (_NEAR_ZERO * size + 1e-150))


def _spread(count: int, n: int) -> np.ndarray:
    """Return fixed standard normals (count, n) from a Sobol sequence."""
    uniforms = sobol_uniforms(1 << (count - 1).bit_length(), n, streams.ROOT_STARTS)[:count]
    return ndtri(np.clip(uniforms, 1e-6, 1 - 1e-6))
