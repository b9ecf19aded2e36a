"""Time of the theory of training, compared with the time before samples were processed in parallel.

    python benchmarks/training_theory.py        about a minute

Whole calls are compared with earlier ones in CPU seconds, which other programs hardly change; several cores reduce only
the wall time. Each call has a separate process, so that compilation by JAX and loading from numba's cache count. Then,
after compilation, four times have a bar: a curve of 20 alphas from 0.05 to 40 (15 s), a point next to a solved one
(0.15 s), a fresh point (0.5 s), and points next to solved ones where the proximal map jumps or may jump (0.1 s). Every
time includes the error estimate on other nodes and the check of the proximal map from several starts.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import jax
import jax.numpy as jnp
import numpy as np

import asymptotix as asx

ALPHAS = np.geomspace(0.05, 40, 20)
FEW_ALPHAS = np.geomspace(0.05, 4, 10)
#: CPU seconds on 2 cores aarch64, 2026-11-16, with samples one after the other or in batches as slow as their slowest.
BEFORE = {
    "two tokens, 10 alphas": 2.5,
    "three tokens, 10 alphas": 12.4,
    "four tokens, 4 alphas": 24.9,
    "cross entropy, 10 alphas": 23.6,
    "own loss, 10 alphas": 39.4,
    "own loss that jumps, 10 alphas": 93.9,
    "three tokens, jumps, 2 alphas": 19.9,
    "two tokens, many jumps, 2 alphas": 32.9,
}


def problem(*, loss: str | Callable = "squared", weight_decay: float = 0.01, **model) -> asx.RiskMinimization:
    return asx.RiskMinimization(asx.AttentionIndex(noise=0.5, **model), weight_decay=weight_decay, loss=loss)


def rounded_absolute(y: jax.Array, h: jax.Array) -> jax.Array:
    return jnp.sum(jnp.sqrt(1 + (jax.nn.softmax(h, axis=1) - y) ** 2))


def nearly_absolute(y: jax.Array, h: jax.Array) -> jax.Array:
    """A loss that is not convex, with jumps at some alphas."""
    return jnp.sum(jnp.sqrt(1e-2 + (jax.nn.softmax(h, axis=1) - y) ** 2))


CALLS = {
    "two tokens, 10 alphas": lambda: (problem(), FEW_ALPHAS),
    "three tokens, 10 alphas": lambda: (problem(tokens=3), FEW_ALPHAS),
    "four tokens, 4 alphas": lambda: (problem(tokens=4), np.geomspace(0.1, 4, 4)),
    "cross entropy, 10 alphas": lambda: (problem(loss="cross_entropy"), FEW_ALPHAS),
    "own loss, 10 alphas": lambda: (problem(loss=rounded_absolute), FEW_ALPHAS),
    "own loss that jumps, 10 alphas": lambda: (problem(loss=nearly_absolute), FEW_ALPHAS),
    "three tokens, jumps, 2 alphas": lambda: (problem(tokens=3, weight_decay=1e-3), [0.1, 0.2]),
    "two tokens, many jumps, 2 alphas": lambda: (problem(beta=2.0, target_beta=2.0), [0.5, 1.0]),
}


#: Problems and alphas at which the proximal map jumps, or at which many samples are needed to exclude jumps.
JUMPS = {
    "own loss": (lambda: problem(loss=nearly_absolute), (0.2, 0.5, 1.0)),
    "two tokens, beta = 2": (lambda: problem(beta=2.0, target_beta=2.0), (0.5, 1.0)),
    "three tokens": (lambda: problem(tokens=3, weight_decay=1e-3), (0.1, 0.2)),
}


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Run and return wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def timed(label: str, bar: float, work: Callable[[], object]) -> None:
    wall, cpu = seconds(work)
    verdict = "within" if cpu <= bar else "beyond"
    print(f"{label:34s} {wall:6.2f} s wall, {cpu:6.2f} s CPU; bar {bar:g} s: {verdict}", flush=True)


def whole_call(label: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return wall and CPU seconds of a call, and of one more point after it."""
    task, alphas = CALLS[label]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", asx.ConvergenceWarning)  # jumps are expected here
        first = seconds(lambda: asx.solve(task, alpha=alphas, progress=False))
        return first, seconds(lambda: asx.solve(task, alpha=0.9, progress=False))


def against_before() -> None:
    for label, was in BEFORE.items():
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            (wall, cpu), again = process.submit(whole_call, label).result()
        print(f"{label:34s} {wall:6.2f} s wall, {cpu:6.2f} s CPU; before {was:5.1f} s CPU: {was / cpu:4.1f} x")
        print(f"{'    one more point':34s} {again[0]:6.2f} s wall, {again[1]:6.2f} s CPU", flush=True)


def against_bars() -> None:
    asx.solve(problem(), alpha=1.0, progress=False)  # compiles
    curve = problem()
    timed("curve of 20 alphas", 15.0, lambda: asx.solve(curve, alpha=ALPHAS, progress=False))
    for alpha in (0.3, 0.7, 3.0):
        near = asx.solve(curve, alpha=alpha, progress=False)
        start = [float(near[name]) for name in ("m", "q", "Sigma")]
        timed(
            f"warm point, alpha = {1.02 * alpha:.3g}",
            0.15,
            lambda a=alpha, s=start: asx.solve(curve, alpha=1.02 * a, start=s, progress=False),
        )
        timed(f"fresh point, alpha = {alpha:g}", 0.5, lambda a=alpha: asx.solve(problem(), alpha=a, progress=False))


def at_jumps() -> None:
    warnings.simplefilter("ignore", asx.ConvergenceWarning)
    for label, (make, alphas) in JUMPS.items():
        task = make()
        for alpha in alphas:
            near = asx.solve(task, alpha=alpha, progress=False)  # compiles
            start = [float(near[name]) for name in ("m", "q", "Sigma")]
            timed(
                f"{label}, warm, alpha = {1.02 * alpha:.3g}",
                0.1,
                lambda a=alpha, s=start, t=task: asx.solve(t, alpha=1.02 * a, start=s, progress=False),
            )


def main() -> None:
    against_before()
    against_bars()
    at_jumps()


if __name__ == "__main__":
    main()
