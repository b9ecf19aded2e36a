"""Stability of zero overlap for two softmax layers of two tokens, by deterministic quadrature.

At omega = 0, V = I the Jacobian of g_out is G = E[z z^T | y] - I for every layer, and index l is unstable where
alpha f_l > 1, f_l = E |G_ll|_F^2 (Troiani et al., arXiv:2502.00901, eq. (176)). For a rank-one row f_l <= M(M+1), with
equality where y reveals z z^T.

y fixes u up to its sign, so f_l is an integral over u of squares of integrals over z1. Both integrals use the
trapezoidal rule in coordinates in which the integrands are smooth and decay (logarithms of z1- and u-); two resolutions
give the error.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ....numerics.quadrature import Estimate
from ....numerics.threads import available_cores, each_in_parallel, one_blas_thread
from ...models import rank_one

NodesAndWeights = tuple[np.ndarray, np.ndarray]


@lru_cache(maxsize=256)
def softmax_curvature_at_zero(skip: float) -> Estimate:
    """Return f_1 and f_2 (module docstring) as an array (2,), with the difference of two resolutions as error."""
    coarse, fine = (_curvatures(skip, resolution) for resolution in (0.75, 1.0))
    return Estimate(fine, abs(fine - coarse) + 1e-9 * fine)


def _curvatures(skip: float, resolution: float) -> np.ndarray:
    """Return f_1 and f_2, an array (2,), by sums over nodes z1 and u of a density proportional to ``resolution``."""
    z1, weights = _log_half_plane(skip, resolution)
    mixing = _mixing(z1, skip)
    k, kappa = mixing[:, 0, 0], mixing[:, 1, 0]
    weights = weights * np.exp(-0.5 * (z1**2).sum(1)) / (2 * np.pi) ** 2 / (k * (skip + 1))
    features = np.stack([np.ones(len(z1)), z1[:, 0] ** 2, z1[:, 0] * z1[:, 1], z1[:, 1] ** 2], 1)
    (um, mass_m), (up, mass_p) = _softmax_outputs(skip, resolution)
    sums = np.empty((len(um), 3))
    far = up / (skip + 1)

    def add(row: int) -> None:
        """Store mass, and f_1 and f_2 times mass, of all outputs with u- = um[row]; z2- = u-/k, z2+ = far - near."""
        zm = um[row] / k
        near = kappa * zm / (skip + 1)
        density = np.subtract.outer(far, near)
        np.exp(np.multiply(density, -0.5 * density, out=density), out=density)
        powers = np.stack([zm**2, zm, zm * near, near, near**2], 1)
        moments = density @ (np.hstack([features, powers]) * (weights * np.exp(-0.5 * zm**2))[:, None])
        evidence = moments[:, 0].clip(1e-290)
        mm, m, m_near, n, nn = (moments / evidence[:, None])[:, 4:].T
        second = np.stack([mm, far * m - m_near, far**2 - 2 * far * n + nn], 1)
        share = mass_m[row] * mass_p * evidence
        norms = _squared_norm(moments[:, 1:4] / evidence[:, None]), _squared_norm(second)
        sums[row] = share.sum(), *(share @ norm for norm in norms)

    with one_blas_thread():
        each_in_parallel(add, range(len(um)), available_cores())
    # The mass is one except for tails beyond the grid; division by it removes most of their error.
    total, *layers = sums.sum(0)
    return np.array(layers) / total


def _squared_norm(moments: np.ndarray) -> np.ndarray:
    """Return |E[z z^T] - I|_F^2, (n,), from the columns E[z-^2], E[z- z+], E[z+^2] of ``moments`` (n, 3)."""
    return (moments[:, 0] - 1) ** 2 + 2 * moments[:, 1] ** 2 + (moments[:, 2] - 1) ** 2


def _mixing(z1: np.ndarray, skip: float) -> np.ndarray:
    """Return the matrices A (n, 2, 2) with u = A(z1) z2, for z1 (n, 2), from their action on the unit vectors z2."""
    columns = []
    for unit in np.eye(2):
        Z = np.stack([z1, np.broadcast_to(unit, z1.shape)], 1)
        columns.append(rank_one.rotated_preactivation(Z, skip, "softmax"))
    return np.stack(columns, -1)


def _log_half_plane(skip: float, resolution: float) -> NodesAndWeights:
    """Return nodes z1 (n, 2) and weights (n,): z1- > 0 on a logarithmic grid (weights doubled), z1+ on a linear one."""
    step_log, step = 0.14 / resolution, 0.2 / resolution
    lowest = -9.0 if skip >= 0.05 else -13.0
    log_m = np.arange(lowest, 1.75, step_log)
    p = np.arange(-5.6, 5.6001, step)
    m = np.exp(log_m)
    # The first node also carries the weights of omitted nodes near zero, a geometric series.
    weight_m = 2 * m * step_log
    weight_m[0] /= 1 - np.exp(-step_log)
    nodes = np.stack([np.repeat(m, len(p)), np.tile(p, len(m))], 1)
    weights = np.repeat(weight_m, len(p)) * step
    keep = weights * np.exp(-0.5 * (nodes**2).sum(1)) > 1e-14
    return nodes[keep], weights[keep]


def _softmax_outputs(skip: float, resolution: float) -> tuple[NodesAndWeights, NodesAndWeights]:
    """Return nodes and weights of u- > 0 (a logarithmic grid) and of u+ > 0 (a linear grid); weights are doubled.

    u and -u are the same output; the exchange of the tokens, up to that sign, maps u+ to -u+.
    """
    step_log = 0.2 / resolution
    log_m = np.arange(-14.0 if skip >= 0.05 else -24.0, np.log(6.5 * (skip + 1)), step_log)
    half = 6.5 * np.hypot(skip + 1, 1)
    count = int(np.ceil(24 * resolution))
    p = half * (np.arange(count) + 0.5) / count
    m = np.exp(log_m)
    return (m, 2 * m * step_log), (p, np.full(count, 2 * half / count))
