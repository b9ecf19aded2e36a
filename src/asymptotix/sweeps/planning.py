"""What is to be done: chunks that were planned before, and new ones, of a size that is measured, for the rest."""

from __future__ import annotations

import time

import numpy as np

from ..core.progress import Progress
from .chunk_work import COMPUTED, work_on
from .cutting import missing_chunks
from .leases import Watch, remove_left_behind
from .part import SweepChunk, SweepPart
from .sweep_store import SweepStore

#: Time that a chunk is meant to take, and the most points that it may have.
CHUNK_SECONDS = 30.0
MOST_IN_CHUNK = 10_000
SECONDS_BETWEEN_LOOKS = 0.5
PLANNING = "planning"


def planned(store: SweepStore, name: str, part: SweepPart, chunk: int | None, bar: Progress) -> list[SweepChunk]:
    """Note a part, and return its chunks: those that were planned before, and new ones for what they leave out.

    Raises
    ------
    ValueError
        Where the store has another part of that name.
    """
    watch = Watch()
    # Two plans of the same would overlap, and two parts that are noted as one would be mixed.
    while (lease := watch.claim(store.claim_path(PLANNING))) is None:
        bar.message("another driver is planning")
        time.sleep(SECONDS_BETWEEN_LOOKS)
    with lease:
        bar.message("planning")
        remove_left_behind(lease.path.parent, beside=lease.path)
        store.keep_part(name, part)
        store.keep_order(name, part)
        wanted = set(_units(part))
        known = [one for one in store.plan() if one.part == name]
        covered = {unit for one in known for unit in one.units(part.grid)}
        if not wanted <= covered:
            size = (lambda _: chunk) if chunk is not None else _Measured(store, name, part, covered, bar)
            new = missing_chunks(name, part, covered, size)
            store.add_to_plan(new)
            known = [one for one in store.plan() if one.part == name]
    return [one for one in known if not wanted.isdisjoint(one.units(part.grid))]


def _units(part: SweepPart) -> list[tuple]:
    return [unit for one in missing_chunks("", part, (), lambda _: MOST_IN_CHUNK) for unit in one.units(part.grid)]


class _Measured:
    """How many points or runs take the time that a chunk is meant to take, by trying two of them at each size.

    The first compiles; what it gives is kept like everything else, as chunks of one.
    """

    def __init__(self, store: SweepStore, name: str, part: SweepPart, covered: set[tuple], bar: Progress) -> None:
        self._store, self._name, self._part, self._covered, self._bar = store, name, part, covered, bar
        self._known: dict[int | None, int] = {}

    def __call__(self, dim: int | None) -> int:
        if dim not in self._known:
            single = missing_chunks(self._name, self._part, self._covered, lambda _: 1)
            trials = [one for one in single if one.dim == dim][:2]
            self._store.add_to_plan(trials)
            seconds = CHUNK_SECONDS
            for trial in trials:
                self._bar.message("measuring what a point takes")
                began = time.monotonic()
                given = self._part.problem, self._part.algorithm
                _, ended = work_on(str(self._store.path), trial.to_json(), given)
                if ended == COMPUTED:  # a failure takes no time, and says nothing
                    seconds = time.monotonic() - began
                self._covered |= set(trial.units(self._part.grid))
            self._known[dim] = int(np.clip(CHUNK_SECONDS / max(seconds, 1e-6), 1, MOST_IN_CHUNK))
        return self._known[dim]
