"""Collecting the chunks of a store into one result, also while the sweep runs."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.dataset.assemble import assemble
from ..core.driver.run import Work
from ..core.problem import Algorithm, Outcome, Problem, definitions
from ..core.result import Result
from ..core.status import Status
from .chunk_file import read_chunk
from .part import SweepChunk, SweepPart
from .sweep_store import SweepStore

LACKING = "not computed yet"
DAMAGED = "its chunk is damaged: run the sweep again"
#: Entries of the provenance that differ from chunk to chunk.
OWN = ("date", "wall_seconds", "chunk")


def collect(
    store: str | os.PathLike,
    *,
    part: str | None = None,
    problem: Problem | None = None,
    algorithm: Algorithm | None = None,
) -> Result:
    """Return everything that a sweep has computed so far, as one result.

    Parameters
    ----------
    store
        The folder that was given to :func:`sweep`; the sweep may still be running.
    part
        Name of the part to collect, needed if the store has several.
    problem, algorithm
        The problem and algorithm of the sweep, needed if they hold a function, which no file stores.

    Returns
    -------
    Result
        Its grid has all values that were ever requested, in the order of the last call that had all of them. Points
        that are not done yet, or failed, have no numbers, and their status says so.

    Examples
    --------
    >>> import tempfile
    >>> import asymptotix as asx
    >>> folder = tempfile.mkdtemp()
    >>> problem = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.1)
    >>> _ = asx.sweep(problem, over={"alpha": [0.5, 1.0]}, store=folder)
    >>> asx.collect(folder).test_error.round(3).values
    array([0.129, 0.098])
    """
    kept = SweepStore(store)
    name = _name_of(kept, part)
    planned = [chunk for chunk in kept.plan() if chunk.part == name]
    if not planned and name in kept.part_names():
        raise ValueError(f"store {kept.path} has nothing to collect: of {name!r} nothing is planned yet")
    whole = _with_grid(kept.part(name, problem, algorithm), planned, kept.scalars(name), kept.order(name))
    work = whole.work()
    found: list[Outcome | None] = [None] * int(np.prod(list(work.shape.values()), dtype=int))
    places, own = _Places(work, whole), _Provenances()
    done, failed = kept.done(), kept.failures()
    for chunk in planned:
        if chunk.name in done:
            data = kept.contents(chunk.name)
            outcomes = itertools.repeat(Outcome({}, Status.FAILED, words=DAMAGED))
            if data is not None:
                provenance, outcomes = read_chunk(data)
                own.add(provenance)
        elif chunk.name in failed:
            outcomes = itertools.repeat(Outcome({}, Status.FAILED, words=f"failed: {kept.failure(chunk.name)}"))
        else:
            continue
        for at, outcome in zip(places.of(chunk), outcomes, strict=False):
            found[at] = outcome
    ds = assemble(
        [Outcome({}, Status.NOT_REACHED, words=LACKING) if outcome is None else outcome for outcome in found],
        grid=work.shape,
        coordinates=work.coordinates,
        dimensions=work.dimensions,
        missing=Status.NOT_REACHED,
        rows=work.rows,
        definitions=definitions(whole.problem, whole.algorithm),
    )
    seconds = sum(float(line.get("seconds", 0.0)) for line in kept.log() if line.get("part") == name)
    return Result(
        ds, problem=whole.problem, kind=work.kind, algorithm=whole.algorithm, settings=work.settings,
        provenance=own.together(seconds),
    )  # fmt: skip


def _name_of(store: SweepStore, part: str | None) -> str:
    names = store.part_names()
    if part is not None:
        return part
    if len(names) != 1:
        raise ValueError(f"part must name one of those of store {store.path}: {', '.join(names) or 'none yet'}")
    return names[0]


def _with_grid(
    part: SweepPart, planned: Sequence[SweepChunk], scalars: Sequence[str], order: Mapping[str, Sequence[Any]]
) -> SweepPart:
    """Return the part with the grid, sizes and seeds of all ``planned`` chunks, each in the ``order`` of the requests.

    A name in ``scalars`` stays a number if it has one value.
    """
    names = list(part.grid)
    seen: dict[str, set[Any]] = {name: set() for name in (*names, "dim", "seed")}
    for chunk in planned:
        for name, value in chunk.fixed.items():
            seen[name].add(value)
        if (along := chunk.along(names)) is not None:
            seen[along].update(chunk.values)
        seen["dim"].add(chunk.dim)
        seen["seed"].update(chunk.seeds)
    found = {name: _in_order(values, order.get(name, ())) for name, values in seen.items()}
    grid: dict[str, Any] = {name: found[name] for name in names}
    grid |= {name: grid[name][0] for name in names if name in scalars and len(grid[name]) == 1}
    one_size = "dim" in scalars and len(found["dim"]) == 1
    return replace(part, grid=grid, dim=found["dim"], seeds=found["seed"], one_size=one_size)


def _in_order(values: set[Any], order: Sequence[Any]) -> list[Any]:
    return [*(value for value in order if value in values), *sorted(values.difference(order))]


class _Places:
    """Positions of a chunk's points or runs, in the order of the chunk, in the flat list of all outcomes (C order)."""

    def __init__(self, work: Work, part: SweepPart) -> None:
        self._names = list(part.grid)
        values = {name: part.values_of(name) for name in part.grid} | {"dim": part.dim, "seed": part.seeds}
        self._index = {name: {value: k for k, value in enumerate(values[name])} for name in work.shape}
        lengths = list(work.shape.values())
        self._strides = {name: int(np.prod(lengths[k + 1 :], dtype=int)) for k, name in enumerate(work.shape)}

    def of(self, chunk: SweepChunk) -> Iterator[int]:
        fixed = {**chunk.fixed, "dim": chunk.dim}
        first, along = sum(self._at(name, value) for name, value in fixed.items()), chunk.along(self._names)
        for value in chunk.values or (None,):
            at = first if value is None or along is None else first + self._at(along, value)
            for seed in chunk.seeds or (None,):
                yield at if seed is None else at + self._at("seed", seed)

    def _at(self, name: str, value: Any) -> int:
        return self._strides[name] * self._index[name][value] if name in self._index else 0


class _Provenances:
    """Provenance of all chunks together: the entries that all share, and a list ``parts`` if some entries differ."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = {}
        self._count, self._latest = 0, ""

    def add(self, told: dict[str, Any]) -> None:
        self._count += 1
        self._latest = max(self._latest, str(told.get("date", "")))
        common = {name: value for name, value in told.items() if name not in OWN}
        self._known.setdefault(json.dumps(common, sort_keys=True), common)

    def together(self, seconds: float) -> dict[str, Any]:
        each = list(self._known.values())
        alike = {k: v for k, v in (each[0] if each else {}).items() if all(one.get(k) == v for one in each)}
        more = {"parts": each} if len(each) > 1 else {}
        return {**alike, "date": self._latest, "wall_seconds": round(seconds, 3), "chunks": self._count, **more}
