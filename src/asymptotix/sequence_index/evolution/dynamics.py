"""The dynamics of state evolution on coarse nodes: where the iteration leads from a given overlap.

The iteration runs from a stated start and is never solved as a root: a root may be an unstable fixed point, which no
algorithm reaches. Directions whose overlap decays to zero are removed, known directions (1-q = 1e-6) are fixed, and
unstable directions are added.
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
#: Largest 1-q of any direction at which exact recovery is declared, for an alpha at which Q = I is stable.
NEARLY_EXACT = 2e-3
#: Relative distance of alpha from the stability limit of Q = I within which quadrature errors decide the outcome.
MARGINAL = 1e-3
#: Turn of the learned subspace from which on it is enlarged instead. After one more turn the dynamics is unsettled.
_TURNS = 4
#: Largest number of successive turns of the known directions, and sine of the angle below which a turn is the last one.
#: Angles of sqrt(1-q) = 1e-3 would let samples confuse two directions.
_AIMS, _ON_AIM = 20, 1e-6
#: Largest number of further iterations because known directions have turned; then the dynamics counts as unsettled.
_RESUMED = 3


class Ending(Enum):
    """How the dynamics ended: at a fixed point, at exact recovery, where recovery is marginal, or without settling."""

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
    """End of the dynamics on coarse nodes: its last point, how it ended, and a status text (``words``)."""

    point: Point
    how: Ending
    words: str = "converged: nothing is learned"


class _Stop(Enum):
    """Reason to leave an iteration before its fixed point.

    LOST: a direction decayed to zero overlap. KNOWN: a direction reached 1-q = 1e-6. EXACT, MARGINAL: all directions
    are nearly recovered, above or at the alpha where full overlap becomes stable.
    """

    LOST = "lost an index"
    KNOWN = "an index is known"
    EXACT = "exact recovery"
    MARGINAL = "exact recovery is marginal"


class Dynamics(OverlapMap):
    """The iteration of state evolution of one channel, followed to its end on coarse nodes."""

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
        """Return the end of the iteration from ``point``, with all unstable directions added one after the other.

        ``at_start`` is the instability at ``point`` itself, if it is known.
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
        """Return the end of the iteration from ``point``.

        Directions that decay to zero overlap are removed. The learned subspace is turned until it settles, too.
        """
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
        """Return the end of the iteration from ``point``; directions leave at zero overlap or at 1-q = 1e-6 (known)."""
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
                if not found.converged:
                    return DynamicsEnd(point, Ending.UNSETTLED, found.status)
                aimed = self._aimed(point)
                if _turn(point, aimed) < 10 * _ON_AIM:
                    return DynamicsEnd(point, Ending.SETTLED, found.status)
                point = aimed
        return DynamicsEnd(point, Ending.UNSETTLED, "not converged: known directions still turn")

    def _aimed(self, point: Point) -> Point:
        """Return the point with its known directions turned to leading eigenvectors of E[g g^T] (g: score).

        The iteration itself no longer moves a known direction (1-q = 1e-6). When a direction becomes known it is wrong
        by an angle of about sqrt(1-q). Samples that show only this direction would then also seem to show others.
        """
        if self.channel.diagonal or point.space.known is None:
            return point
        for _ in range(_AIMS):
            before, point = point, point.aimed(self.nodes.few(point.V).second_moment.mean(0))
            if _turn(before, point) < _ON_AIM:
                break
        return point

    def _run(self, point: Point, say: Say) -> tuple[Point, _Stop | None, FixedPoint]:
        """Return the last point of an iteration, the reason for an early stop or None, and the solver's result."""
        stopped: _Stop | None = None
        steps, where = itertools.count(1), f"alpha = {point.alpha:.4g}, {point.learned} directions learned"

        def step(x: np.ndarray) -> np.ndarray:
            say(f"{where}, iteration {next(steps)}")
            return self.after(self.nodes.few, point.moved(x))

        def stop(x: np.ndarray, residual: float) -> str | None:
            nonlocal stopped
            stopped = self._early_end(point.moved(x))
            return None if stopped is None else stopped.value

        most = 150 if self.nodes.noisy else 400
        options = {"tolerance": self._tolerance(point.alpha), "max_steps": most, "stop": stop}
        found = fixed_point(step, point.x, anderson=2, max_move=1.0, stride=8.0, **options)
        if not found.converged and stopped is None:
            # A long stride may tilt a direction that is nearly known, again and again: the plain iteration does not.
            found = fixed_point(step, found.x, **options)
        return point.moved(found.x), stopped, found

    def _tolerance(self, alpha: float) -> float:
        """Return the largest step of the logits at which a point counts as fixed.

        It is 1e-9 for deterministic averages, else about the noise of the nodes, but smaller than the drift of the
        logits towards full overlap above the bound p/r of exact recovery, log(alpha r/p) per iteration.
        """
        if self.nodes.exact:
            return 1e-9
        noise = 1e-2 if self.nodes.noisy else 2e-3
        bound = self.exact_recovery_bound
        drift = float(np.log(alpha / bound)) if np.isfinite(bound) else -np.inf
        return min(noise, max(0.2 * drift, 2e-4)) if drift > -MARGINAL else noise

    def _early_end(self, point: Point) -> _Stop | None:
        """Return why the iteration may stop at ``point``, or None to go on."""
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
        """Return the status text with the factor by which 1-q falls per iteration near full overlap at this alpha."""
        return f"exact recovery: 1-q contracts by {self.exact_recovery_bound / alpha:.3g} per iteration"

    def _aligned(self, point: Point, enlarge: bool) -> Point | None:
        """Return the point with its learned subspace turned to the range of E[g g^T]; None if no turn is needed.

        g is the score of a sample. With ``enlarge``, directions outside the subspace in which E[g g^T] is not zero are
        added instead.
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
    """Return the root of the sum of squared sines of the angles between the known directions of two points."""
    known = before.space.certain
    return float(np.linalg.norm(after.space.certain - known @ (known.T @ after.space.certain)))
