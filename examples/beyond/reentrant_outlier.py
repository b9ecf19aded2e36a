"""An outlier that comes, dissolves where the data can just be interpolated, and comes back: theory and real tokens.

A full symmetric S as the weight decay vanishes, on noisy outputs of one linear token: the S of least norm among those
that fit best. The argument is the dimension: ``python reentrant_outlier.py 120`` takes a few minutes.
"""

import sys

import numpy as np

import asymptotix as asx

NOISE = 1.0


def overlap(target: np.ndarray, share: float, rng: np.random.Generator) -> float:
    """Squared overlap of a learned direction with the spike, for ``share`` of as many samples as S has entries."""
    dim = len(target)
    upper = np.triu_indices(dim)
    weight = np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0))  # coordinates in which |S|_F is the norm
    x = rng.normal(size=(round(share * len(weight)), dim))
    design = (x[:, upper[0]] * x[:, upper[1]] - (upper[0] == upper[1])) * weight / np.sqrt(dim)
    outputs = (x**2 - 1) @ target / np.sqrt(dim) + np.sqrt(NOISE) * rng.normal(size=len(x))
    fits = len(x) < len(weight)  # all outputs: the S of least norm that does; else least squares
    gram = design @ design.T if fits else design.T @ design
    entries = np.linalg.solve(gram, outputs if fits else design.T @ outputs)
    S = np.zeros((dim, dim))
    S[upper] = (design.T @ entries if fits else entries) / weight
    return float((np.linalg.eigh(S + np.triu(S, 1).T)[1][-1] ** 2).max())


def main(dim: int = 56, runs: int = 6) -> None:
    target, rng = asx.Spiked(asx.MarchenkoPastur(0.5), (6.0,), dim=dim), np.random.default_rng(0)
    task = asx.AttentionIndex(tokens=1, target=target, noise=NOISE, activation="linear")
    problem = asx.RiskMinimization(task, weight_decay=0.0, parameterization="full")
    limits = asx.thresholds(problem, progress=False)
    window = [2 * limits[name].item() for name in ("outlier", "outlier_until", "outlier_again")]
    print("visible for samples per entry of S in [{:.3f}, {:.3f}] and from {:.3f} on".format(*window))
    for share in (0.3, 0.6, 0.9, 0.95, 0.98, 1.1, 1.5):
        measured = [overlap(target.eigenvalues(dim), share, rng) for _ in range(runs)]
        theory = asx.solve(problem, alpha=share / 2, progress=False).outliers().overlap.item()
        print(f"{share:5.2f}  theory {theory:.3f}  d = {dim}: {np.mean(measured):.3f} ({np.std(measured) / runs**0.5:.3f})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
