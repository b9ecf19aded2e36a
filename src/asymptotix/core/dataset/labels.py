"""Select entries along an observable's own dimensions by label: ``overlap.sel(index="layer 2")``.

The dataset of a result, and its file, keep the labels in a separate coordinate such as ``index_label``, so that code
which counts positions is not affected. Arrays read from a result have the labels as coordinates of their dimensions.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeVar

import numpy as np
import xarray as xr
from xarray.core.indexing import IndexSelResult
from xarray.indexes import PandasIndex

from ..definitions.observable import with_attributes
from ..problem import Problem
from .rows import INDEX_DIMENSIONS, label_name, label_position


class LabelIndex(PandasIndex):
    """An index of xarray that finds entries by label, and also by position counted from 0."""

    def sel(self, labels: dict[Any, Any], method: Any = None, tolerance: Any = None) -> IndexSelResult:
        """Return the positions that a label, a position, an array or a slice selects; other arguments are ignored."""
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
        """Return a slice of positions. As in pandas, a slice of labels includes its end, one of positions does not."""
        ends = (wanted.start, wanted.stop)
        start, stop = (None if end is None else self._position(end, of_slice=True) for end in ends)
        return slice(start, stop + 1 if isinstance(wanted.stop, str) and stop is not None else stop, wanted.step)

    def _position(self, wanted: object, *, of_slice: bool = False) -> int:
        known = [str(label) for label in self.index]
        if isinstance(wanted, int):
            if of_slice or -len(known) <= wanted < len(known):
                return wanted
            raise KeyError(f"{self.dim} has positions 0 to {len(known) - 1}, got {wanted}")
        position = label_position(wanted, known) if isinstance(wanted, str) else None
        if position is not None:
            return position
        raise KeyError(f"{self.dim} has no {wanted!r}; it has {', '.join(map(repr, known))}")


Labelled = TypeVar("Labelled", xr.DataArray, xr.Dataset)


def labelled(values: Labelled, problem: object) -> Labelled:
    """Return the values with labels, stored or from the problem, as coordinates of their own dimensions."""
    for dim in map(str, values.dims):
        # xarray returns positions for a dimension without a coordinate.
        if is_grid(values, dim):
            continue
        labels = entry_labels(values, problem, dim)
        if labels is not None and len(set(labels)) == len(labels):
            variable = xr.Variable((dim,), np.asarray(labels, dtype=str))
            index = LabelIndex.from_variables({dim: variable}, options={})
            values = values.drop_vars(dim, errors="ignore").assign_coords(
                xr.Coordinates({dim: variable}, indexes={dim: index})
            )
    return values


def unlabelled(ds: xr.Dataset) -> xr.Dataset:
    """Return the dataset without the coordinates that :func:`labelled` added, as a result and its file store it."""
    return ds.drop_vars([name for name, index in ds.xindexes.items() if isinstance(index, LabelIndex)])


def with_label_coordinates(ds: xr.Dataset, problem: Problem) -> xr.Dataset:
    """Return the dataset with a coordinate ``<dim>_label`` for every dimension of which the problem has labels.

    The labels of ``path`` and ``path_other``, for example, come from the problem's method ``path_labels()``. Those of
    ``index`` may change from point to point and were added when the outcomes were assembled.
    """
    given: dict[str, tuple[str, list[str]]] = {}
    for dim in map(str, ds.dims):
        known = () if dim in INDEX_DIMENSIONS else _labels_of(problem, dim.removesuffix("_other"))
        if len(known) == ds.sizes[dim] and label_name(dim) not in ds.coords:
            given[label_name(dim)] = (dim, list(known))
    if not given:
        return ds
    told = with_attributes(xr.Dataset(coords=given), problem.observables())
    return ds.assign_coords({name: told[name] for name in given})


def entry_labels(values: xr.DataArray | xr.Dataset, problem: object, dim: str) -> list[str] | None:
    """Return the labels of entries along a dimension, stored or from the problem; None if there are none."""
    if (name := label_name(dim)) in values.coords and values[name].dims == (dim,):
        return [str(label) for label in values[name].values]
    own = _labels_of(problem, dim.removesuffix("_other"))  # a file of an earlier version
    return list(own) if own and len(own) == values.sizes[dim] else None


def _labels_of(problem: object, dim: str) -> Sequence[str]:
    method: Any = getattr(problem, f"{dim}_labels", None)
    if not callable(method):
        return ()
    labels: Any = method()  # pyright infers that any callable returns an object
    return [str(label) for label in labels]


def is_grid(values: xr.DataArray | xr.Dataset, dim: Hashable) -> bool:
    """Return whether a dimension belongs to the grid (controls, sizes, seeds): it has a coordinate of numbers."""
    return dim in values.coords and values.coords[dim].dtype.kind not in "UO"
