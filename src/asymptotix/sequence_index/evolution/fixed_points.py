"""State evolution: the overlap that Bayes-optimal learning reaches at a given alpha, from a stated start.

Message passing reaches this overlap (Troiani et al., arXiv:2502.00901, Lemma 2.2). From zero overlap, directions of
index space are learned one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from ...core.status import Status
from ...numerics.linear_algebra import to_logit
from .. import streams
from ..channels.protocol import Channel
from .choose_nodes import nodes_of
from .coordinates import Coordinates
from .dynamics import NEARLY_EXACT, NO_OVERLAP, Dynamics, DynamicsEnd, Ending
from .instability import Instability, diagonal_instability
from .nodes import MORE, Nodes
from .overlap_map import SEED_OVERLAP
from .point import Point
from .refinement import OverlapSolution, refined

#: Number of nodes in each of the two randomisations of :meth:`StateEvolution.trace`; fewer give noisier overlaps.
_TRACE_NODES = 2**12


class StateEvolution(Dynamics):
    """State evolution of one channel; the quadrature nodes are kept between calls.

    Parameters
    ----------
    channel : Channel
    side_information : float
        l in [0, 1): overlap of the teacher with the side information S = sqrt(l) W + sqrt(1-l) noise.
    seed : int
        Seed of the default nodes.
    held : mapping, optional
        Index -> fixed overlap, for indices that the iteration does not change. It replaces their overlap in a start.
    nodes : Nodes, optional
        Nodes of the averages over data, by default random nodes from ``seed``.
    """

    def __init__(
        self,
        channel: Channel,
        side_information: float = 0.0,
        seed: int = streams.STATE_EVOLUTION_NODES,
        held: Mapping[int, float] | None = None,
        nodes: Nodes | None = None,
    ) -> None:
        super().__init__(channel, side_information, Nodes(channel, seed) if nodes is None else nodes, held)

    @classmethod
    def of(
        cls, channel: Channel, side_information: float = 0.0, held: Mapping[int, float] | None = None
    ) -> StateEvolution:
        """Return state evolution on the fastest suitable nodes: draws sorted by output where posteriors are slow.

        ``side_information`` is its overlap with the teacher; ``held`` maps indices to fixed overlaps.
        """
        return cls(channel, side_information, held=held, nodes=nodes_of(channel))

    def uninformed(self, alpha: float, *, tolerance: float, hint: OverlapSolution | None = None) -> OverlapSolution:
        """Return the fixed point reached from a vanishing, isotropic overlap, or from the side information.

        From a vanishing start directions are learned one after the other: the most unstable one grows and settles while
        the others are still negligible, and so on. ``tolerance`` is the accepted error of an overlap. ``hint`` is the
        solution at a smaller alpha: it is the start, or, if recovery was exact, the result.
        """
        if hint is not None and hint.exact and not hint.marginal:
            return self._recovered(self.contraction(alpha))  # more data cannot undo it
        if self.side_information > 0:
            start = self.side_information * np.eye(self.channel.indices)
            return self.reached(self.point(alpha, start, np.eye(len(start)) - start), tolerance)
        if hint is not None and not hint.exact:
            point = self.point(alpha, hint.Q, hint.V)
            if not self.nodes.noisy:
                return self._from_nothing(point, tolerance, self.outside(hint, point))
            # An overlap so small may be one at which noise of the nodes stops the iteration: it begins anew.
            return self._from_nothing(point.without(float(to_logit(SEED_OVERLAP))), tolerance)
        return self._from_nothing(self.nothing(alpha), tolerance)

    def informed(self, alpha: float, *, tolerance: float) -> OverlapSolution:
        """Return the fixed point reached from almost full overlap, with overlaps to within ``tolerance``."""
        inside, v = self.visible @ self.visible.T, NEARLY_EXACT / 2
        start = (1 - v) * inside
        return self.reached(self.point(alpha, start, np.eye(len(start)) - inside + v * inside), tolerance)

    def from_overlap(self, alpha: float, q: np.ndarray, *, tolerance: float) -> OverlapSolution:
        """Return the fixed point reached from overlaps q, a diagonal (P,) or a matrix (P, P), to within ``tolerance``.

        An overlap of exactly zero stays zero, except in directions where E[g g^T] (g: score) does not vanish.
        """
        Q = np.asarray(q, float)
        Q = np.diag(Q) if Q.ndim == 1 else Q
        return self.reached(self.point(alpha, Q, np.eye(len(Q)) - Q), tolerance)

    def reached(self, point: Point, tolerance: float) -> OverlapSolution:
        """Return the fixed point reached from ``point``: found on coarse nodes, refined on more to ``tolerance``."""
        return self._ended(self._follower.followed(point), tolerance)

    def trace(self, alpha: float, iterations: int, damping: float = 1.0, start: np.ndarray | None = None) -> np.ndarray:
        """Return overlaps (iterations + 1, P, P): the start, then one per iteration.

        ``start`` is a diagonal (P,) or a matrix (P, P), by default the overlap of the side information. ``damping`` is
        the share of the full step that the overlap moves in an iteration (1: no damping).
        """
        P = self.channel.indices
        Q = self.side_information * np.eye(P) if start is None else np.asarray(start, float)
        Q = np.diag(Q) if Q.ndim == 1 else Q
        Q = self.point(alpha, Q, np.eye(P) - Q).Q if self.held else Q
        average, rows = self.nodes.at(_TRACE_NODES // self.channel.cost, 2), [Q]
        everything = Coordinates.of_rows(np.ones(P, bool), self.channel.diagonal, self.held)
        here = Point(alpha, everything, np.zeros(0))
        for _ in range(iterations):
            x = self.image(average(np.eye(P) - Q), here).mean(0)
            Q = (1 - damping) * Q + damping * here.moved(x).Q
            rows.append(Q)
        return np.array(rows)

    def _from_nothing(self, point: Point, tolerance: float, at_start: Instability | None = None) -> OverlapSolution:
        """Return the fixed point after adding unstable directions, one after the other, until none grows.

        ``at_start`` is the instability at ``point``, the start, if it is known.
        """
        alpha, follower, solution, found = point.alpha, self._follower, None, at_start
        for _ in range(self.channel.indices + 1):
            solution = self._ended(follower.grown(point, at_start=found), tolerance)
            if solution.averages is None or not solution.settled:
                return solution
            point = self.point(alpha, solution.Q, solution.V)
            found = self.outside(solution, point)
            excess, doubt = alpha * found.rate - 1, 2 * alpha * found.error
            if not found.starts_by_itself and excess < -doubt:
                return _with_what_may_be_learned(solution, alpha * found.unseen, self.not_learned(point), tolerance)
            if not found.starts_by_itself and excess <= doubt:
                break
            follower = self._follower_on_more_nodes
        assert solution is not None
        if found is not None and found.starts_by_itself:
            return _without_tiny_overlaps(solution, tolerance)
        words = f"{solution.words}; alpha is within errors of the threshold of another index"
        return replace(solution, how=Status.INACCURATE, words=words)

    @cached_property
    def _follower(self) -> Dynamics:
        """The dynamics on coarse nodes with rough (fast, inaccurate) posteriors; its end is refined afterwards."""
        rough = self.nodes.rough
        return self if rough is self.nodes else Dynamics(self.channel, self.side_information, rough, self.held)

    @cached_property
    def _follower_on_more_nodes(self) -> Dynamics:
        """The dynamics on more nodes, for directions that decay on coarse nodes only.

        With posteriors from draws (they would take too long) and with exact averages, it is this object itself.
        """
        return self if self.channel.stochastic or self.nodes.exact else self._follower.on_more_nodes(MORE)

    def outside(self, end: OverlapSolution, point: Point) -> Instability:
        """Return the instability outside the learned subspace at ``point``.

        For diagonal overlaps it follows from the averages of ``end``, the solution at this point, if it has averages.
        """
        if self.channel.diagonal and point.learned > 0 and end.averages is not None:
            return diagonal_instability(end.averages.curvature, np.asarray(point.space.complement.any(1)))
        return self.growth(point)

    def _ended(self, end: DynamicsEnd, tolerance: float) -> OverlapSolution:
        """Return the solution at the end of the coarse dynamics, refined to ``tolerance`` if it is a fixed point."""
        if end.how.recovered:
            return self._recovered(end.words, marginal=end.how is Ending.MARGINAL)
        if end.point.learned == 0:
            return self._nothing_learned()
        if end.how is Ending.UNSETTLED:
            Q, V = end.point.Q, end.point.V
            unknown = np.full(Q.shape, np.nan)
            averages = self.nodes.with_evidence(self.nodes.few(V), V)
            return OverlapSolution(Q, V, unknown, averages, Status.NOT_CONVERGED, end.words)
        return refined(self, end.point, tolerance)

    def _recovered(self, words: str, marginal: bool = False) -> OverlapSolution:
        P, inside = self.channel.indices, self.visible @ self.visible.T
        zero = np.zeros((P, P))
        return OverlapSolution(inside, np.eye(P) - inside, zero, None, Status.EXACT_RECOVERY, words, marginal)

    def _nothing_learned(self) -> OverlapSolution:
        Q, V = self.nothing(0.0).Q, self.nothing(0.0).V
        words = f"converged: nothing {'else ' if Q.any() else ''}is learned"
        averages = self.nodes.with_evidence(self.nodes.block(0)(V), V)
        return OverlapSolution(Q, V, np.zeros(Q.shape), averages, Status.CONVERGED, words)


def _with_what_may_be_learned(
    solution: OverlapSolution, unseen: float, outside: np.ndarray, tolerance: float
) -> OverlapSolution:
    """Return the solution with ``unseen`` added to the error of Q along the unlearned directions ``outside`` (P, d).

    ``unseen`` is an overlap that the nodes do not exclude. The status is INACCURATE if it exceeds ``tolerance``.
    """
    solution = replace(solution, Q_error=solution.Q_error + unseen * abs(outside @ outside.T))
    if unseen <= tolerance:
        return solution
    words = (
        f"{solution.words}; in directions that count as not learned, an overlap of up to {unseen:.1e} is not excluded"
        f" (tolerance {tolerance:g})"
    )
    return replace(solution, how=Status.INACCURATE, words=words)


def _without_tiny_overlaps(solution: OverlapSolution, tolerance: float) -> OverlapSolution:
    """Return the solution with a remark and an error for neglected overlaps below ``NO_OVERLAP``.

    They belong to directions that are learned at any alpha. INACCURATE if ``tolerance`` is less than ``NO_OVERLAP``.
    """
    how = Status.INACCURATE if tolerance < NO_OVERLAP else solution.how
    words = f"{solution.words}; an overlap below {NO_OVERLAP:.0e} is left out"
    return replace(solution, how=how, words=words, Q_error=np.maximum(solution.Q_error, NO_OVERLAP))
