"""The thresholds at which the directions of index space are learned: successive instabilities from zero overlap.

On a branch of fixed points with some learned directions, a small overlap X of the other directions becomes alpha F(X)
in one iteration. It grows where alpha lambda(Q) > 1, with lambda the largest eigenvalue of F. The first threshold is
1/lambda at Q = 0 (Troiani et al., arXiv:2502.00901, Theorem 2.3). Branches with more than one learned direction are
followed in alpha; for one learned index of a diagonal overlap see :mod:`one_index`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....core.progress import Say, quietly, under
from ....core.status import Status
from ..dynamics import Ending
from ..fixed_points import StateEvolution
from ..instability import NO_MOMENT, SIGNIFICANT, Instability
from ..point import Point
from ..refinement import OverlapSolution, refined
from ..zero_overlap import curvature_at_zero
from .crossing import crossing
from .expected_time import AVERAGES_PER_STEP, with_expected_time
from .one_index import next_index
from .threshold import (
    NEVER,
    NO_GROWTH,
    PART,
    UNCORRECTED_SHARE,
    StaircaseStep,
    Threshold,
    along,
    not_below,
)

#: Smallest and largest alpha at which a branch is examined, and the ratio of successive values of alpha.
_FIRST, _LAST, _STRIDE = 0.02, 64.0, 1.25
#: The ratio of alpha in the first steps, and their largest number until the branch is found on coarse nodes.
_NUDGE, _NUDGES = 1.02, 12
#: Largest log(alpha lambda) at which the crossing is searched directly, if the growth at smaller alpha is not known.
_NEARBY = 0.3


class Staircase(NamedTuple):
    """The steps in the order in which they are learned, and a point of the last branch of fixed points, or None."""

    steps: list[StaircaseStep]
    branch: Point | None


def staircase(evolution: StateEvolution, *, tolerance: float, rows_only: bool = False, say: Say = quietly) -> Staircase:
    """Return directions in the order in which they are learned from zero overlap; those never learned come last.

    ``tolerance`` is the relative error of a threshold. With ``rows_only`` the search ends when every index that affects
    the output is part of a step.
    """
    say("first weak-recovery threshold")
    steps = [first_step(evolution, tolerance, under("first weak-recovery threshold", say))]
    branch = _foot(evolution, steps[0])
    while branch is not None and (left := evolution.not_learned(branch).shape[1]) > 0:
        if rows_only and all(any(step.involves(row) for step in steps) for row in visible_rows(evolution)):
            break
        if len(steps) == 1:
            say = with_expected_time(say, left * AVERAGES_PER_STEP, evolution.nodes)
        learned = branch.learned
        heading = f"weak-recovery threshold after {learned} of {evolution.visible.shape[1]} directions"
        say(heading)
        if evolution.channel.diagonal and learned == 1:
            row = int(branch.space.frame.any(1).argmax())
            step = next_index(evolution, row, tolerance, under(heading, say))
            branch = _entered(evolution, branch, step, under(heading, say))
        else:
            step, branch = _next_direction(evolution, branch, tolerance, under(heading, say))
        steps.append(step)
    return Staircase(steps, branch)


def visible_rows(evolution: StateEvolution) -> list[int]:
    """Return the numbers of the indices on which the output depends, ascending."""
    return np.flatnonzero((evolution.visible**2).sum(1) > PART).tolist()


def first_step(evolution: StateEvolution, tolerance: float, say: Say) -> StaircaseStep:
    """Return the first step: directions learned at any alpha (threshold 0), or the first unstable direction."""
    channel = evolution.channel
    if channel.diagonal:
        curvature = curvature_at_zero(channel)
        first = int(curvature.value.argmax())
        alpha = Threshold(1 / curvature.value[first], curvature.error[first] / curvature.value[first] ** 2)
        return along(alpha.checked(tolerance), first, channel.indices)
    found = evolution.growth_of_nothing(0.5 * tolerance, evolution.nodes.most_blocks, say)
    if found.starts_by_itself:
        return StaircaseStep(Threshold(0.0, 0.0), found.moment / np.linalg.norm(found.moment))
    if not found.direction.any():  # no direction grows; if G vanishes, none does at any alpha
        largest = found.rate + SIGNIFICANT * found.error
        return _left(evolution.visible, NEVER if largest <= NO_MOMENT else not_below(1 / largest))
    alpha = Threshold(1 / found.rate, found.error / found.rate**2)
    return StaircaseStep(alpha.checked(tolerance), found.direction)


def _left(frame: np.ndarray, threshold: Threshold) -> StaircaseStep:
    """Return one step at ``threshold`` with all directions in the span of the orthonormal columns ``frame`` (P, d)."""
    inside = frame @ frame.T
    return StaircaseStep(threshold, inside / np.linalg.norm(inside))


def _foot(evolution: StateEvolution, first: StaircaseStep) -> Point | None:
    """Return a point at the first threshold with all directions of this step; None if the threshold is infinite."""
    alpha = first.threshold.alpha
    if not np.isfinite(alpha):
        return None
    nothing = evolution.nothing(alpha)
    if alpha > 0:
        return evolution.entered(nothing, Instability(np.zeros_like(first.direction), 1 / alpha, 0.0, first.direction))
    return evolution.entered(nothing.at(_FIRST), evolution.growth(nothing))


def _entered(evolution: StateEvolution, branch: Point, step: StaircaseStep, say: Say) -> Point | None:
    """Return a point of the new branch: ``branch`` plus the direction of ``step``; None if its threshold is inf."""
    if not np.isfinite(step.threshold.alpha):
        return None
    found = Instability(np.zeros_like(step.direction), 1.0, 0.0, step.direction)
    return evolution.entered(evolution.followed(branch.at(step.threshold.alpha), say).point, found)


def _next_direction(
    evolution: StateEvolution, branch: Point, tolerance: float, say: Say
) -> tuple[StaircaseStep, Point | None]:
    """Follow the branch in alpha until a direction outside the learned subspace grows.

    Returns its step and a point of the new branch; None: all is recovered, or nothing grows up to the largest alpha.
    """
    learned, below, growth_below = branch.learned, None, -np.inf
    alpha, tries = max(branch.alpha, _FIRST), 0
    if evolution.nodes.noisy:
        alpha = _rooted(evolution, branch, alpha, say)
    while alpha < _LAST:
        # On coarse nodes the last direction is learned slightly above its threshold, on noisy ones even later.
        nudge = _NUDGE ** (1 + tries) if evolution.nodes.noisy else _NUDGE
        alpha, tries = alpha * (min(nudge, _STRIDE) if below is None and tries < _NUDGES else _STRIDE), tries + 1
        end = evolution.followed(branch.at(alpha), under("following the branch", say))
        here = end.point
        if here.learned < learned:
            continue
        if end.how.recovered:
            return _dragged_along(evolution, (below or branch).alpha, here, tolerance), None
        say(f"growth of the rest, alpha = {alpha:.4g}")
        found = evolution.growth(here)
        growth = _log_growth(found, alpha)
        if growth > 0 or here.learned > learned:
            if np.isfinite(growth) and here.learned == learned:
                if below is not None:
                    return _crossing(evolution, below, growth_below, here, growth, tolerance, say)
                if growth < _NEARBY and (before := _crossing_before(evolution, branch, here, tolerance, say)):
                    return before
            return _sudden(evolution, (below or branch).alpha, here, found, tolerance)
        below, growth_below, branch = here, growth, here
    return _left(evolution.not_learned(branch), not_below(alpha)), None


def _rooted(evolution: StateEvolution, branch: Point, alpha: float, say: Say) -> float:
    """Return an alpha, at least the given one, at which all directions of the branch grow also on coarse nodes.

    Below it they slowly decay.
    """
    for _ in range(_NUDGES):
        say(f"where the branch grows on few nodes, alpha = {alpha:.4g}")
        once = branch.at(alpha).moved(evolution.after(evolution.nodes.few, branch.at(alpha)))
        twice = once.moved(evolution.after(evolution.nodes.few, once))
        shrinks = float(once.logits[0] - twice.logits[0])
        if shrinks <= 0:
            break
        alpha *= min(_NUDGE * np.exp(shrinks), _STRIDE)
    return alpha


def _log_growth(found: Instability, alpha: float) -> float:
    if found.starts_by_itself:
        return np.inf
    return float(np.log(max(alpha * found.rate, NO_GROWTH)))


def _sudden(
    evolution: StateEvolution, low: float, above: Point, found: Instability, tolerance: float
) -> tuple[StaircaseStep, Point]:
    """Return the step of directions that appear between alpha = ``low`` and ``above``, and a point of the new branch.

    ``found`` is the instability at the point ``above``.
    """
    direction = found.moment if found.starts_by_itself else found.direction
    if not direction.any():
        return _dragged_along(evolution, low, above, tolerance), above
    threshold = _between(low, above.alpha, tolerance)
    return StaircaseStep(threshold, direction / np.linalg.norm(direction)), evolution.entered(above, found)


def _dragged_along(evolution: StateEvolution, low: float, above: Point, tolerance: float) -> StaircaseStep:
    """Return one step of all directions learned at the point ``above``, at the mean of its alpha and ``low``."""
    everything = np.concatenate([above.space.frame, above.space.certain], 1)
    return _left(everything, _between(low, above.alpha, tolerance))


def _between(low: float, high: float, tolerance: float) -> Threshold:
    return Threshold(0.5 * (low + high), 0.5 * (high - low)).checked(tolerance)


def _crossing(
    evolution: StateEvolution, below: Point, g0: float, above: Point, g1: float, tolerance: float, say: Say
) -> tuple[StaircaseStep, Point]:
    """Return the step where log(alpha lambda) passes zero, and the branch beyond it; lambda is the growth rate.

    It is ``g0`` at the point ``below`` and ``g1`` at the point ``above``.
    """
    a0, a1 = np.log(below.alpha), np.log(above.alpha)
    at, root, unsettled = below, a0, ""
    # With draws on coarse nodes the growth is known only well enough for one linear step to the threshold.
    close = 0.05 if evolution.nodes.noisy else 0.01
    for _ in range(6):
        root = a0 - g0 * (a1 - a0) / (g1 - g0)
        between = f"between {np.exp(a0):.4g} and {np.exp(a1):.4g}"
        end = evolution.followed(at.at(float(np.exp(root))), under(between, say))
        at, unsettled = end.point, end.words if end.how is Ending.UNSETTLED else ""
        growth = _log_growth(evolution.growth(at), at.alpha)
        if abs(growth) < close or a1 - a0 < 0.2 * tolerance:
            break
        a0, g0, a1, g1 = (a0, g0, root, growth) if growth > 0 else (root, growth, a1, g1)
    if evolution.channel.diagonal:
        threshold, found = _on_more_nodes(evolution, at, (g1 - g0) / (a1 - a0), tolerance, say)
    else:
        threshold, found, at = crossing(evolution, at, tolerance, say)
    step = StaircaseStep(threshold.unless(unsettled), found.direction)
    return step, evolution.entered(at, found).at(threshold.alpha)


def _crossing_before(
    evolution: StateEvolution, start: Point, above: Point, tolerance: float, say: Say
) -> tuple[StaircaseStep, Point] | None:
    """Return the step at the crossing near the point ``above``, and the new branch; None unless it is above ``start``.

    ``start`` is the first point of the present branch.
    """
    if evolution.channel.diagonal:
        return None
    threshold, found, at = crossing(evolution, above, tolerance, say)
    if threshold.how is Status.NOT_CONVERGED or threshold.alpha <= start.alpha + threshold.error:
        return None
    return StaircaseStep(threshold, found.direction), evolution.entered(at, found).at(threshold.alpha)


def _on_more_nodes(
    evolution: StateEvolution, at: Point, slope: float, tolerance: float, say: Say
) -> tuple[Threshold, Instability]:
    """Return the threshold near ``at``, computed on more nodes, and the instability there.

    ``slope`` is the derivative of log(alpha lambda) in log alpha on the branch, with lambda the growth rate.
    """
    slope = max(slope, 0.1)
    solution = refined(evolution, at, 0.5 * tolerance, under("refining", say))
    here = evolution.point(at.alpha, solution.Q, solution.V)
    found = evolution.outside(solution, here)
    growth = _log_growth(found, at.alpha)
    say("error of the threshold")
    moved = _shift_of_growth(evolution, here, solution)
    bias = _bias_of_draws(evolution, here, found)
    growth -= bias[0]
    # The slope of a secant along the branch may differ by a fifth from the slope at its end.
    parts = (found.error / max(found.rate, NO_GROWTH), moved, 0.2 * growth, *bias[1:])
    error = np.linalg.norm(parts) / slope
    alpha = at.alpha * float(np.exp(-growth / slope))
    threshold = Threshold(alpha, float(alpha * error)).checked(tolerance)
    return threshold.unless("" if solution.settled else solution.words), found


def _shift_of_growth(evolution: StateEvolution, here: Point, solution: OverlapSolution) -> float:
    """Return the change of log(alpha lambda), lambda the growth rate, when the overlap decreases by its error."""
    moved = solution.Q_error / np.linalg.norm(solution.Q_error, 2).clip(1e-12) * np.diag(solution.Q_error).max()
    inside = here.space.frame @ here.space.frame.T @ moved @ here.space.frame @ here.space.frame.T
    shifted, unshifted = (
        _log_growth(evolution.growth(evolution.point(here.alpha, solution.Q - change, solution.V + change)), here.alpha)
        for change in (inside, np.zeros_like(inside))
    )
    return shifted - unshifted


def _bias_of_draws(evolution: StateEvolution, at: Point, found: Instability) -> tuple[float, float, float]:
    """Return the bias of log(alpha lambda) due to few effective draws, its systematic and its statistical error.

    lambda is the growth rate of ``found``, the instability at the point ``at``.
    """
    if evolution.channel.careful_enough is None:
        return 0.0, 0.0, 0.0
    index = int(np.diag(found.direction).argmax())
    usual, better = (evolution.nodes.block(0, careful)(at.V).curvature[:, index] for careful in (False, True))
    bias = float(np.log(usual.mean() / better.mean()))
    rows = usual / usual.mean() - better / better.mean()
    return bias, UNCORRECTED_SHARE * bias, float(rows.std(ddof=1) / np.sqrt(len(rows)))
