"""Labels of vertical lines, at heights at which no curve crosses them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.typing import ColorType

#: Smallest distance between a label and curves or the ends of the axes, as a share of the axes' height. Smaller:
#: labels touch curves.
ROOM = 0.025
#: Distance between a line and its label, in points.
OFFSET = 3

_LABELS: WeakKeyDictionary[Axes, list[Annotation]] = WeakKeyDictionary()


def add_label(ax: Axes, x: float, words: str, color: ColorType) -> None:
    """Label the vertical line at ``x``; :func:`settle_labels` chooses height and side whenever the axes are drawn."""
    from .drawn_label import DrawnLabel  # imported here because it needs matplotlib

    label = DrawnLabel(
        settle_labels,
        words,
        (x, 0.98),
        xycoords=("data", "axes fraction"),
        xytext=(-OFFSET, 0),
        textcoords="offset points",
        rotation=90,
        ha="right",
        va="top",
        fontsize=8,
        color=color,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
    )
    ax.add_artist(label)
    _LABELS.setdefault(ax, []).append(label)


def settle_labels(ax: Axes) -> None:
    """Move the labels of vertical lines to heights and sides at which no curve now on the axes crosses them."""
    labels = _LABELS.get(ax, [])
    if not labels:
        return
    curves = _curves(ax)
    lines = [_across(ax, label) for label in labels]
    for label, at in zip(labels, lines, strict=True):
        extent, gap = label.get_window_extent(), OFFSET * ax.figure.dpi / 72
        height, reach = extent.height / ax.bbox.height, extent.width + 2 * gap
        sides = {"right": (at - reach, at), "left": (at, at + reach)}  # alignment of the text -> pixels it covers
        found = {
            side: _free_top(sorted(_occupied(curves, span, ax) + _behind_legend(span, ax)), height)
            for side, span in sides.items()
            if ax.bbox.x0 <= span[0] and span[1] <= ax.bbox.x1 and not any(span[0] < x < span[1] for x in lines)
        }
        side = max(found, key=lambda side: min(found[side][1], height), default="right")
        label.set_position((OFFSET if side == "left" else -OFFSET, 0))
        label.set_horizontalalignment("left" if side == "left" else "right")
        label.xy = (label.xy[0], found[side][0] if found else 1 - ROOM)


def _across(ax: Axes, label: Annotation) -> float:
    """Return the horizontal position, in pixels, of the vertical line that a label names."""
    return float(ax.transData.transform((label.xy[0], ax.get_ylim()[0]))[0])


def _curves(ax: Axes) -> list[np.ndarray]:
    """Return the points (points, 2) of every line on the axes, in pixels, except vertical lines."""
    points = [(line, np.asarray(line.get_xydata(), dtype=float)) for line in ax.lines]
    return [line.get_transform().transform(xy) for line, xy in points if len(xy) and not _is_vertical(xy)]


def _behind_legend(span: tuple[float, float], ax: Axes) -> list[tuple[float, float]]:
    legend = ax.get_legend()
    if legend is None:
        return []
    box = legend.get_window_extent()
    if box.x1 < span[0] or box.x0 > span[1]:
        return []
    return [((box.y0 - ax.bbox.y0) / ax.bbox.height, (box.y1 - ax.bbox.y0) / ax.bbox.height)]


def _is_vertical(xy: np.ndarray) -> bool:
    return len(xy) == 2 and xy[0, 0] == xy[1, 0]


def _occupied(curves: list[np.ndarray], span: tuple[float, float], ax: Axes) -> list[tuple[float, float]]:
    """Return (lowest, highest) of the curves within ``span`` (pixels), as shares of the axes' height."""
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
    return found


def _free_top(occupied: list[tuple[float, float]], height: float) -> tuple[float, float]:
    """Return (top, height) of the highest gap between ``occupied`` of at least ``height``, else of the largest."""
    gaps, bottom = [(0.0, 0.0)], 0.0
    for low, high in [*occupied, (1.0, 1.0)]:
        if low > bottom:
            gaps.append((low - ROOM, low - bottom - 2 * ROOM))
        bottom = max(bottom, high)
    fitting = [gap for gap in gaps if gap[1] >= height]
    return fitting[-1] if fitting else max(gaps, key=lambda gap: gap[1])
