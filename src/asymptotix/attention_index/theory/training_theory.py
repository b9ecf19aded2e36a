"""The theory of regularised training: how the equations of a problem are solved at one alpha after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...core.problem import Outcome
from ...numerics import checks
from ..loss.quadrature_nodes import LossNodes
from .amp_dynamics import message_passing_trace
from .state_evolution import JUMPS, OrderParameters, TrainingEvolution, TrainingSolution
from .training_equations import Training, TrainingEquations
from .training_observables import nothing_learned, training_outcome, without_error
from .vanishing_weight_decay import interpolates, interpolating_outcome, interpolating_start, training_thresholds

#: Gauss-Hermite nodes on which the dynamics are followed before the fine ones take over.
_COARSE = LossNodes(order=10)
_RESIDUAL = 1e-8
#: Where the proximal map jumps the map is not continuous on finitely many nodes, and this is as far as one gets.
_JUMPING_RESIDUAL = 1e-6
#: Share of the data on which the proximal map may jump before a third set of nodes is asked.
_SMOOTH, _THIRD = 1e-5, LossNodes(order=25)
#: Accuracy of the averages behind the dynamics of message passing.
_TRACE_TOLERANCE = 1e-3


class TrainingTheory:
    """Solves one problem; keeps quadrature nodes and proximal points between calls."""

    def __init__(self, problem: Training) -> None:
        self.problem, self.model, self.equations = problem, problem.model, TrainingEquations(problem)

    def check_start(self, start: str | Sequence[float]) -> OrderParameters | None:
        """None for the default start, or (m, q, Sigma)."""
        if isinstance(start, str):
            checks.one_of("start", start, ("uninformed", "informed"))
            Q0 = self.model.signal
            return None if start == "uninformed" else OrderParameters(0.999 * Q0, Q0, 0.1)
        m, q, Sigma = checks.array_of_shape("start", start, (3,))
        checks.positive("start", q)
        checks.positive("start", Sigma)
        if not abs(m) < np.sqrt(q * self.model.signal):
            raise ValueError(f"start must be (m, q, Sigma) with |m| < sqrt(q Q_0), got m={m}, q={q}")
        return OrderParameters(float(m), float(q), float(Sigma))

    def solve(
        self, alpha: float, start: OrderParameters | None, tolerance: float
    ) -> tuple[OrderParameters | None, Outcome]:
        """Where the next point may start from, and the outcome of this one."""
        if interpolates(self.problem, alpha):
            return None, interpolating_outcome(self.problem, alpha)
        try:
            solutions, evolutions = self._solutions(alpha, start, tolerance)
        except FloatingPointError as error:
            return self._from_nothing(alpha, tolerance, str(error))
        outcome = training_outcome(self.problem, alpha, solutions, evolutions)
        return (solutions[0].parameters if outcome.converged or solutions[0].converged else None), outcome

    def _solutions(
        self, alpha: float, start: OrderParameters | None, tolerance: float, *, settled: bool = False
    ) -> tuple[list[TrainingSolution], list[TrainingEvolution]]:
        """Solutions on several sets of nodes; ``settled`` says that the start is the end of the dynamics on few."""
        equations = self.equations
        evolutions = equations.replicas(tolerance)
        if start is None and equations.on_two_token_nodes:
            start = interpolating_start(self.problem, alpha)
        few = equations.evolution(_COARSE) if equations.on_two_token_nodes else evolutions[0]
        if not equations.on_two_token_nodes and not (settled and start):
            return _solved(evolutions, alpha, start), evolutions
        # The dynamics are followed on few nodes; there is not far to go from their end.
        if not (settled and start):
            start = few.follow(alpha, start, tolerance=1e-6).parameters
        inverse = np.linalg.inv(np.eye(3) - few.jacobian(alpha, start))
        if not equations.on_two_token_nodes:
            return [evolution.polish(alpha, start, inverse) for evolution in evolutions], evolutions
        return self._on_fine_nodes(alpha, start, inverse, evolutions)

    def _on_fine_nodes(
        self, alpha: float, start: OrderParameters, inverse: np.ndarray, evolutions: list[TrainingEvolution]
    ) -> tuple[list[TrainingSolution], list[TrainingEvolution]]:
        """From the end of the dynamics on few nodes, with ``inverse`` = (1 - G')^{-1} there; two tokens."""
        fine = evolutions[0].polish(alpha, start, inverse, tolerance=_RESIDUAL)
        jumps = fine.averages.jump_weight
        if jumps > JUMPS:
            # A quadrature rule that relies on smoothness is of no use: average over randomised nodes.
            evolutions = self.equations.randomised()
            return _solved(evolutions, alpha, fine.parameters, tolerance=_JUMPING_RESIDUAL), evolutions
        if jumps > _SMOOTH:
            # Two orders may agree by chance where the integrand is not smooth; a third rarely does as well.
            evolutions = [*evolutions, self.equations.evolution(_THIRD)]
        others = [_predicted(evolution, alpha, fine.parameters, inverse) for evolution in evolutions[1:]]
        return [fine, *others], evolutions

    def _from_nothing(self, alpha: float, tolerance: float, reason: str) -> tuple[OrderParameters | None, Outcome]:
        """The point where a usual start fails: S is zero or small, and is approached from there."""
        if self.problem.weight_decay == 0:
            words = "close to interpolation the proximal map jumps and the theory at vanishing weight decay is unproven"
            return None, Outcome({}, f"failed: {words}; {reason}", False)
        equations = self.equations
        few = equations.evolution(_COARSE) if equations.on_two_token_nodes else equations.replicas(tolerance)[0]
        averages, _, estimate = few.from_nothing(alpha)
        if estimate.q <= 0:
            return None, nothing_learned(self.problem, alpha, averages)
        try:
            near = few.cautiously(alpha, OrderParameters(*estimate[:3]), tolerance=1e-6)
            solutions, evolutions = self._solutions(alpha, near.parameters, tolerance, settled=True)
        except FloatingPointError:
            return None, Outcome({}, f"failed: {reason}", False)
        return solutions[0].parameters, training_outcome(self.problem, alpha, solutions, evolutions)

    def thresholds(self) -> Outcome:
        """Interpolation and exact recovery at vanishing weight decay."""
        return Outcome(without_error(training_thresholds(self.problem)._asdict()))

    def trace(self, *, iterations: int, damping: float, alpha: float) -> Mapping[str, np.ndarray]:
        """Dynamics of undamped matrix message passing from S = 0: m, q, V = Sigma and Lambda = Sigmahat."""
        return message_passing_trace(self.equations.replicas(_TRACE_TOLERANCE)[0], alpha, iterations)


def _predicted(
    evolution: TrainingEvolution, alpha: float, near: OrderParameters, inverse: np.ndarray
) -> TrainingSolution:
    """The fixed point on other nodes by one quasi-Newton step: the difference is all that is asked for."""
    found = evolution.at(alpha, evolution.variables(near))
    x = evolution.variables(near) + inverse @ (evolution.image(found) - evolution.variables(near))
    return evolution.at(alpha, x)


def _solved(
    evolutions: list[TrainingEvolution], alpha: float, start: OrderParameters | None, tolerance: float = _RESIDUAL
) -> list[TrainingSolution]:
    solutions: list[TrainingSolution] = []
    for evolution in evolutions:
        solutions.append(evolution.solve(alpha, start, tolerance=tolerance))
        start = solutions[0].parameters
    return solutions
