"""Plots of results and comparisons, in one style that leaves matplotlib's own settings unchanged.

A theory is drawn as a line with a band for its numerical error, an experiment as points with the standard error over
its seeds, a threshold as a vertical line with its name. Points that did not converge are crossed out, not hidden.
Every function takes the axes to draw on and returns them, so that plots can be combined.

>>> import asymptotix as asx
>>> theory = asx.solve(asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2)), alpha=[0.1, 0.3, 2.0], progress=False)
>>> with asx.plot.style():
...     ax = asx.plot.plot_curve(theory, "overlap")
>>> len(ax.get_lines()) > 0
True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from .dataset.labels import entry_labels, is_grid
from .drawing.drawable import HasBothSides, HasDataset
from .drawing.house_style import (
    MARKERS,
    PALETTE,
    SIGNED_COLOURS,
    STYLE,
    axes_or_new,
    axis_label,
    describe_axes,
    next_colour,
    style,
    with_legend,
    with_spaces,
)
from .drawing.kinks import with_kinks
from .drawing.series import LINESTYLES, Series, begin, given_colours, titles
from .drawing.threshold_labels import add_label
from .specification import Specification, differing
from .status import Status

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import ColorType

__all__ = [
    "PALETTE", "SIGNED_COLOURS", "STYLE", "HasBothSides", "HasDataset", "axes_or_new", "axis_label", "mark_thresholds",
    "next_colour", "plot_comparison", "plot_curve", "style", "with_legend",
]  # fmt: skip


def plot_curve(
    result: HasDataset,
    name: str,
    ax: Axes | None = None,
    *,
    reference: HasDataset | Iterable[HasDataset] | None = None,
    color: ColorType | Sequence[ColorType] | None = None,
    label: str | None = None,
    **line: Any,
) -> Axes:
    """Plot one variable against the control that has a grid.

    Parameters
    ----------
    result
        A theory (line with error band), an experiment (points with standard error over seeds) or thresholds (a
        line where a field has a grid, otherwise vertical marks). Where two controls have a grid, select one value
        of one control first; several sizes ``dim`` may stay and get different markers.
    name
        The variable. Of a matrix with dimensions (index, index_other) only the diagonal is drawn.
    ax
        Axes to draw on; a new figure if None. On axes that have lines already, the next free colours are used. An
        experiment with the same name and ``label`` as a theory on the axes has that theory's colours.
    reference
        More results on the same axes: thresholds as vertical marks, experiments as points, theories dashed.
        Thresholds of the theory's own problem are also dots on its curve if the grid shows the value there: an
        observable of the learned weights is constant until something is learned, and after everything is. To have a
        dot at every threshold, solve there too: ``merge([theory, solve(problem, alpha=limits.weak_recovery)])``.
    color
        A matplotlib colour, or a list with one colour for every entry.
    label
        Name of this result in the legend, instead of "theory" or "experiment".
    **line
        Other options of a matplotlib line: ``linestyle``, ``linewidth``, ``marker``, ``alpha``, ``zorder``.

    Examples
    --------
    >>> ax = few.plot("test_error", label="no noise")                         # doctest: +SKIP
    >>> ax = many.plot("test_error", ax=ax, label="noise 0.5", linestyle="--")  # doctest: +SKIP
    """
    references = [reference] if isinstance(reference, HasDataset) else list(reference or ())
    with style():
        ax = axes_or_new(ax)
        limits = [other for other in references if other.kind == "thresholds"]
        _draw(ax, result, name, _Look(color, label, _line_options(line), limits=limits))
        for other in references:
            if other.kind != "thresholds":
                _draw(ax, other, name, _Look(None, None, {"linestyle": "--"}, like=True))
        for other in limits:
            mark_thresholds(other, ax)
        return with_legend(ax)


def mark_thresholds(
    result: HasDataset,
    ax: Axes | None = None,
    *,
    names: Sequence[str] | None = None,
    color: ColorType = "0.35",
    label: str | None = None,
    **line: Any,
) -> Axes:
    """Mark thresholds as vertical lines with their names, and return the axes.

    Parameters
    ----------
    result
        A result of ``thresholds`` at one point, without grids.
    ax
        Axes to draw on; a new figure if None.
    names
        Variables to mark; by default all that are one number or one number per index. Thresholds that are zero
        (recovered with any number of samples) or infinite (never recovered) are not drawn.
    color, **line
        Options of matplotlib's ``axvline``.
    label
        Text before the names of the thresholds.
    """
    if result.ds["converged"].ndim:
        raise ValueError(f"thresholds must be of one point to be marked; select {_listed(result.ds['converged'].dims)}")
    if names is None:
        names = [str(n) for n, v in result.ds.data_vars.items() if v.dtype.kind == "f" and set(v.dims) <= {"index"}]
        names = [name for name in names if not name.endswith("_err")]
    with style():
        ax = axes_or_new(ax)
        places: dict[float, list[str]] = {}
        for name in names:
            for entry, value in _entries(result, result[name]):
                if np.isfinite(value) and value > 0:
                    words = with_spaces(name) + (f", {entry}" if entry else "")
                    places.setdefault(float(value), []).append(_joined(label or "", words))
        options = {"linestyle": ":", "linewidth": 1.2, "zorder": 1} | _line_options(line)
        for value, words in places.items():
            ax.axvline(value, color=color, **options)
            add_label(ax, value, "\n".join(words), color)
        if not ax.get_xlabel():
            ax.set_xlabel(axis_label("alpha"))
        return with_legend(ax)


def plot_comparison(
    comparison: HasBothSides,
    name: str,
    ax: Axes | None = None,
    *,
    color: ColorType | Sequence[ColorType] | None = None,
    label: str | None = None,
    **line: Any,
) -> Axes:
    """Plot one observable of a comparison, theory as lines and experiment as points with standard errors.

    Parameters
    ----------
    comparison
        A result of ``compare``. Where several controls have a grid, select first: ``comparison.sel(alpha=...)``.
    name
        The observable.
    ax
        Axes to draw on; a new figure if None.
    color, label, **line
        Options of :func:`plot_curve` for both; the legend adds "theory" or "experiment" to the label.
    """
    if name not in comparison.names:
        raise ValueError(f"name must be one of {', '.join(comparison.names)}, got {name!r}")
    ds, result = comparison.ds, comparison.experiment
    with style():
        ax = axes_or_new(ax)
        mean = ds[f"{name}_mean"].copy(deep=False)
        mean.attrs = dict(comparison.theory[name].attrs)  # the axis is labelled by the observable, for lines and points
        control = _gridded(mean, _grid_dims(ds, mean, by=comparison.by), name)
        theory = comparison.theory
        look = _Look(color, label, _line_options(line), say_kind=True)
        if comparison.by is None and _grid_dims(theory.ds, theory[name]) == [control]:
            _draw(ax, theory, name, look)
        else:
            _draw_lines(ax, result, ds[f"{name}_theory"].rename(name).assign_attrs(mean.attrs), control, look)
        _draw_points(ax, result, mean.rename(name), ds[f"{name}_sem"], control, look)
        describe_axes(ax, mean[control].values, control)
        return with_legend(ax)


@dataclass(frozen=True)
class _Look:
    """The appearance of one result in a plot.

    Attributes
    ----------
    color, label, line
        Options given by the user of :func:`plot_curve`; ``line`` with full names (linewidth, not lw).
    like
        Whether the result takes the colours of the first result on the axes.
    say_kind
        Whether the legend names theory or experiment even if the user gave a label.
    limits
        Results of ``thresholds``, which are added as points to the curves of a theory.
    """

    color: Any
    label: str | None
    line: Mapping[str, Any]
    like: bool = False
    say_kind: bool = False
    limits: Sequence[HasDataset] = ()

    def begin(
        self, ax: Axes, kind: str, values: xr.DataArray, entries: Sequence[tuple[int, str, xr.DataArray]]
    ) -> Series:
        """Record an observable that is about to be drawn and return its :class:`Series` with the colours to use."""
        name, title = str(values.name), axis_label(values)
        places = {entry: k for k, entry, _ in entries}
        given = None if self.color is None else given_colours(self.color, list(places))
        series = begin(ax, PALETTE, kind=kind, name=name, title=title, label=self.label, entries=places, like=self.like)
        series.colours |= given or {}
        return series

    def words(self, ax: Axes, entry: str, kind: str, name: str) -> str:
        """Return the text in the legend for an entry of the observable ``name``; ``kind`` is "theory", for example."""
        if self.label is None:
            kind = f"{with_spaces(name)}, {kind}" if len(titles(ax)) > 1 else kind
        else:
            kind = f"{self.label}, {kind}" if self.say_kind else self.label
        return _joined(entry, kind)

    def line_of(self, k: int, series: Series) -> dict[str, Any]:
        """Return the matplotlib options of the line of the k-th entry. Entries of one colour differ in line style."""
        one_colour = self.color is not None and len(set(map(str, series.colours.values()))) == 1
        return {"linestyle": LINESTYLES[k % len(LINESTYLES)] if one_colour else "-"} | dict(self.line)


def _line_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a matplotlib line with full names instead of aliases: linewidth, not lw."""
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    return normalize_kwargs(dict(given), Line2D)


