"""Posteriors at the size of the one-shot images, 600 examples: time and memory of the theory, cost of exact sampling.

    python benchmarks/image_posteriors.py                        theory of three networks, one gradient of the sampler
    python benchmarks/image_posteriors.py --chains 4             also chains: tens of minutes
    python benchmarks/image_posteriors.py L2H4.npz L3H3.npz      heads of trained networks, with published data

Without network files the images are random shapes in the format of the task, and each head attends to tokens similar
to the query, some heads more sharply than others. Wall and CPU seconds count from the attended inputs to the order
parameter of one width, started at the Gaussian-process limit. The bars on two cores are 15, 30 and 60 s.
"""

from __future__ import annotations

import argparse
import platform
import resource
import time
import tracemalloc
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

import asymptotix as asx
from asymptotix.attention_paths.sampling.collapsed import CollapsedPosterior, collapsed_data
from asymptotix.attention_paths.sampling.hierarchy import Hierarchy
from asymptotix.numerics.precision import double_precision
from asymptotix.tasks.image_sequences import FEATURES, ImageSequences, variance_floor

EXAMPLES, TEMPERATURE, NARROW = 600, 0.5, 10
BARS = {(4, 4): 15.0, (3, 3, 3): 30.0, (8, 8): 60.0}
WIDTHS = (10.0, 100.0, 1000.0)


def stand_in_examples(examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Make sequences of random shapes: an image of a class is its shape with a tenth of the pixels flipped."""
    rng = np.random.default_rng(0)
    shapes = rng.random((60, 1, 16, 64)) < 0.3
    images = shapes ^ (rng.random((60, 20, 16, 64)) < 0.1)
    return ImageSequences(255 * images.astype(np.uint8), variance_floor(0.2), 1).examples(examples, 0)


def stand_in_network(heads: Sequence[int]) -> asx.AttentionPaths:
    rng = np.random.default_rng(1)
    queries, keys = [], []
    for count in heads:
        q, k = rng.standard_normal((2, count, FEATURES // count, FEATURES))
        sharp = np.linspace(0.3, 1.0, count)[:, None, None]
        queries.append(2.0 * q)
        keys.append(sharp * q + (1 - sharp) * k)
    return asx.AttentionPaths.from_queries_and_keys(queries, keys)


def problems(networks: Sequence[Path]) -> Iterator[asx.PathPosterior]:
    """Yield the problems of the given networks, or of stand-ins with the three published sizes."""
    if networks:
        task = asx.tasks.one_shot(EXAMPLES)
        for path in networks:
            network = asx.TrainedPaths.load(path).network
            yield asx.PathPosterior(network, task.inputs, task.labels, temperature=TEMPERATURE)
    else:
        examples = stand_in_examples(EXAMPLES)
        for heads in BARS:
            yield asx.PathPosterior(stand_in_network(heads), *examples, temperature=TEMPERATURE)


def theory(problem: asx.PathPosterior) -> None:
    heads = problem.network.heads
    attended = problem.attended.nbytes / 2**20
    for width in WIDTHS:
        began, cpu = time.perf_counter(), time.process_time()
        found = _solved(problem, width)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        bar = BARS.get(heads, float("nan"))
        verdict = "" if np.isnan(bar) else f", {'within' if seconds <= bar else 'ABOVE'} {bar:g} s"
        norm = float(found.gradient_norm)
        print(f"  N = {width:<5g} {seconds:6.2f} s ({cpu:.2f} of CPU){verdict}; scaled gradient {norm:.1e}", flush=True)
    tracemalloc.start()
    _solved(problem, WIDTHS[0])
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    print(f"  memory {peak:.0f} MiB at most, besides {attended:.0f} MiB of attended inputs", flush=True)


def _solved(problem: asx.PathPosterior, width: float) -> asx.Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return asx.solve(problem, width=width, progress=False)


@double_precision()
def gradient(problem: asx.PathPosterior, repeats: int = 10) -> None:
    heads = problem.network.heads
    hierarchy = Hierarchy(heads, (NARROW,) * (len(heads) + 1))
    posterior = CollapsedPosterior(hierarchy)
    given = problem.attended, problem.labels, problem.temperature, problem.prior_variances
    data = jax.tree.map(jax.numpy.asarray, collapsed_data(hierarchy, *given))
    slope = jax.jit(jax.value_and_grad(posterior.log_density))
    z = np.random.default_rng(0).standard_normal(posterior.size)
    jax.block_until_ready(slope(z, data))
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        jax.block_until_ready(slope(z, data))
    wall, cpu = ((now - before) / repeats for now, before in ((time.perf_counter(), wall), (time.process_time(), cpu)))
    form = "features" if data.kernels.tensor is None else f"a table of {data.kernels.tensor.nbytes / 2**20:.0f} MiB"
    print(f"  one gradient at N = {NARROW}, {posterior.size} coordinates, from {form}: ", end="")
    print(f"{1e3 * wall:.0f} ms, {1e3 * cpu:.0f} ms of CPU", flush=True)


def chains(problem: asx.PathPosterior, count: int, warmup: int, draws: int) -> None:
    began = time.perf_counter()
    runs = asx.simulate(problem, asx.NUTS(warmup=warmup, draws=draws), width=float(NARROW), seeds=count)
    minutes = (time.perf_counter() - began) / 60
    print(f"  {count} chains of {warmup} + {draws} iterations in {minutes:.1f} min: ", end="")
    print(f"R-hat {float(runs.r_hat.max()):.3f}, {float(runs.effective_samples.sum()):.0f} effective samples, ", end="")
    steps, divergences = float(runs.leapfrog_steps.mean()), int(runs.divergences.sum())
    print(f"{steps:.1f} leapfrog steps, {divergences} divergences", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", type=Path, help="files of trained networks")
    parser.add_argument("--chains", type=int, default=0, help="chains of exact sampling of the first network")
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--draws", type=int, default=300)
    options = parser.parse_args(argv)
    print(f"{platform.machine()}, JAX {jax.__version__} on {jax.default_backend()}")
    for number, problem in enumerate(problems(options.networks)):
        print(problem)
        theory(problem)
        if number == 0:
            gradient(problem)
            if options.chains:
                chains(problem, options.chains, options.warmup, options.draws)
    unit = 2**30 if platform.system() == "Darwin" else 2**20
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    print(f"peak memory of this process, JAX and all: {resident:.2f} GiB")


if __name__ == "__main__":
    main()
