"""From a fixed point on few nodes to one on as many as a tolerance asks for, with its numerical error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...core.progress import Say, quietly
from ...core.status import Status
from ...numerics.linear_algebra import to_logit
from ...numerics.threads import in_threads
from ..channels.protocol import HALF_WRONG, Averager, Averages, Correction
from .coordinates import PRECISIONS
from .nodes import MOST_BLOCKS, Nodes
from .overlap_map import OverlapMap
from .point import Point

#: Numbers of blocks at which the error is looked at.
BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, MOST_BLOCKS)
#: The most of them for posteriors that come from draws.
_MOST_DRAWN = 16
_STEPS = 8
#: Logit of a principal overlap below which it is small: the fixed point is predicted linearly in Q.
_SMALL = float(to_logit(0.2))
#: Error of a correction at most, as a share of the tolerance, on few nodes and on more: it adds 3 % and 12 % to an
#: error as large as that. Blocks of better posteriors take twice as long.
_SURE = 0.25, 0.5
#: Distance from one of an eigenvalue of J up to which it is found anew on a block: few nodes were off by 0.012 (1.007
#: where a block says 0.995). Beyond it a step may be too long or too short by a factor of two, in the right direction.
_CLEARLY = 0.01
#: Steps of finite differences in a logit. Which samples have enough draws changes with the overlap: a longer one feels
#: less of that.
_STEP, _STEP_DRAWN = 0.05, 0.1


@dataclass(frozen=True)
class OverlapSolution:
    """Where state evolution ended at one alpha.

    Attributes
    ----------
    Q, V : arrays (P, P)
        Overlap and posterior variance I - Q.
    Q_error : array (P, P)
        Numerical standard error of Q.
    averages : Averages or None
        Averages at the end point, on the finest nodes used. None where recovery is exact.
    how : Status
        How it ended; EXACT_RECOVERY where every visible direction is recovered exactly.
    words : str
        The same in words, with what else is to be said.
    marginal : bool
        Whether recovery is exact only algebraically, at the edge of that.
    """

    Q: np.ndarray
    V: np.ndarray
    Q_error: np.ndarray
    averages: Averages | None
    how: Status = Status.CONVERGED
    words: str = ""
    marginal: bool = False

    @property
    def exact(self) -> bool:
        """Whether every visible direction is recovered exactly."""
        return self.how is Status.EXACT_RECOVERY

    @property
    def settled(self) -> bool:
        """Whether this is a fixed point, to whatever accuracy."""
        return self.how is not Status.NOT_CONVERGED

    @property
    def q(self) -> np.ndarray:
        """Overlap of every index with itself (P,)."""
        return np.diag(self.Q)

    @property
    def v(self) -> np.ndarray:
        """Posterior variance of every index (P,)."""
        return np.diag(self.V)

    @property
    def error(self) -> np.ndarray:
        """Numerical standard error of ``q`` (P,)."""
        return np.diag(self.Q_error)


class _Evaluation(NamedTuple):
    """Averages at a point on one block of nodes, and where an iteration leads from there (R, m), less its x.

    The logarithm of a noisy average is too small, that of one randomisation more than that of all: where rare samples
    count, by far. The rows are jackknife's, R times that of all randomisations less R-1 times that of all but one:
    their mean has the bias of neither.
    """

    point: Point
    averages: Averages
    residuals: np.ndarray

    @property
    def x(self) -> np.ndarray:
        return self.point.x


def refined(evolution: OverlapMap, point: Point, tolerance: float, say: Say = quietly) -> OverlapSolution:
    """Quasi-Newton steps on one block of nodes, then more blocks until the error is small enough.

    From wherever it is evaluated, every block of nodes predicts the fixed point, one prediction per randomisation.
    Those made from nearby are averaged. Steps on the way are bounded, predictions are not: their scatter is the error,
    large close to a threshold. It is that of the residual seen along the slow direction. From draws, a Jacobian on few
    nodes does not tell that direction, and the error would come out several times too small: it is taken on the block.
    Blocks are rough on the way, and after it where few nodes tell what to correct.
    """
    nodes = evolution.nodes
    first = nodes.rough.block(0)
    step, few = (_STEP_DRAWN, first) if nodes.noisy else (_STEP, nodes.rough.few)
    most = _MOST_DRAWN if nodes.noisy else BLOCKS[-1]

    def at(there: Point, average: Averager) -> _Evaluation:
        say(f"towards the fixed point on more nodes, alpha = {point.alpha:.4g}")
        return _evaluated(evolution, there, average)

    here = at(point, few)
    slopes = _slopes(lambda x: at(point.moved(x), few), here, step)
    if few is not first and not _contracts(slopes):
        here = at(point, first)
        slopes = _slopes(lambda x: at(point.moved(x), first), here, step)
    inverse, resolved = _newton(slopes)
    response = np.tensordot(inverse.T, point.tangent, 1)
    here = here if len(here.residuals) > 1 or few is first else at(point, first)
    way = _approached(lambda x: at(point.moved(x), first), here, inverse, tolerance)
    here, inverse, moving = way
    correction = _sure_correction(evolution, here, inverse, tolerance)
    blocks_of = nodes if correction is None else nodes.rough
    better = blocks_of.better_block(0)
    if better is not first or correction is not None:  # a block has kept what it was asked for last
        here = _evaluated(evolution, here.point, better, correction)
    predictions, seen = Predictions(here.point, response, nodes.biased), [here]
    predictions.add(here, inverse)
    certain = point.space.certain
    known = certain.shape[1]
    systematic = _systematic_errors(evolution, here.point, better, response)
    systematic = systematic + abs(certain @ certain.T) / PRECISIONS[1]  # 1-q is not followed below that
    # More blocks make the scatter smaller and nothing else: a systematic error that is too large does not ask for all.
    aim = max(tolerance - float(systematic.max()), tolerance / 2)
    while True:
        end, errors = predictions.end(seen[-1].point), predictions.error(seen[-1].point)
        error, blocks = float(errors.max()), len(seen)
        if moving or (error <= aim and blocks in BLOCKS) or blocks == most:
            break
        say(f"block {blocks + 1} of at most {most}, error {error:.1e}, tolerance {tolerance:.1e}")
        for there in _on_more_blocks(evolution, end, blocks_of, blocks, correction):
            predictions.add(there, inverse)
            seen.append(there)
    pooled = _pooled(seen, end)
    errors = errors + systematic + _errors_of_axes(end, pooled.second_moment)
    error = float(errors.max())
    remarks = [_of_what_is_known(evolution, known)] if known else []
    averages = nodes.with_evidence(pooled, end.V)
    if moving:
        return OverlapSolution(end.Q, end.V, errors, averages, Status.NOT_CONVERGED, "; ".join([moving, *remarks]))
    if not resolved:
        remarks.insert(0, "the slow direction is not resolved, the error is known by its order only")
    if error > tolerance:
        remarks.insert(0, f"the error {error:.1e} exceeds the tolerance {tolerance:.1e}")
    how = Status.CONVERGED if resolved and error <= tolerance else Status.INACCURATE
    words = "; ".join(["settled" if how is Status.INACCURATE else how.sentence, *remarks])
    return OverlapSolution(end.Q, end.V, errors, averages, how, words)


def _systematic_errors(evolution: OverlapMap, point: Point, average: Averager, response: np.ndarray) -> np.ndarray:
    """By how much the overlap (P, P) may be wrong beyond its scatter."""
    if average.uncorrected is None:
        return average.accuracy * abs(response).sum(0)
    there, before = (evolution.after(one, point) for one in (average, average.uncorrected))
    return HALF_WRONG * abs(np.tensordot(there - before, response, 1))


def _errors_of_axes(end: Point, moments: np.ndarray) -> np.ndarray:
    """Return the error of the overlap (P, P) from the directions of the known, learned and unlearned subspaces.

    These subspaces have no coordinates: they were chosen on few nodes. One more step of the whole matrix, from
    E[g g^T] (R, P, P), turns them to first order in the right direction. The error is the size of this turn, together
    with its scatter between randomisations.
    """
    P, space = len(end.Q), end.space
    if space.diagonal:
        return np.zeros((P, P))
    hat = end.alpha * moments
    turned = hat @ np.linalg.inv(np.eye(P) + hat)
    for part in (space.certain, space.frame, space.complement):
        turned = turned - part @ (part.T @ turned @ part) @ part.T
    free = np.delete(np.eye(P), list(space.held), axis=1)
    turned = free @ (free.T @ turned @ free) @ free.T
    return np.hypot(turned.mean(0), _standard_error(turned, None) if len(turned) > 1 else 0.0)


def _of_what_is_known(evolution: OverlapMap, known: int) -> str:
    if np.isfinite(evolution.exact_recovery_bound):
        return f"exact recovery of {known} of {evolution.visible.shape[1]} directions"
    return f"1-q is below {1 / PRECISIONS[1]:.0e} in {known} of {evolution.visible.shape[1]} directions"


class Predictions:
    """Fixed points that blocks of nodes predict, one per randomisation, each by a linear step from where it was taken.

    Just above a threshold the residual of the logits is linear in the overlap: there the step is linear in Q, and the
    response of Q to a residual is the same everywhere. Where no overlap is small the step is linear in the logits,
    which cannot lead beyond full overlap.

    Parameters
    ----------
    start : Point
        From which the first prediction is made.
    response : array (m, P, P)
        By how much the fixed point moves with the residual of every coordinate.
    drawn : bool
        Posteriors come from draws.
    """

    def __init__(self, start: Point, response: np.ndarray, drawn: bool) -> None:
        self._start, self._response, self._drawn = start, response, drawn
        self._linear = bool(start.space.rank) and start.logits[0] < _SMALL
        self._x: list[np.ndarray] = []
        self._Q: list[np.ndarray] = []

    def add(self, here: _Evaluation, inverse: np.ndarray) -> None:
        """Those of one block."""
        self._x.append(here.x + here.residuals @ inverse.T)
        self._Q.append(here.point.Q + np.tensordot(here.residuals, self._response, 1))

    def end(self, here: Point) -> Point:
        """Their mean, at most one away in every coordinate."""
        x = here.space.of_overlap_inside(np.mean(self._Q, axis=(0, 1))) if self._linear else None
        x = np.mean(self._x, axis=(0, 1)) if x is None else x
        return here.moved(here.x + _bounded(x - here.x))

    def error(self, here: Point) -> np.ndarray:
        """Standard error of the overlap (P, P)."""
        if self._linear:
            return _error(self._Q, None, self._drawn)
        # With draws the end may be far below where the way to it ended: then the larger of the slopes dq/dx is safe.
        ends = [self._start, self.end(here)] if self._drawn else [self.end(here)]
        return np.max([_error(self._x, end.tangent, self._drawn) for end in ends], axis=0)


def _evaluated(
    evolution: OverlapMap, point: Point, average: Averager, correction: Correction | None = None
) -> _Evaluation:
    averages = average(point.V) if correction is None else correction.applied(average(point.V))
    together = evolution.image(_pooled_rows(averages), point)
    count = len(averages.second_moment)
    if count == 1:
        return _Evaluation(point, averages, together - point.x)
    without = evolution.image(_without_each_row(averages), point)
    return _Evaluation(point, averages, count * together - (count - 1) * without - point.x)


def _on_more_blocks(
    evolution: OverlapMap, point: Point, nodes: Nodes, blocks: int, correction: Correction | None
) -> list[_Evaluation]:
    """On the next block; where the channel allows it on all until the next look, which need not wait for each other."""

    def on(number: int) -> _Evaluation:
        return _evaluated(evolution, point, nodes.better_block(number), correction)

    if not nodes.concurrent:
        return [on(blocks)]
    return in_threads(on, range(blocks, next(look for look in BLOCKS if look > blocks)), first_alone=False)


def _sure_correction(
    evolution: OverlapMap, here: _Evaluation, inverse: np.ndarray, tolerance: float
) -> Correction | None:
    """What corrects rough blocks near here; None where they need none, or where its own error would be felt.

    Of few samples in a thousand rough posteriors are far off: where the fixed point hangs on those, it is better found
    without them.
    """
    for share, correction in zip(_SURE, evolution.nodes.corrections(here.point.V), strict=False):
        rows = evolution.image(correction.applied(_pooled_rows(here.averages)), here.point)
        error = float(_standard_error(rows @ inverse.T, here.point.tangent).max(initial=0.0))
        if error <= share * tolerance:
            return correction
    return None


def _approached(
    evaluated: Callable[[np.ndarray], _Evaluation], here: _Evaluation, inverse: np.ndarray, tolerance: float
) -> tuple[_Evaluation, np.ndarray, str]:
    """Quasi-Newton steps on one block of nodes, to within the error of those nodes or twice the tolerance.

    No closer: where a block has no fixed point near by, just above a threshold, steps would lead down to zero.

    Returns the last evaluation, (I - J)^{-1} as the steps have corrected it, and how it still moves, in words or empty.
    """
    for step in range(_STEPS + 1):
        moves, tangent = here.residuals @ inverse.T, here.point.tangent
        far = float(abs(np.tensordot(moves.mean(0), tangent, 1)).max())
        if far <= max(2 * tolerance, float(_standard_error(moves, tangent).max())):
            break
        if step == _STEPS:
            return here, inverse, f"not converged: still moving by {far:.1e}"
        before, here = here, evaluated(here.x + _bounded(moves.mean(0)))
        inverse = _corrected(inverse, here.x - before.x, (before.residuals - here.residuals).mean(0))
    return here, inverse, ""


def _bounded(move: np.ndarray) -> np.ndarray:
    """A step of at most one in every coordinate."""
    return move.clip(-1.0, 1.0)


def _corrected(inverse: np.ndarray, step: np.ndarray, change: np.ndarray) -> np.ndarray:
    """(I - J)^{-1} that maps the change of the residual along a step, on the same nodes, to that step (Broyden).

    A step along which the residual hardly falls, or grows, tells nothing.
    """
    if step @ inverse @ change < 0.1 * (step @ step):
        return inverse
    return inverse + np.outer(step - inverse @ change, step @ inverse) / (step @ inverse @ change)


def _newton(slopes: np.ndarray) -> tuple[np.ndarray, bool]:
    """(I - J)^{-1}, the step from a residual to the fixed point, and whether all of I - J stands out of the noise.

    ``slopes`` (R, m, m) are J of every randomisation. Near a threshold their mean may have an eigenvalue at or above
    one, though the fixed point is stable: the step would lead away from it. It is then kept in its direction, and
    bounded by what the scatter says of that eigenvalue.
    """
    jacobian = slopes.mean(0)
    change = np.eye(len(jacobian)) - jacobian
    if len(slopes) == 1:
        return np.linalg.inv(change), True
    values, right = np.linalg.eig(change)
    left, gaps = np.linalg.inv(right), np.real(values)
    scatter = np.real(np.einsum("km,rmn,nk->rk", left, slopes - jacobian, right))
    errors = np.sqrt((scatter**2).sum(0) / (len(slopes) - 1) / len(slopes))
    if (gaps > errors).all():
        return np.linalg.inv(change), bool((gaps >= 2 * errors).all())
    return np.real(right / (np.maximum(gaps, errors) + 1j * np.imag(values)) @ left), False


def _contracts(slopes: np.ndarray) -> bool:
    """Whether slopes J (1, m, m) on few nodes, which have no error bar, have eigenvalues clearly below one."""
    return bool((1 - np.linalg.eigvals(slopes[0]).real > _CLEARLY).all())


def _slopes(evaluated: Callable[[np.ndarray], _Evaluation], here: _Evaluation, step: float) -> np.ndarray:
    """The Jacobian J of one iteration by finite differences on common nodes, one per randomisation (R, m, m)."""
    shifts = step * np.eye(len(here.x))
    columns = [(evaluated(here.x + shift).residuals - here.residuals + shift) / step for shift in shifts]
    return np.stack(columns, -1) if columns else np.zeros((1, 0, 0))


def _error(ends: list[np.ndarray], tangent: np.ndarray | None, drawn: bool) -> np.ndarray:
    """Standard error of the overlap (P, P), from predictions of every block: coordinates (R, m), or Q (R, P, P) itself.

    Successive blocks of one randomisation make up for each other: it is the scatter of their means. With draws there
    is little of that, and that scatter, from few rows, would stop too early where it is small by chance: then it is
    not taken for less than the scatter of all.
    """
    error = _standard_error(np.mean(ends, axis=0), tangent)
    return np.maximum(error, _standard_error(np.concatenate(ends), tangent)) if drawn else error


def _standard_error(rows: np.ndarray, tangent: np.ndarray | None) -> np.ndarray:
    """Of the overlap (P, P), from independent rows of coordinates (R, m) and dQ/dx (m, P, P), or of itself.

    A deterministic average has one row and only rounding.
    """
    if len(rows) == 1:
        return 1e-9 * (abs(rows[0]) if tangent is None else abs(tangent).sum(0))
    spread = rows - rows.mean(0)
    spread = spread if tangent is None else np.tensordot(spread, tangent, 1)
    return np.sqrt((spread**2).sum(0) / (len(rows) - 1) / len(rows))


def _pooled_rows(averages: Averages) -> Averages:
    """Of all randomisations together, as one."""
    return Averages(*(part.mean(0, keepdims=True) for part in averages))


def _without_each_row(averages: Averages) -> Averages:
    """Return averages whose row r is the mean of all randomisations except r (jackknife)."""
    rows = len(averages.second_moment)
    return Averages(*((part.sum(0) - part) / (rows - 1) for part in averages))


def _pooled(seen: list[_Evaluation], end: Point) -> Averages:
    """Of all blocks, each taken near the end point; the log evidence, whose slope in Q is E[g g^T]/2, is led there.

    The rest of the free entropy is read at the end: with the two apart it would be wrong in first order.
    """
    averages = []
    for here in seen:
        led = 0.5 * (here.averages.second_moment * (end.Q - here.point.Q)).sum((-1, -2))
        averages.append(here.averages._replace(log_evidence=here.averages.log_evidence + led))
    return Averages(*(np.mean(parts, axis=0) for parts in zip(*averages, strict=True)))
