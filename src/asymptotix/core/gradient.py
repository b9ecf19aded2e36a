"""Derivatives of what a theory predicts, and the parameter at which one vanishes."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from scipy.optimize import root_scalar

from ..numerics import checks, interrupts
from .problem import Problem
from .result import ConvergenceWarning
from .specification import with_fields
from .status import Status


class _ValueAndDerivative(NamedTuple):
    value: float
    derivative: float


class _Minimum(NamedTuple):
    at: Any  # a number, or an array of them on a grid
    value: Any
    inside: Any


class Derivative(_ValueAndDerivative):
    """The pair (value of an observable, its derivative); ``status`` and ``words`` say how their point ended."""

    def __new__(cls, value: float, derivative: float, status: Status = Status.CONVERGED, words: str = "") -> Self:
        found = super().__new__(cls, value, derivative)
        found.status, found.words = status, words
        return found

    status: Status
    words: str


class Optimum(_Minimum):
    """Where an observable is least: (the parameter, the value there, whether the minimum is inside the bounds).

    ``status`` and ``words`` say whether every point that was looked at converged; a minimum at a bound is
    ``Status.AT_BOUND``. On a grid of controls all five are arrays of xarray along it.
    """

    def __new__(cls, at: Any, value: Any, inside: Any, status: Any = Status.CONVERGED, words: Any = "") -> Self:
        found = super().__new__(cls, at, value, inside)
        found.status, found.words = status, words
        return found

    status: Any
    words: Any


def gradient(
    problem: Problem, observable: str, field: str, *, tolerance: float = 1e-3, **controls: float
) -> Derivative:
    """Derivative of an observable with respect to a field of the description or a control, through the fixed point.

    Parameters
    ----------
    problem : Problem
        One whose theory offers derivatives, such as RiskMinimization.
    observable : str
        Name of a scalar observable, "test_error" say.
    field : str
        Name of a numeric field, "weight_decay" say, or of a control.
    tolerance : float
        Numerical error asked for in the value, as in :func:`solve`.
    **controls : float
        The point, ``alpha=1.0``.

    Returns
    -------
    Derivative
        With the status that :func:`solve` gives at this point. Where that is not "converged" a ConvergenceWarning says
        why: the theory need not hold there.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.01)
    >>> asx.gradient(problem, "test_error", "weight_decay", alpha=1.0).derivative < 0
    True
    """
    point = _checked_point(problem, observable, field, controls)
    tolerance = checks.positive("tolerance", tolerance)
    with interrupts.deferred():
        found = _derivative(problem, observable, field, tolerance, point)
    if not found.status.converged:
        warnings.warn(f"the derivative is not to be trusted: {found.words}", ConvergenceWarning, stacklevel=2)
    return found


def optimum(
    problem: Problem,
    observable: str,
    field: str,
    *,
    bounds: tuple[float, float],
    tolerance: float = 1e-3,
    **controls: ArrayLike,
) -> Optimum:
    """The value of a positive field at which an observable is least, as a root of its derivative in the logarithm.

    Parameters
    ----------
    problem, observable, field
        As for :func:`gradient`; ``field`` is one of the description.
    bounds : pair of float
        Positive, ascending. If the derivative does not change from negative to positive between them, the better end is
        returned.
    tolerance : float
        Relative, of the field; below one.
    **controls : float or 1-D grid
        ``alpha=1.0``, or ``alpha=[0.5, 1.0, 2.0]``: the optimum at every point. Grids multiply.

    Returns
    -------
    Optimum
        On a grid ``at``, ``value``, ``inside``, ``status`` and ``words`` are arrays with the controls as coordinates.
        An interrupt leaves the points that it came before without a number, under ``Status.NOT_REACHED``.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.RiskMinimization(asx.AttentionIndex(noise=0.5))
    >>> best = asx.optimum(problem, "test_error", "weight_decay", bounds=(1e-3, 1), alpha=[1.0, 4.0])
    >>> best.at.dims, bool(best.inside.all())
    (('alpha',), True)
    """
    _check_names(problem, observable, field, controls)
    if field in problem.controls:
        raise ValueError(f"field must be one of the description, which bounds replace; got the control {field!r}")
    grid = {name: _checked_control(problem, name, values) for name, values in controls.items()}
    low, high = _checked_bounds(bounds)
    if not checks.positive("tolerance", tolerance) < 1:
        raise ValueError(f"tolerance must be below one, being relative, got {tolerance}")

    def at(point: Mapping[str, float]) -> Optimum:
        return _Search(problem, observable, field, point).between(low, high, tolerance)

    if not any(values.ndim for values in grid.values()):
        with interrupts.deferred():
            found = at({name: float(value) for name, value in grid.items()})
        judged = [found]
    else:
        judged = _at_every_point(at, grid)
        found = _stacked(judged, grid)
    if doubtful := [one for one in judged if not one.status.converged]:
        count = f"at {len(doubtful)} of {len(judged)} points, first " if found is not judged[0] else ""
        text = f"the optimum is not to be trusted{': ' if not count else ' ' + count}{doubtful[0].words}"
        warnings.warn(text, ConvergenceWarning, stacklevel=2)
    return found


def _at_every_point(at: Callable[[Mapping[str, float]], Optimum], grid: Mapping[str, np.ndarray]) -> list[Optimum]:
    """The optimum at every point of a grid, in C order; an interrupt ends it."""
    points = itertools.product(*(np.atleast_1d(values).tolist() for values in grid.values()))
    judged: list[Optimum] = []
    interrupted = False
    with interrupts.deferred():
        for point in points:
            try:
                found = None if interrupted else at(dict(zip(grid, point, strict=True)))
            except KeyboardInterrupt:
                if interrupts.insisting():
                    raise
                found, interrupted = None, True
            missing = Status.NOT_REACHED
            judged.append(found or Optimum(np.nan, np.nan, False, missing, missing.sentence))
    return judged


def _stacked(judged: Sequence[Optimum], grid: Mapping[str, np.ndarray]) -> Optimum:
    """Optima of all points as arrays along the controls that have a grid."""
    lengths = {name: len(values) for name, values in grid.items() if values.ndim}
    coords = {name: (name, values) if values.ndim else values for name, values in grid.items()}

    def along(values: Sequence[Any], dtype: Any) -> xr.DataArray:
        array = np.empty(len(values), dtype=dtype)
        array[:] = values
        return xr.DataArray(array.reshape(tuple(lengths.values())), dims=list(lengths), coords=coords)

    return Optimum(
        along([one.at for one in judged], float),
        along([one.value for one in judged], float),
        along([one.inside for one in judged], bool),
        along([one.status for one in judged], object),
        along([one.words for one in judged], object),
    )


class _Search:
    """Looks for a root of a derivative, and remembers the worst that was said of a point on the way."""

    def __init__(self, problem: Problem, observable: str, field: str, point: Mapping[str, float]) -> None:
        self.problem, self.observable, self.field, self.point = problem, observable, field, point
        self.worst: Derivative | None = None

    def at(self, log_value: float) -> Derivative:
        interrupts.check()
        changed = with_fields(self.problem, **{self.field: float(np.exp(log_value))})
        found = _derivative(changed, self.observable, self.field, 1e-3, self.point)
        if not found.status.converged:
            self.worst = self.worst or found
        return found

    def between(self, low: float, high: float, tolerance: float) -> Optimum:
        ends = self.at(np.log(low)), self.at(np.log(high))
        best = int(ends[1].value < ends[0].value)
        if not ends[0].derivative < 0 < ends[1].derivative:
            side = f"not {('below', 'above')[best]} {(low, high)[best]:g}"
            words = f"the derivative does not change sign upwards between the bounds: the least value is {side}"
            return self._judged((low, high)[best], ends[best].value, Status.AT_BOUND, words, inside=False)
        span = (np.log(low), np.log(high))
        root = float(root_scalar(lambda v: self.at(v).derivative, bracket=span, xtol=tolerance).root)
        value = self.at(root).value
        if value > ends[best].value:
            words = f"a minimum of {value:.4g} lies between the bounds, but an end is lower"
            return self._judged((low, high)[best], ends[best].value, Status.AT_BOUND, words, inside=False)
        return self._judged(float(np.exp(root)), value, Status.CONVERGED, "", inside=True)

    def _judged(self, at: float, value: float, status: Status, words: str, *, inside: bool) -> Optimum:
        if self.worst is not None:
            status, words = self.worst.status, "; ".join(part for part in (self.worst.words, words) if part)
        return Optimum(at, value, inside, status, words or status.sentence)


def _derivative(
    problem: Problem, observable: str, field: str, tolerance: float, point: Mapping[str, float]
) -> Derivative:
    implementation = getattr(problem, "gradient")  # noqa: B009 (not every problem has one)
    found = implementation(observable, field, tolerance=tolerance, **point)
    return found if isinstance(found, Derivative) else Derivative(*found)


def _checked_point(problem: Any, observable: Any, field: Any, controls: Mapping[str, Any]) -> Mapping[str, float]:
    """The controls as numbers; raises for whatever else is wrong with the arguments."""
    _check_names(problem, observable, field, controls)
    for name, value in controls.items():
        if checks.dimensions(name, value) > 0:
            raise TypeError(f"{name} must be one number, for a derivative is taken at one point, got {value!r}")
    return {name: float(problem.check_control(name, [value])[0]) for name, value in controls.items()}


def _check_names(problem: Any, observable: Any, field: Any, controls: Mapping[str, Any]) -> None:
    """Raise for what is wrong with the arguments that both verbs have."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, got {problem!r}")
    if not hasattr(problem, "gradient"):
        raise NotImplementedError(f"{type(problem).__name__} has no derivatives")
    for name, value in (("observable", observable), ("field", field)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a name, such as 'test_error' or 'weight_decay', got {value!r}")
    missing = [name for name in problem.controls if name not in controls]
    if missing or set(controls) - set(problem.controls):
        raise TypeError(
            f"gradient needs the controls {', '.join(problem.controls)}, got {', '.join(controls) or 'none'}"
        )


def _checked_control(problem: Problem, name: str, given: Any) -> np.ndarray:
    """A control as a number or a 1-D grid."""
    values = checks.real_array(name, given)
    if values.ndim > 1 or values.size == 0:
        raise ValueError(f"{name} must be a number or a non-empty 1-D sequence, got shape {values.shape}")
    return np.asarray(problem.check_control(name, np.atleast_1d(values)), dtype=float).reshape(values.shape)


def _checked_bounds(bounds: Any) -> tuple[float, float]:
    if not isinstance(bounds, tuple | list | np.ndarray) or len(bounds) != 2:
        raise TypeError(f"bounds must be a pair of positive numbers, such as (1e-3, 1.0), got {bounds!r}")
    low, high = (float(checks.positive("bounds", bound)) for bound in bounds)
    if not low < high:
        raise ValueError(f"bounds must be ascending, got {bounds}")
    return low, high
