"""Theory of regularised training: the solution of the equations of a problem at one alpha.

State evolution is iterated on coarse nodes from an uninformed start. A loss that is not convex may have a second branch
of fixed points, so that it is also iterated from an informed start. From these ends, quasi-Newton steps lead to the
fixed points on fine nodes. Of two branches, the one of lower training loss belongs to the minimiser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ...core.problem import Outcome
from ...core.progress import Say, quietly
from ...core.status import Status
from ...numerics import checks
from ...numerics.iteration import QuasiNewton
from ..loss.quadrature_nodes import LossNodes
from .amp_dynamics import message_passing_trace
from .state_evolution import JUMPS, TrainingEvolution
from .training_equations import Training, TrainingEquations, decay_of_matrix
from .training_observables import beyond, doubted, nothing_learned, training_outcome
from .training_states import Iterate, OrderParameters, TrainingSolution
from .two_equations import two_equations
from .vanishing_weight_decay import (
    NEARLY_ZERO,
    interpolates,
    interpolating_outcome,
    interpolating_start,
    recovers_exactly,
    threshold_outcome,
)

STARTS = ("uninformed", "informed", "continued")
#: Residuals (changes per iteration) to which the equations are solved: on the coarsest nodes, on coarse nodes, and on
#: the nodes of the results.
_SCOUTED, _FOLLOWED, _RESIDUAL = 1e-3, 1e-4, 1e-8
#: Residual where the loss is known in closed form: the equations are then cheap and have no quadrature error.
_CLOSED_RESIDUAL = 1e-11
#: Residuals on further sets of nodes, where these give the numerical error only, and where they also enter the mean.
#: Both are small compared with the differences between the sets.
_OTHER_RESIDUAL, _MEAN_RESIDUAL = 1e-4, 2e-5
#: Distance in a variable (logarithms, a logit) beyond which two ends of the dynamics count as different fixed points.
_APART = 0.1
#: Relative difference by which the potential of dynamics that do not converge must be lower than the result's to make
#: the result unproven.
_LOWER = 1e-2
#: Multiple of JUMPS on coarse nodes beyond which Gauss-Hermite nodes are not tried.
_PLENTY = 10
#: Multiple of JUMPS beyond which Gauss-Hermite nodes are given up before the iteration has converged. It is above one
#: because the share of jumps may fall during the iteration.
_HOPELESS = 2
#: Share of the data on which the proximal map jumps beyond which a third Gauss-Hermite order is used as well.
_SMOOTH, _THIRD = 1e-5, LossNodes(order=25)
#: Tolerance that sets the number of nodes for the dynamics of message passing.
_TRACE_TOLERANCE = 1e-3


Starts = tuple[OrderParameters, ...]


class Found(NamedTuple):
    """The result at one alpha, with the ``parameters`` from which another point starts, if an iteration converged."""

    outcome: Outcome
    parameters: OrderParameters | None
    branch: Branch | None = None
    """The fixed points on all sets of nodes; None where the equations were not iterated."""


class Approach(NamedTuple):
    """A fixed point on coarse nodes, from which the iteration on fine nodes starts."""

    parameters: OrderParameters
    newton: QuasiNewton
    """Quasi-Newton steps with the derivative of the map at this fixed point."""
    jumps: bool
    """Whether the proximal map jumps there on more than a few samples."""

    def closer(self, branch: Branch) -> Approach:
        """Return this approach with the fixed point ``branch`` on finer nodes as its start, if that converged."""
        return self._replace(parameters=branch.parameters) if branch.solutions[0].converged else self


@dataclass(frozen=True)
class Branch:
    """One branch of fixed points at ``alpha``: ``solutions``, one per set of nodes.

    ``evolutions`` are the equations on these sets, in the same order.
    """

    alpha: float
    solutions: list[TrainingSolution]
    evolutions: list[TrainingEvolution]

    @property
    def parameters(self) -> OrderParameters:
        return self.solutions[0].parameters

    @property
    def potential(self) -> float:
        return float(np.mean([solution.potential(self.alpha) for solution in self.solutions]))

    @property
    def training_loss(self) -> float:
        """The training loss L/d^2 in the user's unit: the potential Phi, its mean over all sets of nodes."""
        return self.potential * self.evolutions[0].unit

    def same_as(self, other: Branch) -> bool:
        variables = self.evolutions[0].variables
        return _together(variables(self.parameters), variables(other.parameters))


