"""Elements of the HTML in a notebook: a card with a heading, tables, a picture.

Text has the notebook's own colours, so that a card is readable in dark and light themes. All text is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

_CARD = "font-size:90%;line-height:1.35;border-left:3px solid #0072B2;padding:0.2em 0 0.2em 0.8em;overflow-x:auto"
_CELL = "text-align:left;padding:0.1em 0.9em 0.1em 0;background:transparent;color:inherit"
_MUTED = "opacity:0.7"
#: Largest number of characters in a cell; longer text is cut.
MOST_IN_CELL = 160

T = TypeVar("T")


def card(heading: str, *parts: str) -> str:
    """Return the HTML of a card: ``heading`` (text, escaped) and below it ``parts`` (HTML; empty ones are left out)."""
    return f'<div style="{_CARD}"><div><b>{escaped(heading)}</b></div>{"".join(part for part in parts if part)}</div>'


def line(text: str) -> str:
    """Return the HTML of a pale line of text, cut to 600 characters."""
    return f'<div style="{_MUTED}">{escaped(text, most=600)}</div>'


def table(rows: Iterable[Sequence[str]], heads: Sequence[str] = ()) -> str:
    """Return the HTML of a table with a row of cells per element of ``rows`` and ``heads`` above; "" without rows."""
    top = "".join(f'<th style="{_CELL};{_MUTED}">{escaped(head)}</th>' for head in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escaped(cell)}</td>' for cell in row) + "</tr>" for row in rows
    )
    if not body:
        return ""
    head = f"<thead><tr>{top}</tr></thead>" if top else ""
    return f'<table style="border-collapse:collapse;margin:0.3em 0">{head}<tbody>{body}</tbody></table>'


def folded(title: str, inside: str) -> str:
    """Return the HTML ``inside``, hidden until its title is clicked; "" if it is empty."""
    return f"<details><summary>{escaped(title)}</summary>{inside}</details>" if inside else ""


def picture(source: str, width: int) -> str:
    """Return the HTML of a picture, ``width`` pixels wide, on white. ``source`` is its data URL and is not escaped."""
    return f'<img alt="plot" width="{width}" src="{source}" style="background:white;border-radius:4px;max-width:100%">'


def escaped(text: object, most: int = MOST_IN_CELL) -> str:
    """Return text escaped for HTML, cut to ``most`` characters."""
    words = str(text)
    return html.escape(words if len(words) <= most else f"{words[: most - 2]} …")


def or_plain(make: Callable[[T], str], shown: T) -> str:
    """Return ``make(shown)``, the HTML of an object, or its repr if this fails: showing an object must never raise."""
    try:
        return make(shown)
    except Exception:  # otherwise the notebook would show a traceback instead of the object
        try:
            words = repr(shown)
        except Exception as error:  # its own repr is broken
            words = f"{type(shown).__name__} (its repr raised {type(error).__name__})"
        return f"<pre>{escaped(words, most=2000)}</pre>"
