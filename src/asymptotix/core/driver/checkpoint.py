"""The checkpoint: a file into which a running verb writes the points that are finished."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from ...numerics import interrupts
from ..result import Result

#: Shortest time in seconds between two writes, and largest share of the running time that writing may take.
#: Less frequent writes: a crash loses more finished points.
SECONDS_BETWEEN_WRITES = 1.0
SHARE_OF_WRITING = 0.05


class Checkpoint:
    """The file of a checkpoint: a valid result of the points finished so far. A failed write does not end the work.

    Attributes
    ----------
    path : Path
    trouble : str
        Text of the error of the last write; "" if it succeeded.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"checkpoint must be the path of a file, got {path!r}")
        self.path = Path(path)
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise ValueError(f"checkpoint must be a file in a folder that exists, got {self.path}")
        self.trouble = ""
        self._due = time.monotonic()

    def offer(self, make: Callable[[], Result]) -> None:
        """Write the result that ``make`` returns, unless the last write was too recent; see the constants above."""
        began = time.monotonic()
        if began < self._due:
            return
        self.write(make)
        ended = time.monotonic()
        self._due = ended + max(SECONDS_BETWEEN_WRITES, (ended - began) / SHARE_OF_WRITING)

    def write(self, make: Callable[[], Result]) -> None:
        """Write the result that ``make`` returns, whenever the last write was; an error only sets ``trouble``."""
        try:
            make().save(self.path)
            self.trouble = ""
        except Exception as error:  # a full disk, or a setting that cannot be described: the points are not at fault
            interrupts.raise_if_hidden_in(error)
            self.trouble = str(error) or type(error).__name__
