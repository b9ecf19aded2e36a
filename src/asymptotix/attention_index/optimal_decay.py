"""The weight decay at which training generalises best.

With noise and few directions above it, the best cut eps is the edge 2 delta of the noise in the field, whence
sqrt(width_ratio) weight_decay = sqrt(qhat) for any channel: where the search starts.

Equation sc-decay of docs/theory/scaling.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from ..core.problem import Outcome
from ..core.status import Status
from ..numerics import checks, interrupts
from .risk import RiskMinimization
from .theory.vanishing_weight_decay import recovers_exactly

OBSERVABLES = ("test_error", "excess_error", "estimation_error")
#: Steps of the fixed point weight_decay = sqrt(qhat), and the change at which it is close enough to start from.
_STARTS, _CLOSE = 8, 1.1
#: Factor between decays that are tried in search of a bracket, and how often.
_FACTOR, _TRIALS = 3.0, 30
#: Decays below this share of the start count as vanishing where the error still falls towards zero.
_VANISHING = 1e-7
#: Share of the start below which a minimum that cannot be told from its surroundings is one at zero.
_SMALL = 1e-3


@dataclass(frozen=True)
class OptimalDecay:
    """Where an error is least over the weight decay.

    Attributes
    ----------
    weight_decay, weight_decay_err : float
        The best one and how well it is known; 0 where the error falls all the way to vanishing decay.
    value, value_err : float
        The error that is minimised, at it.
    observable : str
        Its name.
    words : str
        What is to be said: a minimum at zero, or points that were not solved on the way.
    """

    weight_decay: float
    weight_decay_err: float
    value: float
    value_err: float
    observable: str
    words: str = ""


def optimal_weight_decay(
    problem: RiskMinimization, alpha: float, *, observable: str = "test_error", tolerance: float = 1e-3
) -> OptimalDecay:
    """The weight decay at which an error of training is least, looked for from sqrt(qhat) on.

    Parameters
    ----------
    problem : RiskMinimization
        Its own ``weight_decay`` does not matter.
    alpha : float
        Samples over squared dimension.
    observable : "test_error", "excess_error" or "estimation_error"
        What is minimised. The first two have the same minimiser, which is found from the second.
    tolerance : float
        Relative, of the decay; the error is then right to about its square.

    Returns
    -------
    OptimalDecay

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
    return _DecaySearch(problem, float(alpha), observable).found(tolerance)


@dataclass
class _DecaySearch:
    """Solves at one decay after another, and remembers what was found."""

    problem: RiskMinimization
    alpha: float
    observable: str
    known: dict[float, Outcome] = field(default_factory=dict)

    def outcome(self, decay: float) -> Outcome:
        interrupts.check()
        if decay not in self.known:
            theory = replace(self.problem, weight_decay=decay).theory
            try:
                self.known[decay] = theory.solve(self.alpha, theory.starts("uninformed"), 1e-3).outcome
            except FloatingPointError as error:  # without noise and with next to no decay
                self.known[decay] = Outcome({}, Status.FAILED, words=f"failed: {error}")
        return self.known[decay]

    def value(self, log_decay: float) -> float:
        """What is minimised: of a test error the excess, which has more digits."""
        name = "estimation_error" if self.observable == "estimation_error" else "excess_error"
        return float(self.outcome(float(np.exp(log_decay))).values.get(name, np.nan))

    def start(self) -> float:
        """Close to the decay that is sqrt(qhat) at itself."""
        width = np.sqrt(self.problem.width_ratio) if self.problem.parameterization == "factorized" else 1.0
        decay = float(np.sqrt(self.alpha * (self.problem.model.noise + 1e-3 * self.problem.model.signal)))
        for _ in range(_STARTS):
            values = self.outcome(decay).values
            mhat, qhat = values.get("mhat", 0.0), values.get("qhat", 0.0)
            if not (qhat > 0 and mhat > 0):  # nothing is learned: too strong
                decay /= 4
                continue
            if self.problem.parameterization == "factorized":
                better = float(np.sqrt(qhat)) / width
            else:  # shrinkage Q_0/(Q_0 + delta^2) of a full matrix
                better = qhat / (4 * mhat * self.problem.model.signal)
            if max(better / decay, decay / better) < _CLOSE:
                return better
            decay = better
        return decay

    def found(self, tolerance: float) -> OptimalDecay:
        problem = self.problem
        if problem.loss == "squared" and problem.penalty is None and recovers_exactly(problem, self.alpha):
            return self._judged(0.0, 0.0, "without decay recovery is exact")
        first = float(np.log(self.start()))
        bracket = downhill_bracket(self.value, first, float(np.log(_FACTOR)), first + float(np.log(_VANISHING)))
        if bracket is None:
            return self._at_zero(float(np.exp(first)) * _VANISHING)
        low, middle, high = bracket
        close = {"xatol": 0.3 * tolerance}
        found: Any = minimize_scalar(self.value, bounds=(low, high), method="bounded", options=close)
        best = float(found.x) if found.fun <= self.value(middle) else middle
        blur = self._blur(best)
        if best < first + np.log(_SMALL) and blur > 1:  # flat: no decay is as good as a small one
            return self._at_zero(float(np.exp(best)))
        decay = float(np.exp(best))
        flat = "" if np.isfinite(blur) else "the error does not tell this decay from others"
        return self._judged(decay, decay * max(tolerance, blur), flat)

    def _blur(self, best: float) -> float:
        """How far from the minimum the errors of the values leave it, in the logarithm of the decay."""
        step = 0.05
        sides = self.value(best - step) + self.value(best + step) - 2 * self.value(best)
        values, name = self.outcome(float(np.exp(best))).values, "estimation_error"
        error = values.get(f"{name}_err" if self.observable == name else "excess_error_err", 0.0)
        return float(np.sqrt(2 * error * step**2 / sides)) if sides > 0 else np.inf

    def _at_zero(self, smallest: float) -> OptimalDecay:
        words = "the error falls all the way to vanishing weight decay"
        if self.problem.loss != "squared" or self.problem.penalty is not None:
            return self._judged(smallest, smallest, f"{words}, of which the limit itself is not covered")
        return self._judged(0.0, 0.0, words)

    def _judged(self, decay: float, error: float, words: str = "") -> OptimalDecay:
        outcome = self.outcome(decay)
        values = outcome.values
        doubts = [] if outcome.converged else [outcome.sentence]
        said = "; ".join(part for part in (words, *doubts) if part)
        value, value_err = (float(values.get(name, np.nan)) for name in (self.observable, f"{self.observable}_err"))
        return OptimalDecay(decay, error, value, value_err, self.observable, said)


def downhill_bracket(
    function: Callable[[float], float], start: float, step: float, least: float
) -> tuple[float, float, float] | None:
    """Three ascending points of which the middle one is lowest; None where the function falls down to ``least``."""
    low, middle, high = start - step, start, start + step
    for _ in range(_TRIALS):
        left, here, right = map(function, (low, middle, high))
        if low < least:
            return None
        if left < here:
            low, middle, high = low - step, low, middle
        elif right < here:
            low, middle, high = middle, high, high + step
        else:
            return low, middle, high
    return None
