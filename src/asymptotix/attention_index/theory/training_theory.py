"""The theory of :class:`RiskMinimization`: which averages, which equations, and what is read off the solution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.problem import Outcome
from ...numerics import checks
from ..loss.loss_average import LossAverage, LossAverages, QuadraticLinear, SquaredSoftmax
from .counting import exact_recovery, exact_recovery_full, interpolation
from .matrix_side import NuclearNorm, Penalty, SpectralPenalty, SquaredNorm
from .prediction import prediction_error
from .ridgeless import Interpolator, least_norm, least_trace
from .state_evolution import JUMPS, OrderParameters, State, StateEvolution

if TYPE_CHECKING:
    from ..risk import RiskMinimization

_OBSERVABLES = (
    "test_error", "train_error", "train_loss", "estimation_error", "rank", "m", "q", "Sigma", "mhat", "qhat",
    "Sigmahat", "delta", "eps", "scale", "potential", "replicon", "jump_weight",
)  # fmt: skip
_COARSE, _ORDERS = 10, (28, 22)
_RANDOMISATIONS = 4
_RESIDUAL = 1e-8
#: Where the proximal map jumps the map is not continuous on finitely many nodes, and this is as far as one gets.
_JUMPING_RESIDUAL = 1e-6
_SMOOTH, _THIRD_ORDER = 1e-5, 25


class TrainingTheory:
    """Solves one problem; keeps quadrature nodes and proximal points between calls."""

    def __init__(self, problem: RiskMinimization) -> None:
        self.problem, self.model = problem, problem.model
        self._losses: dict[Any, LossAverage] = {}

    # -- parts -------------------------------------------------------------------------------------------------

    @property
    def factorized(self) -> bool:
        return self.problem.parameterization == "factorized"

    @property
    def penalty(self) -> Penalty:
        """The penalty on the spectrum, with its strength."""
        if self.problem.penalty is not None:
            return _user_penalty(self.problem.penalty, self.problem.weight_decay, self.factorized)
        if self.factorized:
            return NuclearNorm(np.sqrt(self.problem.width_ratio) * self.problem.weight_decay)
        return SquaredNorm(self.problem.weight_decay)

    def evolution(self, **nodes: int) -> StateEvolution:
        """State evolution on the nodes asked for (order=, or count= and seed=)."""
        key = tuple(sorted(nodes.items()))
        if key not in self._losses:
            self._losses[key] = self._loss(**nodes)
        return StateEvolution(self._losses[key], self.penalty, self.model.target, self.model.noisy_signal)

    def _loss(self, **nodes: int) -> LossAverage:
        model, loss = self.model, self.problem.loss
        if loss == "squared":
            if model.activation == "linear":
                return QuadraticLinear(model.tokens)
            return SquaredSoftmax(model.tokens, model.beta, model.teacher_beta, **nodes)
        from ..loss.generic_loss import GenericLoss
        from ..loss.losses import cross_entropy, teacher_output

        own = loss if callable(loss) else cross_entropy(model.beta)
        nodes.pop("order", None)
        return GenericLoss(model.tokens, own, teacher_output(model), **nodes)

    def replicas(self, tolerance: float) -> list[StateEvolution]:
        """The same equations on different nodes: their spread is the numerical error."""
        if self.model.activation == "linear" and self.problem.loss == "squared":
            return [self.evolution()]  # in closed form
        if self.smooth:
            return [self.evolution(order=order) for order in _ORDERS]
        return self.randomised(2**12 if tolerance > 5e-4 else 2**14)

    def randomised(self, count: int) -> list[StateEvolution]:
        return [self.evolution(count=count, seed=seed) for seed in range(_RANDOMISATIONS)]

    @property
    def smooth(self) -> bool:
        """Whether Gauss-Hermite nodes are at hand: two tokens and the squared loss."""
        return self.model.tokens == 2 and self.problem.loss == "squared"

    # -- solving -----------------------------------------------------------------------------------------------

    def check_start(self, start: Any) -> OrderParameters | None:
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
        if self.problem.weight_decay == 0 and alpha < self._last_interpolated:
            return None, self._interpolating(alpha)
        try:
            states, evolutions = self._states(alpha, start, tolerance)
        except FloatingPointError as error:
            return self._from_nothing(alpha, tolerance, str(error))
        outcome = self._outcome(alpha, states, evolutions)
        return (states[0].parameters if outcome.converged or states[0].converged else None), outcome

    def _states(
        self, alpha: float, start: OrderParameters | None, tolerance: float, *, settled: bool = False
    ) -> tuple[list[State], list[StateEvolution]]:
        """Solutions on several sets of nodes; ``settled`` says that the start is the end of the dynamics on few."""
        evolutions = self.replicas(tolerance)
        start = start or self._interpolating_start(alpha)
        few = self.evolution(order=_COARSE) if self._on_two_token_nodes else evolutions[0]
        if not self._on_two_token_nodes and not (settled and start):
            return _solved(evolutions, alpha, start), evolutions
        # The dynamics are followed on few nodes; there is not far to go from their end.
        if not (settled and start):
            start = few.follow(alpha, start, tolerance=1e-6).parameters
        inverse = np.linalg.inv(np.eye(3) - few.jacobian(alpha, start))
        if not self._on_two_token_nodes:
            return [evolution.polish(alpha, start, inverse) for evolution in evolutions], evolutions
        fine = evolutions[0].polish(alpha, start, inverse, tolerance=_RESIDUAL)
        jumps = fine.averages.jump_weight
        if jumps > JUMPS:
            # A quadrature rule that relies on smoothness is of no use: average over randomised nodes.
            evolutions = self.randomised(2**14)
            return _solved(evolutions, alpha, fine.parameters, tolerance=_JUMPING_RESIDUAL), evolutions
        if jumps > _SMOOTH:
            # Two orders may agree by chance where the integrand is not smooth; a third rarely does as well.
            evolutions = [*evolutions, self.evolution(order=_THIRD_ORDER)]
        others = [_predicted(evolution, alpha, fine.parameters, inverse) for evolution in evolutions[1:]]
        return [fine, *others], evolutions

    def _from_nothing(self, alpha: float, tolerance: float, reason: str) -> tuple[OrderParameters | None, Outcome]:
        """The point where a usual start fails: S is zero or small, and is approached from there."""
        if self.problem.weight_decay == 0:
            words = "close to interpolation the proximal map jumps and the theory at vanishing weight decay is unproven"
            return None, Outcome({}, f"failed: {words}; {reason}", False)
        evolution = self.evolution(order=_COARSE) if self._on_two_token_nodes else self.replicas(tolerance)[0]
        averages, _, estimate = evolution.from_nothing(alpha)
        if estimate.q <= 0:
            return None, self._zero(alpha, averages)
        try:
            near = evolution.cautiously(alpha, OrderParameters(*estimate[:3]), tolerance=1e-6)
            states, evolutions = self._states(alpha, near.parameters, tolerance, settled=True)
        except FloatingPointError:
            return None, Outcome({}, f"failed: {reason}", False)
        return states[0].parameters, self._outcome(alpha, states, evolutions)

    def _zero(self, alpha: float, averages: LossAverages) -> Outcome:
        """S = 0: the penalty outweighs all that the data say."""
        values = dict.fromkeys(_OBSERVABLES, 0.0) | {
            "test_error": averages.test, "train_error": averages.test, "train_loss": alpha * averages.test,
            "estimation_error": self.model.signal, "delta": np.nan, "eps": np.nan, "scale": np.nan,
            "potential": alpha * averages.test,
        }  # fmt: skip
        values |= {f"{name}_err": 0.0 for name in values if name != "jump_weight"}
        return Outcome(values, "converged: the penalty keeps S at zero")

    @property
    def _on_two_token_nodes(self) -> bool:
        return self.smooth and self.model.activation == "softmax"

    def _interpolating_start(self, alpha: float) -> OrderParameters | None:
        """The end point at vanishing weight decay, where the present one is small and the data can be fitted."""
        penalty, model = self.penalty, self.model
        if not (isinstance(penalty, NuclearNorm) and 0 < penalty.strength < 3e-3 and self._on_two_token_nodes):
            return None
        if model.noise == 0 or alpha > 0.9 * interpolation(model.target, model.noise, model.visible):
            return None
        found, factor = least_trace(model.target, model.noisy_signal, 2 * model.visible * alpha), model.beta_ratio
        Sigma = alpha * model.visible * found.eps / (penalty.strength * factor)
        return OrderParameters(found.m * factor, found.q * factor**2, Sigma * factor**2)

    def observables(self, alpha: float, state: State, evolution: StateEvolution) -> dict[str, float]:
        """All that is read off a solution."""
        (m, q, Sigma), (mhat, qhat, Sigmahat) = state.parameters, state.fields
        averages, penalty = state.averages, state.estimate.penalty
        eps, scale = evolution.penalty.cut_and_scale(mhat, Sigmahat)
        return {
            "test_error": averages.test,
            "train_error": averages.train,
            "train_loss": alpha * averages.train + penalty,
            "estimation_error": self.model.signal - 2 * m + q,
            "rank": state.estimate.rank,
            "m": m, "q": q, "Sigma": Sigma, "mhat": mhat, "qhat": qhat, "Sigmahat": Sigmahat,
            "delta": np.sqrt(qhat) / mhat, "eps": eps, "scale": scale,
            "potential": state.potential(alpha),
            "replicon": evolution.replicon(alpha, state),
            "jump_weight": averages.jump_weight,
        }  # fmt: skip

    def _outcome(self, alpha: float, states: list[State], evolutions: list[StateEvolution]) -> Outcome:
        rows = [self.observables(alpha, *pair) for pair in zip(states, evolutions, strict=True)]
        table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        if len(rows) == _RANDOMISATIONS:
            values = {name: float(column.mean()) for name, column in table.items()}
            errors = {name: float(column.std(ddof=1) / np.sqrt(len(column))) for name, column in table.items()}
        else:
            values = {name: float(column[0]) for name, column in table.items()}
            errors = {name: float(abs(column - column[0]).max()) for name, column in table.items()}
        values |= {f"{name}_err": error for name, error in errors.items() if name != "jump_weight"}
        return Outcome(values, *self._verdict(values, states))

    def _verdict(self, values: Mapping[str, float], states: list[State]) -> tuple[str, bool]:
        """What to think of the numbers."""
        doubts = []
        if stuck := [state for state in states if not state.converged]:
            doubts.append(stuck[0].status)
        if values["jump_weight"] > JUMPS:
            doubts.append(
                f"unproven: the proximal map jumps on {values['jump_weight']:.1%} of the data, "
                "where replica symmetry may fail"
            )
        elif values["replicon"] >= 1:
            doubts.append(f"unproven: replica symmetry is unstable, replicon = {values['replicon']:.3g}")
        doubts += self._too_narrow(values["rank"])
        return ("; ".join(doubts), False) if doubts else ("converged", True)

    def _too_narrow(self, rank: float) -> list[str]:
        if not self.factorized or rank <= self.problem.width_ratio:
            return []
        return [
            f"the theory does not apply: width_ratio = {self.problem.width_ratio:g} is below the learned rank "
            f"{rank:.3g}, and the learner is confined to fewer directions than it needs"
        ]

    # -- vanishing weight decay --------------------------------------------------------------------------------

    @property
    def _last_interpolated(self) -> float:
        """Alpha up to which the limit of vanishing weight decay interpolates; infinite without noise."""
        if self.model.noise == 0:
            return np.inf
        return self.thresholds().values["interpolation"]

    def _interpolating(self, alpha: float) -> Outcome:
        model, factor = self.model, self.model.beta_ratio
        if model.noise == 0 and alpha >= self.thresholds().values["exact_recovery"]:
            return self._exact(factor)
        samples = 2 * model.visible * alpha
        if self.factorized:
            found = least_trace(model.target, model.noisy_signal, samples)
        else:
            found = least_norm(model.target, model.noise, samples)
        values = self._interpolator_values(found, factor)
        doubts = self._too_narrow(values["rank"])
        return Outcome(
            values, doubts[0] if doubts else "converged: interpolation at vanishing weight decay", not doubts
        )

    def _interpolator_values(self, found: Interpolator, factor: float) -> dict[str, float]:
        model = self.model
        m, q = factor * found.m, factor**2 * found.q
        test, test_err = prediction_error(model, m, q, beta=model.beta)
        above = model.target.convolution(found.delta).mass_above(found.eps) if self.factorized else 1.0
        values = {
            "test_error": test, "train_error": 0.0, "train_loss": 0.0, "estimation_error": model.signal - 2 * m + q,
            "rank": float(above), "m": m, "q": q, "Sigma": np.inf, "mhat": 0.0, "qhat": 0.0, "Sigmahat": 0.0,
            "delta": found.delta, "eps": found.eps, "scale": factor * found.scale, "potential": 0.0,
            "replicon": np.nan, "jump_weight": 0.0,
        }  # fmt: skip
        return values | {f"{name}_err": 0.0 for name in values if name != "jump_weight"} | {"test_error_err": test_err}

    def _exact(self, factor: float) -> Outcome:
        Q0 = self.model.signal
        values = dict.fromkeys(("test_error", "train_error", "train_loss", "potential", "jump_weight"), 0.0) | {
            "estimation_error": (1 - factor) ** 2 * Q0, "rank": 1 - self.model.target.zero_mass, "m": factor * Q0,
            "q": factor**2 * Q0, "Sigma": np.nan, "mhat": 0.0, "qhat": 0.0, "Sigmahat": 0.0, "delta": 0.0, "eps": 0.0,
            "scale": factor, "replicon": np.nan,
        }  # fmt: skip
        values |= {f"{name}_err": 0.0 for name in values if name != "jump_weight"}
        doubts = self._too_narrow(values["rank"])
        return Outcome(
            values, doubts[0] if doubts else "exact recovery: the target is the only interpolator", not doubts
        )

    # -- the rest ----------------------------------------------------------------------------------------------

    def thresholds(self) -> Outcome:
        """Interpolation and exact recovery of this parameterisation; without noise only the second is a recovery."""
        model = self.model
        if self.problem.loss != "squared" or self.problem.penalty is not None:
            raise NotImplementedError("thresholds are covered for the squared loss without a penalty of your own")
        if self.factorized:
            fits = interpolation(model.target, model.noise, model.visible)
            exact = exact_recovery(model.target, model.visible)
        else:
            fits = exact = exact_recovery_full(model.visible)
        exact = exact if model.noise == 0 else np.inf
        values = {"interpolation": fits, "exact_recovery": exact}
        return Outcome(values | {f"{name}_err": 0.0 for name in values})

    def trace(self, *, iterations: int, damping: float, alpha: float) -> Mapping[str, np.ndarray]:
        """Dynamics of matrix message passing from S = 0: m, q, V = Sigma and Lambda = Sigmahat per iteration."""
        from ..algorithms.matrix_amp import FIRST_RESPONSE

        evolution = self.replicas(1e-3)[0]
        m, q, Sigma = 0.0, 0.0, FIRST_RESPONSE
        rows = []
        for _ in range(iterations):
            averages = evolution.loss(self.model.noisy_signal, m, q, Sigma, multi_start=True)
            fields = evolution.fields(alpha, OrderParameters(m, q, Sigma), averages)
            estimate = evolution.penalty.estimate(self.model.target, *fields)
            m, q, Sigma = estimate.m, estimate.q, estimate.Sigma
            rows.append((m, q, Sigma, fields.Sigmahat))
        return dict(zip(("m", "q", "V", "Lambda"), np.array(rows).T, strict=True))


def _predicted(evolution: StateEvolution, alpha: float, near: OrderParameters, inverse: np.ndarray) -> State:
    """The fixed point on other nodes by one quasi-Newton step: the difference is all that is asked for."""
    state = evolution.at(alpha, evolution.variables(near))
    x = evolution.variables(near) + inverse @ (evolution.image(state) - evolution.variables(near))
    return evolution.at(alpha, x)


def _solved(
    evolutions: list[StateEvolution], alpha: float, start: OrderParameters | None, tolerance: float = _RESIDUAL
) -> list[State]:
    states: list[State] = []
    for evolution in evolutions:
        states.append(evolution.solve(alpha, start, tolerance=tolerance))
        start = states[0].parameters
    return states


def _user_penalty(function: Any, strength: float, positive: bool) -> SpectralPenalty:
    import jax

    from ...numerics.precision import double_precision

    elementwise = jax.jit(jax.vmap(lambda t: strength * function(t)))
    slope = jax.jit(jax.vmap(jax.grad(lambda t: strength * function(t))))

    def in_double(f: Any) -> Any:
        @double_precision()
        def evaluate(t: np.ndarray) -> np.ndarray:
            return np.asarray(f(np.asarray(t, float)))

        return evaluate

    return SpectralPenalty(in_double(elementwise), in_double(slope), positive=positive)
