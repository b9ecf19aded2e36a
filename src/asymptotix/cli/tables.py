"""Results as tables in the terminal."""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.words import format_number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ..core.result import Result

MAX_COLUMNS_PER_VARIABLE = 4  # a 2 x 2 overlap still fits next to the errors; larger arrays are in the file
MAX_ROWS_PER_VARIABLE = 64
MAX_STATUS_WIDTH = 30  # a longer sentence takes several lines


def show(result: Result) -> None:
    """Print a result as a table: one row per point of its grid, or one row per number if there is no grid."""
    console = _console()
    console.print(_plain(_title(result)), style="bold")
    point_dims = result.status.dims
    shown, left_out = _variables(result, MAX_COLUMNS_PER_VARIABLE if point_dims else MAX_ROWS_PER_VARIABLE)
    headers = [*map(str, point_dims), *(column for name in shown for column in _columns(result, name)), "status"]
    positions = itertools.product(*map(range, result.status.shape))
    rows = [_cells(result, position, shown) for position in positions]
    if point_dims:
        columns = list(zip(headers, *rows, strict=True))
        controls, values, status = columns[: len(point_dims)], columns[len(point_dims) : -1], columns[-1]
        for group in _fitting_groups(values, [*controls, status], console.width):
            console.print(_table([*controls, *group, status]))
    else:
        console.print(_table([("quantity", *headers), ("value", *rows[0])]))
    if left_out:
        print(f"not shown, but written by --out: {', '.join(left_out)}")


def say(line: str) -> None:
    """Print a line of progress without buffering, so that a log shows it at once."""
    print(line, flush=True)


def show_figures() -> None:
    """Print a table of the figures that can be reproduced, with their times and memory."""
    from rich.table import Table

    from ..figures import FIGURES
    from ..figures.making.gallery import place

    table = Table()
    for head in ("figure", "what it shows", "quick", "paper", "on a GPU", "memory"):
        table.add_column(head, no_wrap=head == "figure", overflow="fold")
    for chosen in sorted(FIGURES.values(), key=lambda chosen: place(chosen.name)):
        quick, paper = chosen.sizes["quick"], chosen.sizes["paper"]
        gpu = "" if paper.gpu_minutes is None else _minutes(paper.gpu_minutes)
        memory = f"{quick.gib:g}, {paper.gib:g} GiB"
        shows = f"{chosen.shows} (from {', '.join(chosen.needs)})" if chosen.needs else chosen.shows
        table.add_row(chosen.name, shows, _minutes(quick.minutes), _minutes(paper.minutes), gpu, memory)
    _console(200).print(table)
    print("Times on two cores. Make one with: asymptotix reproduce FIGURE --size quick --out DIR")


def _console(piped_width: int = 120) -> Console:
    """Return a console as wide as the terminal; for a pipe, as wide as COLUMNS, or ``piped_width`` if that is unset."""
    from rich.console import Console

    columns = os.environ.get("COLUMNS", "")
    return Console() if sys.stdout.isatty() or columns.isdigit() else Console(width=piped_width)


def _minutes(minutes: float) -> str:
    if minutes > 90:
        return f"{minutes / 60:.1f} h"
    return f"{minutes:.2g} min" if minutes >= 1 else f"{60 * minutes:.0f} s"


def _table(columns: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table

    table = Table()
    for header, *_ in columns:
        justify = "left" if header in ("status", "quantity") else "right"
        table.add_column(_plain(header), justify=justify, no_wrap=header not in ("status", "value"))
    for row in zip(*(cells for _, *cells in columns), strict=True):
        table.add_row(*map(_plain, row))
    return table


def _fitting_groups(
    values: Sequence[Sequence[str]], repeated: Sequence[Sequence[str]], room: int
) -> list[list[Sequence[str]]]:
    """Return the columns ``values`` in groups, one per table of at most ``room`` characters.

    A column is a header and its cells. Every table also has the columns ``repeated``. Wide results need several tables,
    because a truncated number is wrong.
    """

    def width(column: Sequence[str]) -> int:
        return min(max(map(len, column)), MAX_STATUS_WIDTH) + 3  # two blanks and a line

    taken = sum(map(width, repeated)) + 1
    groups: list[list[Sequence[str]]] = [[]]
    for column in values:
        if groups[-1] and taken + sum(map(width, [*groups[-1], column])) > room:
            groups.append([])
        groups[-1].append(column)
    return groups


def _plain(text: str) -> Text:
    from rich.text import Text

    return Text(text)  # a string would be read as markup: "overlap[layer 1]" would lose its brackets


def _title(result: Result) -> str:
    fixed = [f"{name} = {value.item():.6g}" for name, value in result.ds.coords.items() if value.ndim == 0]
    grids = [f"over {' and '.join(map(str, result.status.dims))}"] if result.status.dims else []
    return ", ".join([f"{result.kind} of {result.problem!r}", *fixed, *grids])


def _variables(result: Result, limit: int) -> tuple[list[str], list[str]]:
    """Return the names of the variables with at most `limit` numbers per point, and the names of the larger ones."""
    from ..core.dataset.assemble import RESERVED

    shown, left_out = [], []
    for name, variable in result.ds.data_vars.items():
        if name in RESERVED or str(name).endswith("_err"):
            continue
        numbers = variable.size // max(result.status.size, 1)
        (shown if numbers <= limit else left_out).append(str(name))
    return shown, left_out


def _columns(result: Result, name: str) -> list[str]:
    from ..core.showing.frame import entry_columns

    values = result[name]
    return entry_columns(values, [str(dim) for dim in values.dims if dim not in result.status.dims])


def _cells(result: Result, position: tuple[int, ...], shown: Sequence[str]) -> list[str]:
    """Return the cells of one point: controls, the variables ``shown`` with their numerical errors, status.

    ``position`` is the index of the point along each dimension of the grid.
    """
    point = result.ds.isel(dict(zip(result.status.dims, position, strict=True)))
    controls = [f"{point[dim].item():.6g}" for dim in result.status.dims]
    values = []
    for name in shown:
        numbers = point[name].values.ravel()
        errors = point[f"{name}_err"].values.ravel() if f"{name}_err" in point else [math.nan] * numbers.size
        values += [format_number(*pair) for pair in zip(numbers, errors, strict=True)]
    return [*controls, *values, str(point["status"].item())]
