"""What was drawn on some axes: which colours are taken, and which theory and experiment belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Entries that the user gave one colour for all are told apart by these.
LINESTYLES = ("-", "--", ":", "-.")


@dataclass
class Series:
    """One observable of one result on some axes.

    Attributes
    ----------
    kind, name, title, label
        Theory or experiment, the observable, what an axis calls it, and what the user calls this one.
    colours
        Of its entries.
    handles
        What the legend shows, with whether the label is ours to change.
    has_partner
        Whether the theory's experiment, or the experiment's theory, was drawn after it.
    """

    kind: str
    name: str
    title: str
    label: str | None
    colours: dict[str, Any]
    handles: list[Any]
    has_partner: bool = False


_DRAWN: WeakKeyDictionary[Axes, list[Series]] = WeakKeyDictionary()


def drawn_on(ax: Axes) -> list[Series]:
    """What was drawn on the axes, in order."""
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
    """Choose colours for the entries (label -> position) of an observable.

    An experiment has the colours of the theory of the same name and label that is there without one, and the other way
    round; whatever else comes to axes with lines on them goes on where the colours end. ``like`` takes the colours of
    what was drawn first.
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
    """The colours of a palette that nothing on the axes has; all of them where none is left."""
    from matplotlib.colors import to_hex

    shown = [line.get_color() for line in ax.lines] + [patch.get_facecolor() for patch in ax.patches]
    shown += [colour for series in drawn_on(ax) for colour in series.colours.values()]
    taken = {to_hex(colour).lower() for colour in shown if colour != "none"}
    return [colour for colour in palette if colour.lower() not in taken] or list(palette)


def titles(ax: Axes) -> list[str]:
    """What the observables on the axes are called, each once."""
    return list({s.name: s.title for s in drawn_on(ax)}.values())


def given_colours(color: Any, entries: Sequence[str]) -> dict[str, Any]:
    """Colours that the user gave, one for all entries or one for each."""
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
    """Put the observable before labels that do not say it: until now there was one only."""
    words = series.name.replace("_", " ")
    for handle in series.handles:
        if series.label is None and not str(handle.get_label()).startswith(("_", words)):
            handle.set_label(f"{words}, {handle.get_label()}")
