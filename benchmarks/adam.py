"""Training with Adam against its exact theory: errors, losses and spectra at finite size.

    python benchmarks/adam.py                two tokens at d = 50 and 100; full matrices and three tokens at d = 60
    python benchmarks/adam.py --spectra      singular values at d = 200, alpha = 0.05, 0.5, 4, 40 (for an accelerator)

Targets have a deterministic spectrum, so that runs differ only by their data. The allowed distance is 5 % of theory
plus two standard errors of the mean.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence

import jax
import numpy as np

import asymptotix as asx
from asymptotix.figures.misprints import printed_law

NOISE, WEIGHT_DECAY, ALPHAS = 0.5, 0.01, (0.2, 0.5, 1.0)


def problem_of(tokens: int = 2, parameterization: str = "factorized") -> asx.RiskMinimization:
    task = asx.AttentionIndex(tokens=tokens, target=asx.MarchenkoPastur(0.5), noise=NOISE)
    return asx.RiskMinimization(task, weight_decay=WEIGHT_DECAY, parameterization=parameterization)


def gaps(problem: asx.RiskMinimization, dim: int, seeds: int, label: str) -> float:
    """Print theory and runs; return the mean relative distance over all alphas and both observables."""
    start = time.perf_counter()
    theory = asx.solve(problem, alpha=ALPHAS, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", asx.ConvergenceWarning)
        runs = asx.simulate(problem, asx.Adam(steps=1500), alpha=ALPHAS, dim=dim, seeds=seeds, progress=False)
    print(f"\n{label}, d = {dim}, {seeds} seeds ({time.perf_counter() - start:.0f} s)")
    print("alpha   observable    theory      Adam     s.e.m.   distance   allowed   Kolmogorov   as printed")
    distances = []
    for position, alpha in enumerate(ALPHAS):
        kolmogorov = _kolmogorov(problem, theory.isel(alpha=position), runs.isel(alpha=position))
        for name in ("test_error", "train_loss"):
            exact, found = float(theory[name][position]), runs[name].isel(alpha=position)
            mean, sem = float(found.mean()), float(found.std(ddof=1)) / np.sqrt(seeds)
            distance, allowed = abs(mean - exact), 0.05 * exact + 2 * sem
            flag = "" if distance <= allowed else "  beyond"
            columns = f"{exact:9.5f} {mean:9.5f} {sem:10.5f} {distance / exact:9.2%} {allowed / exact:9.2%}"
            print(f"{alpha:5.2f}  {name:>11} {columns}   {kolmogorov}{flag}", flush=True)
            distances.append(distance / exact)
    return float(np.mean(distances))


def _kolmogorov(problem: asx.RiskMinimization, theory: asx.Result, runs: asx.Result) -> str:
    """Format the Kolmogorov distance of the pooled spectrum from the law, with and without the factor Sigmahat/mhat."""
    law, found = theory.spectrum(), runs.eigenvalues.values.ravel()
    if problem.parameterization == "full":
        return f"{law.kolmogorov_distance(found):10.4f}            -"
    values = np.sqrt(np.maximum(found, 0))
    return f"{law.kolmogorov_distance(values):10.4f}   {printed_law(law).kolmogorov_distance(values):10.4f}"


def spectra(dim: int, seeds: int, alphas: Sequence[float], picture: str | None) -> None:
    problem = problem_of()
    theory = asx.solve(problem, alpha=alphas, progress=False)
    panels = []
    print(f"\nsingular values at d = {dim}, {seeds} seeds")
    print("alpha     seconds   rank theory   rank Adam   test theory   test Adam   Kolmogorov   as printed")
    for position, alpha in enumerate(alphas):
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", asx.ConvergenceWarning)
            runs = asx.simulate(problem, asx.Adam(steps=1500), alpha=alpha, dim=dim, seeds=seeds, progress=False)
        point = theory.isel(alpha=position)
        kolmogorov = _kolmogorov(problem, point, runs)
        columns = f"{float(point.rank):12.4f} {float(runs['rank'].mean()):11.4f}"
        errors = f"{float(point.test_error):13.5f} {float(runs.test_error.mean()):11.5f}"
        print(f"{alpha:5.2f} {time.perf_counter() - start:10.1f} {columns} {errors}   {kolmogorov}", flush=True)
        panels.append((alpha, point.spectrum(), np.sqrt(np.maximum(runs.eigenvalues.values.ravel(), 0))))
    if picture:
        _draw(panels, dim, picture)


def _draw(panels: list, dim: int, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.8), constrained_layout=True)
    for axis, (alpha, law, values) in zip(np.atleast_1d(axes), panels, strict=True):
        law.plot(histogram=values, ax=axis)
        axis.set_title(rf"$\alpha$ = {alpha:g}")
    figure.suptitle(f"Singular values of the trained weights at d = {dim} and the exact law")
    figure.savefig(path, dpi=130)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--spectra", action="store_true", help="the spectra at d = 200 instead")
    parser.add_argument("--dim", type=int, default=200, help="size for --spectra")
    parser.add_argument("--picture", help="file for the picture of --spectra")
    options = parser.parse_args(argv)
    print(f"{jax.default_backend()}: {jax.devices()[0].device_kind}, JAX {jax.__version__}")
    if options.spectra:
        spectra(options.dim, min(options.seeds, 2), (0.05, 0.5, 4.0, 40.0), options.picture)
        return
    small, large = (gaps(problem_of(), dim, options.seeds, "two tokens, factorised") for dim in (50, 100))
    print(f"\nmean relative distance: {small:.2%} at d = 50, {large:.2%} at d = 100")
    gaps(problem_of(parameterization="full"), 60, options.seeds, "two tokens, full matrix")
    gaps(problem_of(tokens=3), 60, options.seeds, "three tokens, factorised")


if __name__ == "__main__":
    main()
