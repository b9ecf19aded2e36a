"""Time of thresholds of links with one to four indices, including compilation, and of their posteriors.

    python benchmarks/links.py                  all links
    python benchmarks/links.py cos ellipse      some of them
    python benchmarks/links.py --overlaps       overlaps at four alphas
    python benchmarks/links.py --posteriors     posteriors with and without preparation, in one process

Times are compared with commit 9d5fe52 on two idle cores (aarch64), 2026-11-16; times of overlaps with commits 11ef08a
and 4a578a0 (one index), 2026-11-18. Some of these runs were stopped and would have taken longer.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax.numpy as jnp
import numpy as np

from asymptotix import BayesOptimal, MultiIndex, SequenceIndex, solve, thresholds
from asymptotix.sequence_index.channels.choose import channel_of

#: Name -> model, and seconds at the earlier commit (None: not measured).
LINKS: dict[str, tuple[Any, float | None]] = {
    "cos": (MultiIndex(lambda z: jnp.cos(z[0]), 1), 34.0),
    "hermite": (MultiIndex(lambda z: z[0] ** 3 - 3 * z[0] + z[0] * z[1], 2), 50.0),
    "ellipse": (MultiIndex(lambda z: z[0] ** 2 + 3 * z[1] ** 2, 2), 420.0),
    "product of three": (MultiIndex(lambda z: z[0] * z[1] * z[2], 3), None),
    "norm of three": (MultiIndex(lambda z: (z**2).sum(), 3), None),
    "sum of two products": (MultiIndex(lambda z: z[0] * z[1] + z[2] * z[3], 4), None),
    "three tokens": (SequenceIndex(lambda Z: jnp.tanh(Z**2).sum(), 1, 3), None),
    "noisy": (MultiIndex(lambda z: z[0] * z[1] + z[2] ** 2, 3, 0.1), None),
    "noisy ellipsoid": (MultiIndex(lambda z: (jnp.arange(1.0, 5.0) * z**2).sum(), 4, 0.5), None),
    "ellipsoid": (MultiIndex(lambda z: (jnp.array([1.0, 0.5, 0.25]) * z**2).sum(), 3), None),
    "largest of four": (MultiIndex(lambda z: abs(z).max(), 4), None),
    "maximum of four": (MultiIndex(lambda z: z.max(), 4), None),
    "majority": (MultiIndex(lambda z: jnp.sign(jnp.sign(abs(z) - 0.7).sum()), 3), None),
    "two squares": (MultiIndex(lambda z: z**2, 2), None),
    "two of three": (MultiIndex(lambda z: jnp.stack([z[0] * z[1], z[1] + z[2] ** 2]), 3), None),
    "two of four": (
        MultiIndex(lambda z: jnp.stack([z[0] ** 2 + z[1] ** 2 + z[2] * z[3], z[2] ** 2 - z[3] ** 2]), 4),
        None,
    ),
    "noisy two of four": (
        MultiIndex(lambda z: jnp.stack([z[0] ** 2 + z[1] * z[2], z[1] ** 2 + z[2] * z[3]]), 4, 0.3),
        None,
    ),
    "three of four": (
        MultiIndex(lambda z: jnp.stack([z[0] ** 2 + z[1] ** 2, z[1] * z[2], z[2] ** 2 + z[3] ** 2]), 4),
        None,
    ),
    "two signs": (MultiIndex(lambda z: jnp.sign(z[:2] * z[1:]), 3), None),
    "least and largest": (MultiIndex(lambda z: jnp.stack([z[:2].min(), z[2:].max()]), 4), None),
    "saturating sum": (MultiIndex(lambda z: jnp.tanh(z).sum(), 4), None),
    "rectifiers with noise": (MultiIndex(lambda z: jnp.maximum(z, 0).sum(), 2, 0.1), 150.0),
    "shells": (MultiIndex(lambda z: jnp.floor((z**2).sum()), 2), None),
    "two circles": (MultiIndex(lambda z: jnp.stack([z[0] ** 2 + z[1] ** 2, z[2] ** 2 + z[3] ** 2]), 4), None),
}
#: Alphas of the overlaps, whose models and earlier seconds are in OVERLAPS.
ALPHAS = (0.5, 1.0, 1.5, 2.5)
OVERLAPS: dict[str, tuple[Any, float]] = {
    "noisy cubic": (MultiIndex(lambda z: z[0] ** 3 - z[0], 1, 0.2), 39.0),
    "noisy product": (MultiIndex(lambda z: z[0] * z[1], 2, 0.5), 130.0),
    "fourth power": (MultiIndex(lambda z: z[0] ** 4 - 6 * z[0] ** 2 + z[1] ** 2, 2), 64.0),
    "circle and product with noise": (
        MultiIndex(lambda z: jnp.stack([z[0] ** 2 + z[1] ** 2, z[2] * z[3]]), 4, 0.3),
        119.0,
    ),
}
BAR = 60.0


def time_of_thresholds(name: str) -> None:
    model, before = LINKS[name]
    wall, cpu = time.perf_counter(), time.process_time()
    found = thresholds(BayesOptimal(model), progress=False).ds
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    ratio = "" if before is None else f", before {before:.0f} s: {before / wall:.1f} times as long"
    first, error = (float(found[key].min()) for key in ("weak_recovery", "weak_recovery_err"))
    exact = float(found["exact_recovery"])
    verdict = "" if wall < BAR else f", beyond the bar of {BAR:.0f} s"
    times = f"{wall:6.1f} s wall, {cpu:6.1f} s CPU{ratio}{verdict}"
    print(f"{name:20s} {times}; {first:.5g}({error:.1g}), {exact:.5g}", flush=True)


def time_of_overlaps(name: str) -> None:
    model, before = OVERLAPS[name]
    wall = time.perf_counter()
    found = solve(BayesOptimal(model), alpha=ALPHAS, progress=False).ds
    wall = time.perf_counter() - wall
    q = ", ".join(
        f"{np.trace(Q):.4f}({error.max():.1g})" for Q, error in zip(found.overlap, found.overlap_err, strict=True)
    )
    print(
        f"{name:30s} {wall:6.1f} s wall, before {before:.0f} s: {before / wall:.1f} times as long; Tr Q = {q}",
        flush=True,
    )


def time_of_posteriors(name: str, count: int = 256) -> None:
    """Print CPU microseconds per observation: of its preparation, of a prepared and of an unprepared posterior."""
    model, _ = LINKS[name]
    channel = channel_of(model)
    if getattr(channel, "finest", None) is None:
        return
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((count, model.indices, model.tokens))
    V = 0.3 * np.eye(model.indices)
    omega = 0.7 * Z + np.sqrt(0.21) * rng.standard_normal(Z.shape)
    y = channel.observe(Z)
    prepared = channel.prepared(y, Z)
    works = {
        "preparation": lambda: channel.prepared(y, Z),
        "prepared": lambda: prepared(omega, V),
        "anew": lambda: channel.posterior(y, omega, V),
    }
    seconds = {}
    for key, work in works.items():
        work()
        start = time.process_time()
        work()
        seconds[key] = (time.process_time() - start) / count
    parts = ", ".join(f"{key} {1e6 * value:.0f}" for key, value in seconds.items())
    ratio = seconds["anew"] / seconds["prepared"]
    print(f"{name:20s} CPU us: {parts}; {ratio:.0f} times faster once prepared", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(LINKS)} (all)")
    parser.add_argument("--posteriors", action="store_true")
    parser.add_argument("--overlaps", action="store_true", help="overlaps at four alphas instead")
    options = parser.parse_args()
    if options.overlaps:
        for name in OVERLAPS:
            time_of_overlaps(name)
        return
    for name in options.names or LINKS:
        (time_of_posteriors if options.posteriors else time_of_thresholds)(name)


if __name__ == "__main__":
    main()
