"""Refinement of a fixed point on as many blocks of nodes as a tolerance needs, and its numerical error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...core.progress import Say, quietly
from ...core.status import Status
from ...numerics.linear_algebra import to_logit
from ...numerics.threads import in_threads
from ..channels.protocol import HALF_WRONG, Averager, Averages, Correction
from .coordinates import PRECISIONS
from .nodes import MOST_BLOCKS, Judged, Nodes, with_blocks
from .overlap_map import OverlapMap
from .point import Point

#: Numbers of blocks of nodes after which the error is compared with the tolerance; the last one is the maximum.
BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, MOST_BLOCKS)
#: Largest number of blocks of nodes for averages from draws.
_MOST_DRAWN = 16
#: Largest number of quasi-Newton steps; then the result is not converged.
_STEPS = 8
#: Logit of the smallest principal overlap below which the fixed point is predicted linearly in Q.
_SMALL = float(to_logit(0.2))
#: Largest error of a correction for rough posteriors as a share of the tolerance, on its smaller and on its larger set
#: of nodes. Without a correction blocks take twice as long.
_SURE = 0.25, 0.5
#: If an eigenvalue of the Jacobian J of an iteration on coarse nodes exceeds one minus this, J is computed again on a
#: block: coarse nodes were wrong by 0.012.
_CLEARLY = 0.01
#: Step of finite differences in a logit, without and with draws. The set of samples with enough draws changes with the
#: overlap, which affects a longer step less.
_STEP, _STEP_DRAWN = 0.05, 0.1


@dataclass(frozen=True)
class OverlapSolution:
    """End point of state evolution at one alpha.

    Attributes
    ----------
    Q, V : arrays (P, P)
        Overlap and posterior variance I - Q.
    Q_error : array (P, P)
        Numerical standard error of Q.
    averages : Averages or None
        Averages over data at the end point, on the finest nodes used. None where recovery is exact.
    how : Status
        How the iteration ended; EXACT_RECOVERY if every direction that affects the output is recovered exactly.
    words : str
        Text of the status, with remarks.
    marginal : bool
        Whether alpha is at the edge of exact recovery, where 1-q falls only algebraically.
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
        """Whether every direction that affects the output is recovered exactly."""
        return self.how is Status.EXACT_RECOVERY

    @property
    def settled(self) -> bool:
        """Whether the end point is a fixed point, accurate or not."""
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
    """Averages of one block of nodes at a point, and residuals x' - x (R, m) of one iteration of its coordinates x.

    The logarithm of a noisy average is biased downwards. The rows are therefore jackknife values: R times the residual
    of all randomisations minus R-1 times the residual without one of them. Their mean has no such bias.
    """

    point: Point
    averages: Averages
    residuals: np.ndarray

    @property
    def x(self) -> np.ndarray:
        return self.point.x


