"""Progress of a sweep, read from its folder: from the names of files, and from the log of chunks that ended."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from datetime import timedelta

from ..core.progress import Progress
from .leases import is_surely_dead, read_claim
from .sweep_store import SweepStore

#: Number of last chunks that determine the rate: early chunks include compilation, and machines come and go.
RECENT = 200
#: Seconds between reports of a driver to its progress, and to the log of the store, which many drivers share.
SECONDS_BETWEEN_REPORTS = 10.0
SECONDS_BETWEEN_NOTES = 600.0
#: Largest share of the time that reports may take.
SHARE_OF_REPORTS = 0.01


@dataclass(frozen=True)
class Standing:
    """Progress of a sweep: the states of its chunks, rate and remaining time.

    Attributes
    ----------
    done, running, failed, left : list of str
        Names of chunks; no process is working on those in ``left``.
    messages : dict of str to str
        Error messages of failed chunks.
    chunks_per_hour : float
        Rate of the last 200 computed chunks; nan before there are two.
    remaining_seconds : float
        Remaining seconds at that rate; nan where the rate is unknown.
    slowest_seconds, memory_mb : float
        Seconds of the slowest chunk, and the most memory in MB that one process held; 0 where unknown.

    Examples
    --------
    >>> import tempfile
    >>> import asymptotix as asx
    >>> folder = tempfile.mkdtemp()
    >>> problem = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.1)
    >>> _ = asx.sweep(problem, over={"alpha": [0.5, 1.0]}, store=folder, chunk=1)
    >>> print(str(asx.sweep_status(folder)).splitlines()[0])
    2 of 2 chunks done, 0 running, 0 failed, 0 left
    """

    done: list[str]
    running: list[str]
    failed: list[str]
    left: list[str]
    messages: dict[str, str]
    chunks_per_hour: float
    remaining_seconds: float
    slowest_seconds: float
    memory_mb: float

    def __str__(self) -> str:
        lines = [f"{self._count()}, {len(self.running)} running, {self._failures()}, {len(self.left)} left"]
        if self.chunks_per_hour > 0:
            rest = "" if not (self.left or self.running) else f", about {_clock(self.remaining_seconds)} left"
            lines.append(f"{self._rate()}{rest}")
        if self.slowest_seconds > 0:
            lines.append(self._most())
        lines += [f"failed {name[:8]}: {message}" for name, message in list(self.messages.items())[:10]]
        if len(self.messages) > 10:
            lines.append(f"and {len(self.messages) - 10} more that failed")
        return "\n".join(lines)

    @property
    def line(self) -> str:
        """The progress in one line, without the remaining time, which a progress display shows itself."""
        told = [self._count(), self._failures()]
        told += [self._rate()] * (self.chunks_per_hour > 0) + [self._most()] * (self.slowest_seconds > 0)
        return ", ".join(told)

    def _count(self) -> str:
        total = len(self.done) + len(self.running) + len(self.failed) + len(self.left)
        return f"{len(self.done)} of {total} chunks done"

    def _failures(self) -> str:
        return f"{len(self.failed)} failed"

    def _rate(self) -> str:
        return f"{self.chunks_per_hour:.3g} chunks an hour"

    def _most(self) -> str:
        return f"slowest chunk {self.slowest_seconds:.3g} s, memory {self.memory_mb:.0f} MB at most"


class Reporter:
    """Reporter of the progress of a sweep, to a progress display ``bar`` and to the log of its store.

    Parameters
    ----------
    store : SweepStore
    bar : Progress
    """

    def __init__(self, store: SweepStore, bar: Progress) -> None:
        self._store, self._bar, self._done_before = store, bar, bar.done
        self._next_report, self._next_note = -math.inf, time.monotonic() + SECONDS_BETWEEN_NOTES

    def now_and_then(self) -> None:
        """Show the progress, at most every SECONDS_BETWEEN_REPORTS, and log it every SECONDS_BETWEEN_NOTES."""
        began = time.monotonic()
        if began < self._next_report:
            return
        found = standing(self._store)
        self._bar.message(found.line)
        if began >= self._next_note:
            self._note(found)
        took = time.monotonic() - began
        self._next_report = began + max(SECONDS_BETWEEN_REPORTS, took / SHARE_OF_REPORTS)

    def at_the_end(self) -> None:
        """Write a last line to the log, if a chunk ended since this reporter was made."""
        if self._bar.done > self._done_before:
            self._note(standing(self._store))

    def _note(self, found: Standing) -> None:
        rest = {} if math.isnan(found.remaining_seconds) else {"remaining_seconds": round(found.remaining_seconds)}
        self._store.note({"standing": found.line, **rest, "at": round(time.time(), 3)})
        self._next_note = time.monotonic() + SECONDS_BETWEEN_NOTES


def standing(store: SweepStore) -> Standing:
    """Return the progress of the sweep in ``store``, from plan, log, claims, failures and the names of result files."""
    planned = list(dict.fromkeys(chunk.name for chunk in store.plan()))
    done, failed = store.done(), store.failures()
    claims = {name: read_claim(store.claim_path(name)) for name in store.claimed()}
    claimed = {name for name, claim in claims.items() if claim is not None and not is_surely_dead(claim)}
    log = [line for line in store.log() if line.get("ended") == "computed"]
    rate = _per_hour([float(line.get("at", 0.0)) for line in log][-RECENT:])
    open_ones = [name for name in planned if name not in done and name not in failed]
    return Standing(
        done=[name for name in planned if name in done],
        running=[name for name in open_ones if name in claimed],
        failed=[name for name in planned if name in failed and name not in done],
        left=[name for name in open_ones if name not in claimed],
        messages={name: store.failure(name) for name in planned if name in failed and name not in done},
        chunks_per_hour=rate,
        remaining_seconds=3600 * len(open_ones) / rate if rate > 0 else float("nan"),
        slowest_seconds=max((float(line.get("seconds", 0.0)) for line in log), default=0.0),
        memory_mb=max((float(line.get("memory_mb", 0.0)) for line in log), default=0.0),
    )


def _per_hour(times: list[float]) -> float:
    times = sorted(times)
    if len(times) < 2 or times[-1] <= times[0]:
        return float("nan")
    return 3600 * (len(times) - 1) / (times[-1] - times[0])


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
