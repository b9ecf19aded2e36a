"""Moments of weighted draws: of one list, of several lists together, and after a linear map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ....numerics.arrays import Array

if TYPE_CHECKING:
    import jax


class SampleMoments(NamedTuple):
    """Moments of one sample: log Z_out, E[z|y] - omega (n,), Cov[z|y] (n, n), effective number of draws.

    Programs with several independent lists of draws return moments with a leading axis of lists.
    """

    log_evidence: Any
    shift: Array
    covariance: Array
    effective_samples: Any


def weighted_moments(log_weights: jax.Array, x: Array, extra: jax.Array | None = None) -> SampleMoments:
    """Return moments of points x (m, n) with log-weights (m,), which may be -inf, and variances ``extra`` (m, n)."""
    top = jnp.max(log_weights)
    weights = jnp.exp(log_weights - jnp.where(jnp.isfinite(top), top, 0.0))
    total = weights.sum()
    share = weights / total
    mean = share @ x
    centred = x - mean
    covariance = (share[:, None] * centred).T @ centred
    if extra is not None:
        covariance = covariance + jnp.diag(share @ extra)
    effective = 1 / (share**2).sum()
    return SampleMoments(jnp.where(total > 0, top + jnp.log(total), jnp.nan), mean, covariance, effective)


def coloured(found: SampleMoments, root: jax.Array) -> SampleMoments:
    """Return the moments of root @ x from the moments of x, for a matrix ``root``."""
    covariance = root @ found.covariance @ root.T
    return found._replace(shift=root @ found.shift, covariance=covariance)


def merged(found: SampleMoments) -> SampleMoments:
    """Return moments (rows, ...) from the moments of K independent lists each, (rows, K, ...).

    A covariance about the mean of the draws is too small by the variance of that mean. The scatter of the lists gives
    this variance, and it is added. With one list it is unknown.
    """
    log_evidence, mean, covariance, effective = (np.asarray(x) for x in found)
    K = log_evidence.shape[1]
    if K == 1:
        return SampleMoments(*(x[:, 0] for x in (log_evidence, mean, covariance, effective)))
    empty = ~np.isfinite(log_evidence)
    mean = np.where(empty[:, :, None], 0.0, mean)
    covariance = np.where(empty[:, :, None, None], 0.0, covariance)
    top = np.where(empty, -np.inf, log_evidence).max(1, keepdims=True)
    weights = np.where(empty, 0.0, np.exp(log_evidence - np.where(np.isfinite(top), top, 0.0)))
    total = weights.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = weights / total[:, None]
        evidence = np.where(total > 0, top[:, 0] + np.log(total / K), np.nan)
        squares = np.where(empty, 0.0, weights**2 / effective).sum(1)
        together = np.where(total > 0, total**2 / squares, 0.0)
    centre = np.einsum("rk,rki->ri", share, mean)
    away = mean - centre[:, None]
    # The first term is the covariance between lists, the second the missing variance of their mean.
    between = share + share**2 * K / (K - 1)
    spread = np.einsum("rk,rki,rkj->rij", between, away, away)
    return SampleMoments(evidence, centre, np.einsum("rk,rkij->rij", share, covariance) + spread, together)
