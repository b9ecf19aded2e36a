"""Message passing on two-layer attention: its time, its distance from state evolution, its success rate.

    python benchmarks/gamp.py                      time of a run and the distance at D = 1000
    python benchmarks/gamp.py --large              the distance also at D = 4000
    python benchmarks/gamp.py --success [--large]  and the share of runs that learn layer 1

The time is measured on the first call of ``simulate`` in this process, with compilation; the bar is 60 s.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import jax
import numpy as np

from asymptotix import GAMP, BayesOptimal, DeepAttention, compare, simulate, solve

MODEL = DeepAttention(layers=2, tokens=2)
ALPHA, SIDE, BAR = 1.2, 0.05, 60.0
SUCCESS_ALPHAS = (0.8, 0.9, 1.2)


def diagonal(values: np.ndarray) -> np.ndarray:
    """Return the overlaps of every layer with itself, (..., 2), from an array that ends in (2, 2)."""
    return np.einsum("...pp->...p", values)


def time_of_a_run(dim: int, iterations: int) -> None:
    start = time.perf_counter()
    runs = simulate(BayesOptimal(MODEL), GAMP(iterations=iterations), alpha=ALPHA, dim=dim, seeds=1, progress=False)
    seconds = time.perf_counter() - start
    overlap = diagonal(runs.overlap.values.reshape(2, 2))
    verdict = "within" if seconds < BAR else "beyond"
    print(f"\nD = {dim}, alpha = {ALPHA}, {iterations} iterations, one seed, with compilation:")
    print(f"{seconds:.1f} s, {verdict} the bar of {BAR:.0f} s; overlaps {overlap[0]:.3f} {overlap[1]:.3f}", flush=True)


def distance(dim: int, seeds: int, iterations: int) -> None:
    """Compare undamped runs from side information with state evolution, iteration by iteration."""
    problem = BayesOptimal(MODEL, side_information=SIDE)
    theory = solve(problem, alpha=ALPHA, tolerance=0.05, progress=False)
    runs = simulate(problem, GAMP(iterations=iterations), alpha=ALPHA, dim=dim, seeds=seeds, progress=False)
    ds = compare(theory, runs, by="iteration").ds
    exact, mean, sem = (
        diagonal(ds[f"overlap_{part}"].transpose("iteration", ...).values.reshape(-1, 2, 2))
        for part in ("theory", "mean", "sem")
    )
    gap, allowed = abs(mean - exact), 2 * sem + 0.03
    print(f"\nD = {dim}, alpha = {ALPHA}, side information {SIDE}, {seeds} seeds, undamped")
    print("iteration  layer  state evolution    mean  |mean - SE|  2 sem + 0.03")
    for t, layer in np.ndindex(gap.shape):
        flag = "" if gap[t, layer] <= allowed[t, layer] else "  beyond"
        columns = f"{exact[t, layer]:15.4f}  {mean[t, layer]:6.4f}  {gap[t, layer]:11.4f}  {allowed[t, layer]:12.4f}"
        print(f"{t + 1:9d}  {layer + 1:5d}  {columns}{flag}")
    print(f"beyond: {(gap > allowed).sum()} of {gap.size}; largest |mean - SE| {gap.max():.4f}", flush=True)


def success(dim: int, seeds: int, iterations: int) -> None:
    """Print the share of runs whose overlap of layer 1 exceeds half of state evolution's."""
    problem = BayesOptimal(MODEL)
    print(f"\nD = {dim}, no side information, {iterations} iterations; overlaps of layer 1")
    print("alpha  state evolution    mean +- s.e.m.   median  success")
    for alpha in SUCCESS_ALPHAS:
        theory = solve(problem, alpha=alpha, tolerance=0.05, progress=False)
        exact = diagonal(theory.overlap.values.reshape(2, 2))[0]
        runs = simulate(problem, GAMP(iterations=iterations), alpha=alpha, dim=dim, seeds=seeds, progress=False)
        found = diagonal(runs.overlap.values.reshape(seeds, 2, 2))[:, 0]
        count, sem = (found > exact / 2).sum(), found.std(ddof=1) / np.sqrt(seeds)
        columns = f"{exact:15.4f}  {found.mean():6.4f} +- {sem:6.4f}  {np.median(found):6.4f}"
        print(f"{alpha:5.2f}  {columns}  {count:2d} of {seeds}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="also D = 4000")
    parser.add_argument("--success", action="store_true", help="also the success table (16 seeds per alpha)")
    parser.add_argument("--dim", type=int, default=1000, help="the smaller size (1000)")
    parser.add_argument("--seeds", type=int, default=8, help="seeds of the distance (8)")
    parser.add_argument("--iterations", type=int, default=40, help="of timed runs and the success table (40)")
    options = parser.parse_args(argv)
    print(f"{jax.default_backend()}: {jax.devices()[0].device_kind}, JAX {jax.__version__}")
    time_of_a_run(options.dim, options.iterations)
    dims = [options.dim, 4000] if options.large else [options.dim]
    for dim in dims:
        distance(dim, options.seeds, iterations=10)
    if options.success:
        for dim in dims:
            success(dim, 16, options.iterations)


if __name__ == "__main__":
    main()
