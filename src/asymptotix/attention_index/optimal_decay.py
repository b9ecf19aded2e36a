"""Search for the weight decay at which training generalises best.

The data act on S as a field mhat (S_0 + delta GOE), delta = sqrt(qhat)/mhat. Training keeps the eigenvalues of S_0 +
delta GOE above a cut eps. With noise, and few directions above the noise, the best cut is the noise's edge 2 delta.
Hence sqrt(width_ratio) weight_decay = sqrt(qhat) for any channel. The search of :func:`optimum` starts at this decay.

Equation sc-decay of docs/theory/scaling.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import numpy as np

from ..core.gradient import Optimum, ProgressOption, as_optimum, search_over, warn_of_doubts
from ..core.problem import Outcome
from ..core.progress import Say, as_progress
from ..core.status import Status
from ..numerics import checks, interrupts
from .risk import RiskMinimization
from .theory.vanishing_weight_decay import recovers_exactly

OBSERVABLES = ("test_error", "excess_error", "estimation_error")
#: Largest number of iterations for the first decay of the search, and the factor of change of the decay at which they
#: end. A worse first decay makes the search longer.
_STARTS, _CLOSE = 8, 1.1
#: Factor between successive decays in the search for a bracket.
_FACTOR = 3.0
#: Smallest decay of the search, relative to the first one. If the error still falls there, the best decay is zero.
_VANISHING = 1e-7
#: Decay, relative to the first one, below which a minimum with an error >= 1 of its log decay counts as zero.
_SMALL = 1e-3


class OptimalDecay(Optimum):
    """The weight decay ``at`` at which the error ``observable`` is smallest, and this smallest error ``value``.

    ``at_error`` and ``value_error`` are numerical errors. If the error decreases all the way to vanishing decay, ``at``
    is zero. ``status`` and ``words`` are those of :class:`~asymptotix.core.gradient.Optimum`.
    """

    observable: str

    @classmethod
    def of(cls, found: Optimum, observable: str) -> Self:
        """Return ``found``, an optimum over the weight decay, as an OptimalDecay of the named observable."""
        errors = {"at_error": found.at_error, "value_error": found.value_error}
        decay = cls(found.at, found.value, found.inside, found.status, found.words, **errors)
        decay.observable = observable
        return decay

    @property
    def weight_decay(self) -> float:
        """The best decay, ``at``."""
        return self.at

    @property
    def weight_decay_err(self) -> float:
        """The error of the best decay, ``at_error``."""
        return self.at_error

    @property
    def value_err(self) -> float:
        """The error of the value, ``value_error``."""
        return self.value_error


def optimal_weight_decay(
    problem: RiskMinimization,
    alpha: float,
    *,
    observable: str = "test_error",
    tolerance: float = 1e-3,
    progress: ProgressOption = None,
) -> OptimalDecay:
    """Return the weight decay at which an error of training is smallest.

    The function is :func:`optimum` without bounds. The search starts where sqrt(width_ratio) weight_decay = sqrt(qhat),
    the standard deviation of the noise in the field that the data exert on S.

    Parameters
    ----------
    problem : RiskMinimization
        The training problem; its ``weight_decay`` is ignored.
    alpha : float
        Samples over squared dimension.
    observable : "test_error", "excess_error" or "estimation_error"
        The error that is minimised. The first two have the same minimiser.
    tolerance : float
        Relative tolerance of the decay. If it is not met, the status is "inaccurate", with a warning.
    progress
        See :func:`solve`.

    Returns
    -------
    OptimalDecay
        ``at`` (also ``weight_decay``), ``value`` (smallest error), the numerical errors of both, ``status``, ``words``.

    Examples
    --------
    >>> import asymptotix as asx
    >>> task = asx.AttentionIndex(tokens=1, activation="linear", noise=0.5)
    >>> best = asx.optimal_weight_decay(asx.RiskMinimization(task), alpha=1.0)
    >>> round(best.weight_decay, 2), round(best.value, 4)
    (0.51, 0.7316)
    """
    if not isinstance(problem, RiskMinimization):
        raise TypeError(f"problem must be a RiskMinimization, got {checks.named(problem)}")
    checks.one_of("observable", observable, OBSERVABLES)
    (alpha,) = problem.check_control("alpha", [checks.number("alpha", alpha, "one positive number")])
    if not 0 < checks.positive("tolerance", tolerance) < 1:
        raise ValueError(f"tolerance must be below one, being relative, got {tolerance}")
    with interrupts.deferred(), as_progress(progress, 1, f"weight decay of least {observable}") as shown:
        found = _found(problem, float(alpha), observable, tolerance, shown.message)
        shown.advance()
    warn_of_doubts([found])
    return found


def _found(problem: RiskMinimization, alpha: float, observable: str, tolerance: float, say: Say) -> OptimalDecay:
    if problem.loss == "squared" and problem.penalty is None and recovers_exactly(problem, alpha):
        return _at_zero(problem, alpha, observable, "at zero weight decay recovery is exact")
    start = _start(problem, alpha, say)
    search = search_over(replace(problem, weight_decay=start), observable, "weight_decay", {"alpha": alpha}, say)
    first, stride = float(np.log(start)), float(np.log(_FACTOR))
    minimum = search.downhill(first, stride, first + float(np.log(_VANISHING)), tolerance)
    if minimum is not None and (minimum.error < 1 or minimum.here.at > first + np.log(_SMALL)):
        return OptimalDecay.of(as_optimum(minimum), observable)
    words = "the error decreases all the way to vanishing weight decay"
    lowest = float(np.exp(min(look.at for look in search.seen.values())))
    return _at_zero(problem, alpha, observable, words, lowest)


def _outcome(problem: RiskMinimization, alpha: float, decay: float) -> Outcome:
    """Return the theory's outcome at the weight decay ``decay``; FAILED where its equations break down."""
    interrupts.check()
    theory = replace(problem, weight_decay=decay).theory
    try:
        return theory.solve(alpha, theory.starts("uninformed"), 1e-3).outcome
    except FloatingPointError as error:  # no noise and a decay near zero
        return Outcome({}, Status.FAILED, words=f"failed: {error}")


