"""The crossing on a branch of matrix overlaps: the alpha at which a further direction starts to grow.

The unknowns are log alpha and the coordinates x (m,) of the learned overlap. They solve, on the same nodes,

    x = log Qhat(x, alpha),        log alpha + log lambda(x) = 0,

with Qhat = alpha E[g g^T] (g: score), and lambda the growth rate of a small overlap outside the learned
subspace. Every randomisation of the nodes predicts both unknowns by one Newton step, so that the scatter of alpha
includes the effect of the overlap's error on the growth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....core.progress import Say
from ....numerics.linear_algebra import symmetric_basis
from ...channels.protocol import HALF_WRONG, Averager, Averages
from ..instability import Instability, analysed, largest_rates
from ..nodes import Judged, with_blocks
from ..overlap_map import OverlapMap
from ..point import Point
from .threshold import NO_GROWTH, SCATTER_SHARE, Threshold, fill_a_net, scatter_of_blocks

#: Step of finite differences in every unknown, a logit or log alpha.
_STEP = 0.1
#: Largest number of Newton steps on the first block, and the step of log alpha below which the search has settled. It
#: exceeds the tolerance, because with draws steps may stay above that.
_STEPS, _SETTLED = 12, 0.02
#: Largest step in any unknown, a logit or log alpha: longer steps are shortened.
_BOUND = 0.5
#: Share of the last step of log alpha that counts as its error: slopes from one block may be wrong by as much.
_CURVED = 0.1


class Crossing(NamedTuple):
    """The threshold, the instability found there (with the direction that grows), and the point of the branch there."""

    threshold: Threshold
    found: Instability
    point: Point


class _CrossingRows(NamedTuple):
    """Unknowns (m + 1,): coordinates x and log alpha; per randomisation, residuals of x (R, m) and operators (R, b, b).

    The largest eigenvalue of the operator is the growth rate of small overlaps outside the learned subspace.
    """

    unknowns: np.ndarray
    residuals: np.ndarray
    operators: np.ndarray

    def plus(self, other: _CrossingRows, less: _CrossingRows) -> _CrossingRows:
        """Return these residuals and operators plus those of ``other`` minus those of ``less``."""
        residuals, operators = self.residuals + other.residuals - less.residuals, self.operators + other.operators
        return _CrossingRows(self.unknowns, residuals, operators - less.operators)

    @property
    def equations(self) -> np.ndarray:
        """Residuals of x and log(alpha lambda) (R, m + 1), zero at the crossing, with lambda the growth rate.

        Their mean over the R randomisations is the value of all nodes together.
        """
        rates = largest_rates(self.operators)
        mean = max(rates.mean(), NO_GROWTH)
        growth = self.unknowns[-1] + np.log(mean) + (rates - rates.mean()) / mean
        return np.concatenate([self.residuals, growth[:, None]], 1)


class _Predicted(NamedTuple):
    """Unknowns (m + 1,) at the crossing: coordinates and log alpha; the last step of log alpha; operators before it."""

    unknowns: np.ndarray
    move: float
    operators: np.ndarray


class _CrossingSearch:
    """Newton's method for one crossing, on blocks of nodes."""

    def __init__(self, evolution: OverlapMap, at: Point) -> None:
        self._evolution, self.start = evolution, at
        self.frame = evolution.not_learned(at)
        self._basis = symmetric_basis(self.frame.shape[1])

    def point(self, unknowns: np.ndarray) -> Point:
        return self.start.moved(unknowns[:-1]).at(float(np.exp(unknowns[-1])))

    def evaluated(self, average: Averager, unknowns: np.ndarray) -> _CrossingRows:
        point = self.point(unknowns)
        averages = average(point.V)
        rows = self._evolution.image(averages, point)
        together = self._evolution.image(Averages(*(part.mean(0, keepdims=True) for part in averages)), point)
        _, operators = average.moments_and_operators(point.V, self.frame, self._basis)
        return _CrossingRows(unknowns, rows - rows.mean(0) + together - unknowns[:-1], operators)

    def slopes(self, average: Averager, here: _CrossingRows) -> np.ndarray:
        """Return derivatives (m + 1, m + 1) of the equations (rows) in the unknowns at ``here``, on the same nodes."""
        before, columns = here.equations.mean(0), []
        for shift in _STEP * np.eye(len(here.unknowns)):
            # The last column is the derivative in log alpha, for which V and the averages are those of ``here``.
            columns.append((self.evaluated(average, here.unknowns + shift).equations.mean(0) - before) / _STEP)
        return np.stack(columns, 1)


