"""Time for two layers of attention in a fresh process: the curve of the front page, its thresholds, runs of GAMP.

    python benchmarks/layers.py                     the curve and the thresholds
    python benchmarks/layers.py --cores 2           on this number of cores only
    python benchmarks/layers.py --gamp              and twelve runs of GAMP at D = 300
    python benchmarks/layers.py --three             three layers instead, 17 alphas and all thresholds

Times include compilation by JAX, and by numba unless it is cached. They are compared with commit 9d5fe52 on two cores
(aarch64) and on an H200, measured on 2026-11-16. The gain from more cores is measured by ``benchmarks/cores.py``.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from functools import partial

#: Seconds at commit 9d5fe52: (on two cores, on an H200); None if not measured.
BEFORE = {
    "curve": (111.0, 23.0),
    "thresholds": (14.0, None),
    "gamp": (31.0, None),
    "three curve": (None, 205.0),
    "three thresholds": (None, 85.0),
}
THREE_ALPHAS = [0.2, 0.22, 0.25, 0.3, 0.4, 0.6, 0.9, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.45, 1.55, 1.8]


def timed(name: str, label: str, work: Callable[[], object], accelerated: bool) -> float:
    """Run, print wall and CPU seconds with the earlier ones, and return the wall seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    before = BEFORE[name][accelerated]
    ratio = "" if before is None else f"; before {before:.0f} s wall, {before / wall:.1f} times as long"
    print(f"{label:32s} {wall:6.1f} s wall, {cpu:6.1f} s CPU{ratio}", flush=True)
    return wall


def three_layers(accelerated: bool) -> None:
    import asymptotix as asx

    problem = asx.BayesOptimal(asx.DeepAttention(layers=3, tokens=2))
    curve = partial(asx.solve, problem, alpha=THREE_ALPHAS, tolerance=0.004, progress=False)
    thresholds = partial(asx.thresholds, problem, progress=False)
    wall = timed("three curve", "three layers, 17 alphas", curve, accelerated)
    wall += timed("three thresholds", "three layers, thresholds", thresholds, accelerated)
    print(f"{'  both':32s} {wall:6.1f} s wall")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, help="use so many cores (all)")
    parser.add_argument("--gamp", action="store_true", help="also GAMP")
    parser.add_argument("--three", action="store_true", help="three layers instead of two")
    options = parser.parse_args()
    if options.cores and hasattr(os, "sched_setaffinity"):  # before JAX counts the cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])

    import jax
    import numpy as np

    import asymptotix as asx
    from asymptotix.numerics.threads import available_cores

    accelerated = jax.default_backend() != "cpu"
    print(f"{platform.machine()}, {available_cores()} cores, JAX {jax.__version__} on {jax.devices()[0].device_kind}")
    if options.three:
        three_layers(accelerated)
        return
    problem = asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2))
    curve = partial(asx.solve, problem, alpha=np.linspace(0.05, 1.6, 32), progress=False)
    timed("curve", "curve of 32 alphas", curve, accelerated)
    timed("thresholds", "thresholds", partial(asx.thresholds, problem, progress=False), accelerated)
    if options.gamp:
        sizes = {"alpha": [0.3, 0.6, 1.2], "dim": 300, "seeds": 4}
        runs = partial(asx.simulate, problem, asx.GAMP(), **sizes, progress=False)
        timed("gamp", "GAMP, D = 300, 3 alphas, 4 seeds", runs, accelerated)


if __name__ == "__main__":
    main()
