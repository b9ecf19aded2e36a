"""The order parameter of attention paths: our solver against Adam on the action; its own time and memory by size.

The baseline is the published method: Adam on the raw symmetric U^(1), ..., U^(L), started at the Gaussian-process
limit, with only the readout's u eliminated and gradients by autodiff in float64. Its steps run in compiled blocks. The
learning rates are the larger ones of the published sweep, each tried for a minute or ten times the time of the best
one. The best one counts; the rate of the published script is marked. Both methods are timed until their action is
within 1e-4 of the minimum, which our solver finds to a scaled gradient of 1e-8. Times include the setting up of our
features, but not compilation and the attended inputs.

    python benchmarks/order_parameter.py                  against Adam, some five minutes; then sizes, two minutes
    python benchmarks/order_parameter.py --skip adam      sizes alone
    python benchmarks/order_parameter.py --seconds 300    a longer trial of every learning rate

Everything runs in this process on one core; times are CPU seconds. Times by size are compared with those before drafts
and Newton steps, on 2 cores aarch64 on 2026-11-16. The image task is random data of the published sizes: three images
of 16 patches with 192 features; the third image has the class of the first or of the second.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import resource
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np

from asymptotix.attention_paths.network.path_network import AttentionPaths
from asymptotix.attention_paths.theory.action import Action, ActionValue
from asymptotix.attention_paths.theory.order_parameter import minimise
from asymptotix.numerics.precision import double_precision
from asymptotix.tasks import hidden_markov

WITHIN = 1e-4
RATES = (1.0, 0.8, 0.5, 0.1, 0.08, 0.05, 0.01, 0.008)
PATIENCE = 10.0  # a rate is given up after this factor times the time of the best rate so far
BLOCK = 25  # steps of Adam between two readings of the clock
FEATURES, PATCHES = 192, 16
BEFORE = {(2, 2): 0.07, (4, 4): 5.30, (3, 3, 3): 13.55, (8, 8): 30.06, (12, 12): 92.51}
"""CPU seconds of the sizes by monotone steps on the action itself."""


class Case(NamedTuple):
    """A problem: attended inputs, labels, heads, temperature, width, and the published learning rate."""

    name: str
    xi: np.ndarray
    labels: np.ndarray
    heads: tuple[int, ...]
    temperature: float
    width: float
    published_rate: float

    def action(self, kind: type[Action] = Action) -> Any:
        return kind(self.xi, self.labels, self.heads, self.temperature, width=self.width)


def markov() -> Case:
    task = hidden_markov(seed=0)
    xi = task.network.attended(task.inputs)
    return Case("Markov L2 H2 P=100 N=10", xi, task.labels, task.network.heads, 0.01, 10.0, 0.1)


def images(heads: tuple[int, ...], examples: int) -> Case:
    """Return the image task: alpha = P/N = 60, temperature 0.5, average pooling."""
    rng = np.random.default_rng(0)
    tokens, labels = _image_tokens(rng, examples)
    network = _half_symmetric_heads(rng, heads)
    name = f"images L{len(heads)} H{heads[0]} P={examples} N={examples / 60:g}"
    return Case(name, network.attended(tokens), labels, heads, 0.5, examples / 60, 0.008)


def _image_tokens(rng: np.random.Generator, examples: int) -> tuple[np.ndarray, np.ndarray]:
    latent = 24
    mixing = rng.standard_normal((FEATURES, latent)) / math.sqrt(latent)
    labels = rng.choice([-1, 1], examples)
    first_label = np.where(rng.integers(0, 2, examples) == 1, 1, -1)
    classes = rng.standard_normal((examples, 2, PATCHES, latent))

    def picture(of: np.ndarray) -> np.ndarray:
        hidden = of + 0.6 * rng.standard_normal(of.shape)
        return hidden @ mixing.T + 0.3 * rng.standard_normal((*of.shape[:-1], FEATURES))

    shown = [picture(classes[:, 0]), picture(classes[:, 1])]
    vectors = rng.standard_normal((3, FEATURES))
    asked = [picture(classes[:, 0]), picture(classes[:, 1])]
    query = np.where((labels == first_label)[:, None, None], *asked)
    x = np.stack([*shown, query], axis=1)
    x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    marks = np.stack([(first_label < 0).astype(int), (first_label > 0).astype(int), np.full(examples, 2)], axis=1)
    x = x + vectors[marks][:, :, None]
    return x.reshape(examples, 3 * PATCHES, FEATURES) + _positions(3 * PATCHES), labels.astype(float)


def _positions(length: int) -> np.ndarray:
    angle = np.arange(length)[:, None] * np.exp(-np.arange(0, FEATURES, 2) * math.log(1e4) / FEATURES)
    table = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(length, FEATURES)
    return (table - table.mean()) / table.std()


def _half_symmetric_heads(rng: np.random.Generator, heads: Sequence[int]) -> AttentionPaths:
    """Draw random heads; the first half has keys equal to queries, so that paths differ in how useful they are."""
    queries, keys = [], []
    for H in heads:
        WQ, WK = rng.standard_normal((2, H, FEATURES // H, FEATURES))
        WK[: H // 2] = WQ[: H // 2]
        queries.append(2 * WQ)
        keys.append(WK)
    return AttentionPaths.from_queries_and_keys(queries, keys)


# -- ours ------------------------------------------------------------------------------------------------------------


class Watched(Action):
    """An action that records its values and their CPU times."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.begun, self.seen = time.process_time(), []
        super().__init__(*args, **options)

    def at(self, *args: Any, **options: Any) -> ActionValue:
        value = super().at(*args, **options)
        self.seen.append((time.process_time() - self.begun, value.value))
        return value


