"""Observables of a solution of the training equations, with their numerical errors and the status of the result.

Boncoraglio et al., arXiv:2509.24914, Claim 1. The test error is eq. (12), and the training error is the same average at
the proximal points. Eq. (13) gives the spectrum by delta, eps and scale, and eq. (10) replica stability.

Equation ai-errors of docs/theory/attention_index.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...core.problem import Outcome
from ...core.status import Status
from ..loss.own_functions import unit_of_loss
from ..streams import NODE_SCRAMBLINGS
from .prediction import ROUNDING, error_of_scramblings
from .state_evolution import JUMPS, TrainingEvolution
from .training_equations import Training
from .training_states import TrainingSolution
from .two_equations import squared_distance

OBSERVABLES = (
    "test_error", "train_error", "train_loss", "excess_error", "estimation_error", "rank", "m", "q", "Sigma", "mhat",
    "qhat", "Sigmahat", "delta", "eps", "scale", "potential", "replicon", "jump_weight",
)  # fmt: skip
#: Powers of the loss's unit with which observables scale if weight_decay scales too; other observables are invariant.
POWERS = {
    "test_error": 1, "train_error": 1, "train_loss": 1, "excess_error": 1, "potential": 1,
    "Sigma": -1, "mhat": 1, "qhat": 2, "Sigmahat": 1,
}  # fmt: skip
#: Observables whose errors are compared with the tolerance.
PROMISED = ("test_error", "train_error", "train_loss", "estimation_error", "rank")
#: Observables averaged over the same nodes, so that their relative errors are similar. Four scramblings may agree by
#: chance. The relative error of any observable is therefore at least the share ``_LEAST_SPREAD`` of the median of
#: these; ``_COUNTED``, shares of eigenvalues or of nodes, are exempt.
_ON_NODES = ("test_error", "train_error", "train_loss", "estimation_error", "m", "q", "Sigma")
_LEAST_SPREAD, _COUNTED = 0.5, {"rank", "jump_weight"}
#: Relative error of numbers that are computed without quadrature nodes for the loss.
_ROUNDING = 1e-9
#: Estimated ratio of the relative errors of the observables to the residual of the fixed point.
_AMPLIFIED = 10
#: Relative error of observables at S = 0, in units of the small response Sigma at which they are computed.
_NO_RESPONSE = 10
#: Relative error of closed forms, a multiple of the rounding error.
_CLOSED = 1e-13


def observables(
    problem: Training, alpha: float, solution: TrainingSolution, evolution: TrainingEvolution
) -> dict[str, float]:
    """Return all observables of a solution on the nodes of ``evolution``, by name, in the user's unit of the loss."""
    return {name: observable_of(problem, alpha, solution, evolution, name) for name in OBSERVABLES}


def observable_of(
    problem: Training, alpha: float, solution: TrainingSolution, evolution: TrainingEvolution, name: str
) -> float:
    """Return the named observable in the user's unit; excess error and replicon cost as much as an iteration."""
    return _of_solution(problem, alpha, solution, evolution, name) * evolution.unit ** POWERS.get(name, 0)


def _of_solution(
    problem: Training, alpha: float, solution: TrainingSolution, evolution: TrainingEvolution, name: str
) -> float:
    """Return the named observable in the equations' unit of the loss, ``evolution.unit`` times the user's."""
    if name == "excess_error":
        return _excess_error(problem, solution, evolution)
    if name == "replicon":
        return evolution.replicon(alpha, solution)
    if name in ("eps", "scale"):
        mhat, _, Sigmahat = solution.fields
        return evolution.penalty.cut_and_scale(mhat, Sigmahat)[name == "scale"]
    return _at_once(problem, alpha, solution, evolution)[name]


