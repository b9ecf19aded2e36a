"""A row of panels in the style that all demonstrations share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": 9,
}


@contextmanager
def panels(path: Path, title: str, size: tuple[float, float], widths: list[float]) -> Iterator[Any]:
    """Axes to draw on, one per relative width; the picture is written to ``path`` at the end."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(widths), figsize=size, constrained_layout=True, gridspec_kw={"width_ratios": widths}
        )
        yield axes
        figure.suptitle(title, fontsize=11.5)
        figure.savefig(path, dpi=150)
        plt.close(figure)
