"""Training at vanishing weight decay: its thresholds, its interpolating solutions, and starts for small weight decay.

Boncoraglio et al., arXiv:2509.24914, Section 4 and Appendix C; the equations are in :mod:`.two_equations` and
:mod:`.interpolation_and_recovery`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.problem import Outcome
from ...core.status import Status
from .interpolation_and_recovery import exact_recovery, exact_recovery_full, interpolation
from .prediction import excess_error, prediction_error
from .training_equations import Training, decay_of_matrix, is_factorized, relative_decay
from .training_observables import judged, narrow_remark, with_rounding
from .training_states import OrderParameters
from .two_equations import LearnedLaw, least_norm, squared_distance, two_equations

#: Largest :func:`relative_decay` that counts as zero, and the largest one at which the limit of vanishing decay
#: replaces an iteration that fails. The relative error of this limit is about 30 sqrt(decay).
COUNTS_AS_ZERO, NEARLY_ZERO = 2e-12, 2e-6
#: Ratio noise/Q_0 below which the error of the interpolation threshold contains its distance from the limit noise -> 0.
_LITTLE_NOISE = 1e-11
#: Weight decay of S, in natural units of the problem, below which the solution at vanishing weight decay is a good
#: start of the iteration.
_SMALL_DECAY = 4e-3


class TrainingThresholds(NamedTuple):
    """The alpha up to which noisy data are interpolated, and the alpha from which noiseless data fix the target."""

    interpolation: float
    exact_recovery: float


def training_thresholds(problem: Training) -> TrainingThresholds:
    """Return the thresholds of this parameterisation; exact recovery is infinite where the data are noisy."""
    model = problem.model
    if problem.loss != "squared" or problem.penalty is not None:
        raise NotImplementedError("thresholds are covered for the squared loss without a penalty of your own")
    if not is_factorized(problem):
        fits = exact = exact_recovery_full(model.visible_directions)
    else:
        fits = interpolation(model.target, model.noise, model.visible_directions)
        exact = exact_recovery(model.target, model.visible_directions) if model.noise == 0 else np.inf
    return TrainingThresholds(fits, exact if model.noise == 0 else np.inf)


def threshold_outcome(problem: Training, tolerance: float) -> Outcome:
    """Return both thresholds with their errors; with noise a remark states that there is no exact recovery."""
    found = training_thresholds(problem)
    words = "converged: with noise there is no exact recovery" if problem.model.noise > 0 else ""
    values = with_rounding(found._asdict())
    model = problem.model
    if 0 < model.noise < _LITTLE_NOISE * model.signal and is_factorized(problem):
        # The root delta vanishes with the noise, and the equation resolves the threshold only up to this difference.
        limit = interpolation(model.target, 0.0, model.visible_directions)
        values["interpolation_err"] += abs(found.interpolation - limit)
    return Outcome(values, Status.CONVERGED, words=words)


def interpolates(problem: Training, alpha: float, *, below: float = COUNTS_AS_ZERO) -> bool:
    """Return whether the weight decay counts as zero and all data can be fitted, as noiseless data can at any alpha.

    ``below`` is the largest :func:`relative_decay` that counts as zero.
    """
    if relative_decay(problem) > below or problem.loss != "squared" or problem.penalty is not None:
        return False
    if is_factorized(problem) and problem.width_ratio < 1 - problem.model.target.zero_mass:
        return _interpolator(problem, alpha).eps > 0  # fewer columns fit fewer data
    return problem.model.noise == 0 or alpha < training_thresholds(problem).interpolation


def recovers_exactly(problem: Training, alpha: float) -> bool:
    """Return whether the data are noiseless and so many that only the target interpolates them."""
    wide = not is_factorized(problem) or problem.width_ratio >= 1 - problem.model.target.zero_mass
    return problem.model.noise == 0 and wide and alpha >= training_thresholds(problem).exact_recovery


def interpolating_outcome(
    problem: Training, alpha: float, tolerance: float, known: LearnedLaw | None = None
) -> Outcome:
    """Return the observables of the interpolator: of least trace if factorised, of least norm for a full S.

    ``known`` is the interpolator, if it has been computed.
    """
    if known is None and recovers_exactly(problem, alpha):
        return judged(problem, _as_limit(problem, _exact(problem)), tolerance)
    found = _interpolator(problem, alpha) if known is None else known
    words = "converged: interpolation at vanishing weight decay"
    outcome = narrow_remark(problem, Outcome(_values(problem, found), words=words), found.left_out)
    return judged(problem, _as_limit(problem, outcome), tolerance)


def _interpolator(problem: Training, alpha: float) -> LearnedLaw:
    model = problem.model
    samples = 2 * model.visible_directions * alpha
    if is_factorized(problem):
        return two_equations(model.target, model.noise, samples, 0.0, problem.width_ratio)
    return least_norm(model.target, model.noise, samples)


def _as_limit(problem: Training, outcome: Outcome) -> Outcome:
    """Return ``outcome``, that of vanishing weight decay, for a small decay: relative errors grow by 30 sqrt(decay).

    At alpha = 0.1 of the figures' model the relative error of q is 1.3e-2, 1.5e-4 and 2e-6 at decays of 1e-6, 1e-9 and
    1e-12.
    """
    decay = relative_decay(problem)
    if decay == 0:
        return outcome
    share, values = 30 * float(np.sqrt(decay)), dict(outcome.values)
    for name, value in outcome.values.items():
        if f"{name}_err" in values and np.isfinite(value):
            values[f"{name}_err"] += share * abs(value)
    words = f"{outcome.sentence}, the limit of weight_decay = {problem.weight_decay:g}"
    return Outcome(values, outcome.how, words=words)


def _values(problem: Training, found: LearnedLaw) -> dict[str, float]:
    model, factor = problem.model, problem.model.beta_ratio
    m, q = factor * found.m, factor**2 * found.q
    apart = factor**2 * found.apart
    test, test_err = prediction_error(model, m, q, beta=model.beta)
    excess, excess_err = excess_error(model, m, q, apart)
    values = {
        "test_error": test, "train_error": 0.0, "train_loss": 0.0, "excess_error": excess,
        "estimation_error": squared_distance(model.signal, m, apart), "rank": found.rank,
        "m": m, "q": q, "Sigma": np.inf, "mhat": 0.0, "qhat": 0.0, "Sigmahat": 0.0,
        "delta": found.delta, "eps": found.eps, "scale": factor * found.scale, "potential": 0.0,
        "replicon": np.nan, "jump_weight": 0.0,
    }  # fmt: skip
    numerical = {"test_error_err": max(test_err, 1e-9 * test), "excess_error_err": max(excess_err, 1e-9 * excess)}
    return with_rounding(values) | numerical


def _exact(problem: Training) -> Outcome:
    model, factor, Q0 = problem.model, problem.model.beta_ratio, problem.model.signal
    nothing = ("test_error", "train_error", "train_loss", "excess_error", "potential", "jump_weight")
    values = dict.fromkeys(nothing, 0.0) | {
        "estimation_error": (1 - factor) ** 2 * Q0, "rank": 1 - model.target.zero_mass, "m": factor * Q0,
        "q": factor**2 * Q0, "Sigma": np.nan, "mhat": 0.0, "qhat": 0.0, "Sigmahat": 0.0, "delta": 0.0, "eps": 0.0,
        "scale": factor, "replicon": np.nan,
    }  # fmt: skip
    words = "exact recovery: the target is the only interpolator"
    return Outcome(with_rounding(values), Status.EXACT_RECOVERY, words=words)


def interpolating_start(problem: Training, alpha: float) -> OrderParameters | None:
    """Return a start from the solution at zero decay; None unless decay is small and noisy data can be fitted."""
    model, decay = problem.model, decay_of_matrix(problem)
    if problem.penalty is not None or not (is_factorized(problem) and 0 < relative_decay(problem) < _SMALL_DECAY):
        return None
    if model.noise == 0 or alpha > 0.9 * interpolation(model.target, model.noise, model.visible_directions):
        return None
    N, factor = model.visible_directions, model.beta_ratio
    found = two_equations(model.target, model.noise, 2 * N * alpha, 0.0)
    Sigma = alpha * N * found.eps / (decay * factor)
    return OrderParameters(found.m * factor, found.q * factor**2, Sigma * factor**2, found.apart * factor**2)
