"""Cost of sweeps: overhead against the bare verbs, gain of a pool of workers, and a store of ten thousand chunks.

    python benchmarks/sweep_cost.py [overhead] [pool] [store]

Overhead: chunks of about ten seconds of theory, by the verb alone and by a sweep in the same process; the bar is 5 %.
Pool: experiments by two workers, and by one worker on half of the cores; the bar is a factor of 1.7 in wall time on an
idle machine. On a busy machine the CPU seconds show what the factor would be. For comparison, one worker on all cores
is also timed: compiled loops and XLA use them as far as they can. Store: ten thousand chunks of one point; the bars are
2 s for the status and 30 s for collecting.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import asymptotix as asx
from asymptotix.core.dataset.checksums import seal
from asymptotix.sweeps.chunk_file import chunk_bytes
from asymptotix.sweeps.cutting import missing_chunks
from asymptotix.sweeps.part import SweepPart
from asymptotix.sweeps.sweep_store import SweepStore

PROBLEM = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.1)


def timed(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def overhead(folder: Path) -> None:
    """Time two chunks of about ten seconds each, by the verb and by a sweep; the better of two repetitions counts."""
    asx.solve(PROBLEM, alpha=[0.5, 1.0], progress=False)
    each = timed(lambda: asx.solve(PROBLEM, alpha=np.geomspace(0.2, 5, 40), progress=False)) / 40
    count = max(10, round(10 / each))
    grid = {"weight_decay": [0.05, 0.1], "alpha": np.geomspace(0.2, 5, count).tolist()}

    def bare() -> None:
        for decay in grid["weight_decay"]:
            asx.solve(PROBLEM, weight_decay=decay, alpha=grid["alpha"], progress=False)

    def swept(k: int) -> None:
        asx.sweep(PROBLEM, over=grid, store=folder / f"overhead{k}", chunk=count, progress=False)

    alone = [timed(bare) for _ in range(2)]
    inside = [timed(lambda k=k: swept(k)) for k in range(2)]
    ratio = min(inside) / min(alone) - 1
    print(f"overhead: verb {min(alone):.1f} s, sweep {min(inside):.1f} s for 2 chunks of {count} points: {ratio:.1%}")


EXPERIMENTS = {
    "Adam, d=60": (PROBLEM, asx.Adam(), 4, {"dim": 60, "seeds": 8, "chunk": 4}),
    "GAMP, d=100": (
        asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2, rank=1, skip=1.0)), asx.GAMP(), 8,
        {"dim": 100, "seeds": 16, "chunk": 16},
    ),
}  # fmt: skip


def pool(folder: Path) -> None:
    """Time eight chunks of a few seconds, including the start of every pool and the compilation by its workers."""
    everything = os.sched_getaffinity(0)
    half = sorted(everything)[: len(everything) // 2]
    for label, (problem, algorithm, alphas, sizes) in EXPERIMENTS.items():
        seconds, cpu = {}, {}
        for name, workers, cores in (("one", 1, half), ("all", 1, everything), ("two", 2, everything)):
            os.sched_setaffinity(0, cores)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            began = time.perf_counter()
            asx.sweep(
                problem, over={"alpha": np.linspace(1.0, 1.7, alphas)}, algorithm=algorithm,
                store=folder / f"{name}-{label}", executor=workers, progress=False, **sizes,
            )  # fmt: skip
            seconds[name] = time.perf_counter() - began
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu[name] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            os.sched_setaffinity(0, everything)
        print(
            f"pool, {label}: one worker on half of the cores {seconds['one']:.1f} s ({cpu['one']:.1f} CPU s), on all "
            f"{seconds['all']:.1f} s ({cpu['all']:.1f}), two workers {seconds['two']:.1f} s ({cpu['two']:.1f}): "
            f"{seconds['one'] / seconds['two']:.2f} times as fast as the first, {seconds['all'] / seconds['two']:.2f} "
            f"as the second; by CPU seconds {2 * cpu['one'] / cpu['two']:.2f}"
        )


def large_store(folder: Path, count: int = 10_000) -> None:
    """Time a store of chunks of one point; one real file is copied to every name, because only reading is timed."""
    grid = {"alpha": np.linspace(0.5, 5, count).tolist()}
    part = SweepPart("solve", PROBLEM, grid)
    store = SweepStore(folder / "large", create=True)
    store.keep_part("theory", part)
    chunks = list(missing_chunks("theory", part, (), lambda _: 1))
    store.add_to_plan(chunks)
    first = chunk_bytes(chunks[0].name, chunks[0].compute(store.part("theory")))
    for chunk in chunks:
        data = first[: -len(seal(b""))].replace(chunks[0].name.encode(), chunk.name.encode())
        store.chunk_path(chunk.name).write_bytes(data + seal(data))
        store.note({"chunk": chunk.name, "part": "theory", "ended": "computed", "seconds": 1.0, "at": 0.0})
    status = timed(lambda: print(asx.sweep_status(store.path)))
    collected = timed(lambda: asx.collect(store.path))
    print(f"store of {count} chunks: status {status:.2f} s, collect {collected:.1f} s")


def main(*chosen: str) -> None:
    folder = Path(tempfile.mkdtemp())
    measures = {"overhead": overhead, "pool": pool, "store": large_store}
    try:
        for name in chosen or measures:
            measures[name](folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
