"""Where each direction starts to be learned, and where everything is recovered exactly.

What is not learned is unstable where alpha lambda(Q) > 1 on the branch of what is learned already, lambda the largest
eigenvalue of the operator F there (f_l for an index whose row may change its sign on its own). The first threshold is
1/lambda at Q = 0. On the branch where one index a has overlap q,

    alpha(q) = q / ((1-q) h_a(q)),  h_a = E|g_a|^2,        and index l follows where alpha(q) f_l(q) = 1.

Evaluating f_l at q = 1 instead, as if the first index were known exactly, gives 1/(M(M+1)) whatever the model: the
condition must be self-consistent. Branches with more than one learned direction are followed in alpha.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...core.problem import Outcome, index_name
from ...numerics.linear_algebra import from_logit, to_logit
from .coordinates import Coordinates
from .dynamics import NEARLY_EXACT, StateEvolution
from .instability import Instability, curvature_at_zero, sampled_instability_at_zero
from .refinement import BLOCKS, refined

_MARGIN = 0.005
#: Sets of nodes on which exact recovery is looked for, where it comes after full overlap is stable.
_NODE_SETS = 4
_LARGEST = 16.0
#: Largest 1-q at which more nodes, so many times as many, may still lead to full overlap.
_ALMOST_FULL, _MORE_NODES = 0.1, 8
#: Smallest and largest alpha at which a branch is looked at, and the ratio of one step along it.
_FIRST, _LAST, _STRIDE = 0.02, 64.0, 1.25
#: Stands for zero where a logarithm is taken.
_NOTHING = 1e-12
#: An index whose log growth is closer to zero than this, where another one grows, may be the first on more nodes.
_CLOSE = 0.1
#: Blocks of nodes at most for one number, and for one on posteriors that come from draws.
_MOST, _MOST_DRAWN = 16, 4
#: Share of a correction for the bias of few draws that counts as its error.
_LEFT = 0.5


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


def find_thresholds(
    evolution: StateEvolution, *, tolerance: float, progress: Any, labels: Sequence[str] = ()
) -> Outcome:
    """All thresholds of a channel; ``labels`` are what its indices are called in a status."""
    P = evolution.channel.indices
    steps, branch = staircase(evolution, tolerance=tolerance, progress=progress)
    progress.message("exact recovery")
    exact, informed = _exact_recovery(evolution, branch), evolution.exact_recovery_bound
    never = Threshold(np.inf, 0.0)
    learned = [[step.threshold for step in steps if step.direction[index, index] > 1e-3] for index in range(P)]
    weak = [found[0] if found else never for found in learned]
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


# -- the staircase ---------------------------------------------------------------------------------------------


def staircase(evolution: StateEvolution, *, tolerance: float, progress: Any) -> tuple[list[Step], Branch | None]:
    """Directions in the order in which they are learned from nothing; those that never are come last, at infinity.

    And the branch on which all are learned, where there is one before exact recovery.
    """
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
    return steps, branch


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
    return float(np.log(max(alpha * found.rate, _NOTHING)))


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
        if abs(growth) < _close_enough(evolution) or a1 - a0 < 0.2 * tolerance:
            break
        a0, g0, a1, g1 = (a0, g0, root, growth) if growth > 0 else (root, growth, a1, g1)
    slope = (g1 - g0) / (a1 - a0)
    threshold, found = _on_more_nodes(evolution, at, slope, tolerance)
    seeded = evolution.entered(at.space, at.x, found, at.alpha)
    return Step(threshold, found.direction), Branch(threshold.alpha, *seeded)


def _close_enough(evolution: StateEvolution) -> float:
    """Growth from which one linear step leads to the threshold; from draws on few nodes it is not known better."""
    return 0.05 if evolution.channel.stochastic else 0.01


def _on_more_nodes(
    evolution: StateEvolution, at: Branch, slope: float, tolerance: float
) -> tuple[Threshold, Instability]:
    """The crossing again, from the refined fixed point; its error is that of the growth over its slope."""
    state = refined(evolution, at.alpha, at.space, at.x, (0.5 if evolution.channel.stochastic else 0.25) * tolerance)
    space, x = evolution.coordinates(state.Q, state.V)
    found = evolution.outside(state, space, x)
    growth = _log_growth(found, at.alpha)
    # How the error of the overlap moves the growth: once along its own size.
    moved = state.Q_error / np.linalg.norm(state.Q_error, 2).clip(1e-12) * np.diag(state.Q_error).max()
    inside = space.frame @ space.frame.T @ moved @ space.frame @ space.frame.T
    shifted, unshifted = (
        _log_growth(evolution.instability(*evolution.coordinates(state.Q - change, state.V + change)), at.alpha)
        for change in (inside, np.zeros_like(inside))
    )
    own = found.error / max(found.rate, _NOTHING)
    bias = _bias_of_draws(evolution, space, x, found)
    growth -= bias[0]
    # A secant over a stretch of the branch may be a fifth off the slope at its end.
    parts = (own, shifted - unshifted, 0.2 * growth, *bias[1:])
    error = np.linalg.norm(parts) / max(slope, 0.1)
    alpha = at.alpha * float(np.exp(-growth / max(slope, 0.1)))
    return Threshold(alpha, float(alpha * error)), found


def _bias_of_draws(
    evolution: StateEvolution, space: Coordinates, x: np.ndarray, found: Instability
) -> tuple[float, float, float]:
    """By how much few effective draws lower the log growth of what grows, how much of it may be left, its error."""
    if not (evolution.has_careful_nodes and evolution.channel.diagonal):
        return 0.0, 0.0, 0.0
    index, V = int(np.diag(found.direction).argmax()), space.overlap(x)[1]
    usual, better = (evolution.block(0, careful)(V).curvature[:, index] for careful in (False, True))
    bias = float(np.log(usual.mean() / better.mean()))
    rows = usual / usual.mean() - better / better.mean()
    return bias, _LEFT * bias, float(rows.std(ddof=1) / np.sqrt(len(rows)))


# -- one learned index of a diagonal overlap -------------------------------------------------------------------


class _Branch:
    """The branch of a diagonal overlap on which only one row, ``learned``, has any."""

    def __init__(self, evolution: StateEvolution, learned: int) -> None:
        self.evolution, self.learned = evolution, learned

    def at(self, x: float, block: int | None = None, careful: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Log alpha(q) (R,) and log(alpha f) (R, P) at logit x, per randomisation of a block of nodes, or on a few."""
        v = np.ones(self.evolution.channel.indices)
        v[self.learned] = from_logit(x)[1]
        averages = (self.evolution.coarse if block is None else self.evolution.block(block, careful))(np.diag(v))
        log_alpha = x - _log_rows(averages.second_moment[:, self.learned, self.learned])
        growth = log_alpha[:, None] + _log_rows(averages.curvature.clip(_NOTHING))
        growth[:, self.learned] = np.log(_NOTHING)
        return log_alpha, growth


