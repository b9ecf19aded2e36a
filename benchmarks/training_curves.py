"""Training at random alphas and weight decays: does every point converge, and do the points lie on a smooth curve?

    python benchmarks/training_curves.py [points]

For several tasks, half of the points are at one decay and random alphas, half at one alpha and random decays. Points
that did not converge are listed. Every other point is compared with the cubic through its four neighbours, as a
function of the log of alpha or decay. It is listed if its distance exceeds three errors (its own and its neighbours')
plus the error of the cubic, estimated by the difference to quadratics through three neighbours, at the point and next
to it. For errors as small as 1e-9 the result depends on how densely the points lie; third differences of close points
are then the better test.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import asymptotix as asx

NAMES = ("test_error", "estimation_error", "train_loss", "rank")

TASKS = {
    "two tokens": asx.AttentionIndex(noise=0.5),
    "two tokens, atoms, little noise": asx.AttentionIndex(
        target=asx.Atoms((0.0, 1.0, 2.0), (0.5, 0.3, 0.2)), noise=0.05
    ),
    "linear": asx.AttentionIndex(activation="linear", noise=0.5),
    "three tokens": asx.AttentionIndex(tokens=3, target=asx.PowerLaw(2.5), noise=0.5),
}


def interpolated(x: np.ndarray, y: np.ndarray, at: float) -> tuple[float, np.ndarray]:
    """Return the value at ``at`` of the polynomial through the points, and the weights of the points."""
    weights = np.array([np.prod([(at - b) / (a - b) for b in x if b != a]) for a in x])
    return float(weights @ y), weights


def off_the_curve(x: np.ndarray, y: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return each point's distance from its neighbours' cubic, divided by three errors plus the error of the cubic."""
    distance, noise, left_out = np.zeros((3, len(x)))
    for k in range(2, len(x) - 2):
        around = np.array([k - 2, k - 1, k + 1, k + 2])
        cubic, weights = interpolated(x[around], y[around], x[k])
        quadratics = [interpolated(x[three], y[three], x[k])[0] for three in (around[:3], around[1:])]
        left_out[k] = max(abs(cubic - quadratic) for quadratic in quadratics)
        distance[k] = abs(y[k] - cubic)
        noise[k] = np.hypot(error[k], np.linalg.norm(weights * error[around]))
    # the quadratics may agree with the cubic by chance at one point, but rarely also at both of its neighbours
    nearby = np.max([left_out, np.roll(left_out, 1), np.roll(left_out, -1)], axis=0)
    return distance / (3 * noise + nearby + 1e-9 * abs(y) + np.finfo(float).tiny)


def curve(label: str, problems: list[tuple[asx.RiskMinimization, float]], x: np.ndarray) -> tuple[int, int, int]:
    """Solve along a curve; return the numbers of points, of unconverged points, and of points off the curve."""
    results = [asx.solve(problem, alpha=alpha, progress=False).ds for problem, alpha in problems]
    good = np.array([bool(ds["converged"].item()) for ds in results])
    for place, ds in zip(x[~good], [ds for ds, fine in zip(results, good, strict=True) if not fine], strict=True):
        print(f"  {label} at {np.exp(place):.5g}: {ds['status'].item()}")
    off: set[int] = set()
    for name in NAMES:
        y = np.array([float(ds[name]) for ds in results])[good]
        error = np.array([float(ds[f"{name}_err"]) for ds in results])[good]
        for k in np.flatnonzero(off_the_curve(x[good], y, error) > 1):
            off.add(int(k))
            print(f"  {label}, {name} at {np.exp(x[good][k]):.5g}: {y[k]:.6g} +- {error[k]:.1g} is off the curve")
    return len(x), int((~good).sum()), len(off)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    rng, each = np.random.default_rng(20), max(count // (2 * len(TASKS)), 8)
    for name, task in TASKS.items():
        begun = time.perf_counter()
        alphas = np.sort(rng.uniform(np.log(0.05), np.log(5.0), each))
        decays = np.sort(rng.uniform(np.log(3e-3), np.log(0.5), each))
        over_alpha = [(asx.RiskMinimization(task, weight_decay=0.02), float(np.exp(x))) for x in alphas]
        over_decay = [(asx.RiskMinimization(task, weight_decay=float(np.exp(x))), 1.0) for x in decays]
        found = [curve(f"{name}, alpha", over_alpha, alphas), curve(f"{name}, decay", over_decay, decays)]
        points, open_ones, off = (sum(column) for column in zip(*found, strict=True))
        seconds = time.perf_counter() - begun
        print(f"{name}: {points} points, {open_ones} not converged, {off} off the curve, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
