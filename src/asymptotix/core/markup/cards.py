"""Parts of what a notebook shows: a card with a heading, tables, a picture.

Colours are the notebook's own, so that a card is read on dark paper as on light. What comes from outside is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

_CARD = "font-size:90%;line-height:1.35;border-left:3px solid #0072B2;padding:0.2em 0 0.2em 0.8em;overflow-x:auto"
_CELL = "text-align:left;padding:0.1em 0.9em 0.1em 0;background:transparent;color:inherit"
_MUTED = "opacity:0.7"
#: Characters of one cell.
MOST_IN_CELL = 160

T = TypeVar("T")


def card(heading: str, *parts: str) -> str:
    """A heading with what belongs to it; the parts are HTML, the heading is text."""
    return f'<div style="{_CARD}"><div><b>{escaped(heading)}</b></div>{"".join(part for part in parts if part)}</div>'


def line(text: str) -> str:
    """A line of text below the heading."""
    return f'<div style="{_MUTED}">{escaped(text, most=600)}</div>'


def table(rows: Iterable[Sequence[str]], heads: Sequence[str] = ()) -> str:
    """A table of text, one tuple a row."""
    top = "".join(f'<th style="{_CELL};{_MUTED}">{escaped(head)}</th>' for head in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escaped(cell)}</td>' for cell in row) + "</tr>" for row in rows
    )
    if not body:
        return ""
    head = f"<thead><tr>{top}</tr></thead>" if top else ""
    return f'<table style="border-collapse:collapse;margin:0.3em 0">{head}<tbody>{body}</tbody></table>'


def folded(title: str, inside: str) -> str:
    """HTML that is shown when its title is clicked."""
    return f"<details><summary>{escaped(title)}</summary>{inside}</details>" if inside else ""


def picture(source: str, width: int) -> str:
    """A picture on white paper, from a data address that we made."""
    return f'<img alt="plot" width="{width}" src="{source}" style="background:white;border-radius:4px;max-width:100%">'


def escaped(text: object, most: int = MOST_IN_CELL) -> str:
    """Text that HTML shows as it is, cut where it is long."""
    words = str(text)
    return html.escape(words if len(words) <= most else f"{words[: most - 2]} …")


def or_plain(make: Callable[[T], str], shown: T) -> str:
    """What ``make`` gives; where it fails the plain words. An object must never fail to show itself."""
    try:
        return make(shown)
    except Exception:  # whatever a part of the object raises: the notebook would show that in its place
        try:
            words = repr(shown)
        except Exception as error:  # its own repr is broken
            words = f"{type(shown).__name__} (its repr raised {type(error).__name__})"
        return f"<pre>{escaped(words, most=2000)}</pre>"
