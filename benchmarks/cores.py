"""Speed-up with more cores: a curve of two layers on two cores and on all cores, compared with independent processes.

    python benchmarks/cores.py
    python benchmarks/cores.py --tolerance 1e-3 3e-4 1e-4 --repeat 3

Each curve runs in a separate process, on two cores and on all cores in turn; the shortest repetition counts. The upper
limit of the speed-up on the machine comes from independent processes, one per core, that compute the same cubature: if
cores are shared, or slower when all are busy, no program can gain more.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
import warnings

import numpy as np

SAMPLES, CURVE = 2**12, np.linspace(0.05, 1.6, 32)
FEW = 2


def curve(tolerance: float) -> float:
    """Return the seconds of a process's second curve; the first one loads compiled programs and draws nodes."""
    import asymptotix as asx

    warnings.simplefilter("ignore")  # some points miss the tolerance; only the time counts here
    problem = asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2))
    for _ in range(2):
        begun = time.perf_counter()
        asx.solve(problem, alpha=CURVE, tolerance=tolerance, progress=False)
        took = time.perf_counter() - begun
    return took


def alone(seconds: float) -> float:
    """Return the batches of posteriors per second on one core, measured over ``seconds``."""
    from asymptotix.sequence_index.channels.attention.activation_kinds import SOFTMAX
    from asymptotix.sequence_index.channels.attention.two_layer_batches import posterior_moments
    from asymptotix.sequence_index.evolution.averages import POSTERIOR_ACCURACY

    draw = np.random.default_rng(0).standard_normal
    u, omega, V = draw((SAMPLES, 2)), 0.7 * draw((SAMPLES, 4)), 0.5 * np.eye(2)
    posterior_moments(SOFTMAX, 1.0, u, omega, V, POSTERIOR_ACCURACY, threads=1)
    batches, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        posterior_moments(SOFTMAX, 1.0, u, omega, V, POSTERIOR_ACCURACY, threads=1)
        batches += 1
    return batches / (time.perf_counter() - begun)


def started(what: str, value: float, cores: list[int]) -> subprocess.Popen[str]:
    """Start this file as a process on some cores; JAX is held on the CPU, even if there is an accelerator."""
    command = [sys.executable, __file__, "--on", ",".join(map(str, cores)), what, str(value)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})


def result(process: subprocess.Popen[str]) -> float:
    out, _ = process.communicate()
    if process.returncode:
        sys.exit(process.returncode)
    return float(out)


def growth_of_independent_processes(cores: list[int], seconds: float) -> float:
    few, many = (
        sum(map(result, [started("alone", seconds, [core]) for core in some])) for some in (cores[:FEW], cores)
    )
    return many / few


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tolerance", type=float, nargs="+", default=[1e-3, 1e-4], help="of curves (1e-3 1e-4)")
    parser.add_argument("--repeat", type=int, default=3, help="times (3)")
    parser.add_argument("--on", help=argparse.SUPPRESS)
    parser.add_argument("work", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:  # one side of the comparison
        os.sched_setaffinity(0, map(int, options.on.split(",")))
        print({"curve": curve, "alone": alone}[options.work[0]](float(options.work[1])))
        return
    if not hasattr(os, "sched_setaffinity"):
        print("nothing to measure: this system does not bind processes to cores")
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) <= FEW:
        print(f"nothing to measure: growth is that over {FEW} cores, and there are {len(cores)}")
        return
    print(f"{platform.machine()}, {FEW} and {len(cores)} cores")
    for tolerance in options.tolerance:
        times = [
            [result(started("curve", tolerance, on)) for on in (cores[:FEW], cores)] for _ in range(options.repeat)
        ]
        few, many = map(min, zip(*times, strict=True))
        print(f"32 alphas at {tolerance:g}: {few:6.2f} s and {many:6.2f} s, growth {few / many:.1f}", flush=True)
    print(f"independent processes: growth {growth_of_independent_processes(cores, 5.0):.1f}")


if __name__ == "__main__":
    main()
