"""Entries of an observable's own dimensions told by their names: ``overlap.sel(index="layer 2")``.

The names are coordinates in memory only. Files keep what they always kept, the labels of ``index`` beside it, so that
old files gain names when they are read and new ones are read by whatever read the old.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from xarray.core.indexing import IndexSelResult
from xarray.indexes import PandasIndex

from ..problem import index_name
from .rows import INDEX_DIMENSIONS, label_name, row_key


class LabelIndex(PandasIndex):
    """Finds entries by their labels, and still by their positions from 0, as without labels."""

    def sel(self, labels: dict[Any, Any], method: Any = None, tolerance: Any = None) -> IndexSelResult:
        """Positions of labels, of positions, or of several of them. How numbers are matched does not concern words."""
        ((_, wanted),) = labels.items()
        if isinstance(wanted, slice):
            return IndexSelResult({self.dim: self._slice(wanted)})
        given = wanted.values if isinstance(wanted, xr.DataArray | xr.Variable) else np.asarray(wanted)
        if given.dtype.kind == "b":
            return IndexSelResult({self.dim: given})
        found = np.array([self._position(one) for one in given.ravel().tolist()], dtype=int).reshape(given.shape)
        if isinstance(wanted, xr.DataArray | xr.Variable):  # selects along its own dimensions
            return IndexSelResult({self.dim: wanted.copy(data=found)})
        return IndexSelResult({self.dim: int(found) if found.ndim == 0 else found})

    def _slice(self, wanted: slice) -> slice:
        """As pandas has it, words include their end and positions do not."""
        ends = (wanted.start, wanted.stop)
        start, stop = (None if end is None else self._position(end, of_slice=True) for end in ends)
        return slice(start, stop + 1 if isinstance(wanted.stop, str) and stop is not None else stop, wanted.step)

    def _position(self, wanted: Any, *, of_slice: bool = False) -> int:
        known = [str(label) for label in self.index]
        if isinstance(wanted, int):
            if of_slice or -len(known) <= wanted < len(known):
                return wanted
            raise KeyError(f"{self.dim} has positions 0 to {len(known) - 1}, got {wanted}")
        if wanted in known:
            return known.index(wanted)
        keys = [row_key(label) for label in known]
        # "layer 2" is "layer 2 row 1" where every layer has one row, and only there.
        if isinstance(wanted, str) and sum(label.startswith(f"{wanted} ") for label in known) < 2:
            if keys.count(row_key(wanted)) == 1:
                return keys.index(row_key(wanted))
        raise KeyError(f"{self.dim} has no {wanted!r}; it has {', '.join(map(repr, known))}")


def labelled(ds: xr.Dataset, problem: Any) -> xr.Dataset:
    """The dataset with the names of the entries of its own dimensions as coordinates, where they are known.

    Those of ``index`` are what the dataset itself says; of another dimension ``path`` what the problem's method
    ``path_labels()`` gives, if it has one.
    """
    for dim in map(str, ds.dims):
        # A dimension without a coordinate has one when it is asked for: its positions.
        if dim in ds.coords and (is_grid(ds, dim) or isinstance(ds.xindexes.get(dim), LabelIndex)):
            continue
        labels = entry_labels(ds, problem, dim)
        if labels is not None and len(set(labels)) == len(labels):
            ds = _with_labels(ds.drop_vars(dim, errors="ignore"), dim, labels)
    return ds


def unlabelled(ds: xr.Dataset) -> xr.Dataset:
    """The dataset as a file has it."""
    return ds.drop_vars([name for name, index in ds.xindexes.items() if isinstance(index, LabelIndex)])


def entry_labels(ds: xr.Dataset, problem: Any, dim: str) -> list[str] | None:
    """What the entries along a dimension are called; None where nobody knows."""
    if (name := label_name(dim)) in ds.coords and ds[name].dims == (dim,):
        return [str(label) for label in ds[name].values]
    length = ds.sizes[dim]
    own: Sequence[str] = _labels_of(problem, dim.removesuffix("_other"))
    if dim in INDEX_DIMENSIONS:
        return [index_name(own, i) for i in range(length)]
    return list(own) if len(own) == length else None


def _labels_of(problem: Any, dim: str) -> Sequence[str]:
    method: Any = getattr(problem, f"{dim}_labels", None)
    if not callable(method):
        return ()
    labels: Any = method()
    return [str(label) for label in labels]


def _with_labels(ds: xr.Dataset, dim: str, labels: Sequence[str]) -> xr.Dataset:
    variable = xr.Variable((dim,), np.asarray(labels, dtype=str))
    index = LabelIndex.from_variables({dim: variable}, options={})
    return ds.assign_coords(xr.Coordinates({dim: variable}, indexes={dim: index}))


def is_grid(values: xr.DataArray | xr.Dataset, dim: Any) -> bool:
    """Whether a dimension is one that a control, a size or a seed has given: its coordinate is of numbers."""
    return dim in values.coords and values.coords[dim].dtype.kind not in "UO"
