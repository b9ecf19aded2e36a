"""Test error of a learner with given order parameters, and of the best multiple of the target, as predictors.

Boncoraglio et al., arXiv:2509.24914, eq. (12). With noise inside the softmax the best multiple of the target is not the
target itself: training on ever more data tends to rho S_0 with rho below one.

Equation sc-optimum of docs/theory/scaling.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from ...numerics import checks
from ..loss.loss_average import LossAverage, SquaredSoftmax
from ..model import AttentionIndex
from ..streams import NODE_SCRAMBLINGS
from .two_equations import squared_distance

_ORDERS = (28, 22)
_COUNT = 2**13
#: Factor on the standard error of a mean of four scramblings. Three such errors are t = 5.84 with three degrees of
#: freedom, which is exceeded by chance in one of a hundred cases.
_STUDENT = 1.95
#: Range in which the best multiple of the target is searched, relative to the multiple that matches the temperatures.
_MULTIPLES = 0.02, 2.0
#: Accuracy of the best multiple. Its error enters the least test error squared.
_MULTIPLE_ERROR = 1e-7
#: Largest expected difference of the best multiple between sets of nodes; beyond it the search takes longer.
_NEARBY = 0.03


#: Rounding error of a difference of two averages, relative to either average.
ROUNDING = 4e-15


class PopulationOptimum(NamedTuple):
    """The best multiple rho of the target as a predictor, its test error, and the numerical errors of both."""

    rho: float
    test_error: float
    rho_err: float
    test_error_err: float


def prediction_error(model: AttentionIndex, m: float, q: float, *, beta: float) -> tuple[float, float]:
    """Return the test error E|sigma(target_beta h_0) - sigma(beta h)|^2, and its numerical error.

    The normalised entries of the pre-activations h_0 of the noisy target and h of the learner are Gaussian with
    variances Q_0' and q and covariance m.
    """
    if model.activation == "linear":
        return 2 * model.visible_directions * (model.noisy_signal - 2 * m + q), 0.0
    return _mean_and_error(model, [rule.test(model.noisy_signal, m, q) for rule in _rules(model, beta)])


def excess_error(model: AttentionIndex, m: float, q: float, apart: float) -> tuple[float, float]:
    """Return the prediction error at m, q minus the error of the best multiple of the target, with its own error.

    For a linear channel the difference is 2L |S - S_0|^2/d. Otherwise both errors are averages on the same nodes, so
    that most of their quadrature errors cancel. ``apart`` is q - m^2/Q_0.
    """
    Q0 = model.signal
    if model.activation == "linear":
        return 2 * model.visible_directions * squared_distance(Q0, m, apart), 0.0
    total = model.noisy_signal
    along = m**2 * 0.5 * model.noise / (Q0 * total) if Q0 > 0 else 0.0  # a target of zeros has no direction
    spread = float(np.sqrt(apart + along))
    pairs = [(rule.test(total, m, q, spread), best_multiple(rule, model)[1]) for rule in _rules(model, model.beta)]
    excess, numerical = _mean_and_error(model, [error - best for error, best in pairs])
    return excess, max(numerical, ROUNDING * pairs[0][1])


def population_optimum(model: AttentionIndex) -> PopulationOptimum:
    """Return the multiple rho S_0 of the target that predicts best: training by the squared loss tends to it.

    The number rho minimises E|sigma(target_beta (h + noise)) - sigma(beta rho h)|^2, where h is the target's
    pre-activation. As data abound, ``estimation_error`` tends to (1 - rho)^2 Q_0 and ``test_error`` to this minimum.
    Without noise rho is beta_0/beta and the minimum is zero. The ``excess_error`` of a result is its ``test_error``
    minus the minimum.

    Parameters
    ----------
    model : AttentionIndex
        Its activation must be a softmax or linear.

    Returns
    -------
    PopulationOptimum
        (rho, test_error, rho_err, test_error_err); the last two are numerical errors.

    Examples
    --------
    >>> import asymptotix as asx
    >>> best = asx.population_optimum(asx.AttentionIndex(target=asx.Atoms((1.0,)), noise=0.5))
    >>> round(best.rho, 4), round(best.test_error, 5)
    (0.8743, 0.08485)
    """
    if not isinstance(model, AttentionIndex):
        raise TypeError(f"model must be an AttentionIndex, got {checks.named(model)}")
    if model.activation == "hardmax":
        raise NotImplementedError(
            "activation='hardmax' has no best multiple, which it does not see; softmax and linear have"
        )
    if model.activation == "linear":
        return PopulationOptimum(1.0, model.visible_directions * model.noise, 0.0, 0.0)
    if model.noise == 0:
        return PopulationOptimum(model.beta_ratio, 0.0, 0.0, 0.0)
    found = [best_multiple(rule, model) for rule in _rules(model, model.beta)]
    rho, rho_err = _mean_and_error(model, [rho for rho, _ in found])
    error, error_err = _mean_and_error(model, [error for _, error in found])
    return PopulationOptimum(rho, error, max(rho_err, _MULTIPLE_ERROR), error_err)


def best_multiple(loss: LossAverage, model: AttentionIndex, near: float | None = None) -> tuple[float, float]:
    """Return the multiple rho for which rho S_0 has the least error on the nodes of ``loss``, and this error.

    ``near`` is the best multiple on other nodes: a search from there takes half as long.
    """
    Q0 = model.signal

    def error(multiple: float) -> float:
        rho = multiple * model.beta_ratio
        return loss.test(model.noisy_signal, rho * Q0, rho**2 * Q0)

    if model.noise == 0:
        return model.beta_ratio, error(1.0)
    middle = 1.0 if near is None else near / model.beta_ratio
    bracket = middle - _NEARBY, middle, middle + _NEARBY
    found: Any
    if near is not None and error(middle) < min(error(bracket[0]), error(bracket[2])):
        found = minimize_scalar(error, bracket=bracket, method="brent", options={"xtol": _MULTIPLE_ERROR})
    else:
        found = minimize_scalar(error, bounds=_MULTIPLES, method="bounded", options={"xatol": _MULTIPLE_ERROR})
    return float(found.x) * model.beta_ratio, float(found.fun)


def _rules(model: AttentionIndex, beta: float) -> list[SquaredSoftmax]:
    """Return the squared loss on two Gauss-Hermite rules (two tokens), or on all scramblings of Sobol nodes."""
    if model.tokens == 2:
        return [SquaredSoftmax(2, beta, model.teacher_beta, order=order) for order in _ORDERS]
    return [
        SquaredSoftmax(model.tokens, beta, model.teacher_beta, count=_COUNT, seed=seed) for seed in NODE_SCRAMBLINGS
    ]


def error_of_scramblings(values: Sequence[float] | np.ndarray) -> float:
    """Return the numerical error of the mean of four values, one per scrambling of the nodes.

    Four numbers determine their own scatter to 40 % only. The standard error is therefore enlarged so that three errors
    cover 99 of 100 cases.
    """
    return float(_STUDENT * np.std(values, ddof=1) / np.sqrt(len(values)))


def _mean_and_error(model: AttentionIndex, values: list[float]) -> tuple[float, float]:
    """Return an average and its numerical error, from its values on the sets of nodes of :func:`_rules`.

    Of two Gauss-Hermite rules the first gives the value and the difference its error; scramblings give their mean.
    """
    if model.tokens == 2:
        return float(values[0]), float(abs(values[1] - values[0]))
    return float(np.mean(values)), error_of_scramblings(values)
