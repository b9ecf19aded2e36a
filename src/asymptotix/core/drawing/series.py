"""A record of the series drawn on some axes: the colours in use, and which theory and experiment belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.container import Container

#: Line styles that distinguish entries for which the user gave a single colour.
LINESTYLES = ("-", "--", ":", "-.")


@dataclass
class Series:
    """One observable of one result, as drawn on some axes.

    Attributes
    ----------
    kind, name, title, label
        "theory" or "experiment"; name of the observable; its label on an axis; the user's name for the result or None.
    colours
        Label of an entry of the observable -> its colour.
    handles
        Matplotlib objects of the legend, whose labels may be changed later.
    has_partner
        Whether a theory is already paired with its experiment, or an experiment with its theory.
    """

    kind: str
    name: str
    title: str
    label: str | None
    colours: dict[str, Any]
    handles: list[Artist | Container]
    has_partner: bool = False


_DRAWN: WeakKeyDictionary[Axes, list[Series]] = WeakKeyDictionary()


def drawn_on(ax: Axes) -> list[Series]:
    """Return the list of all series on the axes, in the order of drawing."""
    return _DRAWN.setdefault(ax, [])


def begin(
    ax: Axes,
    palette: Sequence[str],
    *,
    kind: str,
    name: str,
    title: str,
    label: str | None,
    entries: Mapping[str, int],
    like: bool,
) -> Series:
    """Choose colours for the entries (label -> position) of an observable, and record and return its series.

    An experiment takes the colours of a theory of the same name and label on the axes that has no experiment yet, and
    vice versa. Any other series takes the next free colours of the palette, or, with ``like``, those of the first
    series.
    """
    earlier = drawn_on(ax)
    partners = [s for s in earlier if s.kind != kind and not s.has_partner and (s.name, s.label) == (name, label)]
    source = earlier[:1] if like else partners[-1:]
    free = free_colours(ax, palette)
    colours = {entry: free[k % len(free)] for entry, k in entries.items()}
    for partner in source:
        partner.has_partner = True
        colours |= {entry: partner.colours[entry] for entry in entries if entry in partner.colours}
    new = Series(kind, name, title, label, colours, [], has_partner=bool(source))
    if any(s.name != name for s in earlier):
        for s in earlier:
            _say_which(s)
    earlier.append(new)
    return new


def free_colours(ax: Axes, palette: Sequence[str]) -> list[str]:
    """Return the colours of a palette that are not in use on the axes; all of them if every one is in use."""
    from matplotlib.colors import to_hex

    shown = [line.get_color() for line in ax.lines] + [patch.get_facecolor() for patch in ax.patches]
    shown += [colour for series in drawn_on(ax) for colour in series.colours.values()]
    taken = {to_hex(colour).lower() for colour in shown if colour != "none"}
    return [colour for colour in palette if colour.lower() not in taken] or list(palette)


def titles(ax: Axes) -> list[str]:
    """Return the axis labels of the observables on the axes, each observable once."""
    return list({s.name: s.title for s in drawn_on(ax)}.values())


def given_colours(color: Any, entries: Sequence[str]) -> dict[str, Any]:
    """Return entry -> colour from ``color``: a matplotlib colour for all entries, or a list with one for each."""
    from matplotlib.colors import is_color_like

    if is_color_like(color):
        return dict.fromkeys(entries, color)
    given = list(color) if isinstance(color, list | tuple) else []
    if len(given) != len(entries) or not all(map(is_color_like, given)):
        raise ValueError(
            f"color must be a colour, or one for each of the {len(entries)} entries "
            f"({', '.join(map(repr, entries))}), got {color!r}"
        )
    return dict(zip(entries, given, strict=True))


def _say_which(series: Series) -> None:
    """Put the observable's name before labels without it in the legend, if the user gave no label."""
    words = series.name.replace("_", " ")
    for handle in series.handles:
        if series.label is None and not str(handle.get_label()).startswith(("_", words)):
            handle.set_label(f"{words}, {handle.get_label()}")
