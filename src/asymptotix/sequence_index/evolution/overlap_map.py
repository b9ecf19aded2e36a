"""One iteration of state evolution as a map of overlaps, and the growth of directions with zero overlap.

    Qhat = alpha E[g_out g_out^T],       V' = (I/(1-l) + Qhat)^{-1},       Q' = I - V',

with g_out = V^{-1} (E[z|y] - omega) the score of a sample and l the overlap of the side information (0: none); Troiani
et al., arXiv:2502.00901, Lemma 2.2, eq. (14). The state is the matrix of logits log(Q V^{-1}) on the learned subspace.
It is diagonal if each row of the weights may change its sign.

Equations si-se, si-side, si-exact of docs/theory/sequence_index.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from ...core.progress import Say, quietly
from ...numerics.linear_algebra import to_logit
from ..channels.protocol import Averager, Averages, Channel
from ..channels.row_symmetry import RowSymmetry
from .instability import Instability, diagonal_instability, instability, visible_directions
from .nodes import Nodes
from .point import Point
from .sorting.sorted_outputs import unseen_symmetry
from .zero_overlap import curvature_at_zero, sampled_instability_at_zero

#: Overlap with which an unstable index l enters the iteration. Up to it growth is linear, by a factor alpha E|G_ll|^2
#: per step. A smaller overlap costs more iterations.
SEED_OVERLAP = 0.02
#: Value of alpha E|g|^2 outside the learned subspace above which this subspace is turned or enlarged.
MISALIGNED = 1e-6
#: Approximate largest overlap of directions that count as not learned, and the numbers of blocks that are tried until
#: this overlap is known to be smaller. With fewer blocks directions that only rare samples show are missed.
_UNSEEN, _GROWTH_BLOCKS = 5e-4, (1, 4, 16)


class OverlapMap:
    """One iteration of state evolution of a channel, as a map of overlaps.

    Parameters
    ----------
    channel : Channel
    side_information : float
        l in [0, 1): overlap of the teacher with the side information S = sqrt(l) W + sqrt(1-l) noise.
    nodes : Nodes, optional
        Nodes of the averages over data.
    held : mapping, optional
        Index -> fixed overlap, for indices that the iteration does not change; their overlap with others is zero.
    """

    def __init__(
        self,
        channel: Channel,
        side_information: float = 0.0,
        nodes: Nodes | None = None,
        held: Mapping[int, float] | None = None,
    ) -> None:
        self.channel, self.side_information = channel, side_information
        self.nodes = Nodes(channel) if nodes is None else nodes
        self.held = dict(held or {})
        #: Number of this channel's samples in one sample of the model. This object's alpha is larger than the model's
        #: by this factor; texts of a status divide alpha by it.
        self.copies = 1

    # -- the map --

    def image(self, averages: Averages, point: Point) -> np.ndarray:
        """Return coordinates (R, m) after one iteration from ``point``, with its averages of R randomisations."""
        side, hat = self.side_information, point.alpha * averages.second_moment
        hat = hat if side == 0 else hat + side / (1 - side) * np.eye(self.channel.indices)
        return point.space.of_precision(hat)

    def after(self, average: Averager, point: Point) -> np.ndarray:
        """Return the coordinates (m,) after one iteration from ``point``, averaged over the randomisations."""
        return self.image(average(point.V), point).mean(0)

    # -- zero and full overlap --

    def nothing(self, alpha: float) -> Point:
        """Return the point with zero overlap of all indices that are not held."""
        return Point.nothing(alpha, self.channel.indices, self.channel.diagonal, self.held, self._symmetry)

    def point(self, alpha: float, Q: np.ndarray, V: np.ndarray) -> Point:
        """Return the point of an overlap Q (P, P) with V = I - Q; held indices keep their fixed overlap."""
        return Point.of_overlap(alpha, Q, V, self.channel.diagonal, self.held, self._symmetry)

    @cached_property
    def _symmetry(self) -> RowSymmetry | None:
        """Symmetry of overlaps under index permutations and sign changes; None: diagonal, or with held indices."""
        return None if self.channel.diagonal or self.held else self.nodes.symmetry

    @cached_property
    def visible(self) -> np.ndarray:
        """Orthonormal columns (P, p): the directions, without held indices, on which the output depends."""
        P = self.channel.indices
        free = np.delete(np.eye(P), list(self.held), axis=1)
        if self.channel.diagonal or P == 1:
            return free
        if (known := self.channel.visible(free)) is not None:
            return known
        average = self.nodes.block(0) if self.nodes.noisy else self.nodes.few
        return visible_directions(average, free)

    @cached_property
    def exact_recovery_bound(self) -> float:
        """Alpha above which full overlap in all visible directions is stable, and below which it is unstable: p/r.

        p is the number of visible directions and r that of independent real outputs. If some directions are recovered
        more slowly than others, p and r count these only.

        The bound is infinite with noise, for discrete outputs, and with held indices, whose unknown part acts as noise.
        """
        if self.channel.noises > 0 or self.channel.outputs == 0 or self.held:
            return np.inf
        return self.channel.recovery_bound(self.visible)

    # -- directions that are not learned --

    def not_learned(self, point: Point) -> np.ndarray:
        """Return orthonormal columns (P, d): directions on which the output depends, not learned, known or held."""
        outside = point.space.complement
        values, vectors = np.linalg.eigh(outside.T @ self.visible @ self.visible.T @ outside)
        return outside if self.visible.shape[1] == len(outside) else outside @ vectors[:, values > 0.5]

    def growth(self, point: Point) -> Instability:
        """Return the unstable directions outside the learned subspace of ``point``, and their growth rate."""
        P = self.channel.indices
        if self.channel.diagonal:
            rows = np.asarray(point.space.complement.any(1))
            if not rows.any():
                return diagonal_instability(np.zeros((1, P)), rows)
            if not point.Q.any():
                return diagonal_instability(curvature_at_zero(self.channel).value[None], rows)
            return diagonal_instability(self.nodes.block(0)(point.V).curvature, rows)
        if point.learned == 0 and not self.held:
            return self._growth_of_nothing
        return self._growth_outside(point)

    def _growth_outside(self, point: Point) -> Instability:
        """Return the instability outside the learned subspace of ``point``, from as many blocks of nodes as it needs.

        E[g g^T] (g: score) is set to zero along directions that change under a symmetry of the output which
        leaves the learned directions unchanged.
        """
        outside, blocks = self.not_learned(point), []
        allowed = unseen_symmetry(self.channel).fixing(point.Q).fixed
        for count in _GROWTH_BLOCKS:
            blocks += [self.nodes.block(number) for number in range(len(blocks), count)]
            found = instability(blocks, point.V, outside, MISALIGNED, allowed)
            if found.starts_by_itself or point.alpha * found.unseen < _UNSEEN or count >= self.nodes.most_blocks:
                break
        return found

    @cached_property
    def _growth_of_nothing(self) -> Instability:
        """Instability of zero overlap for the dynamics: relative tolerance 1, at most eight blocks of nodes."""
        return self.growth_of_nothing(1.0, 8)

    def growth_of_nothing(self, tolerance: float, most: int, say: Say = quietly) -> Instability:
        """Return the instability of zero overlap, its rate to a relative ``tolerance``, on at most ``most`` blocks."""
        return sampled_instability_at_zero(self.channel, self.nodes.block_at_zero, tolerance, most, say)

    def entered(self, point: Point, found: Instability) -> Point:
        """Return the point with the unstable directions in ``found`` added to its learned subspace.

        If E[g g^T] (g: score) does not vanish along them, their overlap is that after one iteration.
        Otherwise the largest new overlap is ``SEED_OVERLAP``.
        """
        if found.starts_by_itself:
            return point.enlarged(point.alpha * found.moment)
        seed = np.exp(to_logit(SEED_OVERLAP)) / np.linalg.norm(found.direction, 2)
        return point.enlarged(seed * found.direction)
