"""The outliers of a result of regularised training."""

from __future__ import annotations

from functools import partial

import numpy as np
import xarray as xr

from ...core.problem import Problem
from ...core.result import Result
from ..penalties.spectral_estimate import narrow_cut
from ..theory.training_equations import Training, is_factorized
from .outlier_readout import learned_by_training, outliers_of, theory_dataset


def outliers_of_training(problem: Training, result: Result) -> xr.Dataset:
    """Return the outliers of a result as a dataset; see :meth:`asymptotix.RiskMinimization.outliers`."""
    if problem.penalty is not None and result.kind == "theory":
        raise ValueError("no outliers for a penalty of your own: they are offered for the built-in ones")
    return outliers_of(result, _trained)


def _trained(problem: Problem, ds: xr.Dataset) -> xr.Dataset:
    training: Training = problem  # type: ignore[assignment]
    law = {name: np.asarray(ds[name].values, float) for name in ("eps", "eps_err", "scale", "scale_err")}
    points = zip(ds["delta"].values.flat, law["eps"].flat, strict=True)
    law["kept_above"] = np.array([kept_above(training, *point) for point in points]).reshape(law["eps"].shape)
    learned = partial(learned_by_training, law, is_factorized(training))
    return theory_dataset(training.model.target, ds, ds["delta"], ds["delta_err"], learned)


def kept_above(problem: Training, delta: float, eps: float) -> float:
    """Return the cut above which eigenvalues of the field are learned: eps, or more if W has too few columns."""
    if not is_factorized(problem) or problem.width_ratio >= 1 or not (0 < delta < np.inf and np.isfinite(eps)):
        return eps
    return narrow_cut(problem.model.target.convolution(float(delta)), float(eps), problem.width_ratio)[0]
