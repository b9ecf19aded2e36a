"""Derivatives of observables through the fixed point, by the implicit function theorem.

With the map x -> G(x, theta), the fixed point x(theta) and an observable O(x, theta),

    dO/dtheta = O_theta + O_x (1 - G_x)^{-1} G_theta.

The map is smooth on fixed nodes, so its partial derivatives are taken by central differences, with an error of the
order of the square of the step; what would be expensive and noisy, to solve again at a shifted theta, is avoided.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .state_evolution import OrderParameters
from .training_observables import observables
from .training_theory import TrainingTheory

_STEP = 3e-4
_RESIDUAL = 1e-10


def value_and_derivative(
    theory: TrainingTheory,
    alpha: float,
    observable: str,
    *,
    theta: float,
    shifted: Callable[[float], tuple[TrainingTheory, float]],
    tolerance: float,
) -> tuple[float, float]:
    """Value of an observable and its derivative with respect to a parameter.

    Parameters
    ----------
    theory, alpha
        Where the derivative is taken.
    observable
        Its name.
    theta
        Value of the parameter there.
    shifted
        Theory and alpha at another value of the parameter, which may be alpha itself.
    tolerance
        Numerical error that is asked for.
    """
    nodes = theory.equations.fine_nodes(tolerance)
    outcome, start = theory.solve(alpha, theory.starts("uninformed"), tolerance)
    if start is None:
        raise ValueError(f"nothing to differentiate at alpha={alpha:g}: {outcome.sentence}")
    here = theory.equations.evolution(nodes)
    x = here.variables(here.solve(alpha, start, tolerance=_RESIDUAL).parameters)

    def map_and_observable(x: np.ndarray, theta: float) -> np.ndarray:
        there, alpha_there = shifted(theta)
        evolution = there.equations.evolution(nodes)
        found = evolution.at(alpha_there, x)
        values = observables(there.problem, alpha_there, found, evolution)
        if observable not in values:
            raise ValueError(f"observable must be one of {', '.join(values)}, got {observable!r}")
        return np.append(evolution.variables(OrderParameters(*found.estimate[:3])), values[observable])

    def central(move: np.ndarray, step: float) -> np.ndarray:
        ahead = map_and_observable(x + move, theta + step)
        return ahead - map_and_observable(x - move, theta - step)

    by_x = np.stack([central(_STEP * unit, 0.0) / (2 * _STEP) for unit in np.eye(len(x))], axis=1)
    step = _STEP * abs(theta)
    by_theta = central(np.zeros_like(x), step) / (2 * step)
    moved = np.linalg.solve(np.eye(len(x)) - by_x[:-1], by_theta[:-1])
    return float(map_and_observable(x, theta)[-1]), float(by_theta[-1] + by_x[-1] @ moved)
