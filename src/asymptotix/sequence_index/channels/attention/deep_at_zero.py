"""Stability of zero overlap for deep rank-one attention, on lists of draws that all outputs share.

At omega = 0, V = I the last pre-activation is u = B z_L, and B depends on the earlier layers only. One list of draws of
these layers serves every output:

    E[F | u] = sum_j w_j(u) F_j / sum_j w_j(u),      w_j(u) = exp(-|B_j^{-1} u|^2 / 2) / |det B_j|,

with F = z_l z_l^T for l < L, and z_L z_L^T = B^{-1} u u^T B^{-T}, so that the sums are matrix products. The estimate of
f_l = E|E[z_l z_l^T|u] - I|^2 multiplies the results of two independent lists and averages over outputs, with Hermite
polynomials of the true indices as control variates.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from ....numerics import interrupts
from ....numerics.control_variates import hermite_polynomials
from ....numerics.precision import double_precision
from ....numerics.quadrature import Estimate, error_of_mean, sobol_uniforms
from ... import streams
from ...models import rank_one

#: Outputs per randomisation, draws per list, and randomisations; every randomisation has its own lists.
_OUTPUTS, _DRAWS, _RANDOMISATIONS = 2**15, 2**11, 8
#: Number of outputs computed in one call, each with all draws of a list.
_BLOCK = 2**10


@lru_cache(maxsize=64)
@double_precision()
def deep_curvature_at_zero(layers: int, tokens: int, skip: float, activation: str) -> Estimate:
    """Return f_l = E|E[z_l z_l^T|u] - I|_F^2 of every layer (L,) at zero overlap, with standard errors (L,)."""
    L, M = layers, tokens
    products, indices = [], []
    for r in range(_RANDOMISATIONS):
        interrupts.check()
        Z = ndtri(sobol_uniforms(_OUTPUTS, L * M, (streams.DEEP_AT_ZERO_OUTPUTS, r))).reshape(-1, L, M)
        interrupts.check()
        u = rank_one.last_preactivation(Z, skip, activation)
        lists = (_mixing_list(L, M, skip, activation, (stream, r)) for stream in streams.DEEP_AT_ZERO_LISTS)
        G, H = (_deviations(u, one) for one in lists)
        products.append((G * H).sum((-1, -2)))
        indices.append(Z.reshape(len(Z), -1))
    variates = hermite_polynomials(np.concatenate(indices), _OUTPUTS // 16)
    values = np.concatenate(products)
    if variates is not None:  # of mean zero and uncorrelated: the regression has no intercept
        values = values - variates @ np.linalg.solve(variates.T @ variates, variates.T @ (values - values.mean(0)))
    means = values.reshape(_RANDOMISATIONS, _OUTPUTS, L).mean(1)
    return Estimate(means.mean(0), error_of_mean(means))


class MixingList(NamedTuple):
    """n draws of z_1 .. z_{L-1}, (n, L-1, M), and for each draw the matrix B in u = B z_L, (n, M, M)."""

    early: np.ndarray
    B: np.ndarray


def _mixing_list(L: int, M: int, skip: float, activation: str, seed: tuple[int, int]) -> MixingList:
    early = ndtri(sobol_uniforms(_DRAWS, (L - 1) * M, seed)).reshape(-1, L - 1, M)
    columns = [
        rank_one.last_preactivation(
            np.concatenate([early, np.broadcast_to(unit, (len(early), 1, M))], 1), skip, activation
        )
        for unit in np.eye(M)
    ]
    return MixingList(early, np.stack(columns, -1))


def _deviations(u: np.ndarray, drawn: MixingList) -> np.ndarray:
    """Return E[z_l z_l^T | u] - I of every layer, (n, L, M, M), for outputs u (n, M), from one list of draws."""
    early, B = drawn
    L, M = early.shape[1] + 1, early.shape[2]
    inverse, log_volume = np.linalg.inv(B), np.linalg.slogdet(B)[1]
    # |B^{-1} u|^2 and B^{-1} u u^T B^{-T} are linear in u u^T.
    energies = 0.5 * np.einsum("jab,jac->bcj", inverse, inverse).reshape(M * M, -1)
    last = np.einsum("jab,jcd->jacbd", inverse, inverse).reshape(len(early), -1)
    first = np.einsum("jlm,jlk->jlmk", early, early).reshape(len(early), -1)
    table = [jnp.asarray(x) for x in (energies, log_volume, np.concatenate([first, last], 1))]
    parts = []
    for some in np.split(u, len(u) // _BLOCK):
        interrupts.check()
        parts.append(np.asarray(_conditional(*table, jnp.asarray(some))))
    moments = np.concatenate(parts).reshape(len(u), L, M, M)
    return moments - np.eye(M)


@jax.jit
def _conditional(energies: jax.Array, log_volume: jax.Array, features: jax.Array, u: jax.Array) -> jax.Array:
    """Return E[z_l z_l^T | u] of all layers for outputs u (n, M), flattened to (n, L M^2).

    Per draw, ``energies`` (M^2, draws) give |B^{-1} u|^2/2 from u u^T, ``log_volume`` is log |det B|, and ``features``
    are the z_l z_l^T, for the last layer the linear map from u u^T to it.
    """
    n, M = u.shape
    square = (u[:, :, None] * u[:, None, :]).reshape(n, -1)
    log_weights = -square @ energies - log_volume
    weights = jnp.exp(log_weights - log_weights.max(1, keepdims=True))
    found = weights @ features / weights.sum(1, keepdims=True)
    first, last = found[:, : -(M**4)], found[:, -(M**4) :].reshape(n, M * M, M * M)
    return jnp.concatenate([first, jnp.einsum("nab,nb->na", last, square)], 1)
