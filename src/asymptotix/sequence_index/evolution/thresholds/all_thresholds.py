"""All thresholds of a channel, as the verb reports them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ....core.problem import Outcome, index_name
from ....core.progress import Progress
from ....core.status import Status
from ..fixed_points import StateEvolution
from .exact_recovery import exact_recovery
from .staircase import staircase
from .threshold import NEVER, StaircaseStep, Threshold

#: What a result with several thresholds says: the first of these that occurs.
_BY_WEIGHT = (Status.NOT_CONVERGED, Status.AT_BOUND, Status.INACCURATE)
#: Share of a direction along an index from which on the index counts as learned with it.
_PART = 1e-3


def find_thresholds(
    evolution: StateEvolution, *, tolerance: float, progress: Progress, labels: Sequence[str] = ()
) -> Outcome:
    """All thresholds of a channel; ``labels`` are what its indices are called in a status."""
    P = evolution.channel.indices
    steps, branch = staircase(evolution, tolerance=tolerance, progress=progress)
    progress.message("exact recovery")
    exact, informed = exact_recovery(evolution, branch, tolerance=tolerance), evolution.exact_recovery_bound
    weak = [_weak_recovery(evolution, steps, index) for index in range(P)]
    names = [f"weak recovery of {index_name(labels, index)}" for index in range(P)]
    how, words = _worst(dict(zip([*names, "exact recovery"], [*weak, exact], strict=True)))
    if how is Status.CONVERGED and not all(np.isfinite(one.alpha) for one in weak):
        never = [index_name(labels, index) for index in range(P) if not np.isfinite(weak[index].alpha)]
        words = f"{how.sentence}; never learned: {', '.join(never)}"
    values = {
        "weak_recovery": [t.alpha for t in weak],
        "weak_recovery_err": [t.error for t in weak],
        "staircase": [step.threshold.alpha for step in steps],
        "staircase_err": [step.threshold.error for step in steps],
        "direction": [step.direction for step in steps],
        "exact_recovery": exact.alpha,
        "exact_recovery_err": exact.error,
        "exact_recovery_informed": informed,
        "exact_recovery_informed_err": 0.0,
        "exact_recovery_gap": float(exact.alpha - 3 * np.nan_to_num(exact.error) > informed),
    }
    return Outcome(values, how, words=words)


def _weak_recovery(evolution: StateEvolution, steps: Sequence[StaircaseStep], index: int) -> Threshold:
    """The first step with a part along an index; what the staircase did not come to shares the fate of its last step.

    Unless the output does not depend on it.
    """
    learned = [step.threshold for step in steps if step.direction[index, index] > _PART]
    if learned:
        return learned[0]
    return steps[-1].threshold if (evolution.visible[index] ** 2).sum() > _PART else NEVER


def _worst(thresholds: Mapping[str, Threshold]) -> tuple[Status, str]:
    """How all of them ended, the least certain deciding, and in words what is to be said of each."""
    found = {threshold.how for threshold in thresholds.values()}
    how = next((status for status in _BY_WEIGHT if status in found), Status.CONVERGED)
    words = [f"{name}: {one.words}" for name, one in thresholds.items() if one.how is not Status.CONVERGED]
    return how, "; ".join(words)
