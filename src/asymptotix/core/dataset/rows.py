"""Labels of the entries of ``index`` (rows of the weights), which align the entries of different problems."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from ..problem import Outcome

#: Dimensions whose entries are aligned by label if a swept field changes them.
INDEX_DIMENSIONS = ("index", "index_other")


@dataclass(frozen=True)
class Rows:
    """The labels of ``index`` in a dataset, and the positions of every point's own entries among them.

    Parameters
    ----------
    labels
        Labels of the dataset's entries; empty where the problem has no labels.
    places
        For every point, the positions of its entries among ``labels``; None where all points have the same entries.
    """

    labels: tuple[str, ...] = ()
    places: tuple[np.ndarray, ...] | None = None

    def where(self, point: int, dims: Sequence[str], shape: Sequence[int]) -> tuple[slice | np.ndarray, ...]:
        """Return the index of a point's array (``dims``, ``shape``) in the dataset's array; ``point`` in C order."""
        if self.places is None or not set(dims) & set(INDEX_DIMENSIONS):
            return tuple(slice(n) for n in shape)
        places = self.places[point]
        return np.ix_(*(places if dim in INDEX_DIMENSIONS else range(n) for dim, n in zip(dims, shape, strict=True)))

    def taken(
        self, outcomes: Sequence[Outcome | None], dimensions: Mapping[str, tuple[str, ...]]
    ) -> list[Outcome | None]:
        """Return outcomes that were read from a dataset, reduced to the entries of each point's own problem."""
        if self.places is None:
            return list(outcomes)
        return [o and _taken(o, places, dimensions) for o, places in zip(outcomes, self.places, strict=True)]


def common_rows(own: Sequence[Sequence[str]], swept: Sequence[str] = ()) -> Rows:
    """Return the rows of a dataset from the labels ``own`` of each point; empty if a point has no labels.

    The labels of the point with most entries come first, then those that it lacks. Entries are identified by label, not
    by position: the second row is layer 2 in one model and another row of layer 1 in the next. ``swept`` are the fields
    that an error names.
    """
    distinct = sorted(dict.fromkeys(map(tuple, own)), key=len, reverse=True)
    if not all(distinct):  # without labels only the position identifies an entry
        return Rows()
    if len(distinct) == 1:
        return Rows(distinct[0])
    found: dict[str, str] = {}
    for labels in distinct:
        if len({row_key(label) for label in labels}) < len(labels):
            raise ValueError(
                f"{' and '.join(swept)} cannot be swept: with the indices their labels change, and the labels "
                f"{', '.join(labels)} do not tell them apart"
            )
        for label in labels:
            found.setdefault(row_key(label), label)
    order = {key: position for position, key in enumerate(found)}
    places = {labels: np.array([order[row_key(label)] for label in labels]) for labels in distinct}
    return Rows(tuple(found.values()), tuple(places[tuple(labels)] for labels in own))


def row_key(label: str) -> str:
    """Return a label without parts numbered 1, so that "layer 2" and "layer 2 row 1" become equal."""
    return " ".join(re.sub(r"\b[^\W\d]+ 1\b", "", label).split())


def label_position(wanted: str, known: Sequence[str]) -> int | None:
    """Return the position of ``wanted`` among the labels ``known``; None if it fits no label or more than one."""
    if wanted in known:
        return list(known).index(wanted)
    # "layer 2" means "layer 2 row 1" only where that layer has a single row.
    keys = [row_key(label) for label in known]
    rows = sum(label.startswith(f"{wanted} ") for label in known)
    return keys.index(row_key(wanted)) if rows < 2 and keys.count(row_key(wanted)) == 1 else None


def in_rows(ds: xr.Dataset, labels: Mapping[str, Sequence[str]]) -> xr.Dataset:
    """Return a dataset with its labelled dimensions reindexed to ``labels``: NaN where it lacks a label."""
    for dim, wanted in labels.items():
        name = label_name(dim)
        if name not in ds.coords or ds[name].dims != (dim,) or ds[name].values.tolist() == list(wanted):
            continue
        keyed = ds.drop_vars(name).assign_coords({dim: [row_key(label) for label in ds[name].values]})
        ds = keyed.reindex({dim: [row_key(label) for label in wanted]}).drop_vars(dim)
        ds = ds.assign_coords({name: (dim, list(wanted))})
    return ds


def row_labels(ds: xr.Dataset) -> dict[str, list[str]]:
    """Return dimension -> labels, for those of ``index`` and ``index_other`` that have labels in the dataset."""
    names = {dim: label_name(dim) for dim in INDEX_DIMENSIONS}
    return {dim: ds[name].values.tolist() for dim, name in names.items() if name in ds.coords and dim in ds.dims}


def label_name(dim: str) -> str:
    """Return the name of the coordinate that holds the labels of a dimension."""
    return f"{dim}_label"


def own_dimensions(name: str, dimensions: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the dimensions of ``name``; ``<name>_err`` has those of ``<name>``, a trace also ``iteration`` first."""
    if name in dimensions:
        return tuple(dimensions[name])
    if name.endswith("_err"):
        return own_dimensions(name.removesuffix("_err"), dimensions)
    if name.endswith("_trace"):
        return ("iteration", *own_dimensions(name.removesuffix("_trace"), dimensions))
    return ()


def _taken(outcome: Outcome, places: np.ndarray, dimensions: Mapping[str, tuple[str, ...]]) -> Outcome:
    values: dict[str, np.ndarray] = {}
    for name, value in outcome.values.items():
        values[name] = np.asarray(value)
        for axis, dim in enumerate(own_dimensions(name, dimensions)):
            if dim in INDEX_DIMENSIONS:
                values[name] = values[name].take(places, axis)
    return replace(outcome, values=values)
