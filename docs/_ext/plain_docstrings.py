"""Docstrings of this package are written to be read in a terminal; here they become reStructuredText.

Formulas stand indented below a blank line: they become literal blocks. Bars, stars and trailing underscores of formulas
in running text are no markup.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from sphinx.application import Sphinx

#: What is markup and stays: roles, literals, links, stressed words.
KEPT = re.compile(r"(:\w+:`[^`]*`|``.*?``|`[^`]*`_{0,2}|(?<![\w*])\*\w[\w -]*\*(?![\w*]))")
#: Stands for a colon while napoleon works: a character that no text has.
COLON = "\ue000"
SECTIONS = re.compile(r"^-{3,}$")


def depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def escaped(line: str) -> str:
    """A line whose bars, stars and trailing underscores are what they look like."""
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
    if what in ("property", "attribute") and lines:  # napoleon would take what stands before a colon for a type
        lines[0] = lines[0].replace(":", COLON)


def restore(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [line.replace(COLON, ":") for line in lines]


def own_signature(app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returns: str) -> Any:
    """Of a class whose ``__new__`` takes anything, what its constructor takes."""
    if what == "class" and signature and signature.startswith("(*"):
        shown = str(inspect.signature(obj.__init__)).replace("(self, ", "(").replace("(self)", "()")
        return re.sub(r" -> \S+$", "", shown), returns
    return None


def left_as_text(app: Sphinx, env: Any, node: Any, contnode: Any) -> Any:
    """Docstrings may name what has no entry here (another module, a method of xarray): that stays text.

    A page that does so is an error of the build.
    """
    return contnode if "docstring of" in (node.source or "") else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process, priority=1)  # before napoleon
    app.connect("autodoc-process-docstring", restore, priority=900)  # and after it
    app.connect("autodoc-process-signature", own_signature)
    app.connect("missing-reference", left_as_text)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
