"""The :class:`Work` of each verb (solve, simulate, thresholds): checked arguments, grid of points, and batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...numerics import checks
from ...numerics.precision import own_settings
from ..dataset.rows import Rows
from ..grid import MOST_POINTS, Block, expand, index_rows
from ..problem import Algorithm, Outcome, Problem
from ..progress import Progress
from .run import Work

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    FixedOption: TypeAlias = Mapping[int, float] | Mapping[str, float] | None


@own_settings()
def theory_work(
    problem: Problem, *, start: object, tolerance: float, fixed: FixedOption, controls: Mapping[str, ArrayLike]
) -> Work:
    """Check the arguments of :func:`asymptotix.solve` and return its work."""
    _check_problem(problem)
    tolerance = checks.positive("tolerance", tolerance)
    grid = expand(problem, controls, own=problem.controls)
    blocks = grid.blocks(problem)
    rows = index_rows(grid, blocks)
    held = _held(blocks, rows, fixed)
    return Work(
        f"solve {type(problem).__name__}",
        problem,
        kind="theory",
        shape=grid.lengths,
        coordinates=grid.coordinates(),
        rows=rows,
        dimensions=blocks[0].problem.dimensions(),
        batches=[_PointsToSolve(block, start, tolerance, held) for block in blocks],
        # Keys are strings, as in a file: loaded settings compare equal.
        settings={"start": start, "tolerance": tolerance}
        | ({"fixed": {str(index): overlap for index, overlap in held.items()}} if held else {}),
    )


def _held(blocks: Sequence[Block], rows: Rows, fixed: FixedOption) -> Mapping[int, float]:
    """Return position along ``index`` -> overlap to hold; {} for None. The indices must be the same at every point."""
    if fixed is None:
        return {}
    held = [block.problem.check_fixed(fixed) for block in blocks]
    if rows.places is not None:
        raise ValueError(f"fixed must be None where a swept field changes the indices, got {fixed!r}")
    return held[0]


@dataclass(frozen=True)
class _PointsToSolve:
    """A batch for ``solve``: the points of a block, which have one problem. Every point is a group of its own."""

    block: Block
    start: object
    tolerance: float
    held: Mapping[int, float]

    @property
    def groups(self) -> Sequence[Sequence[int]]:
        return [[at] for at in self.block.positions]

    def outcomes(
        self, chosen: Sequence[int], earlier: Sequence[Outcome | None], progress: Progress
    ) -> Iterator[tuple[int, Outcome]]:
        points = dict(zip(self.block.positions, self.block.points, strict=True))
        held = {"fixed": self.held} if self.held else {}
        for i, outcome in self.block.problem.solve_points(
            [points[at] for at in chosen], start=self.start, tolerance=self.tolerance, progress=progress, **held
        ):
            yield chosen[i], outcome


@own_settings()
def experiment_work(
    problem: Problem,
    algorithm: Algorithm,
    *,
    seeds: int | Sequence[int],
    dim: int | Sequence[int] | None,
    controls: Mapping[str, ArrayLike],
) -> Work:
    """Check the arguments of :func:`asymptotix.simulate` and return its work."""
    _check_problem(problem)
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"algorithm must be an Algorithm, such as GAMP(), got {checks.named(algorithm)}")
    grid = expand(problem, controls, own=problem.controls)
    blocks = grid.blocks(problem)
    for block in blocks:  # not the problem as given: a swept field may decide whether the algorithm fits
        algorithm.check(block.problem)
    runs = seed_list(seeds)
    sizes = sizes_of(algorithm, dim)
    for block in blocks:
        for size in sizes:
            algorithm.check_points(block.problem, block.points, dim=size, seeds=runs)
    several = dim is not None and checks.dimensions("dim", dim) > 0
    coordinates = grid.coordinates() | {"seed": ("seed", np.array(runs))}
    if dim is not None:
        coordinates["dim"] = ("dim", np.array(sizes)) if several else sizes[0]
    return Work(
        f"simulate {type(algorithm).__name__}",
        problem,
        kind="experiment",
        shape=grid.lengths | ({"dim": len(sizes)} if several else {}) | {"seed": len(runs)},
        coordinates=coordinates,
        rows=index_rows(grid, blocks, copies=len(sizes) * len(runs)),
        dimensions=algorithm.dimensions(blocks[0].problem),
        batches=[_Runs(algorithm, block, sizes, k, runs) for k in range(len(sizes)) for block in blocks],
        algorithm=algorithm,
    )


@dataclass(frozen=True)
class _Runs:
    """A batch for ``simulate``: the runs, with all seeds, of the points of a block at the size ``sizes[size]``."""

    algorithm: Algorithm
    block: Block
    sizes: Sequence[int | None]
    size: int  # position among the sizes
    seeds: Sequence[int]

    @property
    def groups(self) -> Sequence[Sequence[int]]:
        if self.algorithm.runs_together:
            return self._points
        return [[at] for point in self._points for at in point]

    @property
    def _points(self) -> Sequence[Sequence[int]]:
        """For every point of the block, the positions of its runs in the flattened grid, in the order of the seeds."""
        firsts = [(p * len(self.sizes) + self.size) * len(self.seeds) for p in self.block.positions]
        return [range(first, first + len(self.seeds)) for first in firsts]

    def outcomes(
        self, chosen: Sequence[int], earlier: Sequence[Outcome | None], progress: Progress
    ) -> Iterator[tuple[int, Outcome]]:
        places = {at: (p, s) for p, point in enumerate(self._points) for s, at in enumerate(point)}
        for points, seeds in _rectangles([places[at] for at in chosen]):
            positions = {(i, j): self._points[p][s] for i, p in enumerate(points) for j, s in enumerate(seeds)}
            before = {place: earlier[at] for place, at in positions.items()}
            for i, j, outcome in self.algorithm.resume_points(
                self.block.problem,
                [self.block.points[p] for p in points],
                dim=self.sizes[self.size],
                seeds=[self.seeds[s] for s in seeds],
                earlier={place: outcome.values for place, outcome in before.items() if outcome is not None},
                progress=progress,
            ):
                yield positions[i, j], outcome


def _rectangles(places: Sequence[tuple[int, int]]) -> Iterator[tuple[list[int], tuple[int, ...]]]:
    """Yield (points, seeds) such that all these points lack just these seeds, from missing runs (point, seed)."""
    lacking: dict[int, list[int]] = {}
    for point, seed in places:
        lacking.setdefault(point, []).append(seed)
    together: dict[tuple[int, ...], list[int]] = {}
    for point, seeds in lacking.items():
        together.setdefault(tuple(seeds), []).append(point)
    yield from ((points, seeds) for seeds, points in together.items())


@own_settings()
def threshold_work(
    problem: Problem, *, which: str | Sequence[str] | None, tolerance: float, fields: Mapping[str, ArrayLike]
) -> Work:
    """Check the arguments of :func:`asymptotix.thresholds` and return its work."""
    _check_problem(problem)
    which = _names_of_thresholds(problem, which)
    tolerance = checks.positive("tolerance", tolerance)
    grid = expand(problem, fields, own=())
    blocks = grid.blocks(problem)
    return Work(
        f"thresholds of {type(problem).__name__}",
        problem,
        kind="thresholds",
        shape=grid.lengths,
        coordinates=grid.coordinates(),
        rows=index_rows(grid, blocks),
        dimensions=blocks[0].problem.dimensions(),
        batches=[_ProblemWithThresholds(block, which, tolerance) for block in blocks],
        # No entry "which" if all are computed: files from before ``which`` existed can be resumed.
        settings={"tolerance": tolerance} | ({} if which is None else {"which": which}),
    )


@dataclass(frozen=True)
class _ProblemWithThresholds:
    """A batch for ``thresholds``: the single point of a block, which has one value of every field and no control."""

    block: Block
    which: Sequence[str] | None
    tolerance: float

    @property
    def groups(self) -> Sequence[Sequence[int]]:
        return [self.block.positions]

    def outcomes(
        self, chosen: Sequence[int], earlier: Sequence[Outcome | None], progress: Progress
    ) -> Iterator[tuple[int, Outcome]]:
        asked = {} if self.which is None else {"which": self.which}
        yield chosen[0], self.block.problem.threshold_values(tolerance=self.tolerance, progress=progress, **asked)


def _names_of_thresholds(problem: Problem, which: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names of the requested thresholds, checked and in the order of the problem; None requests all."""
    if which is None:
        return None
    accepted = tuple(problem.threshold_names())
    if not accepted:
        raise ValueError(f"which must be None: all thresholds of {type(problem).__name__} come together, got {which!r}")
    try:
        given = [which] if isinstance(which, str) else list(which)
    except TypeError:
        given = [which]
    if not given:
        raise ValueError(f"which must name at least one of {', '.join(map(repr, accepted))}, got {which!r}")
    asked = [checks.one_of("which", name, accepted) for name in given]
    return tuple(name for name in accepted if name in asked)


