"""Bayes-optimal learning of attention-indexed data.

The posterior of S is that of a matrix observed with Gaussian noise, S_0 + GOE/sqrt(qhat). Its denoiser keeps the
eigenvectors and moves the eigenvalues. With delta = 1/sqrt(qhat), mu_delta is the spectrum of the noisy matrix, and

    Q_0 - q = 1/qhat - (4 pi^2 / (3 qhat^2)) int mu_delta^3,        qhat = 2 alpha E|f|^2.

Here Q_0 - q is the error of the posterior mean of S, and f = (E[z_0 | y, z] - z)/(Q_0' - q) is the score of an output
y given a field z ~ N(0, q) in every visible direction, with z_0 | z ~ N(z, Q_0' - q). Where the field is strong,
Q_0 - q is a difference of large terms; it is computed as int delta^2 (1 - delta^2 |g|^2) mu_delta, which is equal.

The equations are those of "Bayes optimal learning of attention-indexed models" (Boncoraglio, Troiani, Erba, Zdeborova,
2025), with which Boncoraglio et al., arXiv:2509.24914, Figure 3, compare training.

Equation ai-bayes of docs/theory/attention_index.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from scipy.optimize import minimize_scalar

from ...core.definitions.observable import Observable
from ...core.problem import Outcome
from ...core.status import Status
from ...numerics import checks, interrupts
from ..loss.hardmax import hardmax_score_square
from ..model import AttentionIndex
from ..training_definitions import BAYES_DEFINITIONS
from .interpolation_and_recovery import bracketed_root, exact_recovery_bayes
from .prediction import prediction_error

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import ArrayLike

    from ...core.progress import Progress

#: Range of Q_0 qhat in which fixed points are searched; without noise, recovery counts as exact beyond it.
_FIELDS = (1e-6, 1e9)
#: Step of log qhat in the search, and most steps by which the range is extended.
_STRIDE, _MOST_STRIDES = 0.35, 400
#: Absolute value of ``AttentionIndexTheory._balance`` below which an interval of the search may hide a pair of fixed
#: points, and number of parts into which the interval is then divided.
_NEAR, _PARTS = 0.3, 3
_EQUATION = "the equation of the Bayes-optimal field"
#: Relative accuracy of the two scalar equations.
_ROUNDING = 1e-9


class Inference(Protocol):
    """Interface of a Bayes-optimal problem, whose model may be of any kind; here it is an :class:`AttentionIndex`."""

    @property
    def model(self) -> Any: ...

    @property
    def side_information(self) -> float: ...


class AttentionIndexTheory:
    """Theory of ``BayesOptimal(AttentionIndex(...))``."""

    def __init__(self, problem: Inference) -> None:
        self.model: AttentionIndex = problem.model
        if problem.side_information > 0:
            raise NotImplementedError(
                f"side information is covered for DeepAttention, not for AttentionIndex; got {problem.side_information}"
            )
        if self.model.activation == "hardmax" and self.model.tokens != 2:
            raise NotImplementedError(f"hardmax is covered for two tokens, got tokens={self.model.tokens}")
        if self.model.activation == "softmax":
            self.model.refuse_too_many_tokens()
        # Neither function depends on alpha: one scan of the fields serves a whole curve.
        self.error = lru_cache(maxsize=4096)(self._error)
        self._log_score = lru_cache(maxsize=4096)(self._log_score_at)

    # -- the two sides -----------------------------------------------------------------------------------------

    def _error(self, qhat: float) -> float:
        """Return Q_0 - q, the error of the posterior mean of S at the field qhat."""
        return self.model.target.convolution(1 / np.sqrt(qhat)).noise_left()

    def score_square(self, error: float) -> float:
        """Return E|f|^2 of the score f of an output, at Q_0 - q = ``error``; 2 alpha times this is the field qhat."""
        spread = error + 0.5 * self.model.noise
        if self.model.activation == "hardmax":
            return hardmax_score_square(self.model.signal - error, spread)
        # the output determines all visible directions of the noisy pre-activation
        return self.model.visible_directions / spread

    def _log_score_at(self, log_qhat: float) -> float:
        error = self.error(float(np.exp(log_qhat)))
        if error + 0.5 * self.model.noise <= 0:
            return np.inf
        return float(np.log(2 * self.score_square(error)))

    def _balance(self, log_qhat: float, alpha: float) -> float:
        """Return the log of the field that the data exert at the field exp(log_qhat), minus log_qhat."""
        return np.log(alpha) + self._log_score(log_qhat) - log_qhat

    def field(self, alpha: float, start: str) -> float | None:
        """Return the fixed point qhat reached from small ("uninformed") or large fields; None if recovery is exact.

        The :meth:`_balance` is positive at small fields and, with noise, negative at large ones.
        """
        size = self.model.signal or self.model.noisy_signal
        low, high = (float(np.log(bound / size)) for bound in _FIELDS)
        for _ in range(_MOST_STRIDES):
            if self._balance(low, alpha) > 0:
                break
            low -= _STRIDE
        for _ in range(_MOST_STRIDES if self.model.noise > 0 else 0):
            if self._balance(high, alpha) < 0:
                break
            high += _STRIDE
        count = round((high - low) / _STRIDE) + 1
        grid = np.linspace(low, high, count) if start == "uninformed" else np.linspace(high, low, count)
        if start == "informed" and self._balance(high, alpha) > 0:
            return None
        found = first_crossing(lambda x: self._balance(x, alpha), grid)
        return None if found is None else float(np.exp(found))

    # -- the interface of a theory -----------------------------------------------------------------------------

    def dimensions(self) -> Mapping[str, tuple[str, ...]]:
        return {}

    def observables(self) -> Mapping[str, Observable]:
        return BAYES_DEFINITIONS

    def index_labels(self) -> Sequence[str]:
        return ()

    def comparable(self, experiment: xr.Dataset) -> xr.Dataset:
        return experiment

    def check_control(self, name: str, values: ArrayLike) -> np.ndarray:
        return checks.positive_grid(name, values)

    def solve_points(
        self, points: Sequence[Mapping[str, float]], *, start: str, tolerance: float, progress: Progress
    ) -> Iterator[tuple[int, Outcome]]:
        start = checks.one_of("start", start, ("uninformed", "informed"))
        for position, point in enumerate(points):
            progress.message(f"alpha = {point['alpha']:.4g}")
            yield position, self._outcome(self.field(float(point["alpha"]), start), tolerance)

    def _outcome(self, qhat: float | None, tolerance: float) -> Outcome:
        Q0 = self.model.signal
        if qhat is None:
            values = {"q": Q0, "qhat": np.inf, "estimation_error": 0.0, "test_error": 0.0}
            return Outcome(values | {f"{name}_err": 0.0 for name in values}, Status.EXACT_RECOVERY)
        error = self.error(qhat)
        test, test_err = self._test_error(error)
        values = {"q": Q0 - error, "qhat": qhat, "estimation_error": error}
        values |= {f"{name}_err": _ROUNDING * abs(value) for name, value in values.items()}
        values |= {"test_error": test, "test_error_err": test_err}
        if test_err > tolerance:
            words = f"test_error is known as {test:.4g} +- {test_err:.1g}, beyond the tolerance of {tolerance:g}"
            return Outcome(values, Status.INACCURATE, words=f"inaccurate: {words}")
        return Outcome(values, words=self.model.remark_on_spikes())

    def _test_error(self, error: float) -> tuple[float, float]:
        """Return the test error of the posterior mean of an output, and its numerical error.

        At Q_0 - q = ``error`` it is E|y|^2 - E<y, y'> for two outputs whose pre-activations have covariance q.
        """
        q, total = self.model.signal - error, self.model.noisy_signal
        if self.model.activation == "hardmax":
            return float(2 * np.arccos(np.clip(q / total, -1, 1)) / np.pi), 0.0
        if self.model.activation == "linear":
            return 2 * self.model.visible_directions * (error + 0.5 * self.model.noise), 0.0
        value, numerical = prediction_error(self.model, q, total, beta=self.model.teacher_beta)
        return 0.5 * value, 0.5 * numerical

    def threshold_names(self) -> Sequence[str]:
        return ("exact_recovery",)

    def threshold_values(self, *, tolerance: float, progress: Progress, which: Sequence[str] | None = None) -> Outcome:
        if self.model.noise > 0 or self.model.activation == "hardmax":
            why = "with noise" if self.model.noise > 0 else "from which logits are larger"
            values = {"exact_recovery": np.inf, "exact_recovery_err": 0.0}
            return Outcome(values, Status.CONVERGED, words=f"converged: {why} there is no exact recovery")
        return Outcome(
            {
                "exact_recovery": exact_recovery_bayes(self.model.target, self.model.visible_directions),
                "exact_recovery_err": 0.0,
            }
        )

    def trace(self, *, iterations: int, damping: float, alpha: float) -> Mapping[str, np.ndarray]:
        """Return q and Lambda = qhat (iterations,) of undamped matrix message passing from the prior mean."""
        error = self.model.signal - self.model.target.mean**2
        rows = []
        for _ in range(iterations):
            qhat = 2 * alpha * self.score_square(error)
            error = self.error(qhat)
            rows.append((self.model.signal - error, qhat))
        return dict(zip(("q", "Lambda"), np.array(rows).T, strict=True))


def first_crossing(function: Callable[[float], float], grid: np.ndarray) -> float | None:
    """Return the first root of a function along a grid, ascending or descending; None if it keeps its sign there.

    Between two grid points of equal sign the function may have a pair of roots, two fixed points, of which the first
    counts. An interval is therefore divided where the function is below _NEAR. Where the function turns back before it
    has changed its sign, its turning point is computed.
    """
    known: list[tuple[float, float]] = []  # the last two points and the function there
    for x in _divided(function, grid):
        interrupts.check()
        value = function(x)
        if known and not known[-1][1] * value > 0:
            return bracketed_root(function, known[-1][0], x, _EQUATION, xtol=1e-12)
        if len(known) == 2 and abs(known[1][1]) <= min(abs(known[0][1]), abs(value)):
            turn = _turning_point(function, known[0][0], x, np.sign(value))
            if turn is not None:
                return bracketed_root(function, known[0][0], turn, _EQUATION, xtol=1e-12)
        known = [*known[-1:], (x, value)]
    return None


def _divided(function: Callable[[float], float], grid: np.ndarray) -> Iterator[float]:
    """Yield the points of the grid, and additional points where the function is close to zero."""
    yield float(grid[0])
    for before, after in itertools.pairwise(map(float, grid)):
        near = min(abs(function(before)), abs(function(after))) < _NEAR
        yield from map(float, np.linspace(before, after, (_PARTS if near else 1) + 1)[1:])


def _turning_point(function: Callable[[float], float], first: float, last: float, sign: float) -> float | None:
    """Return the point in an interval where ``sign`` * function is lowest; None if that is positive there."""
    low, high = sorted((first, last))
    options = {"xatol": 1e-5}
    found: Any = minimize_scalar(lambda x: sign * function(x), bounds=(low, high), method="bounded", options=options)
    return float(found.x) if found.fun <= 0 else None
