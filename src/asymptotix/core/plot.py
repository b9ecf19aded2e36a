"""Plots of results and comparisons, in one style that leaves matplotlib's own settings as they are.

Theory is a line with a band of its numerical error, an experiment is points with the standard error over its
seeds, a threshold is a vertical line with its name. Points that did not converge are crossed out, not hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import xarray as xr

from .dataset.rows import label_name
from .definitions.common_names import COMMON
from .definitions.observable import definition, label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart with any common colour blindness; without yellow, lost on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P")

STYLE: dict[str, Any] = {
    "font.size": 11,
    "axes.labelsize": 12,
    "axes.titlesize": 12,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "figure.figsize": (5.6, 3.8),
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
}


class HasIndexLabels(Protocol):
    """What is asked of a problem: what the entries of ``index`` are called."""

    def index_labels(self) -> Sequence[str]: ...


@runtime_checkable
class HasDataset(Protocol):
    """What is plotted: numbers with their kind ("theory", "experiment" or "thresholds"), as a result has them."""

    @property
    def ds(self) -> xr.Dataset: ...

    @property
    def kind(self) -> str: ...

    @property
    def problem(self) -> HasIndexLabels: ...

    def __getitem__(self, name: str, /) -> xr.DataArray: ...


class HasBothSides(Protocol):
    """Theory and experiment with their scores, as a comparison has them."""

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


def plot_curve(
    result: HasDataset,
    name: str,
    ax: Axes | None = None,
    *,
    reference: HasDataset | Iterable[HasDataset] | None = None,
) -> Axes:
    """Plot one variable against the control that has a grid.

    Parameters
    ----------
    result
        Theory (line with error band), experiment (points with standard error over seeds) or thresholds (a
        line where a field has a grid, otherwise vertical marks). Where two controls have a grid, select one
        of them first; sizes ``dim`` may stay and get a marker each.
    name
        The variable. One with dimensions (index, index_other) is shown by its diagonal.
    ax
        Where to draw; a new figure if None.
    reference
        More results on the same axes: thresholds as vertical marks, experiments as points, theories dashed.
    """
    with style():
        ax = axes_or_new(ax)
        _draw(ax, result, name)
        for other in [reference] if isinstance(reference, HasDataset) else reference or ():
            if other.kind == "thresholds":
                mark_thresholds(other, ax)
            else:
                _draw(ax, other, name, linestyle="--")
        return with_legend(ax)


def mark_thresholds(result: HasDataset, ax: Axes | None = None, *, names: Sequence[str] | None = None) -> Axes:
    """Mark thresholds as vertical lines with their names.

    Parameters
    ----------
    result
        From ``thresholds`` at one point.
    ax
        Where to draw; a new figure if None.
    names
        Which variables; by default all that are one number or one number per index. Those that are zero
        (recovered with any number of samples) or infinite (never recovered) have no place on the axis.
    """
    if result.ds["converged"].ndim:
        raise ValueError(
            f"thresholds must be of one point to be marked; select {_listed(result.ds['converged'].dims)}"
        )
    if names is None:
        names = [
            str(n) for n, v in result.ds.data_vars.items() if v.dtype.kind == "f" and set(v.dims) <= {"index"}
        ]
        names = [name for name in names if not name.endswith("_err")]
    with style():
        ax = axes_or_new(ax)
        places: dict[float, list[str]] = {}
        for name in names:
            for label, value in _entries(result, result[name]):
                if np.isfinite(value) and value > 0:
                    words = _words(name) + (f", {label}" if label else "")
                    places.setdefault(float(value), []).append(words)
        for value, words in places.items():
            ax.axvline(value, color="0.35", linestyle=":", linewidth=1.2, zorder=1)
            ax.annotate(
                " / ".join(words),
                (value, 0.98),
                xycoords=("data", "axes fraction"),
                xytext=(-3, 0),
                textcoords="offset points",
                rotation=90,
                ha="right",
                va="top",
                fontsize=8,
                color="0.35",
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
            )
        if not ax.get_xlabel():
            ax.set_xlabel(axis_label("alpha"))
        return ax


def plot_comparison(comparison: HasBothSides, name: str, ax: Axes | None = None) -> Axes:
    """Plot theory as lines and the experiment as points with standard errors.

    Parameters
    ----------
    comparison
        From ``compare``; where several controls have a grid, select one first: ``comparison.sel(alpha=...)``.
    name
        The observable.
    ax
        Where to draw; a new figure if None.
    """
    if name not in comparison.names:
        raise ValueError(f"name must be one of {', '.join(comparison.names)}, got {name!r}")
    ds, result = comparison.ds, comparison.experiment
    with style():
        ax = axes_or_new(ax)
        mean = ds[f"{name}_mean"]
        control = _gridded(mean, _grid_dims(ds, mean, by=comparison.by), name)
        theory = comparison.theory
        if comparison.by is None and _grid_dims(theory.ds, theory[name]) == [control]:
            _draw(ax, theory, name)
        else:
            _draw_lines(ax, result, ds[f"{name}_theory"], control)
        _draw_points(ax, result, mean, ds[f"{name}_sem"], control)
        _describe_axes(ax, mean[control].values, control, name)
        return with_legend(ax)


def style() -> AbstractContextManager[None]:
    """Scope in which matplotlib draws in the style of all plots here."""
    import matplotlib

    return matplotlib.rc_context(rc=dict(STYLE))  # pyright: ignore[reportArgumentType]


def axes_or_new(ax: Axes | None) -> Axes:
    """The axes given, or those of a new figure."""
    import matplotlib.pyplot as plt

    return plt.subplots()[1] if ax is None else ax


def with_legend(ax: Axes) -> Axes:
    """The axes with a legend, where there is more than one entry to tell apart."""
    _, labels = ax.get_legend_handles_labels()
    if len(labels) > 1:
        ax.legend()
    return ax


def axis_label(of: str | xr.DataArray) -> str:
    """Return what a control or an observable is called in words, with its symbol where it has one.

    Of a variable of a result that is what its problem says of it; of a name alone what all problems mean by it, and
    the name itself where they do not agree on any.
    """
    if isinstance(of, xr.DataArray):
        if "long_name" in of.attrs:
            return label_of(of.attrs["long_name"], of.attrs.get("symbol", ""))
        of = str(of.name)
    known = definition(of, COMMON)
    return _words(of) if known is None else known.label


def _draw(ax: Axes, result: HasDataset, name: str, *, linestyle: str = "-") -> None:
    values = result[name]
    if values.dtype.kind not in "iuf":
        raise TypeError(f"name must be a numeric variable, got {name!r} of type {values.dtype}")
    if result.kind == "thresholds" and not result.ds["converged"].ndim:
        mark_thresholds(result, ax, names=[name])
        return
    control = _gridded(values, _grid_dims(result.ds, values), name)
    if result.kind == "experiment":
        mean, sem = _mean_and_sem(values)
        _draw_points(ax, result, mean, sem, control)
    else:
        _draw_lines(ax, result, values, control, result.ds.get(f"{name}_err"), linestyle)
        _cross_out(ax, result, values, control)
    _describe_axes(ax, result[control].values, control, name)


def _draw_lines(
    ax: Axes,
    result: HasDataset,
    values: xr.DataArray,
    control: str,
    error: xr.DataArray | None = None,
    linestyle: str = "-",
) -> None:
    x = _positions(values, control)
    order = np.argsort(x)
    on_axis = order[np.isfinite(x[order])]
    errors = dict(_entries(result, error)) if error is not None else {}
    for k, label, entry in _present(result, values):
        color = PALETTE[k % len(PALETTE)]
        y = np.asarray(entry)
        ax.plot(x[on_axis], y[on_axis], color=color, linestyle=linestyle, label=_joined(label, "theory"))
        if label in errors:
            band = np.asarray(errors[label])[on_axis]
            ax.fill_between(
                x[on_axis], y[on_axis] - band, y[on_axis] + band, color=color, alpha=0.25, linewidth=0
            )
        for i in order[np.isinf(x[order])]:
            ax.axhline(
                float(y[i]), color=color, linestyle=":", label=_joined(label, f"{_words(control)} = ∞")
            )


def _draw_points(ax: Axes, result: HasDataset, mean: xr.DataArray, sem: xr.DataArray, control: str) -> None:
    sizes = mean["dim"].values if "dim" in mean.dims else [None]
    for j, size in enumerate(sizes):
        at = {} if size is None else {"dim": j}
        spreads = dict(_entries(result, sem.isel(at)))
        for k, label, entry in _present(result, mean.isel(at)):
            kind = "experiment" if size is None else f"$D = {size}$"
            ax.errorbar(
                _positions(entry, control),
                np.asarray(entry),
                yerr=np.nan_to_num(np.asarray(spreads[label])),
                fmt=MARKERS[j % len(MARKERS)],
                color=PALETTE[k % len(PALETTE)],
                markerfacecolor="white",
                capsize=2.5,
                linestyle="none",
                label=_joined(label, kind),
                zorder=3,
            )


def _cross_out(ax: Axes, result: HasDataset, values: xr.DataArray, control: str) -> None:
    failed = ~result.ds["converged"].values
    x = _positions(values, control)
    drawn = failed & np.isfinite(x)
    label: str | None = "not converged"
    for _, _, entry in _present(result, values):
        if drawn.any():
            ax.plot(x[drawn], np.asarray(entry)[drawn], "x", color="0.2", label=label, zorder=4)
            label = None  # one entry in the legend for all


def _entries(result: HasDataset, values: xr.DataArray) -> list[tuple[str, xr.DataArray]]:
    """Split an observable into its entries along its own dimensions, each with a label."""
    own = [str(dim) for dim in values.dims if dim not in values.coords and dim != "iteration"]
    if not own:
        return [("", values)]
    paired = len(own) == 2 and own[1] == f"{own[0]}_other"
    if len(own) > 1 and not paired:
        raise ValueError(
            f"{values.name} has dimensions {_listed(own)}, too many for a line; select some of them first"
        )
    count = values.sizes[own[0]]
    given = values.coords.get(label_name(own[0]))
    if given is not None:
        labels = [str(label) for label in given.values]
    else:  # another dimension than index, or a file of an earlier version
        known = list(result.problem.index_labels()) if own[0] == "index" else []
        labels = [known[i] if i < len(known) else f"{own[0]} {i + 1}" for i in range(count)]
    entries = [values.isel(dict.fromkeys(own, i)) for i in range(count)]
    return [("" if count == 1 else label, entry) for label, entry in zip(labels, entries, strict=True)]


def _present(result: HasDataset, values: xr.DataArray) -> list[tuple[int, str, xr.DataArray]]:
    """The entries that have a number, each with its position, by which a row has one colour in all plots."""
    entries = [(k, label, entry) for k, (label, entry) in enumerate(_entries(result, values))]
    return [each for each in entries if each[2].notnull().any()] or entries[:1]


def _mean_and_sem(values: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    if "seed" not in values.dims:
        return values, xr.full_like(values, np.nan, dtype=float)
    count = values.notnull().sum("seed")
    return values.mean("seed"), values.std("seed", ddof=1).where(count > 1) / np.sqrt(count)


def _grid_dims(ds: xr.Dataset, values: xr.DataArray, *, by: str | None = None) -> list[str]:
    grids = [str(dim) for dim in values.dims if dim in ds.coords and dim not in ("seed", "dim")]
    return [*grids, by] if by else grids


def _gridded(values: xr.DataArray, grids: list[str], name: str) -> str:
    if len(grids) > 1:
        raise ValueError(
            f"{name} varies with {_listed(grids)}; select all but one first: .sel({grids[0]}=...)"
        )
    if grids:
        return grids[0]
    if "dim" in values.dims:
        raise ValueError(f"{name} varies with dim only; give a grid of a control to plot it against")
    raise ValueError(f"{name} has no grid to be plotted against: all controls are fixed")


def _positions(values: xr.DataArray, control: str) -> np.ndarray:
    # An iteration has no coordinate: it counts from 1, the first thing that an algorithm returns.
    if control in values.coords:
        return np.asarray(values[control].values, dtype=float)
    return np.arange(1, values.sizes[control] + 1, dtype=float)


def _describe_axes(ax: Axes, x: np.ndarray, control: str, name: str) -> None:
    ax.set_xlabel(axis_label(control))
    ax.set_ylabel(axis_label(name))
    if _is_geometric(x):
        ax.set_xscale("log")


def _is_geometric(x: np.ndarray) -> bool:
    """Whether a grid spans more than a factor of 20 and its ratios vary less than its differences."""
    x = np.sort(np.asarray(x, dtype=float)[np.isfinite(x)])
    if len(x) < 3 or x[0] <= 0 or x[-1] < 20 * x[0]:
        return False
    steps, ratios = np.diff(x), np.diff(np.log(x))
    return bool(ratios.std() / ratios.mean() < steps.std() / steps.mean())


def _words(name: str) -> str:
    return name.replace("_", " ")


def _joined(label: str, kind: str) -> str:
    return f"{label}, {kind}" if label else kind


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(str, names))
