"""Signals that ask the program to stop: a handler notes them, and long loops obey them between two steps.

An exception that a signal raises wherever the program happens to be can land inside compiled code, which loses it or
turns it into another. Here a handler sets a flag; long loops call :func:`check` between steps, and only there the
KeyboardInterrupt is raised. A second signal raises at once, wherever it lands.

SIGTERM and SIGHUP wait at most SECONDS_TO_END for a check. In a worker of :mod:`multiprocessing` SIGTERM keeps its
default effect and ends the process at once, because the pool that sends it waits for the end of the process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

#: Signals that ask to stop: SIGINT from Ctrl-C, SIGTERM from a cluster, SIGHUP from a closed terminal.
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
#: Time in seconds after a signal in which a second one also ends enclosing work, such as a loop over calls. Larger: two
#: unrelated Ctrl-C end it. Smaller: the second must come fast.
SECONDS_TO_LEAVE = 3.0
#: Longest time in seconds that SIGTERM and SIGHUP wait for a check; then they raise like a second signal. Larger: no
#: time is left to write results, because clusters commonly kill a process 30 seconds after SIGTERM. Smaller: work that
#: would have stopped at a check is cut off inside compiled code.
SECONDS_TO_END = 15.0
#: Target duration in seconds of one call of a compiled program with many steps. Between two calls signals are obeyed
#: and progress is shown. Larger: both come late. Smaller: the calls themselves cost time.
SECONDS_PER_CALL = 0.3


class _Requests:
    """State of the stop signals of this process; without a lock, because Python runs handlers in the main thread."""

    def __init__(self) -> None:
        self.depth = 0  # number of nested scopes
        self.pending: int | None = None  # signal that is noted and not obeyed yet
        self.obeyed: int | None = None  # last signal that was obeyed
        self.when = float("-inf")  # time of the last signal
        self.insisting = False  # whether the last signal soon followed another
        self.count = 0  # number of signals that were obeyed
        self.told_to_end = 0  # SIGTERM or SIGHUP, once it was obeyed: the process should end

    def obey(self) -> None:
        self.obeyed, self.pending = self.pending, None
        self.count += 1
        if self.obeyed not in (None, signal.SIGINT):
            self.told_to_end = self.obeyed


_requests = _Requests()


@contextmanager
def deferred() -> Iterator[None]:
    """Scope in which a signal to stop waits for the next :func:`check`. Scopes may be nested.

    Only Python's default handlers are replaced; the user's handlers stay, and ignored signals (nohup) stay ignored. In
    a thread other than the main one nothing is changed. A signal that comes after the last check counts as obeyed,
    because the work is done.

    Raises
    ------
    SystemExit
        On entering, if an earlier scope ended by SIGTERM or SIGHUP: the process was told to end, and has had the time
        to save its results.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _requests.told_to_end and not _requests.depth:
        raise SystemExit(128 + _requests.told_to_end)
    replaced = {}
    if not _requests.depth:
        _requests.insisting = False
        replaced = _replace_handlers()
    _requests.depth += 1
    try:
        yield
    except SystemError as error:
        raise_if_hidden_in(error)
        raise
    finally:
        _requests.depth -= 1
        for number, handler in replaced.items():
            signal.signal(number, handler)
        if not _requests.depth and _requests.pending is not None:
            _requests.obey()


def check() -> None:
    """Raise KeyboardInterrupt if a signal to stop is waiting. Long work calls this function between two steps.

    In a thread other than the main one it raises instead if the function given to :func:`ending_with` returns True.
    """
    if threading.current_thread() is not threading.main_thread():
        if _helping.ended():
            raise KeyboardInterrupt
    elif _requests.pending is not None:
        _requests.obey()
        raise KeyboardInterrupt


class _Helping(threading.local):
    """Per thread, the function ``ended()`` of :func:`ending_with`; outside of its scope it returns False."""

    ended: Callable[[], bool] = staticmethod(lambda: False)


_helping = _Helping()


@contextmanager
def ending_with(ended: Callable[[], bool]) -> Iterator[None]:
    """Scope for a thread other than the main one, in which :func:`check` raises once ``ended()`` returns True."""
    before, _helping.ended = _helping.ended, ended
    try:
        yield
    finally:
        _helping.ended = before


def steps_of_next_call(steps: int, seconds: float, most: int) -> int:
    """Return how many steps the next call of a compiled program should do to take about SECONDS_PER_CALL.

    The last call did ``steps`` steps in ``seconds`` seconds. The result is from 1 to ``most``, at most 8 ``steps``.

    >>> [steps_of_next_call(10, seconds, most=100) for seconds in (0.6, 9.0, 1e-9)]
    [5, 1, 80]
    """
    faster = min(SECONDS_PER_CALL / max(seconds, 1e-3), 8.0)
    return max(1, min(most, int(steps * faster)))


def raise_if_hidden_in(error: Exception) -> None:
    """Raise KeyboardInterrupt if ``error`` is a SystemError that compiled code made of a second signal's interrupt."""
    if isinstance(error, SystemError) and _requests.insisting:
        raise KeyboardInterrupt from error


def waiting() -> bool:
    """Return whether a signal to stop waits for a :func:`check`. Other threads then end; only the main one raises."""
    return _requests.pending is not None


def waiting_seconds() -> float:
    """Return for how many seconds a signal to stop has been waiting; 0 if none is."""
    return time.monotonic() - _requests.when if waiting() else 0.0


def insisting() -> bool:
    """Return whether the last signal soon followed another and so also ends enclosing work, such as a sweep."""
    return _requests.insisting


def last_signal() -> int | None:
    """Return the number of the last signal that ended work; None if none did."""
    return _requests.obeyed


def times_obeyed() -> int:
    """Return how many signals have been obeyed so far. If the number grows, enclosing work must end too."""
    return _requests.count


def forget() -> None:
    """Forget all signals, for a program that continues after SIGTERM or SIGHUP."""
    depth = _requests.depth
    _requests.__init__()
    _requests.depth = depth


def _replace_handlers() -> dict[int, Callable[[int, FrameType | None], object] | int | None]:
    replaced: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
    # A worker of multiprocessing handles Ctrl-C only: its pool terminates it with SIGTERM.
    numbers = STOP_SIGNALS if multiprocessing.parent_process() is None else (signal.SIGINT,)
    for number in numbers:
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            replaced[number] = signal.signal(number, _note)
    return replaced


def _note(number: int, frame: FrameType | None) -> None:
    impatient, now = _requests.pending is not None, time.monotonic()
    _requests.insisting = impatient or now - _requests.when < SECONDS_TO_LEAVE
    _requests.when, _requests.pending = now, number
    if impatient:
        check()
    elif number != signal.SIGINT:
        insistence = threading.Timer(SECONDS_TO_END, _insist, (number, now))
        insistence.daemon = True
        insistence.start()


def _insist(number: int, when: float) -> None:
    """Send the signal ``number`` to this process again, if that of monotonic time ``when`` has not been obeyed."""
    if _requests.pending == number and _requests.when == when:
        os.kill(os.getpid(), number)
