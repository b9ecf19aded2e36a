"""Draws of a posterior belong to the number of its sample: they do not depend on what else is in the batch."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import MultiIndex
from asymptotix.sequence_index.channels.attention.many_layers import DeepChannel
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.channels.protocol import DEFAULT_ACCURACY


def same(first, second) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


@pytest.mark.parametrize(
    "channel",
    [DeepChannel(3, 2, 1.0, "softmax"), channel_of(MultiIndex(lambda z: jnp.sign(z.sum()), 3))],
    ids=["deep", "link"],
)
def test_keys_come_from_the_number_of_a_sample(channel):
    numbers = np.array([130, 3, 64, 63, 7])
    everything = channel.keys(np.arange(200), 5)
    assert same(channel.keys(numbers, 5), jax.tree.map(lambda x: x[numbers], everything))
    assert not same(channel.keys(numbers, 6), channel.keys(numbers, 5))
    rows = np.asarray(jax.tree.leaves(everything)[0]).reshape(200, -1)
    assert len(np.unique(rows, axis=0)) == 200  # no two samples share theirs


@pytest.mark.slow  # each compiles a program of its own
@pytest.mark.parametrize(
    "make",
    [
        lambda: DeepChannel(3, 2, 1.0, "softmax"),
        lambda: channel_of(MultiIndex(lambda z: jnp.sign(z[0] * z[1] + z[2]), 3)),
    ],
    ids=["deep", "lines"],
)
def test_a_batch_gives_what_its_parts_give(make):
    channel, n = make(), 300
    P, M = channel.indices, channel.tokens
    rng, V = np.random.default_rng(2), 0.5 * np.eye(P)
    omega, noise = np.sqrt(0.5) * rng.standard_normal((2, n, P, M))
    y = channel.observe(omega + noise)
    whole = channel.posterior(y, omega, V)
    for part in (slice(0, 70), slice(70, 300), np.array([290, 5, 77])):
        numbers = np.arange(n)[part]
        found = channel.posterior(y[part], omega[part], V, replace(DEFAULT_ACCURACY, numbers=numbers))
        assert same(found, jax.tree.map(lambda x, part=part: x[part], whole))
