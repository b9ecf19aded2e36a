"""Selection by coordinate value, with an error that names the nearest values if one is missing."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from .labels import labelled

#: Number of nearest values that an error names.
NEAREST_SHOWN = 2


def positions(grid: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return each value's position on the coordinate ``grid``, -1 if missing. Fractions may differ by 1e-9 relative."""
    there, wanted = np.atleast_1d(grid), values[..., None]
    if there.dtype.kind in "iu" and wanted.dtype.kind in "iu":  # seeds and sizes must be equal exactly
        same = wanted == there
    else:
        same = np.isclose(wanted, there, rtol=1e-9, atol=0)
    return np.where(same.any(-1), same.argmax(-1), -1)


def selected_by_name(
    ds: xr.Dataset, problem: object, indexers: Mapping[Any, Any] | None = None, **options: Any
) -> xr.Dataset:
    """Return what :func:`selected` does; entries may also be given by the labels of the dataset or its problem."""
    named = labelled(ds, problem)
    added = [name for name in named.coords if name not in ds.coords]
    return selected(named, indexers, **options).drop_vars(added)


def selected(ds: xr.Dataset, indexers: Mapping[Any, Any] | None = None, **options: Any) -> xr.Dataset:
    """Return the part of a dataset at values, as :meth:`xarray.Dataset.sel` does; they may differ in the last digits.

    ``options``: further indexers, dimension=value, and xarray's method, tolerance and drop.

    Raises
    ------
    KeyError
        If there is no such entry; the error names the nearest values, the dimensions or the labels.
    """
    how = {name: options.pop(name) for name in ("method", "tolerance", "drop") if name in options}
    wanted = {**(indexers or {}), **options}
    for name in wanted:
        if name not in ds.dims:
            raise KeyError(f"there is no dimension {name!r} to select from{_why(ds, name)}")
    if how.get("method") is None:
        wanted = {name: _on_grid(ds, name, value) for name, value in wanted.items()}
        return ds.sel(wanted, **how)
    # "nearest" needs a coordinate of numbers: dimensions without a coordinate are selected first, by position.
    plain = {name: value for name, value in wanted.items() if name not in ds.coords}
    return ds.isel(plain).sel({name: value for name, value in wanted.items() if name not in plain}, **how)


def _on_grid(ds: xr.Dataset, name: Hashable, given: Any) -> Any:
    """Return numbers replaced by the values of the coordinate ``name``; anything else, such as a slice, unchanged."""
    if name not in ds.coords or ds[name].dtype.kind not in "iuf" or isinstance(given, slice):
        return given
    known = ds[name]
    values = np.asarray(given)
    if values.dtype.kind not in "iuf":
        return given
    found = positions(known.values, values)
    if (found < 0).any():
        raise KeyError(_not_there(name, known.values, float(values[found < 0].flat[0])))
    exact = known.values[found]
    return given.copy(data=exact) if isinstance(given, xr.DataArray | xr.Variable) else exact


def _not_there(name: Hashable, grid: np.ndarray, value: float) -> str:
    with np.errstate(invalid="ignore"):
        distance = np.abs(grid - value)
    near = np.sort(grid[np.argsort(np.where(np.isnan(distance), np.inf, distance), kind="stable")[:NEAREST_SHOWN]])
    return (
        f"{name} = {value:g} is not on the grid; the nearest there are {', '.join(f'{one:.6g}' for one in near)}. "
        f'Take the nearest with sel({name}={value:g}, method="nearest"), or compute it: put {value:g} on the grid'
    )


def _why(ds: xr.Dataset, name: Hashable) -> str:
    if name in ds.coords and ds[name].ndim == 0:
        return f": {name} is {ds[name].item()!r} throughout"
    return f"; there are {', '.join(map(str, ds.dims)) or 'none'}"
