"""Where each index starts to be learned, and where everything is recovered exactly.

An index that is not learned is unstable where alpha f_l(Q) > 1 on the branch of what is learned already. The first
threshold is 1/f_l at Q = 0, by deterministic quadrature. On the branch where one index a has overlap q,

    alpha(q) = q / ((1-q) h_a(q)),  h_a = E|g_a|^2,        and index l follows where alpha(q) f_l(q) = 1.

Evaluating f_l at q = 1 instead, as if the first index were known exactly, gives 1/(M(M+1)) whatever the model: the
condition must be self-consistent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..core.linalg import from_logit, to_logit
from ..core.problem import Outcome
from .state_evolution import BLOCKS, NEARLY_EXACT, StateEvolution
from .unlearned import curvature_at_zero

_MARGIN = 0.005
_LARGEST = 16.0


class Threshold(NamedTuple):
    """An alpha and its numerical error."""

    alpha: float
    error: float


def find_thresholds(evolution: StateEvolution, *, tolerance: float, progress: Any) -> Outcome:
    """All thresholds of a channel with one or two indices."""
    P = evolution.channel.indices
    progress.message("first weak-recovery threshold")
    curvature = curvature_at_zero(evolution.channel)
    first = int(curvature.value.argmax())
    found = {first: Threshold(1 / curvature.value[first], curvature.error[first] / curvature.value[first] ** 2)}
    for index in range(P):
        if index != first:
            progress.message(f"weak-recovery threshold of index {index}")
            found[index] = _next_threshold(evolution, first, index, tolerance)
    order = sorted(found, key=lambda index: found[index].alpha)
    progress.message("exact recovery")
    exact, informed = _exact_recovery(evolution), evolution.exact_recovery_bound
    weak = [found[index] for index in range(P)]
    missing = [index for index in range(P) if not np.isfinite(found[index].alpha)]
    status = "converged" if not missing else f"index {missing[0]} is not learned before exact recovery"
    values = {
        "weak_recovery": [t.alpha for t in weak],
        "weak_recovery_err": [t.error for t in weak],
        "staircase": [found[index].alpha for index in order],
        "staircase_err": [found[index].error for index in order],
        "direction": [np.diag(np.eye(P)[index]) for index in order],
        "exact_recovery": exact.alpha,
        "exact_recovery_err": exact.error,
        "exact_recovery_informed": informed,
        "exact_recovery_informed_err": 0.0,
    }
    return Outcome(values, status)


class _Branch:
    """The branch on which only ``learned`` has an overlap, seen by an index that has none."""

    def __init__(self, evolution: StateEvolution, learned: int, index: int) -> None:
        self._evolution, self._learned, self._index = evolution, learned, index

    def at(self, x: float, block: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Log alpha(q) and log(alpha f) at logit x, one value per randomisation of a block of nodes, or on a few."""
        v = np.ones(self._evolution.channel.indices)
        v[self._learned] = from_logit(x)[1]
        averager = self._evolution.coarse if block is None else self._evolution.block(block)
        averages = averager(np.diag(v))
        log_alpha = x - np.log(averages.second_moment[:, self._learned, self._learned])
        return log_alpha, log_alpha + np.log(averages.curvature[:, self._index])


def _next_threshold(evolution: StateEvolution, learned: int, index: int, tolerance: float) -> Threshold:
    branch = _Branch(evolution, learned, index)
    bracket = _first_crossing(branch)
    if bracket is None:
        return Threshold(np.inf, 0.0)
    x, slope_alpha, slope_growth = bracket
    ends: list[np.ndarray] = []
    alpha, error = np.array([np.nan]), np.inf
    for _ in range(BLOCKS[-1] + 8):
        log_alpha, growth = branch.at(x, len(ends))
        x_r = x - growth / slope_growth
        if ends or abs((x_r.mean() - x) * slope_alpha) < 0.1:  # otherwise too far for a linear step
            ends.append(np.exp(log_alpha + slope_alpha * (x_r - x)))
        x = float(x_r.mean())
        if ends:
            alpha = np.mean(ends, axis=0)
            error = alpha.std(ddof=1) / np.sqrt(len(alpha))
            if len(ends) == BLOCKS[-1] or (len(ends) in BLOCKS and error < 0.5 * tolerance * alpha.mean()):
                break
    return Threshold(float(alpha.mean()), float(error))


def _first_crossing(branch: _Branch) -> tuple[float, float, float] | None:
    """Walk up the branch to the first x with alpha f = 1; x and the slopes of log alpha and log alpha f there."""
    previous = None
    start, bulk, end = (float(x) for x in (to_logit(1e-4), to_logit(0.02), -to_logit(NEARLY_EXACT) + 3))
    for x in np.concatenate([np.arange(start, bulk, 1.0), np.arange(bulk, end, 0.5)]):
        log_alpha, growth = (float(value.mean()) for value in branch.at(x))
        if growth > 0:
            if previous is None:  # unstable as soon as the branch exists: alpha(q) at its foot is the threshold
                return x, 1e-6, 1.0
            x0, a0, g0 = previous
            root = x0 - g0 * (x - x0) / (growth - g0)
            return root, (log_alpha - a0) / (x - x0), (growth - g0) / (x - x0)
        previous = (x, log_alpha, growth)
    return None


def _exact_recovery(evolution: StateEvolution) -> Threshold:
    """Smallest alpha at which the uninformed start ends at Q = I; never below P/r, where Q = I is unstable."""
    bound = evolution.exact_recovery_bound

    def reached(alpha: float) -> bool:
        return evolution.uninformed(alpha, tolerance=0.05).exact

    if reached(bound * (1 + _MARGIN)):
        return Threshold(bound, _MARGIN * bound)
    low, high = bound * (1 + _MARGIN), 1.25 * bound
    while not reached(high):
        low, high = high, 1.5 * high
        if high > _LARGEST * bound:
            return Threshold(np.inf, 0.0)
    while high - low > _MARGIN * low:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if reached(middle) else (middle, high)
    return Threshold(0.5 * (low + high), 0.5 * (high - low))
