"""The driver behind the verbs: it computes all points of a grid and assembles their outcomes into a result.

A verb is a public function such as :func:`solve`: it checks its arguments and describes its :class:`Work`. The driver
handles progress, resuming, checkpoints, interrupts, failures of single points, assembly and the final warnings.
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
#: Errors expected of numerical work: they only mark a point as failed. Any other error marks the point too, but is
#: raised at the end if all points failed.
NUMERICAL_FAILURES = (ArithmeticError, np.linalg.LinAlgError)
#: Seconds after an interrupt during which further outcomes are still collected; then the driver stops the work.
#: Smaller: runs that ended together with others are lost.
SECONDS_FOR_WHAT_IS_READY = 0.5


class Batch(Protocol):
    """Interface of points that one call gives to the theory; a position is that in the flattened (C order) grid."""

    @property
    def groups(self) -> Sequence[Sequence[int]]:
        """The positions of the batch in groups. If one position of a group is unfinished, the whole group is computed.

        After an error the positions still unfinished are computed one by one.
        """
        ...

    def outcomes(
        self, chosen: Sequence[int], earlier: Sequence[Outcome | None], progress: Progress
    ) -> Iterator[tuple[int, Outcome]]:
        """Compute the points at the positions ``chosen`` and yield (position, outcome) as they finish.

        ``earlier`` has, for every position of the grid, the outcome of an earlier call, or None.
        """
        ...


@dataclass(frozen=True)
class Work:
    """The work of one call of a verb, before any of it is done.

    Parameters
    ----------
    description
        A short name for the progress output.
    problem, kind, algorithm, settings
        The attributes of the same name of the result.
    shape, coordinates
        The grid of points: dimension -> length, and the coordinates of the result. Positions count in C order.
    rows
        The labels along the dimension ``index`` at every point.
    dimensions
        Observable -> dimensions of its array at one point.
    batches
        All points, in the order in which they are computed.
    """

    description: str
    problem: Problem
    kind: str
    shape: Mapping[str, int]
    coordinates: Mapping[str, object]
    rows: Rows
    dimensions: Mapping[str, tuple[str, ...]]
    batches: Sequence[Batch]
    algorithm: Algorithm | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


class Interrupted(KeyboardInterrupt):
    """Raised when a second interrupt stopped the work; ``result`` holds the points that were finished."""

    def __init__(self, result: Result) -> None:
        super().__init__("interrupted twice; what was finished is this exception's result")
        self.result = result


def run(
    work: Work, *, progress: ProgressOption, resume: ResumeOption = None, checkpoint: CheckpointOption = None
) -> Result:
    """Do the work that a verb (such as ``solve``) has prepared, and return its result, also after one interrupt.

    Warnings point to the line that called the verb.
    """
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
        warnings.warn(text, category, stacklevel=3)  # skips this function and the verb
    return result


class _Table:
    """The outcomes of all points of a call. An error at one point does not stop the others."""

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
        """Compute all batches, one after the other."""
        bar.advance(sum(outcome is not None for outcome in self.outcomes))
        for batch in self.work.batches:
            self.fill(batch, bar)
        self.complete = True

    def fill(self, batch: Batch, bar: Progress) -> None:
        """Compute the unfinished points of a batch and store their outcomes.

        An error does not show which point failed, so the points without an outcome are then computed one by one.
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
        """Return all positions of those groups of a batch that have a position without a finished earlier outcome."""
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
        # Several runs may have ended together: their outcomes are collected before an interrupt is obeyed.
        if interrupts.waiting_seconds() > SECONDS_FOR_WHAT_IS_READY:
            interrupts.check()

    def end(self) -> Result:
        """Return the result and write it to the checkpoint. Raise the first unexpected error if all points failed."""
        unforeseen = [error for error in self.errors if not isinstance(error, NUMERICAL_FAILURES)]
        survived = any(outcome is not None and outcome.how is not Status.FAILED for outcome in self.outcomes)
        if unforeseen and not survived and self.complete:
            raise unforeseen[0]
        result = self.result()
        # An older checkpoint is worth more than a table without a single outcome.
        if self.file is not None and result.begun:
            self.file.write(lambda: result)
        return result

    def result(self) -> Result:
        """Return the result so far. A point that this call did not reach has its outcome of the earlier call."""
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
        """Yield (text, category) of the warnings: an interrupt, points not converged, a checkpoint not written."""
        finished = [outcome for outcome in self.outcomes if outcome is not None and is_finished(outcome)]
        if self.interrupted:
            yield f"interrupted: {len(finished)} of {len(self.outcomes)} points are finished", RuntimeWarning
        failed = [outcome for outcome in finished if not outcome.converged]
        if not self.interrupted:
            failed += [Outcome({}, self._missing)] * (len(self.outcomes) - len(finished))
        if failed:
            count, first = f"{len(failed)} of {len(self.outcomes)} points", failed[0]
            said = f"{count} did not converge (see .status); the first: {first.sentence}"
            yield f"{said}. What to do: {first.how.advice_for(self.work.kind)}", ConvergenceWarning
        if self.file is not None and self.file.trouble:
            yield f"what was finished could not be written: {self.file.trouble}", RuntimeWarning


def _words_of(error: Exception) -> str:
    """Return the sentence of the status of a point that failed; for an unexpected error it names the error's type."""
    text = " ".join(str(error).split())
    if isinstance(error, NUMERICAL_FAILURES) and text:
        return f"failed: {text}"
    return f"failed: {type(error).__name__}" + (f": {text}" if text else "")
