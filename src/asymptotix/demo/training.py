"""Training of single-head attention: learning curve, learned spectrum and thresholds, theory against Adam."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .drawing import panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..core.result import Result

PICTURE = "training.png"
#: Alpha at which the spectrum is shown.
SPECTRUM_AT = 1.0


def main(out: Path, quick: bool = False) -> None:
    """Solve, train, compare; print the table and write picture and results to ``out``."""
    import asymptotix as asx

    out.mkdir(parents=True, exist_ok=True)
    task = asx.AttentionIndex(tokens=2, target=asx.MarchenkoPastur(0.5), noise=0.5)
    problem = asx.RiskMinimization(task, weight_decay=0.01)
    print("Training one attention layer (two tokens, target of rank d/2, noise 0.5), n = alpha d^2 samples\n")
    theory = asx.solve(problem, alpha=np.geomspace(0.05, 40, 20))
    best = asx.solve(asx.BayesOptimal(task), alpha=np.geomspace(0.05, 40, 20))
    limits = asx.thresholds(problem)
    dim, seeds, alphas = (30 if quick else 60), (2 if quick else 4), [0.2, 0.5, SPECTRUM_AT]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", asx.ConvergenceWarning)  # the table below shows every status
        runs = asx.simulate(problem, asx.Adam(), alpha=alphas, dim=dim, seeds=seeds)
    comparison = asx.compare(theory, runs)
    print(f"Noisy data can be fitted exactly up to alpha = {float(limits.interpolation):.4f}.\n")
    print(f"Theory (d = infinity) against Adam at d = {dim}, {seeds} seeds, mean and standard error:\n")
    print(comparison.table())
    draw(theory, best, runs, limits, out / PICTURE)
    for name, result in (("training_theory", theory), ("training_runs", runs)):
        result.save(out / f"{name}.nc")
    print(f"\nPicture: {out / PICTURE}. Results: training_theory.nc, training_runs.nc beside it, for asx.load.")


def draw(theory: Result, best: Result, runs: Result, limits: Result, path: Path) -> None:
    """Learning curve, spectrum beside a histogram of Adam's, thresholds against the rank of the target."""
    dim, seeds = int(runs.ds["dim"]), runs.ds.sizes["seed"]
    title = f"Training one attention layer: exact theory (lines), Adam at d={dim}, {seeds} seeds (points, ±1 s.e.m.)"
    with panels(path, title, (15.5, 4.6), [1, 1, 1]) as axes:
        _learning_curve(axes[0], theory, best, runs, limits)
        _spectrum(axes[1], runs)
        _thresholds(axes[2])


def _learning_curve(axis: Axes, theory: Result, best: Result, runs: Result, limits: Result) -> None:
    for name, label, colour in (("test_error", "test", "#d55e00"), ("train_error", "training", "#0072b2")):
        axis.plot(theory.alpha, theory[name], "-", color=colour, label=f"{label} error, theory")
        mean, error = runs[name].mean("seed"), runs[name].std("seed", ddof=1) / np.sqrt(runs.ds.sizes["seed"])
        axis.errorbar(runs.alpha, mean, error, fmt="o", ms=5, capsize=3, color=colour, label=f"{label} error, Adam")
    axis.plot(best.alpha, best.test_error, "--", color="0.45", label="Bayes-optimal test error")
    at = float(limits.interpolation)
    axis.axvline(at, ls=":", lw=1.3, color="0.35")
    axis.annotate(f"interpolation\n{at:.3f}", (at, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -2),
                  textcoords="offset points", va="top", fontsize=8.5, color="0.35")  # fmt: skip
    axis.set(xscale="log", xlabel=r"samples  $\alpha = n/d^2$", ylabel=r"error  $E\,\|y-A\|_F^2$", ylim=(0, None))
    axis.grid(alpha=0.25)
    axis.legend(frameon=True, framealpha=0.9, loc="upper right", bbox_to_anchor=(1.0, 0.9))


def _spectrum(axis: Axes, runs: Result) -> None:
    import asymptotix as asx

    found = runs.ds["eigenvalues"].sel(alpha=SPECTRUM_AT, method="nearest").values.ravel()
    law = asx.solve(runs.problem, alpha=SPECTRUM_AT, progress=False).spectrum()
    law.plot(histogram=np.sqrt(np.maximum(found, 0)), ax=axis)
    axis.set_title(rf"singular values of $W/(md)^{{1/4}}$ at $\alpha={SPECTRUM_AT:g}$", fontsize=10.5)


def _thresholds(axis: Axes) -> None:
    import asymptotix as asx

    kappa0, training = np.linspace(0.01, 1.2, 60), asx.RiskMinimization

    def limit(kind: type, name: str, noise: float, **options: Any) -> list[float]:
        models = [asx.AttentionIndex(target=asx.MarchenkoPastur(float(k)), noise=noise) for k in kappa0]
        return [float(asx.thresholds(kind(model, **options), progress=False)[name]) for model in models]

    lines = (
        (
            "exact recovery, symmetric $S$",
            limit(training, "exact_recovery", 0.0, parameterization="full"),
            "-.",
        ),
        ("exact recovery, $S=WW^T$", limit(training, "exact_recovery", 0.0), "-"),
        ("exact recovery, Bayes-optimal", limit(asx.BayesOptimal, "exact_recovery", 0.0), "--"),
        ("interpolation, noise 0.5", limit(training, "interpolation", 0.5), ":"),
    )
    for (label, values, style), colour in zip(lines, ("0.45", "#d55e00", "#009e73", "#0072b2"), strict=True):
        axis.plot(kappa0, values, style, color=colour, label=label)
    axis.set(xlabel=r"rank of the target  $\kappa_0 = m_0/d$", ylabel=r"threshold  $\alpha$", ylim=(0, 0.42))
    axis.grid(alpha=0.25)
    axis.legend(frameon=True, framealpha=0.9, loc="upper left")
