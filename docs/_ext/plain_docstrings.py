"""Turn docstrings of this package, which are written for a terminal, into reStructuredText.

A formula indented below a blank line becomes a literal block. Bars, stars and trailing underscores of formulas in
running text are escaped, because they are not markup.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from sphinx.application import Sphinx

#: Markup that is kept: roles, literals, links, emphasised words.
KEPT = re.compile(r"(:\w+:`[^`]*`|``.*?``|`[^`]*`_{0,2}|(?<![\w*])\*\w[\w -]*\*(?![\w*]))")
#: A character that occurs in no text. It replaces a colon while napoleon works.
COLON = "\ue000"
SECTIONS = re.compile(r"^-{3,}$")


def depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def escaped(line: str) -> str:
    """Return a line with its bars, stars and trailing underscores escaped, except in markup."""
    parts = KEPT.split(line)
    for k in range(0, len(parts), 2):
        parts[k] = re.sub(r"([|*])", r"\\\1", parts[k])
        parts[k] = re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", parts[k])
    return "".join(parts)


def rewritten(lines: list[str]) -> list[str]:
    out: list[str] = []
    last, blank, formula = 0, True, None
    for line in lines:
        if not line.strip():
            out.append(line)
            blank = True
            continue
        here = depth(line)
        if formula is not None and here < formula:
            formula = None
        if formula is None and blank and out and here > last and any(text.strip() for text in out):
            formula = here
            out += [" " * last + "::", ""]
        if formula is not None or line.lstrip().startswith((">>>", "...")) or SECTIONS.match(line.strip()):
            out.append(line)
        else:
            out.append(escaped(line))
        if formula is None:
            last = here
        blank = False
    return out


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = rewritten(lines)
    if what in ("property", "attribute") and lines:  # napoleon would read the text before a colon as a type
        lines[0] = lines[0].replace(":", COLON)


def restore(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [line.replace(COLON, ":") for line in lines]


def own_signature(app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returns: str) -> Any:
    """Show the signature of ``__init__`` for a class whose ``__new__`` accepts any arguments."""
    if what == "class" and signature and signature.startswith("(*"):
        shown = str(inspect.signature(obj.__init__)).replace("(self, ", "(").replace("(self)", "()")
        return re.sub(r" -> \S+$", "", shown), returns
    return None


def left_as_text(app: Sphinx, env: Any, node: Any, contnode: Any) -> Any:
    """Keep a reference as text if a docstring names an object without an entry (another module, an xarray method).

    Such a reference on a page remains an error of the build.
    """
    return contnode if "docstring of" in (node.source or "") else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process, priority=1)  # before napoleon
    app.connect("autodoc-process-docstring", restore, priority=900)  # and after it
    app.connect("autodoc-process-signature", own_signature)
    app.connect("missing-reference", left_as_text)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
