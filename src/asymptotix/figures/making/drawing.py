"""Panels, curves, points and marks in the common style of all figures."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ...core.plot import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ...core.result import Result

BLUE, ORANGE, GREEN, PINK, _, _, BLACK = PALETTE
#: Grey of published numbers; nothing else is drawn in this grey.
PUBLISHED = "0.45"


def panels(rows: int = 1, columns: int = 1, *, size: tuple[float, float], **options: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``size`` inches and its axes, row by row; several axes get letters."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = list(np.atleast_1d(figure.subplots(rows, columns, **options)).ravel())
    if len(axes) > 1:
        for letter, axis in zip(string.ascii_lowercase, axes, strict=False):
            axis.set_title(f"({letter})", loc="left", fontsize=11)
    return figure, axes


def mosaic(layout: Sequence[Sequence[str]], *, size: tuple[float, float], **options: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels of a mosaic ``layout``, and its axes in order of appearance, with letters."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    named = figure.subplot_mosaic([list(row) for row in layout], **options)
    for letter, axis in zip(string.ascii_lowercase, named.values(), strict=False):
        axis.set_title(f"({letter})", loc="left", fontsize=11)
    return figure, list(named.values())


def theory_line(
    axis: Axes,
    result: Result,
    name: str,
    *,
    label: str | None,
    color: str,
    along: str = "alpha",
    style: str = "-",
    stretch: float = 1.0,
    **entry: int,
) -> None:
    """Draw the observable ``name`` of a theory with a band of its numerical error; cross out unconverged points.

    ``entry`` selects an entry, dimension=index. ``stretch`` multiplies the horizontal coordinate, ``along``.
    """
    values = result.ds[name].isel(entry)
    x, y = stretch * values[along].values, values.values
    axis.plot(x, y, style, color=color, label=label)
    if f"{name}_err" in result.ds:
        error = result.ds[f"{name}_err"].isel(entry).values
        axis.fill_between(x, y - error, y + error, color=color, alpha=0.25, linewidth=0)
    failed = ~result.ds["converged"].values
    if failed.shape == y.shape and failed.any():
        axis.plot(x[failed], y[failed], "x", color="0.2", ms=5, zorder=4)


def experiment_points(
    axis: Axes,
    values: xr.DataArray,
    *,
    label: str,
    color: str,
    along: str = "alpha",
    marker: str = "o",
    stretch: float = 1.0,
    **entry: int,
) -> None:
    """Draw means over the dimension ``seed`` of ``values`` with one standard error.

    ``entry`` selects an entry, dimension=index. ``stretch`` multiplies the horizontal coordinate, ``along``.
    """
    chosen = values.isel(entry)
    mean, error = mean_and_error(chosen)
    axis.errorbar(
        stretch * chosen[along].values, mean, error, fmt=marker, color=color, markerfacecolor="white", capsize=2.5,
        label=label, zorder=3,
    )  # fmt: skip


def mean_and_error(values: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard error over seeds; the error of a single run is unknown and set to zero."""
    count = values.notnull().sum("seed")
    error = values.std("seed", ddof=1) / np.sqrt(count)
    return values.mean("seed").values, error.fillna(0.0).values


def mark(axis: Axes, at: float, words: str, color: str = "0.35", *, height: float = 0.98) -> None:
    """Mark the threshold ``at`` by a dotted line, ``words`` and its value; ``height`` (0 to 1) is the text's top."""
    if not np.isfinite(at):
        return
    axis.axvline(at, linestyle=":", linewidth=1.3, color=color, zorder=1)
    axis.annotate(
        f"{words} {at:.4g}", (at, height), xycoords=("data", "axes fraction"), xytext=(-3, 0),
        textcoords="offset points", rotation=90, ha="right", va="top", fontsize=8.5, color=color,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
    )  # fmt: skip


def published(axis: Axes, x: Sequence[float], y: Sequence[float], label: str = "published") -> None:
    """Draw the published values y at x in grey, with a dashed line; for values that differ from ours."""
    axis.plot(x, y, "D--", color=PUBLISHED, markerfacecolor="white", ms=5, lw=1.1, label=label, zorder=2)


def grid_with(grid: Sequence[float] | np.ndarray, *others: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the union of a grid and ``others``, ascending, so that theory is solved where it is compared."""
    return np.unique(np.round(np.concatenate([np.asarray(grid, float), *map(np.asarray, others)]), 12))
