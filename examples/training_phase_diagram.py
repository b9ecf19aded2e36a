"""The phase diagram of training attention: samples x weight decay x rank of the target, 2000 points of theory.

    python examples/training_phase_diagram.py [store workers]

Single-head attention on two tokens with noise 1/2, trained with weight decay (Boncoraglio et al., arXiv:2509.24914).
Results are stored in the folder `store`: after an interruption the same command resumes. The picture is
training_phase_diagram.png in the current folder.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np

import asymptotix as asx

SHOWN = {"test_error": r"test error  $E\|y-A\|_F^2$", "rank": r"rank of the learned $S$, over $d$"}


def draw(maps: asx.Result, limits: asx.Result, path: str) -> None:
    """Draw one column per rank of the target, with the test error above and the rank of the learned S below."""
    ranks = maps.kappa0.values
    with asx.plot.style():
        figure, axes = plt.subplots(2, len(ranks), figsize=(3.1 * len(ranks) + 1, 6.4), sharex=True, sharey=True)
        for row, (name, label) in zip(axes.reshape(2, -1), SHOWN.items(), strict=True):
            shades = {"vmin": float(maps[name].min()), "vmax": float(maps[name].max()), "rasterized": True}
            for axis, rank in zip(row, ranks, strict=True):
                here = maps.ds.sel(kappa0=rank)
                image = axis.pcolormesh(here.alpha, here.weight_decay, here[name], shading="nearest", **shades)
                best = here.test_error.idxmin("weight_decay")
                axis.plot(best.alpha, best, color="white", lw=1.6, label="best weight decay of the grid")
                where = float(limits.interpolation.sel(kappa0=rank))
                axis.axvline(where, color="red", ls="--", lw=1.4, label="interpolation threshold")
                poor = here.where(~here.converged).stack(point=("weight_decay", "alpha")).dropna("point", how="all")
                axis.plot(poor.alpha, poor.weight_decay, "kx", ms=4, label="not converged")
                axis.set(xscale="log", yscale="log")
                axis.grid(visible=False)
            row[0].set_ylabel(r"weight decay  $\lambda$")
            figure.colorbar(image, ax=row, label=label)
        for axis, rank in zip(axes.reshape(2, -1)[0], ranks, strict=True):
            axis.set_title(rf"rank of the target  $\kappa_0 = {rank:g}$", fontsize=10)
        for axis in axes.reshape(2, -1)[1]:
            axis.set_xlabel(r"samples  $\alpha = n/d^2$")
        axes.reshape(2, -1)[0, 0].legend(fontsize=7.5, labelcolor="white", facecolor="0.3", frameon=True)
        figure.savefig(path, dpi=130)


def main(store: str = "training_phase_diagram", workers: int = 2, points: int = 20, ranks: int = 5) -> None:
    problem = asx.RiskMinimization(asx.AttentionIndex(tokens=2, noise=0.5))
    kappas = np.round(np.geomspace(0.1, 1.0, ranks), 3)
    grid = {"kappa0": kappas, "weight_decay": np.geomspace(1e-3, 3.0, points), "alpha": np.geomspace(0.05, 5.0, points)}
    maps = asx.sweep(problem, over=grid, store=store, executor=workers)
    limits = asx.sweep(problem, over={"kappa0": kappas}, thresholds=True, store=store)
    print(asx.sweep_status(store))
    draw(maps, limits, "training_phase_diagram.png")


if __name__ == "__main__":  # workers import this file
    main(sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 2 else main()
