"""Bayes-optimal learning of attention-indexed data.

The posterior of S is that of a matrix seen through Gaussian noise, S_0 + GOE/sqrt(qhat), whose denoiser keeps the
eigenvectors and moves the eigenvalues. With mu_delta the law of what is seen, delta = 1/sqrt(qhat),

    Q_0 - q = 1/qhat - (4 pi^2 / (3 qhat^2)) int mu_delta^3,        qhat = 2 alpha E|f|^2,

where f = (E[z_0 | y, z] - z)/(Q_0' - q) is the score of an output y given a field z ~ N(0, q) in every visible
direction, z_0 | z ~ N(z, Q_0' - q).

The equations are those of "Bayes optimal learning of attention-indexed models" (Boncoraglio, Troiani, Erba, Zdeborova,
2025), with which Boncoraglio et al., arXiv:2509.24914, Figure 3, compare training.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from scipy.optimize import brentq

from ...core.problem import Outcome
from ...numerics import checks
from ..loss.hardmax import hardmax_score_square
from ..model import AttentionIndex
from .interpolation_and_recovery import exact_recovery_bayes
from .prediction import prediction_error

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import ArrayLike

    from ...core.progress import Progress

#: Fields qhat between which fixed points are looked for, times Q_0; beyond the last one recovery counts as exact.
_FIELDS = (1e-6, 1e9)
_STRIDE = 0.35
#: Accuracy of the two scalar equations.
_ROUNDING = 1e-9


class Inference(Protocol):
    """What the theory reads of a Bayes-optimal problem, which may hold any model: here an :class:`AttentionIndex`."""

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
        # Neither side depends on alpha: one scan of the fields serves a whole curve.
        self.error = lru_cache(maxsize=4096)(self._error)
        self._log_score = lru_cache(maxsize=4096)(self._log_score_at)

    # -- the two sides -----------------------------------------------------------------------------------------

    def _error(self, qhat: float) -> float:
        """Q_0 - q, the error of the denoiser at field qhat."""
        cube = self.model.target.convolution(1 / np.sqrt(qhat)).cube()
        return max(1 / qhat - 4 * np.pi**2 / (3 * qhat**2) * cube, 0.0)

    def score_square(self, error: float) -> float:
        """E|f|^2 per alpha and factor two, at Q_0 - q = error."""
        spread = error + 0.5 * self.model.noise
        if self.model.activation == "hardmax":
            return hardmax_score_square(self.model.signal - error, spread)
        # the output tells all visible directions of the noisy pre-activation
        return self.model.visible_directions / spread

    def _log_score_at(self, log_qhat: float) -> float:
        error = self.error(float(np.exp(log_qhat)))
        if error + 0.5 * self.model.noise <= 0:
            return np.inf
        return float(np.log(2 * self.score_square(error)))

    def _balance(self, log_qhat: float, alpha: float) -> float:
        """Log of the field that the data return, minus the one given: positive where the field grows."""
        return np.log(alpha) + self._log_score(log_qhat) - log_qhat

    def field(self, alpha: float, start: str) -> float | None:
        """The fixed point qhat reached from nothing (uninformed) or from everything; None where recovery is exact.

        The balance is positive at small fields, and with noise negative at large ones.
        """
        low, high = (float(np.log(bound / self.model.signal)) for bound in _FIELDS)
        while self._balance(low, alpha) <= 0:
            low -= _STRIDE
        while self.model.noise > 0 and self._balance(high, alpha) >= 0:
            high += _STRIDE
        count = round((high - low) / _STRIDE) + 1
        grid = np.linspace(low, high, count) if start == "uninformed" else np.linspace(high, low, count)
        signs = [self._balance(float(grid[0]), alpha) > 0]
        if start == "informed" and signs[0]:
            return None
        for before, x in itertools.pairwise(map(float, grid)):
            signs.append(self._balance(x, alpha) > 0)
            if signs[-1] != signs[-2]:
                return float(np.exp(brentq(self._balance, before, x, args=(alpha,), xtol=1e-12)))  # type: ignore[arg-type]
        return None

    # -- verbs -------------------------------------------------------------------------------------------------

    def dimensions(self) -> Mapping[str, tuple[str, ...]]:
        return {}

    def index_labels(self) -> Sequence[str]:
        return ()

    def comparable(self, experiment: xr.Dataset) -> xr.Dataset:
        return experiment

    def check_control(self, name: str, values: ArrayLike) -> np.ndarray:
        return checks.positive_grid(name, values)

    def solve_points(
        self, points: Sequence[Mapping[str, float]], *, start: Any, tolerance: float, progress: Progress
    ) -> Iterator[tuple[int, Outcome]]:
        start = checks.one_of("start", start, ("uninformed", "informed"))
        for position, point in enumerate(points):
            progress.message(f"alpha = {point['alpha']:.4g}")
            yield position, self._outcome(self.field(float(point["alpha"]), start))

    def _outcome(self, qhat: float | None) -> Outcome:
        Q0 = self.model.signal
        if qhat is None:
            values = {"q": Q0, "qhat": np.inf, "estimation_error": 0.0, "test_error": 0.0}
            return Outcome(values | {f"{name}_err": 0.0 for name in values}, "exact recovery")
        error = self.error(qhat)
        test, test_err = self._test_error(error)
        values = {"q": Q0 - error, "qhat": qhat, "estimation_error": error}
        values |= {f"{name}_err": _ROUNDING * abs(value) for name, value in values.items()}
        return Outcome(values | {"test_error": test, "test_error_err": test_err})

    def _test_error(self, error: float) -> tuple[float, float]:
        """E|y|^2 - E<y, y'> for two outputs whose pre-activations have covariance q: the posterior mean's error."""
        q, total = self.model.signal - error, self.model.noisy_signal
        if self.model.activation == "hardmax":
            return float(2 * np.arccos(np.clip(q / total, -1, 1)) / np.pi), 0.0
        value, numerical = prediction_error(self.model, q, total, beta=self.model.teacher_beta)
        return 0.5 * value, 0.5 * numerical

    def threshold_values(self, *, tolerance: float, progress: Progress) -> Outcome:
        if self.model.noise > 0 or self.model.activation == "hardmax":
            exact = np.inf
        else:
            exact = exact_recovery_bayes(self.model.target, self.model.visible_directions)
        return Outcome({"exact_recovery": exact, "exact_recovery_err": 0.0})

    def trace(self, *, iterations: int, damping: float, alpha: float) -> Mapping[str, np.ndarray]:
        """Q after 1, 2, ... iterations of matrix message passing from the prior mean."""
        error = self.model.signal - self.model.target.mean**2
        rows = []
        for _ in range(iterations):
            qhat = 2 * alpha * self.score_square(error)
            error = self.error(qhat)
            rows.append((self.model.signal - error, qhat))
        return dict(zip(("q", "Lambda"), np.array(rows).T, strict=True))
