"""Cutting a part into chunks: existing chunks stay, and only points or runs without a chunk are cut into new ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

from .part import Namer, SweepChunk, SweepPart, unit

Item = TypeVar("Item")
#: Size of the system -> number of theory points, or of runs, in one chunk.
SizeOfChunks = Callable[[int | None], int]


def missing_chunks(name: str, part: SweepPart, covered: Collection[tuple], size: SizeOfChunks) -> Iterator[SweepChunk]:
    """Yield new chunks of the part ``name`` with all points or runs whose key (:func:`unit`) is not in ``covered``.

    A chunk of theory has successive points along one control, so that each point continues from the one before. A chunk
    of an experiment has a block of seeds at one point and size, or at several points if it may hold more runs.
    """
    namer = Namer(part)
    for fixed in part.lines():
        values = [None] if part.along is None else part.values_of(part.along)
        for own in _alike(part, fixed, values):
            for dim in part.dim:
                for points, seeds in _blocks(part, fixed, own, dim, covered, size(dim)):
                    chunk = SweepChunk(name, fixed, tuple(v for v in points if v is not None), dim, seeds)
                    yield namer.named(chunk)


def _alike(part: SweepPart, fixed: dict[str, float], values: Sequence) -> Iterator[Sequence]:
    """Yield groups of successive ``values`` with equal labels of ``index``: a chunk ends where the labels change."""
    if part.along not in part.fields:
        yield values
        return
    for _, same in itertools.groupby(values, key=lambda value: part.labels(fixed, value)):
        yield list(same)


def _blocks(
    part: SweepPart, fixed: dict[str, float], values: Sequence, dim: int | None, covered: Collection[tuple], size: int
) -> Iterator[tuple[Sequence, tuple[int, ...]]]:
    """Yield values of ``part.along`` and seeds for every new chunk of at most ``size`` points or runs at size ``dim``.

    The other names of the grid have the values ``fixed``; keys in ``covered`` have a chunk already.
    """
    if part.verb != "simulate":
        left = [value for value in values if unit(fixed, part.along, value, dim, None) not in covered]
        yield from ((points, ()) for points in _cut(left, size))
        return
    assert part.algorithm is not None
    lacking = [(value, _seeds_left(part, fixed, value, dim, covered)) for value in values]
    for seeds, same in itertools.groupby(lacking, key=lambda pair: pair[1]):
        points = [value for value, _ in same]
        if not seeds:
            continue
        if part.algorithm.runs_together or size >= len(seeds):
            yield from ((some, seeds) for some in _cut(points, max(1, size // len(seeds))))
        else:
            yield from (([value], tuple(block)) for value in points for block in _cut(seeds, size))


def _seeds_left(
    part: SweepPart, fixed: dict[str, float], value: float | None, dim: int | None, covered: Collection[tuple]
) -> tuple[int, ...]:
    left = tuple(seed for seed in part.seeds if unit(fixed, part.along, value, dim, seed) not in covered)
    # The report on one run may depend on the other runs; then all runs are repeated.
    assert part.algorithm is not None
    return tuple(part.seeds) if left and part.algorithm.runs_together else left


def _cut(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Cut items into as few pieces of at most this size as possible, of about equal lengths."""
    pieces = -(-len(items) // size)
    edges = [round(k * len(items) / pieces) for k in range(pieces + 1)] if pieces else [0]
    return [items[first:last] for first, last in itertools.pairwise(edges)]
