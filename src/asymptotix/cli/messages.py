"""Error messages of the commands: a sentence instead of a traceback."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

EXPECTED_ERRORS = (
    ValueError, TypeError, NotImplementedError, OSError, ImportError, MemoryError, RecursionError, OverflowError,
)  # fmt: skip

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@contextmanager
def clear_messages(context: typer.Context, debug: bool) -> Iterator[None]:
    """Scope in which a warning is printed in one line, and an expected error in one sentence with exit code 2.

    With ``debug``, or the option --debug of the whole command line, an error has its traceback instead.
    """
    with warnings.catch_warnings():
        warnings.showwarning = lambda text, *_, **__: print(f"Warning: {_one_line(text)}", file=sys.stderr)
        try:
            yield
        except Exception as error:
            if debug or context.obj["debug"] or not (isinstance(error, EXPECTED_ERRORS) or _is_out_of_memory(error)):
                raise
            print(f"Error: {_in_words(error)}", file=sys.stderr)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(exit_code_of_interrupt()) from error


def exit_code_of_interrupt() -> int:
    """Return the exit code of an interrupt as in shells: 128 plus its number, 130 for Ctrl-C and 143 for SIGTERM."""
    from ..numerics import interrupts

    return 128 + (interrupts.last_signal() or signal.SIGINT)


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether ``error`` means too little memory. XLA has one class for all errors, so the message decides."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error))


def _in_words(error: Exception) -> str:
    said = _one_line(error) or type(error).__name__
    if _is_out_of_memory(error):
        return f"there is not enough memory: {said}"
    if isinstance(error, RecursionError):
        return f"something is nested too deeply: {said}"
    return said


def _one_line(message: str | Warning | Exception) -> str:
    """Return a message as one line without control characters, which a quoted file may contain."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(str(message).split()))
