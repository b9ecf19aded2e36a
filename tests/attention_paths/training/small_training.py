"""One small training, of one shape, so that the tests beside this file share what is compiled."""

from __future__ import annotations

import os
import signal
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import asymptotix as asx
from asymptotix.attention_paths.training.trainable import Trainable
from asymptotix.core.progress import Progress

HEADS, TOKENS, FEATURES, WIDTH, KEY_SIZE, BATCH = (2, 3), 5, 6, 8, 3, 8
NETWORK = asx.AttentionPaths(heads=HEADS)
OPTIONS: dict[str, Any] = {
    "width": WIDTH,
    "key_size": KEY_SIZE,
    "batch": BATCH,
    "learning_rate": 0.02,
    "validate_every": 20,
    "steps": 50,
    "progress": False,
}


def random_pair(examples: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((examples, TOKENS, FEATURES)), np.where(rng.random(examples) < 0.5, -1.0, 1.0)


def trained(data: Any = None, validation: Any = None, network: asx.AttentionPaths = NETWORK, **options: Any):
    data = random_pair() if data is None else data
    return asx.train(network, data, validation=validation, **{**OPTIONS, **options})


class SameBatch(NamedTuple):
    """A source of the same batch at every step; a pytree, as a data set may be."""

    inputs: Any
    labels: Any

    def draw(self, key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(self.inputs[:count]), jnp.asarray(self.labels[:count])


class FirstFeature:
    """Uniform tokens; the label is the sign of the mean of their first feature. No pytree, and it holds an array."""

    epoch = 16

    def __init__(self) -> None:
        self.direction = np.eye(FEATURES)[0]

    def draw(self, key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        x = jax.random.uniform(key, (count, TOKENS, FEATURES), minval=-2.0, maxval=2.0)
        return x, jnp.where((x @ self.direction).mean(1) > 0, 1.0, -1.0)


class Stopping(Progress):
    """Progress that sends this process a signal, once or twice, after some steps."""

    def __init__(self, after: int, number: int = signal.SIGINT, times: int = 1) -> None:
        super().__init__(None, "stopping", enabled=False)
        self.after, self.number, self.times = after, number, times

    def advance(self, n: int = 1, message: str | None = None) -> None:
        super().advance(n, message)
        while self.times and self.done >= self.after:
            self.times -= 1
            os.kill(os.getpid(), self.number)


def leaves(found: asx.TrainedPaths | Trainable) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(found.trained if isinstance(found, asx.TrainedPaths) else found)]


def assert_same_bits(first: asx.TrainedPaths, second: asx.TrainedPaths) -> None:
    for a, b in zip(leaves(first), leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)
    assert first.history.identical(second.history)
    assert dict(first.settings) == dict(second.settings)
