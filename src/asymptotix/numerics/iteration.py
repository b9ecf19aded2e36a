"""Fixed-point iteration with a status text, quasi-Newton steps, roots, and continuation along a grid.

State evolution is a dynamics: the iteration x <- F(x) begins at a given start, is accelerated with safeguards, and ends
at the fixed point that the dynamics reaches.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks, interrupts
from .anderson import Anderson

Step = Callable[[NDArray[np.float64]], ArrayLike]
Stop = Callable[[NDArray[np.float64], float], str | None]
LONGEST = 1.0
"""Longest quasi-Newton step in a coordinate."""

WINDOW = 24
"""Number of evaluations in a window that is searched for a cycle. Two windows with the same cycle end the iteration."""

CYCLE = 0.1
"""Largest scatter of the points at either end of a cycle, relative to the distance of the ends."""

LASTING = 0.99
"""Smallest ratio of a cycle's lengths in successive windows. A cycle that shrinks faster ends by itself."""

BELIEVED = 0.5
"""Largest relative error of the derivative along a step that is corrected; beyond it the map is not smooth."""

Carried = TypeVar("Carried")
Found = TypeVar("Found")


@dataclass(frozen=True)
class FixedPoint:
    """The last point of a fixed-point iteration x <- F(x), with its residual and a status.

    Attributes
    ----------
    x : array (n,)
        The last accepted point at which F was evaluated, so that `residual` belongs to it.
    residual : float
        max |F(x) - x| at this point; inf if F was never finite.
    steps : int
        Number of evaluations of F.
    status : str
        "converged"; "not converged after 200 steps (residual 0.0003)", followed by "it cycles between log q = 0.24 and
        0.31" for a cycle; "diverged: non-finite at step 7"; or the text that `stop` of :func:`fixed_point` returned.
    converged : bool
        True only if the residual fell below the tolerance.
    """

    x: NDArray[np.float64]
    residual: float
    steps: int
    status: str
    converged: bool


def fixed_point(
    step: Step,
    start: ArrayLike,
    *,
    tolerance: float,
    max_steps: int,
    anderson: int = 0,
    max_move: float | None = None,
    stride: float = 1.0,
    stop: Stop | None = None,
    names: Sequence[str] = (),
) -> FixedPoint:
    """Iterate x <- F(x) until the residual max |F(x) - x| is below `tolerance`, and return the last point.

    Parameters
    ----------
    step : callable
        ``step(x)`` returns F(x), both of shape (n,).
    start : array (n,)
    tolerance : float
        Bound on the residual; with 0 the iteration never converges and makes all `max_steps` evaluations.
    max_steps : int
        Largest number of evaluations of F, including the one at the start.
    anderson : int
        Number of past steps that `asymptotix.numerics.anderson.Anderson` combines; 0 is the plain iteration.
    max_move : float, optional
        Largest change of a coordinate in an extrapolated step. The plain step is not limited.
    stride : float
        Factor, at least 1, by which steps may exceed plain steps along a drift that Anderson cannot extrapolate;
        set `max_move` to limit them.
    stop : callable, optional
        ``stop(x, residual)`` is called before the test of convergence; the iteration ends if it returns a text, which
        becomes the status.
    names : sequence of str
        Names of the coordinates, for the status of a cycle.

    Notes
    -----
    An iteration that cycles between two points, as a discontinuous map may, does not converge. It ends when two
    successive windows of `WINDOW` points have the same cycle, and the status gives the two values.
    """
    following, x, residual = _check_start(start), None, np.inf
    _check_options(tolerance, max_steps, anderson, max_move, stride)
    mover = Anderson(following.size, anderson, max_move, stride)
    visited: list[NDArray[np.float64]] = []
    for count in range(1, max_steps + 1):
        interrupts.check()
        point = following
        with np.errstate(invalid="ignore"):
            change = _image(step, point) - point
        if not mover.accepts(change):
            following = mover.retreat()
            continue
        if not np.isfinite(change).all():
            status = f"diverged: non-finite at step {count}"
            return FixedPoint(point if x is None else x, residual, count, status, False)
        x, residual = point, float(np.abs(change).max())
        visited.append(x)
        word = None if stop is None else stop(x, residual)
        if word is not None:
            return FixedPoint(x, residual, count, word, False)
        if residual < tolerance:
            return FixedPoint(x, residual, count, "converged", True)
        if tolerance > 0 and len(visited) % WINDOW == 0:
            now, before = visited[-WINDOW:], visited[-2 * WINDOW : -WINDOW]
            cycle = _cycle(now, names)
            if cycle and _cycle(before, names) and np.ptp(now, axis=0).max() > LASTING * np.ptp(before, axis=0).max():
                status = f"not converged after {count} steps (residual {residual:.2g}): {cycle}"
                return FixedPoint(x, residual, count, status, False)
        following = mover.advance(point, change)
    assert x is not None  # the first step is a plain one, which is never undone
    status = f"not converged after {max_steps} steps (residual {residual:.2g})"
    cycle = _cycle(visited[-WINDOW:], names) if tolerance > 0 else ""
    return FixedPoint(x, residual, max_steps, f"{status}: {cycle}" if cycle else status, False)