def _at_once(
    problem: Training, alpha: float, solution: TrainingSolution, evolution: TrainingEvolution
) -> dict[str, float]:
    """Return the observables, by name, that the averages of a solution give without further computation."""
    (m, q, Sigma), (mhat, qhat, Sigmahat) = solution.parameters, solution.fields
    averages, penalty = solution.averages, solution.estimate.penalty
    return {
        "test_error": averages.test,
        "train_error": averages.train,
        "train_loss": alpha * averages.train + penalty,
        "estimation_error": _distance(problem, solution, evolution),
        "rank": solution.estimate.rank,
        "m": m, "q": q, "Sigma": Sigma, "mhat": mhat, "qhat": qhat, "Sigmahat": Sigmahat,
        "delta": np.sqrt(qhat) / mhat,
        "potential": solution.potential(alpha),
        "jump_weight": averages.jump_weight,
    }  # fmt: skip


def _distance(problem: Training, solution: TrainingSolution, evolution: TrainingEvolution) -> float:
    """Return the estimation error |S - S_0|_F^2/d without the cancellation of Q_0 - 2m + q."""
    return squared_distance(problem.model.signal, solution.parameters.m, evolution.apart(solution.parameters))


def _excess_error(problem: Training, solution: TrainingSolution, evolution: TrainingEvolution) -> float:
    """Return the test error minus the error of the best multiple of the target, on the nodes of ``evolution``."""
    if problem.model.activation == "linear" and problem.loss == "squared":
        return 2 * problem.model.visible_directions * _distance(problem, solution, evolution)
    return solution.averages.test - evolution.least_error()


def training_outcome(
    problem: Training,
    alpha: float,
    solutions: list[TrainingSolution],
    evolutions: list[TrainingEvolution],
    tolerance: float,
) -> Outcome:
    """Return the observables of one branch with errors and status, from its solutions on several sets of nodes.

    ``solutions`` and ``evolutions`` have one entry per set of nodes. The values are those on the first set, or means if
    the sets are all scramblings of Sobol nodes.
    """
    pairs = zip(solutions, evolutions, strict=True)
    rows = [observables(problem, alpha, solution, evolution) for solution, evolution in pairs]
    values, errors = _mean_and_spread(rows)
    # The residual is the change of the logarithms of the order parameters in one iteration. Where samples jump, each
    # scrambling has a different residual, so that the spread between scramblings contains it.
    jumping = solutions[0].averages.jump_weight > 0
    spread = jumping and len(rows) == len(NODE_SCRAMBLINGS) and solutions[0].converged
    settled = _ROUNDING if spread else max(_ROUNDING, _AMPLIFIED * solutions[0].residual)
    by_rule, settled = _error_of_rule(solutions[0], evolutions[0], settled)
    errors = {name: max(error, settled * abs(values[name])) for name, error in errors.items()}
    for name, error in by_rule.items():
        errors[name] += error
    test, excess = values["test_error"], abs(values["excess_error"])
    if excess < test:  # a small excess is of second order in the remaining error of the iteration
        errors["excess_error"] += 2 * settled * np.sqrt(excess * test) + ROUNDING * test
    outcome = Outcome(values | {f"{name}_err": error for name, error in errors.items() if name != "jump_weight"})
    outcome = narrow_remark(problem, outcome, solutions[0].estimate.left_out)
    if stuck := [solution for solution in solutions if not solution.converged]:
        outcome = doubted(outcome, stuck[0].status, stuck[0].words)
    if values["jump_weight"] > JUMPS:
        share = f"{values['jump_weight']:.1%} of the data, where replica symmetry may fail"
        outcome = doubted(outcome, Status.NOT_VALID, f"unproven: the proximal map jumps on {share}")
    elif 1 <= values["replicon"] < np.inf:
        words = f"unproven: replica symmetry is unstable, replicon = {values['replicon']:.3g}"
        outcome = doubted(outcome, Status.NOT_VALID, words)
    return judged(problem, outcome, tolerance)


