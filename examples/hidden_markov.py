"""Why a narrow network beats its Gaussian process: accuracy, order parameter and alignment on hidden Markov chains.

    python examples/hidden_markov.py [tasks] [draws]

This is the experiment of Tiberi et al., arXiv:2405.15926, Fig. 2, as means over several draws of the task. With 8 draws
of the task, each sampled 400 times at five widths, it takes about five minutes on two cores. The picture is
hidden_markov.png in the current folder.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

import asymptotix as asx

NAMES = {"1-1": "good", "1-2": "adversarial", "2-1": "denoising", "2-2": "adversarial'"}
NARROW = 10.0
BLUE, ORANGE = asx.plot.PALETTE[:2]


def one_task(seed: int, widths: list[float], draws: int) -> xr.Dataset:
    """Compute theory and exact sampling for one draw of the task; the first index says which of the two."""
    data = asx.tasks.hidden_markov(examples=100, seed=seed)
    problem = asx.PathPosterior(data.network, data.inputs, data.labels, temperature=0.01)
    theory = asx.solve(problem, width=[*widths, np.inf], progress=False)
    runs = asx.simulate(problem, asx.NUTS(warmup=150, draws=draws), width=widths, seeds=[seed], progress=False)
    fresh = data.test_inputs, data.test_labels
    both = [(theory, theory.evaluate(*fresh)), (runs.isel(seed=0), runs.isel(seed=0).evaluate(*fresh))]
    found = [
        xr.Dataset({"accuracy": 100 * right.accuracy, "U": part.order_parameter}).drop_vars("seed", errors="ignore")
        for part, right in both
    ]
    together = xr.concat(found, xr.IndexVariable("by", ["theory", "exact sampling"]), join="outer")
    return together.assign(alignment=theory.alignment(20))


def accuracy_panel(ax: Axes, accuracy: xr.DataArray) -> None:
    mean, error = accuracy.mean("task"), accuracy.std("task", ddof=1) / np.sqrt(accuracy.sizes["task"])
    finite = np.isfinite(mean.width)
    curve, spread = (x.sel(by="theory")[finite.values] for x in (mean, error))
    ax.plot(curve.width, curve, color=ORANGE, label="theory")
    ax.fill_between(curve.width, curve - spread, curve + spread, color=ORANGE, alpha=0.2)
    points, spread = (x.sel(by="exact sampling")[finite.values] for x in (mean, error))
    ax.errorbar(points.width, points, spread, fmt="o", capsize=3, color=BLUE, label="exact sampling (NUTS)")
    ax.axhline(float(mean.sel(by="theory", width=np.inf)), ls="--", color="0.35", label="Gaussian process, $N=\\infty$")
    ax.set(xscale="log", xlabel="width  $N$", ylabel="accuracy on fresh chains (%)", title="narrow is better")
    ax.legend()


def matrix_panel(ax: Axes, U: xr.DataArray, title: str) -> None:
    mean = U.mean("task")
    reach = float(abs(mean).max())
    ax.imshow(mean, cmap=asx.plot.SIGNED_COLOURS, vmin=-reach, vmax=reach)
    ax.grid(visible=False)
    for (i, j), value in np.ndenumerate(mean.values):
        color = "white" if abs(value) > 0.55 * reach else "black"
        ax.text(j, i, f"{value:.1f}", ha="center", va="center", color=color)
    paths = [f"{path}\n{NAMES[path]}" for path in mean.path.values]
    ax.set_xticks(range(4), paths, fontsize=9)
    ax.set_yticks(range(4), paths, fontsize=9)
    ax.set_title(title)


def main(tasks: int = 8, draws: int = 400, *, widths: tuple[float, ...] = (NARROW, 30, 100, 300, 1000)) -> None:
    found = xr.concat([one_task(seed, list(widths), draws) for seed in range(tasks)], "task")
    with asx.plot.style():
        figure, axes = plt.subplots(2, 2, figsize=(9, 7.6))
        accuracy_panel(axes[0, 0], found.accuracy)
        for ax, by in zip(axes[:, 1], found.by.values, strict=True):
            matrix_panel(ax, found.U.sel(by=by, width=NARROW), f"order parameter, $N={NARROW:g}$: {by}")
        for width, color in ((np.inf, "0.35"), (NARROW, ORANGE)):
            mean = found.alignment.sel(width=width).mean("task")
            name = "$N=\\infty$" if np.isinf(width) else f"$N={width:g}$"
            axes[1, 0].plot(np.arange(1, mean.size + 1), mean, "o-", color=color, label=f"theory, {name}")
        axes[1, 0].set(xlabel="principal component of the kernel", ylabel="its overlap with the labels")
        axes[1, 0].set(ylim=(0, None), title="the kernel aligns with the task")
        axes[1, 0].legend()
        figure.savefig(Path("hidden_markov.png"), dpi=150)
    for by, U in found.U.sel(width=NARROW).mean("task").groupby("by"):
        print(f"{by}: U of the good path {float(U.squeeze().sel(path='1-1', path_other='1-1')):.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