def _draw(ax: Axes, result: HasDataset, name: str, look: _Look) -> None:
    values = result[name]
    if values.dtype.kind not in "iuf":
        raise TypeError(f"name must be a numeric variable, got {name!r} of type {values.dtype}")
    if result.kind == "thresholds" and not result.ds["converged"].ndim:
        given = {} if look.color is None else {"color": look.color}
        mark_thresholds(result, ax, names=[name], label=look.label, **given, **look.line)
        return
    control = _gridded(values, _grid_dims(result.ds, values), name)
    if result.kind == "experiment":
        mean, sem = _mean_and_sem(values)
        _draw_points(ax, result, mean, sem, control, look)
    else:
        _draw_lines(ax, result, values, control, look, result.ds.get(f"{name}_err"))
        _cross_out(ax, result, values, control)
    describe_axes(ax, result[control].values, control)


def _draw_lines(
    ax: Axes,
    result: HasDataset,
    values: xr.DataArray,
    control: str,
    look: _Look,
    error: xr.DataArray | None = None,
) -> None:
    x = _positions(values, control)
    order = np.argsort(x)
    on_axis = order[np.isfinite(x[order]) & _reached(result, control, len(x))[order]]
    errors = dict(_entries(result, error)) if error is not None else {}
    present = _present(result, values)
    series = look.begin(ax, "theory", values, present)
    begins, ends = _kinks(result, look.limits, control)
    for position, (_, entry_label, entry) in enumerate(present):
        color, y = series.colours[entry_label], np.asarray(entry)
        label, options = look.words(ax, entry_label, "theory", series.name), look.line_of(position, series)
        drawn = with_kinks(x[on_axis], y[on_axis], from_here=begins, until_there=ends)
        series.handles += ax.plot(*drawn[:2], **({"color": color, "label": label} | options))
        if len(drawn[2]):
            ax.plot(drawn[2], np.interp(drawn[2], *drawn[:2]), ".", color=color, markersize=7)
        if entry_label in errors:
            band = np.asarray(errors[entry_label])[on_axis]
            ax.fill_between(x[on_axis], y[on_axis] - band, y[on_axis] + band, color=color, alpha=0.25, linewidth=0)
    levels = {i: [float(np.asarray(entry)[i]) for _, _, entry in present] for i in order[np.isinf(x[order])]}
    for heights in levels.values():
        _draw_levels(ax, heights, {entry: series.colours[entry] for _, entry, _ in present}, look.label, control)


