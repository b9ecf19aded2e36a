"""The one driver behind the verbs: it works through a table of points and makes a result of what they gave.

A verb checks its arguments and describes its :class:`Work`; here are progress, resuming, checkpoints, signals to stop,
failures of single points, assembly and the warnings at the end.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ...numerics import interrupts
from ...numerics.precision import own_settings, refuse_after_fork
from ..dataset.assemble import assemble
from ..dataset.provenance import provenance
from ..dataset.rows import Rows
from ..problem import Algorithm, Outcome, Problem, definitions
from ..progress import Progress, as_progress
from ..result import ConvergenceWarning, Result
from ..status import Status
from .checkpoint import Checkpoint
from .resume import earlier_outcomes, is_finished

ProgressOption = bool | Progress | None
ResumeOption = Result | str | os.PathLike | None
CheckpointOption = str | os.PathLike | None
#: What numerics is known to end in. Another error is kept in the table too, unless no point survived it.
NUMERICAL_FAILURES = (ArithmeticError, np.linalg.LinAlgError)
#: How long after a signal outcomes are still taken from a theory that does not look for it itself.
SECONDS_FOR_WHAT_IS_READY = 0.5


class Batch(Protocol):
    """Points that go to the theory or the algorithm in one call, by their positions in the table."""

    @property
    def groups(self) -> Sequence[Sequence[int]]:
        """Positions of the batch; those of a group are worked on together or not at all.

        Groups that are left are chosen whole, and after a failure one position alone.
        """
        ...

    def outcomes(
        self, chosen: Sequence[int], earlier: Sequence[Outcome | None], progress: Progress
    ) -> Iterator[tuple[int, Outcome]]:
        """Work on the chosen positions and yield (position, outcome) as they finish.

        ``earlier`` is what an interrupted call left at every position of the table.
        """
        ...


@dataclass(frozen=True)
class Work:
    """What a verb does.

    Parameters
    ----------
    description
        In a few words, for the progress.
    problem, kind, algorithm, settings
        Of the result.
    shape, coordinates
        Of the table: dimension -> length, and the coordinates as they will be assembled. Positions count in C order.
    rows
        The entries of ``index`` of every point.
    dimensions
        Observable -> its own dimensions.
    batches
        All points, in the order in which they are worked on.
    """

    description: str
    problem: Problem
    kind: str
    shape: Mapping[str, int]
    coordinates: Mapping[str, Any]
    rows: Rows
    dimensions: Mapping[str, tuple[str, ...]]
    batches: Sequence[Batch]
    algorithm: Algorithm | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


class Interrupted(KeyboardInterrupt):
    """Work that a second signal stopped; ``result`` is what was finished."""

    def __init__(self, result: Result) -> None:
        super().__init__("interrupted twice; what was finished is this exception's result")
        self.result = result


def run(
    work: Work, *, progress: ProgressOption, resume: ResumeOption = None, checkpoint: CheckpointOption = None
) -> Result:
    """Do the work and return the result. Warnings name the line that called the verb."""
    refuse_after_fork()
    with interrupts.deferred(), own_settings():
        table = _Table(work, resume, None if checkpoint is None else Checkpoint(checkpoint))
        try:
            with as_progress(progress, len(table.outcomes), work.description) as bar:
                table.work_through(bar)
        except KeyboardInterrupt:
            table.interrupted = True
        result = table.end()
        if table.interrupted and interrupts.insisting():
            raise Interrupted(result)
    for text, category in table.complaints():
        warnings.warn(text, category, stacklevel=3)  # past this function and the verb
    return result


class _Table:
    """The outcomes of all points: collects them, survives failures of single ones, says at the end what is missing."""

    def __init__(self, work: Work, resume: ResumeOption, file: Checkpoint | None) -> None:
        self.work, self.file = work, file
        earlier = earlier_outcomes(
            resume,
            problem=work.problem,
            algorithm=work.algorithm,
            settings=work.settings,
            shape=work.shape,
            coordinates=work.coordinates,
            rows=work.rows,
        )
        self.earlier = work.rows.taken(earlier, work.dimensions)
        self.outcomes: list[Outcome | None] = [o if is_finished(o) else None for o in self.earlier]
        self.errors: list[Exception] = []
        self.interrupted = self.complete = False
        self.started = time.perf_counter()

    def work_through(self, bar: Progress) -> None:
        """All batches, one after the other."""
        bar.advance(sum(outcome is not None for outcome in self.outcomes))
        for batch in self.work.batches:
            self.fill(batch, bar)
        self.complete = True

    def fill(self, batch: Batch, bar: Progress) -> None:
        """Put what is left of a batch into the table.

        Which point of a batch failed cannot be told, so what it left unfinished is worked on one by one.
        """
        waiting = [left] if (left := self._left_of(batch)) else []
        while waiting:
            chosen = waiting.pop()
            try:
                for at, outcome in batch.outcomes(chosen, self.earlier, bar):
                    self._put(at, outcome, bar)
            except Exception as error:
                interrupts.raise_if_hidden_in(error)
                unfinished = [at for at in chosen if self.outcomes[at] is None]
                if len(unfinished) > 1:
                    waiting = [[at] for at in reversed(unfinished)]
                elif unfinished:
                    self.errors.append(error)
                    self._put(unfinished[0], Outcome({}, Status.FAILED, words=_words_of(error)), bar)

    def _left_of(self, batch: Batch) -> list[int]:
        """Positions of a batch that are not finished, with those that are worked on together with them."""
        left: list[int] = []
        for group in batch.groups:
            if not all(is_finished(self.earlier[at]) for at in group):
                left += group
        return left

    def _put(self, at: int, outcome: Outcome, bar: Progress) -> None:
        self.outcomes[at] = outcome
        bar.advance()
        if self.file is not None:
            self.file.offer(self.result)
        # What is ready is taken first: several runs may have ended together.
        if interrupts.waiting_seconds() > SECONDS_FOR_WHAT_IS_READY:
            interrupts.check()

    def end(self) -> Result:
        """The result, written to its file too; or the error that no point survived: nothing is lost by raising it."""
        unforeseen = [error for error in self.errors if not isinstance(error, NUMERICAL_FAILURES)]
        survived = any(outcome is not None and outcome.how is not Status.FAILED for outcome in self.outcomes)
        if unforeseen and not survived and self.complete:
            raise unforeseen[0]
        result = self.result()
        # What was there before is worth more than a table of points that were not reached.
        if self.file is not None and result.begun:
            self.file.write(lambda: result)
        return result

    def result(self) -> Result:
        """What there is now, with what an earlier call left of points that this one did not come to."""
        work = self.work
        ds = assemble(
            [now or before for now, before in zip(self.outcomes, self.earlier, strict=True)],
            grid=work.shape,
            coordinates=work.coordinates,
            dimensions=work.dimensions,
            missing=self._missing,
            rows=work.rows,
            definitions=definitions(work.problem, work.algorithm),
        )
        return Result(
            ds,
            problem=work.problem,
            kind=work.kind,
            algorithm=work.algorithm,
            settings=work.settings,
            provenance=provenance(time.perf_counter() - self.started),
        )

    @property
    def _missing(self) -> Status:
        return Status.NO_RESULT if self.complete else Status.NOT_REACHED

    def complaints(self) -> Iterator[tuple[str, type[Warning]]]:
        """What the user is warned of: an interrupt, and points that did not converge."""
        finished = [outcome for outcome in self.outcomes if outcome is not None and is_finished(outcome)]
        if self.interrupted:
            yield f"interrupted: {len(finished)} of {len(self.outcomes)} points are finished", RuntimeWarning
        failed = [outcome for outcome in finished if not outcome.converged]
        if not self.interrupted:
            failed += [Outcome({}, self._missing)] * (len(self.outcomes) - len(finished))
        if failed:
            count, first = f"{len(failed)} of {len(self.outcomes)} points", failed[0]
            said = f"{count} did not converge (see .status); the first: {first.sentence}"
            yield f"{said}. What to do: {first.how.advice}", ConvergenceWarning
        if self.file is not None and self.file.trouble:
            yield f"what was finished could not be written: {self.file.trouble}", RuntimeWarning


def _words_of(error: Exception) -> str:
    """Why a point failed: of an unforeseen error the kind too."""
    text = " ".join(str(error).split())
    if isinstance(error, NUMERICAL_FAILURES) and text:
        return f"failed: {text}"
    return f"failed: {type(error).__name__}" + (f": {text}" if text else "")
