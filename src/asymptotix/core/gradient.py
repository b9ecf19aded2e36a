"""Derivatives of a theory's observables, and the value of a field that minimises an observable."""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, DTypeLike

from ..numerics import checks, interrupts
from ..numerics.precision import own_settings
from .optima.minimum_search import Look, Minimum, MinimumSearch
from .problem import Problem
from .progress import Progress, Say, as_progress, quietly, under
from .result import ConvergenceWarning
from .specification import with_fields
from .status import Status

#: Numerical tolerances of the observable in a search for a minimum: in the first search, and in the refinement that
#: follows if the position of the minimum is not accurate enough. Larger: an inaccurate minimum. Smaller: more time.
_COARSE, _FINE = 1e-3, 1e-4

ProgressOption = Progress | bool | None


class _ValueAndDerivative(NamedTuple):
    value: float
    derivative: float


class _PlaceAndValue(NamedTuple):
    at: Any  # a number, or an array of them on a grid
    value: Any
    inside: Any


class Derivative(_ValueAndDerivative):
    """The pair (value of an observable, its derivative), with the errors of both and the status of the point.

    ``value_error`` and ``derivative_error`` are numerical errors, nan if the theory gives none. ``status`` is that of
    the fixed point; ``words`` explains it.
    """

    def __new__(
        cls,
        value: float,
        derivative: float,
        status: Status = Status.CONVERGED,
        words: str = "",
        *,
        value_error: float = np.nan,
        derivative_error: float = np.nan,
    ) -> Self:
        found = super().__new__(cls, value, derivative)
        found.status, found.words = status, words
        found.value_error, found.derivative_error = value_error, derivative_error
        return found

    status: Status
    words: str
    value_error: float
    derivative_error: float

    def __repr__(self) -> str:
        return _shown(self, ("value", "value_error", "derivative", "derivative_error", "status", "words"))


class Optimum(_PlaceAndValue):
    """The minimum of an observable over a field, as the triple (``at``, ``value``, ``inside``).

    ``at`` is the value of the field at the minimum, ``value`` the observable there, and ``inside`` whether the minimum
    is inside the bounds. ``at_error`` and ``value_error`` are numerical errors; ``at_error`` is inf if the position is
    unknown. ``status`` is ``Status.CONVERGED`` if the tolerance was met and the theory holds at the minimum and at
    every lower point of the search; ``words`` explains any other status. A minimum at a bound has ``Status.AT_BOUND``.
    On a grid of controls all seven attributes are arrays of xarray along the grid.
    """

    def __new__(
        cls,
        at: Any,
        value: Any,
        inside: Any,
        status: Any = Status.CONVERGED,
        words: Any = "",
        *,
        at_error: Any = np.nan,
        value_error: Any = np.nan,
    ) -> Self:
        found = super().__new__(cls, at, value, inside)
        found.status, found.words = status, words
        found.at_error, found.value_error = at_error, value_error
        return found

    status: Any
    words: Any
    at_error: Any
    value_error: Any

    def __repr__(self) -> str:
        return _shown(self, ("at", "at_error", "value", "value_error", "inside", "status", "words"))


def _shown(found: object, names: Sequence[str]) -> str:
    """Return the repr of a Derivative or an Optimum: its class and the attributes ``names`` with their values."""

    def text(value: object) -> str:
        if isinstance(value, xr.DataArray):
            value = [getattr(one, "name", one) for one in value.values.ravel().tolist()]
        return value.name if isinstance(value, Status) else repr(value)

    return f"{type(found).__name__}({', '.join(f'{name}={text(getattr(found, name))}' for name in names)})"