def _start(problem: RiskMinimization, alpha: float, say: Say) -> float:
    """Return a decay near the root of decay = sqrt(qhat(decay) / width_ratio), or near the best one for a full S."""
    model, factorized = problem.model, problem.parameterization == "factorized"
    decay = float(np.sqrt(alpha * (model.noise + 1e-3 * model.signal)))
    for _ in range(_STARTS):
        say(f"starting at weight_decay = {decay:.4g}")
        values = _outcome(problem, alpha, decay).values
        mhat, qhat = values.get("mhat", 0.0), values.get("qhat", 0.0)
        if not (qhat > 0 and mhat > 0) or not values["q"] > 0:  # nothing is learned: the decay is too strong
            decay /= 4
            continue
        if factorized:
            better = float(np.sqrt(qhat / problem.width_ratio))
        else:  # the best shrinkage of a full matrix is Q_0/(Q_0 + delta^2)
            better = qhat / (4 * mhat * model.signal)
        if max(better / decay, decay / better) < _CLOSE:
            return better
        decay = better
    return decay


def _at_zero(problem: RiskMinimization, alpha: float, observable: str, words: str, lowest: float = 0.0) -> OptimalDecay:
    """Return the optimum at zero decay for the reason ``words``, or at ``lowest`` if the theory has no such limit."""
    covered = problem.loss == "squared" and problem.penalty is None
    decay = 0.0 if covered else lowest
    outcome = _outcome(problem, alpha, decay)
    value, error = (float(outcome.values.get(name, np.nan)) for name in (observable, f"{observable}_err"))
    if not covered:
        words = f"{words}; with this loss or penalty the limit is not available, so this is the smallest decay tried"
    doubt = [] if outcome.converged else [outcome.sentence]
    found = Optimum(decay, value, False, outcome.how, "; ".join([words, *doubt]), at_error=decay, value_error=error)
    return OptimalDecay.of(found, observable)
