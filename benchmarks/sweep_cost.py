"""What a sweep costs beside the bare verbs, what a pool gains, and a store of ten thousand chunks.

    python benchmarks/sweep_cost.py

Overhead: chunks of about ten seconds of theory, by the verb alone and by a sweep in the same process; bar 5 %. Pool: an
experiment by one process and by two; bar 1.7. Store: ten thousand chunks of one point; bars 2 s for the status and 30 s
for collecting.
"""

from __future__ import annotations

import shutil
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
    """Two chunks of as many points as take ten seconds, twice by each way, the better of each."""
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


def pool(folder: Path) -> None:
    """Runs of Adam in chunks of about ten seconds, by one worker and by two, each pool's start included."""
    seconds = {}
    for workers in (1, 2):
        seconds[workers] = timed(
            lambda workers=workers: asx.sweep(
                PROBLEM, over={"alpha": [0.5, 1.0, 2.0, 4.0]}, algorithm=asx.Adam(), dim=60, seeds=8, chunk=4,
                store=folder / f"pool{workers}", executor=workers, progress=False,
            )
        )  # fmt: skip
    print(f"pool: one process {seconds[1]:.1f} s, two {seconds[2]:.1f} s: {seconds[1] / seconds[2]:.2f} times as fast")


def large_store(folder: Path, count: int = 10_000) -> None:
    """Chunks of one point: one file of a real result, written again under every name, because only reading is timed."""
    grid = {"alpha": np.linspace(0.5, 5, count).tolist()}
    part = SweepPart("solve", PROBLEM, grid)
    store = SweepStore(folder / "large", create=True)
    store.keep_part("theory", part)
    chunks = missing_chunks("theory", part, (), lambda _: 1)
    store.add_to_plan(chunks)
    first = chunk_bytes(chunks[0].name, chunks[0].compute(store.part("theory")))
    for chunk in chunks:
        data = first[: -len(seal(b""))].replace(chunks[0].name.encode(), chunk.name.encode())
        store.chunk_path(chunk.name).write_bytes(data + seal(data))
        store.note({"chunk": chunk.name, "part": "theory", "ended": "computed", "seconds": 1.0, "at": 0.0})
    status = timed(lambda: print(asx.sweep_status(store.path)))
    collected = timed(lambda: asx.collect(store.path))
    print(f"store of {count} chunks: status {status:.2f} s, collect {collected:.1f} s")


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        overhead(folder)
        pool(folder)
        large_store(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
