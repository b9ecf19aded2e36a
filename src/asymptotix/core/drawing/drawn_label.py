"""A label that is positioned when it is drawn, because the size and content of its axes are not known before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.text import Annotation


class DrawnLabel(Annotation):
    """An annotation that calls ``settle``, which positions labels, with its axes before it is drawn.

    A legend outside the axes, or a colour bar, makes them smaller after everything has been plotted.
    """

    def __init__(self, settle: Callable[[Axes], None], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._settle = settle

    def draw(self, renderer: RendererBase) -> None:
        if isinstance(self.axes, Axes):
            self._settle(self.axes)
        super().draw(renderer)
