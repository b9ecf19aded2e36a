"""Errors of training fall as powers of the number of samples; the power depends on noise and weight decay.

    python examples/beyond/exponents.py

The target has eigenvalues s_k ~ k^-gamma at d = 10^6; attention is linear with one token. With noise and the best
weight decay the error falls as n^-(1 - 1/(2 gamma)), without noise and decay as n^-(2 gamma - 1), and with a large
decay as n^-(2 - 1/gamma).
"""

import numpy as np

import asymptotix as asx

DIM = 10**6


def local_slopes(gamma: float, noise: float, decay: str) -> np.ndarray:
    """Return exponents between neighbouring n/d over two decades: 10^2 to 10^4, or with weight decay 10^4 to 10^6."""
    target = asx.RankedPowerLaw(gamma, DIM)
    task = asx.AttentionIndex(target=target, tokens=1, activation="linear", noise=noise)
    samples = np.geomspace(1e2, 1e4, 7) if decay == "none" else np.geomspace(1e4, 1e6, 7)
    errors = []
    for alpha in 0.5 * samples / DIM:
        strength = {"none": 0.0, "best": np.sqrt(16 * noise * alpha), "large": 1.0}[decay]
        point = asx.solve(asx.RiskMinimization(task, weight_decay=strength), alpha=alpha, progress=False)
        errors.append(float(point.estimation_error))
    return np.diff(np.log(errors)) / np.diff(np.log(samples))


def main() -> None:
    for gamma in (0.75, 1.0, 1.5):
        predicted = {"best": -(1 - 0.5 / gamma), "none": -(2 * gamma - 1), "large": -(2 - 1 / gamma)}
        for decay, noise in (("best", 0.5), ("none", 0.0), ("large", 0.0)):
            found = local_slopes(gamma, noise, decay)
            words = f"gamma = {gamma:<4g}, noise {noise:g}, weight decay {decay:5s}"
            print(f"{words}: predicted {predicted[decay]:.3f}, found {found.min():.3f} to {found.max():.3f}")


if __name__ == "__main__":
    main()
