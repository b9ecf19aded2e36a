"""The largest alpha on the branch of fixed points from zero to full overlap: at the fold of the branch, or at its end.

Along a branch, a curve of fixed points, alpha first grows with the overlap. Where alpha is largest two fixed points
meet (a fold); or alpha grows until the overlap is full. Close to this alpha the dynamics is slow, and bisection
inaccurate. The branch is followed through the fold by its mean logit s, for coordinates x (m,) of the overlap:

    x = log h(x) + log(alpha) e,       s = e.x / e.e,       h = E[g g^T],

with g the score of a sample and e the coordinates of the unit matrix. At given s, an error of log h changes log(alpha)
by -w times the error, with w (1 - dlog h/dx) = e up to a factor and w.e = 1. At the fold w is a left null vector.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import fminbound

from ....core.progress import Say, under
from ....numerics.iteration import fixed_point
from ...channels.protocol import HALF_WRONG, Averager
from ..coordinates import KNOWN_LOGIT
from ..dynamics import NEARLY_EXACT
from ..nodes import Judged, with_blocks
from ..overlap_map import OverlapMap
from ..point import Point
from .threshold import SCATTER_SHARE, Threshold, fill_a_net, scatter_of_blocks

#: Step of the mean logit along the branch, largest number of steps, and accuracy of the mean logit of the fold.
_STRIDE, _STRIDES, _CLOSE = 0.25, 60, 0.02
#: Distance of log(alpha) from its maximum on coarse nodes within which the maximum on more nodes may lie. Within it,
#: number of steps between two comparisons with more nodes, and their number of blocks.
_FALLEN, _EVERY, _BLOCKS = 0.02, 4, 4
#: Residual in a logit at which a point on coarse nodes counts as fixed, largest number of evaluations for such a point,
#: and step of finite differences in a logit.
_SETTLED, _EVALUATIONS, _STEP = 1e-3, 40, 0.1
#: Sum of the absolute weights (w_a e_a, with sum one) above which they may be noise of coarse nodes.
_LARGE_WEIGHTS = 2.0


class _Branch:
    """A branch of fixed points on coarse nodes, labelled by mean logit; a search starts from the last one found."""

    def __init__(self, evolution: OverlapMap, start: Point) -> None:
        self._evolution, self._start = evolution, start
        self._unit = start.space.of_precision(np.e * np.eye(evolution.channel.indices))
        self.x = start.x
        #: Whether the last fixed point was found.
        self.settled = True

    @property
    def size(self) -> float:
        """The mean logit of the last fixed point: the mean of log(q/(1-q)) over the learned directions."""
        return float(self._unit @ self.x / (self._unit @ self._unit))

    @property
    def ended(self) -> bool:
        """Whether the overlap is nearly full, with every 1-q at most ``NEARLY_EXACT``."""
        return self._start.moved(self.x).largest_variance <= NEARLY_EXACT

    @property
    def known_so_far(self) -> Point | None:
        """The last point, with directions of 1-q = 1e-6 counted as known; None unless some, but not all, are such."""
        here = self._start.moved(self.x)
        return here.pinned() if here.logits[0] < KNOWN_LOGIT <= here.logits[-1] else None

    @property
    def few(self) -> Averager:
        """Averages over the coarse nodes."""
        return self._evolution.nodes.few

    def log_moments(self, average: Averager, x: np.ndarray) -> np.ndarray:
        """Return the coordinates (R, m) of log E[g g^T] (g: score) at overlap coordinates x (m,), per randomisation."""
        point = self._start.moved(x).at(1.0)
        return self._evolution.image(average(point.V), point)

    def log_alpha(self, size: float) -> float:
        """Move to the fixed point with mean logit ``size`` and return its log(alpha)."""
        unit = self._unit

        def at_size(x: np.ndarray) -> np.ndarray:
            return x + (size - unit @ x / (unit @ unit)) * unit

        def step(x: np.ndarray) -> np.ndarray:
            return at_size(self.log_moments(self.few, x).mean(0))

        start = at_size(self.x)
        found = fixed_point(step, start, tolerance=_SETTLED, max_steps=_EVALUATIONS, anderson=2, max_move=1.0)
        self.x, self.settled = found.x, found.converged
        return size - float(unit @ self.log_moments(self.few, self.x).mean(0) / (unit @ unit))

    def weights(self) -> np.ndarray:
        """Return the weights (m,) with which errors of log E[g g^T] enter log(alpha) at a fixed mean logit."""
        weights = self._weights_on(self.few)
        large = abs(weights * self._unit).sum() > _LARGE_WEIGHTS
        return self._weights_on(self._evolution.nodes.block(0)) if large else weights

    def _weights_on(self, average: Averager) -> np.ndarray:
        m, before = len(self.x), self.log_moments(average, self.x).mean(0)
        columns = [(self.log_moments(average, self.x + shift).mean(0) - before) / _STEP for shift in _STEP * np.eye(m)]
        weights = np.linalg.solve((np.eye(m) - np.stack(columns, 1)).T, self._unit)
        return weights / (weights @ self._unit)

    def log_alphas(self, average: Averager, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return log(alpha) (R,) near coordinates x (m,), on the nodes of ``average``, with :meth:`weights` (m,)."""
        return (x - self.log_moments(average, x)) @ weights


class _Step(NamedTuple):
    """A fixed point on coarse nodes: its mean logit (``size``), its coordinates x (m,), and its log(alpha)."""

    size: float
    x: np.ndarray
    log_alpha: float


def _top(walk: list[_Step]) -> int:
    return int(np.argmax([step.log_alpha for step in walk]))