def _log_rows(rows: np.ndarray) -> np.ndarray:
    """Logarithms of the rows, shifted so that their mean is the logarithm of the mean: they only tell the scatter."""
    logs = np.log(rows)
    return logs - logs.mean(0) + np.log(rows.mean(0))


class _Crossing(NamedTuple):
    """Where on a branch, on few nodes, alpha f_index = 1: logit x, slopes of log alpha and of log alpha f there."""

    index: int
    x: float
    slope_alpha: float
    slope_growth: float


def _next_index(evolution: StateEvolution, learned: int, tolerance: float) -> Step:
    """The first of the other indices to follow; all of those that come close to it are looked at."""
    P = evolution.channel.indices
    branch = _Branch(evolution, learned)
    found = {crossing.index: _located(branch, crossing, tolerance) for crossing in _first_crossings(branch)}
    if not found:
        return Step(Threshold(np.inf, 0.0), np.diag(np.eye(P)[int(learned == 0)]))
    index = min(found, key=lambda index: found[index].alpha)
    return Step(found[index], np.diag(np.eye(P)[index]))


def _located(branch: _Branch, crossing: _Crossing, tolerance: float) -> Threshold:
    """A crossing on more nodes."""
    index, x, slope_alpha, slope_growth = crossing
    most = _MOST_DRAWN if branch.evolution.channel.stochastic else BLOCKS[-1]

    def predicted(x: float, block: int, careful: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Where it grows, as a logit, and alpha there, by a linear step from x."""
        log_alpha, growth = branch.at(x, block, careful)
        move = -growth[:, index] / slope_growth
        return x + move, np.exp(log_alpha + slope_alpha * move)

    ends: list[np.ndarray] = []
    alpha, error = np.array([np.nan]), np.inf
    for _ in range(most + 8):
        x_r, end = predicted(x, len(ends))
        if ends or abs((x_r.mean() - x) * slope_alpha) < 0.1:  # otherwise too far for a linear step
            ends.append(end)
        x = float(x_r.mean())
        if ends:
            alpha = np.mean(ends, axis=0)
            error = alpha.std(ddof=1) / np.sqrt(len(alpha))
            if len(ends) == most or (len(ends) in BLOCKS and error < 0.5 * tolerance * alpha.mean()):
                break
    if branch.evolution.has_careful_nodes:
        bias = predicted(x, 0)[1] - predicted(x, 0, careful=True)[1]
        alpha = alpha - bias
        error = np.hypot(alpha.std(ddof=1) / np.sqrt(len(alpha)), _LEFT * bias.mean())
    return Threshold(float(alpha.mean()), float(error))


def _first_crossings(branch: _Branch) -> list[_Crossing]:
    """Walk up the branch to the first x at which an index grows; those that almost do are taken along."""
    previous, found, close = None, [], set[int]()
    start, bulk, end = (float(x) for x in (to_logit(1e-4), to_logit(0.02), -to_logit(NEARLY_EXACT) + 3))
    for x in np.concatenate([np.arange(start, bulk, 1.0), np.arange(bulk, end, 0.5)]):
        here = [value.mean(0) for value in branch.at(x)]
        log_alpha, growth = float(here[0]), np.asarray(here[1])
        if not close and growth.max() > 0:
            close = set(np.flatnonzero(growth > -_CLOSE).tolist())
        for index in [index for index in close if growth[index] > 0]:
            close.remove(index)
            if previous is None:  # unstable as soon as the branch exists: alpha(q) at its foot is the threshold
                found.append(_Crossing(index, float(x), 1e-6, 1.0))
                continue
            x0, a0, g0 = previous
            slope, slopes = (log_alpha - a0) / (x - x0), (growth - g0) / (x - x0)
            found.append(_Crossing(index, float(x0 - g0[index] / slopes[index]), slope, float(slopes[index])))
        if found and not close:
            break
        previous = (x, log_alpha, growth)
    return found


# -- exact recovery --------------------------------------------------------------------------------------------


class _FullOverlap:
    """Whether the dynamics from nothing ends at full overlap; each alpha starts where a smaller one ended."""

    def __init__(self, evolution: StateEvolution, foot: Branch | None = None) -> None:
        self.evolution = evolution
        self.ends = [Branch(0.0, *evolution.nothing()), *([] if foot is None else [foot])]

    def __call__(self, alpha: float) -> bool:
        below = max((end for end in self.ends if end.alpha <= alpha), key=lambda end: end.alpha)
        space, x, status, _ = self.evolution.grown(alpha, below.space, below.x)
        if status.startswith("exact"):
            return True
        self.ends.append(Branch(alpha, space, x))
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
                return Threshold(np.inf, 0.0)
        return self.bisected(low, high)


def _recovers_on_more_nodes(recovers: _FullOverlap) -> bool:
    """Whether full overlap, last missed by little on few nodes, is reached on more.

    Just above p/r the dynamics is marginal, and the noise of few nodes can hold it up close to full overlap.
    """
    evolution, end = recovers.evolution, recovers.ends[-1]
    partial = end.space.learned < evolution.visible.shape[1] or end.space.rank == 0
    if evolution.deterministic or partial or from_logit(end.space.logits(end.x))[1].max() > _ALMOST_FULL:
        return False
    return _FullOverlap(evolution.on_more_nodes(_MORE_NODES), end)(end.alpha)


def _exact_recovery(evolution: StateEvolution, foot: Branch | None = None) -> Threshold:
    """Smallest alpha at which the uninformed start ends at full overlap; ``foot`` is a point of its branch."""
    bound = evolution.exact_recovery_bound
    if not np.isfinite(bound):
        return Threshold(np.inf, 0.0)
    recovers = _FullOverlap(evolution, foot)
    low, high = bound * (1 + _MARGIN), 1.25 * bound
    if recovers(low) or _recovers_on_more_nodes(recovers):
        return Threshold(bound, _MARGIN * bound)
    while not recovers(high):
        low, high = high, 1.5 * high
        if high > _LARGEST * bound:
            return Threshold(np.inf, 0.0)
    first = recovers.bisected(low, high)
    # Where the dynamics passes depends on the nodes; a deterministic average has none.
    others = [] if evolution.deterministic else [evolution.on_other_nodes(k) for k in range(1, _NODE_SETS)]
    alphas = np.array([first.alpha, *(_FullOverlap(other).near(first.alpha).alpha for other in others)])
    scatter = alphas.std(ddof=1) / np.sqrt(len(alphas)) if others else 0.0
    return Threshold(float(alphas.mean()), float(np.hypot(first.error, scatter)))
