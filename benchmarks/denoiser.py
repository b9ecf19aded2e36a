"""Time of one evaluation of the two-layer denoiser and its Jacobian: generic quadrature against this package.

The baseline computes such denoisers in the usual way: scipy's adaptive quadrature over the square [-3, 3]^2 of the
first layer's indices, with both signs of the last pre-activation. It needs one integral for the normalisation and
one for each of the four posterior means; the Jacobian comes from central differences in the four components of omega.
Our methods give the mean, the covariance (hence the Jacobian) and the evidence in one pass.

    python benchmarks/denoiser.py            about a minute
    python benchmarks/denoiser.py --quick    the baseline at a relative accuracy of 1e-4

Everything runs in this process on one core. Times are CPU seconds; for an accelerator they are wall seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import platform
import time

if hasattr(os, "sched_setaffinity"):  # before JAX counts the cores
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax
import numpy as np
from scipy.integrate import dblquad

from asymptotix.numerics.precision import double_precision
from asymptotix.sequence_index.channels.attention import fixed_grid as grid
from asymptotix.sequence_index.channels.attention.activation_kinds import SOFTMAX
from asymptotix.sequence_index.models import rank_one as attention

SKIP = 1.0
VARIANCES = ((1.0, 0.1), (0.5, 0.02))
BATCH, GPU_BATCH = 1024, 24_000


def draw(v1: float, v2: float, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw u, omega and V of samples from the model at overlap 1 - V."""
    rng = np.random.default_rng(seed)
    V = np.diag([v1, v2])
    omega = np.sqrt(1 - np.diag(V))[:, None] * rng.normal(size=(n, 2, 2))
    Z = omega + np.sqrt(V) @ rng.normal(size=(n, 2, 2))
    return attention.rotated_preactivation(Z, SKIP, "softmax"), omega.reshape(n, 4), V


# --- the baseline -------------------------------------------------------------------------------------------


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def density(zp: float, zm: float, k: int | None, u, omega, v1: float, v2: float) -> float:
    """Return the integrand at z1 = (zm, zp), summed over both signs of u: the weight, or Z_k times the weight."""
    a, b = sigmoid(zm * zm + zm * zp), sigmoid(zm * zm - zm * zp)
    scale = SKIP + a + b - 1
    total = 0.0
    for s in (1.0, -1.0):
        xm = s * u[0] / scale
        xp = (s * u[1] - (a - b) * xm) / (SKIP + 1)
        first = (zm - omega[0]) ** 2 + (zp - omega[1]) ** 2
        second = (xm - omega[2]) ** 2 + (xp - omega[3]) ** 2
        weight = math.exp(-0.5 * first / v1 - 0.5 * second / v2) / (scale * (SKIP + 1))
        total += weight if k is None else weight * (zm, zp, xm, xp)[k]
    return total / (4 * math.pi**2 * v1 * v2)


def baseline_score(u, omega, V, accuracy) -> np.ndarray:
    """Return g_out = V^{-1} (E[Z|y] - omega) from five double integrals."""

    def integral(k):
        arguments = (k, u, omega, V[0, 0], V[1, 1])
        return dblquad(density, -3, 3, -3, 3, args=arguments, **accuracy)[0]

    normalisation = integral(None)
    mean = np.array([integral(k) for k in range(4)]) / normalisation
    return (mean - omega) / np.repeat(np.diag(V), 2)


def baseline(u, omega, V, accuracy, step: float = 1e-3) -> tuple[np.ndarray, np.ndarray]:
    """Return the score and its Jacobian with respect to omega."""
    jacobian = np.empty((4, 4))
    for k in range(4):
        plus, minus = omega.copy(), omega.copy()
        plus[k] += step
        minus[k] -= step
        difference = baseline_score(u, plus, V, accuracy) - baseline_score(u, minus, V, accuracy)
        jacobian[:, k] = difference / (2 * step)
    return baseline_score(u, omega, V, accuracy), jacobian