class TrainingTheory:
    """Solver of one problem. It keeps quadrature nodes between calls, and no state on which results depend."""

    def __init__(self, problem: Training) -> None:
        self.problem, self.model, self.equations = problem, problem.model, TrainingEquations(problem)

    def starts(self, start: str | ArrayLike) -> Starts:
        """Return the order parameters from which the iteration starts, one or two.

        Of two ends the one of lower potential counts. Unless the loss is convex, "uninformed" also tries the informed
        start, and "informed" the uninformed one. "continued" and a given (m, q, Sigma) follow one branch.
        """
        Q0 = self.model.signal or self.model.noisy_signal  # without a signal the noise sets the size of S
        uninformed, informed = OrderParameters.uninformed(Q0), OrderParameters.informed(Q0, self.model.beta_ratio)
        if isinstance(start, str):
            named = {
                "uninformed": (uninformed, informed),
                "informed": (informed, uninformed),
                "continued": (OrderParameters.partly_informed(Q0),),
            }[checks.one_of("start", start, STARTS)]
            return named[:1] if self.equations.convex else named
        m, q, Sigma = checks.array_of_shape("start", start, (3,))
        checks.positive("start", q)
        checks.positive("start", Sigma)
        if not abs(m) < np.sqrt(q * Q0):
            raise ValueError(f"start must be (m, q, Sigma) with |m| < sqrt(q Q_0), got m={m}, q={q}")
        return (OrderParameters(float(m), float(q), float(Sigma) * self.equations.unit),)

    def solve(self, alpha: float, starts: Sequence[OrderParameters], tolerance: float, say: Say = quietly) -> Found:
        """Return the solution at one alpha from the given starts; ``say`` shows progress texts."""
        if self.equations.in_two_equations:
            return self._in_two_equations(alpha, tolerance)
        if interpolates(self.problem, alpha):
            return Found(interpolating_outcome(self.problem, alpha, tolerance), None)
        try:
            found = self._judged(alpha, *self._ends(alpha, starts), tolerance, say)
        except FloatingPointError as error:
            found = self._from_nothing(alpha, tolerance, str(error), say)
        stuck = found.outcome.how in (Status.FAILED, Status.NOT_CONVERGED)
        if stuck and interpolates(self.problem, alpha, below=NEARLY_ZERO):
            return Found(interpolating_outcome(self.problem, alpha, tolerance), None)
        return found

    def _in_two_equations(self, alpha: float, tolerance: float) -> Found:
        """Return the solution of a linear channel: two equations give delta and eps, which give all observables."""
        problem, model, evolution = self.problem, self.model, self.equations.evolution()
        samples, decay = 2 * model.visible_directions * alpha, decay_of_matrix(problem)
        if decay == 0 and recovers_exactly(problem, alpha):
            return Found(interpolating_outcome(problem, alpha, tolerance), None)
        try:
            law = two_equations(model.target, model.noise, samples, decay, problem.width_ratio)
        except FloatingPointError as error:
            return Found(Outcome({}, Status.FAILED, words=f"failed: {error}"), None)
        if law.q <= 0:
            return Found(nothing_learned(problem, alpha, [evolution]), None)
        Sigmahat = 2 * decay / law.eps if decay > 0 else 4 * (samples - law.divergence)
        if decay == 0 and law.eps > 0:
            return Found(interpolating_outcome(problem, alpha, tolerance, law), None)
        parameters = OrderParameters(law.m, law.q, law.divergence / Sigmahat, law.apart)
        solution = evolution.at(alpha, evolution.variables(parameters))
        outcome = training_outcome(problem, alpha, [solution], [evolution], tolerance)
        return Found(outcome, parameters, Branch(alpha, [solution], [evolution]))

    # -- from coarse nodes to fine ones ------------------------------------------------------------------------

    def _ends(self, alpha: float, starts: Sequence[OrderParameters]) -> tuple[TrainingEvolution, list[Iterate]]:
        """Iterate on the coarsest nodes from every start; return the equations there and the distinct ends.

        With one start, the coarse nodes replace the coarsest.
        """
        scouts, tolerance = self.equations.scouts(), _SCOUTED
        if len(starts) == 1:  # with one branch the coarse nodes are used at once
            scouts, tolerance = self.equations.few(), _FOLLOWED
        ends: list[Iterate] = []
        failure = FloatingPointError("no start")
        for start in starts:
            try:
                end = scouts.follow(alpha, start, tolerance=tolerance, known=ends)
            except FloatingPointError as error:
                failure = error
                continue
            x = scouts.variables(end.parameters)
            if not any(_together(x, scouts.variables(other.parameters)) for other in ends):
                ends.append(end)
        if not ends:
            near = interpolating_start(self.problem, alpha)
            if near is None:
                raise failure
            ends.append(scouts.follow(alpha, near, tolerance=tolerance))
        return scouts, ends

    def _judged(
        self, alpha: float, scouts: TrainingEvolution, ends: list[Iterate], tolerance: float, say: Say
    ) -> Found:
        """Return the result on the branch of lowest potential among the ``ends`` that converged, with its status.

        ``ends`` belong to the nodes of ``scouts``. The number of fine nodes grows until errors meet ``tolerance``.
        """
        settled = [end for end in ends if end.converged] or ends[:1]
        nearby = [self._approach(alpha, scouts, end) for end in settled]
        counts, needed = self.equations.node_counts(tolerance), 0.0
        for count in counts:
            if count is not None and count < needed and count != counts[-1]:
                continue
            say("on all nodes" if count is None else f"on {count} nodes")
            found = [self._branch(alpha, near, count, say) for near in nearby]
            nearby = [near.closer(there) for near, there in zip(nearby, found, strict=True)]
            branches = [found[0], *(other for other in found[1:] if not other.same_as(found[0]))]
            lowest, *others = sorted(branches, key=lambda branch: branch.potential)
            outcome = training_outcome(self.problem, alpha, lowest.solutions, lowest.evolutions, tolerance)
            if outcome.how is not Status.INACCURATE or count is None:
                break
            # the error falls as the inverse number of nodes, or more slowly
            needed = count * beyond(self.problem, outcome, tolerance)
        for other in others:
            outcome = doubted(outcome, None, _second_branch(lowest, other))
        for end in (end for end in ends if not any(end is other for other in settled)):
            unsettled = scouts.complete(alpha, end)
            if unsettled.potential(alpha) < (1 - _LOWER) * lowest.potential:
                outcome = doubted(outcome, Status.NOT_VALID, _unsettled(unsettled, lowest))
        return Found(outcome, lowest.parameters if lowest.solutions[0].converged else None, lowest)

    def _approach(self, alpha: float, scouts: TrainingEvolution, end: Iterate) -> Approach:
        """Return the fixed point on coarse nodes reached from ``end``, an end on the nodes of ``scouts``."""
        few = self.equations.few()
        near = end.points if scouts.loss is few.loss else None
        end = few.follow(alpha, end.parameters, tolerance=_FOLLOWED, near=near)
        newton = QuasiNewton(np.linalg.inv(np.eye(3) - few.jacobian(alpha, end)))
        if not self.equations.on_two_token_nodes:
            return Approach(end.parameters, newton, jumps=False)
        checked = few.at(alpha, few.variables(end.parameters), near=end.points, multi_start=True)
        return Approach(end.parameters, newton, checked.averages.jump_weight > _PLENTY * JUMPS)

    def _branch(self, alpha: float, near: Approach, count: int | None, say: Say) -> Branch:
        """Return the fixed points near ``near`` on the fine nodes of :meth:`TrainingEquations.replicas`."""
        equations, evolutions = self.equations, self.equations.replicas(count)
        if equations.in_closed_form:
            solutions = [evolutions[0].polish(alpha, near.parameters, near.newton, tolerance=_CLOSED_RESIDUAL)]
            return Branch(alpha, solutions, evolutions)
        if equations.on_two_token_nodes and not near.jumps:
            return self._on_two_token_nodes(alpha, near, evolutions, say)
        if equations.on_two_token_nodes:
            evolutions = equations.randomised()
        return Branch(alpha, _scrambled(evolutions, alpha, near, say), evolutions)

    def _on_two_token_nodes(
        self, alpha: float, near: Approach, evolutions: list[TrainingEvolution], say: Say
    ) -> Branch:
        """Return the fixed points near ``near`` on Gauss-Hermite nodes, or on Sobol nodes if the proximal map jumps."""
        most_jumps = _HOPELESS * JUMPS
        fine = evolutions[0].polish(alpha, near.parameters, near.newton, tolerance=_RESIDUAL, most_jumps=most_jumps)
        jumps = fine.averages.jump_weight
        if jumps > JUMPS:
            # Gauss-Hermite rules are inaccurate where the integrand jumps: average over randomised nodes.
            evolutions = self.equations.randomised()
            near = Approach(fine.parameters, near.newton, jumps=True)
            return Branch(alpha, _scrambled(evolutions, alpha, near, say), evolutions)
        if jumps > _SMOOTH:
            # Two orders may agree by chance where the integrand is not smooth; a third rarely agrees with both.
            evolutions = [*evolutions, self.equations.evolution(_THIRD)]
        others = [
            other.beside(alpha, fine.parameters, near.newton, tolerance=_OTHER_RESIDUAL, look=False)
            for other in evolutions[1:]
        ]
        return Branch(alpha, [fine, *others], evolutions)

    def _from_nothing(self, alpha: float, tolerance: float, reason: str, say: Say) -> Found:
        """Return S = 0, or a small S approached from zero, after the usual starts failed with the error ``reason``."""
        if self.problem.weight_decay == 0:
            words = "close to interpolation the proximal map jumps and the theory at vanishing weight decay is unproven"
            return Found(Outcome({}, Status.FAILED, words=f"failed: {words}; {reason}"), None)
        few = self.equations.few()
        try:
            _, _, estimate = few.from_nothing(alpha)
            if estimate.q <= 0:
                count = self.equations.node_counts(tolerance)[-1]
                return Found(nothing_learned(self.problem, alpha, self.equations.replicas(count)), None)
            near = few.cautiously(alpha, OrderParameters.of_estimate(estimate), tolerance=_FOLLOWED)
            return self._judged(alpha, few, [near], tolerance, say)
        except FloatingPointError:
            return Found(Outcome({}, Status.FAILED, words=f"failed: {reason}"), None)

    # -- thresholds and dynamics -------------------------------------------------------------------------------

    def thresholds(self, tolerance: float) -> Outcome:
        """Return the thresholds of interpolation and of exact recovery at vanishing weight decay."""
        return threshold_outcome(self.problem, tolerance)

    def trace(self, *, iterations: int, damping: float, alpha: float) -> Mapping[str, np.ndarray]:
        """Return m, q, V = Sigma, Lambda = Sigmahat (iterations,) of undamped matrix message passing from S = 0."""
        count = self.equations.node_counts(_TRACE_TOLERANCE)[0]
        unit = self.equations.unit
        found = dict(message_passing_trace(self.equations.replicas(count)[0], alpha, iterations))
        return found | {"V": found["V"] / unit, "Lambda": found["Lambda"] * unit}


