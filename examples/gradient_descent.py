"""Gradient descent with batch reuse on two attention layers: layer 2 is learned first, layer 1 much later.

    python examples/gradient_descent.py [epochs] [dim]

This is the experiment of Troiani et al., arXiv:2502.00901, Fig. 2 (bottom). At the published size (1700 epochs,
dim 500) it takes a quarter of an hour on two cores and 20 s on a GPU. The picture is gradient_descent.png in the
current folder.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

import asymptotix as asx

COLOURS = {"layer 1": "#d55e00", "layer 2": "#0072b2"}


def draw(ds: xr.Dataset, alpha: float, path: Path) -> None:
    """Draw the cosine of every layer with the teacher's, one thin line per seed, the mean as a thick line."""
    size = f"D={int(ds.dim)}, alpha={alpha:g}, {ds.sizes['seed']} seeds"
    title = f"Gradient descent with batch reuse on two attention layers, {size}"
    with asx.plot.style():
        figure, axis = plt.subplots(figsize=(8.5, 4.6))
        axis.set_title(title, fontsize=10)
        for index, (label, colour) in enumerate(COLOURS.items()):
            cosine, steps = abs(ds.cosine_trace.isel(index=index)), ds.step_trace.isel(seed=0)
            for seed in range(ds.sizes["seed"]):
                axis.plot(steps, cosine.isel(seed=seed), lw=0.7, alpha=0.45, color=colour)
            axis.plot(steps, cosine.mean("seed"), lw=2.2, color=colour, label=f"{label}, mean over seeds")
        axis.axhline(0.5, ls=":", lw=1, color="0.4")
        axis.set(xscale="log", xlabel="gradient steps (three on each batch)", ylabel=r"$|\cos(w_l, w_l^*)|$")
        axis.set_ylim(0, 1.02)
        axis.grid(alpha=0.25)
        axis.legend(loc="lower right", frameon=True, framealpha=0.9)
        figure.savefig(path, dpi=150)


def main(epochs: int = 100, dim: int = 500) -> None:
    alpha = 15.0
    problem = asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2, rank=1, skip=1.0))
    runs = asx.simulate(problem, asx.SGD(epochs=epochs), alpha=alpha, dim=dim, seeds=8)
    for layer in (1, 0):
        passage = runs.first_passage.isel(index=layer).values
        cosine = abs(runs.cosine.isel(index=layer))
        spread = float(cosine.std("seed", ddof=1)) / np.sqrt(runs.ds.sizes["seed"])
        print(f"layer {layer + 1}: cosine {float(cosine.mean()):.3f} ± {spread:.3f}; ", end="")
        print(f"above 1/2 after {np.nanmin(passage):.0f} to {np.nanmax(passage):.0f} batches, "
              f"{np.isnan(passage).sum()} of {len(passage)} not yet")  # fmt: skip
    draw(runs.ds, alpha, Path("gradient_descent.png"))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
