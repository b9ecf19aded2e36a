"""Stack the outcomes of single points into one dataset. A point without an outcome is filled with NaN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from ..definitions.observable import Observable, with_attributes
from ..problem import Outcome, index_name
from ..status import Status
from .rows import INDEX_DIMENSIONS, Rows, label_name, own_dimensions

RESERVED = ("status", "status_code", "converged")


def assemble(
    outcomes: Sequence[Outcome | None],
    *,
    grid: Mapping[str, int],
    coordinates: Mapping[str, object],
    dimensions: Mapping[str, tuple[str, ...]],
    missing: Status,
    rows: Rows,
    definitions: Mapping[str, Observable] | None = None,
) -> xr.Dataset:
    """Return a dataset of the outcomes of all points, with ``status``, ``status_code`` and ``converged`` per point.

    Parameters
    ----------
    outcomes
        One per grid point in C order; None for a point without one.
    grid
        Grid dimension -> length.
    coordinates
        Coordinates of the grid dimensions, and scalar coordinates for fixed controls.
    dimensions
        Observable -> dimensions of its array at one point, which come after the grid dimensions. If their lengths
        differ from point to point, shorter arrays are padded with NaN.
    missing
        Status of a point without an outcome.
    rows
        The labels of ``index`` and ``index_other``. They become the coordinates ``index_label`` and
        ``index_other_label``; a point whose problem lacks a label has NaN there.
    definitions
        Name -> definition, which becomes the attributes of variables and coordinates; None sets no attributes.
    """
    own_dims = {name: own_dimensions(name, dimensions) for o in outcomes if o is not None for name in o.values}
    arrays = [None if o is None else {n: np.asarray(v) for n, v in o.values.items()} for o in outcomes]
    lengths = _own_lengths(arrays, own_dims, rows)
    names = {d: [index_name(rows.labels, i) for i in range(lengths[d])] for d in INDEX_DIMENSIONS if d in lengths}
    coordinates = {**coordinates, **{label_name(dim): (dim, labels) for dim, labels in names.items()}}
    _check_names(own_dims, [*grid, *coordinates])
    shape = tuple(grid.values())
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for name, dims in own_dims.items():
        column = [None if values is None else values.get(name) for values in arrays]
        stacked = _stack(column, dims, lengths, rows)
        variables[name] = ((*grid, *dims), stacked.reshape(shape + stacked.shape[1:]))
    endings = [Outcome({}, missing) if o is None else o for o in outcomes]
    variables["status"] = (tuple(grid), np.array([o.sentence for o in endings], dtype=str).reshape(shape))
    variables["status_code"] = (tuple(grid), np.array([o.how.code for o in endings], dtype=str).reshape(shape))
    variables["converged"] = (tuple(grid), np.array([o.converged for o in endings], dtype=bool).reshape(shape))
    ds = xr.Dataset(variables, coords=coordinates)
    return ds if definitions is None else with_attributes(ds, definitions)


def _check_names(own_dims: Mapping[str, tuple[str, ...]], taken: Sequence[str]) -> None:
    for name, dims in own_dims.items():
        if name in RESERVED or name in taken or name in {dim for other in own_dims.values() for dim in other}:
            raise ValueError(f"an observable cannot be called {name!r}: the name is taken by a coordinate or a status")
        if clash := set(dims) & set(taken):
            raise ValueError(f"observable {name!r} has a dimension {clash.pop()!r} that is also a control")


def _own_lengths(
    arrays: Sequence[Mapping[str, np.ndarray] | None], own_dims: Mapping[str, tuple[str, ...]], rows: Rows
) -> dict[str, int]:
    lengths: dict[str, int] = {}
    for i, values in enumerate(arrays):
        for name, array in (values or {}).items():
            dims = own_dims[name]
            if array.ndim != len(dims):
                raise ValueError(f"observable {name!r} has shape {array.shape}, its dimensions are {dims}")
            for dim, length in zip(dims, array.shape, strict=True):
                lengths[dim] = max(length, lengths.get(dim, 0))
                named = length if rows.places is None else len(rows.places[i])
                if dim in INDEX_DIMENSIONS and length != named:
                    raise ValueError(
                        f"observable {name!r} has {length} entries along {dim!r}, its problem has labels for {named}"
                    )
    moved = INDEX_DIMENSIONS if rows.places is not None else ()
    return {dim: len(rows.labels) if dim in moved else length for dim, length in lengths.items()}


def _stack(
    column: Sequence[np.ndarray | None], dims: Sequence[str], lengths: Mapping[str, int], rows: Rows
) -> np.ndarray:
    shape = tuple(lengths[dim] for dim in dims)
    present = [array for array in column if array is not None]
    dtype = np.result_type(*present)
    incomplete = len(present) < len(column) or any(array.shape != shape for array in present)
    if incomplete and dtype.kind in "biu":
        dtype = np.dtype(float)  # integers have no NaN
    fill: str | float = "" if dtype.kind == "U" else np.nan if dtype.kind in "fc" else 0
    stacked = np.full((len(column), *shape), fill, dtype=dtype)
    for i, array in enumerate(column):
        if array is not None:
            stacked[(i, *rows.where(i, dims, array.shape))] = array
    return stacked
