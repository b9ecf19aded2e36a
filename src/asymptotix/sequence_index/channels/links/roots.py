"""Links of full rank without noise: the output fixes the indices up to a finite set of roots."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from ....numerics.quadrature import sobol_uniforms
from ... import streams
from ...models.observed_link import ObservedLink
from ..mapped import NumberedSamples
from ..tools.root_finding import gauss_newton, repeated
from ..tools.sample_moments import SampleMoments, coloured, weighted_moments
from ..tools.small_matrices import cholesky, half_log_det, solve_lower
from .link_channel import LinkChannel

_STARTS, _STEPS, _POLISH = 48, 20, 3
#: The same for samples of which the first search finds no root, as happens near folds of the link, where undamped
#: steps halve the distance only.
_MORE_STARTS, _MORE_STEPS, _MORE_POLISH = 384, 80, 40


class RootChannel(LinkChannel):
    """A sum over the roots of g(z) = y in R^n, of weight N(z; omega, V) / sqrt(det J^T J), J the differential.

    Damped Gauss-Newton from 48 starts around omega, then once more from the mirror images -z of the roots that were
    found (links with a sign symmetry have roots there, however small V is). Samples without any root are searched again
    from 384 starts, half of them twice as far out.
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
        return 2 * draws * (2 * draws + 8 * self.size**2)

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

    def moments(self, y: Any, omega: Any, prior: Any, key: Any, draws: int) -> SampleMoments:
        root = cholesky(prior)
        effort = (_STEPS, _POLISH) if draws == _STARTS else (_MORE_STEPS, _MORE_POLISH)

        def phi(x: Any) -> Any:
            return self.link(omega + root @ x)

        def search(x: Any) -> tuple[Any, Any]:
            return gauss_newton(phi, y, x, *effort)

        first, found = jax.vmap(search)(jnp.asarray(self._starts[draws]))
        mirrored = solve_lower(root, (-(omega + first @ root.T) - omega).T).T
        mirrored = jnp.where(found[:, None], mirrored, first)
        second, found_too = jax.vmap(search)(mirrored)
        x, ok = jnp.concatenate([first, second]), jnp.concatenate([found, found_too])
        ok &= ~repeated(x, ok)
        log_density = -0.5 * (x**2).sum(1) - 0.5 * self.size * np.log(2 * np.pi)
        volume = jax.vmap(lambda B: half_log_det(B.T @ B))(jax.vmap(jax.jacfwd(phi))(x))
        return coloured(weighted_moments(jnp.where(ok, log_density - volume, -jnp.inf), x), root)


def _spread(count: int, n: int) -> np.ndarray:
    """Fixed, evenly spread normals (count, n)."""
    uniforms = sobol_uniforms(1 << (count - 1).bit_length(), n, streams.ROOT_STARTS)[:count]
    return ndtri(np.clip(uniforms, 1e-6, 1 - 1e-6))
