"""State evolution of regularised training: equations for the order parameters m, q and Sigma.

The loss side averages f = (p - z)/Sigma over the pre-activations z_0 of the target and z of the learner, where p is the
proximal point of z. The matrix side is the estimate of S from the conjugate fields mhat, qhat and Sigmahat:

    qhat = 2 alpha E|f|^2,   Sigmahat = -2 alpha E tr df/dz,   mhat = 2 alpha E tr df/dz_0,
    m, q, Sigma = matrix side (mhat, qhat, Sigmahat).

This map is iterated in the variables x = (log q, logit of m/sqrt(q Q_0), log Sigma) by Anderson's method. The logit is
computed from q - m^2/Q_0 itself, so that no digits cancel. On fixed nodes the map is smooth, and the potential

    Phi = (qhat Sigma + 2 mhat m - Sigmahat q)/4 + alpha E min_h{...} + envelope

is stationary at the fixed point, where it equals the training loss L/d^2.

Boncoraglio et al., arXiv:2509.24914: Phi is eq. (7). The fixed point is a saddle of Phi, not the minimum of Claim 1.
The equations are (43), (55) and (66). In the paper eq. (43) and the last line of eq. (55) divide by Sigmahat instead of
Sigma, and all denominators contain Q_0 instead of Q_0' = Q_0 + noise/2.

Equations ai-fields, ai-potential, ai-replicon of docs/theory/attention_index.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from ...core.status import Status
from ...numerics.iteration import FixedPoint, QuasiNewton, fixed_point
from ...numerics.linear_algebra import from_logit
from ..loss.loss_average import LossAverage, LossAverages, Pull
from ..loss.quadrature_nodes import LossNodes
from ..penalties.spectral_estimate import MatrixEstimate, Penalty
from ..targets.target import Target
from .training_states import Fields, Iterate, OrderParameters, TrainingSolution

#: Share of the data on which the proximal map may jump before the numbers count as unproven.
JUMPS = 1e-3
#: Allowed range of delta = sqrt(qhat)/mhat, the noise in the field, in units of the target's eigenvalues. Beyond it the
#: iteration counts as diverged.
_WIDTHS = 1e-10, 1e5
#: Largest numbers of steps of the iteration, without and with several starts of the proximal map; of quasi-Newton
#: steps; of checks of an end; of steps from a fixed point on other nodes; of cautious steps. Last: number of cautious
#: steps between changes of their damping.
_STEPS, _CHECKED_STEPS, _POLISH, _CHECKS, _BESIDE, _CAUTIOUS, _WINDOW = 120, 40, 12, 5, 3, 500, 20
#: Steps of the differences that approximate derivatives: of a smooth map, and of one with jumps to be averaged over.
_SHORT, _LONG = 1e-3, 3e-2
#: Residual that is accepted where samples jump, because the map on finitely many samples is then discontinuous: the
#: first number plus the second times the root of the number of samples that jump, in units of a sample's weight.
_GRAINS, _GRAINY = 4, 0.5
#: Residual, relative to the first one, at which an iteration from the fixed point on other nodes ends.
_LEFT = 0.05
#: Distance in every variable at which a known fixed point counts as reached.
_CLOSE = 0.03
#: Largest absolute value of a variable; beyond it the iteration has diverged.
_LARGEST_LOG = 100.0
#: Residual after a check below which new minima of the proximal map hardly move the end.
_HARMLESS = 1e-4
#: One minus the cosine between S and S_0 below which S counts as a multiple of S_0.
_ALIGNED = 1e-30


class TrainingEvolution:
    """State evolution of one loss with one penalty on one target. Calls do not influence later calls.

    Parameters
    ----------
    loss : LossAverage
    penalty : Penalty
    target : Target
    noisy_signal : float
        Q_0', the signal of the loss side; the matrix side uses Q_0 of the target.
    least_error : callable
        Function without arguments; returns the test error of the best multiple of the target on the loss's nodes.
    nodes : LossNodes or None
        Identity of the nodes of the loss, so that another problem can use the same nodes.
    unit : float
        Unit of loss and penalty here, relative to the user's. Order parameters and fields belong to this unit.
    """

    def __init__(
        self,
        loss: LossAverage,
        penalty: Penalty,
        target: Target,
        noisy_signal: float,
        least_error: Callable[[], float] = lambda: np.nan,
        nodes: LossNodes | None = None,
        unit: float = 1.0,
    ) -> None:
        self.loss, self.penalty, self.target, self.noisy_signal = loss, penalty, target, noisy_signal
        self.least_error, self.nodes, self.unit = least_error, nodes, unit

    # -- the map -----------------------------------------------------------------------------------------------

    def fields(self, alpha: float, parameters: OrderParameters, averages: LossAverages | Pull) -> Fields:
        """Return mhat, qhat and Sigmahat from averages of the loss at the order parameters ``parameters``."""
        mhat = 2 * alpha * (averages.f_target - parameters.m * averages.f_noise) / self.noisy_signal
        return Fields(mhat, 2 * alpha * averages.f_square, -2 * alpha * averages.f_noise)

    def step(
        self,
        alpha: float,
        x: np.ndarray,
        near: np.ndarray | None = None,
        multi_start: bool | np.ndarray = False,
    ) -> Iterate:
        """Evaluate the map at the variables x (see :meth:`variables`), with the averages that an iteration needs.

        The proximal map is computed by one descent per sample, from the points ``near`` (n, N) if given. At the samples
        of ``multi_start`` (True for all, or a mask (n,)) it is computed by several descents.
        """
        parameters = self.parameters(x)
        spread = self.spread(parameters)
        pull = self.loss.pull(self.noisy_signal, *parameters, near=near, multi_start=multi_start, spread=spread)
        sides = self._matrix_side(alpha, x, parameters, pull)
        return Iterate(parameters, *sides, pull.points, several=pull.several)

    def at(
        self,
        alpha: float,
        x: np.ndarray,
        *,
        near: np.ndarray | None = None,
        multi_start: bool | np.ndarray = False,
    ) -> TrainingSolution:
        """Evaluate the map at the variables x with all averages of the loss; arguments as in :meth:`step`."""
        parameters = self.parameters(x)
        averages, pull = self.loss.evaluate(
            self.noisy_signal, *parameters, multi_start=multi_start, near=near, spread=self.spread(parameters)
        )
        sides = self._matrix_side(alpha, x, parameters, pull)
        return TrainingSolution(parameters, *sides, pull.points, several=pull.several, averages=averages)

    def _matrix_side(
        self, alpha: float, x: np.ndarray, parameters: OrderParameters, averages: LossAverages | Pull
    ) -> tuple[Fields, MatrixEstimate, float]:
        fields = self.fields(alpha, parameters, averages)
        if not (fields.mhat > 0 and fields.Sigmahat > 0):
            raise FloatingPointError(f"the data exert no field on S at {_words(parameters)}: {_words(fields)}")
        width = np.sqrt(fields.qhat / self.noisy_signal) / fields.mhat
        if not _WIDTHS[0] < width < _WIDTHS[1]:
            raise FloatingPointError(f"the iteration runs away: {_words(parameters)}, {_words(fields)}")
        estimate = self.penalty.estimate(self.target, *fields)
        if not (estimate.q > 0 and estimate.Sigma > 0):
            raise FloatingPointError(f"the penalty leaves nothing of S at {_words(parameters)}: {_words(fields)}")
        residual = float(abs(self.variables(OrderParameters.of_estimate(estimate)) - x).max())
        return fields, estimate, residual

    def image(self, state: Iterate) -> np.ndarray:
        """Return the variables (3,) after one iteration from ``state``."""
        return self.variables(state.next_parameters)

    def parameters(self, x: np.ndarray) -> OrderParameters:
        """Return the order parameters at the variables x (3,); FloatingPointError where x has diverged."""
        if not abs(x).max() < _LARGEST_LOG:
            raise FloatingPointError(f"the iteration runs away: log q = {x[0]:.3g}, log Sigma = {x[2]:.3g}")
        q, (cosine, rest), Sigma = float(np.exp(x[0])), from_logit(x[1]), float(np.exp(x[2]))
        m = float(np.sqrt(q * self.target.mean_square) * cosine)
        return OrderParameters(m, q, Sigma, float(q * rest * (1 + cosine)) if m > 0 else q)

    def variables(self, parameters: OrderParameters) -> np.ndarray:
        """Return the variables x (3,): log q, the logit of the cosine m/sqrt(q Q_0), and log Sigma."""
        m, q, Sigma = parameters
        if self.target.mean_square == 0:
            return np.array([np.log(q), 0.0, np.log(Sigma)])
        cosine = np.clip(m / np.sqrt(q * self.target.mean_square), 1e-9, 1.0)
        # the difference 1 - cosine has no correct digits where S is nearly a multiple of S_0
        rest = max(self.apart(parameters) / (q * (1 + cosine)), _ALIGNED)
        return np.array([np.log(q), np.log(cosine) - np.log(rest), np.log(Sigma)])

    def apart(self, parameters: OrderParameters) -> float:
        """Return q - m^2/Q_0, the part of q that is not along the target."""
        if parameters.apart is not None:
            return parameters.apart
        Q0 = self.target.mean_square
        return max(parameters.q - parameters.m**2 / Q0, 0.0) if Q0 > 0 else parameters.q

    def spread(self, parameters: OrderParameters) -> float:
        """Return the standard deviation sqrt(q - m^2/Q_0') of the learner's pre-activation given the target's."""
        Q0 = self.target.mean_square
        seen = parameters.m**2 * max(self.noisy_signal - Q0, 0.0) / (Q0 * self.noisy_signal) if Q0 > 0 else 0.0
        return float(np.sqrt(self.apart(parameters) + seen))

    def jacobian(self, alpha: float, state: Iterate, several: bool | np.ndarray = False) -> np.ndarray:
        """Return the derivative (3, 3) of the map at ``state`` by differences, for quasi-Newton steps.

        At the samples ``several`` (a mask (n,)) the proximal map may jump; the differences are then longer.
        """
        x, here = self.variables(state.parameters), self.image(state)
        step = _SHORT if several is False else _LONG
        moved = [self.image(self.step(alpha, x + step * unit, state.points, several)) for unit in np.eye(3)]
        return np.stack([(image - here) / step for image in moved], axis=1)

    # -- fixed points of the map -------------------------------------------------------------------------------

    def solve(self, alpha: float, start: OrderParameters | None = None, *, tolerance: float = 1e-8) -> TrainingSolution:
        """Return the fixed point reached from ``start`` (None: uninformed), to a residual ``tolerance`` of the map.

        It is checked by several descents of the proximal map per sample.
        """
        first = OrderParameters.uninformed(self.target.mean_square or self.noisy_signal) if start is None else start
        # If ``start`` is close to the end, the lowest minima remain the lowest; otherwise they are starts like others.
        points = self.at(alpha, self.variables(first), multi_start=True).points
        return self._checked(alpha, self.follow(alpha, first, tolerance=tolerance, near=points), None, tolerance)

    def polish(
        self,
        alpha: float,
        start: OrderParameters,
        newton: QuasiNewton,
        *,
        tolerance: float = 1e-8,
        jumps: bool = False,
        most_jumps: float = np.inf,
    ) -> TrainingSolution:
        """Return the fixed point close to ``start``, found by quasi-Newton steps and checked as in :meth:`solve`.

        ``newton`` has the derivative of the map on other nodes. ``jumps`` states that the proximal map jumped there, so
        that the first step uses several descents per sample. The iteration stops early if the proximal map jumps on a
        share of the data above ``most_jumps``.
        """
        x = self.variables(start)
        found = self.step(alpha, x, multi_start=True) if jumps else self._refined(alpha, x, newton, tolerance)
        return self._checked(alpha, found, newton, tolerance, most_jumps)

    def beside(
        self, alpha: float, near: OrderParameters, newton: QuasiNewton, *, tolerance: float, look: bool
    ) -> TrainingSolution:
        """Return the fixed point next to ``near``, the one on other nodes; only their distance needs to be accurate.

        With ``look`` the proximal map is computed from several starts; otherwise from one, and the weight of jumps is
        nan. ``newton`` has the derivative of the map on other nodes.
        """
        x = self.variables(near)
        first = self.step(alpha, x, multi_start=True) if look else None
        if first is None or not np.any(first.several):
            found = self._refined(alpha, x, newton, tolerance, begun=first)
            end = self.at(alpha, self._end(found, newton), near=found.points)
            averages = end.averages._replace(jump_weight=0.0 if look else np.nan)
            return replace(end, status=found.status, words=found.words, averages=averages)
        state = first
        newton.begin()
        for _ in range(_BESIDE):
            x = newton.step(x, self.image(state))
            # The end is so close that the same samples have several minima there.
            state = end = self.at(alpha, x, near=state.points, multi_start=first.several)
            if end.residual < max(_LEFT * first.residual, self._grain(end.averages.jump_weight), tolerance):
                return end
            if end.residual > first.residual:
                break
        return self.polish(alpha, near, newton, tolerance=tolerance, jumps=True)

    def follow(
        self,
        alpha: float,
        start: OrderParameters,
        *,
        tolerance: float = 1e-8,
        near: np.ndarray | None = None,
        several: bool | np.ndarray = False,
        known: Sequence[Iterate] = (),
    ) -> Iterate:
        """Iterate the map from ``start`` until the residual is below ``tolerance``, and return the last evaluation.

        Descents of the proximal map start at the points of the previous step, first at ``near`` (n, N). At the samples
        ``several`` (a mask (n,)) descents are made from all starts. The iteration also ends, without status CONVERGED,
        within _CLOSE of a ``known`` fixed point in every variable.
        """
        points, last = near, None
        ends = [self.variables(other.parameters) for other in known]

        def step(x: np.ndarray) -> np.ndarray:
            nonlocal points, last
            last = self.step(alpha, x, points, several)
            points = last.points
            return self.image(last)

        def arrived(x: np.ndarray, residual: float) -> str | None:
            return "arrived" if any(abs(x - end).max() < _CLOSE for end in ends) else None

        found = fixed_point(
            step, self.variables(start), tolerance=tolerance, max_steps=_STEPS if several is False else _CHECKED_STEPS,
            anderson=4, max_move=1.0, stop=arrived, names=("log q", "logit of the cosine", "log Sigma"),
        )  # fmt: skip
        # The last step was evaluated at the end, unless an extrapolation from there was undone.
        at_end = last is not None and last.residual == found.residual
        return _ended(last if last is not None and at_end else self.step(alpha, found.x, points, several), found)

    def _refined(
        self,
        alpha: float,
        x: np.ndarray,
        newton: QuasiNewton,
        tolerance: float,
        near: np.ndarray | None = None,
        several: bool | np.ndarray = False,
        begun: Iterate | None = None,
    ) -> Iterate:
        """Return the evaluation one quasi-Newton step before the fixed point close to the variables x.

        If a step does not halve the residual, :meth:`follow` starts from x instead. With jumps of the samples
        ``several`` the residual may double. ``begun`` is the evaluation at x, if it is known.
        """
        before, best, first, points = np.inf, np.inf, x, near
        newton.begin()
        for _ in range(_POLISH):
            state, begun = self.step(alpha, x, points, several) if begun is None else begun, None
            points, fall = state.points, state.residual / before
            # the residual after one more step, if that reduces it by the same factor as the last one
            if state.residual * (fall if 0 < fall < 1 else 1) < tolerance:
                return state
            if state.residual > (0.5 if several is False else 2.0) * best:
                break
            before, best = state.residual, min(best, state.residual)
            x = newton.step(x, self.image(state))
        return self.follow(alpha, self.parameters(first), tolerance=tolerance, near=points, several=several)

    def _checked(
        self,
        alpha: float,
        found: Iterate,
        newton: QuasiNewton | None,
        tolerance: float,
        most_jumps: float = np.inf,
    ) -> TrainingSolution:
        """Return the end ``found`` of an iteration once several descents per sample find no lower proximal minima.

        Lower minima are put in, and the iteration continues: by ``newton``, or by :meth:`follow` if that is None.
        """
        told = newton is None
        for left in reversed(range(_CHECKS)):
            x = self._end(found, newton)
            checked = self.at(alpha, x, near=found.points, multi_start=True)
            jumps = checked.averages.jump_weight
            grain = self._grain(jumps)
            if checked.residual < max(10 * tolerance, grain) or not found.converged or jumps > most_jumps:
                return replace(checked, status=found.status, words=found.words)
            if left == 0:
                break
            # A few samples that jump keep their minima until the next check; with many this would not converge.
            several, wanted = (checked.several, max(tolerance, grain)) if jumps > JUMPS else (False, tolerance)
            if newton is None:
                found = self.follow(alpha, found.parameters, tolerance=wanted, near=checked.points, several=several)
                continue
            if jumps > JUMPS and not told:
                newton.know(self.jacobian(alpha, checked, several))
                told = True
            found = self._refined(alpha, x, newton, wanted, checked.points, several)
            if checked.residual < _HARMLESS and found.converged:
                # The new minima have hardly moved the end, so that another check would not move it either.
                end = self.at(alpha, self._end(found, newton), near=found.points)
                return replace(end, averages=end.averages._replace(jump_weight=jumps))
        words = f"not converged: the minima of the proximal map change at every look (residual {checked.residual:.2g})"
        return replace(checked, status=Status.NOT_CONVERGED, words=words)

    def _grain(self, jumps: float) -> float:
        """Return the residual that is accepted where a share ``jumps`` of the samples jumps; 0 where none does."""
        share = self.loss.grain
        return share * (_GRAINS + _GRAINY * np.sqrt(jumps / share)) if jumps > 0 and share > 0 else 0.0

    def _end(self, found: Iterate, newton: QuasiNewton | None) -> np.ndarray:
        """Return the variables (3,) at the end ``found``, after one more quasi-Newton step if that converged."""
        x = self.variables(found.parameters)
        return x if newton is None or not found.converged else newton.step(x, self.image(found))

    def complete(self, alpha: float, found: Iterate) -> TrainingSolution:
        """Return the end ``found`` of an iteration, with its status and with all averages of the loss."""
        end = self.at(alpha, self.variables(found.parameters), near=found.points)
        return replace(end, status=found.status, words=found.words)

    def cautiously(self, alpha: float, start: OrderParameters, *, tolerance: float) -> Iterate:
        """Iterate the map from ``start`` in damped steps, halved where a step would reach S = 0; return the end."""
        x, state = self._first_state(alpha, self.variables(start))
        damping, best, before = 0.3, np.inf, np.inf
        for evaluation in range(1, _CAUTIOUS):
            if state.residual < tolerance:
                return state
            best = min(best, state.residual)
            if evaluation % _WINDOW == 0:  # the iteration oscillates: the response to a small S is strong
                damping *= 0.5 if best > 0.5 * before else 1.0
                before = best
            move = damping * (self.image(state) - x).clip(-1, 1)
            for _ in range(40):
                try:
                    state = self.step(alpha, x + move, state.points)
                    break
                except FloatingPointError:
                    move *= 0.5
            x = x + move
        words = f"not converged after {_CAUTIOUS} steps (residual {state.residual:.1e})"
        return replace(state, status=Status.NOT_CONVERGED, words=words)

    def _first_state(self, alpha: float, x: np.ndarray) -> tuple[np.ndarray, Iterate]:
        """Reduce q and Sigma of x until the penalty leaves some S; return the variables and the map there."""
        for _ in range(60):
            try:
                return x, self.step(alpha, x)
            except FloatingPointError:
                x = x - np.array([0.5, 0.0, 0.5])
        return x, self.step(alpha, x)

    def from_nothing(self, alpha: float) -> tuple[LossAverages, Fields, MatrixEstimate]:
        """Return the averages of the loss side, the fields and the estimate at S = 0, where the response vanishes."""
        nothing = OrderParameters(0.0, 0.0, self.loss.least_response * self.noisy_signal)
        averages = self.loss(self.noisy_signal, *nothing, multi_start=False)
        mhat, qhat, Sigmahat = self.fields(alpha, nothing, averages)
        if not mhat > 0:
            raise FloatingPointError(f"the data exert no field on S = 0 towards the target: mhat = {mhat:.3g}")
        fields = Fields(mhat, qhat, abs(Sigmahat))
        return averages, fields, self.penalty.estimate(self.target, *fields)

    def on_other_nodes(self, state: Iterate) -> tuple[MatrixEstimate, float] | None:
        """Return the estimate of S in ``state`` by a second quadrature rule, and the largest change of a variable.

        Return None where the first rule is known to be accurate, as for the built-in penalties.
        """
        other = self.penalty.estimate_on_other_nodes(self.target, *state.fields)
        if other is None:
            return None
        if not (other.q > 0 and other.Sigma > 0):
            return other, np.inf
        change = self.variables(OrderParameters.of_estimate(other)) - self.image(state)
        return other, float(abs(change).max())

    def replicon(self, alpha: float, state: TrainingSolution) -> float:
        """Return the replicon: replica symmetry is stable if it is below one. Jumps of the proximal map do not count.

        Eq. (10), with mu at sqrt(qhat)/mhat, where the paper omits the hat of q; eq. (50) lacks a square.
        """
        return 2 * alpha * state.averages.response * self.penalty.squared_response(self.target, *state.fields)


Ended = TypeVar("Ended", bound=Iterate)


def _ended(state: Ended, found: FixedPoint) -> Ended:
    """Return ``state``, the end of the iteration ``found``, with the status of that iteration."""
    if found.converged:
        return state
    return replace(state, status=Status.NOT_CONVERGED, words=found.status)


def _words(numbers: NamedTuple) -> str:
    return ", ".join(f"{name} = {value:.3g}" for name, value in numbers._asdict().items())
