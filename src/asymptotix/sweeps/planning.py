"""Planning of a sweep: new chunks, of a measured size, for points and runs that are in no planned chunk yet."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator

import numpy as np

from ..core.progress import Progress
from .chunk_work import COMPUTED, work_on
from .cutting import missing_chunks
from .leases import Watch, remove_left_behind
from .part import SweepChunk, SweepPart
from .sweep_store import SweepStore

#: Target duration of a chunk in seconds, and the largest number of points or runs in it.
CHUNK_SECONDS = 30.0
MOST_IN_CHUNK = 10_000
SECONDS_BETWEEN_LOOKS = 0.5
#: Number of chunks planned between two checks for signals to stop; a thousand chunks take a tenth of a second.
CHUNKS_BETWEEN_LOOKS = 1000
#: Longest planning in seconds before work begins. The remaining chunks are planned when the planned ones are done.
SECONDS_OF_PLANNING = 10.0
#: Largest number of chunks written to the plan together. Larger: an interrupt of planning loses more of the plan.
MOST_NOTED_TOGETHER = 20_000
PLANNING = "planning"


def planned(
    store: SweepStore, name: str, part: SweepPart, chunk: int | None, bar: Progress
) -> tuple[list[SweepChunk], bool]:
    """Write a part (a verb on one problem over a grid) to the store; return its chunks, and whether these are all.

    These are the chunks planned before, and new ones for points or runs without a chunk, each of ``chunk`` points or
    runs (None: a measured number). A grid of 10^6 chunks is planned in several calls. ``bar`` shows the progress.

    Raises
    ------
    ValueError
        If the store has another part of that name.
    """
    watch = Watch()
    # Only one driver plans at a time: two plans of one part would overlap, and two parts of one name would be mixed.
    while (lease := watch.claim(store.claim_path(PLANNING))) is None:
        bar.message("another driver is planning")
        time.sleep(SECONDS_BETWEEN_LOOKS)
    with lease:
        bar.message("planning")
        remove_left_behind(lease.path.parent, beside=lease.path)
        store.keep_part(name, part)
        store.keep_order(name, part)
        read = _counted(store.each_planned(), "chunks of the plan read", bar)
        known = [one for one in read if one.part == name]
        covered = {unit for one in known for unit in one.units(part.grid)}
        measured = _Measured(store, name, part, covered, bar)
        new = missing_chunks(name, part, covered, measured if chunk is None else lambda _: chunk)
        for some in _lots(_counted(new, "chunks planned", bar)):
            store.add_to_plan(some)
            known += some
        complete = next(new, None) is None
    known = [*measured.trials, *known]
    wanted = [one for one in _counted(known, "chunks looked at", bar) if any(map(part.has, one.units(part.grid)))]
    return wanted, complete


def _counted(chunks: Iterable[SweepChunk], what: str, bar: Progress) -> Iterator[SweepChunk]:
    """Yield the chunks; from time to time show their number, followed by ``what``, and check for signals to stop."""
    for count, one in enumerate(chunks):
        if count % CHUNKS_BETWEEN_LOOKS == 0:
            bar.message(f"{count} {what}" if count else "planning")
        yield one


def _lots(chunks: Iterator[SweepChunk]) -> Iterator[list[SweepChunk]]:
    """Yield lists of chunks to be written together, until SECONDS_OF_PLANNING after the first chunk, which is slow."""
    some: list[SweepChunk] = []
    until = math.inf
    for one in chunks:
        until = min(until, time.monotonic() + SECONDS_OF_PLANNING)
        some.append(one)
        late = time.monotonic() > until
        if late or len(some) == MOST_NOTED_TOGETHER:
            yield some
            some = []
        if late:
            return
    if some:
        yield some


class _Measured:
    """Function of the system size ``dim``: the number of points or runs that take CHUNK_SECONDS, by two trials.

    The first trial includes compilation, so the second one counts. Both are stored as chunks of one point or run, in
    ``trials``, and their keys are added to ``covered``.
    """

    def __init__(self, store: SweepStore, name: str, part: SweepPart, covered: set[tuple], bar: Progress) -> None:
        self._store, self._name, self._part, self._covered, self._bar = store, name, part, covered, bar
        self._known: dict[int | None, int] = {}
        self.trials: list[SweepChunk] = []

    def __call__(self, dim: int | None) -> int:
        if dim not in self._known:
            single = missing_chunks(self._name, self._part, self._covered, lambda _: 1)
            trials = list(itertools.islice((one for one in single if one.dim == dim), 2))
            self._store.add_to_plan(trials)
            self.trials += trials
            seconds = CHUNK_SECONDS
            for trial in trials:
                self._bar.message("measuring what a point takes")
                began = time.monotonic()
                given = self._part.problem, self._part.algorithm
                _, ended = work_on(str(self._store.path), trial.to_json(), given)
                if ended == COMPUTED:  # a failed trial does not measure the time
                    seconds = time.monotonic() - began
                self._covered |= set(trial.units(self._part.grid))
            self._known[dim] = int(np.clip(CHUNK_SECONDS / max(seconds, 1e-6), 1, MOST_IN_CHUNK))
        return self._known[dim]
