"""Intervals of alpha in which outliers are visible in the matrix that training learns.

With weight decay, the equations are solved at each alpha of a grid. As the decay vanishes, the field below
interpolation is known without this. The factorised learner follows a curve with the parameter ratio = eps/delta: one
equation gives delta(ratio), and DIV = 2 N alpha gives alpha, with N visible directions and DIV of
:class:`.convolution.Convolution`. For the full learner the field is known in closed form.

Equations out-windows, out-explicit of docs/theory/outliers.md.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ...core.problem import Outcome
from ..theory.interpolation_and_recovery import (
    MOST_DOUBLINGS,
    bracketed_root,
    exact_recovery_full,
    interpolation_width,
    recovery_ratio,
)
from ..theory.training_equations import Training, is_factorized, relative_decay
from ..theory.training_theory import TrainingTheory
from ..theory.two_equations import least_norm
from ..theory.vanishing_weight_decay import COUNTS_AS_ZERO, training_thresholds
from .training_outliers import kept_above
from .visibility import FieldAt, FieldCurve, Visibility, followed, remembered, windows_outcome

#: Distances in log alpha of the outer grid points from those near interpolation; their number bounds the search.
_STRIDES = np.log(1.5) * np.arange(1, 50)
#: Distances to interpolation, in log alpha, at which the grid has points; delta may have a narrow peak there.
_CLOSE = (0.3, 0.1)
#: Relative errors of alpha: of closed forms, and of changes between sampled fields, as a share of the tolerance.
_CLOSED, _SHARE = 1e-12, 1e-3
#: Noise in the field, relative to the smallest spike, that stands for the limit of many samples.
_LITTLE = 1e-3


def training_windows(theory: TrainingTheory, tolerance: float) -> Outcome:
    """Return the alphas at which each spike appears, disappears and appears again (inf if never), with errors."""
    problem = theory.problem
    if problem.penalty is not None:
        raise NotImplementedError("outliers are covered for the built-in penalties, not for one of your own")
    vanishing = relative_decay(problem) <= COUNTS_AS_ZERO and problem.loss == "squared"
    target = problem.model.target
    # in the limit of many samples, only the width of the learner decides which directions are visible
    never = kept_above(problem, _LITTLE * float(np.min(target.spikes)), 0.0)
    visibility = Visibility(target, never)
    curves = _vanishing(theory, visibility, tolerance) if vanishing else [_decaying(theory, visibility, tolerance)]
    return windows_outcome(visibility.changes(curves))


# -- with weight decay ---------------------------------------------------------------------------------------------


def _solved(theory: TrainingTheory, tolerance: float, log_alpha: float) -> FieldAt | None:
    alpha = float(np.exp(log_alpha))
    outcome = theory.solve(alpha, theory.starts("uninformed"), tolerance).outcome
    values, doubt = outcome.values, "" if outcome.converged else f"at alpha = {alpha:.4g}, {outcome.sentence}"
    if not np.isfinite(values.get("delta", np.nan)):
        return None
    if not is_factorized(theory.problem):
        return FieldAt(alpha, values["delta"], 0.0, values["delta_err"], doubt=doubt)
    cut = kept_above(theory.problem, values["delta"], values["eps"])
    return FieldAt(alpha, values["delta"], cut, values["delta_err"], values["eps_err"], doubt)


def _decaying(theory: TrainingTheory, visibility: Visibility, tolerance: float) -> FieldCurve:
    """Return the solved field over log alpha, from a point where no spike is visible to a point where all are."""
    at = remembered(partial(_solved, theory, tolerance))
    peak = float(np.log(_interpolation(theory)))
    near = [peak - gap for gap in _CLOSE] + [peak] + [peak + gap for gap in reversed(_CLOSE)]
    down = followed(at, min(near) - _STRIDES, visibility.of_none)
    up = followed(at, max(near) + _STRIDES, visibility.of_all)
    return FieldCurve(at, [*reversed(down), *near, *up], _enclosed_to(theory, tolerance))


def _enclosed_to(theory: TrainingTheory, tolerance: float) -> float:
    """Return the relative error to which the alpha of a change is enclosed, for the solver's ``tolerance``."""
    return _CLOSED if theory.equations.in_closed_form else _SHARE * tolerance


def _interpolation(theory: TrainingTheory) -> float:
    """Return the alpha at which delta may have a peak, or a rough value if the loss has no interpolation threshold."""
    if theory.problem.loss == "squared":
        return training_thresholds(theory.problem).interpolation
    return exact_recovery_full(theory.model.visible_directions)


# -- as it vanishes ------------------------------------------------------------------------------------------------


