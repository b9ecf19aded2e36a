"""One chunk brought to its end: claimed, computed, kept. What every executor calls, in whatever process."""

from __future__ import annotations

import functools
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from typing import Any

from ..core.problem import Algorithm, Problem
from ..core.result import ConvergenceWarning
from ..numerics import interrupts
from .leases import Watch
from .part import SweepChunk, SweepPart
from .sweep_store import SweepStore

#: How a call ended.
COMPUTED, FAILED, THERE, TAKEN = "computed", "failed", "there already", "taken by another"
_watch = Watch()  # of this process: what it saw of a claim before tells it from a dead one


def work_on(
    store: str, line: Mapping[str, Any], given: tuple[Problem, Algorithm | None] | None = None
) -> tuple[str, str]:
    """Compute a chunk of a store unless it is there or somebody else does, and keep it.

    Parameters
    ----------
    store : str
        Path of the store.
    line : mapping
        The chunk, as it stands in the plan.
    given : (Problem, Algorithm), optional
        Of the part, where they hold functions, which the store has by name only.

    Returns
    -------
    tuple of str
        Name of the chunk, and how it ended: one of the words above.
    """
    kept, chunk = SweepStore(store), SweepChunk.from_json(line)
    if kept.has(chunk.name):
        return chunk.name, THERE
    lease = _watch.claim(kept.claim_path(chunk.name))
    if lease is None:
        return chunk.name, TAKEN
    with lease:
        if kept.has(chunk.name):  # by whom held the claim before us
            return chunk.name, THERE
        if kept.has_failed(chunk.name):
            return chunk.name, FAILED
        # By what is written there, too: a folder may have been removed, and another sweep begun under its name.
        part = _part(store, chunk.part, kept.part_text(chunk.part)) if given is None else kept.part(chunk.part, *given)
        return chunk.name, _computed(kept, chunk, part)


def given_up(store: str, line: Mapping[str, Any], message: str) -> None:
    """Keep that a chunk failed, by whom was to have it done: the process that tried could not say so."""
    kept, chunk = SweepStore(store), SweepChunk.from_json(line)
    if not kept.has(chunk.name):
        kept.keep_failure(chunk, message)
        kept.note({"chunk": chunk.name, "part": chunk.part, "ended": FAILED, "at": round(time.time(), 3)})


@functools.lru_cache(maxsize=8)
def _part(store: str, name: str, told: str) -> SweepPart:
    return SweepStore(store).part(name)


def _computed(store: SweepStore, chunk: SweepChunk, part: SweepPart) -> str:
    began, before, signals = time.monotonic(), time.process_time(), interrupts.times_obeyed()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the status of a point says it
            warnings.filterwarnings("ignore", "interrupted", RuntimeWarning)  # the sweep says it
            result = chunk.compute(part)
    except Exception as error:
        interrupts.raise_if_hidden_in(error)
        store.keep_failure(chunk, "".join(traceback.format_exception_only(error)).strip())
        ended = FAILED
    else:  # what fails from here on, such as a disk that is full, is no fault of the chunk
        if not result.finished:
            raise KeyboardInterrupt(f"chunk {chunk.name} was interrupted")
        store.keep(chunk, result)
        ended = COMPUTED
    points = max(1, len(chunk.values)) * max(1, len(chunk.seeds))
    store.note(
        {"chunk": chunk.name, "part": chunk.part, "ended": ended, "points": points,
         "seconds": round(time.monotonic() - began, 3), "cpu_seconds": round(time.process_time() - before, 3),
         "memory_mb": _peak_memory(), "at": round(time.time(), 3)}
    )  # fmt: skip
    if interrupts.times_obeyed() > signals:  # it ended in time, and the sweep is to end too
        raise KeyboardInterrupt
    return ended


def _peak_memory() -> int:
    """Most memory that this process ever held, in MB; 0 where that cannot be told."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / 1e6 if sys.platform == "darwin" else peak / 1e3)
