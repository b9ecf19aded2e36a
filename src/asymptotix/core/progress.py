"""Progress output for a terminal, a notebook or a log file."""

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

#: A function of one text that shows it as the state of the work: ``progress.message``, or a wrapper with a heading.
Say = Callable[[str], None]

#: Shortest time in seconds between two lines in a log. Smaller: long logs. Larger: work looks as if it had stopped.
SECONDS_BETWEEN_LINES = 10.0
#: Duration in seconds below which work leaves no closing line in a log.
SHORT_WORK_SECONDS = 5.0


class Progress:
    """The progress of a piece of work, shown on standard error.

    On a terminal and in a notebook it is a bar with rate and remaining time, which disappears at the end. In a log it
    is a plain line at most every 10 s and one at the end; nothing for work under 5 s. Inside another progress it is a
    second bar; in a log both share the limit of one line per 10 s, and only the outer one writes a line at the end.

    Parameters
    ----------
    total
        Number of steps; None where it is not known.
    description
        A short name for the work.
    enabled
        None: the output described above. False: no output. True: even short work gets a closing line in a log.

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
        """Count ``n`` more steps as done and show ``message``, a text on the current state.

        With a message, a pending interrupt raises the KeyboardInterrupt here, because the work is between two steps.
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
        """Show the current state without counting a step."""
        self.advance(0, text)

    def announce(self, text: str) -> None:
        """Show a text before the first step; a log gets its line at once, without the usual wait of 10 s."""
        self.advance(0, text)
        with _lock:
            if isinstance(self._display, _Lines):
                self._display.write_now()


def clock(seconds: float) -> str:
    """Format a time span as hours, minutes and seconds.

    >>> clock(99.7)
    '0:01:40'
    """
    return str(timedelta(seconds=round(seconds)))


def as_progress(progress: Progress | bool | None, total: int | None, description: str) -> Progress:
    """Convert the ``progress`` argument of a verb to a :class:`Progress`, to be used in a ``with`` statement.

    A given Progress keeps its description, and its total if it has one. If it is already running, it keeps running
    afterwards, so that several verbs can share one bar. None, True and False are ``enabled`` of a new one.
    """
    if isinstance(progress, Progress):
        if progress.total is None:
            progress.total = total
        return progress
    if progress is None or isinstance(progress, bool):
        return Progress(total, description, enabled=progress)
    raise TypeError(f"progress must be None, True, False or a Progress, got {progress!r}")


def quietly(text: str) -> None:
    """Ignore a text on the state of the work, but raise the KeyboardInterrupt if an interrupt is pending."""
    interrupts.check()


def under(heading: str, say: Say) -> Say:
    """Return a function that passes "heading: text" to ``say`` when it is called with a text."""
    return lambda text: say(f"{heading}: {text}")


_lock = threading.RLock()


def _bars_are_possible() -> bool:
    if _Bar._shared is not None:
        return True  # while a bar runs rich replaces standard error by an object that may not look like a terminal
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_jupyter:  # bars in a notebook need an optional package
        return importlib.util.find_spec("ipywidgets") is not None
    return sys.stderr.isatty() and not console.is_dumb_terminal


class _Bar:
    """The bar of one Progress. All running bars share one rich display, because rich allows only one at a time."""

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
    """The lines of one Progress in a log. Nested ones share the limit in time; only the outermost writes an end."""

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