def last_fixed_point(evolution: OverlapMap, start: Point, tolerance: float, say: Say) -> Threshold | None:
    """Return the largest alpha on the branch from the fixed point ``start`` to full overlap.

    ``tolerance`` is its relative error. None if a direction that affects the output is not learned at the start, with
    side information or held indices, or if the search fails.
    """
    known = start.space.rank + start.space.certain.shape[1]
    if start.space.rank == 0 or known < evolution.visible.shape[1] or evolution.side_information > 0 or evolution.held:
        return None
    branch = _Branch(evolution, start)
    walk = _walked(branch, _STRIDE, say)
    while (start_of_rest := branch.known_so_far) is not None:  # known directions would outgrow the mean logit
        branch = _Branch(evolution, start := start_of_rest)
        walk = _walked(branch, _STRIDE, say)
    ended = branch.ended
    if _top(walk) == 0:  # the start may lie beyond the fold, where the dynamics was slow
        branch.x = start.x
        walk = [*_walked(branch, -_STRIDE, say)[:0:-1], *walk]
    if _top(walk) == 0 or (_top(walk) == len(walk) - 1 and not ended):
        return None
    _to_the_top(evolution, branch, walk, say)
    return _on_more_nodes(evolution, branch, tolerance, say) if branch.settled else None


def _walked(branch: _Branch, stride: float, say: Say) -> list[_Step]:
    """Return fixed points along the branch, with ``stride`` the step of the mean logit.

    They end where alpha has clearly fallen, where the overlap is full, or where directions are known (1-q = 1e-6).
    """
    walk: list[_Step] = []
    for size in [branch.size + stride * number for number in range(_STRIDES)]:
        say(f"along the branch of fixed points, step {len(walk) + 1} of at most {_STRIDES}")
        log_alpha = branch.log_alpha(size)
        walk.append(_Step(size, branch.x, log_alpha))
        fallen = log_alpha < walk[_top(walk)].log_alpha - _FALLEN
        if branch.ended or fallen or branch.known_so_far is not None:
            break
    return walk


def _to_the_top(evolution: OverlapMap, branch: _Branch, walk: list[_Step], say: Say) -> None:
    """Move ``branch`` to the point where alpha is largest on more nodes, near the largest alpha of ``walk``.

    ``walk`` are fixed points on coarse nodes.
    """
    top, sizes, added = _top(walk), [step.size for step in walk], np.zeros(len(walk))
    if not evolution.nodes.exact:
        branch.x = walk[top].x
        high = [step for step in walk if step.log_alpha > walk[top].log_alpha - _FALLEN]
        near = high[::-_EVERY][::-1]
        added = np.interp(sizes, [step.size for step in near], _differences(evolution, branch, near, say))
        top = int(np.argmax([step.log_alpha for step in walk] + added))
    branch.x = walk[top].x
    branch.log_alpha(sizes[top])
    if 0 < top < len(walk) - 1:

        def lower(size: float) -> float:
            return -branch.log_alpha(size) - float(np.interp(size, sizes, added))

        found = fminbound(lower, sizes[top - 1], sizes[top + 1], xtol=_CLOSE)
        branch.log_alpha(float(np.ravel(found)[0]))


def _differences(evolution: OverlapMap, branch: _Branch, steps: list[_Step], say: Say) -> list[float]:
    """Return log(alpha) on more nodes minus log(alpha) on coarse nodes, for every fixed point in ``steps``."""
    weights, blocks = branch.weights(), [evolution.nodes.block(number) for number in range(_BLOCKS)]
    found = []
    for number, (_, x, log_alpha) in enumerate(steps):
        say(f"where alpha is largest, {number + 1} of {len(steps)}")
        found.append(float(np.mean([branch.log_alphas(block, x, weights) for block in blocks])) - log_alpha)
    return found


def _on_more_nodes(evolution: OverlapMap, branch: _Branch, tolerance: float, say: Say) -> Threshold:
    nodes, weights = evolution.nodes, branch.weights()

    def log_alphas(block: Averager) -> np.ndarray:
        return branch.log_alphas(block, branch.x, weights)

    say("the largest alpha on more nodes")
    first = nodes.better_block(0)
    rows, bias = [log_alphas(first)], _systematic_error(branch, first, weights)

    @cache
    def added() -> np.ndarray | float:
        """Return log(alpha) (R,) on the better block 0 minus that on the usual block 0."""
        return 0.0 if first is nodes.block(0) else rows[0] - log_alphas(nodes.block(0))

    def judged(rows: list[np.ndarray]) -> Judged[float]:
        scatter = scatter_of_blocks(np.stack(rows))
        enough = scatter <= SCATTER_SHARE * max(tolerance, bias) and fill_a_net(len(rows))
        return Judged(float(np.exp(np.mean(rows))), scatter, enough)

    def on_block(_: float, number: int) -> list[np.ndarray]:
        return [log_alphas(nodes.block(number)) + added()]

    alpha, scatter, _ = with_blocks(rows, judged, on_block, nodes.most_blocks, tolerance, under("largest alpha", say))
    return Threshold(alpha, float(alpha * np.hypot(scatter, bias))).checked(tolerance)


def _systematic_error(branch: _Branch, block: Averager, weights: np.ndarray) -> float:
    """Return the systematic error of log alpha on ``block``; ``weights`` (m,) belong to the branch."""
    if block.uncorrected is None:
        return block.accuracy
    there, before = (branch.log_alphas(average, branch.x, weights).mean() for average in (block, block.uncorrected))
    return float(HALF_WRONG * abs(there - before))
