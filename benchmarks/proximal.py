"""Time of the loss averages of state evolution: scipy.optimize.minimize per sample against this package.

The baseline is the method of the literature: for every sample of (z0, z), a BFGS minimisation in the three normalised
entries of the two-token pre-activation, started at z0 + 1e-2 N(0, 1), with gradients by differences. It is timed on a
part of the samples. Our method is the averages of SquaredSoftmax on some 23,000 nodes, including the sums: warm, from
the proximal points of a nearby state, as in an iteration of state evolution; and cold, from all starts.

    python benchmarks/proximal.py            about ten seconds

Everything runs in this process on one core; times are CPU seconds.
"""

from __future__ import annotations

import math
import os
import platform
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import numpy as np
from scipy.optimize import minimize

from asymptotix.attention_index.loss.loss_average import SquaredSoftmax
from asymptotix.attention_index.loss.proximal import proximal_points
from asymptotix.attention_index.loss.visible_directions import visible_basis

SIGNAL = 1.75
# fixed points at weight decay 0.01, noise 0.5 and a Marchenko-Pastur target with kappa0 = 0.5: alpha, m, q, Sigma
STATES = ((4.0, 1.32874, 1.19449, 0.154686), (0.5, 1.38096, 1.46239, 2.30335), (0.2, 1.07399, 1.10262, 11.0634))
BASELINE_SAMPLES = 200
REPEATS = 5


def softmax_of_entries(z: np.ndarray) -> np.ndarray:
    h = np.array([[math.sqrt(2) * z[0], z[1]], [z[1], math.sqrt(2) * z[2]]])
    A = np.exp(h - h.max(axis=1, keepdims=True))
    return A / A.sum(axis=1, keepdims=True)


def baseline(z0: np.ndarray, z: np.ndarray, Sigma: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return minimisers and minima, computed one sample after the other."""
    points, values = [], []
    for target, field in zip(z0, z, strict=True):
        y = softmax_of_entries(target)

        def objective(h, y=y, field=field):
            return np.sum((h - field) ** 2) / (2 * Sigma) + np.sum((y - softmax_of_entries(h)) ** 2)

        end = minimize(objective, target + 1e-2 * rng.standard_normal(3))
        points.append(end.x)
        values.append(end.fun)
    return np.array(points), np.array(values)


def minima(z0: np.ndarray, z: np.ndarray, p: np.ndarray, Sigma: float) -> np.ndarray:
    losses = [np.sum((softmax_of_entries(a) - softmax_of_entries(b)) ** 2) for a, b in zip(z0, p, strict=True)]
    return np.sum((p - z) ** 2, axis=1) / (2 * Sigma) + losses


def seconds(compute) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        compute()
        times.append(time.process_time() - start)
    return min(times)


def ours(m: float, q: float, Sigma: float) -> tuple[int, float, float]:
    """Return the number of nodes, and the CPU seconds of a warm and of a cold evaluation."""
    average = SquaredSoftmax(2, 1.0, 1.0)
    _, pull = average.evaluate(SIGNAL, m, q, Sigma, multi_start=True)
    nudges = iter(1.01 ** np.arange(1, 100))

    def warm() -> None:
        nonlocal pull
        scale, near = next(nudges), pull.points
        _, pull = average.evaluate(SIGNAL, m * scale, q * scale**2, Sigma * scale, multi_start=False, near=near)

    def cold() -> None:
        average(SIGNAL, m, q, Sigma, multi_start=True)

    return len(average.weights), seconds(warm), seconds(cold)


def compare(alpha: float, m: float, q: float, Sigma: float) -> None:
    rng = np.random.default_rng(0)
    E = visible_basis(2)
    z0 = math.sqrt(SIGNAL) * rng.normal(size=(BASELINE_SAMPLES, 3))
    z = m / SIGNAL * z0 + math.sqrt(q - m * m / SIGNAL) * rng.normal(size=z0.shape)
    start = time.process_time()
    points, values = baseline(z0, z, Sigma, rng)
    slow = (time.process_time() - start) / BASELINE_SAMPLES
    p, _ = proximal_points(2, 1.0, 1.0, z0 @ E, z @ E, Sigma)
    p = p @ E.T + (z - z @ E @ E.T)  # along the invisible direction p = z
    excess = values - minima(z0, z, p, Sigma)
    count, warm, cold = ours(m, q, Sigma)
    print(f"\nalpha = {alpha:g}, Sigma = {Sigma:g}, {count:,} nodes")
    print(f"{'':32}{'s / evaluation':>16}{'baseline / it':>15}")
    for name, time_taken in (
        ("baseline (scipy, scaled up)", slow * count),
        ("ours, cold, all starts", cold),
        ("ours, warm", warm),
    ):
        print(f"{name:32}{time_taken:16.4g}{slow * count / time_taken:15,.0f}")
    print(
        f"scipy's objective less ours: {excess.min():.1e} to {excess.max():.1e}; max |dp| = {abs(points - p).max():.1e}"
    )


def main() -> None:
    print(f"{platform.machine()}, Python {platform.python_version()}, one core; scipy on {BASELINE_SAMPLES} samples")
    for state in STATES:
        compare(*state)


if __name__ == "__main__":
    main()
