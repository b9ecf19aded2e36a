"""Interfaces that results and comparisons need in order to be plotted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import xarray as xr


class HasIndexLabels(Protocol):
    """Interface of a problem for plots: the labels of the entries along the dimension ``index``."""

    def index_labels(self) -> Sequence[str]: ...


@runtime_checkable
class HasDataset(Protocol):
    """Interface of a result for plots: dataset, kind ("theory", "experiment" or "thresholds"), problem.

    ``result[name]`` is a variable with the labels of its entries.
    """

    @property
    def ds(self) -> xr.Dataset: ...

    @property
    def kind(self) -> str: ...

    @property
    def problem(self) -> HasIndexLabels: ...

    def __getitem__(self, name: str, /) -> xr.DataArray: ...


class HasBothSides(Protocol):
    """Interface of a comparison for plots; see :class:`asymptotix.core.compare.Comparison`."""

    @property
    def ds(self) -> xr.Dataset: ...

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def theory(self) -> HasDataset: ...

    @property
    def experiment(self) -> HasDataset: ...

    @property
    def by(self) -> str | None: ...
