"""Make the tables of observables from the code, ``{observables} module:TABLE``, so that names are defined once."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

HEADINGS = ("name", "symbol", "meaning", "reference")
WIDTHS = (18, 8, 54, 20)


class Observables(SphinxDirective):
    """A directive that shows a table of observables, one row for each entry, in the order of the table."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].partition(":")
        home = import_module(f"asymptotix.{module}")
        self.env.note_dependency(home.__file__ or "")
        group = nodes.tgroup(cols=len(HEADINGS))
        group += [nodes.colspec(colwidth=width) for width in WIDTHS]
        group += nodes.thead("", _row([nodes.Text(heading) for heading in HEADINGS]))
        body = nodes.tbody()
        for entry in getattr(home, name).values():
            said = entry.attrs
            symbol = nodes.math(entry.symbol, entry.symbol) if entry.symbol else nodes.Text("")
            meaning = nodes.Text(f"{entry.long_name}. {said['description']}")
            body += _row([nodes.literal(entry.name, entry.name), symbol, meaning, nodes.Text(entry.reference)])
        group += body
        return [nodes.table("", group)]


def _row(cells: list[Any]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("observables", Observables)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
