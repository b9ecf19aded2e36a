"""What is read off a solution of the training equations: observables with their numerical errors, and a verdict.

Boncoraglio et al., arXiv:2509.24914, Claim 1: errors from eq. (12) and its counterpart at the proximal points, the
spectrum by delta, eps and scale, eq. (13), replica stability by eq. (10).

Equation ai-errors of docs/theory/attention_index.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...core.problem import Outcome
from ...core.status import Status
from ..streams import NODE_SCRAMBLINGS
from .prediction import ROUNDING, error_of_scramblings
from .state_evolution import JUMPS, TrainingEvolution, TrainingSolution
from .training_equations import Training
from .two_equations import squared_distance

OBSERVABLES = (
    "test_error", "train_error", "train_loss", "excess_error", "estimation_error", "rank", "m", "q", "Sigma", "mhat",
    "qhat", "Sigmahat", "delta", "eps", "scale", "potential", "replicon", "jump_weight",
)  # fmt: skip
#: The observables that the tolerance is for.
PROMISED = ("test_error", "train_error", "train_loss", "estimation_error", "rank")
#: Relative error of what is found without nodes.
_ROUNDING = 1e-9
#: Relative error of the fields at S = 0 over the small response at which they are taken.
_NO_RESPONSE = 10
#: Relative error of what is known in closed form: some roundings.
_CLOSED = 1e-13


def observables(
    problem: Training, alpha: float, solution: TrainingSolution, evolution: TrainingEvolution
) -> dict[str, float]:
    """All that is read off a solution."""
    (m, q, Sigma), (mhat, qhat, Sigmahat) = solution.parameters, solution.fields
    averages, penalty = solution.averages, solution.estimate.penalty
    eps, scale = evolution.penalty.cut_and_scale(mhat, Sigmahat)
    return {
        "test_error": averages.test,
        "train_error": averages.train,
        "train_loss": alpha * averages.train + penalty,
        "excess_error": _excess_error(problem, solution, evolution),
        "estimation_error": _distance(problem, solution, evolution),
        "rank": solution.estimate.rank,
        "m": m, "q": q, "Sigma": Sigma, "mhat": mhat, "qhat": qhat, "Sigmahat": Sigmahat,
        "delta": np.sqrt(qhat) / mhat, "eps": eps, "scale": scale,
        "potential": solution.potential(alpha),
        "replicon": evolution.replicon(alpha, solution),
        "jump_weight": averages.jump_weight,
    }  # fmt: skip


def _distance(problem: Training, solution: TrainingSolution, evolution: TrainingEvolution) -> float:
    """The estimation error without the cancellation of Q_0 - 2m + q."""
    return squared_distance(problem.model.signal, solution.parameters.m, evolution.apart(solution.parameters))


def _excess_error(problem: Training, solution: TrainingSolution, evolution: TrainingEvolution) -> float:
    """The test error beyond that of the best multiple of the target, on the same nodes."""
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
    """Observables on the first of several sets of nodes, or their mean over scramblings; the spread is the error."""
    pairs = zip(solutions, evolutions, strict=True)
    rows = [observables(problem, alpha, solution, evolution) for solution, evolution in pairs]
    values, errors = _mean_and_spread(rows)
    # What is left of the iteration stands in the logarithms of the order parameters; ten is for how it is amplified.
    # Where samples jump it is another on all nodes, and part of the spread between scramblings.
    jumping = solutions[0].averages.jump_weight > 0
    spread = jumping and len(rows) == len(NODE_SCRAMBLINGS) and solutions[0].converged
    settled = _ROUNDING if spread else max(_ROUNDING, 10 * solutions[0].residual)
    errors = {name: max(error, settled * abs(values[name])) for name, error in errors.items()}
    test, excess = values["test_error"], abs(values["excess_error"])
    if excess < test:  # where it is small it is of second order in what is left of the iteration
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


def _mean_and_spread(rows: list[dict[str, float]]) -> tuple[dict[str, float], dict[str, float]]:
    table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    if len(rows) == len(NODE_SCRAMBLINGS):
        values = {name: float(column.mean()) for name, column in table.items()}
        return values, {name: error_of_scramblings(column) for name, column in table.items()}
    values = {name: float(column[0]) for name, column in table.items()}
    spread = {
        name: float(abs(column - column[0]).max()) if np.isfinite(column).all() else 0.0
        for name, column in table.items()
    }
    return values, spread


def narrow_remark(problem: Training, outcome: Outcome, left_out: float) -> Outcome:
    """What is to be said where W has fewer columns than directions to learn: the largest are kept, as a heuristic."""
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
    """The verdict on any outcome of training: is the tolerance met, is there an error beyond reason?

    The tolerance is for test_error, train_error, train_loss, estimation_error and rank: absolute where they are below
    one, relative above. Of all numbers an error must not exceed the number itself; of a small excess_error it may,
    which is a remark.
    """
    values = outcome.values
    known = {name: (abs(values[name]), values[f"{name}_err"]) for name in values if f"{name}_err" in values}
    vague = [name for name, (size, error) in known.items() if error > size and name != "excess_error"]
    if "excess_error" in known and known["excess_error"][1] > known["excess_error"][0]:
        outcome = doubted(outcome, None, f"{outcome.sentence}: {_known('excess_error', values)}")
    loose = [name for name in PROMISED if known[name][1] > tolerance * max(1.0, known[name][0])]
    if vague:
        outcome = doubted(outcome, Status.INACCURATE, f"inaccurate: {_known(vague[0], values)}")
    elif loose:
        worst = max(loose, key=lambda name: known[name][1])
        words = f"inaccurate: {_known(worst, values)}, beyond the tolerance of {tolerance:g}"
        outcome = doubted(outcome, Status.INACCURATE, words)
    if remark := problem.model.remark_on_spikes():
        outcome = doubted(outcome, None, remark)
    return outcome


def beyond(outcome: Outcome, tolerance: float) -> float:
    """The largest error of what the tolerance is for, in units of it."""
    values = outcome.values
    return max(values[f"{name}_err"] / (tolerance * max(1.0, abs(values[name]))) for name in PROMISED)


def _known(name: str, values: Mapping[str, float]) -> str:
    return f"{name} is known as {values[name]:.4g} +- {values[f'{name}_err']:.1g}"


def doubted(outcome: Outcome, status: Status | None, words: str) -> Outcome:
    """The same numbers with a doubt more: the gravest gives the status, all are said. None is a remark, no doubt."""
    graver = status is not None and _gravity(status) > _gravity(outcome.how)
    said = [part for part in (outcome.words, words) if part]
    return Outcome(outcome.values, status if graver and status is not None else outcome.how, words="; ".join(said))


def _gravity(status: Status) -> int:
    order = (Status.INACCURATE, Status.NOT_VALID, Status.NOT_CONVERGED, Status.FAILED)
    return order.index(status) if status in order else -1


def nothing_learned(problem: Training, alpha: float, evolutions: list[TrainingEvolution]) -> Outcome:
    """S = 0: the penalty outweighs all that the data say."""
    found, errors = _mean_and_spread([_at_nothing(alpha, evolution) for evolution in evolutions])
    values = with_rounding(dict.fromkeys(OBSERVABLES, 0.0) | {"estimation_error": problem.model.signal} | found)
    share = max(_NO_RESPONSE * evolutions[0].loss.least_response, _CLOSED)
    values |= {f"{name}_err": max(error, share * abs(found[name])) for name, error in errors.items()}
    return Outcome(values, Status.CONVERGED, words="converged: the penalty keeps S at zero")


def _at_nothing(alpha: float, evolution: TrainingEvolution) -> dict[str, float]:
    """What is not zero at S = 0: errors, and the field, to which single directions of the target may respond."""
    averages, (mhat, qhat, Sigmahat), _ = evolution.from_nothing(alpha)
    eps, scale = evolution.penalty.cut_and_scale(mhat, Sigmahat)
    return {
        "test_error": averages.test, "train_error": averages.test, "train_loss": alpha * averages.test,
        "excess_error": averages.test - evolution.least_error(), "potential": alpha * averages.test,
        "mhat": mhat, "qhat": qhat, "Sigmahat": Sigmahat,
        "delta": np.sqrt(qhat) / mhat, "eps": eps, "scale": scale,
    }  # fmt: skip


def with_rounding(values: Mapping[str, float]) -> dict[str, float]:
    """Numbers from closed forms, with what roots and integrals leave in them as their errors."""
    errors = {name: _ROUNDING * abs(value) if np.isfinite(value) else 0.0 for name, value in values.items()}
    return {**values} | {f"{name}_err": error for name, error in errors.items() if name != "jump_weight"}