class Ours(NamedTuple):
    """The minimum, CPU seconds until within 1e-4 of it and until the end, and the number of evaluations."""

    minimum: float
    within: float
    seconds: float
    evaluations: int


def ours(case: Case, repeats: int) -> Ours:
    """Return the median of several runs; the first runs also warm the caches."""
    runs = []
    for _ in range(repeats):
        action = case.action(Watched)
        found = minimise(action)
        if not found.converged:
            raise RuntimeError(f"{case.name}: {found.words}")
        within = next(seconds for seconds, S in action.seen if S - found.action <= WITHIN)
        runs.append(Ours(found.action, within, time.process_time() - action.begun, found.evaluations))
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]


# -- the published way -----------------------------------------------------------------------------------------------


def raw_action(case: Case) -> Callable[[list[jax.Array]], jax.Array]:
    """Return the action S of raw matrices U^(1), ..., U^(L), u eliminated; S is nan if one is not positive definite."""
    P, d, features = case.xi.shape
    X, Y = jnp.asarray(case.xi / math.sqrt(d * features)), jnp.asarray(case.labels)

    def log_det(factor: jax.Array) -> jax.Array:
        return 2 * jnp.log(jnp.diagonal(factor)).sum()

    def action(matrices: list[jax.Array]) -> jax.Array:
        symmetric = [0.5 * (U + U.T) for U in matrices]
        c = case.heads[-1] - 1.0
        u = 0.5 * (jnp.sqrt(c * c + 4 * jnp.trace(symmetric[-1])) - c)
        S, after = u - jnp.log(u), jnp.sqrt(u).reshape(1, 1)
        for U, H in zip(reversed(symmetric), reversed(case.heads), strict=True):
            size, here = len(after), jnp.linalg.cholesky(U)
            traced = jnp.einsum("hahb->ab", U.reshape(H, size, H, size))
            S += jnp.trace(jax.scipy.linalg.cho_solve((after, True), traced)) - log_det(here) + H * log_det(after)
            after = here
        mixed = jnp.einsum("pq,nqk->npk", symmetric[0], X)
        K = mixed.reshape(P, -1) @ X.reshape(P, -1).T + case.temperature * jnp.eye(P)
        factor = jnp.linalg.cholesky(K)
        return S + (log_det(factor) + Y @ jax.scipy.linalg.cho_solve((factor, True), Y)) / case.width

    return action


def adam_block(case: Case) -> Callable[..., Any]:
    """Compile BLOCK steps of Adam into one call: (state, rate) -> (state, S before each step)."""
    gradient = jax.value_and_grad(raw_action(case))

    def step(state: tuple, rate: jax.Array) -> tuple[tuple, jax.Array]:
        U, first, second, count = state
        S, slope = gradient(U)
        count = count + 1
        first = [0.9 * m + 0.1 * g for m, g in zip(first, slope, strict=True)]
        second = [0.999 * v + 0.001 * g * g for v, g in zip(second, slope, strict=True)]
        scale = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        U = [x - scale * m / (jnp.sqrt(v) + 1e-8) for x, m, v in zip(U, first, second, strict=True)]
        return (U, first, second, count), S

    return jax.jit(lambda state, rate: jax.lax.scan(lambda s, _: step(s, rate), state, length=BLOCK))


def adam_start(case: Case) -> tuple:
    sizes = [math.prod(case.heads[layer:]) for layer in range(len(case.heads))]
    zeros = [jnp.zeros((size, size)) for size in sizes]
    return [jnp.eye(size) for size in sizes], zeros, zeros, jnp.asarray(0.0)


