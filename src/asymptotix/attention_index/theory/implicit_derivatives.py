"""Derivatives of observables through the fixed point, by the implicit function theorem.

With the map x -> G(x, theta), the fixed point x(theta) and an observable O(x, theta),

    dO/dtheta = O_theta + O_x (1 - G_x)^{-1} G_theta.

The map is smooth on fixed nodes, so its partial derivatives are taken by central differences, with an error of the
order of the square of the step; what would be expensive and noisy, to solve again at a shifted theta, is avoided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...core.specification import numeric_fields, with_fields
from .state_evolution import OrderParameters

if TYPE_CHECKING:
    from ..risk import RiskMinimization

_STEP = 3e-4
_INTEGERS = ("tokens",)


def value_and_derivative(
    problem: RiskMinimization, observable: str, field: str, *, alpha: float, tolerance: float
) -> tuple[float, float]:
    """Value of an observable at alpha and its derivative with respect to ``field`` (a numeric field, or "alpha")."""
    at = _parameter(problem, field, alpha)
    nodes = {"order": 28} if problem.theory.smooth else {"count": 2**12 if tolerance > 5e-4 else 2**14, "seed": 0}

    def side(theta: float) -> tuple[RiskMinimization, float]:
        return (problem, theta) if field == "alpha" else (with_fields(problem, **{field: theta}), alpha)

    start, outcome = problem.theory.solve(alpha, None, tolerance)
    if start is None:
        raise ValueError(f"nothing to differentiate at alpha={alpha:g}: {outcome.status}")
    here = problem.theory.evolution(**nodes)
    state = here.solve(alpha, start, tolerance=1e-10)
    x = here.variables(state.parameters)

    def map_and_observable(x: np.ndarray, theta: float) -> np.ndarray:
        shifted, shifted_alpha = side(theta)
        evolution = shifted.theory.evolution(**nodes)
        found = evolution.at(shifted_alpha, x)
        values = shifted.theory.observables(shifted_alpha, found, evolution)
        if observable not in values:
            raise ValueError(f"observable must be one of {', '.join(values)}, got {observable!r}")
        return np.append(evolution.variables(OrderParameters(*found.estimate[:3])), values[observable])

    def central(move: np.ndarray, step: float) -> np.ndarray:
        ahead = map_and_observable(x + move, at + step)
        return ahead - map_and_observable(x - move, at - step)

    by_x = np.stack([central(_STEP * unit, 0.0) / (2 * _STEP) for unit in np.eye(len(x))], axis=1)
    step = _STEP * abs(at)
    by_theta = central(np.zeros_like(x), step) / (2 * step)
    moved = np.linalg.solve(np.eye(len(x)) - by_x[:-1], by_theta[:-1])
    return float(map_and_observable(x, at)[-1]), float(by_theta[-1] + by_x[-1] @ moved)


def _parameter(problem: RiskMinimization, field: str, alpha: float) -> float:
    if field == "alpha":
        return alpha
    fields = numeric_fields(problem)
    accepted = [name for name in fields if name not in _INTEGERS]
    if field not in accepted:
        raise ValueError(f"field must be alpha or one of {', '.join(sorted(accepted))}, got {field!r}")
    value = fields[field]
    if value is None:
        raise ValueError(f"{field} is not set; give it a number first")
    if value == 0:
        raise ValueError(f"{field} must not be 0, where only a one-sided derivative exists, got 0")
    return float(value)
