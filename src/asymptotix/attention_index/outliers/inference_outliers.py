"""Bayes-optimal learning of attention-indexed data, with the outliers of single eigenvalues of the target.

The posterior is that of S_0 given S_0 + GOE/sqrt(qhat); the number qhat is the field. A field qhat is a fixed point of
state evolution at

    alpha(qhat) = qhat / (2 E|f|^2),    f the score of the labels.

From an uninformed start the field exceeds qhat if alpha exceeds alpha(q) at every field q up to qhat. A spike theta is
therefore visible above the largest alpha(q) with q up to F(theta) = int mu_0(ds)/(theta - s)^2.

Equations out-windows, out-explicit of docs/theory/outliers.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import xarray as xr
from scipy.optimize import minimize_scalar

from ...core.problem import Outcome, Problem
from ..theory.bayes import AttentionIndexTheory
from .outlier_law import critical_width
from .outlier_readout import learned_by_inference, outliers_of, theory_dataset
from .visibility import NAMES, Change, windows_outcome

if TYPE_CHECKING:
    from ...core.progress import Progress
    from ...core.result import Result

#: Smallest field qhat of the grid relative to F(theta) of the spike, and number of grid points. A coarser grid might
#: miss a narrow maximum of alpha(qhat).
_SMALLEST, _POINTS = 1e-6, 60
_ROUNDING = 1e-9


class AttentionIndexInference(AttentionIndexTheory):
    """Theory of ``BayesOptimal(AttentionIndex(...))``, outliers included."""

    readouts: ClassVar[tuple[str, ...]] = ("outliers",)

    def dimensions(self) -> Mapping[str, tuple[str, ...]]:
        return {**super().dimensions(), **dict.fromkeys((*NAMES, "outlier_eigenvalue", "outlier_overlap"), ("spike",))}

    def threshold_names(self) -> Sequence[str]:
        return (*super().threshold_names(), *(NAMES if len(self.model.target.spikes) else ()))

    def threshold_values(self, *, tolerance: float, progress: Progress, which: Sequence[str] | None = None) -> Outcome:
        exact = super().threshold_values(tolerance=tolerance, progress=progress)
        if not len(self.model.target.spikes):
            return exact
        appearing = [[self._appears(width)] for width in critical_width(self.model.target)]
        outliers = windows_outcome(appearing)
        return Outcome({**exact.values, **outliers.values}, exact.how, words=exact.words).only(which)

    def _appears(self, width: float) -> Change:
        """Return the alpha above which a spike is visible; ``width`` is its critical noise F(theta)^{-1/2}."""
        last = float(-2 * np.log(width))
        grid = last + np.linspace(np.log(_SMALLEST), 0.0, _POINTS)
        samples = np.array([self._samples(log_qhat) for log_qhat in grid])
        k = int(samples.argmax())
        if k == _POINTS - 1:
            return Change(samples[k], _ROUNDING * samples[k])
        # At the maximum of alpha(qhat) the field jumps from a smaller value beyond F(theta).
        ends = float(grid[max(k - 1, 0)]), float(grid[k + 1])
        options = {"xatol": 1e-8}
        found: Any = minimize_scalar(lambda x: -self._samples(x), bounds=ends, method="bounded", options=options)
        return Change(float(-found.fun), _ROUNDING * float(-found.fun))

    def _samples(self, log_qhat: float) -> float:
        """Return the alpha at which the field exp(log_qhat) is a fixed point of state evolution."""
        return float(np.exp(log_qhat - self._log_score(float(log_qhat))))

    def outliers(self, result: Result) -> xr.Dataset:
        """Return the outliers of a result as a dataset; see :meth:`BayesOptimal.outliers`."""
        return outliers_of(result, _inferred)


def _inferred(problem: Problem, ds: xr.Dataset) -> xr.Dataset:
    model = problem.model  # type: ignore[attr-defined]
    delta = ds["qhat"] ** -0.5
    error = 0.5 * delta**3 * ds["qhat_err"]
    return theory_dataset(model.target, ds, delta, error, learned_by_inference)
