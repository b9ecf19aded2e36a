"""Where on a branch of matrix overlaps the rest starts to grow: overlap and alpha from the same nodes.

Unknown are the coordinates x of the overlap of what is learned and log alpha. They solve

    x = log Qhat(x, alpha),        log alpha + log lambda(x) = 0,

lambda the largest eigenvalue of F outside. Every randomisation of the nodes predicts both by one Newton step. The
scatter of its alpha knows how the error of the overlap moves the growth, and that both come from the same nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....core.progress import Say
from ....numerics.linear_algebra import symmetric_basis
from ...channels.protocol import HALF_WRONG, Averages, OperatorAverager
from ..instability import Instability, analysed, largest_rates
from ..nodes import Nodes
from ..overlap_map import OverlapMap
from ..point import Point
from .threshold import NO_GROWTH, SCATTER_SHARE, Threshold, fill_a_net, scatter_of_blocks

#: Steps of finite differences.
_STEP = 0.1
#: Newton steps on the first block at most, and the move of log alpha after which it counts as settled: from draws,
#: which samples have enough of them changes with the overlap, and steps may not become as small as the tolerance.
_STEPS, _SETTLED = 12, 0.02
#: Largest move in any unknown.
_BOUND = 0.5
#: Share of the last step that counts as an error: slopes from one block may be as wrong.
_CURVED = 0.1


class Crossing(NamedTuple):
    """The threshold, what grows there, and the overlap of what is learned."""

    threshold: Threshold
    found: Instability
    point: Point


class _CrossingRows(NamedTuple):
    """Unknowns (m + 1,) at which nodes were asked, then rows: residuals of x (R, m) and operators (R, b, b)."""

    unknowns: np.ndarray
    residuals: np.ndarray
    operators: np.ndarray

    def plus(self, other: _CrossingRows, less: _CrossingRows) -> _CrossingRows:
        """These, with the difference of two others."""
        residuals, operators = self.residuals + other.residuals - less.residuals, self.operators + other.operators
        return _CrossingRows(self.unknowns, residuals, operators - less.operators)

    @property
    def equations(self) -> np.ndarray:
        """What is to vanish, one row per randomisation (R, m + 1); their mean is that of all nodes together."""
        rates = largest_rates(self.operators)
        mean = max(rates.mean(), NO_GROWTH)
        growth = self.unknowns[-1] + np.log(mean) + (rates - rates.mean()) / mean
        return np.concatenate([self.residuals, growth[:, None]], 1)


class _CrossingSearch:
    """Newton's method for one crossing, on blocks of nodes."""

    def __init__(self, evolution: OverlapMap, at: Point) -> None:
        self._evolution, self.start = evolution, at
        self.frame = evolution.not_learned(at)
        self._basis = symmetric_basis(self.frame.shape[1])

    def point(self, unknowns: np.ndarray) -> Point:
        return self.start.moved(unknowns[:-1]).at(float(np.exp(unknowns[-1])))

    def evaluated(self, average: OperatorAverager, unknowns: np.ndarray) -> _CrossingRows:
        point = self.point(unknowns)
        averages = average(point.V)
        rows = self._evolution.image(averages, point)
        together = self._evolution.image(Averages(*(part.mean(0, keepdims=True) for part in averages)), point)
        _, operators = average.moments_and_operators(point.V, self.frame, self._basis)
        return _CrossingRows(unknowns, rows - rows.mean(0) + together - unknowns[:-1], operators)

    def slopes(self, average: OperatorAverager, here: _CrossingRows) -> np.ndarray:
        """Of the equations in the unknowns (m + 1, m + 1), by finite differences on common nodes."""
        before, columns = here.equations.mean(0), []
        for shift in _STEP * np.eye(len(here.unknowns)):
            # The average knows nothing of alpha: it is the last that was asked for, and not computed again.
            columns.append((self.evaluated(average, here.unknowns + shift).equations.mean(0) - before) / _STEP)
        return np.stack(columns, 1)


def crossing(evolution: OverlapMap, at: Point, tolerance: float, say: Say) -> Crossing:
    """The crossing near a point, to a relative ``tolerance`` of alpha or on as many blocks as there may be."""
    search, nodes = _CrossingSearch(evolution, at), evolution.nodes
    say("towards the crossing")
    near, first = nodes.operator_block(0), _better_block(nodes)
    here, slopes, settled = _approached(search, near, np.append(at.x, np.log(at.alpha)), tolerance)
    seen = [better := here if first is near else search.evaluated(first, here.unknowns)]
    bias = _systematic_error(search, first, seen[0], slopes)
    while True:
        together = _CrossingRows(*(np.mean(parts, axis=0) for parts in zip(*seen, strict=True)))
        moves = -np.linalg.solve(slopes, together.equations.T).T
        of_blocks = np.stack([np.linalg.solve(slopes, rows.equations.T)[-1] for rows in seen])
        error = scatter_of_blocks(of_blocks, moves[:, -1])
        end = together.unknowns + _bounded(moves.mean(0))
        enough = error <= SCATTER_SHARE * max(tolerance, bias) and fill_a_net(len(seen))
        if not settled or enough or len(seen) == nodes.most_blocks:
            break
        say(f"block {len(seen) + 1} of at most {nodes.most_blocks}, error {error:.1e}, tolerance {tolerance:.1e}")
        # What makes the first block better is known from it with less noise than all the rest.
        seen.append(search.evaluated(nodes.operator_block(len(seen)), end).plus(better, here))
    point, error = search.point(end), np.linalg.norm([error, bias, _CURVED * moves[:, -1].mean()])
    moments = np.zeros((len(moves), *[search.frame.shape[1]] * 2))  # nothing is to start by itself here
    found = analysed(moments, together.operators, search.frame, np.inf, noisy=False)
    threshold = Threshold(point.alpha, float(point.alpha * error)).checked(tolerance)
    return Crossing(threshold.unless("" if settled else "the crossing did not settle"), found, point)


def _systematic_error(
    search: _CrossingSearch, average: OperatorAverager, here: _CrossingRows, slopes: np.ndarray
) -> float:
    """By how much log alpha may be wrong beyond its scatter."""
    if average.uncorrected is None:
        return average.accuracy
    without = search.evaluated(average.uncorrected, here.unknowns).equations.mean(0)
    return float(HALF_WRONG * abs(np.linalg.solve(slopes, here.equations.mean(0) - without)[-1]))


def _better_block(nodes: Nodes) -> OperatorAverager:
    block = nodes.better_block(0)
    assert isinstance(block, OperatorAverager)  # the overlap is a matrix
    return block


def _approached(
    search: _CrossingSearch, average: OperatorAverager, unknowns: np.ndarray, tolerance: float
) -> tuple[_CrossingRows, np.ndarray, bool]:
    """Newton steps on one block: the last evaluation, the slopes near by, and whether the steps have become small."""
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
    """How much of a move log alpha feels: its own, and that of the growth by the overlap.

    From draws the overlap itself does not settle further than these, as they change places, allow.
    """
    return float(max(abs(move[-1]), abs(slopes[-1, :-1]) @ abs(move[:-1])))


def _bounded(move: np.ndarray) -> np.ndarray:
    return move * min(1.0, _BOUND / max(abs(move).max(), 1e-300))
