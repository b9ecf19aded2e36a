"""Time of a learning curve over six decades of samples: two scalar equations against the iteration that they replace.

The task is linear attention on s_k = C sqrt(d) k^-gamma, gamma = 1, at the weight decay sqrt(8 noise a). The number of
samples n covers six decades from d on (for d = 1000 up to d^(1 + 2 gamma), where the last direction is learned). The
baseline iterates (m, q, Sigma) by state evolution from an uninformed start, as for any other channel; both methods give
the same numbers.

    python benchmarks/scaling_laws.py            about two minutes
    python benchmarks/scaling_laws.py --quick    a third of the points

Everything runs in this process on one core; times are CPU seconds.
"""

from __future__ import annotations

import argparse
import os
import platform
import time

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import numpy as np

import asymptotix as asx

DIMS, GAMMA, NOISE, DECADES = (10**3, 10**6), 1.0, 0.5, 6


def problems(points: int, dim: int) -> list[tuple[float, asx.RiskMinimization]]:
    """Return alpha and problem of every point of the curve."""
    target = asx.RankedPowerLaw(GAMMA, dim)
    task = asx.AttentionIndex(tokens=1, activation="linear", target=target, noise=NOISE)
    alphas = np.geomspace(dim, 10.0**DECADES * dim, points) / dim**2
    decays = np.sqrt(8 * NOISE * 2 * alphas)
    return [(float(a), asx.RiskMinimization(task, weight_decay=float(w))) for a, w in zip(alphas, decays, strict=True)]


def two_equations(alpha: float, problem: asx.RiskMinimization) -> float:
    return float(asx.solve(problem, alpha=alpha, progress=False).estimation_error)


def iteration(alpha: float, problem: asx.RiskMinimization) -> float:
    evolution = problem.theory.equations.evolution()
    found = evolution.solve(alpha, tolerance=1e-9)
    if not found.converged:
        raise FloatingPointError(found.words)
    return evolution.apart(found.parameters) + (1 - found.parameters.m) ** 2


def timed(method, points) -> tuple[np.ndarray, float]:
    start = time.process_time()
    errors = []
    for alpha, problem in points:
        try:
            errors.append(method(alpha, problem))
        except FloatingPointError:
            errors.append(np.nan)
    return np.array(errors), time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of a learning curve over six decades.")
    parser.add_argument("--quick", action="store_true", help="a third of the points")
    count = 8 if parser.parse_args().quick else 24
    print(f"{platform.machine()}, Python {platform.python_version()}, one core; {count} points")
    for dim in DIMS:
        points = problems(count, dim)
        two_equations(*points[0])  # compiles
        found, seconds = timed(two_equations, points)
        base, slow = timed(iteration, points)
        both = np.isfinite(base)
        apart = np.nanmax(abs(found[both] / base[both] - 1)) if both.any() else np.nan
        print(f"\nd = {dim}: errors from {found.max():.2e} to {found.min():.2e}")
        print(f"{'two equations':24}{seconds:10.1f} s   {np.isfinite(found).sum()} of {count} points")
        print(f"{'state evolution':24}{slow:10.1f} s   {both.sum()} of {count} points, largest difference {apart:.1e}")


if __name__ == "__main__":
    main()
