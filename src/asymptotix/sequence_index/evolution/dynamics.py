"""The dynamics of state evolution on coarse nodes: where the iteration leads from a given overlap.

The iteration runs from a stated start and is never solved as a root: a root may be an unstable fixed point, which no
algorithm reaches. Directions whose overlap decays to zero are removed, known directions are held, and unstable
directions are added.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from ...core.progress import Say, quietly
from ...numerics.iteration import FixedPoint, fixed_point
from ...numerics.linear_algebra import to_logit
from .coordinates import KNOWN_LOGIT
from .instability import Instability
from .nodes import Nodes
from .overlap_map import MISALIGNED, OverlapMap
from .point import Point

#: Overlap below which an index counts as not learned.
NO_OVERLAP = 1e-5
#: Largest 1-q of all directions at which exact recovery is declared, for an alpha at which Q = I is stable.
NEARLY_EXACT = 2e-3
#: Relative distance of alpha from the stability limit of Q = I within which quadrature errors decide the outcome.
MARGINAL = 1e-3
#: Largest number of times that the learned subspace is turned; the last time it is enlarged instead.
_TURNS = 4
#: Largest number of turns of the known directions, and the sine of a turn after which they stay. A turn corrects the
#: angle to a third of it, or better; sqrt(1-q) = 1e-3 is the angle by which samples would confuse two directions.
_AIMS, _ON_AIM = 20, 1e-6
#: Largest number of times that the iteration goes on because known directions have turned since.
_RESUMED = 3


class Ending(Enum):
    """How the dynamics ended."""

    SETTLED = auto()
    EXACT = auto()
    MARGINAL = auto()
    UNSETTLED = auto()

    @property
    def recovered(self) -> bool:
        """Whether the overlap tends to one in every visible direction."""
        return self in (Ending.EXACT, Ending.MARGINAL)


@dataclass(frozen=True)
class DynamicsEnd:
    """End of the dynamics on coarse nodes: the point, how it ended, and the text of the status."""

    point: Point
    how: Ending
    words: str = "converged: nothing is learned"


class _Stop(Enum):
    """Reason to leave an iteration before its fixed point; LOST: a direction decayed to zero overlap."""

    LOST = "lost an index"
    KNOWN = "an index is known"
    EXACT = "exact recovery"
    MARGINAL = "exact recovery is marginal"


class Dynamics(OverlapMap):
    """Follows the iteration of state evolution of one channel, on coarse nodes, to its end."""

    def on_other_nodes(self, number: int) -> Dynamics:
        """Return this dynamics on independent nodes; ``number`` 0 gives the same nodes."""
        return self._on(self.nodes.others(number))

    def on_more_nodes(self, factor: int) -> Dynamics:
        """Return this dynamics on ``factor`` times as many nodes."""
        return self._on(self.nodes.more(factor))

    def _on(self, nodes: Nodes) -> Dynamics:
        other = Dynamics(self.channel, self.side_information, nodes, self.held)
        other.visible = self.visible  # it does not depend on the nodes, and costs a block of them
        return other

    def grown(self, point: Point, say: Say = quietly, at_start: Instability | None = None) -> DynamicsEnd:
        """Return the end of the iteration from a point, to which all unstable directions are added one by one.

        ``at_start`` is the instability at the point itself, if it is known.
        """
        end, settled = DynamicsEnd(point, Ending.SETTLED), point.learned == 0
        for _ in range(2 * self.channel.indices + 1):
            say(f"alpha = {point.alpha:.4g}, {end.point.learned} directions learned, growth of the rest")
            found, learned = at_start or self.growth(end.point), end.point.learned
            at_start = None
            grows = found.starts_by_itself or point.alpha * found.rate > 1
            if not grows and settled:
                break
            end = self.followed(self.entered(end.point, found) if grows else end.point, say)
            settled = True
            if end.how is not Ending.SETTLED or (grows and end.point.learned <= learned):
                break
        return end

    def followed(self, point: Point, say: Say = quietly) -> DynamicsEnd:
        """Return the end of the iteration from a point; decaying directions leave, the learned subspace is turned."""
        end = DynamicsEnd(point, Ending.SETTLED)
        for turn in range(_TURNS + 1):
            end = self._iterated(end.point, say)
            if self.channel.diagonal or self.nodes.noisy or end.how is not Ending.SETTLED:
                break
            turned = self._aligned(end.point, enlarge=turn >= _TURNS - 1)
            if turned is None:
                break
            # This status remains if it was the last turn.
            end = DynamicsEnd(turned, Ending.UNSETTLED, f"not converged: the learned subspace turned {turn + 1} times")
        return end

    def _iterated(self, point: Point, say: Say) -> DynamicsEnd:
        """Iterate in one subspace, which becomes smaller when directions are lost or become known."""
        for _ in range(point.space.rank + 1 + _RESUMED):
            if point.space.rank == 0:
                return DynamicsEnd(point, Ending.SETTLED, "converged: nothing else is learned")
            point, stopped, found = self._run(point, say)
            if stopped is _Stop.LOST:
                point = point.without(float(to_logit(NO_OVERLAP)))
            elif stopped is _Stop.KNOWN:
                point = self._aimed(point.pinned())
            elif stopped is _Stop.EXACT:
                return DynamicsEnd(point, Ending.EXACT, self.contraction(point.alpha))
            elif stopped is _Stop.MARGINAL:
                words = f"exact recovery is marginal at alpha = {self.exact_recovery_bound / self.copies:g}"
                return DynamicsEnd(point, Ending.MARGINAL, f"{words}: 1-q falls algebraically only")
            else:
                end = DynamicsEnd(point, Ending.SETTLED if found.converged else Ending.UNSETTLED, found.status)
                aimed = self._aimed(point)
                if _turn(point, aimed) < 10 * _ON_AIM:
                    return end
                point = aimed
        return DynamicsEnd(point, Ending.UNSETTLED, "not converged: known directions still turn")

    def _aimed(self, point: Point) -> Point:
        """Return the point with its known directions turned to leading eigenvectors of E[g g^T] on coarse nodes.

        The iteration no longer moves a known direction. When it becomes known it is wrong by an angle of the order of
        sqrt(1-q), or by that of the subspace that was left when another direction was lost. Without the turn, samples
        that show only this direction would also seem to show the others.
        """
        if self.channel.diagonal or point.space.known is None:
            return point
        for _ in range(_AIMS):
            before, point = point, point.aimed(self.nodes.few(point.V).second_moment.mean(0))
            if _turn(before, point) < _ON_AIM:
                break
        return point

    def _run(self, point: Point, say: Say) -> tuple[Point, _Stop | None, FixedPoint]:
        """Return the end of the iteration, the reason why it was left early or None, and the iteration's own result."""
        stopped: _Stop | None = None
        steps, where = itertools.count(1), f"alpha = {point.alpha:.4g}, {point.learned} directions learned"

        def step(x: np.ndarray) -> np.ndarray:
            say(f"{where}, iteration {next(steps)}")
            return self.after(self.nodes.few, point.moved(x))

        def stop(x: np.ndarray, residual: float) -> str | None:
            nonlocal stopped
            stopped = self._early_end(point.moved(x))
            return None if stopped is None else stopped.value

        found = fixed_point(
            step, point.x, tolerance=self._tolerance(point.alpha), max_steps=150 if self.nodes.noisy else 400,
            anderson=2, max_move=1.0, stride=8.0, stop=stop,
        )  # fmt: skip
        return point.moved(found.x), stopped, found

    def _tolerance(self, alpha: float) -> float:
        """Return the residual of a fixed point: small for deterministic averages, else about the noise of the nodes.

        Above p/r logits drift towards full overlap, slowly by log(alpha r/p) per iteration, and at p/r itself ever more
        slowly. The residual is smaller than this drift, so that it does not count as a fixed point.
        """
        if self.nodes.exact:
            return 1e-9
        noise = 1e-2 if self.nodes.noisy else 2e-3
        bound = self.exact_recovery_bound
        drift = float(np.log(alpha / bound)) if np.isfinite(bound) else -np.inf
        return min(noise, max(0.2 * drift, 2e-4)) if drift > -MARGINAL else noise

    def _early_end(self, point: Point) -> _Stop | None:
        """Return why the iteration may stop: a direction is lost or known, or all are nearly recovered. Else None."""
        if self.side_information == 0 and point.logits[0] < to_logit(NO_OVERLAP):
            return _Stop.LOST
        contraction = self.exact_recovery_bound / point.alpha
        everything = point.learned == self.visible.shape[1]
        if everything and np.isfinite(contraction) and point.largest_variance <= NEARLY_EXACT:
            if abs(contraction - 1) < MARGINAL:
                return _Stop.MARGINAL
            if contraction < 1:
                return _Stop.EXACT
        return _Stop.KNOWN if point.logits[-1] >= KNOWN_LOGIT else None

    def contraction(self, alpha: float) -> str:
        """Return the text of a status that says how fast full overlap is approached at this alpha."""
        return f"exact recovery: 1-q contracts by {self.exact_recovery_bound / alpha:.3g} per iteration"

    def _aligned(self, point: Point, enlarge: bool) -> Point | None:
        """Return the point with its learned subspace turned to the range of E[g g^T]; None if it is already there.

        Directions that coarse nodes have chosen are slightly wrong; one step with the full matrix corrects them to
        second order. A direction that remains is learned itself: ``enlarge`` adds it.
        """
        outside = self.not_learned(point)
        if outside.shape[1] == 0:
            return None
        moment = point.alpha * self.nodes.few(point.V).second_moment.mean(0)
        values, vectors = np.linalg.eigh(outside.T @ moment @ outside)
        if values[-1] < MISALIGNED:
            return None
        if enlarge or point.space.rank == 0:
            new = values > MISALIGNED
            axes = outside @ vectors[:, new]
            return point.enlarged((axes * values[new]) @ axes.T)
        rest = np.eye(len(moment)) - point.space.immobile @ point.space.immobile.T
        return point.turned(np.linalg.eigh(rest @ moment @ rest)[1][:, -point.space.rank :])


def _turn(before: Point, after: Point) -> float:
    """Return the sine of the largest angle between the known directions of two points."""
    known = before.space.certain
    return float(np.linalg.norm(after.space.certain - known @ (known.T @ after.space.certain)))
