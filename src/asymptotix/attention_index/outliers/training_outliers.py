"""The outliers of a result of regularised training."""

from __future__ import annotations

from functools import partial

import numpy as np
import xarray as xr

from ...core.problem import Problem
from ...core.result import Result
from ..theory.training_equations import Training, is_factorized
from .outlier_readout import learned_by_training, outliers_of, theory_dataset


def outliers_of_training(problem: Training, result: Result) -> xr.Dataset:
    """See :meth:`asymptotix.RiskMinimization.outliers`."""
    if problem.penalty is not None and result.kind == "theory":
        raise ValueError("no outliers for a penalty of your own: they are offered for the built-in ones")
    return outliers_of(result, _trained)


def _trained(problem: Problem, ds: xr.Dataset) -> xr.Dataset:
    training: Training = problem  # type: ignore[assignment]
    law = {name: np.asarray(ds[name].values, float) for name in ("eps", "eps_err", "scale", "scale_err")}
    learned = partial(learned_by_training, law, is_factorized(training))
    return theory_dataset(training.model.target, ds, ds["delta"], ds["delta_err"], learned)
