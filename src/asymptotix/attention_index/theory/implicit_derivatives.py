"""Derivatives of observables through the fixed point, by the implicit function theorem.

With a parameter theta, the map x -> G(x, theta) of state evolution, its fixed point x(theta) and an observable
O(x, theta),

    dO/dtheta = O_theta + O_x (1 - G_x)^{-1} G_theta.

The map is smooth on fixed nodes, so its partial derivatives are taken by central differences, with an error of the
order of the square of the step. Solving again at a shifted theta would be expensive and noisy.

The derivative is the mean over all sets of nodes that :func:`solve` uses. Its error combines the spread over these sets
with the change when the step is doubled. Where the proximal map jumps, the error also contains the change with a step
long enough to include jumps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ...core.gradient import Derivative
from ...core.problem import Outcome
from ...core.progress import Say, quietly
from ...core.status import Status
from .state_evolution import TrainingEvolution
from .training_observables import OBSERVABLES, doubted, mean_and_error, nothing_learned_values, observable_of
from .training_states import TrainingSolution
from .training_theory import Branch, TrainingTheory

#: Step of the differences, absolute in the variables and relative in theta, and a longer step over which the proximal
#: map jumps on some samples.
_STEP, _LONG_STEP = 3e-4, 3e-2
#: Relative rounding error of the map and of an observable, if one quadrature rule over the spectrum is known to be
#: accurate; the rounding error of the derivative is larger by 1/step.
_ROUNDING = 1e-13
#: Estimated ratio of the relative error of the derivative to the residual of the fixed point.
_AMPLIFIED = 10.0

#: Function that returns the theory and alpha at a given value of the parameter theta.
Shifted = Callable[[float], tuple[TrainingTheory, float]]


def value_and_derivative(
    theory: TrainingTheory,
    alpha: float,
    observable: str,
    *,
    theta: float,
    shifted: Shifted,
    tolerance: float,
    say: Say = quietly,
) -> Derivative:
    """Return an observable and its derivative with respect to a parameter, with errors and the status of the point.

    Parameters
    ----------
    theory, alpha
        Point at which the derivative is taken.
    observable
        Name of the observable.
    theta
        Value of the parameter at this point.
    shifted
        Function that returns theory and alpha at another value of the parameter, which may be alpha itself.
    tolerance
        Tolerance of the value's numerical error.
    say
        Function that shows the progress of the work.
    """
    if observable not in OBSERVABLES:
        raise ValueError(f"observable must be one of {', '.join(OBSERVABLES)}, got {observable!r}")
    found = theory.solve(alpha, theory.starts("uninformed"), tolerance, say)
    outcome = found.outcome
    if found.parameters is not None and found.branch is not None:
        try:
            derivative = _through_the_fixed_point(found.branch, observable, theta, shifted, say)
        except FloatingPointError as error:
            words = f"no derivative: there is no solution at a step of {_STEP:g} from this point ({error})"
            return _judged(doubted(outcome, Status.FAILED, words), observable, np.nan, np.nan)
        return _judged(outcome, observable, *derivative)
    if not outcome.converged:
        return _judged(outcome, observable, np.nan, np.nan)
    if outcome.values["q"] == 0 and theory.problem.weight_decay > 0:
        return _judged(outcome, observable, *_at_nothing(theory, alpha, observable, theta, shifted, tolerance))
    raise ValueError(f"nothing to differentiate at alpha={alpha:g}: {outcome.sentence}")


def _judged(outcome: Outcome, observable: str, derivative: float, error: float) -> Derivative:
    value, value_error = (float(outcome.values.get(name, np.nan)) for name in (observable, f"{observable}_err"))
    return Derivative(
        value, float(derivative), outcome.how, outcome.sentence, value_error=value_error, derivative_error=float(error)
    )


def _through_the_fixed_point(
    branch: Branch, observable: str, theta: float, shifted: Shifted, say: Say
) -> tuple[float, float]:
    """Return the mean derivative over the sets of nodes of a branch, and its numerical error."""
    rows = []
    for position, (solution, evolution) in enumerate(zip(branch.solutions, branch.evolutions, strict=True), start=1):
        say(f"derivative on nodes {position} of {len(branch.solutions)}")
        rows.append(_Differences(solution, evolution, observable, theta, shifted).derivative(_STEP))
    derivative, spread = mean_and_error([row.derivative for row in rows])
    first = _Differences(branch.solutions[0], branch.evolutions[0], observable, theta, shifted)
    longer = [first.derivative(2 * _STEP)]
    if np.any(branch.solutions[0].several):
        longer.append(first.derivative(_LONG_STEP, jumps=True))
    by_step = max(abs(other.derivative - rows[0].derivative) for other in longer)
    settled = _AMPLIFIED * branch.solutions[0].residual * abs(derivative)
    return derivative, float(np.hypot(spread, by_step)) + settled + max(row.rounding for row in rows)


class _Row(NamedTuple):
    """A derivative and its rounding error."""

    derivative: float
    rounding: float


class _Differences:
    """Differences of the map and of an observable around the fixed point ``solution``, on its own nodes.

    ``theta`` and ``shifted`` are those of :func:`value_and_derivative`.
    """

    def __init__(
        self,
        solution: TrainingSolution,
        evolution: TrainingEvolution,
        observable: str,
        theta: float,
        shifted: Shifted,
    ) -> None:
        self.solution, self.evolution, self.observable = solution, evolution, observable
        self.theta, self.shifted = theta, shifted
        self.x = evolution.variables(solution.parameters)
        found = evolution.on_other_nodes(solution)
        self.noise = _ROUNDING if found is None else max(_ROUNDING, found[1])

    def derivative(self, step: float, *, jumps: bool = False) -> _Row:
        """Return dO/dtheta of the observable O from central differences.

        ``step`` is absolute in the variables and relative in theta. With ``jumps`` samples may change to other minima.
        """
        by_x = [self._central(step * unit, 0.0, jumps) / (2 * step) for unit in np.eye(len(self.x))]
        G = np.stack(by_x, axis=1)
        by_theta = self._central(np.zeros_like(self.x), step * abs(self.theta), jumps) / (2 * step * abs(self.theta))
        response = np.linalg.solve(np.eye(len(self.x)) - G[:-1].T, G[-1])  # of the observable to a shift of the map
        derivative = by_theta[-1] + response @ by_theta[:-1]
        size = abs(self._map_and_observable(self.x, self.theta, jumps)[-1])
        rounding = self.noise / (step * abs(self.theta)) * (size + float(abs(response).sum()))
        return _Row(float(derivative), rounding)

    def _central(self, move: np.ndarray, step: float, jumps: bool) -> np.ndarray:
        ahead = self._map_and_observable(self.x + move, self.theta + step, jumps)
        return ahead - self._map_and_observable(self.x - move, self.theta - step, jumps)

    def _map_and_observable(self, x: np.ndarray, theta: float, jumps: bool) -> np.ndarray:
        theory, alpha = self.shifted(theta)
        evolution = theory.equations.evolution(self.evolution.nodes)
        several = self.solution.several if jumps else False
        state = evolution.at(alpha, x, near=self.solution.points, multi_start=several)
        value = observable_of(theory.problem, alpha, state, evolution, self.observable)
        return np.append(evolution.image(state), value)


def _at_nothing(
    theory: TrainingTheory, alpha: float, observable: str, theta: float, shifted: Shifted, tolerance: float
) -> tuple[float, float]:
    """Return the derivative and its error where S = 0 near theta, by central differences of the observable."""
    count = theory.equations.node_counts(tolerance)[-1]
    step = _STEP * abs(theta)

    def slope(position: int, step: float) -> float:
        values = []
        for moved in (theta + step, theta - step):
            there, alpha_there = shifted(moved)
            evolution = there.equations.replicas(count)[position]
            values.append(nothing_learned_values(there.problem, alpha_there, evolution)[observable])
        return (values[0] - values[1]) / (2 * step)

    rows = [slope(position, step) for position in range(len(theory.equations.replicas(count)))]
    derivative, spread = mean_and_error(rows)
    return derivative, float(np.hypot(spread, slope(0, 2 * step) - rows[0]))