# --- ours ---------------------------------------------------------------------------------------------------


def score_and_jacobian(moments, V) -> tuple[np.ndarray, np.ndarray]:
    """Return score and Jacobian of a batch, from the posterior mean and covariance."""
    _, shift, covariance = (np.asarray(x, float) for x in moments)
    precision = 1 / np.repeat(np.diag(V), 2)
    return shift * precision, precision[:, None] * covariance * precision - np.diag(precision)


def by_quadtree(u, omega, V):
    from asymptotix.sequence_index.channels.attention.two_layer_batches import posterior_moments

    return posterior_moments(SOFTMAX, SKIP, u, omega, V, threads=1)


def by_grid(dtype, device, block):
    def compute(u, omega, V):
        scope = double_precision() if dtype is np.float64 else contextlib.nullcontext()
        with scope, jax.default_device(device):
            arrays = [jax.device_put(x.astype(dtype), device) for x in (u, omega, V)]
            return jax.block_until_ready(grid.posterior_moments(SOFTMAX, SKIP, *arrays, block=block))

    return compute


def per_sample(compute, sample, clock) -> float:
    """Return the seconds per sample of a compiled computation, the best of five measurements."""
    compute(*sample)
    times = []
    for _ in range(5):
        start = clock()
        compute(*sample)
        times.append(clock() - start)
    return min(times) / len(sample[0])


def methods():
    """Yield name, computation, batch size and clock of every method that can run here."""
    with contextlib.suppress(ImportError):
        import numba  # noqa: F401

        yield "quadtree (numba)", by_quadtree, BATCH, time.process_time
    cpu = jax.devices("cpu")[0]
    yield "grid, float64 (JAX)", by_grid(np.float64, cpu, 64), BATCH, time.process_time
    yield "grid, float32 (JAX)", by_grid(np.float32, cpu, 64), BATCH, time.process_time
    if jax.default_backend() != "cpu":
        device = jax.devices()[0]
        name = f"grid, float32, {device.device_kind}"
        yield name, by_grid(np.float32, device, GPU_BATCH), GPU_BATCH, time.perf_counter


def compare(v1: float, v2: float, accuracy: dict) -> None:
    u, omega, V = draw(v1, v2, GPU_BATCH)
    start = time.process_time()
    g, jacobian = baseline(u[0], omega[0], V, accuracy)
    slow = time.process_time() - start
    print(f"\nV = diag({v1:g}, {v2:g}), c = {SKIP:g}")
    print(f"{'':34}{'s / sample':>12}{'baseline / it':>15}{'max |dg|/|g|':>14}{'max |dJ|/|J|':>14}")
    print(f"{'baseline (scipy, differences)':34}{slow:12.3g}{1:15d}")
    for name, compute, n, clock in methods():
        seconds = per_sample(compute, (u[:n], omega[:n], V), clock)
        ours, slope = score_and_jacobian(compute(u[:BATCH], omega[:BATCH], V), V)
        errors = (abs(a - b).max() / abs(b).max() for a, b in ((ours[0], g), (slope[0], jacobian)))
        print(f"{name:34}{seconds:12.3g}{slow / seconds:15,.0f}" + "".join(f"{e:14.1e}" for e in errors))


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of one denoiser with Jacobian.")
    parser.add_argument("--quick", action="store_true", help="baseline at a relative accuracy of 1e-4")
    quick = parser.parse_args().quick
    accuracy = {"epsrel": 1e-4} if quick else {}
    print(f"{platform.machine()}, Python {platform.python_version()}, jax {jax.__version__}, one core")
    print(f"baseline with {'a relative accuracy of 1e-4' if quick else 'the default accuracy of scipy'}")
    for v1, v2 in VARIANCES:
        compare(v1, v2, accuracy)
    print("\nThe differences are mostly the baseline's: its square cuts tails, its Jacobian is a difference.")


if __name__ == "__main__":
    main()
