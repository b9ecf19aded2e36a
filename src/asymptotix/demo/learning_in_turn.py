"""The main job, end to end: theory against message passing for two layers of attention, as a table and a picture.

The model and the curves are those of Troiani et al., arXiv:2502.00901, Fig. 1 (left).
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .drawing import panels

if TYPE_CHECKING:
    from ..core.result import Result

PICTURE = "two_layers.png"


def main(out: Path, quick: bool = False) -> None:
    """Solve, find the thresholds, simulate, compare; print the table and write picture and results to ``out``."""
    import asymptotix as asx

    out.mkdir(parents=True, exist_ok=True)
    problem = asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2, rank=1, skip=1.0))
    simulated = [0.4, 0.6, 1.2] if quick else [0.4, 0.6, 0.95, 1.2]
    below = [0.1, 0.18, 0.22, 0.26, 0.3, 0.45, 0.5, 0.65, 0.71]
    curve = sorted({*simulated, *below, 0.75, 0.8, 0.87, 0.98, 1.02, 1.4})
    print("Bayes-optimal learning of two attention layers (two tokens, rank one, skip 1), n = alpha D samples\n")
    theory = asx.solve(problem, alpha=curve, tolerance=1e-2)
    limits = asx.thresholds(problem, tolerance=3e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", asx.ConvergenceWarning)  # the table below shows every status
        algorithm, dim, seeds = asx.GAMP(iterations=40), (400 if quick else 600), (3 if quick else 4)
        runs = asx.simulate(problem, algorithm, alpha=simulated, dim=dim, seeds=seeds)
    comparison = asx.compare(theory, runs)
    _print_thresholds(limits)
    print(f"\nTheory (D = infinity) against message passing at D = {dim}, {seeds} seeds, mean and standard error:\n")
    print(comparison.table())
    draw(theory, runs, limits, out / PICTURE)
    for name, result in (("theory", theory), ("runs", runs), ("thresholds", limits)):
        result.save(out / f"{name}.nc")
    print("\nJust above a threshold small systems lag behind theory; the gap closes with D (see the README).")
    print(f"Picture: {out / PICTURE}. Results: theory.nc, runs.nc, thresholds.nc beside it, for asx.load.")


def _print_thresholds(limits: Result) -> None:
    layers = zip(limits.weak_recovery.values, limits.weak_recovery_err.values, strict=True)
    print("Thresholds:")
    for layer, (alpha, error) in enumerate(layers, start=1):
        print(f"  layer {layer} is learned above alpha = {alpha:.4f} +- {error:.1g}")
    print(f"  everything is recovered exactly above alpha = {float(limits.exact_recovery):.3f}")


def draw(theory: Result, runs: Result, limits: Result, path: Path) -> None:
    """Overlaps and errors against alpha, theory as lines, message passing as points, thresholds marked."""
    dim, seeds = int(runs.ds["dim"]), runs.ds.sizes["seed"]
    title = (
        f"Two attention layers, Bayes-optimal learning: exact theory (lines), GAMP at D={dim}, "
        f"{seeds} seeds (points, ±1 s.e.m.)"
    )
    colours = {"layer 1": "#d55e00", "layer 2": "#0072b2", "test_error": "#009e73", "plugin_error": "#cc79a7"}
    with panels(path, title, (11.5, 4.6), [1, 1]) as (left, right):
        for index, label in enumerate(("layer 1", "layer 2")):
            pair = {"index": index, "index_other": index}
            _curve(left, theory, runs, "overlap", label, colours[label], pair)
        for name, label in (("test_error", "Bayes (posterior mean)"), ("plugin_error", "plug-in (point estimate)")):
            _curve(right, theory, runs, name, label, colours[name], {})
        left.set_ylabel("overlap with the teacher  $Q_{ll}$")
        right.set_ylabel(r"error on fresh data  $E|y-\hat y|^2$")
        for axis in (left, right):
            axis.set_xlabel(r"samples per dimension  $\alpha = n/D$")
            axis.grid(alpha=0.25)
            axis.set_ylim(top=1.16 * axis.get_ylim()[1])  # room for the names of the thresholds
            _mark(axis, limits, colours)
        left.legend(loc="center right", frameon=True, framealpha=0.9)
        right.legend(loc="upper right", bbox_to_anchor=(1.0, 0.86), frameon=True, framealpha=0.9)


def _curve(axis: Any, theory: Result, runs: Result, name: str, label: str, colour: str, pair: dict[str, int]) -> None:
    alpha, line = theory.ds["alpha"].values, theory.ds[name].isel(pair)
    axis.plot(alpha, line, "-", color=colour, label=f"{label}, theory")
    points = runs.problem.comparable(runs.ds)[name].isel(pair)
    error = points.std("seed", ddof=1) / np.sqrt(points.sizes["seed"])
    axis.errorbar(runs.ds["alpha"].values, points.mean("seed"), error, fmt="o", ms=5, capsize=3, color=colour,
                  label=f"{label}, GAMP")  # fmt: skip


def _mark(axis: Any, limits: Result, colours: dict[str, str]) -> None:
    marks = [(float(limits.weak_recovery[k]), f"layer {k + 1}", colours[f"layer {k + 1}"]) for k in range(2)]
    for alpha, label, colour in [*marks, (float(limits.exact_recovery), "exact", "0.35")]:
        axis.axvline(alpha, ls=":", lw=1.3, color=colour)
        axis.annotate(f"{label}\n{alpha:.3f}", (alpha, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -2),
                      textcoords="offset points", va="top", fontsize=8.5, color=colour)  # fmt: skip
