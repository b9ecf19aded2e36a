"""The dynamics of state evolution on few nodes: where the iteration leads from a given overlap.

It is iterated as dynamics from a stated start, never solved as a root: unstable fixed points are real and are not what
an algorithm reaches. Directions that die out are left out, those that are known are held, and what is unstable enters.
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

#: Below this overlap an index counts as not learned.
NO_OVERLAP = 1e-5
#: Exact recovery is declared when every 1-q is below this and falls, at an alpha at which Q = I is stable.
NEARLY_EXACT = 2e-3
#: Relative distance from that alpha within which the fate of an overlap near one hangs on the quadrature.
MARGINAL = 1e-3
#: Times that the learned subspace is turned at most; the last time it is enlarged instead.
_TURNS = 4
#: Times that known directions are turned; see :meth:`Dynamics._aimed`.
_AIMS = 3


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
    """Where the dynamics ended on few nodes: a point, how, and that in words."""

    point: Point
    how: Ending
    words: str = "converged: nothing is learned"


class _Stop(Enum):
    """Why an iteration is left before its fixed point."""

    LOST = "lost an index"
    KNOWN = "an index is known"
    EXACT = "exact recovery"
    MARGINAL = "exact recovery is marginal"


class Dynamics(OverlapMap):
    """Follows the iteration of one channel."""

    def on_other_nodes(self, number: int) -> Dynamics:
        """The same on independent nodes; 0 is this one."""
        return self._on(self.nodes.others(number))

    def on_more_nodes(self, factor: int) -> Dynamics:
        """The same on so many times the nodes."""
        return self._on(self.nodes.more(factor))

    def _on(self, nodes: Nodes) -> Dynamics:
        other = Dynamics(self.channel, self.side_information, nodes, self.held)
        other.visible = self.visible  # the nodes have no part in it, and it takes a block of them to find
        return other

    def grown(self, point: Point, say: Say = quietly, at_start: Instability | None = None) -> DynamicsEnd:
        """Where the dynamics ends once all that grows has entered, the most unstable direction first.

        ``at_start`` is what grows at the point itself, where that is known.
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
        """Where the dynamics ends; directions that die out are left out, the subspace is turned where it must."""
        end = DynamicsEnd(point, Ending.SETTLED)
        for turn in range(_TURNS + 1):
            end = self._iterated(end.point, say)
            if self.channel.diagonal or self.nodes.noisy or end.how is not Ending.SETTLED:
                break
            turned = self._aligned(end.point, enlarge=turn >= _TURNS - 1)
            if turned is None:
                break
            # As the last word, that it must still be turned.
            end = DynamicsEnd(turned, Ending.UNSETTLED, f"not converged: the learned subspace turned {turn + 1} times")
        return end

    def _iterated(self, point: Point, say: Say) -> DynamicsEnd:
        """The iteration in one subspace, which becomes smaller as directions are lost or known."""
        for _ in range(point.space.rank + 1):
            if point.space.rank == 0:
                break
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
                return DynamicsEnd(point, Ending.SETTLED if found.converged else Ending.UNSETTLED, found.status)
        return DynamicsEnd(point, Ending.SETTLED, "converged: nothing else is learned")

    def _aimed(self, point: Point) -> Point:
        """The point with known directions where the map on few nodes has them, once they are as good as known.

        A known direction is not moved by the iteration any more. Off by an angle of the order of sqrt(1-q), as it is
        when it comes to be known, it would show the others something in every sample that shows only itself.
        """
        if self.channel.diagonal:
            return point
        for _ in range(_AIMS):
            point = point.aimed(self.nodes.few(point.V).second_moment.mean(0))
        return point

    def _run(self, point: Point, say: Say) -> tuple[Point, _Stop | None, FixedPoint]:
        """The end of the iteration, why it was left early (None: it was not), and what the iteration says of it."""
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
        """Deterministic averages are solved to the end; noisy ones as far as they carry information.

        Above p/r a slow drift towards full overlap, by log(alpha r/p) a step, must not pass for a fixed point; nor, at
        p/r itself, one that becomes ever slower.
        """
        if self.nodes.exact:
            return 1e-9
        noise = 1e-2 if self.nodes.noisy else 2e-3
        bound = self.exact_recovery_bound
        drift = float(np.log(alpha / bound)) if np.isfinite(bound) else -np.inf
        return min(noise, max(0.2 * drift, 2e-4)) if drift > -MARGINAL else noise

    def _early_end(self, point: Point) -> _Stop | None:
        """Whether an index is lost or known, or everything as good as recovered."""
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
        """How fast full overlap is approached, in words."""
        return f"exact recovery: 1-q contracts by {self.exact_recovery_bound / alpha:.3g} per iteration"

    def _aligned(self, point: Point, enlarge: bool) -> Point | None:
        """The subspace in which g_out lives at the end point, where it is not the one iterated in.

        Found with few nodes its directions are a little off; one step of the full matrix corrects that to second
        order. What it does not correct is learned itself.
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
