"""All thresholds of a channel, as the verb reports them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....core.problem import Outcome, index_name
from ....core.progress import Progress
from ..fixed_points import StateEvolution
from .exact_recovery import exact_recovery
from .staircase import staircase
from .threshold import NEVER

#: Share of a direction along an index from which on the index counts as learned with it.
_PART = 1e-3


def find_thresholds(
    evolution: StateEvolution, *, tolerance: float, progress: Progress, labels: Sequence[str] = ()
) -> Outcome:
    """All thresholds of a channel; ``labels`` are what its indices are called in a status."""
    P = evolution.channel.indices
    steps, branch = staircase(evolution, tolerance=tolerance, progress=progress)
    progress.message("exact recovery")
    exact, informed = exact_recovery(evolution, branch), evolution.exact_recovery_bound
    learned = [[step.threshold for step in steps if step.direction[index, index] > _PART] for index in range(P)]
    weak = [found[0] if found else NEVER for found in learned]
    missing = [index for index in range(P) if not np.isfinite(weak[index].alpha)]
    status = "converged" if not missing else f"{index_name(labels, missing[0])} is not learned before exact recovery"
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
        "exact_recovery_gap": float(exact.alpha - 3 * exact.error > informed),
    }
    return Outcome(values, status)