def _error_of_rule(
    solution: TrainingSolution, evolution: TrainingEvolution, settled: float
) -> tuple[dict[str, float], float]:
    """Return errors by observable of the quadrature over the spectrum, and ``settled`` raised to cover them.

    ``settled`` is the relative error of all observables from the residual of the fixed point. A second quadrature rule
    changes the map, which moves the fixed point as a residual of the same size does.
    """
    found = evolution.on_other_nodes(solution)
    if found is None:
        return {}, settled
    other, change = found
    own = solution.estimate
    errors = {
        "rank": abs(other.rank - own.rank),
        "train_loss": abs(other.penalty - own.penalty),
        "potential": abs(other.envelope - own.envelope),
    }
    errors = {name: error * evolution.unit ** POWERS.get(name, 0) for name, error in errors.items()}
    return errors, max(settled, _AMPLIFIED * change)


def _mean_and_spread(rows: list[dict[str, float]]) -> tuple[dict[str, float], dict[str, float]]:
    found = {name: mean_and_error([row[name] for row in rows]) for name in rows[0]}
    values, errors = ({name: pair[k] for name, pair in found.items()} for k in (0, 1))
    if len(rows) == len(NODE_SCRAMBLINGS):
        shares = [errors[name] / abs(values[name]) for name in _ON_NODES if values.get(name)]
        least = _LEAST_SPREAD * float(np.median(shares)) if shares else 0.0
        for name in errors.keys() - _COUNTED:
            errors[name] = max(errors[name], least * abs(values[name]))
    return values, errors


def mean_and_error(column: Sequence[float]) -> tuple[float, float]:
    """Return an observable and its error, from its values on several sets of quadrature nodes.

    Scramblings of Sobol nodes give their mean; other rules give the first value and its largest distance from another.
    """
    numbers = np.array(column)
    if len(numbers) == len(NODE_SCRAMBLINGS):
        return float(numbers.mean()), error_of_scramblings(numbers)
    spread = float(abs(numbers - numbers[0]).max()) if np.isfinite(numbers).all() else 0.0
    return float(numbers[0]), spread


def narrow_remark(problem: Training, outcome: Outcome, left_out: float) -> Outcome:
    """Return the outcome, with a remark if W has no columns for a share ``left_out`` of the eigenvalues to learn."""
    if not left_out > 0:
        return outcome
    words = (
        f"converged; narrow: heuristic: width_ratio = {problem.width_ratio:g} leaves out a share {left_out:.3g} of the "
        "eigenvalues that would be learned, and the largest are kept"
    )
    if np.isinf(outcome.values["replicon"]):
        words += "; the cut lies inside a bulk, where the replicon diverges"
    return doubted(outcome, None, words)


def judged(problem: Training, outcome: Outcome, tolerance: float) -> Outcome:
    """Return the outcome with its final status: whether the tolerance is met, and whether an error exceeds its number.

    The tolerance applies to test_error, train_error, train_loss, estimation_error and rank, relative to the number or
    to its :func:`natural_size`, whichever is larger. An error that exceeds its own number makes the outcome INACCURATE,
    except for excess_error, where it adds a remark.
    """
    values = outcome.values
    known = {name: (abs(values[name]), values[f"{name}_err"]) for name in values if f"{name}_err" in values}
    vague = [name for name, (size, error) in known.items() if error > size and name != "excess_error"]
    if "excess_error" in known and known["excess_error"][1] > known["excess_error"][0]:
        outcome = doubted(outcome, None, f"{outcome.sentence}: {_known('excess_error', values)}")
    loose = [name for name in PROMISED if known[name][1] > tolerance * max(natural_size(problem, name), known[name][0])]
    if vague:
        outcome = doubted(outcome, Status.INACCURATE, f"inaccurate: {_known(vague[0], values)}")
    elif loose:
        worst = max(loose, key=lambda name: known[name][1])
        words = f"inaccurate: {_known(worst, values)}, beyond the tolerance of {tolerance:g}"
        outcome = doubted(outcome, Status.INACCURATE, words)
    if remark := problem.model.remark_on_spikes():
        outcome = doubted(outcome, None, remark)
    return outcome