def _together(x: np.ndarray, y: np.ndarray) -> bool:
    """Return whether variables x and y (3,) count as the same fixed point."""
    return bool(abs(x - y).max() < _APART)


def _scrambled(evolutions: list[TrainingEvolution], alpha: float, near: Approach, say: Say) -> list[TrainingSolution]:
    """Return one fixed point per scrambling of the nodes: the first by an iteration, the others from the first."""
    newton = near.newton
    count = len(evolutions)
    first = evolutions[0].polish(alpha, near.parameters, newton, tolerance=_RESIDUAL, jumps=near.jumps)
    start = first.parameters if first.converged else near.parameters
    solutions = [first]
    for position, other in enumerate(evolutions[1:], start=2):
        say(f"randomisation {position} of {count} of the nodes")
        solutions.append(other.beside(alpha, start, newton, tolerance=_MEAN_RESIDUAL, look=True))
    return solutions


def _second_branch(lowest: Branch, other: Branch) -> str:
    return (
        f"two branches: this one, of training loss {lowest.training_loss:.4g}, is the minimiser; the other has "
        f"{other.training_loss:.4g} at m = {other.parameters.m:.4g}, q = {other.parameters.q:.4g}"
    )


def _unsettled(end: TrainingSolution, lowest: Branch) -> str:
    unit = lowest.evolutions[0].unit
    return (
        f"unproven: another start leads to a lower training loss, {end.potential(lowest.alpha) * unit:.4g} instead "
        f"of {lowest.training_loss:.4g}, but does not converge there (q = {end.parameters.q:.4g})"
    )
