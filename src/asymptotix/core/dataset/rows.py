"""The entries of ``index``: by which labels they are told, where problems in one dataset have different ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from ..problem import Outcome

INDEX_DIMENSIONS = ("index", "index_other")


@dataclass(frozen=True)
class Rows:
    """What the entries of ``index`` are called in a dataset, and where those of every point lie in it.

    Parameters
    ----------
    labels
        Of the dataset; none where the problem has none.
    places
        Of the entries of every point among them; None where all points have the same entries.
    """

    labels: tuple[str, ...] = ()
    places: tuple[np.ndarray, ...] | None = None

    def where(self, point: int, dims: Sequence[str], shape: Sequence[int]) -> tuple[Any, ...]:
        """Where the numbers of a point, of this shape, lie along the dimensions of the dataset."""
        if self.places is None or not set(dims) & set(INDEX_DIMENSIONS):
            return tuple(slice(n) for n in shape)
        places = self.places[point]
        return np.ix_(*(places if dim in INDEX_DIMENSIONS else range(n) for dim, n in zip(dims, shape, strict=True)))

    def taken(
        self, outcomes: Sequence[Outcome | None], dimensions: Mapping[str, tuple[str, ...]]
    ) -> list[Outcome | None]:
        """Outcomes that were read from a dataset, with the entries of their own point only."""
        if self.places is None:
            return list(outcomes)
        return [o and _taken(o, places, dimensions) for o, places in zip(outcomes, self.places, strict=True)]


def common_rows(own: Sequence[Sequence[str]], swept: Sequence[str] = ()) -> Rows:
    """The rows of a dataset whose points have the labels ``own``: those of the largest, then what it lacks.

    Entries are told by their labels, not by their position: the second row is layer 2 in one model and another row of
    layer 1 in the next. ``swept`` are the fields that an error names.
    """
    distinct = sorted(dict.fromkeys(map(tuple, own)), key=len, reverse=True)
    if not all(distinct):  # without labels there is nothing but the position
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
    """What tells an entry from others: its label without the firsts, for "layer 2" is "layer 2 row 1" elsewhere."""
    return " ".join(re.sub(r"\b[^\W\d]+ 1\b", "", label).split())


def label_position(wanted: str, known: Sequence[str]) -> int | None:
    """Which of the labels is meant; None where none is, or several may be."""
    if wanted in known:
        return list(known).index(wanted)
    # "layer 2" is "layer 2 row 1" where that layer has one row, and only there.
    keys = [row_key(label) for label in known]
    rows = sum(label.startswith(f"{wanted} ") for label in known)
    return keys.index(row_key(wanted)) if rows < 2 and keys.count(row_key(wanted)) == 1 else None


def in_rows(ds: xr.Dataset, labels: Mapping[str, Sequence[str]]) -> xr.Dataset:
    """A dataset with other entries along dimensions that have labels: NaN where it has none of that label."""
    for dim, wanted in labels.items():
        name = label_name(dim)
        if name not in ds.coords or ds[name].dims != (dim,) or ds[name].values.tolist() == list(wanted):
            continue
        keyed = ds.drop_vars(name).assign_coords({dim: [row_key(label) for label in ds[name].values]})
        ds = keyed.reindex({dim: [row_key(label) for label in wanted]}).drop_vars(dim)
        ds = ds.assign_coords({name: (dim, list(wanted))})
    return ds


def row_labels(ds: xr.Dataset) -> dict[str, list[str]]:
    """The labels of every dimension of a dataset that has some."""
    names = {dim: label_name(dim) for dim in INDEX_DIMENSIONS}
    return {dim: ds[name].values.tolist() for dim, name in names.items() if name in ds.coords and dim in ds.dims}


def label_name(dim: str) -> str:
    """The coordinate that holds the labels along a dimension."""
    return f"{dim}_label"


def own_dimensions(name: str, dimensions: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the dimensions of an observable; errors and traces follow the observable they belong to."""
    if name in dimensions:
        return tuple(dimensions[name])
    if name.endswith("_err"):
        return own_dimensions(name.removesuffix("_err"), dimensions)
    if name.endswith("_trace"):
        return ("iteration", *own_dimensions(name.removesuffix("_trace"), dimensions))
    return ()


def _taken(outcome: Outcome, places: np.ndarray, dimensions: Mapping[str, tuple[str, ...]]) -> Outcome:
    values: dict[str, Any] = {}
    for name, value in outcome.values.items():
        values[name] = np.asarray(value)
        for axis, dim in enumerate(own_dimensions(name, dimensions)):
            if dim in INDEX_DIMENSIONS:
                values[name] = values[name].take(places, axis)
    return replace(outcome, values=values)
