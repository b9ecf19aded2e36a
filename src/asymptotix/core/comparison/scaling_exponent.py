"""Local exponents of a curve: the power of a control with which an observable grows or falls."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import xarray as xr

from ...numerics import checks
from ..words import format_number


class _WithDataset(Protocol):
    @property
    def ds(self) -> xr.Dataset: ...

    @property
    def problem(self) -> object: ...


@dataclass(frozen=True, repr=False)
class ScalingExponent:
    """The exponent p of observable ~ along^p, at every point and as a mean over a window.

    Attributes
    ----------
    observable, along : str
        Names of the observable and of the control.
    local : xarray.Dataset
        ``slope``, the logarithmic derivative at every point of the result, and ``slope_err``, its error from the
        numerical or statistical errors of the observable.
    mean, error : xarray.DataArray
        Slope of a straight line through the logarithms in the window, and its error from the observable's errors.
    spread : xarray.DataArray
        Half the difference between the largest and the smallest local slope in the window: a measure of the deviation
        from a power law.
    window : pair of float
        First and last value of ``along`` used for mean, error and spread.
    words : str
        Reason why no power law is expected; "" where one is expected.
    """

    observable: str
    along: str
    local: xr.Dataset
    mean: xr.DataArray
    error: xr.DataArray
    spread: xr.DataArray
    window: tuple[float, float]
    words: str = ""

    def __repr__(self) -> str:
        between = f"{self.along} from {self.window[0]:.4g} to {self.window[1]:.4g}"
        if self.mean.ndim:
            found = f"slopes from {float(self.mean.min()):.3f} to {float(self.mean.max()):.3f}"
        else:
            found = f"~ {self.along}^{format_number(float(self.mean), max(float(self.error), float(self.spread)))}"
        return (
            f"<asymptotix scaling exponent: {self.observable} {found}, {between}{'; ' * bool(self.words)}{self.words}>"
        )


def scaling_exponent(
    result: _WithDataset,
    observable: str = "excess_error",
    along: str = "alpha",
    window: tuple[float, float] | None = None,
) -> ScalingExponent:
    """Return the local logarithmic slope of an observable, and its mean and spread over a window.

    Parameters
    ----------
    result : Result
        Result of a theory, or of an experiment, for which the mean over seeds is used.
    observable : str
        An observable that is positive along the dimension. Points without a number are skipped and have no slope.
    along : str
        A dimension of the result with at least three values, all positive.
    window : pair of float, optional
        First and last value of ``along`` for the mean and the spread, both included; by default all values.

    Returns
    -------
    ScalingExponent
        The local slopes, and mean, error and spread as arrays along the other dimensions of the observable.

    Examples
    --------
    >>> import numpy as np
    >>> import asymptotix as asx
    >>> target = asx.RankedPowerLaw(gamma=1.5, dim=10**4)
    >>> task = asx.AttentionIndex(tokens=1, activation="linear", target=target)
    >>> theory = asx.solve(asx.RiskMinimization(task, weight_decay=10.0), alpha=np.geomspace(0.3, 3, 4))
    >>> float(asx.scaling_exponent(theory).mean.round(2))      # over-regularised: tends to -(2 - 1/gamma) = -4/3
    -1.31
    """
    if not hasattr(result, "ds"):
        raise TypeError(f"result must be that of solve or simulate, got {checks.named(result)}")
    values, errors = _values(result.ds, observable, along)
    x = values[along].values.astype(float)
    if len(x) < 3 or not (x > 0).all() or not (np.diff(x) > 0).all():
        raise ValueError(f"{along} must have three or more positive, ascending values, got {x}")
    if (values <= 0).any():
        at = values.where(values <= 0, drop=True)[along].values[0]
        raise ValueError(
            f"{observable} must be positive for a slope of its logarithm, got a value below at {along}={at:g}"
        )
    low, high = _window(window, x)
    inside = (x >= low) & (x <= high)
    if inside.sum() < 2:
        raise ValueError(f"window must contain two or more of the values of {along}, got {window} and {x}")
    slopes: tuple[xr.DataArray, ...] = xr.apply_ufunc(
        _slopes, xr.DataArray(np.log(values)), errors / values, kwargs={"log_x": np.log(x), "inside": inside},
        input_core_dims=[[along], [along]], output_core_dims=[[along], [along], [], [], []], vectorize=True,
    )  # fmt: skip
    slope, slope_err, mean, error, spread = slopes
    local = xr.Dataset({"slope": slope, "slope_err": slope_err}).transpose(along, ...)
    return ScalingExponent(observable, along, local, mean, error, spread, (low, high), _no_power_law(result.problem))


def _slopes(
    y: np.ndarray, share: np.ndarray, *, log_x: np.ndarray, inside: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float, float, float]:
    """Return local slopes and errors (points,), then slope and error of a line in the window, and the spread there.

    ``y`` and ``log_x`` are logarithms of observable and control, ``share`` the relative error of the observable,
    ``inside`` the mask of the window. Points without a number are skipped.
    """
    slope, slope_err = np.full((2, len(y)), np.nan)
    known = np.isfinite(y)
    seen = known & inside
    if seen.sum() < 2:
        return slope, slope_err, np.nan, np.nan, np.nan
    # Row i holds the weights of all points in the local slope at point i.
    by_point = np.asarray(np.gradient(np.eye(known.sum()), log_x[known], axis=0))
    slope[known], slope_err[known] = by_point @ y[known], np.sqrt(by_point**2 @ share[known] ** 2)
    centred = log_x[seen] - log_x[seen].mean()
    line = centred / (centred**2).sum()
    error = float(np.sqrt(line**2 @ share[seen] ** 2))
    return slope, slope_err, float(line @ y[seen]), error, 0.5 * float(np.ptp(slope[seen]))


def _values(ds: xr.Dataset, observable: str, along: str) -> tuple[xr.DataArray, xr.DataArray]:
    """Return an observable and its numerical error (zero if unknown); with seeds, mean and standard error over them."""
    if observable not in ds.data_vars:
        raise ValueError(f"observable must be one of {', '.join(map(str, ds.data_vars))}, got {observable!r}")
    values = ds[observable]
    if along not in values.dims or along not in values.coords:
        dims = ", ".join(str(dim) for dim in values.dims if dim in values.coords) or "none"
        raise ValueError(f"along must be a dimension of {observable} with values, here {dims}, got {along!r}")
    errors = ds[f"{observable}_err"] if f"{observable}_err" in ds else xr.zeros_like(values)
    if "seed" in values.dims:
        count = np.maximum(values.notnull().sum("seed"), 1)
        errors = values.std("seed", ddof=1) / np.sqrt(count) if values.sizes["seed"] > 1 else errors.mean("seed")
        values = values.mean("seed")
    return values, errors


def _window(window: tuple[float, float] | None, x: np.ndarray) -> tuple[float, float]:
    if window is None:
        return float(x[0]), float(x[-1])
    low, high = (float(checks.positive("window", end)) for end in checks.array_of_shape("window", window, (2,)))
    if not low < high:
        raise ValueError(f"window must be ascending, got {window}")
    return low, high


def _no_power_law(description: object) -> str:
    """Return the attribute ``no_power_law`` of the first part of the description that has one, or ""."""
    words = getattr(description, "no_power_law", "")
    if words or not dataclasses.is_dataclass(description):
        return words
    parts = (getattr(description, field.name, None) for field in dataclasses.fields(description))
    return next((found for part in parts if (found := _no_power_law(part))), "")
