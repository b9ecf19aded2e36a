"""Show problems, models and algorithms as tables of their fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from .cards import card, or_plain, table

#: Number of nested levels of fields that are shown.
MOST_LEVELS = 4
#: Largest number of entries of an array that are written out.
MOST_ENTRIES = 6


def description_html(described: object) -> str:
    """Return HTML with the fields of a problem, model or algorithm and, below each, the fields of its value."""
    return or_plain(_description, described)


def _description(described: object) -> str:
    first = (type(described).__doc__ or "").strip().splitlines()
    what = first[0].strip() if first and "(" not in first[0][: len(type(described).__name__) + 1] else ""
    heading = type(described).__name__ + (f": {what}" if what else "")
    return card(heading, table(_rows(described, "", MOST_LEVELS)))


def _rows(described: Any, prefix: str, levels: int) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(described):
        if not field.init:
            continue
        value, name = getattr(described, field.name), prefix + field.name
        inside = dataclasses.is_dataclass(value) and not isinstance(value, type)
        yield name, type(value).__name__ if inside else in_short(value)
        if inside and levels > 1:
            yield from _rows(value, f"{name}.", levels - 1)


def in_short(value: Any) -> str:
    """Return a short text for a field's value: for a large array its shape, for a function its name."""
    if isinstance(value, tuple | list):
        inner = ", ".join(in_short(item) for item in value[:MOST_ENTRIES])
        more = ", …" if len(value) > MOST_ENTRIES else ""
        return f"({inner}{more})" if isinstance(value, tuple) else f"[{inner}{more}]"
    if hasattr(value, "__array__") and hasattr(value, "shape") and np.ndim(value):
        array = np.asarray(value)
        if array.ndim == 1 and array.size <= MOST_ENTRIES:
            return f"[{', '.join(map(in_short, array.tolist()))}]"
        return f"array of shape {' × '.join(map(str, array.shape))}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if callable(value):
        return getattr(value, "__qualname__", None) or type(value).__name__
    return str(value)
