"""Stability of zero overlap for two softmax layers of two tokens, by deterministic quadrature.

At omega = 0, V = I the Jacobian of g_out is G = E[z z^T | y] - I for every layer, and index l is unstable where
alpha f_l > 1, f_l = E |G_ll|_F^2 (Troiani et al., arXiv:2502.00901, eq. (176)). For a rank-one row f_l <= M(M+1), with
equality where y reveals z z^T.

y fixes u up to its sign, so f_l is an integral over u of squares of integrals over z1. Both are done by the trapezoidal
rule in coordinates in which the integrands are smooth and decay (logarithms of z1- and u-), at two resolutions for the
error.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ....numerics import interrupts
from ....numerics.quadrature import Estimate
from ...models import rank_one

NodesAndWeights = tuple[np.ndarray, np.ndarray]


@lru_cache(maxsize=256)
def softmax_curvature_at_zero(skip: float) -> Estimate:
    """f_1 and f_2 of two softmax layers, two tokens, with the difference between two resolutions as their error."""
    coarse, fine = (_curvatures(skip, resolution) for resolution in (0.75, 1.0))
    return Estimate(fine, abs(fine - coarse) + 1e-9 * fine)


def _curvatures(skip: float, resolution: float) -> np.ndarray:
    """Curvatures f of layers 1 and 2 from nodes z1 (inner) and u (outer)."""
    z1, weights = _log_half_plane(skip, resolution)
    mixing = _mixing(z1, skip)
    inverse, determinant = np.linalg.inv(mixing), abs(np.linalg.det(mixing))
    weights = weights * np.exp(-0.5 * (z1**2).sum(1)) / (2 * np.pi) / determinant / (2 * np.pi)
    features = np.stack([np.ones(len(z1)), z1[:, 0] ** 2, z1[:, 0] * z1[:, 1], z1[:, 1] ** 2], 1)
    total, layer1, layer2 = 0.0, 0.0, 0.0
    for u, mass in _blocks(*_softmax_outputs(skip, resolution)):
        zm = u @ inverse[:, 0].T
        zp = u @ inverse[:, 1].T
        density = weights * np.exp(-0.5 * (zm**2 + zp**2))
        first = density @ features
        evidence = first[:, 0].clip(1e-290)
        second = np.stack([(density * zm**2).sum(1), (density * zm * zp).sum(1), (density * zp**2).sum(1)], 1)
        share = mass * evidence
        total += share.sum()
        layer1 += share @ _squared_norm(first[:, 1:] / evidence[:, None])
        layer2 += share @ _squared_norm(second / evidence[:, None])
    # The mass is one up to the tails beyond the grid; dividing by it removes most of what they cost.
    return np.array([layer1, layer2]) / total


def _squared_norm(moments: np.ndarray) -> np.ndarray:
    """|E[z z^T] - I|_F^2 from E[z-^2], E[z- z+], E[z+^2]."""
    return (moments[:, 0] - 1) ** 2 + 2 * moments[:, 1] ** 2 + (moments[:, 2] - 1) ** 2


def _mixing(z1: np.ndarray, skip: float) -> np.ndarray:
    """A(z1) as matrices (n, 2, 2), read off its action on the two unit vectors."""
    columns = []
    for unit in np.eye(2):
        Z = np.stack([z1, np.broadcast_to(unit, z1.shape)], 1)
        columns.append(rank_one.rotated_preactivation(Z, skip, "softmax"))
    return np.stack(columns, -1)


def _blocks(nodes: np.ndarray, weights: np.ndarray, size: int = 48):
    for start in range(0, len(nodes), size):
        interrupts.check()
        yield nodes[start : start + size], weights[start : start + size]


def _log_half_plane(skip: float, resolution: float) -> NodesAndWeights:
    """z1- > 0 on a logarithmic grid (doubled: the integrand is even), z1+ on a linear one."""
    step_log, step = 0.14 / resolution, 0.2 / resolution
    lowest = -9.0 if skip >= 0.05 else -13.0
    log_m = np.arange(lowest, 1.75, step_log)
    p = np.arange(-5.6, 5.6001, step)
    m = np.exp(log_m)
    # What the grid leaves out near zero, a geometric series, is put on its first node.
    weight_m = 2 * m * step_log
    weight_m[0] /= 1 - np.exp(-step_log)
    nodes = np.stack([np.repeat(m, len(p)), np.tile(p, len(m))], 1)
    weights = np.repeat(weight_m, len(p)) * step
    keep = weights * np.exp(-0.5 * (nodes**2).sum(1)) > 1e-14
    return nodes[keep], weights[keep]


def _softmax_outputs(skip: float, resolution: float) -> NodesAndWeights:
    """u- > 0 on a logarithmic grid (doubled: u and -u are one output), u+ on a linear one."""
    step_log = 0.2 / resolution
    log_m = np.arange(-14.0 if skip >= 0.05 else -24.0, np.log(6.5 * (skip + 1)), step_log)
    half = 6.5 * np.hypot(skip + 1, 1)
    count = int(np.ceil(48 * resolution))
    p = half * (-1 + 2 * (np.arange(count) + 0.5) / count)
    m = np.exp(log_m)
    nodes = np.stack([np.repeat(m, count), np.tile(p, len(m))], 1)
    return nodes, np.repeat(2 * m * step_log, count) * (2 * half / count)
