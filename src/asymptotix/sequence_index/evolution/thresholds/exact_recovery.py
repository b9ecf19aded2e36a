"""The smallest alpha at which the dynamics from nothing ends at full overlap in every visible direction.

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

#: Relative width to which the threshold is bisected.
_MARGIN = 0.005
#: Sets of nodes on which exact recovery is looked for, where it comes after full overlap is stable.
_NODE_SETS = 4
#: Largest alpha that is tried, in units of p/r.
_LARGEST = 16.0
#: Where fixed points are followed from, in units of p/r: below a fold, close enough to be there soon.
_BELOW = 0.95
#: Standard errors by which exact recovery may come below where the last direction was found to be learned.
_DOUBT = 3.0
#: Largest 1-q at which more nodes may still lead to full overlap.
_ALMOST_FULL = 0.1


class _FullOverlap:
    """Whether the dynamics from nothing ends at full overlap; each alpha starts where a smaller one ended."""

    def __init__(self, evolution: Dynamics, foot: Point | None = None, say: Say = quietly) -> None:
        self.evolution, self.say = evolution, say
        self.ends = [evolution.nothing(0.0), *([] if foot is None else [foot])]
        self.bracket = (0.0, np.inf)

    @cached_property
    def on_more_nodes(self) -> Dynamics:
        """The same dynamics on more nodes, which take long to prepare."""
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
        """The smallest alpha with full overlap, between one without and one with it."""
        while high - low > margin * low:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self(middle) else (middle, high)
        return Threshold(0.5 * (low + high), 0.5 * (high - low))

    def near(self, alpha: float, margin: float, floor: float) -> Threshold:
        """As :meth:`bisected`, from an alpha close to it; never below a floor, where it cannot be."""
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
    """Whether full overlap, missed by little at this end on few nodes, is reached on more.

    Just above p/r the dynamics is marginal, and the noise of few nodes can hold it up close to full overlap.
    """
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
    """Smallest alpha at which the uninformed start ends at full overlap.

    Never below the bound up to which full overlap is unstable, nor below where the last direction starts to be learned.
    Closer to the bound than 1e-3 the dynamics is marginal, and what it does is not known; elsewhere it is where the
    branch of fixed points ends, or bisected where that is not found, to the relative ``tolerance``.

    Parameters
    ----------
    foot : Point, optional
        A point of the branch of the uninformed start, from which it is followed.
    last : Threshold, optional
        Where the last direction that is known starts to be learned.
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
        # Few nodes may pass by a fold that is little above the bound.
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
    """The last fixed point, or the bound where it is not certain that there is one above."""
    if last_one.alpha - _DOUBT * last_one.error > bound * (1 + margin):
        return last_one
    return Threshold(bound, max(margin * bound, max(last_one.alpha - bound, 0.0) + last_one.error))


def _margin_on_more_nodes(recovers: _FullOverlap, bound: float, fine: float) -> float | None:
    """How closely above the bound recovery is exact, ``fine`` or _MARGIN, where few nodes miss it; None where not.

    More nodes, which take long, are asked for the fine margin only where there is recovery at the wider one.
    """
    missed = recovers.ends[-1]
    if fine == _MARGIN:
        return fine if _recovers_on_more_nodes(recovers, missed) else None
    if not (recovers(bound * (1 + _MARGIN)) or _recovers_on_more_nodes(recovers, recovers.ends[-1])):
        return None
    return fine if _recovers_on_more_nodes(recovers, missed) else _MARGIN


def _certainly_not_learned(last: Threshold) -> float:
    """An alpha up to which a direction is not learned, from where it starts to be; zero where that is not known."""
    if last.how not in (Status.CONVERGED, Status.INACCURATE) or not np.isfinite(last.alpha):
        return 0.0
    return last.alpha - _DOUBT * last.error


def _on_several_sets_of_nodes(
    recovers: _FullOverlap, foot: Point | None, low: float, high: float, floor: float, tolerance: float
) -> Threshold:
    """Bisected between two alphas, and near by on other nodes: where the dynamics passes depends on them.

    Those start from the ``foot`` too: what grows there need not be found on a block of each of them.

    A deterministic average has none.
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