def _draw_levels(
    ax: Axes, heights: Sequence[float], colours: Mapping[str, ColorType], label: str | None, control: str
) -> None:
    """Draw the values at an infinite control as horizontal lines, one per entry; a single line if all agree."""
    words = _joined(label or "", f"{with_spaces(control)} = ∞")
    if len(heights) > 1 and np.ptp(heights) <= 1e-9 * abs(heights[0]):
        ax.axhline(heights[0], color="0.35", linestyle=":", label=words)
        return
    for height, (entry, color) in zip(heights, colours.items(), strict=True):
        ax.axhline(height, color=color, linestyle=":", label=_joined(entry, words))


def _kinks(result: HasDataset, limits: Sequence[HasDataset], control: str) -> tuple[list[float], list[float]]:
    """Return the weak-recovery and the exact-recovery alphas of the same problem in ``limits``, as two lists.

    Both are empty unless ``control`` is alpha, the start is uninformed and no overlap is held.
    """
    settings = getattr(result, "settings", {})
    if control != "alpha" or settings.get("start", "") != "uninformed" or "fixed" in settings:
        return [], []
    begins, ends = [], []
    for other in limits:
        one, two = result.problem, other.problem
        if not isinstance(one, Specification) or not isinstance(two, Specification):
            continue
        if other.ds["converged"].ndim or differing(one, two):
            continue
        for found, name in ((begins, "weak_recovery"), (ends, "exact_recovery")):
            if name in other.ds:
                found += np.ravel(other[name].values).tolist()
    return begins, ends


def _draw_points(
    ax: Axes, result: HasDataset, mean: xr.DataArray, sem: xr.DataArray, control: str, look: _Look
) -> None:
    sizes = mean["dim"].values if "dim" in mean.dims else [None]
    series = look.begin(ax, "experiment", mean, _present(result, mean.isel(dim=0, missing_dims="ignore")))
    for j, size in enumerate(sizes):
        at = {} if size is None else {"dim": j}
        spreads = dict(_entries(result, sem.isel(at)))
        for _, entry_label, entry in _present(result, mean.isel(at)):
            kind = "experiment" if size is None else f"$D = {size}$"
            label = look.words(ax, entry_label, kind, series.name)
            if size is not None and look.label is not None and not look.say_kind:
                label = f"{label}, {kind}"
            options = {
                "marker": MARKERS[j % len(MARKERS)],
                "color": series.colours.get(entry_label, PALETTE[0]),
                "markerfacecolor": "white",
                "capsize": 2.5,
                "linestyle": "none",
                "label": label,
                "zorder": 3,
            }
            given = {name: value for name, value in look.line.items() if name != "linestyle" or not look.like}
            bars = ax.errorbar(
                _positions(entry, control),
                np.asarray(entry),
                yerr=np.nan_to_num(np.asarray(spreads[entry_label])),
                **(options | given),
            )
            series.handles.append(bars)


