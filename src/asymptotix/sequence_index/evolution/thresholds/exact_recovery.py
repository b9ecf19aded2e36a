"""The smallest alpha at which the dynamics from zero overlap ends at full overlap in every visible direction.

Equation si-exact of docs/theory/sequence_index.md.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ....core.progress import Say, quietly, under
from ....core.status import Status
from ..dynamics import MARGINAL, Dynamics
from ..nodes import MORE
from ..point import Point
from .expected_time import AVERAGES_OF_RECOVERY, with_expected_time
from .last_fixed_point import last_fixed_point
from .threshold import NEVER, Threshold, not_below

#: Relative width to which the threshold is bisected, and relative distance from p/r from which on it is bisected.
_MARGIN = 0.005
#: Number of sets of nodes on which a threshold above p/r is bisected; fewer make its error uncertain.
_NODE_SETS = 4
#: Largest alpha that is tried, in units of p/r, the alpha above which full overlap is stable.
_LARGEST = 16.0
#: Alpha, in units of p/r, from which fixed points are followed: below a fold, and close enough to reach it soon.
_BELOW = 0.95
#: Number of standard errors by which exact recovery may come below the threshold found for the last direction.
_DOUBT = 3.0
#: Largest 1-q on coarse nodes from which more nodes may still lead to full overlap.
_ALMOST_FULL = 0.1


class _FullOverlap:
    """Test of whether the dynamics ends at full overlap at an alpha, started where it ended at a smaller alpha.

    At first it starts from zero overlap, or from the point ``foot``.
    """

    def __init__(self, evolution: Dynamics, foot: Point | None = None, say: Say = quietly) -> None:
        self.evolution, self.say = evolution, say
        self.ends = [evolution.nothing(0.0), *([] if foot is None else [foot])]
        self.bracket = (0.0, np.inf)

    @cached_property
    def on_more_nodes(self) -> Dynamics:
        """The dynamics on more nodes, which take long to prepare."""
        return self.evolution.on_more_nodes(MORE)

    def __call__(self, alpha: float) -> bool:
        low, high = self.bracket
        heading = f"exact recovery between {low:.4g} and {high:.4g}"
        self.say(f"{heading}: trying alpha = {alpha:.4g}")
        below = max((end for end in self.ends if end.alpha <= alpha), key=lambda end: end.alpha)
        end = self.evolution.grown(below.at(alpha), under(heading, self.say))
        if end.how.recovered:
            self.bracket = low, min(alpha, high)
            return True
        self.bracket = max(alpha, low), high
        self.ends.append(end.point)
        return False

    def bisected(self, low: float, high: float, margin: float) -> Threshold:
        """Return the smallest alpha with full overlap, between ``low`` without and ``high`` with it.

        ``margin`` is the width of the last interval relative to ``low``.
        """
        while high - low > margin * low:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self(middle) else (middle, high)
        return Threshold(0.5 * (low + high), 0.5 * (high - low))

    def near(self, alpha: float, margin: float, floor: float) -> Threshold:
        """Return the smallest alpha with full overlap, searched around ``alpha``, but not below ``floor``.

        ``margin`` is the relative width to which it is bisected.
        """
        lowest = floor * (1 + _MARGIN)
        low, high = max(0.97 * alpha, lowest), 1.03 * alpha
        while self(low):
            if low <= lowest:
                return Threshold(floor, _MARGIN * lowest)
            low, high = max(0.94 * low, lowest), low
        while not self(high):
            low, high = high, 1.06 * high
            if high > _LARGEST * lowest:
                return not_below(high)
        return self.bisected(low, high, margin)


def _recovers_on_more_nodes(recovers: _FullOverlap, end: Point) -> bool:
    """Whether more nodes reach full overlap from the point ``end``, where the dynamics on coarse nodes stopped."""
    evolution = recovers.evolution
    partial = end.learned < evolution.visible.shape[1] or end.space.rank == 0
    if evolution.nodes.exact or partial or end.largest_variance > _ALMOST_FULL:
        return False
    return _FullOverlap(recovers.on_more_nodes, end, recovers.say)(end.alpha)


def exact_recovery(
    evolution: Dynamics,
    foot: Point | None = None,
    *,
    last: Threshold | None = None,
    tolerance: float = _MARGIN,
    say: Say = quietly,
) -> Threshold:
    """Return the smallest alpha at which the dynamics from zero ends at full overlap, to a relative ``tolerance``.

    It is never below the bound up to which full overlap is unstable, nor below the threshold ``last``. If it is not at
    the bound, it is the largest alpha on the branch of fixed points, or comes from bisection if that is not found.

    Parameters
    ----------
    foot : Point, optional
        A point of the branch of fixed points that the dynamics from zero reaches; the branch is followed from it.
    last : Threshold, optional
        Largest known threshold of weak recovery of a direction.
    """
    bound = evolution.exact_recovery_bound
    if not np.isfinite(bound) or last == NEVER:
        return NEVER
    say = with_expected_time(say, AVERAGES_OF_RECOVERY, evolution.nodes)
    recovers, floor, low = _FullOverlap(evolution, foot, say), bound, bound * (1 + _MARGIN)
    certain = 0.0 if last is None else _certainly_not_learned(last)

    def end_of_branch() -> Threshold | None:
        if evolution.channel.diagonal or evolution.nodes.biased:
            return None
        return last_fixed_point(evolution, recovers.ends[-1], tolerance, say)

    if last is not None and certain > low:
        floor, low, high = certain, certain, (last.alpha + _DOUBT * last.error) * (1 + _MARGIN)
    else:
        high = 1.25 * bound
        fine = min(max(tolerance, MARGINAL), _MARGIN)
        # Coarse nodes may miss a fold slightly above the bound.
        if not evolution.nodes.exact and not recovers(_BELOW * bound) and (last_one := end_of_branch()) is not None:
            return _not_below_bound(last_one, bound, fine).checked(tolerance)
        if recovers(bound * (1 + fine)):
            return Threshold(bound, fine * bound).checked(tolerance)
        if (last_one := end_of_branch()) is not None:
            return _not_below_bound(last_one, bound, fine).checked(tolerance)
        margin = _margin_on_more_nodes(recovers, bound, fine)
        if margin is not None:
            return Threshold(bound, margin * bound).checked(tolerance)
    while not recovers(high):
        low, high = high, 1.5 * high
        if high > _LARGEST * floor:
            return not_below(low)
    return end_of_branch() or _on_several_sets_of_nodes(recovers, foot, low, high, floor, tolerance)


def _not_below_bound(last_one: Threshold, bound: float, margin: float) -> Threshold:
    """Return the threshold ``last_one`` of the last fixed point if it is certainly above ``bound`` * (1 + ``margin``).

    Otherwise return the bound, with an error that covers both.
    """
    if last_one.alpha - _DOUBT * last_one.error > bound * (1 + margin):
        return last_one
    return Threshold(bound, max(margin * bound, max(last_one.alpha - bound, 0.0) + last_one.error))


def _margin_on_more_nodes(recovers: _FullOverlap, bound: float, fine: float) -> float | None:
    """Return the smallest relative margin above ``bound``, ``fine`` or _MARGIN, with exact recovery on more nodes.

    None if there is none. Coarse nodes did not recover at ``fine``.
    """
    missed = recovers.ends[-1]
    if fine == _MARGIN:
        return fine if _recovers_on_more_nodes(recovers, missed) else None
    if not (recovers(bound * (1 + _MARGIN)) or _recovers_on_more_nodes(recovers, recovers.ends[-1])):
        return None
    return fine if _recovers_on_more_nodes(recovers, missed) else _MARGIN


def _certainly_not_learned(last: Threshold) -> float:
    """Return the alpha three errors below the threshold ``last``, where its direction is not learned; zero: unknown."""
    if last.how not in (Status.CONVERGED, Status.INACCURATE) or not np.isfinite(last.alpha):
        return 0.0
    return last.alpha - _DOUBT * last.error


def _on_several_sets_of_nodes(
    recovers: _FullOverlap, foot: Point | None, low: float, high: float, floor: float, tolerance: float
) -> Threshold:
    """Return the smallest alpha with full overlap: the mean over several sets of nodes, on which it is bisected.

    The first set searches between ``low`` (no full overlap) and ``high`` (full overlap), the others near its result,
    not below ``floor``. All start from ``foot``. A deterministic average has one set only. ``tolerance`` is relative.
    """
    evolution, exact = recovers.evolution, recovers.evolution.nodes.exact
    margin = min(tolerance, _MARGIN) if exact else _MARGIN
    found = [first := recovers.bisected(low, high, margin)]
    for number in range(1, 1 if exact else _NODE_SETS):
        say = under(f"nodes {number + 1} of {_NODE_SETS}", recovers.say)
        found.append(_FullOverlap(evolution.on_other_nodes(number), foot, say).near(first.alpha, margin, floor))
    alphas = np.array([one.alpha for one in found])
    if not np.isfinite(alphas).all():
        return next(one for one in found if one.how is Status.AT_BOUND)
    scatter = alphas.std(ddof=1) / np.sqrt(len(alphas)) if len(found) > 1 else 0.0
    error = np.linalg.norm([first.error, scatter, evolution.nodes.few.accuracy * first.alpha])
    return Threshold(float(alphas.mean()), float(error)).checked(tolerance)
