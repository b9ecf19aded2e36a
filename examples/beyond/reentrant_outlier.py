"""An outlier appears, disappears where noisy data can just be interpolated, and reappears: theory and experiment.

S is the matrix of least norm, or of least squares, for outputs of one linear token. The argument is the dimension d:
``python reentrant_outlier.py 120``.
"""

import sys

import numpy as np

import asymptotix as asx


def overlap(target: np.ndarray, share: float, rng: np.random.Generator) -> float:
    """Return the largest squared overlap of a learned direction with the spike, ``share`` samples per entry of S."""
    dim = len(target)
    upper = np.triu_indices(dim)
    weight = np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0))  # coordinates in which |S|_F is the norm
    x = rng.normal(size=(round(share * len(weight)), dim))
    design = (x[:, upper[0]] * x[:, upper[1]] - (upper[0] == upper[1])) * weight / np.sqrt(dim)
    outputs = (x**2 - 1) @ target / np.sqrt(dim) + rng.normal(size=len(x))
    S = np.zeros((dim, dim))
    if share < 1:
        S[upper] = design.T @ np.linalg.solve(design @ design.T, outputs) / weight
    else:
        S[upper] = np.linalg.solve(design.T @ design, design.T @ outputs) / weight
    return float((np.linalg.eigh(S + np.triu(S, 1).T)[1][-1] ** 2).max())


dim, rng = int(sys.argv[1]) if len(sys.argv) > 1 else 56, np.random.default_rng(0)
law = asx.Spiked(asx.MarchenkoPastur(0.5), (6.0,), dim=dim)
task = asx.AttentionIndex(tokens=1, target=law, noise=1.0, activation="linear")
problem = asx.RiskMinimization(task, weight_decay=0.0, parameterization="full")
limits = asx.thresholds(problem, progress=False)
window = [2 * limits[name].item() for name in ("outlier", "outlier_until", "outlier_again")]
print("samples per entry of S at which it is visible: {:.3f} to {:.3f}, and from {:.3f} on".format(*window))
for share in (0.6, 0.9, 0.95, 0.98, 1.1, 1.5):
    runs = [overlap(law.eigenvalues(dim), share, rng) for _ in range(6)]
    theory = asx.solve(problem, alpha=share / 2, progress=False).outliers().overlap.item()
    print(f"{share:5.2f}  theory {theory:.3f}  measured {np.mean(runs):.3f} ({np.std(runs) / np.sqrt(6):.3f})")
