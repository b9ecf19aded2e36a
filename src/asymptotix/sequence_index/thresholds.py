"""Where each direction starts to be learned, and where everything is recovered exactly.

What is not learned is unstable where alpha lambda(Q) > 1 on the branch of what is learned already, lambda the largest
eigenvalue of the operator F there (f_l for an index whose row may change its sign on its own). The first threshold is
1/lambda at Q = 0. On the branch where one index a has overlap q,

    alpha(q) = q / ((1-q) h_a(q)),  h_a = E|g_a|^2,        and index l follows where alpha(q) f_l(q) = 1.

Evaluating f_l at q = 1 instead, as if the first index were known exactly, gives 1/(M(M+1)) whatever the model: the
condition must be self-consistent. Branches with more than one learned direction are followed in alpha.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..core.linalg import from_logit, to_logit
from ..core.problem import Outcome
from .overlap_coordinates import Coordinates
from .state_evolution import BLOCKS, NEARLY_EXACT, StateEvolution
from .unlearned import curvature_at_zero
from .weak_recovery import Instability, sampled_instability_at_zero

_MARGIN = 0.005
#: Sets of nodes on which exact recovery is looked for, where it comes after full overlap is stable.
_NODE_SETS = 4
_LARGEST = 16.0
#: Smallest and largest alpha at which a branch is looked at, and the ratio of one step along it.
_FIRST, _LAST, _STRIDE = 0.02, 64.0, 1.25
#: Blocks of nodes at most for one number, and for one on posteriors that come from draws.
_MOST, _MOST_DRAWN = 16, 4


class Threshold(NamedTuple):
    """An alpha and its numerical error."""

    alpha: float
    error: float


class Step(NamedTuple):
    """One step of the staircase: at ``threshold`` an overlap along ``direction`` (PSD, Frobenius norm 1) appears."""

    threshold: Threshold
    direction: np.ndarray


class Branch(NamedTuple):
    """A fixed point with part of the directions learned, at one alpha, on few nodes."""

    alpha: float
    space: Coordinates
    x: np.ndarray


def find_thresholds(evolution: StateEvolution, *, tolerance: float, progress: Any) -> Outcome:
    """All thresholds of a channel."""
    P = evolution.channel.indices
    steps = staircase(evolution, tolerance=tolerance, progress=progress)
    progress.message("exact recovery")
    exact, informed = _exact_recovery(evolution), evolution.exact_recovery_bound
    never = Threshold(np.inf, 0.0)
    learned = [[step.threshold for step in steps if step.direction[index, index] > 1e-3] for index in range(P)]
    weak = [found[0] if found else never for found in learned]
    missing = [index for index in range(P) if not np.isfinite(weak[index].alpha)]
    status = "converged" if not missing else f"index {missing[0]} is not learned before exact recovery"
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
        "exact_recovery_gap": float(exact.alpha - exact.error > informed),
    }
    return Outcome(values, status)


# -- the staircase ---------------------------------------------------------------------------------------------


def staircase(evolution: StateEvolution, *, tolerance: float, progress: Any) -> list[Step]:
    """Directions in the order in which they are learned from nothing; those that never are come last, at infinity."""
    progress.message("first weak-recovery threshold")
    steps = _first_steps(evolution, tolerance)
    branch = _foot(evolution, steps)
    while branch is not None and evolution.unlearned_frame(branch.space).shape[1] > 0:
        learned = branch.space.learned
        progress.message(f"weak-recovery threshold after {learned} of {evolution.channel.indices} directions")
        if evolution.channel.diagonal and learned == 1:
            step = _next_index(evolution, int(branch.space.frame.any(1).argmax()), tolerance)
            branch = _entered(evolution, branch, step)
        else:
            step, branch = _next_direction(evolution, branch, tolerance)
        steps.append(step)
    return steps


def _first_steps(evolution: StateEvolution, tolerance: float) -> list[Step]:
    """What starts by itself, at alpha = 0; or the first instability of zero overlap."""
    channel, P = evolution.channel, evolution.channel.indices
    if channel.diagonal:
        curvature = curvature_at_zero(channel)
        first = int(curvature.value.argmax())
        alpha = Threshold(1 / curvature.value[first], curvature.error[first] / curvature.value[first] ** 2)
        return [Step(alpha, np.diag(np.eye(P)[first]))]
    found = sampled_instability_at_zero(channel, evolution.nodes, 0.5 * tolerance, _most(evolution))
    if found.starts_by_itself:
        return [Step(Threshold(0.0, 0.0), found.moment / np.linalg.norm(found.moment))]
    return [Step(_inverse(found), _direction_or_all(evolution, found))]


def _direction_or_all(evolution: StateEvolution, found: Instability) -> np.ndarray:
    """The direction; where nothing grows at any alpha, everything that is visible and left."""
    if found.direction.any():
        return found.direction
    inside = evolution.visible @ evolution.visible.T
    return inside / np.linalg.norm(inside)


def _inverse(found: Instability) -> Threshold:
    if not found.direction.any():
        return Threshold(np.inf, 0.0)
    return Threshold(1 / found.rate, found.error / found.rate**2)


def _most(evolution: StateEvolution) -> int:
    return _MOST_DRAWN if evolution.channel.stochastic else _MOST


def _foot(evolution: StateEvolution, steps: list[Step]) -> Branch | None:
    """Just above the first threshold."""
    alpha = steps[0].threshold.alpha
    if not np.isfinite(alpha):
        return None
    space, x = evolution.nothing()
    found = evolution.instability(space, x)
    if found.starts_by_itself:
        alpha = _FIRST
    space, x = evolution.entered(space, x, found, alpha)
    return Branch(alpha, space, x)


def _entered(evolution: StateEvolution, branch: Branch, step: Step) -> Branch | None:
    """The branch with the direction of a step of a diagonal staircase taken in."""
    if not np.isfinite(step.threshold.alpha):
        return None
    space, x, _, _ = evolution.coarse_point(step.threshold.alpha, branch.space, branch.x)
    found = Instability(np.zeros_like(step.direction), 1.0, 0.0, step.direction)
    return Branch(step.threshold.alpha, *evolution.entered(space, x, found, step.threshold.alpha))


def _next_direction(evolution: StateEvolution, branch: Branch, tolerance: float) -> tuple[Step, Branch | None]:
    """Follow the branch in alpha until what is left outside grows."""
    learned, below, growth_below = branch.space.learned, None, -np.inf
    alpha = max(branch.alpha, _FIRST)
    while alpha < _LAST:
        alpha *= _STRIDE if below is not None else 1.02
        space, x, status, _ = evolution.coarse_point(alpha, branch.space, branch.x)
        if status.startswith("exact"):
            break
        if space.learned < learned:  # on few nodes the last direction is learned a little later
            continue
        found = evolution.instability(space, x)
        growth, here = _log_growth(found, alpha), Branch(alpha, space, x)
        if growth > 0 or space.learned > learned:
            if below is not None and np.isfinite(growth) and space.learned == learned:
                return _crossing(evolution, below, growth_below, here, growth, tolerance)
            return _sudden(evolution, (below or branch).alpha, here, found)
        below, growth_below, branch = here, growth, here
    rest = evolution.unlearned_frame(branch.space)
    inside = rest @ rest.T
    return Step(Threshold(np.inf, 0.0), inside / np.linalg.norm(inside)), None


def _log_growth(found: Instability, alpha: float) -> float:
    if found.starts_by_itself:
        return np.inf
    return float(np.log(max(alpha * found.rate, 1e-12)))


def _sudden(evolution: StateEvolution, low: float, above: Branch, found: Instability) -> tuple[Step, Branch]:
    """What starts by itself on the branch, or is dragged along: from the last alpha without it to the first with it."""
    space, x, direction = above.space, above.x, found.moment if found.starts_by_itself else found.direction
    if direction.any():
        space, x = evolution.entered(space, x, found, above.alpha)
    else:
        direction = space.frame @ space.frame.T
    middle, half = 0.5 * (low + above.alpha), 0.5 * (above.alpha - low)
    return Step(Threshold(middle, half), direction / np.linalg.norm(direction)), Branch(above.alpha, space, x)


def _crossing(
    evolution: StateEvolution, below: Branch, g0: float, above: Branch, g1: float, tolerance: float
) -> tuple[Step, Branch]:
    """The alpha between two points of a branch at which the growth passes one."""
    a0, a1 = np.log(below.alpha), np.log(above.alpha)
    at, root = below, a0
    for _ in range(6):
        root = a0 - g0 * (a1 - a0) / (g1 - g0)
        space, x, _, _ = evolution.coarse_point(float(np.exp(root)), at.space, at.x)
        at = Branch(float(np.exp(root)), space, x)
        growth = _log_growth(evolution.instability(space, x), at.alpha)
        if abs(growth) < 0.01 or a1 - a0 < 0.2 * tolerance:
            break
        a0, g0, a1, g1 = (a0, g0, root, growth) if growth > 0 else (root, growth, a1, g1)
    slope = (g1 - g0) / (a1 - a0)
    threshold, found = _on_more_nodes(evolution, at, slope, tolerance)
    seeded = evolution.entered(at.space, at.x, found, at.alpha)
    return Step(threshold, found.direction), Branch(threshold.alpha, *seeded)


def _on_more_nodes(
    evolution: StateEvolution, at: Branch, slope: float, tolerance: float
) -> tuple[Threshold, Instability]:
    """The crossing again, from the refined fixed point; its error is that of the growth over its slope."""
    state = evolution.refined(at.alpha, at.space, at.x, 0.25 * tolerance)
    space, x = evolution.coordinates(state.Q, state.V)
    found = evolution.instability(space, x)
    growth = _log_growth(found, at.alpha)
    # How the error of the overlap moves the growth: once along its own size.
    moved = state.Q_error / np.linalg.norm(state.Q_error, 2).clip(1e-12) * np.diag(state.Q_error).max()
    inside = space.frame @ space.frame.T @ moved @ space.frame @ space.frame.T
    shifted = evolution.instability(*evolution.coordinates(state.Q - inside, state.V + inside))
    own = found.error / max(found.rate, 1e-12)
    error = np.hypot(own, _log_growth(shifted, at.alpha) - growth) / max(slope, 0.1)
    alpha = at.alpha * float(np.exp(-growth / max(slope, 0.1)))
    return Threshold(alpha, float(alpha * error)), found


# -- one learned index of a diagonal overlap -------------------------------------------------------------------


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


def _next_index(evolution: StateEvolution, learned: int, tolerance: float) -> Step:
    """The first of the other indices to follow."""
    P = evolution.channel.indices
    found = {
        index: _next_threshold(evolution, learned, index, tolerance) for index in range(P) if index != learned
    }
    index = min(found, key=lambda index: found[index].alpha)
    return Step(found[index], np.diag(np.eye(P)[index]))


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


# -- exact recovery --------------------------------------------------------------------------------------------


def _exact_recovery(evolution: StateEvolution) -> Threshold:
    """Smallest alpha at which the uninformed start ends at full overlap; never below p/r, where that is unstable."""
    bound = evolution.exact_recovery_bound
    if not np.isfinite(bound):
        return Threshold(np.inf, 0.0)
    if _reaches(evolution, bound * (1 + _MARGIN)):
        return Threshold(bound, _MARGIN * bound)
    low, high = bound * (1 + _MARGIN), 1.25 * bound
    while not _reaches(evolution, high):
        low, high = high, 1.5 * high
        if high > _LARGEST * bound:
            return Threshold(np.inf, 0.0)
    first = _bisected(evolution, low, high)
    # Where the dynamics passes depends on the nodes; a deterministic average has none.
    others = [] if evolution.deterministic else [_on_other_nodes(evolution, first, k) for k in range(1, _NODE_SETS)]
    alphas = np.array([first.alpha, *(other.alpha for other in others)])
    scatter = alphas.std(ddof=1) / np.sqrt(len(alphas)) if others else 0.0
    return Threshold(float(alphas.mean()), float(np.hypot(first.error, scatter)))


def _reaches(evolution: StateEvolution, alpha: float) -> bool:
    return evolution.uninformed(alpha, tolerance=0.05).exact


def _bisected(evolution: StateEvolution, low: float, high: float) -> Threshold:
    while high - low > _MARGIN * low:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if _reaches(evolution, middle) else (middle, high)
    return Threshold(0.5 * (low + high), 0.5 * (high - low))


def _on_other_nodes(evolution: StateEvolution, near: Threshold, number: int) -> Threshold:
    other = evolution.on_other_nodes(number)
    low, high = 0.97 * near.alpha, 1.03 * near.alpha
    while _reaches(other, low) and low > evolution.exact_recovery_bound:
        low, high = 0.94 * low, low
    while not _reaches(other, high):
        low, high = high, 1.06 * high
    return _bisected(other, low, high)
