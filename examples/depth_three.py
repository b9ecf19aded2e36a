"""Three attention layers: the last is learned first, then the first, then the second.

    python examples/depth_three.py

Computes the learning curve and the threshold of every layer, and message passing in which layers enter in that order.
It takes half an hour on two cores. Results are stored in the current folder, in depth_three_theory.nc,
depth_three_gamp.nc and depth_three_thresholds.nc, so that an interrupted run resumes when it is called again. Delete
these files to start again. The picture is depth_three.png.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

import asymptotix as asx

ALPHAS = (0.2, 0.22, 0.25, 0.3, 0.4, 0.6, 0.9, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.45, 1.55, 1.8)
COLOURS = ("#d55e00", "#009e73", "#0072b2")


def draw_curve(axis, theory: xr.Dataset, limits: xr.Dataset) -> None:
    """Draw the overlap of every layer from the uninformed start, with numerical errors, and its threshold."""
    for layer, colour in enumerate(COLOURS):
        q, error = (theory[name].isel(index=layer, index_other=layer) for name in ("overlap", "overlap_err"))
        axis.errorbar(theory.alpha, q, error, fmt="o-", ms=4, capsize=2, color=colour, label=f"layer {layer + 1}")
        start, spread = float(limits.weak_recovery[layer]), float(limits.weak_recovery_err[layer])
        axis.axvspan(start - spread, start + spread, color=colour, alpha=0.25)
        axis.axvline(start, color=colour, ls=":", lw=1)
    axis.axvline(float(limits.exact_recovery), color="0.3", ls="--", lw=1, label="exact recovery")
    axis.set(xlabel=r"samples per dimension $\alpha$", ylabel="overlap $q_l$, state evolution", ylim=(-0.02, 1.04))


def draw_run(axis, runs: xr.Dataset, theory: xr.Dataset) -> None:
    """Draw overlaps along message passing, one thin line per seed, and the fixed point of state evolution."""
    ends = theory.overlap.sel(alpha=float(runs.alpha)).values
    for layer, colour in enumerate(COLOURS):
        trace = runs.overlap_trace.isel(index=layer, index_other=layer)
        for seed in range(trace.sizes["seed"]):
            axis.plot(np.arange(1, trace.sizes["iteration"] + 1), trace.isel(seed=seed), lw=1.2, color=colour)
        axis.axhline(ends[layer, layer], color=colour, ls="--", lw=1)
    stages = np.flatnonzero(np.diff(runs.stage_trace.isel(seed=0).values)) + 1.5
    for start in stages:
        axis.axvline(start, color="0.6", lw=0.8, ls=":")
    size = rf"$\alpha = {float(runs.alpha):g}$, $D = {int(runs.dim)}$"
    axis.set(xlabel="iteration", ylabel="overlap $q_l$, message passing", ylim=(-0.02, 1.04))
    axis.set_title(f"{size}; dashed: state evolution", fontsize=10)


def kept(path: Path) -> Path | None:
    return path if path.exists() else None


def keep(result: asx.Result, path: Path, parts: bool = True) -> None:
    """Save a result; an interrupted one is saved only if its ``parts`` can be used, and ends the program."""
    if parts or result.finished:
        result.save(path)
    if not result.finished:
        raise SystemExit("interrupted; called again it goes on from here")


def main(alphas=ALPHAS, tolerance=0.01, alpha=1.4, dim=600, seeds=3, iterations=120) -> None:
    problem = asx.BayesOptimal(asx.DeepAttention(layers=3, tokens=2))
    names = [Path(f"depth_three_{what}.nc") for what in ("theory", "gamp", "thresholds")]
    theory = asx.solve(problem, alpha=sorted({*alphas, alpha}), tolerance=tolerance, resume=kept(names[0]))
    keep(theory, names[0])
    runs = asx.simulate(
        problem, asx.GAMP(iterations=iterations), alpha=alpha, dim=dim, seeds=seeds, resume=kept(names[1])
    )
    keep(runs, names[1])
    if not names[2].exists():
        keep(asx.thresholds(problem, tolerance=tolerance), names[2], parts=False)
    limits = asx.load(names[2])
    for row, name in enumerate(limits.index_label.values):
        start, expected = limits.ds.isel(index=row), theory.overlap.sel(alpha=alpha)[row, row]
        found = runs.overlap.isel(index=row, index_other=row)
        error = float(found.std(ddof=1)) / np.sqrt(seeds)
        print(f"{name}: starts at {float(start.weak_recovery):.4f} ± {float(start.weak_recovery_err):.4f}", end="; ")
        print(f"at alpha = {alpha:g} {float(expected):.3f}, message passing {float(found.mean()):.3f} ± {error:.3f}")
    with asx.plot.style():
        figure, axes = plt.subplots(1, 2, figsize=(12, 4.6), width_ratios=[1.25, 1.0])
        figure.suptitle("Three attention layers, two tokens")
        draw_curve(axes[0], theory.ds, limits.ds)
        draw_run(axes[1], runs.ds, theory.ds)
        axes[0].legend(loc="center", bbox_to_anchor=(0.36, 0.5), frameon=True, framealpha=0.9)
        figure.savefig("depth_three.png", dpi=150)


if __name__ == "__main__":
    main()
