"""Effective samples per CPU second: the collapsed sampler against sampling of the weights, in one process and thread.

    OPENBLAS_NUM_THREADS=1 python benchmarks/path_sampling.py             two small problems
    OPENBLAS_NUM_THREADS=1 python benchmarks/path_sampling.py --markov    also the hidden-Markov task at full size

Both samplers run on the same problem, one after the other, with two chains each. The smallest effective sample size
over the entries of U counts. Seconds are for warm-up and draws of both chains, without compilation; the last column
includes compilation.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence

import numpy as np

import asymptotix as asx
from asymptotix.attention_paths.sampling.nuts import NUTS


def small_problem(layers: int, examples: int, seed: int) -> asx.PathPosterior:
    """Make a problem with two heads, four tokens and twenty features; its teacher uses the first and the last path."""
    rng = np.random.default_rng(seed)
    tokens = rng.standard_normal((examples + 5, 20, 4)).transpose(0, 2, 1)
    query_key = [rng.standard_normal((2, 20, 20)) / 10 for _ in range(layers)]
    network = asx.AttentionPaths(query_key=query_key, readout="mean")
    xi, w = network.attended(tokens), rng.standard_normal(20)
    labels = np.sign(xi[:, 0] @ w - 0.5 * xi[:, -1] @ w)
    return asx.PathPosterior(network, tokens[:examples], labels[:examples], temperature=0.1)


def markov_problem() -> asx.PathPosterior:
    task = asx.tasks.hidden_markov(examples=100, seed=0)
    return asx.PathPosterior(task.network, task.inputs, task.labels, temperature=0.01)


def rate(problem: asx.PathPosterior, algorithm: NUTS, label: str) -> float:
    """Print one line; return the smallest effective sample size of both chains together, per CPU second."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", asx.ConvergenceWarning)
        runs = [asx.simulate(problem, algorithm, width=10, seeds=[seed], progress=False) for seed in (0, 1)]
    with_compilation = time.process_time() - began
    effective = sum(float(run.effective_samples.sum()) for run in runs)
    seconds = sum(float(run.cpu_seconds.sum()) for run in runs)
    steps = np.mean([float(run.leapfrog_steps.sum()) for run in runs])
    divergences = sum(int(run.divergences.sum()) for run in runs)
    columns = f"{effective:10.0f} {steps:10.1f} {divergences:11d} {seconds:12.1f} {effective / seconds:12.1f}"
    print(f"{label:>14} {algorithm.space:>10} {columns} {effective / with_compilation:18.1f}", flush=True)
    return effective / seconds


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--markov", action="store_true", help="also the hidden-Markov task, with a fifth of the draws")
    options = parser.parse_args(argv)
    cases = [("L1 H2 N10", small_problem(1, 40, 1), 1), ("L2 H2 N10", small_problem(2, 60, 2), 1)]
    if options.markov:
        cases.append(("Markov N10", markov_problem(), 5))
    print(
        f"{'problem':>14} {'space':>10} {'effective':>10} {'leapfrogs':>10} {'divergences':>11} {'CPU seconds':>12} "
        f"{'per second':>12} {'with compilation':>18}"
    )
    for label, problem, fewer in cases:
        settings = {"draws": options.draws // fewer, "warmup": options.warmup // (2 if fewer > 1 else 1)}
        collapsed, weights = (rate(problem, NUTS(space=space, **settings), label) for space in ("collapsed", "weights"))
        print(f"{label:>14} collapsed / weights = {collapsed / weights:.2f}", flush=True)


if __name__ == "__main__":
    main()