def crossing(evolution: OverlapMap, at: Point, tolerance: float, say: Say) -> Crossing:
    """Return the crossing near ``at``, with alpha to a relative ``tolerance`` unless that takes too many blocks."""
    search, nodes = _CrossingSearch(evolution, at), evolution.nodes
    say("towards the crossing")
    near, first = nodes.block(0), nodes.better_block(0)
    here, slopes, settled = _approached(search, near, np.append(at.x, np.log(at.alpha)), tolerance)
    seen = [better := here if first is near else search.evaluated(first, here.unknowns)]
    bias = _systematic_error(search, first, seen[0], slopes)

    def judged(seen: list[_CrossingRows]) -> Judged[_Predicted]:
        together = _CrossingRows(*(np.mean(parts, axis=0) for parts in zip(*seen, strict=True)))
        moves = -np.linalg.solve(slopes, together.equations.T).T
        of_blocks = np.stack([np.linalg.solve(slopes, rows.equations.T)[-1] for rows in seen])
        error = scatter_of_blocks(of_blocks, moves[:, -1])
        enough = error <= SCATTER_SHARE * max(tolerance, bias) and fill_a_net(len(seen))
        end = together.unknowns + _bounded(moves.mean(0))
        return Judged(_Predicted(end, moves[:, -1].mean(), together.operators), error, enough or not settled)

    def on_block(near: _Predicted, number: int) -> list[_CrossingRows]:
        # The improvement by a better block has little noise: the one of the first block is added to all others.
        return [search.evaluated(nodes.block(number), near.unknowns).plus(better, here)]

    (end, move, operators), error, _ = with_blocks(seen, judged, on_block, nodes.most_blocks, tolerance, say)
    point, error = search.point(end), np.linalg.norm([error, bias, _CURVED * move])
    moments = np.zeros((len(operators), *[search.frame.shape[1]] * 2))  # nothing starts by itself here
    found = analysed(moments, operators, search.frame, np.inf, noisy=False)
    threshold = Threshold(point.alpha, float(point.alpha * error)).checked(tolerance)
    return Crossing(threshold.unless("" if settled else "the crossing did not settle"), found, point)


def _systematic_error(search: _CrossingSearch, average: Averager, here: _CrossingRows, slopes: np.ndarray) -> float:
    """Return the systematic error of log alpha, with ``slopes`` (m + 1, m + 1) the derivatives of the equations."""
    if average.uncorrected is None:
        return average.accuracy
    without = search.evaluated(average.uncorrected, here.unknowns).equations.mean(0)
    return float(HALF_WRONG * abs(np.linalg.solve(slopes, here.equations.mean(0) - without)[-1]))


def _approached(
    search: _CrossingSearch, average: Averager, unknowns: np.ndarray, tolerance: float
) -> tuple[_CrossingRows, np.ndarray, bool]:
    """Take Newton steps on one block of nodes from ``unknowns`` (m + 1,): coordinates and log alpha.

    Returns the last evaluation, derivatives (m + 1, m + 1) of the equations near it, and whether the search settled.
    """
    here = search.evaluated(average, unknowns)
    slopes = search.slopes(average, here)
    for step in range(_STEPS):
        move = -np.linalg.solve(slopes, here.equations.mean(0))
        if _felt(move, slopes) < tolerance:
            break
        here = search.evaluated(average, here.unknowns + _bounded(move))
        if abs(move).max() > (_BOUND if step else _STEP):
            slopes = search.slopes(average, here)
    move = -np.linalg.solve(slopes, here.equations.mean(0))
    return here, slopes, bool(_felt(move, slopes) < _SETTLED and abs(move).max() < _BOUND)


def _felt(move: np.ndarray, slopes: np.ndarray) -> float:
    """Return the size of a step ``move`` (m + 1,) for log alpha: its last component, or its effect on the growth rate.

    ``slopes`` (m + 1, m + 1) are derivatives of the equations. The overlap itself need not settle.
    """
    return float(max(abs(move[-1]), abs(slopes[-1, :-1]) @ abs(move[:-1])))


def _bounded(move: np.ndarray) -> np.ndarray:
    return move * min(1.0, _BOUND / max(abs(move).max(), 1e-300))
