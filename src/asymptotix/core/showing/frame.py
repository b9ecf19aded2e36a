"""Results as pandas tables: a row per point, or a row per entry of one observable."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ..dataset.assemble import RESERVED

if TYPE_CHECKING:
    import pandas as pd


def table_of_points(ds: xr.Dataset) -> pd.DataFrame:
    """Return a table with one row per point: controls, observables with errors, and status.

    An entry along an observable's own dimensions has a column named by its labels: ``overlap[layer 1, layer 2]``.
    Traces (values at every iteration) are left out; :func:`table_of_entries` gives them a row per iteration.
    """
    import pandas as pd

    grid = [str(dim) for dim in ds["status"].dims]
    columns = _controls(ds, grid)
    for name, values in ds.data_vars.items():
        if name in RESERVED or "iteration" in values.dims:
            continue
        own = [str(dim) for dim in values.dims if dim not in grid]
        flat = xr.broadcast(values, ds["status"])[0].transpose(*grid, *own).values
        flat = flat.reshape(ds["status"].size, -1)
        for place, column in enumerate(entry_columns(values, own)):
            columns[column] = flat[:, place]
    for name in RESERVED:
        columns[name] = ds[name].values.ravel()
    return pd.DataFrame(columns)


def table_of_entries(ds: xr.Dataset, name: str) -> pd.DataFrame:
    """Return a table with one row per point and entry of an observable.

    Columns: controls, labels of the entry, number, its error if there is one, status.
    """
    import pandas as pd

    values = ds[name]
    grid = [str(dim) for dim in ds["status"].dims]
    own = [str(dim) for dim in values.dims if dim not in grid]
    whole = xr.broadcast(values, ds["status"])[0].transpose(*grid, *own)
    columns = {control: np.repeat(given, _entries(whole, own)) for control, given in _controls(ds, grid).items()}
    places = np.indices(whole.shape).reshape(whole.ndim, -1)
    for dim in own:
        columns[dim] = _names(values, dim)[places[whole.dims.index(dim)]]
    columns[name] = whole.values.ravel()
    if f"{name}_err" in ds:
        columns[f"{name}_err"] = xr.broadcast(ds[f"{name}_err"], whole)[0].transpose(*whole.dims).values.ravel()
    columns["status"] = np.repeat(ds["status"].values.ravel(), _entries(whole, own))
    return pd.DataFrame(columns)


def _controls(ds: xr.Dataset, grid: list[str]) -> dict[str, np.ndarray]:
    """Return control -> values at all points (points,), in C order of the dimensions ``grid``; also fixed controls."""
    fixed = {str(name): coord.item() for name, coord in ds.coords.items() if not coord.ndim}
    found = {name: np.full(ds["status"].size, value) for name, value in fixed.items() if not name.endswith("_label")}
    positions = np.indices(ds["status"].shape).reshape(len(grid), -1) if grid else np.zeros((0, 1), int)
    return {dim: ds[dim].values[positions[k]] for k, dim in enumerate(grid)} | found


def entry_columns(values: xr.DataArray, own: Sequence[str]) -> list[str]:
    """Return the column names of an observable: one for each entry along the dimensions ``own``, in C order."""
    if not own:
        return [str(values.name)]
    entries = itertools.product(*(_names(values, dim) for dim in own))
    return [f"{values.name}[{', '.join(map(str, entry))}]" for entry in entries]


def _names(values: xr.DataArray, dim: str) -> np.ndarray:
    """Return the coordinate of a dimension (labels or iterations), or the numbers 1, 2, ... if it has none."""
    if dim in values.coords:
        return values[dim].values
    return np.arange(1, values.sizes[dim] + 1)


def _entries(whole: xr.DataArray, own: list[str]) -> int:
    return int(np.prod([whole.sizes[dim] for dim in own], dtype=int))
