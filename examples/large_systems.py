"""Message passing approaches the theory as the dimension grows: two attention layers at alpha = 0.9.

    python examples/large_systems.py [dims ...]

The default is dim = 250, 500, 1000 with 8 seeds each, a few minutes on two cores. On a GPU with 140 GB, dims up to
100,000 take 20 to 80 s a run. Each size is printed as it ends. The picture is large_systems.png in the current folder.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import asymptotix as asx

ALPHA, COLOURS = 0.9, ("#d55e00", "#0072b2")


def draw(dims: np.ndarray, found: list[np.ndarray], theory: np.ndarray, path: Path) -> None:
    """Draw the mean distance of the overlaps (seeds, 2) from theory, with its standard error, against the dimension."""
    title = f"Message passing against state evolution, two attention layers, alpha = {ALPHA:g}"
    with asx.plot.style():
        figure, axis = plt.subplots(figsize=(7.5, 4.6))
        axis.set_title(title, fontsize=10)
        for layer, colour in enumerate(COLOURS):
            distances = [abs(q[:, layer] - theory[layer]) for q in found]
            mean = np.array([d.mean() for d in distances])
            error = [d.std(ddof=1) / np.sqrt(len(d)) for d in distances]
            axis.errorbar(dims, mean, error, fmt="o", capsize=3, color=colour, label=f"layer {layer + 1}")
            guide = np.exp(np.mean(np.log(mean * np.sqrt(dims))))
            axis.plot(dims, guide / np.sqrt(dims), lw=1, ls="--", color=colour, label=rf"${guide:.2g}\,D^{{-1/2}}$")
        axis.set(xscale="log", yscale="log", xlabel="dimension $D$", ylabel=r"mean $|q_l - Q_{ll}|$ over seeds")
        axis.grid(alpha=0.25, which="both")
        axis.legend(frameon=True, framealpha=0.9)
        figure.savefig(path, dpi=150)


def main(dims: tuple[int, ...] = (250, 500, 1000), seeds: int = 8) -> None:
    problem = asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2))
    theory = np.diag(asx.solve(problem, alpha=ALPHA, tolerance=1e-3).overlap.values.reshape(2, 2))
    found = []
    for dim in dims:
        runs = asx.simulate(problem, asx.GAMP(), alpha=ALPHA, dim=dim, seeds=seeds)
        q = np.einsum("sii->si", runs.overlap.values.reshape(-1, 2, 2))
        found.append(q)
        distance = abs(q - theory)
        print(f"D = {dim}: |q - Q| = {distance[:, 0].mean():.4f} (layer 1), {distance[:, 1].mean():.5f} (layer 2)")
    draw(np.array(dims), found, theory, Path("large_systems.png"))


if __name__ == "__main__":
    main(dims=tuple(map(int, sys.argv[1:])) or (250, 500, 1000))
