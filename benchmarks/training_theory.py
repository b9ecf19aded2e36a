"""How long the theory of training takes, on one core after compilation.

    python benchmarks/training_theory.py

A curve of 20 alphas from 0.05 to 40 (bar: 15 s), a point next to a solved one (0.15 s), and a fresh point (0.5 s).
Every time includes the error estimate on other nodes and the check of the proximal map from several starts.
"""

from __future__ import annotations

import time

import numpy as np

import asymptotix as asx

ALPHAS = np.geomspace(0.05, 40, 20)


def fresh_problem() -> asx.RiskMinimization:
    return asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.01)


def timed(label: str, bar: float, work) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        f"{label:28s} {wall:6.2f} s wall, {cpu:6.2f} s CPU; bar {bar:g} s: {'within' if cpu <= bar else 'beyond'}",
        flush=True,
    )


def main() -> None:
    asx.solve(fresh_problem(), alpha=1.0, progress=False)  # compiles
    problem = fresh_problem()
    timed("curve of 20 alphas", 15.0, lambda: asx.solve(problem, alpha=ALPHAS, progress=False))
    for alpha in (0.3, 0.7, 3.0):
        near = asx.solve(problem, alpha=alpha, progress=False)
        start = [float(near[name]) for name in ("m", "q", "Sigma")]
        timed(
            f"warm point, alpha = {1.02 * alpha:.3g}",
            0.15,
            lambda a=alpha, s=start: asx.solve(problem, alpha=1.02 * a, start=s, progress=False),
        )
        timed(
            f"fresh point, alpha = {alpha:g}", 0.5, lambda a=alpha: asx.solve(fresh_problem(), alpha=a, progress=False)
        )


if __name__ == "__main__":
    main()
