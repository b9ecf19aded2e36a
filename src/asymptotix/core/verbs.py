"""The verbs solve, simulate and thresholds: expand controls, let the problem work, assemble the result."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..numerics import checks
from .assemble import INTERRUPTED, NO_RESULT, assemble
from .grid import Block, Grid, expand
from .problem import Algorithm, Outcome, Problem
from .progress import Progress, as_progress
from .provenance import provenance
from .result import ConvergenceWarning, Result
from .resume import earlier_outcomes, is_finished
from .rows import Rows, common_rows

ProgressOption = bool | Progress | None
ResumeOption = Result | str | os.PathLike | None
NUMERICAL_FAILURES = (ArithmeticError, np.linalg.LinAlgError)  # kept in the table; anything else propagates


def solve(
    problem: Problem,
    *,
    start: Any = "uninformed",
    tolerance: float = 1e-3,
    progress: ProgressOption = None,
    resume: ResumeOption = None,
    **controls: Any,
) -> Result:
    """Return the exact theory of a problem.

    Parameters
    ----------
    problem
        The model with the estimator that is analysed.
    start
        Where state evolution starts: "uninformed", "informed" or an order parameter.
    tolerance
        Numerical error aimed at in the observables.
    progress
        None shows it where the work takes long, True always, False never.
    resume
        What an interrupted call of the same work returned, or the file it was saved to: finished points are kept.
    **controls
        The problem's own controls (such as ``alpha``), all of them, and any numeric field of the problem or
        of its model, each a number or a 1-D grid. Grids multiply and become dimensions.

    Returns
    -------
    Result
        With dimensions (grids in the order given, the observable's own). A point that failed stays, with its
        status. Where a swept field changes the indices, every number lies under its own ``index_label``, and a
        point without that index has NaN there.
    """
    _check_problem(problem)
    tolerance = checks.positive("tolerance", tolerance)
    grid = expand(problem, controls, own=problem.controls)
    blocks = grid.blocks(problem)
    shape, coordinates = dict(zip(grid.dims, grid.shape, strict=True)), grid.coordinates()
    settings = {"start": start, "tolerance": tolerance}
    rows, dimensions = _rows(grid, blocks), blocks[0].problem.dimensions()
    earlier = earlier_outcomes(
        resume, problem=problem, algorithm=None, settings=settings, shape=shape, coordinates=coordinates, rows=rows
    )
    table = _Table(rows.taken(earlier, dimensions))
    with table.running(progress, f"solve {type(problem).__name__}") as bar:
        for block in blocks:
            left = [i for i, position in enumerate(block.positions) if not is_finished(table.earlier[position])]

            # The loop variables are bound now: a failed batch calls this again, point by point.
            def work(chosen: Sequence[int], block=block, left=left) -> Iterator[tuple[int, Outcome]]:
                points = [block.points[left[i]] for i in chosen]
                for i, outcome in block.problem.solve_points(
                    points, start=start, tolerance=tolerance, progress=bar
                ):
                    yield chosen[i], outcome

            table.fill([block.positions[i] for i in left], work, bar)
    ds = assemble(
        table.outcomes,
        grid=shape,
        coordinates=coordinates,
        dimensions=dimensions,
        missing=table.missing,
        rows=rows,
    )
    return table.report(
        Result(ds, problem=problem, kind="theory", settings=settings, provenance=table.provenance)
    )


def simulate(
    problem: Problem,
    algorithm: Algorithm,
    *,
    seeds: int | Sequence[int],
    dim: int | Sequence[int] | None = None,
    progress: ProgressOption = None,
    resume: ResumeOption = None,
    **controls: Any,
) -> Result:
    """Run a finite-size algorithm on the problem that :func:`solve` treats exactly.

    Parameters
    ----------
    problem
        The model with the estimator that is analysed.
    algorithm
        What to run, such as ``GAMP()``.
    seeds
        The number of runs, with seeds 0, 1, ..., or the seeds themselves.
    dim
        The size, or several, which then become a dimension ``dim``.
    progress
        None shows it where the work takes long, True always, False never.
    resume
        What an interrupted call of the same work returned, or the file it was saved to: finished runs are kept, and
        an algorithm that can goes on in the middle of a run.
    **controls
        As for :func:`solve`.

    Returns
    -------
    Result
        With dimensions (grids in the order given, ``dim`` if several, ``seed``, the observable's own).
    """
    _check_problem(problem)
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"algorithm must be an Algorithm, such as GAMP(), got {_named(algorithm)}")
    grid = expand(problem, controls, own=problem.controls)
    blocks = grid.blocks(problem)
    for block in blocks:  # what is run counts: fields may be swept into, or out of, what the algorithm does not cover
        algorithm.check(block.problem)
    seed_list = _seed_list(seeds)
    sizes = _sizes(algorithm, dim)
    runs = len(seed_list)
    several = dim is not None and np.ndim(dim) > 0
    shape = (
        dict(zip(grid.dims, grid.shape, strict=True))
        | ({"dim": len(sizes)} if several else {})
        | {"seed": runs}
    )
    coordinates = grid.coordinates() | {"seed": ("seed", np.array(seed_list))}
    if dim is not None:
        coordinates["dim"] = ("dim", np.array(sizes)) if several else sizes[0]
    rows = _rows(grid, blocks, copies=len(sizes) * runs)
    dimensions = algorithm.dimensions(blocks[0].problem)
    earlier = earlier_outcomes(
        resume, problem=problem, algorithm=algorithm, settings={}, shape=shape, coordinates=coordinates, rows=rows
    )
    table = _Table(rows.taken(earlier, dimensions))
    with table.running(progress, f"simulate {type(algorithm).__name__}") as bar:
        for k, size in enumerate(sizes):
            for block in blocks:
                places = [[(p * len(sizes) + k) * runs + s for s in range(runs)] for p in block.positions]
                # All runs of a point go together: what one of them says may rest on the others.
                left = [i for i, own in enumerate(places) if not all(is_finished(table.earlier[at]) for at in own)]
                points, positions = [block.points[i] for i in left], [at for i in left for at in places[i]]

                def work(
                    chosen: Sequence[int], block=block, size=size, points=points, positions=positions
                ) -> Iterator[tuple[int, Outcome]]:
                    # Either the whole batch of points x seeds, or the one run that a failed batch left over.
                    one = len(chosen) == 1
                    batch = [seed_list[chosen[0] % runs]] if one else seed_list
                    wanted = [points[chosen[0] // runs]] if one else points
                    before = [(divmod(n, len(batch)), table.earlier[positions[i]]) for n, i in enumerate(chosen)]
                    for p, s, outcome in algorithm.resume_points(
                        block.problem,
                        wanted,
                        dim=size,
                        seeds=batch,
                        earlier={place: outcome.values for place, outcome in before if outcome is not None},
                        progress=bar,
                    ):
                        yield chosen[p * len(batch) + s], outcome

                table.fill(positions, work, bar)
    ds = assemble(
        table.outcomes,
        grid=shape,
        coordinates=coordinates,
        dimensions=dimensions,
        missing=table.missing,
        rows=rows,
    )
    return table.report(
        Result(ds, problem=problem, kind="experiment", algorithm=algorithm, provenance=table.provenance)
    )


def thresholds(
    problem: Problem, *, tolerance: float = 1e-3, progress: ProgressOption = None, **fields: Any
) -> Result:
    """Return the phase-transition thresholds of a problem.

    Parameters
    ----------
    problem
        The model with the estimator that is analysed.
    tolerance
        Numerical error aimed at.
    progress
        None shows it where the work takes long, True always, False never.
    **fields
        Any numeric field of the problem or of its model, a number or a 1-D grid.
    """
    _check_problem(problem)
    tolerance = checks.positive("tolerance", tolerance)
    grid = expand(problem, fields, own=())
    blocks = grid.blocks(problem)
    rows = _rows(grid, blocks)
    table = _Table([None] * grid.size)
    with table.running(progress, f"thresholds of {type(problem).__name__}") as bar:
        for block in blocks:

            def work(chosen: Sequence[int], block=block) -> Iterator[tuple[int, Outcome]]:
                yield chosen[0], block.problem.threshold_values(tolerance=tolerance, progress=bar)

            table.fill(block.positions, work, bar)
    ds = assemble(
        table.outcomes,
        grid=dict(zip(grid.dims, grid.shape, strict=True)),
        coordinates=grid.coordinates(),
        dimensions=blocks[0].problem.dimensions(),
        missing=table.missing,
        rows=rows,
    )
    settings = {"tolerance": tolerance}
    return table.report(
        Result(ds, problem=problem, kind="thresholds", settings=settings, provenance=table.provenance)
    )


class _Table:
    """Collects outcomes, survives an interrupt and numerical failures, and says at the end what failed."""

    def __init__(self, earlier: Sequence[Outcome | None]) -> None:
        self.earlier = earlier
        self.outcomes: list[Outcome | None] = [o if is_finished(o) else None for o in earlier]
        self.interrupted = False
        self.provenance: dict[str, Any] = {}

    @property
    def missing(self) -> str:
        return INTERRUPTED if self.interrupted else NO_RESULT

    def running(self, progress: ProgressOption, description: str) -> _Running:
        return _Running(self, progress, description)

    def fill(
        self,
        positions: Sequence[int],
        work: Callable[[Sequence[int]], Iterator[tuple[int, Outcome]]],
        bar: Progress,
    ) -> None:
        """Put what ``work`` yields at ``positions``.

        Which point of a batch failed cannot be told, so what it left unfinished is worked on one by one.
        """
        waiting: list[Sequence[int]] = [range(len(positions))] if positions else []
        while waiting:
            chosen = waiting.pop()
            try:
                self._take(positions, chosen, work, bar)
            except NUMERICAL_FAILURES as error:
                unfinished = [i for i in chosen if self.outcomes[positions[i]] is None]
                if len(unfinished) > 1:
                    waiting = [[i] for i in reversed(unfinished)]
                for i in unfinished if len(unfinished) == 1 else ():
                    status = f"failed: {error or type(error).__name__}"
                    self.outcomes[positions[i]] = Outcome({}, status=status, converged=False)
                    bar.advance()

    def _take(self, positions: Sequence[int], chosen: Sequence[int], work: Callable, bar: Progress) -> None:
        for i, outcome in work(chosen):
            self.outcomes[positions[i]] = outcome
            bar.advance()

    def restore(self) -> None:
        """Put back what an earlier call left of points that this one did not come to."""
        self.outcomes = [now or before for now, before in zip(self.outcomes, self.earlier, strict=True)]

    def report(self, result: Result) -> Result:
        finished = [outcome for outcome in self.outcomes if outcome is not None and is_finished(outcome)]
        if self.interrupted:
            text = f"interrupted: {len(finished)} of {len(self.outcomes)} points are finished"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        failed = [outcome.status for outcome in finished if not outcome.converged]
        if not self.interrupted:
            failed += [self.missing] * (len(self.outcomes) - len(finished))
        if failed:
            count = f"{len(failed)} of {len(self.outcomes)} points"
            text = f"{count} did not converge (see .status); the first: {failed[0]}"
            warnings.warn(text, ConvergenceWarning, stacklevel=3)
        return result


class _Running:
    """The scope of the work: a progress bar, the clock, and Ctrl-C turned into a note on the table."""

    def __init__(self, table: _Table, progress: ProgressOption, description: str) -> None:
        self.table = table
        self.bar = as_progress(progress, len(table.outcomes), description)

    def __enter__(self) -> Progress:
        self.started = time.perf_counter()
        bar = self.bar.__enter__()
        bar.advance(sum(outcome is not None for outcome in self.table.outcomes))
        return bar

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> bool:
        self.bar.__exit__(kind, error, traceback)
        self.table.interrupted = isinstance(error, KeyboardInterrupt)
        self.table.restore()
        self.table.provenance = provenance(time.perf_counter() - self.started)
        return self.table.interrupted


def _check_problem(problem: Any) -> None:
    if not isinstance(problem, Problem):
        raise TypeError(
            "problem must be a Problem (a model with an estimator, such as BayesOptimal(model)), "
            f"got {_named(problem)}"
        )


def _rows(grid: Grid, blocks: Sequence[Block], copies: int = 1) -> Rows:
    """The indices of every point, each as often as it is run."""
    labels: dict[int, tuple[str, ...]] = {}
    for block in blocks:
        labels |= dict.fromkeys(block.positions, tuple(block.problem.index_labels()))
    swept = [name for name in grid.dims if name not in blocks[0].problem.controls]
    return common_rows([labels[at] for at in range(grid.size) for _ in range(copies)], swept)


def _named(value: Any) -> str:
    return f"the class {value.__name__}, not an instance" if isinstance(value, type) else repr(value)


def _seed_list(seeds: Any) -> list[int]:
    if np.ndim(seeds) == 0:
        return list(range(checks.integer("seeds", seeds, minimum=1)))
    cleaned = [checks.integer("seeds", seed, minimum=0) for seed in seeds]
    if not cleaned or len(set(cleaned)) < len(cleaned):
        raise ValueError(f"seeds must be distinct and at least one, got {seeds!r}")
    return cleaned


def _sizes(algorithm: Algorithm, dim: Any) -> Sequence[int | None]:
    if not algorithm.needs_dim:
        if dim is not None:
            raise TypeError(
                f"{type(algorithm).__name__} takes no dim: the problem fixes the size, got dim={dim!r}"
            )
        return [None]
    if dim is None:
        raise TypeError(f"{type(algorithm).__name__} needs dim, for example dim=1000")
    sizes = [checks.integer("dim", size, minimum=1) for size in np.atleast_1d(np.asarray(dim, dtype=object))]
    if not sizes or len(set(sizes)) < len(sizes):
        raise ValueError(f"dim must be distinct sizes and at least one, got {dim!r}")
    return sizes