def beyond(problem: Training, outcome: Outcome, tolerance: float) -> float:
    """Return the largest ratio of an error to its tolerance, over the observables in ``PROMISED``."""
    values = outcome.values
    sizes = {name: max(natural_size(problem, name), abs(values[name])) for name in PROMISED}
    return max(values[f"{name}_err"] / (tolerance * sizes[name]) for name in PROMISED)


def natural_size(problem: Training, name: str) -> float:
    """Return the approximate size of the named observable at S = 0: the loss's unit, Q_0, or one for the rank."""
    model = problem.model
    if name == "rank":
        return 1.0
    if name == "estimation_error":
        return model.signal or model.noisy_signal
    if callable(problem.loss):
        return unit_of_loss(problem.function("loss"), model)
    return model.noisy_signal if model.activation == "linear" else 1.0


def _known(name: str, values: Mapping[str, float]) -> str:
    return f"{name} is known as {values[name]:.4g} +- {values[f'{name}_err']:.1g}"


def doubted(outcome: Outcome, status: Status | None, words: str) -> Outcome:
    """Return the outcome with ``words`` appended to its words, and with ``status`` if that is graver than its own.

    A ``status`` of None leaves the status as it is.
    """
    graver = status is not None and _gravity(status) > _gravity(outcome.how)
    said = [part for part in (outcome.words, words) if part]
    return Outcome(outcome.values, status if graver and status is not None else outcome.how, words="; ".join(said))


def _gravity(status: Status) -> int:
    order = (Status.INACCURATE, Status.NOT_VALID, Status.NOT_CONVERGED, Status.FAILED)
    return order.index(status) if status in order else -1


def nothing_learned(problem: Training, alpha: float, evolutions: list[TrainingEvolution]) -> Outcome:
    """Return the outcome S = 0, where the penalty outweighs the data, from all sets of nodes in ``evolutions``."""
    found, errors = _mean_and_spread([_at_nothing(alpha, evolution) for evolution in evolutions])
    values = with_rounding(nothing_learned_values(problem, alpha, evolutions[0]) | found)
    share = max(_NO_RESPONSE * evolutions[0].loss.least_response, _CLOSED)
    values |= {f"{name}_err": max(error, share * abs(found[name])) for name, error in errors.items()}
    return Outcome(values, Status.CONVERGED, words="converged: the penalty keeps S at zero")


def nothing_learned_values(problem: Training, alpha: float, evolution: TrainingEvolution) -> dict[str, float]:
    """Return all observables at S = 0, by name, on one set of nodes."""
    nothing = dict.fromkeys(OBSERVABLES, 0.0) | {"estimation_error": problem.model.signal}
    return nothing | _at_nothing(alpha, evolution)


def _at_nothing(alpha: float, evolution: TrainingEvolution) -> dict[str, float]:
    """Return the non-zero observables at S = 0, by name: errors, and the field, to which spikes may respond."""
    averages, (mhat, qhat, Sigmahat), _ = evolution.from_nothing(alpha)
    eps, scale = evolution.penalty.cut_and_scale(mhat, Sigmahat)
    found = {
        "test_error": averages.test, "train_error": averages.test, "train_loss": alpha * averages.test,
        "excess_error": averages.test - evolution.least_error(), "potential": alpha * averages.test,
        "mhat": mhat, "qhat": qhat, "Sigmahat": Sigmahat,
        "delta": np.sqrt(qhat) / mhat, "eps": eps, "scale": scale,
    }  # fmt: skip
    return {name: value * evolution.unit ** POWERS.get(name, 0) for name, value in found.items()}


def with_rounding(values: Mapping[str, float]) -> dict[str, float]:
    """Return ``values`` and, as ``<name>_err``, 1e-9 of each: the error of root finding and integration."""
    errors = {name: _ROUNDING * abs(value) if np.isfinite(value) else 0.0 for name, value in values.items()}
    return {**values} | {f"{name}_err": error for name, error in errors.items() if name != "jump_weight"}
