"""Where fixed points on the way from nothing to full overlap end: the fold of their branch, or its end.

With the overlap the alpha of a fixed point grows at first. Where it is largest two of them meet, and beyond nothing
stops the dynamics; or it grows until the overlap is full. Close to there the dynamics lingers, and the noise of few
nodes holds it up: where it ends cannot be bisected well. The branch itself passes through the fold, followed by the
mean logit s of the overlap,

    x = log h(x) + log(alpha) e,       s = e.x / e.e,       h = E[g g^T],

e the coordinates of the unit matrix: log(alpha) is what keeps s. At the fold an error of log h moves log(alpha) by its
part along the left null vector of 1 - dlog h/dx, whatever it does to the overlap.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import fminbound

from ....core.progress import Say
from ....numerics.iteration import fixed_point
from ...channels.protocol import HALF_WRONG, Averager
from ..dynamics import NEARLY_EXACT
from ..overlap_map import OverlapMap
from ..point import Point
from .threshold import SCATTER_SHARE, Threshold

#: Steps along the branch, in the mean logit, how many there are at most, and how closely that of the fold is found.
_STRIDE, _STRIDES, _CLOSE = 0.25, 60, 0.02
#: Residual of a fixed point on few nodes, evaluations for one, and steps of finite differences.
_SETTLED, _EVALUATIONS, _STEP = 1e-3, 40, 0.1


class _Branch:
    """Fixed points of given mean logits, on few nodes; each is sought from the last."""

    def __init__(self, evolution: OverlapMap, start: Point) -> None:
        self._evolution, self._start = evolution, start
        self._unit = start.space.of_precision(np.e * np.eye(evolution.channel.indices))
        self.x = start.x
        #: Whether the last fixed point was found.
        self.settled = True

    @property
    def size(self) -> float:
        """The mean logit."""
        return float(self._unit @ self.x / (self._unit @ self._unit))

    @property
    def ended(self) -> bool:
        """Whether the overlap is as good as full."""
        return self._start.moved(self.x).largest_variance <= NEARLY_EXACT

    @property
    def few(self) -> Averager:
        """The few nodes."""
        return self._evolution.nodes.few

    def log_moments(self, average: Averager, x: np.ndarray) -> np.ndarray:
        """The coordinates of log h, one row per randomisation."""
        point = self._start.moved(x).at(1.0)
        return self._evolution.image(average(point.V), point)

    def log_alpha(self, size: float) -> float:
        """That of the fixed point of a mean logit, to which this moves."""
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
        """How errors of log h move log(alpha) at the fold or at the end, of sum one along the unit matrix."""
        m, before = len(self.x), self.log_moments(self.few, self.x).mean(0)
        columns = [(self.log_moments(self.few, self.x + shift).mean(0) - before) / _STEP for shift in _STEP * np.eye(m)]
        left = np.linalg.svd(np.eye(m) - np.stack(columns, 1))[0][:, -1]
        return left / (left @ self._unit)


def last_fixed_point(evolution: OverlapMap, start: Point, tolerance: float, say: Say) -> Threshold | None:
    """The largest alpha of the branch from a fixed point to full overlap, to a relative ``tolerance``.

    That of its fold, or of its end. None where not everything is learned at the start, or where it is not found.
    """
    known = start.space.rank + start.space.certain.shape[1]
    if start.space.rank == 0 or known < evolution.visible.shape[1] or evolution.side_information > 0 or evolution.held:
        return None
    branch = _Branch(evolution, start)
    sizes, values = _walked(branch, _STRIDE, say)
    ended = branch.ended
    if np.argmax(values) == 0:  # the start may have lingered beyond the fold
        branch.x = start.x
        below, values_below = _walked(branch, -_STRIDE, say)
        sizes, values = [*below[:0:-1], *sizes], [*values_below[:0:-1], *values]
    top = int(np.argmax(values))
    if top == 0 or (top == len(values) - 1 and not ended):
        return None
    low, high = sizes[top - 1], sizes[min(top + 1, len(sizes) - 1)]
    branch.log_alpha(sizes[top])
    if top < len(values) - 1:
        found = fminbound(lambda size: -branch.log_alpha(size), low, high, xtol=_CLOSE)
        branch.log_alpha(float(np.ravel(found)[0]))
    return _on_more_nodes(evolution, branch, tolerance, say) if branch.settled else None


def _walked(branch: _Branch, stride: float, say: Say) -> tuple[list[float], list[float]]:
    """Mean logits and log(alpha) along the branch, until that falls twice or the overlap is full."""
    values: list[float] = []
    sizes = [branch.size + stride * step for step in range(_STRIDES)]
    for size in sizes:
        say(f"along the branch of fixed points, step {len(values) + 1} of at most {_STRIDES}")
        values.append(branch.log_alpha(size))
        if branch.ended or (len(values) > 2 and values[-1] < values[-2] < values[-3]):
            break
    return sizes[: len(values)], values


def _on_more_nodes(evolution: OverlapMap, branch: _Branch, tolerance: float, say: Say) -> Threshold:
    nodes, weights = evolution.nodes, branch.weights()

    def log_alphas(block: Averager) -> np.ndarray:
        return (branch.x - branch.log_moments(block, branch.x)) @ weights

    say("the largest alpha on more nodes")
    first = nodes.better_block(0)
    rows, bias = [log_alphas(first)], _systematic_error(branch, first, weights)
    added = 0.0
    while True:
        mean = np.mean(rows, axis=0)
        scatter = mean.std(ddof=1) / np.sqrt(len(mean)) if len(mean) > 1 else 0.0
        if scatter <= SCATTER_SHARE * max(tolerance, bias) or len(rows) == nodes.most_blocks:
            break
        say(f"the largest alpha on block {len(rows) + 1} of at most {nodes.most_blocks}, error {scatter:.1e}")
        if len(rows) == 1 and first is not nodes.block(0):  # what makes it better has less noise than all the rest
            added = rows[0] - log_alphas(nodes.block(0))
        rows.append(log_alphas(nodes.block(len(rows))) + added)
    alpha = float(np.exp(mean.mean()))
    return Threshold(alpha, float(alpha * np.hypot(scatter, bias))).checked(tolerance)


def _systematic_error(branch: _Branch, block: Averager, weights: np.ndarray) -> float:
    """By how much log alpha may be wrong beyond its scatter: few nodes with a bias may put the fold elsewhere, too."""
    if block.uncorrected is None:
        return block.accuracy
    averages = block, block.uncorrected, branch.few
    there, *others = (branch.log_moments(average, branch.x).mean(0) @ weights for average in averages)
    return float(HALF_WRONG * abs(there - np.array(others)).max())