def _check_problem(problem: object) -> None:
    if not isinstance(problem, Problem):
        raise TypeError(
            "problem must be a Problem (a model with an estimator, such as BayesOptimal(model)), "
            f"got {checks.named(problem)}"
        )


def seed_list(seeds: Any) -> list[int]:
    """Return the seeds for the argument ``seeds`` of ``simulate``: a list as given, 0, 1, ... for a number of runs."""
    if checks.dimensions("seeds", seeds) == 0:
        return list(range(checks.integer("seeds", seeds, minimum=1, maximum=MOST_POINTS)))
    # The random number generator uses only 32 bits of a seed.
    cleaned = [checks.integer("seeds", seed, minimum=0, maximum=2**32 - 1) for seed in seeds]
    if not cleaned or len(set(cleaned)) < len(cleaned):
        raise ValueError(f"seeds must be distinct and at least one, got {seeds!r}")
    return cleaned


def sizes_of(algorithm: Algorithm, dim: Any) -> Sequence[int | None]:
    """Return the sizes for the argument ``dim`` of ``simulate``: [None] if the algorithm takes none."""
    if not algorithm.needs_dim:
        if dim is not None:
            raise TypeError(f"{type(algorithm).__name__} takes no dim: the problem fixes the size, got dim={dim!r}")
        return [None]
    if dim is None:
        raise TypeError(f"{type(algorithm).__name__} needs dim, for example dim=1000")
    given = dim if checks.dimensions("dim", dim) else [dim]
    sizes = [checks.integer("dim", size, minimum=1) for size in given]
    if not sizes or len(set(sizes)) < len(sizes):
        raise ValueError(f"dim must be distinct sizes and at least one, got {dim!r}")
    return sizes
