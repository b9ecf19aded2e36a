"""Refining a fixed point that the dynamics has found, and asking whether it is stable.

Never a way to find one: Newton converges to unstable points as happily as to stable ones.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks
from .iteration import FixedPoint, Step


def finite_jacobian(step: Step, x: ArrayLike, lane: int = 0, h: float = 1e-5) -> NDArray[np.float64]:
    """Jacobian J_ij = dF_i/dx_j of one lane by central differences, all 2n evaluations in one batch.

    The displacement of coordinate j is ``h * max(1, |x_j|)``. The error is of order h**2 times the third
    derivative plus, for a step accurate to eps, eps/h.
    """
    x = checks.array_of_shape("x", x, (None,))
    h = checks.positive("h", h)
    moves = np.diag(h * np.maximum(1.0, np.abs(x)))
    points = np.concatenate([x + moves, x - moves])
    images = np.asarray(step(points, np.full(len(points), lane)), dtype=np.float64)
    above, below = images[: x.size], images[x.size :]
    # The displacement that rounding left, not the one asked for.
    taken = np.diagonal(points[: x.size] - points[x.size :])
    return ((above - below) / taken[:, None]).T


def spectral_radius(jacobian: ArrayLike) -> NDArray[np.float64]:
    """Largest modulus of an eigenvalue, for one (n, n) matrix (a 0-d array) or a stack (..., n, n).

    Below one the fixed point is stable under the undamped iteration; errors then shrink by this factor per
    step.
    """
    return np.abs(np.linalg.eigvals(np.asarray(jacobian, dtype=np.float64))).max(axis=-1)


def polish(
    step: Step,
    x: ArrayLike,
    jacobian: ArrayLike | None = None,
    *,
    tolerance: float,
    max_steps: int = 5,
    h: float = 1e-5,
) -> FixedPoint:
    """A few quasi-Newton steps x <- x + (I - J)^{-1} (F(x) - x), each kept only if the residual falls.

    Parameters
    ----------
    step : callable
        As for `asymptotix.numerics.iteration.fixed_point`; called with one lane at a time.
    x : array (lanes, n) or (n,)
        Points near fixed points.
    jacobian : array (lanes, n, n), or (n, n) for all lanes, optional
        J of every lane, kept during the steps; by default `finite_jacobian` at x with displacement `h`.
    tolerance : float
        A lane has converged when max |F(x) - x| is below.
    max_steps : int
        Newton steps per lane; the evaluation at x and the Jacobian come on top.

    Returns
    -------
    FixedPoint
        `steps` counts the Newton steps tried and `trace` holds the points kept, `x` first.
    """
    points = np.atleast_2d(np.asarray(x, dtype=np.float64))
    lanes, size = points.shape
    given: NDArray[np.float64] | None = None
    if jacobian is not None:
        given = np.asarray(jacobian, dtype=np.float64)
        if given.shape not in ((size, size), (lanes, size, size)):
            raise ValueError(
                f"jacobian must have shape ({lanes}, {size}, {size}) or ({size}, {size}), got {given.shape}"
            )
        given = np.broadcast_to(given, (lanes, size, size))
    ends = [
        _polish_lane(
            step, points[lane], lane, None if given is None else given[lane], tolerance, max_steps, h
        )
        for lane in range(lanes)
    ]
    traces, residuals, steps, words = (list(column) for column in zip(*ends, strict=True))
    status = np.array(words, dtype=object)
    return FixedPoint(
        x=np.array([trace[-1] for trace in traces]).reshape(np.shape(x)),
        residual=np.array(residuals),
        steps=np.array(steps, dtype=np.int64),
        status=status,
        converged=status == "converged",
        trace=traces,
    )


def _polish_lane(
    step: Step,
    x: NDArray[np.float64],
    lane: int,
    jacobian: NDArray[np.float64] | None,
    tolerance: float,
    max_steps: int,
    h: float,
) -> tuple[NDArray[np.float64], float, int, str]:
    change = _change(step, x, lane)
    residual, trace = np.abs(change).max(), [x]
    for count in range(max_steps + 1):
        if residual < tolerance:
            return np.array(trace), residual, count, "converged"
        if count == max_steps:
            break
        if jacobian is None:
            jacobian = finite_jacobian(step, x, lane, h)
        try:
            trial = trace[-1] + np.linalg.solve(np.eye(x.size) - jacobian, change)
        except np.linalg.LinAlgError:
            return (
                np.array(trace),
                residual,
                count,
                f"not polished: I - J is singular (residual {residual:.2g})",
            )
        trial_change = _change(step, trial, lane)
        # Written so that a NaN counts as no improvement.
        if not np.abs(trial_change).max() < residual:
            word = f"not converged: polishing stalled at step {count + 1} (residual {residual:.2g})"
            return np.array(trace), residual, count + 1, word
        change, residual = trial_change, np.abs(trial_change).max()
        trace.append(trial)
    return (
        np.array(trace),
        residual,
        max_steps,
        f"not converged after {max_steps} steps (residual {residual:.2g})",
    )


def _change(step: Step, x: NDArray[np.float64], lane: int) -> NDArray[np.float64]:
    return np.asarray(step(x[None], np.array([lane])), dtype=np.float64)[0] - x
