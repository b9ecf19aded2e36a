"""Labels of vertical lines, put where no curve crosses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

#: Room that a label keeps from curves and from the ends of the axes, in shares of their height.
ROOM = 0.025
#: Axes shrink when their labels get their place, after the labels here got theirs.
SHRINKING = 1.15

_LABELS: WeakKeyDictionary[Axes, list[Annotation]] = WeakKeyDictionary()


def add_label(ax: Axes, x: float, words: str, color: Any) -> None:
    """Write beside the vertical line at ``x``; :func:`settle_labels` finds the place."""
    label = ax.annotate(
        words,
        (x, 0.98),
        xycoords=("data", "axes fraction"),
        xytext=(-3, 0),
        textcoords="offset points",
        rotation=90,
        ha="right",
        va="top",
        fontsize=8,
        color=color,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
    )
    _LABELS.setdefault(ax, []).append(label)


def settle_labels(ax: Axes) -> None:
    """Move the labels of vertical lines to where they cross no curve, with what is on the axes now."""
    labels = _LABELS.get(ax, [])
    if not labels:
        return
    curves = _curves(ax)
    lines = sorted(float(ax.transData.transform((label.xy[0], 0))[0]) for label in labels)
    for label in labels:
        extent = label.get_window_extent()
        at = float(ax.transData.transform((label.xy[0], 0))[0])
        wide, gap = extent.width, 3 * ax.figure.dpi / 72
        crowded = any(at - wide - 2 * gap < other < at for other in lines) or at - wide - gap < ax.bbox.x0
        span = (at, at + wide + 2 * gap) if crowded else (at - wide - 2 * gap, at)
        height = SHRINKING * extent.height / ax.bbox.height
        label.set_position((gap * 72 / ax.figure.dpi * (1 if crowded else -1), 0))
        label.set_horizontalalignment("left" if crowded else "right")
        label.xy = (label.xy[0], _free_top(_occupied(curves, span, ax), height))


def _curves(ax: Axes) -> list[np.ndarray]:
    """Points of all lines in pixels, but for those from top to bottom."""
    points = [(line, np.asarray(line.get_xydata(), dtype=float)) for line in ax.lines]
    return [line.get_transform().transform(xy) for line, xy in points if len(xy) and not _is_vertical(xy)]


def _is_vertical(xy: np.ndarray) -> bool:
    return len(xy) == 2 and xy[0, 0] == xy[1, 0]


def _occupied(curves: list[np.ndarray], span: tuple[float, float], ax: Axes) -> list[tuple[float, float]]:
    """Intervals of the height of the axes that curves pass through between two places of their width, ascending."""
    low, high = span
    found = []
    for curve in curves:
        curve = curve[np.isfinite(curve).all(axis=1)]
        if not len(curve):
            continue
        curve = curve[np.argsort(curve[:, 0], kind="stable")]
        inside = curve[(curve[:, 0] >= low) & (curve[:, 0] <= high), 1]
        ends = [np.interp(x, curve[:, 0], curve[:, 1]) for x in span if curve[0, 0] <= x <= curve[-1, 0]]
        heights = (np.concatenate([inside, ends]) - ax.bbox.y0) / ax.bbox.height
        if len(heights):
            found.append((float(heights.min()), float(heights.max())))
    return sorted(found)


def _free_top(occupied: list[tuple[float, float]], height: float) -> float:
    """The top of the highest free place of this height, or of the largest there is."""
    gaps, bottom = [], 0.0
    for low, high in [*occupied, (1.0, 1.0)]:
        if low > bottom:
            gaps.append((bottom + ROOM, low - ROOM))
        bottom = max(bottom, high)
    fitting = [gap for gap in gaps if gap[1] - gap[0] >= height]
    chosen = fitting[-1] if fitting else max(gaps, key=lambda gap: gap[1] - gap[0], default=(0.0, 1 - ROOM))
    return float(chosen[1])
