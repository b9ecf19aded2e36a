"""State evolution of regularised training: the order parameters at which the loss and the matrix side agree.

With f = (p - z)/Sigma the residual of the proximal map (the loss side) and t the spectral estimate (the matrix side),

    qhat = 2 alpha E|f|^2,   Sigmahat = -2 alpha E tr df/dz,   mhat = 2 alpha E tr df/dz_0,
    m, q, Sigma = matrix side (mhat, qhat, Sigmahat).

It is iterated in (log q, logit of m/sqrt(q Q_0), log Sigma) by Anderson's method. On fixed nodes the map is smooth, and
the variational potential

    Phi = (qhat Sigma + 2 mhat m - Sigmahat q)/4 + alpha E min_h{...} + envelope

is stationary at the fixed point, where it equals the training loss L/d^2.

Boncoraglio et al., arXiv:2509.24914: Phi is eq. (7), of which the fixed point is a saddle, not the minimum of Claim 1;
the equations are (43), (55) and (66), where divisions by Sigma are printed as such by Sigmahat in eq. (43) and in the
last line of eq. (55), and Q_0 stands for Q_0' = Q_0 + noise/2 in all denominators.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...numerics.iteration import fixed_point
from ...numerics.linear_algebra import from_logit, to_logit
from ..loss.loss_average import LossAverage, LossAverages
from ..spectra.target import Target
from .spectral_estimate import MatrixEstimate, Penalty

#: Share of the data on which the proximal map may jump before the numbers count as unproven.
JUMPS = 1e-3
#: Range of delta = sqrt(qhat)/mhat, the noise in the field relative to its signal, that is ever of use.
_WIDTHS = 1e-6, 1e5
_POLISH, _CHECKS, _CAUTIOUS, _WINDOW = 12, 4, 500, 20
_HARMLESS = 1e-4


class OrderParameters(NamedTuple):
    """m = Tr(S S_0)/d, q = Tr(S^2)/d and the response Sigma."""

    m: float
    q: float
    Sigma: float


class Fields(NamedTuple):
    """The conjugates: the field that the data exert on S."""

    mhat: float
    qhat: float
    Sigmahat: float


@dataclass(frozen=True)
class TrainingSolution:
    """Where state evolution ended.

    Attributes
    ----------
    parameters, fields : OrderParameters, Fields
    averages : LossAverages
        Loss side at ``parameters``.
    estimate : MatrixEstimate
        Matrix side at ``fields``.
    residual : float
        Largest change of a variable (logarithms, a logit) by one more iteration.
    evaluations : int
    status : str
    converged : bool
    """

    parameters: OrderParameters
    fields: Fields
    averages: LossAverages
    estimate: MatrixEstimate
    residual: float = 0.0
    evaluations: int = 0
    status: str = "converged"
    converged: bool = True

    def potential(self, alpha: float) -> float:
        """Phi, see the module."""
        (m, q, Sigma), (mhat, qhat, Sigmahat) = self.parameters, self.fields
        legendre = 0.25 * (qhat * Sigma + 2 * mhat * m - Sigmahat * q)
        return legendre + alpha * self.averages.moreau + self.estimate.envelope


class TrainingEvolution:
    """State evolution of one loss with one penalty on one target.

    Parameters
    ----------
    loss : LossAverage
    penalty : Penalty
    target : Target
    noisy_signal : float
        Q_0', which the loss side sees; the matrix side has Q_0 of the target.
    """

    def __init__(self, loss: LossAverage, penalty: Penalty, target: Target, noisy_signal: float) -> None:
        self.loss, self.penalty, self.target, self.noisy_signal = loss, penalty, target, noisy_signal

    def fields(self, alpha: float, parameters: OrderParameters, averages: LossAverages) -> Fields:
        """Conjugates from the averages of the loss side."""
        mhat = 2 * alpha * (averages.f_target - parameters.m * averages.f_noise) / self.noisy_signal
        return Fields(mhat, 2 * alpha * averages.f_square, -2 * alpha * averages.f_noise)

    def at(self, alpha: float, x: np.ndarray, *, multi_start: bool = False) -> TrainingSolution:
        """Both sides at the variables x; ``residual`` says how far they are from agreeing."""
        parameters = self.parameters(x)
        averages = self.loss(self.noisy_signal, *parameters, multi_start=multi_start)
        fields = self.fields(alpha, parameters, averages)
        if not (fields.mhat > 0 and fields.Sigmahat > 0):
            raise FloatingPointError(f"the data exert no field on S at {_words(parameters)}: {_words(fields)}")
        if not _WIDTHS[0] < np.sqrt(fields.qhat) / fields.mhat < _WIDTHS[1]:
            raise FloatingPointError(f"the iteration runs away: {_words(parameters)}, {_words(fields)}")
        estimate = self.penalty.estimate(self.target, *fields)
        if not (estimate.q > 0 and estimate.Sigma > 0):
            raise FloatingPointError(f"the penalty leaves nothing of S at {_words(parameters)}: {_words(fields)}")
        residual = float(abs(self.variables(OrderParameters(*estimate[:3])) - x).max())
        return TrainingSolution(parameters, fields, averages, estimate, residual)

    def parameters(self, x: np.ndarray) -> OrderParameters:
        q, cosine, Sigma = np.exp(x[0]), from_logit(x[1])[0], np.exp(x[2])
        return OrderParameters(float(np.sqrt(q * self.target.mean_square) * cosine), float(q), float(Sigma))

    def variables(self, parameters: OrderParameters) -> np.ndarray:
        m, q, Sigma = parameters
        cosine = np.clip(m / np.sqrt(q * self.target.mean_square), 1e-9, 1 - 1e-13)
        return np.array([np.log(q), to_logit(cosine, 1 - cosine), np.log(Sigma)])

    @property
    def default_start(self) -> OrderParameters:
        """A learner that knows about two thirds of the target."""
        Q0 = self.target.mean_square
        return OrderParameters(0.7 * Q0, 0.8 * Q0, 1.0)

    def solve(self, alpha: float, start: OrderParameters | None = None, *, tolerance: float = 1e-8) -> TrainingSolution:
        """Fixed point reached from ``start``, checked from several starts of the proximal map."""
        found = self.follow(alpha, start, tolerance=tolerance)
        return self._checked(alpha, found, None, tolerance)

    def polish(
        self, alpha: float, start: OrderParameters, inverse: np.ndarray, *, tolerance: float = 1e-8
    ) -> TrainingSolution:
        """As :meth:`solve` from close to the end, with ``inverse`` = (1 - G')^{-1} of the map on other nodes."""
        found = self._refined(alpha, self.variables(start), inverse, tolerance)
        return self._checked(alpha, found, inverse, tolerance)

    def follow(
        self, alpha: float, start: OrderParameters | None = None, *, tolerance: float = 1e-8
    ) -> TrainingSolution:
        """The dynamics from ``start``, with one start of the proximal map: where it was before."""
        return self._iterate(alpha, self.variables(start or self.default_start), tolerance, multi_start=False)

    def _refined(self, alpha: float, x: np.ndarray, inverse: np.ndarray, tolerance: float) -> TrainingSolution:
        """Quasi-Newton steps as long as they halve the residual, then the dynamics."""
        best, first = np.inf, x
        for evaluation in range(1, _POLISH + 1):
            state = self.at(alpha, x)
            if state.residual < tolerance:
                return replace(state, evaluations=evaluation)
            if state.residual > 0.5 * best:
                break
            best = state.residual
            x = x + (inverse @ (self.image(state) - x)).clip(-1, 1)
        return self._iterate(alpha, first, tolerance, multi_start=False)

    def _checked(
        self, alpha: float, found: TrainingSolution, inverse: np.ndarray | None, tolerance: float
    ) -> TrainingSolution:
        """Look from several starts of the proximal map; where that finds lower minima, go on from those."""
        evaluations = found.evaluations
        for _ in range(_CHECKS):
            x = self.variables(found.parameters)
            checked = self.at(alpha, x, multi_start=True)
            evaluations += 1
            if checked.residual < 10 * tolerance or not found.converged:
                return replace(checked, evaluations=evaluations, status=found.status, converged=found.converged)
            if inverse is not None:
                found = self._refined(alpha, x, inverse, tolerance)
                if checked.residual < _HARMLESS and found.converged:
                    # The few minima found have hardly moved the end: others will not by moving with it.
                    averages = found.averages._replace(jump_weight=checked.averages.jump_weight)
                    return replace(found, averages=averages, evaluations=evaluations + found.evaluations)
            else:
                found = self._iterate(alpha, x, tolerance, multi_start=False)
            evaluations += found.evaluations
        found = self._iterate(alpha, self.variables(found.parameters), tolerance, multi_start=True)
        return replace(found, evaluations=evaluations + found.evaluations)

    def cautiously(self, alpha: float, start: OrderParameters, *, tolerance: float) -> TrainingSolution:
        """The dynamics in short steps, shorter still where one would land on S = 0; one start of the proximal map."""
        x, state = self._first_state(alpha, self.variables(start))
        damping, best, before = 0.3, np.inf, np.inf
        for evaluation in range(1, _CAUTIOUS):
            if state.residual < tolerance:
                return replace(state, evaluations=evaluation)
            best = min(best, state.residual)
            if evaluation % _WINDOW == 0:  # it oscillates: the response to a small S is strong
                damping *= 0.5 if best > 0.5 * before else 1.0
                before = best
            move = damping * (self.image(state) - x).clip(-1, 1)
            for _ in range(40):
                try:
                    state = self.at(alpha, x + move)
                    break
                except FloatingPointError:
                    move *= 0.5
            x = x + move
        words = f"not converged after {_CAUTIOUS} steps (residual {state.residual:.1e})"
        return replace(state, evaluations=_CAUTIOUS, status=words, converged=False)

    def _first_state(self, alpha: float, x: np.ndarray) -> tuple[np.ndarray, TrainingSolution]:
        """From x towards S = 0 until the data exert a field that the penalty does not cancel."""
        for _ in range(60):
            try:
                return x, self.at(alpha, x)
            except FloatingPointError:
                x = x - np.array([0.5, 0.0, 0.5])
        return x, self.at(alpha, x)

    def from_nothing(self, alpha: float) -> tuple[LossAverages, Fields, MatrixEstimate]:
        """Loss side, fields and estimate at S = 0, where the response vanishes."""
        nothing = OrderParameters(0.0, 0.0, 1e-9)
        averages = self.loss(self.noisy_signal, *nothing, multi_start=False)
        fields = self.fields(alpha, nothing, averages)
        return averages, fields, self.penalty.estimate(self.target, fields.mhat, fields.qhat, abs(fields.Sigmahat))

    def image(self, state: TrainingSolution) -> np.ndarray:
        """Variables after one iteration."""
        return self.variables(OrderParameters(*state.estimate[:3]))

    def jacobian(self, alpha: float, parameters: OrderParameters, step: float = 1e-3) -> np.ndarray:
        """G' by differences of the map, as good as quasi-Newton steps need it."""
        x = self.variables(parameters)
        here = self.image(self.at(alpha, x))
        return np.stack([(self.image(self.at(alpha, x + step * unit)) - here) / step for unit in np.eye(3)], axis=1)

    def _iterate(self, alpha: float, x: np.ndarray, tolerance: float, *, multi_start: bool) -> TrainingSolution:
        def step(point: np.ndarray) -> np.ndarray:
            return self.image(self.at(alpha, point, multi_start=multi_start))

        found = fixed_point(
            step, x, tolerance=tolerance, max_steps=40 if multi_start else 120, anderson=4, max_move=1.0
        )
        end = self.at(alpha, found.x, multi_start=multi_start)
        return replace(end, evaluations=found.steps, status=found.status, converged=found.converged)

    def replicon(self, alpha: float, state: TrainingSolution) -> float:
        """Stability of replica symmetry: below one it is stable. Jumps of the proximal map are not counted.

        Eq. (10), with mu at sqrt(qhat)/mhat, where the paper omits the hat of q; eq. (50) lacks a square.
        """
        return 2 * alpha * state.averages.response * self.penalty.squared_response(self.target, *state.fields)


def _words(numbers: NamedTuple) -> str:
    return ", ".join(f"{name} = {value:.3g}" for name, value in numbers._asdict().items())