def gradient(
    problem: Problem,
    observable: str,
    field: str,
    *,
    tolerance: float = 1e-3,
    progress: ProgressOption = None,
    **controls: float,
) -> Derivative:
    """Return the derivative of an observable by a field of the problem or a control, through the fixed point.

    Parameters
    ----------
    problem : Problem
        A problem whose theory has derivatives, such as RiskMinimization.
    observable : str
        Name of a scalar observable, such as "test_error".
    field : str
        Name of a numeric field of the problem or its model, such as "weight_decay", or of a control.
    tolerance : float
        Target for the numerical error of the value.
    progress
        None shows progress if the work takes long, True always, False never.
    **controls : float
        Values of the controls at the point, such as ``alpha=1.0``.

    Returns
    -------
    Derivative
        The pair (value, derivative), with the errors of both and the status that :func:`solve` gives at this point.
        Where this status is not "converged", a ConvergenceWarning gives the reason.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.01)
    >>> asx.gradient(problem, "test_error", "weight_decay", alpha=1.0).derivative < 0
    True
    """
    point = _checked_point(problem, observable, field, controls)
    tolerance = checks.positive("tolerance", tolerance)
    with interrupts.deferred(), own_settings(), as_progress(progress, 1, f"derivative by {field}") as shown:
        found = _derivative(problem, observable, field, tolerance, point, shown.message)
        shown.advance()
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
    progress: ProgressOption = None,
    **controls: ArrayLike,
) -> Optimum:
    """Return the value of a positive field that minimises an observable.

    Parameters
    ----------
    problem, observable
        A problem whose theory has derivatives, such as RiskMinimization; name of a scalar observable.
    field : str
        Name of a positive field of the problem or its model, such as "weight_decay", not of a control.
    bounds : pair of float
        Two positive numbers, ascending. If the derivatives at the bounds enclose no minimum (the observable may be
        flat there), values between the bounds are tried. If none of them is lower, the better bound is returned.
    tolerance : float
        Relative tolerance of the field, below one. If it is not met the status is ``Status.INACCURATE``.
    progress
        None shows progress if the work takes long, True always, False never.
    **controls : float or 1-D grid
        ``alpha=1.0``, or ``alpha=[0.5, 1.0, 2.0]`` for the optimum at every point. Grids multiply.

    Returns
    -------
    Optimum
        Field, observable and whether the minimum is inside the bounds, with errors and status. On a grid these are
        arrays with the controls as coordinates; points after an interrupt are NaN and have ``Status.NOT_REACHED``.

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
    count = int(np.prod([max(values.size, 1) for values in grid.values()]))
    with interrupts.deferred(), own_settings(), as_progress(progress, count, f"{field} of least {observable}") as shown:

        def at(point: Mapping[str, float]) -> Optimum:
            search = search_over(problem, observable, field, point, shown.message)
            found = as_optimum(search.between(float(np.log(low)), float(np.log(high)), tolerance), (low, high))
            shown.advance()
            return found

        if not any(values.ndim for values in grid.values()):
            judged = [found := at({name: float(value) for name, value in grid.items()})]
        else:
            judged = _at_every_point(at, grid)
            found = _stacked(judged, grid)
    warn_of_doubts(judged, on_grid=found is not judged[0])
    return found


def warn_of_doubts(judged: Sequence[Optimum], *, on_grid: bool = False) -> None:
    """Give one ConvergenceWarning if any optimum did not converge or is less accurate than the tolerance."""
    if doubtful := [one for one in judged if not one.status.converged]:
        grave = [one for one in doubtful if one.status is not Status.INACCURATE]
        first = (grave or doubtful)[0]
        verdict = "not to be trusted" if grave else "less accurate than the tolerance"
        count = f" at {len(doubtful)} of {len(judged)} points, first" if on_grid else ":"
        text = f"the optimum is {verdict}{count} {first.words}"
        warnings.warn(text, ConvergenceWarning, stacklevel=3)


def search_over(
    problem: Problem, observable: str, field: str, point: Mapping[str, float], say: Say = quietly
) -> MinimumSearch:
    """Return a search for the minimum over log ``field`` at the controls ``point``; ``say`` shows the progress."""

    def look(log_value: float, fine: bool) -> Look:
        value = float(np.exp(log_value))
        changed, heading = with_fields(problem, **{field: value}), under(f"{field} = {value:.5g}", say)
        heading("looking")
        tolerance = _FINE if fine else _COARSE
        try:
            found = _derivative(changed, observable, field, tolerance, point, heading)
        except (FloatingPointError, ValueError) as error:  # no solution, or no observable that depends on the field
            words = f"{field} = {value:.4g}: {error}"
            return Look(log_value, np.nan, np.nan, status=Status.FAILED, words=words)
        slope, slope_error = value * found.derivative, value * found.derivative_error
        return Look(log_value, found.value, slope, found.value_error, slope_error, found.status, found.words)

    return MinimumSearch(look, lambda log_value: f"{np.exp(log_value):g}")


def as_optimum(found: Minimum, bounds: tuple[float, float] | None = None) -> Optimum:
    """Convert a minimum over log ``field`` to an optimum over the field; a bound is returned exactly."""
    at = float(np.exp(found.here.at))
    if bounds is not None and not found.inside:
        at = min(bounds, key=lambda bound: abs(bound / at - 1))
    error = at * found.error if found.error < 1 else np.inf
    words = found.words or ("" if found.status is Status.CONVERGED else found.status.sentence)
    return Optimum(
        at, found.here.value, found.inside, found.status, words, at_error=error, value_error=found.here.value_error
    )


def _at_every_point(at: Callable[[Mapping[str, float]], Optimum], grid: Mapping[str, np.ndarray]) -> list[Optimum]:
    """Return the optimum at every point of a grid, in C order; points after an interrupt have Status.NOT_REACHED."""
    points = itertools.product(*(np.atleast_1d(values).tolist() for values in grid.values()))
    judged: list[Optimum] = []
    interrupted = False
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
    """Return one optimum whose attributes are arrays along the controls with a grid, from the optima in C order."""
    lengths = {name: len(values) for name, values in grid.items() if values.ndim}
    coords = {name: (name, values) if values.ndim else values for name, values in grid.items()}

    def along(values: Sequence[object], dtype: DTypeLike) -> xr.DataArray:
        array = np.empty(len(values), dtype=dtype)
        array[:] = values
        return xr.DataArray(array.reshape(tuple(lengths.values())), dims=list(lengths), coords=coords)

    return Optimum(
        along([one.at for one in judged], float),
        along([one.value for one in judged], float),
        along([one.inside for one in judged], bool),
        along([one.status for one in judged], object),
        along([one.words for one in judged], object),
        at_error=along([one.at_error for one in judged], float),
        value_error=along([one.value_error for one in judged], float),
    )


def _derivative(
    problem: Problem, observable: str, field: str, tolerance: float, point: Mapping[str, float], say: Say = quietly
) -> Derivative:
    implementation = getattr(problem, "gradient")  # noqa: B009 (not every problem has one)
    listens = {"say": say} if "say" in inspect.signature(implementation).parameters else {}
    found = implementation(observable, field, tolerance=tolerance, **listens, **point)
    return found if isinstance(found, Derivative) else Derivative(*found)


def _checked_point(problem: Problem, observable: str, field: str, controls: Mapping[str, float]) -> Mapping[str, float]:
    """Return control -> value as a float, checked; raise if any argument of ``gradient`` is wrong."""
    _check_names(problem, observable, field, controls)
    for name, value in controls.items():
        if checks.dimensions(name, value) > 0:
            raise TypeError(f"{name} must be one number, for a derivative is taken at one point, got {value!r}")
    return {name: float(problem.check_control(name, [value])[0]) for name, value in controls.items()}


def _check_names(problem: Problem, observable: str, field: str, controls: Mapping[str, object]) -> None:
    """Raise if one of the arguments that ``gradient`` and ``optimum`` have in common is wrong."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, got {problem!r}")
    if not hasattr(problem, "gradient"):
        raise NotImplementedError(f"{type(problem).__name__} has no derivatives")
    for name, value in (("observable", observable), ("field", field)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a name, such as 'test_error' or 'weight_decay', got {value!r}")
    missing = [name for name in problem.controls if name not in controls]
    if missing or set(controls) - set(problem.controls):
        raise TypeError(f"give the controls {', '.join(problem.controls)}, got {', '.join(controls) or 'none'}")


def _checked_control(problem: Problem, name: str, given: ArrayLike) -> np.ndarray:
    """Return a control, given as a number or a 1-D grid, as a checked float array of 0 or 1 dimensions."""
    values = checks.real_array(name, given)
    if values.ndim > 1 or values.size == 0:
        raise ValueError(f"{name} must be a number or a non-empty 1-D sequence, got shape {values.shape}")
    return np.asarray(problem.check_control(name, np.atleast_1d(values)), dtype=float).reshape(values.shape)


def _checked_bounds(bounds: object) -> tuple[float, float]:
    if not isinstance(bounds, tuple | list | np.ndarray) or len(bounds) != 2:
        raise TypeError(f"bounds must be a pair of positive numbers, such as (1e-3, 1.0), got {bounds!r}")
    low, high = (float(checks.positive("bounds", bound)) for bound in bounds)
    if not low < high:
        raise ValueError(f"bounds must be ascending, got {bounds}")
    return low, high
