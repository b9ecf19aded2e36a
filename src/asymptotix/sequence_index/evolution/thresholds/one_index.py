"""The branch of a diagonal overlap on which one index is learned, and the index that is learned next.

On the branch where index a has overlap q,

    alpha(q) = q / ((1-q) h_a(q)),  h_a = E|g_a|^2,        and index l follows where alpha(q) f_l(q) = 1,

with g the score of a sample, G = dg/domega its derivative in the fields, and f_l = E|G_ll|^2. Evaluating f_l at q = 1
instead, as if index a were known exactly, gives 1/(M(M+1)) for M tokens whatever the model: the condition must be
self-consistent. (Troiani et al., arXiv:2502.00901, Appendix E.2, prints it otherwise.)

Equation si-second of docs/theory/sequence_index.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....core.progress import Say, quietly
from ....numerics.linear_algebra import from_logit, to_logit
from ....numerics.quadrature import error_of_mean
from ..dynamics import NEARLY_EXACT
from ..nodes import MOST_BLOCKS_DRAWN, Judged, with_blocks
from ..overlap_map import OverlapMap
from ..refinement import BLOCKS
from .threshold import NO_GROWTH, UNCORRECTED_SHARE, StaircaseStep, Threshold, along, not_below

#: Largest number of linear steps to a crossing on the first block; then no threshold is found.
_APPROACHES = 8
#: An index may be learned first on more nodes if its log(alpha f) exceeds minus this where another index starts to grow
#: on coarse nodes.
_CLOSE = 0.1


class OneIndexBranch:
    """The branch of a diagonal overlap on which only the row ``learned`` has an overlap."""

    def __init__(self, evolution: OverlapMap, learned: int) -> None:
        self.evolution, self.learned = evolution, learned

    def at(self, x: float, block: int | None = None, careful: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return log alpha (R,) and log(alpha f_l) (R, P) where the learned index has the logit x = log(q/(1-q)).

        A small overlap of index l is multiplied by alpha f_l per iteration. ``block`` is the number of a block of nodes
        (None: coarse nodes); ``careful``: more draws for posteriors with few effective draws.
        """
        v = np.ones(self.evolution.channel.indices)
        v[self.learned] = from_logit(x)[1]
        nodes = self.evolution.nodes
        averages = (nodes.few if block is None else nodes.block(block, careful))(np.diag(v))
        log_alpha = x - _log_rows(averages.second_moment[:, self.learned, self.learned])
        growth = log_alpha[:, None] + _log_rows(averages.curvature.clip(NO_GROWTH))
        growth[:, self.learned] = np.log(NO_GROWTH)
        return log_alpha, growth


def _log_rows(rows: np.ndarray) -> np.ndarray:
    """Return logarithms of ``rows`` (R, ...), shifted so that their mean is the logarithm of the mean of the rows."""
    logs = np.log(rows)
    return logs - logs.mean(0) + np.log(rows.mean(0))


class _Crossing(NamedTuple):
    """Point where the growth factor alpha f of ``index`` is one on coarse nodes, with x the logit of the learned index.

    The slopes are the derivatives in x of log alpha and of log(alpha f).
    """

    index: int
    x: float
    slope_alpha: float
    slope_growth: float


def next_index(evolution: OverlapMap, learned: int, tolerance: float, say: Say = quietly) -> StaircaseStep:
    """Return the step of the index that is learned next after the index ``learned``, to a relative ``tolerance``."""
    P = evolution.channel.indices
    branch = OneIndexBranch(evolution, learned)
    crossings, highest = _first_crossings(branch, say)
    if not crossings:
        return along(not_below(highest), int(learned == 0), P)
    found = {crossing.index: _located(branch, crossing, tolerance, say) for crossing in crossings}
    index = min(found, key=lambda index: found[index].alpha)
    return along(found[index], index, P)


def _located(branch: OneIndexBranch, crossing: _Crossing, tolerance: float, say: Say) -> Threshold:
    """Return the threshold at a crossing from coarse nodes, computed on more nodes to a relative ``tolerance``."""
    index, x, slope_alpha, slope_growth = crossing
    most = MOST_BLOCKS_DRAWN if branch.evolution.channel.stochastic else BLOCKS[-1]

    def predicted(x: float, block: int, careful: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return logit and alpha (R,) of the crossing, predicted by a linear step from logit x on block ``block``."""
        log_alpha, growth = branch.at(x, block, careful)
        move = -growth[:, index] / slope_growth
        return x + move, np.exp(log_alpha + slope_alpha * move)

    say(f"block 1 of at most {most}")
    ends: list[tuple[float, np.ndarray]] = []
    for _ in range(_APPROACHES):
        before, (x_r, end) = x, predicted(x, 0)
        x = float(x_r.mean())
        if abs((x - before) * slope_alpha) < 0.1:  # otherwise too far for a linear step
            ends.append((x, end))
            break
    if not ends:
        return Threshold(np.nan, np.inf).checked(tolerance)

    def judged(ends: list[tuple[float, np.ndarray]]) -> Judged[np.ndarray]:
        alpha = np.mean([alpha for _, alpha in ends], axis=0)
        error = float(error_of_mean(alpha) / alpha.mean())
        return Judged(alpha, error, len(ends) in BLOCKS and error < 0.75 * tolerance)

    def on_block(_: np.ndarray, number: int) -> list[tuple[float, np.ndarray]]:
        x_r, end = predicted(ends[-1][0], number)
        return [(float(x_r.mean()), end)]

    alpha, error, _ = with_blocks(ends, judged, on_block, most, tolerance, say)
    x, error = ends[-1][0], error * alpha.mean()
    if branch.evolution.channel.careful_enough is not None:
        say("bias of few draws")
        bias = predicted(x, 0)[1] - predicted(x, 0, careful=True)[1]
        alpha = alpha - bias
        error = np.hypot(error_of_mean(alpha), UNCORRECTED_SHARE * bias.mean())
    return Threshold(float(alpha.mean()), float(error)).checked(tolerance)


def _first_crossings(branch: OneIndexBranch, say: Say) -> tuple[list[_Crossing], float]:
    """Walk up the branch until an index starts to grow, and on until all indices that almost grew there grow, too.

    Returns the crossings where these indices start to grow, and the largest alpha of the walk.
    """
    previous, found, close, highest = None, [], set[int](), 0.0
    start, bulk, end = (float(x) for x in (to_logit(1e-4), to_logit(0.02), -to_logit(NEARLY_EXACT) + 3))
    for x in np.concatenate([np.arange(start, bulk, 1.0), np.arange(bulk, end, 0.5)]):
        say(f"along the branch with one direction learned, alpha up to {highest:.4g}")
        here = [value.mean(0) for value in branch.at(x)]
        log_alpha, growth = float(here[0]), np.asarray(here[1])
        highest = max(highest, float(np.exp(log_alpha)))
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
    return found, highest
