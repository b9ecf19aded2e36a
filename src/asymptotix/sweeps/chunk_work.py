"""Work on one chunk of a sweep: claim it, compute it, store it. Every process that computes calls :func:`work_on`."""

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

#: How a call of :func:`work_on` ended.
COMPUTED, FAILED, THERE, TAKEN = "computed", "failed", "there already", "taken by another"
_watch = Watch()  # one per process: its earlier observations show which claims are dead


def work_on(
    store: str, line: Mapping[str, Any], given: tuple[Problem, Algorithm | None] | None = None
) -> tuple[str, str]:
    """Compute and store a chunk, unless the store has it or another process is computing it.

    Parameters
    ----------
    store : str
        Path of the store.
    line : mapping
        The chunk, as from :meth:`SweepChunk.to_json`.
    given : (Problem, Algorithm), optional
        Problem and algorithm of the part if they hold functions, which the store has by name only.

    Returns
    -------
    tuple of str
        Name of the chunk, and how the call ended: COMPUTED, FAILED, THERE or TAKEN.
    """
    kept, chunk = SweepStore(store), SweepChunk.from_json(line)
    if kept.has(chunk.name):
        return chunk.name, THERE
    lease = _watch.claim(kept.claim_path(chunk.name))
    if lease is None:
        return chunk.name, TAKEN
    with lease:
        if kept.has(chunk.name):  # the previous owner of the claim stored it
            return chunk.name, THERE
        if kept.has_failed(chunk.name):
            return chunk.name, FAILED
        # Cached by the part's text too: the folder may have been removed and another sweep begun under its name.
        part = _part(store, chunk.part, kept.part_text(chunk.part)) if given is None else kept.part(chunk.part, *given)
        return chunk.name, _computed(kept, chunk, part)


def given_up(store: str, line: Mapping[str, Any], message: str) -> None:
    """Record in the store that the chunk ``line`` failed with ``message``, for a worker that could not record it."""
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
            warnings.simplefilter("ignore", ConvergenceWarning)  # the status of a point reports it
            warnings.filterwarnings("ignore", "interrupted", RuntimeWarning)  # the sweep reports it
            result = chunk.compute(part)
    except Exception as error:
        interrupts.raise_if_hidden_in(error)
        store.keep_failure(chunk, "".join(traceback.format_exception_only(error)).strip())
        ended = FAILED
    else:  # an error from here on, such as a full disk, is no failure of the chunk
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
    if interrupts.times_obeyed() > signals:  # the chunk was finished despite a signal, and the sweep must end
        raise KeyboardInterrupt
    return ended


def _peak_memory() -> int:
    """Return the most memory that this process ever held, in MB; 0 where that is unknown."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / 1e6 if sys.platform == "darwin" else peak / 1e3)
