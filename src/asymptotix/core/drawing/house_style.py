"""The style of all plots: colours, axes, legends and labels."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..definitions.common_names import COMMON
from ..definitions.observable import definition, label_of
from .series import free_colours, titles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The colours of Okabe and Ito, distinct for all common kinds of colour blindness; without yellow, too pale on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: Colour map for matrices with signed entries, such as order parameters: red is positive, blue negative, zero white.
SIGNED_COLOURS = "RdBu_r"
#: Markers of an experiment's points, one for each size ``dim``; with more sizes they repeat.
MARKERS = ("o", "s", "^", "D", "v", "P")

#: Settings of matplotlib (rcParams) for all plots.
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


def style() -> AbstractContextManager[None]:
    """Return a context, for a ``with`` statement, in which matplotlib uses the settings :data:`STYLE`."""
    import matplotlib

    return matplotlib.rc_context(rc=dict(STYLE))  # pyright: ignore[reportArgumentType]


def axes_or_new(ax: Axes | None) -> Axes:
    """Return the given axes, or the axes of a new figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots()[1]


def next_colour(ax: Axes) -> str:
    """Return the first colour of :data:`PALETTE` that nothing on the axes has; the first if all are in use."""
    return free_colours(ax, PALETTE)[0]


def with_legend(ax: Axes) -> Axes:
    """Return the axes, with a legend if they have more than one labelled entry."""
    _, labels = ax.get_legend_handles_labels()
    if len(labels) > 1:
        ax.legend()
    return ax


def axis_label(of: str | xr.DataArray) -> str:
    """Return the label of an axis for a control or an observable: its long name, with its symbol if it has one.

    A variable of a result has the long name that its problem defines. A name alone has the common definition, or else
    becomes the label itself.
    """
    if isinstance(of, xr.DataArray):
        if "long_name" in of.attrs:
            return label_of(of.attrs["long_name"], of.attrs.get("symbol", ""))
        of = str(of.name)
    known = definition(of, COMMON)
    return with_spaces(of) if known is None else known.label


def describe_axes(ax: Axes, x: np.ndarray, control: str) -> None:
    """Label both axes, and make the horizontal one logarithmic if ``x``, values of the control, is nearly geometric."""
    ax.set_xlabel(axis_label(control))
    ax.set_ylabel(" / ".join(titles(ax)))
    if _is_geometric(x):
        ax.set_xscale("log")


def _is_geometric(x: np.ndarray) -> bool:
    """Return whether positive values span a factor of 20 or more and have steadier ratios than differences."""
    x = np.sort(np.asarray(x, dtype=float)[np.isfinite(x)])
    if len(x) < 3 or x[0] <= 0 or x[-1] < 20 * x[0]:
        return False
    steps, ratios = np.diff(x), np.diff(np.log(x))
    return bool(ratios.std() / ratios.mean() < steps.std() / steps.mean())


def with_spaces(name: str) -> str:
    return name.replace("_", " ")
