"""The outliers of a result as a dataset: computed at every point of a theory, or measured in experiments."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import xarray as xr

from ...core.problem import Problem
from ...core.result import Result
from ...core.specification import numeric_fields, with_fields
from ..targets.target import Target
from .outlier_law import FieldOutliers, field_outliers

DESCRIPTIONS = {
    "theta": "Spike of the target: a single eigenvalue outside its bulk.",
    "location": "Eigenvalue of the field S_0 + delta GOE in its direction; nan where none is apart from the bulk.",
    "eigenvalue": "Learned eigenvalue in its direction; 0 where the penalty removes it, nan where there is none.",
    "singular_value": "Singular value of W/(m d)^{1/4}, the root of eigenvalue; nan of what is not factorised.",
    "overlap": "Squared overlap of the learned direction with that of the spike; 0 where none is learned.",
    "detached": "Whether the spike is apart from the bulk of the field: delta^2 F(theta) < 1.",
    "visible": "Whether it is an eigenvalue of the learned matrix: detached, and left by the penalty and the width.",
}

#: Arrays by name, such as eps, scale and their errors, with one entry per point of a theory.
Law = dict[str, np.ndarray]


def refuse_without_spikes(target: Target) -> None:
    """Raise a ValueError if a target has no single eigenvalues outside its bulk."""
    if not len(target.spikes):
        raise ValueError(f"target has no spikes, and outliers come from them: Spiked(bulk, spikes), got {target!r}")


#: Function that returns the outliers of a problem without swept fields, from the numbers of its result.
Reader = Callable[[Problem, xr.Dataset], xr.Dataset]


def outliers_of(result: Result, from_theory: Reader) -> xr.Dataset:
    """Return the outliers of a result as a dataset whose last dimension is "spike".

    An experiment reports them; ``from_theory`` computes those of a theory, for each value of a swept field in turn.
    """
    if result.kind == "thresholds":
        raise ValueError("outliers() belongs to a theory or an experiment; this result is of kind 'thresholds'")
    problem: Any = result.problem
    refuse_without_spikes(problem.model.target)
    read = _measured if result.kind == "experiment" else from_theory
    return _over_swept(problem, result.ds, read).transpose(*result.ds["status"].dims, "spike")


def _over_swept(problem: Problem, ds: xr.Dataset, read: Reader) -> xr.Dataset:
    fields = [str(name) for name in ds.coords if name in numeric_fields(problem) and name not in problem.controls]
    fixed = {name: ds[name].item() for name in fields if ds[name].ndim == 0}
    problem = with_fields(problem, **fixed) if fixed else problem
    swept = [name for name in fields if ds[name].ndim]
    if not swept:
        return read(problem, ds)
    along = swept[0]
    points = [_over_swept(problem, ds.isel({along: i}), read) for i in range(ds.sizes[along])]
    most = max(point.sizes["spike"] for point in points)
    joined: xr.Dataset = xr.concat([_with_spikes(point, most) for point in points], dim=ds[along])
    theta = joined["theta"]
    # a sweep of fields outside the target does not change the spikes
    same = bool((theta == theta.isel({along: 0})).all())
    return joined.assign(theta=theta.isel({along: 0}, drop=True)) if same else joined


def _with_spikes(point: xr.Dataset, count: int) -> xr.Dataset:
    """Return a point's dataset padded to ``count`` spikes: missing spikes are nan, and their flags are False."""
    lacking = count - point.sizes["spike"]
    if not lacking:
        return point
    padded = point.pad(spike=(0, lacking))
    answers = [name for name in point.data_vars if point[name].dtype == bool]
    return padded.assign({name: padded[name].fillna(False).astype(bool) for name in answers})