def _vanishing(theory: TrainingTheory, visibility: Visibility, tolerance: float) -> list[FieldCurve]:
    """Return the field below interpolation as a curve without solving, and a solved curve above it if needed."""
    below = (_least_trace_curve if is_factorized(theory.problem) else _least_norm_curve)(theory, visibility)
    at_peak = below.at(below.grid[-1])
    if at_peak is not None and _too_narrow(theory.problem, at_peak):
        return [_decaying(theory, visibility, tolerance)]  # fewer columns fit fewer data: no closed form
    # Above interpolation delta falls, so that visible spikes stay visible. Solving there takes long.
    if theory.model.noise == 0 or (at_peak is not None and visibility.of_all(at_peak)):
        return [below]
    peak = float(np.log(_interpolation(theory)))

    def above(log_alpha: float) -> FieldAt | None:
        return at_peak if log_alpha == peak else _solved(theory, tolerance, log_alpha)

    at = remembered(above)
    steps = [*(peak + gap for gap in reversed(_CLOSE)), *(peak + _CLOSE[0] + _STRIDES)]
    beyond = [peak, *followed(at, steps, visibility.of_all)]
    return [below, FieldCurve(at, beyond, _enclosed_to(theory, tolerance))]


def _too_narrow(problem: Training, at_peak: FieldAt) -> bool:
    """Return whether W has fewer columns than the rank of the least-trace solution; ``at_peak`` is its field."""
    if not is_factorized(problem) or problem.width_ratio >= 1:
        return False
    law = problem.model.target.convolution(at_peak.delta)
    return float(law.mass_above(at_peak.eps)) > problem.width_ratio


def _least_trace_curve(theory: TrainingTheory, visibility: Visibility) -> FieldCurve:
    """Return the field of the factorised interpolator of least trace as a curve over t = -eps/delta.

    It runs from a t where no spike is visible (alpha is 0 at t = -2) to t = 0 at interpolation, or without noise to
    exact recovery.
    """
    model = theory.model
    target, noisy_signal = model.target, model.noisy_signal
    noiseless = model.noise == 0
    widest = np.sqrt(noisy_signal) if noiseless else interpolation_width(target, noisy_signal)

    def at(t: float) -> FieldAt:
        delta = widest if t == 0 else _width(theory, -t, widest)
        divergence = target.convolution(delta).moments(-t * delta).divergence
        return FieldAt(divergence / (2 * model.visible_directions), delta, -t * delta)

    known = remembered(at)
    nearest = max(recovery_ratio(target), 1e-6) * (1 + 1e-6) if noiseless else 0.0
    steps = [-ratio for ratio in (*np.arange(1.0, 1.9, 0.1), *(2 - 0.1 * 0.7 ** np.arange(50)))]
    far = followed(known, steps, visibility.of_none)
    return FieldCurve(known, [*reversed(far), *np.linspace(-1.0, -nearest, 14)[1:]], _CLOSED)


def _width(theory: TrainingTheory, ratio: float, widest: float) -> float:
    """Return delta of the interpolator of least trace at eps = ratio delta; the search starts at ``widest``."""
    target, noisy_signal = theory.model.target, theory.model.noisy_signal

    def excess(log_delta: float) -> float:
        delta = float(np.exp(log_delta))
        found = target.convolution(delta).moments(ratio * delta)
        return found.J - ratio * delta * found.J_eps - 0.5 * delta * found.J_delta - noisy_signal

    low = high = float(np.log(widest))
    for _ in range(MOST_DOUBLINGS):
        if excess(high) >= 0:
            break
        high += 0.7
    for _ in range(MOST_DOUBLINGS):
        if excess(low) <= 0:
            break
        low -= 0.7
    return float(np.exp(bracketed_root(excess, low, high, "the equation of the noise in the field")))


def _least_norm_curve(theory: TrainingTheory, visibility: Visibility) -> FieldCurve:
    """Return the field of the full interpolator of least norm as a curve over t = log alpha.

    The curve ends at interpolation, 2 N alpha = 1, where delta diverges with noise; N counts visible directions.
    """
    model, N = theory.model, theory.model.visible_directions
    peak = float(np.log(exact_recovery_full(N)))

    def at(log_alpha: float) -> FieldAt:
        alpha = float(np.exp(log_alpha))
        if log_alpha == peak:
            return FieldAt(alpha, np.inf if model.noise > 0 else 0.0)
        return FieldAt(alpha, least_norm(model.target, model.noise, 2 * N * alpha).delta)

    known = remembered(at)
    near = peak + np.log1p(-(2.0 ** -np.arange(1, 30)))
    down = followed(known, near[0] - _STRIDES, visibility.of_none)
    return FieldCurve(known, [*reversed(down), *near, peak], _CLOSED)
