"""Protocols of results and comparisons that can be plotted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import xarray as xr


class HasIndexLabels(Protocol):
    """The part of a problem that plots use: the labels of the entries of ``index``."""

    def index_labels(self) -> Sequence[str]: ...


@runtime_checkable
class HasDataset(Protocol):
    """The part of a result that plots use: a dataset, its kind ("theory", "experiment", "thresholds"), its problem."""

    @property
    def ds(self) -> xr.Dataset: ...

    @property
    def kind(self) -> str: ...

    @property
    def problem(self) -> HasIndexLabels: ...

    def __getitem__(self, name: str, /) -> xr.DataArray: ...


class HasBothSides(Protocol):
    """The part of a comparison that plots use: theory, experiment and the dataset of their scores."""

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
