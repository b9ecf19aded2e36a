"""E log Z_out without posteriors: its value at zero overlap, and its increase along a path of overlaps Q.

At zero overlap Z_out is the density of the output, and the mean of its logarithm is minus the entropy of the output.
The entropy follows from the distances of drawn outputs to their nearest neighbours (Kozachenko and Leonenko, Probl.
Inf. Transm. 23, 95 (1987)), or from the frequencies of discrete values. Along the path
d E log Z_out = Tr(E[g g^T] dQ)/2, with g the score of a sample.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import digamma, gammaln

from ....numerics.threads import in_threads
from ... import streams
from ...channels.links.link_channel import LinkChannel
from ...channels.protocol import Averager

#: Number of independent draws per randomisation. Points of a net would not do: their distances are too regular.
_DRAWS = 2**15
#: The 4th nearest neighbour gives the entropy; the 16th gives its error by slope and curvature of the density.
_NEAR, _FAR = 4, 16
#: Largest dimension of outputs without noise, and with noise, for this entropy. Densities without noise may be
#: singular, and in many dimensions neighbours are too far away to show the density.
_MOST, _MOST_NOISY = 2, 3
#: Largest difference of the entropies from the two neighbours. If it is larger there are too few draws, and the entropy
#: is not used.
_APART = 0.02
#: Number of quadrature nodes on the path from zero overlap, and their number if a variance at its end is at most the
#: third value.
_STEPS, _MORE_STEPS, _SMALL_VARIANCE = 6, 10, 1e-3


class Evidence(NamedTuple):
    """E log Z_out of every randomisation (R,), and the systematic error that they share."""

    rows: np.ndarray
    error: float


def evidence_at_zero(channel: LinkChannel, rows: int) -> Evidence | None:
    """Return E log Z_out at zero overlap from ``rows`` randomisations; None if draws of outputs do not determine it."""
    dimension = channel.noises or int(channel.outputs)
    if dimension > (_MOST_NOISY if channel.noises else _MOST):
        return None
    found = in_threads(lambda row: _of_draws(channel, dimension, row), range(rows), first_alone=False)
    if not np.isfinite(found).all():
        return None
    near, far = np.array(found).T
    # For smooth densities the error of the nearer neighbours is a part of this difference, for others up to most of it.
    error, volume = float(abs((far - near).mean())), channel.mean_log_volume
    if error > _APART:
        return None
    return Evidence(near - float(volume.value), float(np.hypot(error, volume.error)))


def _of_draws(channel: LinkChannel, dimension: int, row: int) -> tuple[float, float]:
    """Return minus the entropy of outputs of a given ``dimension``, from near and from far neighbours of draws.

    ``row`` is the number of the randomisation. Dimension 0 means discrete outputs, where both are the same.
    """
    rng = np.random.default_rng((streams.OUTPUT_ENTROPY, row))
    Z = rng.standard_normal((_DRAWS, channel.indices, channel.tokens))
    y = np.asarray(channel.observe(Z, rng.standard_normal((_DRAWS, channel.noises))), float)
    if dimension == 0:
        found = _of_counts(y)
        return found, found
    units = np.ones(y.shape[1])
    if dimension == len(units):  # other outputs lie on a surface, whose measure other units would change
        units = y.std(0)
    ball = 0.5 * dimension * np.log(np.pi) - gammaln(dimension / 2 + 1)
    distance = np.log(_distances(y / units)).mean(0)
    found = digamma([_NEAR, _FAR]) - digamma(_DRAWS) - ball - dimension * distance - np.log(units).sum()
    return float(found[0]), float(found[1])


def _distances(y: np.ndarray) -> np.ndarray:
    """Return the distances (n, 2) of draws y (n, k) to their 4th and 16th neighbours; all nan if draws coincide."""
    from scipy.spatial import KDTree

    found = np.asarray(KDTree(y).query(y, k=1 + _FAR)[0])[:, [_NEAR, _FAR]]
    return np.where((found > 0).all(), found, np.nan)


def _of_counts(y: np.ndarray) -> float:
    """Return the mean log frequency of the k values in n draws y (n, .), minus its bias (k - 1)/(2 n)."""
    counts = np.unique(np.round(y, 9), axis=0, return_counts=True)[1]
    return float((counts * np.log(counts / len(y))).sum() / len(y) - 0.5 * (len(counts) - 1) / len(y))


def evidence_gained(average: Averager, V: np.ndarray) -> np.ndarray:
    """Return E log Z_out (R,) at overlap I - V minus its value at zero overlap, per randomisation.

    The path of integration is V^s with 0 < s < 1.
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
