"""Thresholds of independently learned groups of index rows (parts), combined to thresholds of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .threshold import NEVER, StaircaseStep, Threshold

#: Relative distance of two thresholds up to which they count as equal: a larger one would merge distinct steps.
_SAME = 1e-9


class FoundThresholds(NamedTuple):
    """Steps of the staircase, weak recovery of every index row, exact recovery, and the bound p/r of exact recovery.

    ``exact`` is None if it was not requested. Above ``informed`` = p/r full overlap is stable.
    """

    steps: list[StaircaseStep]
    weak: list[Threshold]
    exact: Threshold | None
    informed: float

    def per(self, copies: int) -> FoundThresholds:
        """Return the thresholds of a model each of whose samples is ``copies`` samples of this one."""
        return FoundThresholds(
            [step._replace(threshold=step.threshold.per(copies)) for step in self.steps],
            [one.per(copies) for one in self.weak],
            None if self.exact is None else self.exact.per(copies),
            self.informed / copies,
        )


def joined(rows: Sequence[Sequence[int]], parts: Sequence[FoundThresholds], count: int) -> FoundThresholds:
    """Return the thresholds of ``count`` index rows from those of ``parts``; ``rows`` are the row numbers of each part.

    Rows in no part are never learned. Exact recovery is the largest exact-recovery threshold of the parts.
    """
    steps = [
        StaircaseStep(step.threshold, _embedded(step.direction, own, count))
        for own, part in zip(rows, parts, strict=True)
        for step in part.steps
    ]
    of_row = {row: one for own, part in zip(rows, parts, strict=True) for row, one in zip(own, part.weak, strict=False)}
    weak = [of_row.get(row, NEVER) for row in range(count)] if steps else []
    informed = max(part.informed for part in parts)
    exact = [part.exact for part in parts if part.exact is not None]
    return FoundThresholds(_together(steps), weak, _last(exact) if exact else None, informed)


def _embedded(direction: np.ndarray, rows: Sequence[int], count: int) -> np.ndarray:
    """Return the matrix ``direction`` on the given rows as a matrix (count, count) on all rows, else zero."""
    whole = np.zeros((count, count))
    whole[np.ix_(rows, rows)] = direction
    return whole


def _together(steps: list[StaircaseStep]) -> list[StaircaseStep]:
    """Return the steps in ascending order of alpha, with steps of equal thresholds merged into one."""
    ordered: list[StaircaseStep] = []
    for step in sorted(steps, key=lambda step: step.threshold.alpha):
        last = ordered[-1] if ordered else None
        if last is not None and _same(last.threshold, step.threshold):
            direction = last.direction + step.direction
            ordered[-1] = StaircaseStep(last.threshold, direction / np.linalg.norm(direction))
        else:
            ordered.append(step)
    return ordered


def _same(one: Threshold, other: Threshold) -> bool:
    close = one.alpha == other.alpha or abs(one.alpha - other.alpha) <= _SAME * one.alpha
    return bool(close) and one.how is other.how


def _last(thresholds: Sequence[Threshold]) -> Threshold:
    """Return the largest threshold; NEVER (never learned) is larger than one that the search did not find."""
    return NEVER if NEVER in thresholds else max(thresholds, key=lambda one: one.alpha)
