"""What is read off a solution of the training equations: observables with their numerical errors, and a verdict.

Boncoraglio et al., arXiv:2509.24914, Claim 1: errors from eq. (12) and its counterpart at the proximal points, the
spectrum by delta, eps and scale, eq. (13), replica stability by eq. (10).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...core.problem import Outcome
from ..loss.loss_average import LossAverages
from ..streams import NODE_SCRAMBLINGS
from .state_evolution import JUMPS, TrainingEvolution, TrainingSolution
from .training_equations import Training, is_factorized

_OBSERVABLES = (
    "test_error", "train_error", "train_loss", "estimation_error", "rank", "m", "q", "Sigma", "mhat", "qhat",
    "Sigmahat", "delta", "eps", "scale", "potential", "replicon", "jump_weight",
)  # fmt: skip


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
        "estimation_error": problem.model.signal - 2 * m + q,
        "rank": solution.estimate.rank,
        "m": m, "q": q, "Sigma": Sigma, "mhat": mhat, "qhat": qhat, "Sigmahat": Sigmahat,
        "delta": np.sqrt(qhat) / mhat, "eps": eps, "scale": scale,
        "potential": solution.potential(alpha),
        "replicon": evolution.replicon(alpha, solution),
        "jump_weight": averages.jump_weight,
    }  # fmt: skip


def training_outcome(
    problem: Training, alpha: float, solutions: list[TrainingSolution], evolutions: list[TrainingEvolution]
) -> Outcome:
    """Observables on the first of several sets of nodes, or their mean over scramblings; the spread is the error."""
    pairs = zip(solutions, evolutions, strict=True)
    rows = [observables(problem, alpha, solution, evolution) for solution, evolution in pairs]
    table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    if len(rows) == len(NODE_SCRAMBLINGS):
        values = {name: float(column.mean()) for name, column in table.items()}
        errors = {name: float(column.std(ddof=1) / np.sqrt(len(column))) for name, column in table.items()}
    else:
        values = {name: float(column[0]) for name, column in table.items()}
        errors = {name: float(abs(column - column[0]).max()) for name, column in table.items()}
    values |= {f"{name}_err": error for name, error in errors.items() if name != "jump_weight"}
    return Outcome(values, *_verdict(problem, values, solutions))


def _verdict(problem: Training, values: Mapping[str, float], solutions: list[TrainingSolution]) -> tuple[str, bool]:
    """What to think of the numbers."""
    doubts = []
    if stuck := [solution for solution in solutions if not solution.converged]:
        doubts.append(stuck[0].status)
    if values["jump_weight"] > JUMPS:
        doubts.append(
            f"unproven: the proximal map jumps on {values['jump_weight']:.1%} of the data, "
            "where replica symmetry may fail"
        )
    elif values["replicon"] >= 1:
        doubts.append(f"unproven: replica symmetry is unstable, replicon = {values['replicon']:.3g}")
    doubts += too_narrow(problem, values["rank"])
    return ("; ".join(doubts), False) if doubts else ("converged", True)


def too_narrow(problem: Training, rank: float) -> list[str]:
    """A doubt where W has fewer columns than the learned matrix needs."""
    if not is_factorized(problem) or rank <= problem.width_ratio:
        return []
    return [
        f"the theory does not apply: width_ratio = {problem.width_ratio:g} is below the learned rank "
        f"{rank:.3g}, and the learner is confined to fewer directions than it needs"
    ]


def nothing_learned(problem: Training, alpha: float, averages: LossAverages) -> Outcome:
    """S = 0: the penalty outweighs all that the data say."""
    values = dict.fromkeys(_OBSERVABLES, 0.0) | {
        "test_error": averages.test, "train_error": averages.test, "train_loss": alpha * averages.test,
        "estimation_error": problem.model.signal, "delta": np.nan, "eps": np.nan, "scale": np.nan,
        "potential": alpha * averages.test,
    }  # fmt: skip
    return Outcome(without_error(values), "converged: the penalty keeps S at zero")


def without_error(values: Mapping[str, float]) -> dict[str, float]:
    """Numbers from closed forms, with errors of zero."""
    return {**values} | {f"{name}_err": 0.0 for name in values if name != "jump_weight"}
