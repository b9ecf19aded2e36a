"""Quadrature nodes on which a loss is averaged over the target's and the learner's pre-activations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...numerics import checks
from ...numerics.quadrature import gauss_hermite, sobol_normals

NEGLIGIBLE = 1e-9
"""Gauss-Hermite nodes of less weight than this share of the largest are left out."""


@dataclass(frozen=True)
class LossNodes:
    """A choice of quadrature nodes: either Gauss-Hermite or scrambled Sobol nodes.

    Parameters
    ----------
    order : int, optional
        Gauss-Hermite nodes per axis.
    count : int, optional
        Number of scrambled Sobol nodes, a power of two.
    seed : int
        Scrambling of the Sobol nodes.
    """

    order: int | None = None
    count: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.order is None) == (self.count is None):
            raise ValueError(f"give either order or count, got order={self.order}, count={self.count}")


def sobol_nodes(count: int, directions: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scrambled Sobol nodes (count, 2N), N = ``directions``, and equal weights (count,).

    The first N columns are standard normals for z0, the others the noise xi of z = (m/Q0') z0 + c_1 xi.
    Every node has a partner of opposite xi. E[f.xi]/c_1 is then a difference of f, which is accurate for small c_1, and
    the spread between randomisations is smaller by a factor of up to two at equal count.
    """
    count = checks.integer("count", count, 2)
    if count & (count - 1):
        raise ValueError(f"count must be a power of two, got {count}")
    half = sobol_normals(count // 2, 2 * directions, seed)
    mirror = np.repeat([1.0, -1.0], directions)
    return np.concatenate([half, half * mirror]), np.full(count, 1 / count)


def two_token_nodes(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Hermite nodes (K, 4), ``order`` per axis, and weights (K,), for the softmax of two tokens.

    The columns are standard normals: two for the target's pre-activation, two for the learner's own noise.
    """
    nodes, weights = gauss_hermite(order, 4)
    # exchanging the tokens changes the sign of s0 and s: the nodes with s0 > 0 represent those with s0 < 0
    weights = weights * (1.0 + np.sign(nodes[:, 0]))
    kept = weights > NEGLIGIBLE * weights.max()
    return nodes[kept], weights[kept] / weights[kept].sum()
