"""Search for the minimum of a function of one variable whose values and slopes have known errors.

A minimum is a root of the slope. The search first encloses the root, between two bounds or downhill from a start. It
then finds the root with coarse evaluations of the function, and with fine (more accurate) ones if the error of the root
exceeds the tolerance. The error of the root is the error of the slope (and the slope left) over the curvature, plus the
tolerance of the search itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..status import Status

#: Fraction of a slope's error below which the slope counts as zero and the search ends. Larger: the root is off by
#: more than its error. Smaller: evaluations are spent on noise.
_SETTLED = 0.2
#: Fraction of the tolerance that the search itself may use; the rest is for the error of the slope.
_LEFT = 0.3
#: Number of evaluations, both bounds included, if the slopes at the bounds enclose no minimum. Smaller: a
#: narrow minimum between the bounds is missed.
_SCAN = 9
#: Distances, in the variable, from the root to the evaluations whose slopes give its curvature: that of an extra
#: evaluation, the smallest and the largest accepted. Below the smallest the errors of the slopes dominate.
_BESIDE, _NEAREST, _FARTHEST = 0.1, 0.02, 0.5
#: Width of a bracket (in the variable) above which it is halved; narrower brackets use the secant.
_WIDE = 1.5
#: Largest numbers of steps of the search for a root, and of strides downhill; both only prevent an endless search.
_MOST_STEPS, _MOST_STRIDES = 40, 30


class Look(NamedTuple):
    """One evaluation of the function: value and slope (nan if there is none) at the position ``at``, and the status."""

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
        """Whether the theory may not hold at this point. False for an inaccurate point, whose error is known."""
        return not self.status.converged and self.status is not Status.INACCURATE


@dataclass(frozen=True)
class Minimum:
    """The end of a search: ``here`` is the evaluation at the minimum, ``error`` the error of its position (or inf).

    ``inside``: whether the minimum is inside the bounds. ``words`` explains the status.
    """

    here: Look
    error: float
    inside: bool
    status: Status
    words: str = ""


class MinimumSearch:
    """A search for the minimum of a function of one variable. It stores every evaluation.

    Parameters
    ----------
    look : callable
        ``look(at, fine)`` evaluates the function at ``at``; ``fine`` requests the higher accuracy.
    show : callable
        Returns the text for a value of the variable in messages, in the units of the user.
    """

    def __init__(self, look: Callable[[float, bool], Look], show: Callable[[float], str]) -> None:
        self._look, self._show = look, show
        self.seen: dict[tuple[float, bool], Look] = {}

    def at(self, place: float, *, fine: bool = False) -> Look:
        """Return the evaluation at ``place``, a value of the variable; a repeated call does not evaluate again."""
        if (place, fine) not in self.seen:
            self.seen[place, fine] = self._look(place, fine)
        return self.seen[place, fine]

    # -- from outside ------------------------------------------------------------------------------------------

    def between(self, low: float, high: float, tolerance: float) -> Minimum:
        """Return the minimum between two bounds; ``tolerance`` is the target for the error of its position.

        If the slopes at the bounds enclose no minimum (the function may be flat there), positions between them are
        tried. If the function is lower at none of them, the better bound is returned with ``Status.AT_BOUND``.
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
            return self._judged(ends[0], np.inf, Status.FAILED, "no value anywhere between the bounds", inside=False)
        best = min(known, key=lambda look: look.value)
        around = self._enclosed(known, known.index(best))
        if around is not None:
            return self._refined(self._root(*around, tolerance), tolerance)
        return self._without_slopes(looks, best)

    def downhill(self, start: float, stride: float, least: float, tolerance: float) -> Minimum | None:
        """Return the first minimum downhill from ``start``, in steps of ``stride``, to a tolerance in position.

        None if the function falls all the way to ``least`` or has no slope at a smaller value. Steps to smaller values
        grow by half each time, because the function may fall over many decades.
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
        """Return neighbours (left, right) at ``looks[best]`` with negative and positive slope; None if none."""
        for left, right in ((best - 1, best), (best, best + 1)):
            if not 0 <= left < right < len(looks):
                continue
            low, high = looks[left], looks[right]
            for _ in range(_MOST_STEPS):
                if not low.slope < 0 or high.slope < 0 or high.at - low.at < 1e-6:
                    break
                if high.slope > 0:
                    return low, high
                # The function is flat at ``high``: a minimum lies below it.
                middle = self.at(0.5 * (low.at + high.at))
                low, high = (middle, high) if middle.slope < 0 else (low, middle)
        return None

    def _root(self, low: Look, high: Look, tolerance: float) -> Look:
        """Return the evaluation at the root of the slope from ``low`` to ``high``: Illinois secant method."""
        weights, last, here = [1.0, 1.0], 0, low
        for _ in range(_MOST_STEPS):
            left, right = weights[0] * low.slope, weights[1] * high.slope
            width = high.at - low.at
            # The slopes at the ends of a wide bracket differ by orders of magnitude: secants would stay near one end.
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
        """Return the minimum at a root of the slope, by fine evaluations if its error exceeds the tolerance."""
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
        """Return the curvature at a root: the smaller of those from the nearest slopes left and right."""
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
        """Return the error of a root's position: (slope's error + slope)/curvature, plus the search's share."""
        if not curvature > 0:
            return np.inf
        return float((np.nan_to_num(root.slope_error) + abs(root.slope)) / curvature) + _LEFT * tolerance

    # -- status ------------------------------------------------------------------------------------------------

    def _inside(self, here: Look, error: float, tolerance: float) -> Minimum:
        if error <= tolerance:
            return self._judged(here, error, Status.CONVERGED, "", inside=True)
        if not error < 1:
            return self._flat(here)
        words = (
            f"inaccurate: the relative error of the minimum's place is {error:.1%}, beyond the tolerance of "
            f"{tolerance:.2%}: the error of the slope is {here.slope_error:.1g}; ask for a larger tolerance"
        )
        return self._judged(here, error, Status.INACCURATE, words, inside=True)

    def _flat(self, here: Look) -> Minimum:
        words = "inaccurate: the minimum is too flat, so numerical error does not tell this place from others"
        if np.isfinite(here.value) and not np.isfinite(here.slope):  # a kink has no slope, but its value is reliable
            return Minimum(here, np.inf, True, Status.INACCURATE, words)
        return self._judged(here, np.inf, Status.INACCURATE, words, inside=True)

    def _without_slopes(self, looks: list[Look], best: Look) -> Minimum:
        """Return the minimum if no slopes enclose one: a bound, or ``best``, the lowest of ``looks``."""
        ends = looks[0], looks[-1]
        if best in ends or best.sign == 0:
            tied = [end for end in ends if end.value <= best.value + np.nan_to_num(best.value_error)]
            at_end = best in ends or bool(tied)
        else:
            tied, at_end = [], False
        if not at_end:
            words = "inaccurate: slopes and values disagree on the place of the minimum; try narrower bounds"
            return self._judged(best, np.inf, Status.INACCURATE, words, inside=True)
        end = best if best in ends else tied[0]
        side, remedy = ("lower", "decrease") if end is ends[0] else ("upper", "increase")
        words = f"no minimum between the bounds: the {side} bound {self._show(end.at)} is as low as any; {remedy} it"
        return self._judged(end, np.inf, Status.AT_BOUND, words, inside=False)

    def _judged(self, here: Look, error: float, status: Status, words: str, *, inside: bool) -> Minimum:
        """Return the minimum; a doubtful status of it, or of a lower evaluation, replaces ``status``."""
        lower = [look for look in self.seen.values() if look.doubtful and look.value < here.value]
        doubts = [look for look in (here, *lower) if look.doubtful]
        if doubts:
            said = [doubts[0].words or doubts[0].status.sentence, words]
            return Minimum(here, error, inside, doubts[0].status, "; ".join(dict.fromkeys(filter(None, said))))
        return Minimum(here, error, inside, status, words)