def refined(evolution: OverlapMap, point: Point, tolerance: float, say: Say = quietly) -> OverlapSolution:
    """Return the fixed point near ``point``, with errors of Q up to ``tolerance``; ``say`` receives progress texts.

    Quasi-Newton steps on one block of nodes come first, then more blocks until the error is small enough. Every block
    predicts the fixed point, once per randomisation, and predictions from nearby points are averaged. Steps are
    bounded, predictions are not: their scatter is the error. Posteriors are rough (fast, but inaccurate) during the
    steps, and also afterwards if an accurate correction for them is found.
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
    if better is not first or correction is not None:  # cheap on the same block: it keeps its last averages
        here = _evaluated(evolution, here.point, better, correction)
    predictions, seen = Predictions(here.point, response, nodes.biased, nodes.noisy), [here]
    predictions.add(here, inverse)
    certain = point.space.certain
    known = certain.shape[1]
    systematic = _systematic_errors(evolution, here.point, better, response)
    systematic = systematic + abs(certain @ certain.T) / PRECISIONS[1]  # the smallest 1-q that is followed
    # More blocks reduce the scatter only: if the systematic error is too large, not all of them are used.
    aim = max(tolerance - float(systematic.max()), tolerance / 2)

    def judged(seen: list[_Evaluation]) -> Judged[Point]:
        error = float(predictions.error(seen[-1].point).max())
        enough = bool(moving) or (error <= aim and len(seen) in BLOCKS)
        return Judged(predictions.end(seen[-1].point), error, enough)

    def on_block(end: Point, number: int) -> Iterator[_Evaluation]:
        for there in _on_more_blocks(evolution, end, blocks_of, number, correction):
            predictions.add(there, inverse)
            yield there

    end = with_blocks(seen, judged, on_block, most, tolerance, say).found
    pooled = _pooled(seen, end)
    errors = predictions.error(seen[-1].point) + systematic + _errors_of_axes(end, pooled.second_moment)
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
    """Return the systematic error of Q (P, P), which the scatter of randomisations does not show.

    ``response`` (m, P, P) is the derivative of the fixed point's Q with respect to the residuals of its coordinates.
    """
    if average.uncorrected is None:
        return average.accuracy * abs(response).sum(0)
    there, before = (evolution.after(one, point) for one in (average, average.uncorrected))
    return HALF_WRONG * abs(np.tensordot(there - before, response, 1))


def _errors_of_axes(end: Point, moments: np.ndarray) -> np.ndarray:
    """Return the error of Q (P, P) from the orientation of the known, learned and unlearned subspaces.

    One more iteration, from ``moments`` = E[g g^T] (R, P, P) (g: score), corrects the orientation to first order. The
    error is this change of Q, together with its scatter.
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
    """Fixed points that blocks of nodes predict by a linear step from an evaluation, one per randomisation.

    Just above a threshold (small overlaps) the step is linear in Q, as is the residual there, otherwise in the logits,
    which cannot lead beyond full overlap.

    Parameters
    ----------
    start : Point
        Point of the first evaluation.
    response : array (m, P, P)
        Derivative of the fixed point's Q with respect to the residual of every coordinate.
    drawn : bool
        Whether posteriors come from draws.
    noisy : bool
        Whether errors of different blocks are independent for small overlaps.
    """

    def __init__(self, start: Point, response: np.ndarray, drawn: bool, noisy: bool) -> None:
        self._start, self._response, self._drawn, self._noisy = start, response, drawn, noisy
        self._linear = bool(start.space.rank) and start.logits[0] < _SMALL
        self._x: list[np.ndarray] = []
        self._Q: list[np.ndarray] = []

    def add(self, here: _Evaluation, inverse: np.ndarray) -> None:
        """Add the predictions of one block from its evaluation ``here``, by a Newton step.

        ``inverse`` (m, m) is (I - J)^{-1} with J the Jacobian of one iteration.
        """
        self._x.append(here.x + here.residuals @ inverse.T)
        self._Q.append(here.point.Q + np.tensordot(here.residuals, self._response, 1))

    def end(self, here: Point) -> Point:
        """Return the mean of all predictions, with every coordinate limited to +-1 around that of ``here``."""
        x = here.space.of_overlap_inside(np.mean(self._Q, axis=(0, 1))) if self._linear else None
        x = np.mean(self._x, axis=(0, 1)) if x is None else x
        return here.moved(here.x + _bounded(x - here.x))

    def error(self, here: Point) -> np.ndarray:
        """Return the standard error (P, P) of the predicted Q; ``here`` is the point of the last evaluation."""
        if self._linear:
            return _error(self._Q, None, self._noisy)
        # With draws the end may be far below the point where the steps ended: the larger slope dq/dx is safe.
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
    """Return evaluations at ``point`` of block number ``blocks`` (the number of blocks so far) and perhaps more.

    If the channel allows it, all blocks up to the next number in ``BLOCKS`` are evaluated at the same time.
    """

    def on(number: int) -> _Evaluation:
        return _evaluated(evolution, point, nodes.better_block(number), correction)

    if not nodes.concurrent:
        return [on(blocks)]
    return in_threads(on, range(blocks, next(look for look in BLOCKS if look > blocks)), first_alone=False)


def _sure_correction(
    evolution: OverlapMap, here: _Evaluation, inverse: np.ndarray, tolerance: float
) -> Correction | None:
    """Return the correction of averages near ``here`` for the error of rough posteriors, which are fast but inaccurate.

    None if the nodes have no rough posteriors, or if the correction's effect on Q, with ``inverse`` = (I - J)^{-1}
    (m, m), has too large an error compared to ``tolerance``.
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
    """Take quasi-Newton steps from ``here``, to within the error of one block of nodes or twice the tolerance of Q.

    ``evaluated`` gives the evaluation at coordinates x (m,), and ``inverse`` (m, m) is (I - J)^{-1} with J the Jacobian
    of an iteration.

    Returns the last evaluation, ``inverse`` as updated by the steps, and a text, empty if the steps converged.
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
    """Return the step ``move`` (m,) with every coordinate limited to [-1, 1]."""
    return move.clip(-1.0, 1.0)


