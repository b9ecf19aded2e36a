"""Derivatives of observables through the fixed point, by the implicit function theorem.

With the map x -> G(x, theta), the fixed point x(theta) and an observable O(x, theta),

    dO/dtheta = O_theta + O_x (1 - G_x)^{-1} G_theta.

The map is smooth on fixed nodes, so its partial derivatives are taken by central differences, with an error of the
order of the square of the step; what would be expensive and noisy, to solve again at a shifted theta, is avoided.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...core.gradient import Derivative
from .training_observables import OBSERVABLES, doubted, observables
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
) -> Derivative:
    """Value of an observable and its derivative with respect to a parameter, with the status of the point.

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
        Numerical error that is asked for, of the value.
    """
    if observable not in OBSERVABLES:
        raise ValueError(f"observable must be one of {', '.join(OBSERVABLES)}, got {observable!r}")
    nodes = theory.equations.fine_nodes(tolerance)
    outcome, start = theory.solve(alpha, theory.starts("uninformed"), tolerance)
    if start is None and not outcome.converged:
        raise FloatingPointError(f"no fixed point to differentiate at alpha={alpha:g}: {outcome.sentence}")
    if start is None:
        raise ValueError(f"nothing to differentiate at alpha={alpha:g}: {outcome.sentence}")
    here = theory.equations.evolution(nodes)
    found = here.solve(alpha, start, tolerance=_RESIDUAL)
    x = here.variables(found.parameters)

    def map_and_observable(x: np.ndarray, theta: float) -> np.ndarray:
        there, alpha_there = shifted(theta)
        evolution = there.equations.evolution(nodes)
        state = evolution.at(alpha_there, x, near=found.points)
        values = observables(there.problem, alpha_there, state, evolution)
        return np.append(evolution.image(state), values[observable])

    def central(move: np.ndarray, step: float) -> np.ndarray:
        ahead = map_and_observable(x + move, theta + step)
        return ahead - map_and_observable(x - move, theta - step)

    by_x = np.stack([central(_STEP * unit, 0.0) / (2 * _STEP) for unit in np.eye(len(x))], axis=1)
    step = _STEP * abs(theta)
    by_theta = central(np.zeros_like(x), step) / (2 * step)
    moved = np.linalg.solve(np.eye(len(x)) - by_x[:-1], by_theta[:-1])
    value, derivative = map_and_observable(x, theta)[-1], by_theta[-1] + by_x[-1] @ moved
    if not found.converged:
        outcome = doubted(outcome, found.status, found.words)
    return Derivative(float(value), float(derivative), outcome.how, outcome.sentence)
