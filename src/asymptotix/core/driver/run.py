"""The one driver behind the verbs: it works through a table of points and makes a result of what they gave.

A verb checks its arguments and describes its :class:`Work`; here are progress, resuming, Ctrl-C, numerical failures of
single points, assembly and the warnings at the end.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..dataset.assemble import assemble
from ..dataset.provenance import provenance
from ..dataset.rows import Rows
from ..problem import Algorithm, Outcome, Problem
from ..progress import Progress, as_progress
from ..result import ConvergenceWarning, Result
from ..status import Status
from .resume import earlier_outcomes, is_finished

ProgressOption = bool | Progress | None
ResumeOption = Result | str | os.PathLike | None
NUMERICAL_FAILURES = (ArithmeticError, np.linalg.LinAlgError)  # kept in the table; anything else propagates


class Batch(Protocol):
    """Points that go to the theory or the algorithm in one call, by their positions in the table."""

    @property
    def groups(self) -> Sequence[Sequence[int]]:
        """Positions of the batch; those of a group are worked on together or not at all."""
        ...

    def outcomes(
        self, chosen: Sequence[int], earlier: Sequence[Outcome | None], progress: Progress
    ) -> Iterator[tuple[int, Outcome]]:
        """Work on whole groups, or on one position, and yield (position, outcome) as they finish.

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


def run(work: Work, *, progress: ProgressOption, resume: ResumeOption = None) -> Result:
    """Do the work and return the result. Warnings name the line that called the verb."""
    earlier = earlier_outcomes(
        resume,
        problem=work.problem,
        algorithm=work.algorithm,
        settings=work.settings,
        shape=work.shape,
        coordinates=work.coordinates,
        rows=work.rows,
    )
    table = _Table(work.rows.taken(earlier, work.dimensions))
    started = time.perf_counter()
    try:
        with as_progress(progress, len(table.outcomes), work.description) as bar:
            bar.advance(sum(outcome is not None for outcome in table.outcomes))
            for batch in work.batches:
                table.fill(batch, bar)
    except KeyboardInterrupt:
        table.interrupted = True
    table.restore()
    origin = provenance(time.perf_counter() - started)
    ds = assemble(
        table.outcomes,
        grid=work.shape,
        coordinates=work.coordinates,
        dimensions=work.dimensions,
        missing=table.missing,
        rows=work.rows,
    )
    result = Result(
        ds,
        problem=work.problem,
        kind=work.kind,
        algorithm=work.algorithm,
        settings=work.settings,
        provenance=origin,
    )
    for text, category in table.complaints():
        warnings.warn(text, category, stacklevel=3)  # past this function and the verb
    return result


class _Table:
    """The outcomes of all points: collects them, survives numerical failures, says at the end what is missing."""

    def __init__(self, earlier: Sequence[Outcome | None]) -> None:
        self.earlier = earlier
        self.outcomes: list[Outcome | None] = [o if is_finished(o) else None for o in earlier]
        self.interrupted = False

    @property
    def missing(self) -> Status:
        return Status.NOT_REACHED if self.interrupted else Status.NO_RESULT

    def fill(self, batch: Batch, bar: Progress) -> None:
        """Put what is left of a batch into the table.

        Which point of a batch failed cannot be told, so what it left unfinished is worked on one by one.
        """
        groups = [group for group in batch.groups if not all(is_finished(self.earlier[at]) for at in group)]
        left = [at for group in groups for at in group]
        waiting: list[list[int]] = [left] if left else []
        while waiting:
            chosen = waiting.pop()
            try:
                for at, outcome in batch.outcomes(chosen, self.earlier, bar):
                    self.outcomes[at] = outcome
                    bar.advance()
            except NUMERICAL_FAILURES as error:
                unfinished = [at for at in chosen if self.outcomes[at] is None]
                if len(unfinished) > 1:
                    waiting = [[at] for at in reversed(unfinished)]
                elif unfinished:
                    words = f"failed: {error or type(error).__name__}"
                    self.outcomes[unfinished[0]] = Outcome({}, Status.FAILED, words=words)
                    bar.advance()

    def restore(self) -> None:
        """Put back what an earlier call left of points that this one did not come to."""
        self.outcomes = [now or before for now, before in zip(self.outcomes, self.earlier, strict=True)]

    def complaints(self) -> Iterator[tuple[str, type[Warning]]]:
        """What the user is warned of: an interrupt, and points that did not converge."""
        finished = [outcome for outcome in self.outcomes if outcome is not None and is_finished(outcome)]
        if self.interrupted:
            yield f"interrupted: {len(finished)} of {len(self.outcomes)} points are finished", RuntimeWarning
        failed = [outcome.sentence for outcome in finished if not outcome.converged]
        if not self.interrupted:
            failed += [self.missing.sentence] * (len(self.outcomes) - len(finished))
        if failed:
            count = f"{len(failed)} of {len(self.outcomes)} points"
            yield f"{count} did not converge (see .status); the first: {failed[0]}", ConvergenceWarning
