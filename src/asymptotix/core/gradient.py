"""Derivatives of what a theory predicts, and the parameter at which one vanishes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import root_scalar

from ..numerics import checks
from .problem import Problem
from .specification import with_fields


class Derivative(NamedTuple):
    """Value of an observable and its derivative."""

    value: float
    derivative: float


class Optimum(NamedTuple):
    """Where an observable is least: the parameter, the value there, and whether the minimum is inside the bounds."""

    at: float
    value: float
    inside: bool


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
    **controls : float
        The point, ``alpha=1.0``.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.01)
    >>> asx.gradient(problem, "test_error", "weight_decay", alpha=1.0).derivative < 0
    True
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, got {problem!r}")
    implementation = getattr(problem, "gradient", None)
    if implementation is None:
        raise NotImplementedError(f"{type(problem).__name__} has no derivatives")
    missing = [name for name in problem.controls if name not in controls]
    if missing or set(controls) - set(problem.controls):
        raise TypeError(
            f"gradient needs the controls {', '.join(problem.controls)}, got {', '.join(controls) or 'none'}"
        )
    point = {name: float(problem.check_control(name, [value])[0]) for name, value in controls.items()}
    return Derivative(*implementation(observable, field, tolerance=tolerance, **point))


def optimum(
    problem: Problem,
    observable: str,
    field: str,
    *,
    bounds: tuple[float, float],
    tolerance: float = 1e-3,
    **controls: float,
) -> Optimum:
    """The value of a positive field at which an observable is least, as a root of its derivative in the logarithm.

    Parameters
    ----------
    bounds : pair of float
        Positive, ascending. If the derivative has the same sign at both, the better end is returned.
    tolerance : float
        Relative, of the field.
    """
    low, high = (checks.positive("bounds", bound) for bound in bounds)
    if not low < high:
        raise ValueError(f"bounds must be ascending, got {bounds}")

    def at(log_value: float) -> Derivative:
        changed = with_fields(problem, **{field: float(np.exp(log_value))})
        return gradient(changed, observable, field, **controls)

    ends = at(np.log(low)), at(np.log(high))
    if not ends[0].derivative < 0 < ends[1].derivative:
        best = int(ends[1].value < ends[0].value)
        return Optimum((low, high)[best], ends[best].value, False)
    root = root_scalar(lambda v: at(v).derivative, bracket=(np.log(low), np.log(high)), xtol=tolerance).root
    return Optimum(float(np.exp(root)), at(float(root)).value, True)