def _corrected(inverse: np.ndarray, step: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Return ``inverse`` (m, m), updated to map ``change`` (m,) to ``step`` (m,) (Broyden).

    ``step`` is a move of the coordinates, ``change`` the decrease of the residual in it. A step in which the residual
    hardly falls, or grows, is ignored.
    """
    if step @ inverse @ change < 0.1 * (step @ step):
        return inverse
    return inverse + np.outer(step - inverse @ change, step @ inverse) / (step @ inverse @ change)


def _newton(slopes: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return (I - J)^{-1} (m, m), which maps a residual to a Newton step, and whether I - J is significant.

    ``slopes`` (R, m, m) are the Jacobians J of every randomisation. An eigenvalue of I - J below its standard error is
    replaced by this error, so that steps lead towards the fixed point. Significant: all eigenvalues exceed two errors.
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
    """Whether all eigenvalues of the Jacobian J, ``slopes`` (1, m, m) on coarse nodes, are clearly below one."""
    return bool((1 - np.linalg.eigvals(slopes[0]).real > _CLEARLY).all())


def _slopes(evaluated: Callable[[np.ndarray], _Evaluation], here: _Evaluation, step: float) -> np.ndarray:
    """Return the Jacobians J = dx'/dx (R, m, m) of one iteration, by finite differences of size ``step`` from ``here``.

    ``evaluated`` gives the evaluation at coordinates x (m,), on the same nodes as ``here``.
    """
    shifts = step * np.eye(len(here.x))
    columns = [(evaluated(here.x + shift).residuals - here.residuals + shift) / step for shift in shifts]
    return np.stack(columns, -1) if columns else np.zeros((1, 0, 0))


def _error(ends: list[np.ndarray], tangent: np.ndarray | None, independent: bool) -> np.ndarray:
    """Return the standard error of Q (P, P) from the predictions ``ends``, one array per block.

    They are coordinates (R, m), with ``tangent`` = dQ/dx (m, P, P), or Q itself (R, P, P), with ``tangent`` None. The
    scatter of the means over blocks counts. As it may be small by chance, the error is at least that of one block
    divided by the number of blocks, or, if blocks are ``independent``, that from the scatter of all predictions.
    """
    error = _standard_error(np.mean(ends, axis=0), tangent)
    if independent:
        return np.maximum(error, _standard_error(np.concatenate(ends), tangent))
    of_one = np.sqrt(np.mean([_standard_error(rows, tangent) ** 2 for rows in ends], axis=0))
    return np.maximum(error, of_one / len(ends))


def _standard_error(rows: np.ndarray, tangent: np.ndarray | None) -> np.ndarray:
    """Return the standard error of the mean Q (P, P) from R independent ``rows``.

    They are coordinates (R, m), with ``tangent`` = dQ/dx (m, P, P), or Q itself (R, P, P), with ``tangent`` None. One
    row is a deterministic average, with rounding errors only.
    """
    if len(rows) == 1:
        return 1e-9 * (abs(rows[0]) if tangent is None else abs(tangent).sum(0))
    spread = rows - rows.mean(0)
    spread = spread if tangent is None else np.tensordot(spread, tangent, 1)
    return np.sqrt((spread**2).sum(0) / (len(rows) - 1) / len(rows))


def _pooled_rows(averages: Averages) -> Averages:
    """Return the averages with all R randomisations replaced by one, their mean (first axis of length one)."""
    return Averages(*(part.mean(0, keepdims=True) for part in averages))


def _without_each_row(averages: Averages) -> Averages:
    """Return averages whose row r is the mean of all randomisations except r (jackknife)."""
    rows = len(averages.second_moment)
    return Averages(*((part.sum(0) - part) / (rows - 1) for part in averages))


def _pooled(seen: list[_Evaluation], end: Point) -> Averages:
    """Return the mean of the averages over all evaluations, with the log evidence extrapolated to the point ``end``.

    Its slope in Q is E[g g^T]/2 (g: score).
    """
    averages = []
    for here in seen:
        led = 0.5 * (here.averages.second_moment * (end.Q - here.point.Q)).sum((-1, -2))
        averages.append(here.averages._replace(log_evidence=here.averages.log_evidence + led))
    return Averages(*(np.mean(parts, axis=0) for parts in zip(*averages, strict=True)))
