"""Commands for data sets: `list`, `get`, and `check`, which compares the files on the disk with the published ones."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .messages import Debug, clear_messages

if TYPE_CHECKING:
    from ..tasks.stored.catalogue import StoredSet

HELP = """\
Data sets of the papers' experiments: list them, get them, check them.

Files are looked for in a directory that a task is told, then in that of the environment variable `ASYMPTOTIX_DATA`,
then in the cache. A directory that has them already (with folders `omniglot`, `mnist`, `fashion_mnist`, `trec`,
`bert_vocab`) needs no download.
"""

data_app = typer.Typer(help=HELP, rich_markup_mode="markdown", no_args_is_help=True)

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Such as omniglot; `data list` shows them.")]
To = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The directory of data; else that of ASYMPTOTIX_DATA, else the cache."),
]


@data_app.command("list")
def list_sets(context: typer.Context, debug: Debug = False) -> None:
    """List the data sets: content, size, licence and citation."""
    with clear_messages(context, debug):
        from ..tasks.stored.catalogue import DATA_SETS
        from ..tasks.stored.download import download_directory

        rows = [
            (one.name, one.shows, f"{sum(file.size for file in one.files) / 1e6:.1f} MB", one.licence, one.citation)
            for one in DATA_SETS.values()
        ]
        _print_table(("name", "what it holds", "download", "licence", "please cite"), rows)
        print(f"Get them with: asymptotix data get NAME. They are put into {download_directory()}")


@data_app.command("get")
def get_sets(context: typer.Context, names: Names, to: To = None, debug: Debug = False) -> None:
    """Download data sets and check them. Files that are already correct are kept."""
    with clear_messages(context, debug):
        from ..tasks.stored.catalogue import stored_set
        from ..tasks.stored.download import get

        for chosen in [stored_set(name) for name in names]:  # an unknown name is refused before anything is fetched
            for path, done in get(chosen, to):
                print(f"{path}: {done}", flush=True)
        if to is not None:
            print(f"tasks find them with ASYMPTOTIX_DATA={to.expanduser().resolve()} in the environment")


@data_app.command("check")
def check_sets(context: typer.Context, to: To = None, debug: Debug = False) -> None:
    """Compare the files on the disk with the published ones; exit code 1 if something is damaged."""
    with clear_messages(context, debug):
        from ..tasks.stored.catalogue import DATA_SETS

        found = {one.name: _state(one, to) for one in DATA_SETS.values()}
        for name, (_, said) in found.items():
            print(f"{name}: {said}", flush=True)
    if any(damaged for damaged, _ in found.values()):
        raise typer.Exit(1)


def _state(one: StoredSet, directory: Path | None) -> tuple[bool, str]:
    """Return whether a data set, searched in ``directory`` first, is damaged, and a description of its state."""
    from ..tasks.stored.locate import stored_file
    from ..tasks.stored.omniglot import omniglot_sources, read_omniglot

    try:
        if one.name == "omniglot":  # stored in one of several forms
            read_omniglot(directory)
            paths = omniglot_sources(directory)[1]
        else:
            paths = [stored_file(one.name, file.name, directory) for file in one.files]
        return False, f"as published: {', '.join(map(str, paths))}"
    except FileNotFoundError as error:
        return False, f"not there: {error}"
    except ValueError as error:
        return True, f"damaged: {error}"


def _print_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for title in head:
        table.add_column(title, no_wrap=title in ("name", "download"), overflow="fold")
    for row in rows:
        table.add_row(*row)
    (Console() if sys.stdout.isatty() else Console(width=200)).print(table)
