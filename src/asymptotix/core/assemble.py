"""Outcomes of single points stacked into one dataset. A point without an outcome keeps its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from .problem import Outcome

RESERVED = ("status", "converged")
INTERRUPTED = "interrupted before this point"
NO_RESULT = "the method returned nothing for this point"


def assemble(
    outcomes: Sequence[Outcome | None],
    *,
    grid: Mapping[str, int],
    coordinates: Mapping[str, Any],
    dimensions: Mapping[str, tuple[str, ...]],
    missing: str,
) -> xr.Dataset:
    """Stack outcomes into a dataset.

    Parameters
    ----------
    outcomes
        One per grid point in C order; None where there is none.
    grid
        Grid dimension -> length.
    coordinates
        Coordinates of the grid dimensions, and of what is fixed.
    dimensions
        Observable -> its own dimensions, which come after those of the grid. Where the lengths differ from
        point to point the shorter are padded with NaN.
    missing
        Status of a point without an outcome.
    """
    own_dims = {
        name: own_dimensions(name, dimensions) for o in outcomes if o is not None for name in o.values
    }
    _check_names(own_dims, [*grid, *coordinates])
    arrays = [None if o is None else {n: np.asarray(v) for n, v in o.values.items()} for o in outcomes]
    lengths = _own_lengths(arrays, own_dims)
    shape = tuple(grid.values())
    variables: dict[str, Any] = {}
    for name, dims in own_dims.items():
        column = [None if values is None else values.get(name) for values in arrays]
        stacked = _stack(column, tuple(lengths[dim] for dim in dims))
        variables[name] = ((*grid, *dims), stacked.reshape(shape + stacked.shape[1:]))
    statuses = np.array([missing if o is None else o.status for o in outcomes], dtype=str)
    converged = np.array([o is not None and bool(o.converged) for o in outcomes], dtype=bool)
    variables["status"] = (tuple(grid), statuses.reshape(shape))
    variables["converged"] = (tuple(grid), converged.reshape(shape))
    return xr.Dataset(variables, coords=dict(coordinates))


def own_dimensions(name: str, dimensions: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the dimensions of an observable; errors and traces follow the observable they belong to."""
    if name in dimensions:
        return tuple(dimensions[name])
    if name.endswith("_err"):
        return own_dimensions(name.removesuffix("_err"), dimensions)
    if name.endswith("_trace"):
        return ("iteration", *own_dimensions(name.removesuffix("_trace"), dimensions))
    return ()


def _check_names(own_dims: Mapping[str, tuple[str, ...]], taken: Sequence[str]) -> None:
    for name, dims in own_dims.items():
        if name in RESERVED or name in taken or name in {dim for other in own_dims.values() for dim in other}:
            raise ValueError(
                f"an observable cannot be called {name!r}: the name is taken by a coordinate or a status"
            )
        if clash := set(dims) & set(taken):
            raise ValueError(f"observable {name!r} has a dimension {clash.pop()!r} that is also a control")


def _own_lengths(arrays: Sequence[Mapping[str, np.ndarray] | None], own_dims: Mapping) -> dict[str, int]:
    lengths: dict[str, int] = {}
    for values in arrays:
        for name, array in (values or {}).items():
            dims = own_dims[name]
            if array.ndim != len(dims):
                raise ValueError(f"observable {name!r} has shape {array.shape}, its dimensions are {dims}")
            for dim, length in zip(dims, array.shape, strict=True):
                lengths[dim] = max(length, lengths.get(dim, 0))
    return lengths


def _stack(column: Sequence[np.ndarray | None], shape: tuple[int, ...]) -> np.ndarray:
    present = [array for array in column if array is not None]
    dtype = np.result_type(*present)
    incomplete = len(present) < len(column) or any(array.shape != shape for array in present)
    if incomplete and dtype.kind in "biu":
        dtype = np.dtype(float)  # NaN has no place among integers
    fill: Any = "" if dtype.kind == "U" else np.nan if dtype.kind in "fc" else 0
    stacked = np.full((len(column), *shape), fill, dtype=dtype)
    for i, array in enumerate(column):
        if array is not None:
            stacked[(i, *(slice(length) for length in array.shape))] = array
    return stacked
