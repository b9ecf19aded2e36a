"""The checkpoint: a file into which a running verb writes the points that are finished."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from ...numerics import interrupts
from ..result import Result

#: Shortest time between two writes, and the largest share of the running time that writing may take.
SECONDS_BETWEEN_WRITES = 1.0
SHARE_OF_WRITING = 0.05


class Checkpoint:
    """A file that always holds a valid result of the finished points. A failed write does not end the work.

    Attributes
    ----------
    trouble : str
        Why the last write failed; "" if it succeeded.
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
        """Write the result that ``make`` returns, if the last write was long enough ago."""
        began = time.monotonic()
        if began < self._due:
            return
        self.write(make)
        ended = time.monotonic()
        self._due = ended + max(SECONDS_BETWEEN_WRITES, (ended - began) / SHARE_OF_WRITING)

    def write(self, make: Callable[[], Result]) -> None:
        """Write the result that ``make`` returns, now."""
        try:
            make().save(self.path)
            self.trouble = ""
        except Exception as error:  # a full disk, or a setting that cannot be described: the points are not at fault
            interrupts.raise_if_hidden_in(error)
            self.trouble = str(error) or type(error).__name__
