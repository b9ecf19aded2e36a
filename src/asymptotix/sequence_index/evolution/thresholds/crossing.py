"""The crossing on a branch of matrix overlaps: the alpha at which a further direction starts to grow.

The unknowns are log alpha and the coordinates x of the learned overlap, both from the same nodes. They solve

    x = log Qhat(x, alpha),        log alpha + log lambda(x) = 0,

with lambda the largest eigenvalue of F outside the learned subspace. Every randomisation of the nodes predicts both by
one Newton step. The scatter of alpha therefore includes the effect of the overlap's error on the growth, and the
correlation of the two.
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

#: Step of finite differences in every unknown.
_STEP = 0.1
#: Largest number of Newton steps on the first block, and the move of log alpha below which the search has settled. With
#: draws steps may stay above the tolerance, because the set of samples with enough draws changes with the overlap.
_STEPS, _SETTLED = 12, 0.02
#: Largest move in any unknown.
_BOUND = 0.5
#: Share of the last step that counts as an error, because slopes from one block may be wrong by this share.
_CURVED = 0.1


class Crossing(NamedTuple):
    """The threshold, the direction that grows there, and the point of the learned overlap."""

    threshold: Threshold
    found: Instability
    point: Point


class _CrossingRows(NamedTuple):
    """Unknowns (x, log alpha) (m + 1,), and per randomisation residuals of x (R, m) and operators F (R, b, b)."""

    unknowns: np.ndarray
    residuals: np.ndarray
    operators: np.ndarray

    def plus(self, other: _CrossingRows, less: _CrossingRows) -> _CrossingRows:
        """Return these rows plus the difference of two others."""
        residuals, operators = self.residuals + other.residuals - less.residuals, self.operators + other.operators
        return _CrossingRows(self.unknowns, residuals, operators - less.operators)

    @property
    def equations(self) -> np.ndarray:
        """Values of the equations (R, m + 1), zero at the crossing; their mean is the value of all nodes together."""
        rates = largest_rates(self.operators)
        mean = max(rates.mean(), NO_GROWTH)
        growth = self.unknowns[-1] + np.log(mean) + (rates - rates.mean()) / mean
        return np.concatenate([self.residuals, growth[:, None]], 1)


class _Predicted(NamedTuple):
    """The unknowns (m + 1,) of the crossing, the last step of log alpha, and the operators (R, b, b) before it."""

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
        """Return derivatives of the equations in the unknowns (m + 1, m + 1), by finite differences on common nodes."""
        before, columns = here.equations.mean(0), []
        for shift in _STEP * np.eye(len(here.unknowns)):
            # The last column is the derivative in log alpha, for which V and the averages are those of ``here``.
            columns.append((self.evaluated(average, here.unknowns + shift).equations.mean(0) - before) / _STEP)
        return np.stack(columns, 1)


def crossing(evolution: OverlapMap, at: Point, tolerance: float, say: Say) -> Crossing:
    """Return the crossing near a point, to a relative ``tolerance`` of alpha or on the largest number of blocks."""
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
    """Return the systematic error of log alpha, which the scatter does not show."""
    if average.uncorrected is None:
        return average.accuracy
    without = search.evaluated(average.uncorrected, here.unknowns).equations.mean(0)
    return float(HALF_WRONG * abs(np.linalg.solve(slopes, here.equations.mean(0) - without)[-1]))


def _approached(
    search: _CrossingSearch, average: Averager, unknowns: np.ndarray, tolerance: float
) -> tuple[_CrossingRows, np.ndarray, bool]:
    """Take Newton steps on one block; return the last evaluation, slopes near it, and whether steps became small."""
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
    """Return the effect of a move on log alpha: its own component, or the change of the growth by the overlap.

    With draws the overlap itself need not settle, because the set of samples with enough draws changes.
    """
    return float(max(abs(move[-1]), abs(slopes[-1, :-1]) @ abs(move[:-1])))


def _bounded(move: np.ndarray) -> np.ndarray:
    return move * min(1.0, _BOUND / max(abs(move).max(), 1e-300))
