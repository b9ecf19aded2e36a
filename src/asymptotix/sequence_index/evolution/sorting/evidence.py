"""E log Z_out where averages come from sorted draws: at zero overlap, and what is gained from there on.

Where all fields vanish Z_out is the density of the output, and the mean of its logarithm less the entropy of that: told
by how far draws of outputs are from their nearest neighbours (Kozachenko and Leonenko, Probl. Inf. Transm. 23, 95
(1987)), or by how often every value occurs. On the way from there d E log Z_out = Tr(E[g g^T] dQ)/2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import digamma, gammaln

from ....numerics.threads import in_threads
from ... import streams
from ...channels.links.link_channel import LinkChannel
from ...channels.protocol import Averager

#: Independent draws in each row. Those of a net keep a distance from each other that is not that of their density.
_DRAWS = 2**15
#: Which neighbours: the nearer ones tell the entropy, the further ones what the density's slope and bends change in it.
_NEAR, _FAR = 4, 16
#: Dimensions of outputs at most, without noise and with it: densities without noise may be singular, and among many
#: dimensions neighbours are too far away to tell.
_MOST, _MOST_NOISY = 2, 3
#: Difference of what the two tell beyond which draws are too few, as around a surface that noise hardly leaves.
_APART = 0.02
#: Nodes of the way from zero overlap, more where a variance is below the bound at its end.
_STEPS, _MORE_STEPS, _SMALL_VARIANCE = 6, 10, 1e-3


class Evidence(NamedTuple):
    """E log Z_out, one row per randomisation, and what may be wrong in all of them."""

    rows: np.ndarray
    error: float


def evidence_at_zero(channel: LinkChannel, rows: int) -> Evidence | None:
    """That at zero overlap; None where draws of outputs do not tell it."""
    dimension = channel.noises or int(channel.outputs)
    if dimension > (_MOST_NOISY if channel.noises else _MOST):
        return None
    found = in_threads(lambda row: _of_draws(channel, dimension, row), range(rows), first_alone=False)
    if not np.isfinite(found).all():
        return None
    near, far = np.array(found).T
    # Of smooth densities the nearer ones are wrong by a part of that only; of others it may be most of it.
    error, volume = float(abs((far - near).mean())), channel.mean_log_volume
    if error > _APART:
        return None
    return Evidence(near - float(volume.value), float(np.hypot(error, volume.error)))


def _of_draws(channel: LinkChannel, dimension: int, row: int) -> tuple[float, float]:
    """Less the entropy of the output, from the nearer and from the further neighbours of draws."""
    rng = np.random.default_rng((streams.OUTPUT_ENTROPY, row))
    Z = rng.standard_normal((_DRAWS, channel.indices, channel.tokens))
    y = np.asarray(channel.observe(Z, rng.standard_normal((_DRAWS, channel.noises))), float)
    if dimension == 0:
        found = _of_counts(y)
        return found, found
    units = np.ones(y.shape[1])
    if dimension == len(units):  # otherwise they lie on a surface that another measure would bend
        units = y.std(0)
    ball = 0.5 * dimension * np.log(np.pi) - gammaln(dimension / 2 + 1)
    distance = np.log(_distances(y / units)).mean(0)
    found = digamma([_NEAR, _FAR]) - digamma(_DRAWS) - ball - dimension * distance - np.log(units).sum()
    return float(found[0]), float(found[1])


def _distances(y: np.ndarray) -> np.ndarray:
    """Of every draw from its two neighbours (n, 2); nan where several draws are the same."""
    from scipy.spatial import KDTree

    found = np.asarray(KDTree(y).query(y, k=1 + _FAR)[0])[:, [_NEAR, _FAR]]
    return np.where((found > 0).all(), found, np.nan)


def _of_counts(y: np.ndarray) -> float:
    """Mean logarithm of how often values occur; so few draws find them a little too often where they are rare."""
    counts = np.unique(np.round(y, 9), axis=0, return_counts=True)[1]
    return float((counts * np.log(counts / len(y))).sum() / len(y) - 0.5 * (len(counts) - 1) / len(y))


def evidence_gained(average: Averager, V: np.ndarray) -> np.ndarray:
    """E log Z_out at overlap I - V beyond that at none, one row per randomisation.

    On the way every principal variance is a power of its last value: near full overlap E[g g^T] is of the order of its
    inverse.
    """
    values, axes = np.linalg.eigh(V)
    logs = np.log(values)
    nodes, weights = np.polynomial.legendre.leggauss(_STEPS if values[0] > _SMALL_VARIANCE else _MORE_STEPS)
    gained = 0.0
    for step, weight in zip(0.5 * (1 + nodes), 0.5 * weights, strict=True):
        there = values**step
        moments = average((axes * there) @ axes.T).second_moment
        along = np.einsum("pi,rpq,qi->ri", axes, moments, axes)
        gained = gained - 0.5 * weight * along @ (logs * there)
    return np.asarray(gained)