def _cross_out(ax: Axes, result: HasDataset, values: xr.DataArray, control: str) -> None:
    x = _positions(values, control)
    failed = ~result.ds["converged"].values & _reached(result, control, len(x))
    drawn = failed & np.isfinite(x)
    known = ax.get_legend_handles_labels()[1]
    label: str | None = None if "not converged" in known else "not converged"
    for _, _, entry in _present(result, values):
        if drawn.any():
            ax.plot(x[drawn], np.asarray(entry)[drawn], "x", color="0.2", label=label, zorder=4)
            label = None  # one entry in the legend for all


def _reached(result: HasDataset, control: str, count: int) -> np.ndarray:
    """Return a mask (count,) of the points along ``control`` reached before an interrupt; lines connect only these."""
    codes = result.ds.get("status_code")
    if codes is None or codes.dims != (control,):
        return np.ones(count, dtype=bool)
    return codes.values != Status.NOT_REACHED.code


def _entries(result: HasDataset, values: xr.DataArray) -> list[tuple[str, xr.DataArray]]:
    """Return (label, values along the grid) of every entry of an observable; of a matrix only the diagonal ones."""
    own = [str(dim) for dim in values.dims if not is_grid(values, dim) and dim != "iteration"]
    if not own:
        return [("", values)]
    paired = len(own) == 2 and own[1] == f"{own[0]}_other"
    if len(own) > 1 and not paired:
        raise ValueError(f"{values.name} has dimensions {_listed(own)}, too many for a line; select some of them first")
    count = values.sizes[own[0]]
    labels = _entry_names(result, values, own[0])
    entries = [values.isel(dict.fromkeys(own, i)) for i in range(count)]
    return [("" if count == 1 else label, entry) for label, entry in zip(labels, entries, strict=True)]


def _entry_names(result: HasDataset, values: xr.DataArray, dim: str) -> list[str]:
    """Return the names of the entries along a dimension for the legend: "layer 2", "path 1-3", "step 1"."""
    known = entry_labels(values, result.problem, dim) or [str(i + 1) for i in range(values.sizes[dim])]
    return [label if any(map(str.isalpha, label)) else f"{dim} {label}" for label in known]


def _present(result: HasDataset, values: xr.DataArray) -> list[tuple[int, str, xr.DataArray]]:
    """Return (position, label, values) of the entries with a number; equal positions have one colour in all plots."""
    entries = [(k, label, entry) for k, (label, entry) in enumerate(_entries(result, values))]
    return [each for each in entries if each[2].notnull().any()] or entries[:1]


def _mean_and_sem(values: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    if "seed" not in values.dims:
        return values, xr.full_like(values, np.nan, dtype=float)
    count = values.notnull().sum("seed")
    return values.mean("seed"), values.std("seed", ddof=1).where(count > 1) / np.sqrt(count)


def _grid_dims(ds: xr.Dataset, values: xr.DataArray, *, by: str | None = None) -> list[str]:
    grids = [str(dim) for dim in values.dims if is_grid(ds, dim) and dim not in ("seed", "dim")]
    return [*grids, by] if by else grids


def _gridded(values: xr.DataArray, grids: list[str], name: str) -> str:
    if len(grids) > 1:
        raise ValueError(
            f"{name} varies with {_listed(grids)}; select all but one first: .sel({grids[0]}=...), or "
            f"have xarray draw it: result.{name}.plot()"
        )
    if grids:
        return grids[0]
    if "dim" in values.dims:
        raise ValueError(f"{name} varies with dim only; give a grid of a control to plot it against")
    raise ValueError(f"{name} has no grid to be plotted against: all controls are fixed")


def _positions(values: xr.DataArray, control: str) -> np.ndarray:
    # Iterations have no coordinate: they count from 1, the first iterate that an algorithm returns.
    if control in values.coords:
        return np.asarray(values[control].values, dtype=float)
    return np.arange(1, values.sizes[control] + 1, dtype=float)


def _joined(label: str, kind: str) -> str:
    return f"{label}, {kind}" if label else kind


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(str, names))
