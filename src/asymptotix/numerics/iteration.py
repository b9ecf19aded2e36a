"""Fixed-point iteration of many independent lanes, with trace, status in words, and re-batching.

State evolution is dynamics: a lane follows x <- F(x) from its stated start, damped or accelerated with
safeguards, and ends at the fixed point those dynamics reach. `asymptotix.numerics.polish` refines a point already
found.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks
from .anderson import Anderson

Step = Callable[[NDArray[np.float64], NDArray[np.int64]], ArrayLike]
Stop = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]], Sequence[str | None]]
State = TypeVar("State")
Found = TypeVar("Found")

FIRST_ROUND = 16
"""Steps before the first shrink of a geometric re-batching; each further one comes at twice as many."""


class Advances(Protocol):
    """What is asked of a progress display."""

    def advance(self, n: int = 1, message: str | None = None) -> object: ...


@dataclass(frozen=True)
class FixedPoint:
    """Where an iteration ended, lane by lane.

    Attributes
    ----------
    x : array, shaped like the start
        The last accepted point at which F was evaluated, so that `residual` belongs to it.
    residual : array (lanes,)
        max |F(x) - x| there; inf where F was never evaluated.
    steps : array (lanes,)
        Evaluations of F spent.
    status : array of str (lanes,)
        "converged", "not converged after 200 steps (residual 0.0003)", "diverged: non-finite at step 7",
        "interrupted at step 12", or the caller's own word from `stop`.
    converged : array of bool (lanes,)
        True only for the status "converged".
    trace : list of arrays (steps, n)
        All points at which F was evaluated, the start first; empty when no trace was kept.
    interrupted : bool
        Whether a KeyboardInterrupt ended the run.
    """

    x: NDArray[np.float64]
    residual: NDArray[np.float64]
    steps: NDArray[np.int64]
    status: NDArray[np.object_]
    converged: NDArray[np.bool_]
    trace: list[NDArray[np.float64]]
    interrupted: bool = False


def fixed_point(
    step: Step,
    start: ArrayLike,
    *,
    tolerance: float,
    max_steps: int,
    damping: float = 1.0,
    anderson: int = 0,
    max_move: float | None = None,
    stride: float = 1.0,
    rebatch: bool | Literal["geometric"] = True,
    keep_trace: bool = True,
    stop: Stop | None = None,
    progress: Advances | None = None,
) -> FixedPoint:
    """Iterate x <- x + damping (F(x) - x) in every lane until max |F(x) - x| < tolerance.

    Parameters
    ----------
    step : callable
        ``step(x, lanes)`` returns F(x) for the rows of x, shape (batch, n), of the lanes with those indices.
        Rows must not influence each other; a lane may appear twice in a batch.
    start : array (lanes, n), or (n,) for a single lane
    tolerance : float
        Bound on the residual; 0 runs all `max_steps`.
    max_steps : int
        Evaluations of F per lane, the one at the start included.
    damping : float
        In (0, 1]; 1 is undamped.
    anderson : int
        Depth of the accelerator, see `asymptotix.numerics.anderson.Anderson`; 0 is the plain iteration.
    max_move : float, optional
        Longest extrapolated move of a coordinate. The plain step is not limited.
    stride : float
        At least 1. How much longer than plain the steps may get along a drift that Anderson cannot extrapolate;
        needs `max_move`.
    rebatch : bool or "geometric"
        True: finished lanes leave the batch at once. "geometric": only after 16, 32, 64, ... steps, and
        batches are padded with copies to powers of two, so that a compiled step sees few shapes. False: the
        batch never shrinks.
    keep_trace : bool
    stop : callable, optional
        ``stop(x, residual, lanes)``, asked before convergence is tested, ends the lanes for which it returns
        a status.
    progress : optional
        Its ``advance(finished lanes, message=...)`` is called after every step.

    Returns
    -------
    FixedPoint
        After a KeyboardInterrupt too, with what there is.
    """
    x = _check_start(start)
    _check_options(tolerance, max_steps, damping, anderson, max_move, rebatch)
    lanes, size = x.shape
    checks.at_least("stride", stride, 1.0)
    mover = Anderson(lanes, size, anderson, damping, max_move, stride)
    run = _Run(step, stop, x, mover, tolerance=tolerance, keep_trace=keep_trace)
    interrupted = False
    try:
        run.iterate(max_steps, _Batches(lanes, rebatch), progress)
    except KeyboardInterrupt:
        interrupted = True
        run.end(run.live, f"interrupted at step {run.count}")
    return run.result(np.shape(start), interrupted)


class _Batches:
    """Which lanes are handed to the next step."""

    def __init__(self, lanes: int, rebatch: bool | str) -> None:
        self.rebatch = rebatch
        self.indices = np.arange(lanes)
        self.distinct = lanes
        if rebatch == "geometric":
            self._pad(self.indices)

    def update(self, count: int, live: NDArray[np.bool_]) -> None:
        """Choose the batch of evaluation `count`, counted from one."""
        if self.rebatch is True:
            self.indices = np.flatnonzero(live)
            self.distinct = self.indices.size
        elif self.rebatch == "geometric" and _is_round(count - 1):
            self._pad(np.flatnonzero(live))

    def _pad(self, lanes: NDArray[np.int64]) -> None:
        self.distinct = lanes.size
        padding = (1 << (lanes.size - 1).bit_length()) - lanes.size
        self.indices = np.concatenate([lanes, np.repeat(lanes[-1:], padding)])


class _Run:
    """State of all lanes while they are iterated."""

    def __init__(
        self,
        step: Step,
        stop: Stop | None,
        start: NDArray[np.float64],
        mover: Anderson,
        *,
        tolerance: float,
        keep_trace: bool,
    ) -> None:
        lanes = len(start)
        self.step, self.stop, self.mover = step, stop, mover
        self.tolerance, self.keep_trace = tolerance, keep_trace
        self.count = 0
        self.next = start.copy()
        self.x = start.copy()
        self.residual = np.full(lanes, np.inf)
        self.steps = np.zeros(lanes, dtype=np.int64)
        self.live = np.ones(lanes, dtype=bool)
        self.status = np.full(lanes, "", dtype=object)
        self.trace: list[list[NDArray[np.float64]]] = [[] for _ in range(lanes)]

    def iterate(self, max_steps: int, batches: _Batches, progress: Advances | None) -> None:
        while self.live.any() and self.count < max_steps:
            self.count += 1
            batches.update(self.count, self.live)
            image = self._evaluate(batches.indices)
            rows = np.flatnonzero(self.live[batches.indices[: batches.distinct]])
            self._absorb(batches.indices[rows], image[rows])
            if self.count == max_steps:
                self._exhaust()
            if progress is not None:
                progress.advance(int(rows.size - self.live.sum()), message=self._message())

    def end(self, lanes: NDArray, status: str) -> None:
        """Finish lanes (indices or mask) at their x, which is what a batch that still holds them is fed."""
        self.status[lanes] = status
        self.next[lanes] = self.x[lanes]
        self.live[lanes] = False

    def result(self, shape: tuple[int, ...], interrupted: bool) -> FixedPoint:
        trace = [np.array(points) for points in self.trace] if self.keep_trace else []
        converged = self.status == "converged"
        return FixedPoint(
            self.x.reshape(shape), self.residual, self.steps, self.status, converged, trace, interrupted
        )

    def _evaluate(self, lanes: NDArray[np.int64]) -> NDArray[np.float64]:
        points = self.next[lanes]
        image = np.asarray(self.step(points, lanes), dtype=np.float64)
        if image.shape != points.shape:
            raise ValueError(f"step must return an array of shape {points.shape}, got {image.shape}")
        return image

    def _absorb(self, lanes: NDArray[np.int64], image: NDArray[np.float64]) -> None:
        """Take in F at the current points of the lanes and choose their next ones."""
        points = self.next[lanes]
        with np.errstate(invalid="ignore"):
            change = image - points
        self.steps[lanes] = self.count
        if self.keep_trace:
            for lane, point in zip(lanes, points, strict=True):
                self.trace[lane].append(point)
        accepted = self.mover.accepts(lanes, change)
        self.next[lanes[~accepted]] = self.mover.retreat(lanes[~accepted])
        finite = np.isfinite(change).all(axis=1)
        self.end(lanes[accepted & ~finite], f"diverged: non-finite at step {self.count}")
        good = accepted & finite
        self._move(lanes[good], points[good], change[good])

    def _move(
        self, lanes: NDArray[np.int64], points: NDArray[np.float64], change: NDArray[np.float64]
    ) -> None:
        self.x[lanes] = points
        self.residual[lanes] = np.abs(change).max(axis=1)
        self._ask_stop(lanes)
        self.end(lanes[self.live[lanes] & (self.residual[lanes] < self.tolerance)], "converged")
        going = self.live[lanes]
        self.next[lanes[going]] = self.mover.advance(lanes[going], points[going], change[going])

    def _ask_stop(self, lanes: NDArray[np.int64]) -> None:
        if self.stop is None or lanes.size == 0:
            return
        words = self.stop(self.x[lanes], self.residual[lanes], lanes)
        if len(words) != lanes.size:
            raise ValueError(f"stop must return one entry per lane, {lanes.size}, got {len(words)}")
        for lane, word in zip(lanes, words, strict=True):
            if word is not None:
                self.end(np.array([lane]), str(word))

    def _exhaust(self) -> None:
        for lane in np.flatnonzero(self.live):
            residual = self.residual[lane]
            self.end(np.array([lane]), f"not converged after {self.count} steps (residual {residual:.2g})")

    def _message(self) -> str:
        running = int(self.live.sum())
        if running == 0:
            return f"step {self.count}: all {self.live.size} finished"
        worst = self.residual[self.live].max()
        return f"step {self.count}: {running} of {self.live.size} running, residual {worst:.1e}"


def continuation_steps(
    solve_at: Callable[[float, State], tuple[State | None, Found]],
    grid: ArrayLike,
    start: State,
    *,
    descending: bool = False,
) -> Iterator[tuple[int, Found]]:
    """Solve along a sorted grid, each point from the solution before it; yields (position in grid, result).

    Parameters
    ----------
    solve_at : callable
        ``solve_at(value, start)`` returns the state from which the next point starts and the result to hand
        back. A state of None (the point failed) leaves the last good one in place.
    grid : array (points,)
        Finite, in any order.
    start : object
        State from which the first point starts.
    descending : bool
        Walk from the largest value to the smallest.

    Notes
    -----
    A result whose attribute ``interrupted`` is true is the last one.
    """
    values = checks.finite_grid("grid", grid)
    state = start
    for position in np.argsort(-values if descending else values, kind="stable"):
        following, result = solve_at(float(values[position]), state)
        state = state if following is None else following
        yield int(position), result
        if getattr(result, "interrupted", False):
            return


def continuation(
    solve_at: Callable[[float, State], tuple[State | None, Found]],
    grid: ArrayLike,
    start: State,
    *,
    descending: bool = False,
) -> list[Found | None]:
    """The results of `continuation_steps` in the order of the grid; None where an interrupt left none."""
    results: list[Found | None] = [None] * np.size(grid)
    try:
        for position, result in continuation_steps(solve_at, grid, start, descending=descending):
            results[position] = result
    except KeyboardInterrupt:
        pass
    return results


def _is_round(steps: int) -> bool:
    return steps >= FIRST_ROUND and steps & (steps - 1) == 0


def _check_start(start: ArrayLike) -> NDArray[np.float64]:
    x = checks.array_of_shape("start", start, (None,) * max(1, min(np.ndim(start), 2)))
    if x.size == 0:
        raise ValueError(f"start must not be empty, got shape {x.shape}")
    return np.atleast_2d(x)


def _check_options(
    tolerance: float,
    max_steps: int,
    damping: float,
    anderson: int,
    max_move: float | None,
    rebatch: bool | str,
) -> None:
    checks.integer("max_steps", max_steps, 1)
    checks.integer("anderson", anderson, 0)
    checks.non_negative("tolerance", tolerance)
    if max_move is not None:
        checks.positive("max_move", max_move)
    checks.one_of("rebatch", rebatch, (True, False, "geometric"))
    if not 0 < damping <= 1:
        raise ValueError(f"damping must lie in (0, 1], got {damping}")
