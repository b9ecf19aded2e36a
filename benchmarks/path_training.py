"""Training of attention paths: steps per second and arithmetic operations, on the device at hand.

    python benchmarks/path_training.py                                      a small network, and the published ones
    python benchmarks/path_training.py --sizes 2,4,128,512,128 --seconds 20   layers,heads,key size,width,batch

Data are random tokens of the size of the one-shot task, 48 x 192, with a fresh batch at every step. A step is a forward
and a backward pass of a batch and Adam's update. GFLOP counts the products that are computed: two operations each, and
a factor of three for the gradient. "layer by layer" is the rate that the plain order of products would need for the
same steps per second.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from asymptotix.attention_paths.training.adam_steps import AdamRates, TrainRule, advanced, state_at_start
from asymptotix.attention_paths.training.batch_source import batch_source
from asymptotix.attention_paths.training.path_outputs import products_per_example
from asymptotix.attention_paths.training.trainable import drawn_start

TOKENS, FEATURES = 48, 192
SIZES = ("2,4,32,64,64", "2,4,128,512,128", "2,8,64,512,128", "3,3,170,512,128")


class RandomTokens(NamedTuple):
    """Normal tokens with independent labels."""

    def draw(self, key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        tokens, signs = jax.random.split(key)
        labels = jnp.where(jax.random.bernoulli(signs, 0.5, (count,)), 1.0, -1.0)
        return jax.random.normal(tokens, (count, TOKENS, FEATURES), jnp.float32), labels


def layer_by_layer(heads: tuple[int, ...], key_size: int, width: int) -> int:
    """Return the number of products per example if every layer acts on every token."""
    H, T = sum(heads), TOKENS
    scores = H * T * key_size * (2 * FEATURES + T)
    return T * FEATURES * width + scores + H * T * width * (T + width)


def measure(size: str, seconds: float, precision: str) -> None:
    layers, count, key_size, width, batch = map(int, size.split(","))
    heads = (count,) * layers
    source = batch_source(RandomTokens(), batch)
    rule, rates = TrainRule(source.draw, "mean", precision), AdamRates(3e-4, 0.0)
    start = drawn_start(0, heads, features=FEATURES, width=width, key_size=key_size)
    state, key = state_at_start(start), jax.random.key(0)

    def run(steps: int) -> tuple[float, float]:
        nonlocal state
        began, cpu = time.perf_counter(), time.process_time()
        state = advanced(state, source.constants, key, np.int32(steps), rates, rule=rule)
        jax.block_until_ready(state)
        return time.perf_counter() - began, time.process_time() - cpu

    compiled, _ = run(1)
    one = min(run(1)[0] for _ in range(3))
    steps = max(2, int(seconds / one))
    wall, cpu = run(steps)
    sizes = {"tokens": TOKENS, "features": FEATURES, "width": width, "key_size": key_size}
    mine = 6e-9 * batch * products_per_example(heads, **sizes, batch=batch)
    plain = 6e-9 * batch * layer_by_layer(heads, key_size, width)
    print(
        f"{layers:2d} {count:2d} {key_size:4d} {width:5d} {batch:6d} {steps / wall:9.2f} {1e3 * cpu / steps:12.1f} "
        f"{mine:9.2f} {mine * steps / wall:10.1f} {plain * steps / wall:15.1f} {compiled:10.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="L,H,G,N,BATCH")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--precision", default="default", choices=("default", "highest"))
    options = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, precision {options.precision}")
    print(" L  H    G     N  batch   steps/s  CPU ms/step  GFLOP/st.  GFLOP/s  layer by layer  compile s")
    for size in options.sizes:
        measure(size, options.seconds, options.precision)


if __name__ == "__main__":
    main()
