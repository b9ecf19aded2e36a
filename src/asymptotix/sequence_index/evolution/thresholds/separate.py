"""Thresholds of independently learned parts of the index rows, combined to thresholds of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .threshold import NEVER, StaircaseStep, Threshold

#: Relative distance of two thresholds below which they are equal up to rounding.
_SAME = 1e-9


class FoundThresholds(NamedTuple):
    """The staircase, weak recovery of all rows, exact recovery (None: not requested), and its bound p/r."""

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
    """Return the thresholds of ``count`` rows from the thresholds of parts; ``rows`` are the rows of each part.

    Rows in no part are never learned. Exact recovery is that of the part that comes last.
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
    """Return a matrix on some rows as a matrix on all ``count`` rows."""
    whole = np.zeros((count, count))
    whole[np.ix_(rows, rows)] = direction
    return whole


def _together(steps: list[StaircaseStep]) -> list[StaircaseStep]:
    """Return the steps in ascending order, with directions of equal thresholds merged into one step."""
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
    """Return the largest threshold; NEVER is larger than a threshold that was not found."""
    return NEVER if NEVER in thresholds else max(thresholds, key=lambda one: one.alpha)
