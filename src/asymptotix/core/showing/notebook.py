"""Results and comparisons in a notebook: a table, the statuses of the points, a small plot."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import xarray as xr

from ..dataset.assemble import RESERVED
from ..dataset.labels import is_grid, labelled
from ..markup.cards import card, folded, line, or_plain, picture, table
from ..plot import HasBothSides, HasDataset, plot_comparison, plot_curve, style
from ..status import Status
from ..words import counted, format_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Largest size of a picture, in characters of base64. Larger: a browser cannot open a notebook with a hundred pictures.
MOST_BYTES = 24_000
#: Width of a picture in the notebook, in pixels, and size at which it is drawn, in inches.
WIDTH, INCHES = 380, (4.6, 2.9)
#: Observables that are tried first for the plot in a card, which shows one observable.
DRAWN_FIRST = ("overlap", "test_error", "order_parameter", "weak_recovery")
#: Largest number of rows in a table.
MOST_ROWS = 12
#: Largest number of values of a variable that are listed one by one.
MOST_NUMBERS = 4
#: Largest number of sentences shown for each status.
MOST_SENTENCES = 2


class ComparisonToShow(HasBothSides, Protocol):
    """Interface of a comparison for a card: what plots need, and a summary as a text of several lines."""

    def summary(self) -> str: ...


def result_html(result: HasDataset) -> str:
    """Return HTML for a result: the statuses of its points, its variables, and a plot if one control has a grid."""
    return or_plain(_result, result)


def comparison_html(comparison: ComparisonToShow, entries: Callable[[], str]) -> str:
    """Return HTML for a comparison: summary, a plot if one control has a grid, and ``entries()``, its folded table."""
    return or_plain(lambda shown: _comparison(shown, entries()), comparison)


def _result(result: HasDataset) -> str:
    ds = labelled(result.ds, result.problem)
    sizes = counted({dim: ds.sizes[dim] for dim in ds["converged"].dims})
    names = _observables(ds) if set(map(str, ds["converged"].dims)) - {"seed", "dim"} else []
    drawn = _picture([lambda ax, name=name: plot_curve(result, name, ax) for name in names])
    return card(
        f"{result.kind} of {type(result.problem).__name__}",
        line(repr(result.problem)),
        line(f"{sizes}; {_fixed(ds)}" if _fixed(ds) else sizes),
        table(_endings(ds), ("points", "status", "")),
        table(_variables(ds), ("variable", "meaning", "along", "value", "largest error")),
        drawn,
    )


def _comparison(comparison: ComparisonToShow, entries: str) -> str:
    first, *said = comparison.summary().splitlines()
    drawn = _picture([lambda ax, name=name: plot_comparison(comparison, name, ax) for name in comparison.names])
    return card(
        first,
        line(repr(comparison.theory.problem)),
        *(line(text.strip()) for text in said),
        drawn,
        folded("all entries", entries),
    )


def _observables(ds: xr.Dataset) -> list[str]:
    names = [str(name) for name, values in ds.data_vars.items() if values.dtype.kind in "iuf"]
    names = [name for name in names if name not in RESERVED and not name.endswith(("_err", "_trace", "_draws"))]
    return sorted(names, key=lambda name: name not in DRAWN_FIRST)


def _fixed(ds: xr.Dataset) -> str:
    """Return the fixed controls as text, such as "dim = 100, seed = 0"."""
    return ", ".join(f"{n} = {c.item():.6g}" if is_grid(ds, n) else f"{n} = {c.item()}" for n, c in _scalars(ds))


def _scalars(ds: xr.Dataset) -> list[tuple[str, xr.DataArray]]:
    return [(str(name), value) for name, value in ds.coords.items() if not value.ndim and not _is_label(str(name))]


def _is_label(name: str) -> bool:
    return name.endswith("_label")


def _endings(ds: xr.Dataset) -> Iterator[tuple[str, str, str]]:
    """Yield (number of points, status, sentences) for every status; converged points have no sentences."""
    codes, words = ds["status_code"].values.astype(str).ravel(), ds["status"].values.astype(str).ravel()
    for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
        status = Status.from_code(str(code))
        said = list(dict.fromkeys(words[codes == code]))
        told = "; ".join([*said[:MOST_SENTENCES], *(["…"] if len(said) > MOST_SENTENCES else [])])
        mark = "✓ " if status.converged else "✗ "
        yield str(count), mark + status.sentence, "" if status.converged or told == status.sentence else told


def _variables(ds: xr.Dataset) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield (name, meaning, dimensions, value or range, largest numerical error) as text for every variable."""
    shown = [name for name in map(str, ds.data_vars) if name not in RESERVED and not name.endswith("_err")]
    shown.sort(key=lambda name: name.endswith(("_trace", "_draws")))
    for name in shown[:MOST_ROWS]:
        values, error = ds[name], ds.get(f"{name}_err")
        own = ", ".join(map(str, values.dims))
        largest = "" if error is None else f"{float(error.max()):.2g}"
        yield name, str(values.attrs.get("long_name", "")), own, _range(values, error), largest
    if len(shown) > MOST_ROWS:
        yield f"and {len(shown) - MOST_ROWS} more", ", ".join(shown[MOST_ROWS:]), "", "", ""


def _range(values: xr.DataArray, error: xr.DataArray | None) -> str:
    if values.dtype.kind not in "iuf":
        return str(values.item()) if values.size == 1 else ""
    if values.size == 1:
        return format_number(float(values), float("nan") if error is None else float(error))
    if values.ndim == 1 and values.size <= MOST_NUMBERS and not is_grid(values, values.dims[0]):
        names = values[values.dims[0]].values if values.dims[0] in values.coords else range(1, values.size + 1)
        return ", ".join(f"{name}: {float(value):.4g}" for name, value in zip(names, values.values, strict=True))
    known = values.values[~np.isnan(values.values.astype(float))]
    if not known.size:
        return "not a number throughout"
    return f"{known.min():.4g} to {known.max():.4g}" if known.min() < known.max() else f"{known.min():.6g} throughout"


def _picture(attempts: Sequence[Callable[[Axes], object]]) -> str:
    """Return the HTML of the first plot that can be drawn, if small enough; "" if none, or without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    for draw in attempts:
        with style():
            figure = Figure(figsize=INCHES)  # not made by pyplot: no window, and no figure stays open
            try:
                draw(figure.subplots())
            except (TypeError, ValueError, KeyError):  # several grids or none, or too many dimensions: no curve
                continue
            for dpi in (144, 96, 60):
                data = _png(figure, dpi)
                if len(data) <= MOST_BYTES:
                    return picture(f"data:image/png;base64,{data}", WIDTH)
            return ""
    return ""


def _png(figure: Figure, dpi: int) -> str:
    """Return the figure as base64 PNG in 64 colours, which halves its length without a visible change."""
    from PIL import Image  # matplotlib needs it too

    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi, facecolor="white")
    Image.open(drawn).convert("RGB").quantize(64).save(small, format="png", optimize=True)
    return base64.b64encode(small.getvalue()).decode()
