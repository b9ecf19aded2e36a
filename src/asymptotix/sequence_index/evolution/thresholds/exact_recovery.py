"""The smallest alpha at which the dynamics from nothing ends at full overlap in every visible direction."""

from __future__ import annotations

import numpy as np

from ..dynamics import Dynamics
from ..nodes import MORE
from ..point import Point
from .threshold import NEVER, Threshold

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
        below = max((end for end in self.ends if end.alpha <= alpha), key=lambda end: end.alpha)
        end = self.evolution.grown(below.at(alpha))
        if end.how.recovered:
            return True
        self.ends.append(end.point)
        return False

    def bisected(self, low: float, high: float) -> Threshold:
        """The smallest alpha with full overlap, between one without and one with it."""
        while high - low > _MARGIN * low:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self(middle) else (middle, high)
        return Threshold(0.5 * (low + high), 0.5 * (high - low))

    def near(self, alpha: float) -> Threshold:
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
                return NEVER
        return self.bisected(low, high)


def _recovers_on_more_nodes(recovers: _FullOverlap) -> bool:
    """Whether full overlap, last missed by little on few nodes, is reached on more.

    Just above p/r the dynamics is marginal, and the noise of few nodes can hold it up close to full overlap.
    """
    evolution, end = recovers.evolution, recovers.ends[-1]
    partial = end.learned < evolution.visible.shape[1] or end.space.rank == 0
    if evolution.nodes.exact or partial or end.largest_variance > _ALMOST_FULL:
        return False
    return _FullOverlap(evolution.on_more_nodes(MORE), end)(end.alpha)


def exact_recovery(evolution: Dynamics, foot: Point | None = None) -> Threshold:
    """Smallest alpha at which the uninformed start ends at full overlap; ``foot`` is a point of its branch."""
    bound = evolution.exact_recovery_bound
    if not np.isfinite(bound):
        return NEVER
    recovers = _FullOverlap(evolution, foot)
    low, high = bound * (1 + _MARGIN), 1.25 * bound
    if recovers(low) or _recovers_on_more_nodes(recovers):
        return Threshold(bound, _MARGIN * bound)
    while not recovers(high):
        low, high = high, 1.5 * high
        if high > _LARGEST * bound:
            return NEVER
    first = recovers.bisected(low, high)
    # Where the dynamics passes depends on the nodes; a deterministic average has none.
    others = [] if evolution.nodes.exact else [evolution.on_other_nodes(k) for k in range(1, _NODE_SETS)]
    alphas = np.array([first.alpha, *(_FullOverlap(other).near(first.alpha).alpha for other in others)])
    scatter = alphas.std(ddof=1) / np.sqrt(len(alphas)) if others else 0.0
    return Threshold(float(alphas.mean()), float(np.hypot(first.error, scatter)))
