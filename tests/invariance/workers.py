"""Many cases in worker processes that share the cost of imports and compilation; a case that hangs ends its worker.

Verdicts are appended to a file of JSON lines as they come, and cases that the file holds are not judged again.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from invariance import harness
from invariance.harness import VERDICTS, Verdict

#: Cases after which a worker is replaced: compiled programs are kept for the life of a process, and fill its memory.
CASES_OF_A_WORKER = 40
#: Seconds to start a worker, and longest wall time of a case over its CPU time on a busy machine.
SECONDS_TO_START, BUSY = 300.0, 8.0


#: What workers are started with, unless the environment says otherwise: the theories are for processors, and threads of
#: BLAS get in the way of many workers.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}


def _work(pipe: Connection, small: bool) -> None:
    """Judge the cases that come through the pipe."""
    pipe.send(None)
    while (seed := pipe.recv()) is not None:
        pipe.send(harness.judge(seed, small))


def cpu_seconds(process: int) -> float | None:
    """CPU time that a process has used, where the system tells."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None


@contextmanager
def _on_core(core: int | None) -> Iterator[None]:
    """Processes that are started here run on one core, where there are several workers and the system can do it."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if core is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(ours)[core % len(ours)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, ours)


@dataclass
class Worker:
    """A process, the case that it judges, and when it began."""

    small: bool
    core: int | None = None
    process: Any = None
    pipe: Any = None
    case: int | None = None
    done: int = 0
    began: float = 0.0
    cpu: float = 0.0
    ready: bool = False

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, self.small), daemon=True)
        with _on_core(self.core):
            self.process.start()
        theirs.close()
        self.done, self.case, self.ready, self.began = 0, None, False, time.monotonic()

    def give(self, seed: int) -> None:
        self.case, self.began, self.cpu = seed, time.monotonic(), cpu_seconds(self.process.pid) or 0.0
        self.pipe.send(seed)

    def took(self) -> tuple[float, float]:
        """CPU time of this case, wall time where that is not known, and wall time."""
        wall = time.monotonic() - self.began
        used = cpu_seconds(self.process.pid)
        return (wall if used is None else used - self.cpu), wall

    def too_long(self, limit: float) -> bool:
        used, wall = self.took()
        if not self.ready:
            return wall > SECONDS_TO_START
        return self.case is not None and (used > limit or wall > BUSY * limit)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


@dataclass
class Campaign:
    """Cases that wait, and workers."""

    waiting: collections.deque[int]
    small: bool
    limit: float
    report: Callable[[Verdict], None]
    output: Path | None
    until: float
    verdicts: list[Verdict] = field(default_factory=list)

    def over(self) -> bool:
        return not self.waiting or time.monotonic() > self.until

    def note(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        if self.output is not None:
            with self.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(verdict)) + "\n")
        if verdict.fault:
            self.report(verdict)

    def ended_early(self, worker: Worker, words: str, outcome: str) -> None:
        """The worker was ended, or ended by itself, with its case."""
        if worker.case is not None:
            pair = harness.pair_of(worker.case, self.small)
            _, wall = worker.took()
            lines = harness.reproduction(pair) if outcome in harness.FAULTS else ""
            self.note(Verdict(worker.case, pair.family, pair.transformation, outcome, words, seconds=wall, lines=lines))
        worker.end()
        worker.start()

    def heard(self, worker: Worker) -> None:
        try:
            said = worker.pipe.recv()
        except (EOFError, OSError):
            self.ended_early(worker, "the process ended", harness.TRACEBACK)
            return
        if not worker.ready:
            worker.ready = True
        else:
            self.note(said)
            worker.case, worker.done = None, worker.done + 1
            if worker.done >= CASES_OF_A_WORKER:
                worker.end()
                worker.start()
                return
        if not self.over():
            worker.give(self.waiting.popleft())


def campaign(
    seeds: Iterable[int],
    *,
    small: bool = False,
    processes: int = 1,
    limit: float = 90.0,
    budget: float = float("inf"),
    output: Path | None = None,
    report: Callable[[Verdict], None] = lambda verdict: None,
) -> list[Verdict]:
    """Judge many cases; ``report`` sees every fault as it comes.

    Parameters
    ----------
    limit
        Seconds of CPU time after which a case is slow.
    budget
        Seconds after which no case is begun.
    """
    known = {verdict.seed for verdict in read(output)} if output is not None else set()
    waiting = collections.deque(seed for seed in seeds if seed not in known)
    state = Campaign(waiting, small, limit, report, output, time.monotonic() + budget)
    count = min(processes, max(len(waiting), 1))
    workers = [Worker(small, core if count > 1 else None) for core in range(count)]
    for worker in workers:
        worker.start()
    try:
        while any(worker.case is not None for worker in workers) or not state.over():
            for pipe in wait([worker.pipe for worker in workers], timeout=1.0):
                state.heard(next(worker for worker in workers if worker.pipe is pipe))
            for worker in workers:
                if worker.too_long(limit):
                    state.ended_early(worker, f"longer than {limit:.0f} s of CPU time", harness.SLOW)
    finally:
        for worker in workers:
            worker.end()
    return state.verdicts


def read(output: Path) -> list[Verdict]:
    """Verdicts of an earlier campaign; a last line that was cut off is left out."""
    verdicts = []
    for line in output.read_text(encoding="utf-8").splitlines() if output.exists() else ():
        try:
            verdicts.append(Verdict(**json.loads(line)))
        except (json.JSONDecodeError, TypeError):
            continue
    return verdicts


def table(verdicts: Sequence[Verdict]) -> str:
    """Counts by family and transformation, and what is beyond 3.5 errors among the equal ones."""
    rows: dict[tuple[str, str], collections.Counter] = collections.defaultdict(collections.Counter)
    for verdict in verdicts:
        for key in ((verdict.family, verdict.transformation), (verdict.family, "all"), ("all", "all")):
            rows[key][verdict.outcome] += 1
            rows[key]["cases"] += 1
            rows[key]["> 3.5 errors"] += verdict.outcome == harness.EQUAL and verdict.largest > 3.5
    columns = ("cases", *VERDICTS, "> 3.5 errors")
    families = sorted({family for family, _ in rows} - {"all"})
    keys = [key for family in families for key in sorted(k for k in rows if k[0] == family)] + [("all", "all")]
    lines = ["| family | transformation | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    for key in keys:
        lines.append("| " + " | ".join([*key, *(str(rows[key][column]) for column in columns)]) + " |")
    return "\n".join(lines)
