"""A question to the library as Python source, its answer as numbers with errors, and a pair of equivalent questions."""

from __future__ import annotations

import dataclasses
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import asymptotix as asx
from asymptotix.core.driver import run as driver
from invariance.grammar import HEADER

PACKAGE = str(Path(asx.__file__).parent)
#: What may be raised where a problem is refused.
REFUSALS = (ValueError, TypeError, NotImplementedError, MemoryError)
#: What a method of ours may raise, with a sentence, where its numbers fail.
FAILURES = (ArithmeticError, RuntimeError)


@dataclass(frozen=True)
class Question:
    """Lines that make a problem, a verb and its options; lines before and after it, and lines that read more numbers.

    ``numbers`` is in the scope of the lines after: name -> (value, error), the points along the first axis.
    """

    make: Sequence[str]
    verb: str
    options: Mapping[str, Any]
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    restore: Sequence[str] = ()

    def with_(self, **changes: Any) -> Question:
        return dataclasses.replace(self, **changes)

    def call(self, **more: Any) -> str:
        given = ", ".join(f"{name}={_text(value)}" for name, value in {**self.options, **more}.items())
        return f"answer = asx.{self.verb}(problem, {given}, progress=False)"

    def lines(self, **more: Any) -> list[str]:
        """All lines, without the header."""
        return [*self.make, *self.before, self.call(**more), *self.after]


def _text(value: Any) -> str:
    return repr(value).replace("inf", "np.inf") if not isinstance(value, str) else repr(value)


@dataclass(frozen=True)
class Answer:
    """Numbers by name, with points along the first axis; or a refusal, or what was raised."""

    numbers: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    converged: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    words: Sequence[str] = ()
    refusal: str = ""
    error: str = ""

    def mapped(self, **maps: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]) -> Answer:
        """The answer with maps (value, error) -> (value, error) applied to some of its numbers."""
        changed = {name: maps[name](*pair) if name in maps else pair for name, pair in self.numbers.items()}
        return dataclasses.replace(self, numbers=changed)

    def points(self, chosen: Sequence[int]) -> Answer:
        at = list(chosen)
        numbers = {name: (value[at], error[at]) for name, (value, error) in self.numbers.items()}
        return dataclasses.replace(
            self, numbers=numbers, converged=self.converged[at], words=[self.words[k] for k in at]
        )


def _same(answer: Answer) -> Answer:
    return answer


@dataclass(frozen=True)
class Pair:
    """Two questions, and the map that makes of the first answer what the second must be.

    Parameters
    ----------
    names
        The numbers that are compared; those that a result lacks are left out.
    slack
        Relative difference that is allowed beside the errors, and why in ``reason``.
    """

    family: str
    transformation: str
    first: Question
    second: Question
    names: Sequence[str]
    carry: Callable[[Answer], Answer] = _same
    slack: float = 2e-6
    reason: str = "recovery counts as exact from an overlap of 1 - 1e-6 on"


def ask(question: Question, **more: Any) -> Answer:
    """Run the lines of a question; nothing that it raises gets out."""
    scope: dict[str, Any] = {"numbers": {}}
    failed: list[Exception] = []
    try:
        with warnings.catch_warnings(), failures_kept(failed):
            warnings.simplefilter("ignore")
            exec("\n".join([*HEADER, *question.make, *question.before]), scope)
            try:
                exec(question.call(**more), scope)
                read = _read(scope["answer"])
                exec("\n".join(question.after), scope)
            finally:
                exec("\n".join(question.restore), scope)
    except Exception as error:
        return _raised(error)
    for error in failed:
        raised = _raised(error)
        if raised.error:
            return raised
    return dataclasses.replace(read, numbers={**read.numbers, **scope["numbers"]})


@contextmanager
def failures_kept(failed: list[Exception]) -> Iterator[None]:
    """Keep what was raised at single points, of which a result has the words only."""
    words_of = driver._words_of

    def kept(error: Exception) -> str:
        failed.append(error)
        return words_of(error)

    driver._words_of = kept
    try:
        yield
    finally:
        driver._words_of = words_of


def _raised(error: Exception) -> Answer:
    frames = traceback.extract_tb(error.__traceback__)
    where = [frame for frame in frames if frame.filename.startswith(PACKAGE)]
    ours = bool(where) and frames[-1] is where[-1] and "raise " in (frames[-1].line or "")
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if ours and len(str(error)) > 15 and isinstance(error, REFUSALS):
        return Answer(refusal=said[:400])
    if ours and len(str(error)) > 15 and isinstance(error, FAILURES) and type(error) is not RecursionError:
        return Answer(refusal=f"failed: {said[:400]}")
    places = " <- ".join(
        f"{Path(frame.filename).relative_to(PACKAGE) if frame in where else Path(frame.filename).name}:{frame.lineno}"
        for frame in reversed(frames[-6:])
    )
    return Answer(error=f"{said[:300]} [{places}]")


def _read(result: asx.Result) -> Answer:
    """Every number of a result that has no dimension but the controls and its own."""
    ds = result.ds
    points = ds["converged"].dims
    count = int(ds["converged"].size)
    words = [str(word) for word in ds["status"].values.ravel()]
    numbers = {}
    for name, values in ds.data_vars.items():
        if values.dtype.kind != "f" or str(name).endswith(("_err", "_trace")) or values.dims[: len(points)] != points:
            continue
        own = values.shape[len(points) :]
        error = ds[f"{name}_err"].values if f"{name}_err" in ds else np.zeros(values.shape)
        numbers[str(name)] = (values.values.reshape(count, *own), np.asarray(error).reshape(count, *own))
    return Answer(numbers, np.asarray(ds["converged"].values).reshape(count), words)
