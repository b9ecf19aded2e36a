"""Progress that behaves on a terminal, in a notebook and in a log file."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Self

from ..numerics import interrupts

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

#: How work that lies deeper says where it is: ``progress.message``, or that with something added.
Say = Callable[[str], None]

SECONDS_BETWEEN_LINES = 10.0  # in a log
SHORT_WORK_SECONDS = 5.0  # work shorter than this leaves no line in a log


class Progress:
    """How far a piece of work has come, shown on standard error.

    On a terminal and in a notebook it is a bar with rate and remaining time, which disappears at the end. In
    a log it is a plain line at most every 10 s and one at the end; nothing for work under 5 s. Inside another
    progress it is a second bar, or in a log a line of the same rhythm without a closing one.

    Parameters
    ----------
    total
        Number of steps; None where it is not known.
    description
        What is being done, in a few words.
    enabled
        None: as above. False: silent. True: also short work leaves its closing line in a log.

    Examples
    --------
    >>> with Progress(3, "solving", enabled=False) as progress:
    ...     for alpha in (0.1, 0.2, 0.3):
    ...         progress.advance(message=f"alpha={alpha}")
    >>> progress.done
    3
    """

    def __init__(self, total: int | None, description: str, enabled: bool | None = None) -> None:
        self.total = total
        self.description = description
        self.enabled = enabled
        self.done = 0
        self._text = ""
        self._depth = 0
        self._display: _Bar | _Lines | None = None

    def __enter__(self) -> Self:
        self._depth += 1
        if self._depth == 1 and self.enabled is not False:
            self._display = _Bar(self) if _bars_are_possible() else _Lines(self)
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._display is not None:
            display, self._display = self._display, None
            display.close(finished=error_type is None)

    def advance(self, n: int = 1, message: str | None = None) -> None:
        """Count `n` more steps as done, with `message` about where the work is.

        Who says where the work is stands between two steps: a signal to stop is obeyed here.
        """
        if message is not None:
            interrupts.check()
        with _lock:
            self.done += n
            if message is not None:
                self._text = message
            if self._display is not None:
                self._display.update()

    def message(self, text: str) -> None:
        """Say where the work is without counting a step."""
        self.advance(0, text)

    def announce(self, text: str) -> None:
        """Show a line before the first step; a log gets the line at once, without the usual delay."""
        self.advance(0, text)
        with _lock:
            if isinstance(self._display, _Lines):
                self._display.write_now()


def clock(seconds: float) -> str:
    """A time span as hours, minutes and seconds.

    >>> clock(99.7)
    '0:01:40'
    """
    return str(timedelta(seconds=round(seconds)))


def as_progress(progress: Progress | bool | None, total: int | None, description: str) -> Progress:
    """The `progress` argument of a verb as a `Progress`, to be used in a ``with`` statement.

    A given object keeps its description, and its own total if it has one; if it is already running it goes on
    running afterwards, so that several verbs can share one bar.
    """
    if isinstance(progress, Progress):
        if progress.total is None:
            progress.total = total
        return progress
    if progress is None or isinstance(progress, bool):
        return Progress(total, description, enabled=progress)
    raise TypeError(f"progress must be None, True, False or a Progress, got {progress!r}")


def quietly(text: str) -> None:
    """Say nothing; a signal to stop is obeyed here, as where something is said."""
    interrupts.check()


def under(heading: str, say: Say) -> Say:
    """Say the heading before every text."""
    return lambda text: say(f"{heading}: {text}")


_lock = threading.RLock()


def _bars_are_possible() -> bool:
    if _Bar._shared is not None:
        return True  # rich stands in for standard error while a bar runs, and need not look like a terminal
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_jupyter:  # a notebook draws them with a package that need not be there
        return importlib.util.find_spec("ipywidgets") is not None
    return sys.stderr.isatty() and not console.is_dumb_terminal


class _Bar:
    """One task on the rich display that all running bars share; rich allows only one display at a time."""

    _shared: RichProgress | None = None
    _running = 0

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        with _lock:
            if _Bar._shared is None:
                _Bar._shared = _new_rich_display()
                _Bar._shared.start()
            _Bar._running += 1
            self.display = _Bar._shared
            self.task: TaskID = self.display.add_task(progress.description, total=progress.total, text="")

    def update(self) -> None:
        now = self.progress
        self.display.update(self.task, completed=now.done, total=now.total, text=now._text)

    def close(self, *, finished: bool) -> None:
        with _lock:
            self.display.remove_task(self.task)
            _Bar._running -= 1
            if _Bar._running == 0:
                _Bar._shared = None
                self.display.stop()


def _new_rich_display() -> RichProgress:
    from rich import progress as rich_progress
    from rich.console import Console
    from rich.text import Text

    class RateColumn(rich_progress.ProgressColumn):
        def render(self, task: rich_progress.Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:.3g}/s")

    return rich_progress.Progress(
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        RateColumn(),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.fields[text]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )


class _Lines:
    """Plain lines in a log. Nested displays share one rhythm; only the outermost writes a closing line."""

    _last_line = float("-inf")
    _running = 0

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.begun = monotonic()
        with _lock:
            self.outermost = _Lines._running == 0
            _Lines._running += 1
            if self.outermost:
                _Lines._last_line = self.begun

    def update(self) -> None:
        if monotonic() - _Lines._last_line >= SECONDS_BETWEEN_LINES:
            self._write(self._state())

    def write_now(self) -> None:
        self._write(self._state())

    def close(self, *, finished: bool) -> None:
        with _lock:
            _Lines._running -= 1
        took = monotonic() - self.begun
        if self.outermost and (took >= SHORT_WORK_SECONDS or self.progress.enabled):
            self._write(f"{self._count()} {'done in' if finished else 'when stopped after'} {clock(took)}")

    def _count(self) -> str:
        now = self.progress
        return f"{now.done}/{now.total}" if now.total is not None else f"{now.done}"

    def _state(self) -> str:
        now, took = self.progress, monotonic() - self.begun
        parts = [self._count(), f"{clock(took)} elapsed"]
        if now.total is not None and 0 < now.done < now.total:
            parts.append(f"about {clock(took / now.done * (now.total - now.done))} left")
        if now._text:
            parts.append(now._text)
        return ", ".join(parts)

    def _write(self, text: str) -> None:
        print(f"{self.progress.description}: {text}", file=sys.stderr, flush=True)
        _Lines._last_line = monotonic()
