"""Search for the minimum of a function of one variable whose values and slopes are known to their errors.

A minimum is a root of the slope. It is enclosed first, between two bounds or downhill from a start, then found on
coarse averages, then on fine ones where its error is beyond the tolerance. Its error is that of the slope there over
the curvature, and what is left of the search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..status import Status

#: Share of the error of a slope below which the slope counts as zero: the search ends there.
_SETTLED = 0.2
#: Share of the tolerance that is left to the search, beside the error of the slope.
_LEFT = 0.3
#: Points between two bounds at which a minimum is looked for where their slopes do not enclose one.
_SCAN = 9
#: Distance at which slopes are compared for the curvature, and the farthest at which they are.
_BESIDE, _NEAREST, _FARTHEST = 0.1, 0.02, 0.5
#: Width of a bracket that is halved.
_WIDE = 1.5
_MOST_STEPS, _MOST_STRIDES = 40, 30


class Look(NamedTuple):
    """A function at one place: value and slope with their errors, and the status of the point."""

    at: float
    value: float
    slope: float
    value_error: float = 0.0
    slope_error: float = 0.0
    status: Status = Status.CONVERGED
    words: str = ""

    @property
    def sign(self) -> int:
        """Sign of the slope; 0 where its error leaves the sign open, and where there is no slope."""
        return int(np.sign(self.slope)) if abs(self.slope) > np.nan_to_num(self.slope_error) else 0

    @property
    def doubtful(self) -> bool:
        """Whether the theory does not vouch for the point: an error beyond the tolerance is no doubt, being known."""
        return not self.status.converged and self.status is not Status.INACCURATE


@dataclass(frozen=True)
class Minimum:
    """Where the search ended: ``here`` is the last look, ``error`` that of its place."""

    here: Look
    error: float
    inside: bool
    status: Status
    words: str = ""


class MinimumSearch:
    """Looks at a function here and there, and keeps what it has seen.

    Parameters
    ----------
    look : callable
        ``look(at, fine)`` gives a :class:`Look`; with ``fine`` from averages as accurate as they get.
    show : callable
        What people call a place.
    """

    def __init__(self, look: Callable[[float, bool], Look], show: Callable[[float], str]) -> None:
        self._look, self._show = look, show
        self.seen: dict[tuple[float, bool], Look] = {}

    def at(self, place: float, *, fine: bool = False) -> Look:
        """The function at a place, looked at once."""
        if (place, fine) not in self.seen:
            self.seen[place, fine] = self._look(place, fine)
        return self.seen[place, fine]

    # -- from outside ------------------------------------------------------------------------------------------

    def between(self, low: float, high: float, tolerance: float) -> Minimum:
        """The minimum between two bounds, to a tolerance in the variable.

        Where the slopes at the bounds do not enclose it, because the function is flat there, say, it is looked for at
        places between.
        """
        ends = self.at(low), self.at(high)
        if ends[0].sign < 0 < ends[1].sign:
            found = self._refined(self._root(*ends, tolerance), tolerance)
            best = min(ends, key=lambda end: end.value)
            if not found.here.value > best.value:
                return found
        looks = [ends[0], *(self.at(place) for place in np.linspace(low, high, _SCAN)[1:-1].tolist()), ends[1]]
        known = [look for look in looks if np.isfinite(look.value)]
        if not known:
            return self._judged(ends[0], np.inf, Status.FAILED, "nothing is known between the bounds", inside=False)
        best = min(known, key=lambda look: look.value)
        around = self._enclosed(known, known.index(best))
        if around is not None:
            return self._refined(self._root(*around, tolerance), tolerance)
        return self._without_slopes(looks, best)

    def downhill(self, start: float, stride: float, least: float, tolerance: float) -> Minimum | None:
        """The first minimum downhill from a start; None where the function falls all the way down to ``least``.

        Strides grow by half on the way down, where a function may fall over many orders of magnitude.
        """
        here, went = self.at(start), 0
        for _ in range(_MOST_STRIDES):
            toward = -int(np.sign(here.slope)) if here.slope == here.slope else 0
            if toward == 0 or toward == -went:
                break
            following = self.at(here.at + toward * stride)
            if following.at < least or (toward < 0 and not np.isfinite(following.slope)):
                return None
            if np.sign(following.slope) == toward:
                low, high = (here, following) if toward > 0 else (following, here)
                return self._refined(self._root(low, high, tolerance), tolerance)
            here, went = following, toward
            stride *= 1.5 if toward < 0 else 1.0
        return self._flat(here)

    # -- enclosed ----------------------------------------------------------------------------------------------

    def _enclosed(self, looks: list[Look], best: int) -> tuple[Look, Look] | None:
        """Neighbours between which the slope goes from negative to positive, around the lowest look."""
        for left, right in ((best - 1, best), (best, best + 1)):
            if not 0 <= left < right < len(looks):
                continue
            low, high = looks[left], looks[right]
            for _ in range(_MOST_STEPS):
                if not low.slope < 0 or high.slope < 0 or high.at - low.at < 1e-6:
                    break
                if high.slope > 0:
                    return low, high
                # flat from ``high`` on: the minimum, if there is one, lies before
                middle = self.at(0.5 * (low.at + high.at))
                low, high = (middle, high) if middle.slope < 0 else (low, middle)
        return None

    def _root(self, low: Look, high: Look, tolerance: float) -> Look:
        """Where the slope vanishes between two looks, by secants of which none stays at one end (Illinois)."""
        weights, last, here = [1.0, 1.0], 0, low
        for _ in range(_MOST_STEPS):
            left, right = weights[0] * low.slope, weights[1] * high.slope
            width = high.at - low.at
            # over a wide bracket slopes differ by orders of magnitude, and secants creep along from one end
            share = 0.5 if width > _WIDE else float(np.clip(left / (left - right), 0.01, 0.99))
            place = low.at + width * share
            if width < _LEFT * tolerance or abs(place - here.at) < _LEFT * tolerance:
                return min(low, high, key=lambda look: abs(look.slope))
            here = self.at(place)
            if not np.isfinite(here.slope) or abs(here.slope) <= _SETTLED * np.nan_to_num(here.slope_error):
                return here
            side = 0 if here.slope < 0 else 1
            low, high = (here, high) if side == 0 else (low, here)
            weights[side] = 1.0
            weights[1 - side] *= 0.5 if last == side + 1 else 1.0
            last = side + 1
        return here

    def _refined(self, root: Look, tolerance: float) -> Minimum:
        """The root on fine averages, where coarse ones leave it beyond the tolerance, and its error."""
        if not np.isfinite(root.slope):
            return self._judged(root, np.inf, root.status, root.words, inside=False)
        curvature = self._curvature(root)
        error = self._error(root, curvature, tolerance)
        fine = root
        for _ in range(_MOST_STEPS if error > tolerance and curvature > 0 else 0):
            before = fine
            fine = self.at(root.at if before is root else self._newton(before, curvature), fine=True)
            if not np.isfinite(fine.slope):
                fine = before
                break
            left = abs(fine.slope) / curvature
            if left < _LEFT * tolerance or abs(fine.slope) <= _SETTLED * np.nan_to_num(fine.slope_error):
                break
        return self._inside(fine, self._error(fine, curvature, tolerance), tolerance)

    def _newton(self, here: Look, curvature: float) -> float:
        return here.at - float(np.clip(here.slope / curvature, -_FARTHEST, _FARTHEST))

    def _curvature(self, root: Look) -> float:
        """Growth of the slope around a root, the smaller of the two sides'."""
        coarse = [look for (_, fine), look in self.seen.items() if not fine and np.isfinite(look.slope)]
        others = [look for look in coarse if _NEAREST < abs(look.at - root.at) < _FARTHEST]
        others = others or [self.at(root.at - _BESIDE)]
        slopes = []
        for side in (-1, 1):
            beside = [look for look in others if np.sign(look.at - root.at) == side]
            for nearest in sorted(beside, key=lambda look: abs(look.at - root.at))[:1]:
                slopes.append((nearest.slope - root.slope) / (nearest.at - root.at))
        return float(min(slopes))

    def _error(self, root: Look, curvature: float, tolerance: float) -> float:
        """Error of the place of a root: from the error of its slope, and from the search."""
        if not curvature > 0:
            return np.inf
        return float((np.nan_to_num(root.slope_error) + abs(root.slope)) / curvature) + _LEFT * tolerance

    # -- what is said of it ------------------------------------------------------------------------------------

    def _inside(self, here: Look, error: float, tolerance: float) -> Minimum:
        if error <= tolerance:
            return self._judged(here, error, Status.CONVERGED, "", inside=True)
        if not error < 1:
            return self._flat(here)
        words = (
            f"inaccurate: the place of the minimum is known to {error:.1%}, beyond the tolerance of {tolerance:.2%}: "
            f"the slope per relative change is known to {here.slope_error:.1g} only"
        )
        return self._judged(here, error, Status.INACCURATE, words, inside=True)

    def _flat(self, here: Look) -> Minimum:
        words = "inaccurate: flat, the error does not tell this place from others"
        if np.isfinite(here.value) and not np.isfinite(here.slope):  # at a kink there is no slope, which is no doubt
            return Minimum(here, np.inf, True, Status.INACCURATE, words)
        return self._judged(here, np.inf, Status.INACCURATE, words, inside=True)

    def _without_slopes(self, looks: list[Look], best: Look) -> Minimum:
        """The lowest look, where slopes enclose no minimum around it."""
        ends = looks[0], looks[-1]
        if best in ends or best.sign == 0:
            tied = [end for end in ends if end.value <= best.value + np.nan_to_num(best.value_error)]
            at_end = best in ends or bool(tied)
        else:
            tied, at_end = [], False
        if not at_end:
            words = "inaccurate: slopes and values do not agree on where the minimum is"
            return self._judged(best, np.inf, Status.INACCURATE, words, inside=True)
        end = best if best in ends else tied[0]
        side = f"not {'below' if end is ends[0] else 'above'} {self._show(end.at)}"
        words = f"no minimum between the bounds is as low: the least value is {side}"
        return self._judged(end, np.inf, Status.AT_BOUND, words, inside=False)

    def _judged(self, here: Look, error: float, status: Status, words: str, *, inside: bool) -> Minimum:
        """With the doubts about the point, and about others whose value would be lower still."""
        lower = [look for look in self.seen.values() if look.doubtful and look.value < here.value]
        doubts = [look for look in (here, *lower) if look.doubtful]
        if doubts:
            said = [doubts[0].words or doubts[0].status.sentence, words]
            return Minimum(here, error, inside, doubts[0].status, "; ".join(dict.fromkeys(filter(None, said))))
        return Minimum(here, error, inside, status, words)