def theory_dataset(
    target: Target, ds: xr.Dataset, delta: xr.DataArray, delta_err: xr.DataArray, learned: Callable[..., Law]
) -> xr.Dataset:
    """Return the outliers at all points of a theory, where the noise in the field is ``delta`` with an error.

    ``learned`` maps the field's outliers and the error of their location to ``eigenvalue`` (of S), ``eigenvalue_err``,
    ``visible`` and ``singular_value``. The theory's results ``ds`` supply the coordinates.
    """
    field = field_outliers(target, delta.values)
    width_err = np.asarray(delta_err.values, float)[..., None]
    location_err = np.abs(field.location_slope) * width_err
    found = learned(field, location_err)
    visible = found["visible"]
    singular = found["singular_value"]
    with np.errstate(divide="ignore", invalid="ignore"):
        singular_err = np.where(singular > 0, found["eigenvalue_err"] / (2 * singular), found["eigenvalue_err"])
    numbers = {
        "location": field.location, "location_err": location_err,
        "eigenvalue": found["eigenvalue"], "eigenvalue_err": found["eigenvalue_err"],
        "singular_value": singular, "singular_value_err": np.where(np.isnan(singular), np.nan, singular_err),
        "overlap": np.where(visible | np.isnan(field.overlap), field.overlap, 0.0),
        "overlap_err": np.where(visible, np.abs(field.overlap_slope) * width_err, 0.0),
        "detached": field.detached, "visible": visible,
    }  # fmt: skip
    coordinates = {name: ds.coords[name] for name in ds.coords if set(ds.coords[name].dims) <= set(delta.dims)}
    return _described(numbers, (*map(str, delta.dims), "spike"), field.theta, coordinates)


def learned_by_training(law: Law, factorized: bool, field: FieldOutliers, location_err: np.ndarray) -> Law:
    """Return ``eigenvalue``, its error, ``visible`` and ``singular_value`` of outliers of S, spikes on the last axis.

    An outlier x of the field is learned as scale (x - eps) if x > ``kept_above``, otherwise as 0 (factorised S), or as
    scale x (full S). ``law`` holds scale, eps, their errors and ``kept_above`` at every point.
    """
    eps, eps_err, scale, scale_err = (law[name][..., None] for name in ("eps", "eps_err", "scale", "scale_err"))
    if not factorized:
        eps = eps_err = np.zeros_like(scale)
    excess = field.location - eps
    kept = (field.location > law["kept_above"][..., None]) if factorized else True
    visible = field.detached & kept
    eigenvalue = scale * np.where(kept | np.isnan(excess), excess, 0.0)
    error = np.where(visible, scale * (location_err + eps_err) + scale_err * np.abs(excess), 0.0)
    singular = np.sqrt(eigenvalue) if factorized else np.full_like(eigenvalue, np.nan)
    return {"eigenvalue": eigenvalue, "eigenvalue_err": error, "visible": visible, "singular_value": singular}


def learned_by_inference(field: FieldOutliers, location_err: np.ndarray) -> Law:
    """Return ``eigenvalue``, its error, ``visible`` and ``singular_value`` (nan) of the outliers of the posterior mean.

    An outlier x of the field gives the eigenvalue theta - delta^2 G(theta) = 2 theta - x.
    """
    eigenvalue = 2 * field.theta - field.location
    error = np.where(field.detached, location_err, 0.0)
    nothing = np.full_like(eigenvalue, np.nan)
    return {"eigenvalue": eigenvalue, "eigenvalue_err": error, "visible": field.detached, "singular_value": nothing}


def _measured(problem: Problem, ds: xr.Dataset) -> xr.Dataset:
    theta = np.asarray(problem.model.target.spikes, float)  # type: ignore[attr-defined]
    if "outlier_overlap" not in ds:
        reported = ", ".join(map(str, ds.data_vars))
        raise ValueError(f"outliers() needs outlier_overlap; this experiment reports {reported}")
    eigenvalue, overlap = ds["outlier_eigenvalue"].values, ds["outlier_overlap"]
    if overlap.sizes.get("spike", 0) < len(theta):
        raise ValueError(f"outliers() needs all {len(theta)} spikes: select from what it returns, not before")
    factorized = getattr(problem, "parameterization", "full") == "factorized"
    singular = np.sqrt(np.maximum(eigenvalue, 0.0)) if factorized else np.full(eigenvalue.shape, np.nan)
    numbers = {"eigenvalue": eigenvalue, "singular_value": singular, "overlap": overlap.values}
    coordinates = {name: ds.coords[name] for name in ds.coords if set(ds.coords[name].dims) <= set(overlap.dims)}
    return _described(numbers, tuple(map(str, overlap.dims)), theta, coordinates)


def _described(
    numbers: dict[str, np.ndarray], dims: tuple[str, ...], theta: np.ndarray, coordinates: dict[Hashable, xr.DataArray]
) -> xr.Dataset:
    variables = {"theta": ("spike", theta)} | {name: (dims, values) for name, values in numbers.items()}
    found = xr.Dataset(variables, coords=coordinates)
    for name, words in DESCRIPTIONS.items():
        if name in found:
            found[name].attrs["description"] = words
    return found