def _cycle(visited: Sequence[NDArray[np.float64]], names: Sequence[str]) -> str:
    """Return a text on a cycle of the points ``visited``, arrays (n,), between two values; "" if there is none.

    The values are those of the coordinate with the largest range, called as in ``names``. They must form two groups,
    each narrow compared with the distance between the groups, and change several times from one group to the other.
    """
    if len(visited) < WINDOW // 2:
        return ""
    points = np.array(visited)
    moving = int(np.argmax(np.ptp(points, axis=0)))
    values = points[:, moving]
    ordered = np.sort(values)
    split = int(np.argmax(np.diff(ordered)))
    low, high = ordered[: split + 1], ordered[split + 1 :]
    above = values > low[-1]
    changes = int(np.sum(above[1:] != above[:-1]))
    if max(np.ptp(low), np.ptp(high)) > CYCLE * (high[0] - low[-1]) or changes < len(values) // 4:
        return ""
    name = names[moving] if moving < len(names) else f"coordinate {moving}"
    return f"it cycles between {name} = {low.mean():.6g} and {high.mean():.6g}"


class QuasiNewton:
    """Steps x + B (G(x) - x) towards the fixed point of G, where B approximates (1 - G')^{-1}.

    Every step updates B (Broyden, Math. Comp. 19, 577 (1965), his first method). The B of one map also serves for
    similar maps.

    Parameters
    ----------
    inverse : array (n, n)
        Initial B.
    """

    def __init__(self, inverse: ArrayLike) -> None:
        self.inverse = np.array(inverse, dtype=np.float64)
        self._last: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def know(self, derivative: ArrayLike) -> None:
        """Set B = (1 - G')^{-1} from the ``derivative`` G' (n, n), and forget the last point."""
        G = np.asarray(derivative, dtype=np.float64)
        self.inverse = np.asarray(np.linalg.inv(np.eye(len(G)) - G), dtype=np.float64)
        self.begin()

    def begin(self) -> None:
        """Forget the last point, because G changes: the next call of :meth:`step` does not update B."""
        self._last = None

    def step(self, x: NDArray[np.float64], image: NDArray[np.float64]) -> NDArray[np.float64]:
        """Update B, and return the point (n,) after ``x`` (n,), given ``image`` = G(x); see `LONGEST` for its limit."""
        residual = image - x
        if self._last is not None:
            self._learn(x - self._last[0], self._last[1] - residual)
        self._last = x, residual
        return x + (self.inverse @ residual).clip(-LONGEST, LONGEST)

    def _learn(self, move: NDArray[np.float64], fall: NDArray[np.float64]) -> None:
        """Update B so that it maps ``fall`` (n,), the decrease of the residual, to ``move`` (n,), which caused it.

        A correction of more than the share `BELIEVED` of the move is ignored.
        """
        expected = self.inverse @ fall
        missing = move - expected
        if np.linalg.norm(missing) < BELIEVED * np.linalg.norm(move):
            self.inverse = self.inverse + np.outer(missing, move @ self.inverse) / (move @ expected)