class Trial(NamedTuple):
    """Trial of one learning rate: CPU seconds and steps, last excess of S, and whether it came within 1e-4."""

    seconds: float
    steps: int
    excess: float
    reached: bool


def adam(case: Case, block: Callable[..., Any], rate: float, minimum: float, seconds: float) -> Trial:
    """Run Adam until S is within 1e-4, U is no longer positive definite, or the time is over."""
    state, steps, start = adam_start(case), 0, time.process_time()
    while True:
        state, S = block(state, rate)
        excess = np.asarray(S) - minimum
        spent = time.process_time() - start
        good = np.flatnonzero(excess <= WITHIN)
        if good.size:
            # All steps of a block cost the same: the time of the last block is divided in proportion.
            done = steps + int(good[0]) + 1
            return Trial(spent * done / (steps + BLOCK), done, float(excess[good[0]]), True)
        steps += BLOCK
        if spent > seconds or not np.isfinite(excess[-1]):
            return Trial(spent, steps, float(excess[-1]), False)


@double_precision()
def against_adam(case: Case, seconds: float, bar: float) -> None:
    own = ours(case, repeats=5)
    print(f"\n{case.name}: S = {own.minimum:.8f}")
    print(f"  ours         {own.within:8.3f} s within {WITHIN:g}, {own.seconds:8.3f} s to the end ", end="")
    print(f"({own.evaluations} evaluations)", flush=True)
    block = adam_block(case)
    jax.block_until_ready(block(adam_start(case), 0.0))
    trials: dict[float, Trial] = {}
    for rate in RATES:
        best = min((trial.seconds for trial in trials.values() if trial.reached), default=math.inf)
        trial = trials[rate] = adam(case, block, rate, own.minimum, min(seconds, PATIENCE * best))
        star = "*" if rate == case.published_rate else " "
        print(f"  Adam, {rate:<5g}{star} {_outcome(trial, own.minimum)}", flush=True)
    reached = [trial for trial in trials.values() if trial.reached]
    _ratios("best rate", min(reached) if reached else max(trials.values()), own, bar)
    _ratios("published rate*", trials[case.published_rate], own, bar)


def _outcome(trial: Trial, minimum: float) -> str:
    spent = f"{trial.seconds:8.3f} s, {trial.steps:6d} steps"
    if math.isnan(trial.excess):
        return f"{spent}: left the positive definite matrices"
    excess = f"S too high by {trial.excess:7.1e} ({trial.excess / abs(minimum):.1e} of S)"
    return f"{spent}, {excess}{'' if trial.reached else ': time is over'}"


def _ratios(name: str, trial: Trial, own: Ours, bar: float) -> None:
    if math.isnan(trial.excess):
        print(f"  {name}: no minimum found", flush=True)
        return
    sign = "" if trial.reached else "more than "
    ratio = trial.seconds / own.within
    verdict = "above" if ratio >= bar else "below"
    print(f"  {name}: {sign}{ratio:.0f} times our time to the same action, {verdict} the bar of {bar:g}; ", end="")
    print(f"{sign}{trial.seconds / own.seconds:.0f} times our time to the end", flush=True)


# -- sizes -----------------------------------------------------------------------------------------------------------


def size(case: Case) -> None:
    """Print the time of one solution; from a separate run, its peak memory in addition to the attended inputs."""
    start = time.process_time()
    found = minimise(case.action())
    seconds = time.process_time() - start
    tracemalloc.start()
    minimise(case.action())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    d, before = case.xi.shape[1], BEFORE[case.heads]
    columns = f"{d:5d} {found.evaluations:11d} {seconds:8.2f} {before:8.2f} {before / seconds:6.1f}"
    memory = f"{found.gradient_norm:15.1e} {peak / 2**20:9.0f} MiB {case.xi.nbytes / 2**20:8.0f} MiB"
    print(f"{case.name:28} {columns} {memory}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU seconds for every learning rate")
    parser.add_argument("--skip", choices=("adam", "sizes"))
    options = parser.parse_args(argv)
    print(f"{platform.machine()}, {platform.processor() or 'processor unknown'}, JAX {jax.__version__}")
    if options.skip != "adam":
        against_adam(markov(), options.seconds, bar=20.0)
        against_adam(images((4, 4), 150), options.seconds, bar=50.0)
    if options.skip != "sizes":
        print(f"\n{'problem':28} paths evaluations    CPU s   before  ratio scaled gradient     peak     attended")
        size(markov())
        for heads in ((4, 4), (3, 3, 3), (8, 8), (12, 12)):
            size(images(heads, 600))
        unit = 2**30 if platform.system() == "Darwin" else 2**20
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
        print(f"peak memory of this process, JAX and all: {resident:.2f} GiB")


if __name__ == "__main__":
    main()
