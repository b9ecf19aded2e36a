"""The smallest alpha at which the dynamics from nothing ends at full overlap in every visible direction."""

from __future__ import annotations

import numpy as np

from ....core.status import Status
from ....numerics import interrupts
from ..dynamics import MARGINAL, Dynamics
from ..nodes import MORE
from ..point import Point
from .threshold import NEVER, Threshold, not_below

#: Relative width to which the threshold is bisected.
_MARGIN = 0.005
#: Sets of nodes on which exact recovery is looked for, where it comes after full overlap is stable.
_NODE_SETS = 4
#: Largest alpha that is tried, in units of p/r.
_LARGEST = 16.0
#: Largest 1-q at which more nodes may still lead to full overlap.
_ALMOST_FULL = 0.1


class _FullOverlap:
    """Whether the dynamics from nothing ends at full overlap; each alpha starts where a smaller one ended."""

    def __init__(self, evolution: Dynamics, foot: Point | None = None) -> None:
        self.evolution = evolution
        self.ends = [evolution.nothing(0.0), *([] if foot is None else [foot])]

    def __call__(self, alpha: float) -> bool:
        interrupts.check()
        below = max((end for end in self.ends if end.alpha <= alpha), key=lambda end: end.alpha)
        end = self.evolution.grown(below.at(alpha))
        if end.how.recovered:
            return True
        self.ends.append(end.point)
        return False

    def bisected(self, low: float, high: float, margin: float) -> Threshold:
        """The smallest alpha with full overlap, between one without and one with it."""
        while high - low > margin * low:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self(middle) else (middle, high)
        return Threshold(0.5 * (low + high), 0.5 * (high - low))

    def near(self, alpha: float, margin: float) -> Threshold:
        """As :meth:`bisected`, from an alpha close to it; never below p/r, where full overlap is unstable."""
        bound = self.evolution.exact_recovery_bound * (1 + _MARGIN)
        low, high = max(0.97 * alpha, bound), 1.03 * alpha
        while self(low):
            if low <= bound:
                return Threshold(self.evolution.exact_recovery_bound, _MARGIN * bound)
            low, high = max(0.94 * low, bound), low
        while not self(high):
            low, high = high, 1.06 * high
            if high > _LARGEST * bound:
                return not_below(high)
        return self.bisected(low, high, margin)


def _recovers_on_more_nodes(recovers: _FullOverlap) -> bool:
    """Whether full overlap, last missed by little on few nodes, is reached on more.

    Just above p/r the dynamics is marginal, and the noise of few nodes can hold it up close to full overlap.
    """
    evolution, end = recovers.evolution, recovers.ends[-1]
    partial = end.learned < evolution.visible.shape[1] or end.space.rank == 0
    if evolution.nodes.exact or partial or end.largest_variance > _ALMOST_FULL:
        return False
    return _FullOverlap(evolution.on_more_nodes(MORE), end)(end.alpha)


def exact_recovery(evolution: Dynamics, foot: Point | None = None, *, tolerance: float = _MARGIN) -> Threshold:
    """Smallest alpha at which the uninformed start ends at full overlap; ``foot`` is a point of its branch.

    Closer to p/r than 1e-3 the dynamics is marginal, and what it does is not known; elsewhere it is bisected to the
    relative ``tolerance``.
    """
    bound = evolution.exact_recovery_bound
    if not np.isfinite(bound):
        return NEVER
    recovers, high = _FullOverlap(evolution, foot), 1.25 * bound
    for margin in sorted({min(max(tolerance, MARGINAL), _MARGIN), _MARGIN}):
        if recovers(bound * (1 + margin)) or _recovers_on_more_nodes(recovers):
            return Threshold(bound, margin * bound).checked(tolerance)
    low = bound * (1 + _MARGIN)
    while not recovers(high):
        low, high = high, 1.5 * high
        if high > _LARGEST * bound:
            return not_below(low)
    # Where the dynamics passes depends on the nodes; a deterministic average has none.
    margin = min(tolerance, _MARGIN) if evolution.nodes.exact else _MARGIN
    first = recovers.bisected(low, high, margin)
    others = [] if evolution.nodes.exact else [evolution.on_other_nodes(k) for k in range(1, _NODE_SETS)]
    found = [first, *(_FullOverlap(other).near(first.alpha, margin) for other in others)]
    alphas = np.array([one.alpha for one in found])
    if not np.isfinite(alphas).all():
        return next(one for one in found if one.how is Status.AT_BOUND)
    scatter = alphas.std(ddof=1) / np.sqrt(len(alphas)) if others else 0.0
    return Threshold(float(alphas.mean()), float(np.hypot(first.error, scatter))).checked(tolerance)