def increasing_root(
    function: Callable[[NDArray[np.float64], NDArray[np.intp]], tuple[NDArray[np.float64], NDArray[np.float64]]],
    low: ArrayLike,
    high: ArrayLike,
    *,
    start: ArrayLike | None = None,
    close: ArrayLike = 0.0,
) -> NDArray[np.float64]:
    """Return the roots (n,) of n increasing functions, each in its own bracket, by Newton's method or bisection.

    scipy.optimize.elementwise.find_root makes no use of slopes, and takes 2 to 6 times as long for spectra.

    Parameters
    ----------
    function : callable
        ``function(points, indices)`` returns values and slopes, arrays (m,): entry k is that of function number
        ``indices[k]`` at ``points[k]``. A value of 0 ends the search for its root.
    low, high : arrays (n,)
        Ends of the brackets, at which no function is evaluated.
    start : array (n,), optional
        First points; by default the middle of each bracket.
    close : float or array (n,)
        A search ends with a step of at most this length, plus rounding.
    """
    low, high = np.array(low, dtype=float), np.array(high, dtype=float)
    at = 0.5 * (low + high) if start is None else np.array(start, dtype=float)
    root, active, close = np.empty_like(at), np.arange(at.size), np.broadcast_to(close, at.shape)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for _ in range(200):
            if not at.size:
                break
            value, slope = function(at, active)
            low, high = np.where(value <= 0, at, low), np.where(value >= 0, at, high)
            new = at - value / slope
            new = np.where((low < new) & (new < high), new, 0.5 * (low + high))
            root[active] = new
            going = abs(new - at) > 1e-15 * np.maximum(abs(low), abs(high)) + close
            at, low, high, close = (part[going] for part in (new, low, high, close))
            active = active[going]
    return root


def continuation_steps(
    solve_at: Callable[[float, Carried], tuple[Carried | None, Found]],
    grid: ArrayLike,
    start: Carried,
    *,
    descending: bool = False,
) -> Iterator[tuple[int, Found]]:
    """Solve at the points of a grid in sorted order, each from the state before; yield (position in `grid`, result).

    Parameters
    ----------
    solve_at : callable
        ``solve_at(value, start)`` returns the state from which the next point starts, and the result. After a state of
        None (the point failed) the next point starts from the last good state.
    grid : array (points,)
        Finite values, in any order.
    start : object
        State from which the first point starts.
    descending : bool
        Whether to solve from the largest value to the smallest.
    """
    values = checks.finite_grid("grid", grid)
    carried = start
    for position in np.argsort(-values if descending else values, kind="stable"):
        following, result = solve_at(float(values[position]), carried)
        carried = carried if following is None else following
        yield int(position), result


def _image(step: Step, point: NDArray[np.float64]) -> NDArray[np.float64]:
    image = np.asarray(step(point.copy()), dtype=np.float64)
    if image.shape != point.shape:
        raise ValueError(f"step must return an array of shape {point.shape}, got {image.shape}")
    return image


def _check_start(start: ArrayLike) -> NDArray[np.float64]:
    x = checks.array_of_shape("start", start, (None,))
    if x.size == 0:
        raise ValueError(f"start must not be empty, got shape {x.shape}")
    return x


def _check_options(tolerance: float, max_steps: int, anderson: int, max_move: float | None, stride: float) -> None:
    checks.integer("max_steps", max_steps, 1)
    checks.integer("anderson", anderson, 0)
    checks.non_negative("tolerance", tolerance)
    if max_move is not None:
        checks.positive("max_move", max_move)
    checks.at_least("stride", stride, 1.0)
