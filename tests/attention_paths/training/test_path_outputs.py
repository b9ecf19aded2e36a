"""Outputs and gradients of what is trained, against the network's own forward pass in double precision."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix.attention_paths.training import path_outputs
from asymptotix.attention_paths.training.path_outputs import outputs, products_per_example
from asymptotix.attention_paths.training.trainable import Trainable, drawn_start, of_order_one, with_attention
from asymptotix.numerics.precision import double_precision

# The sums have some thousand terms of order one; float32 rounds each by 6e-8.
SINGLE = 2e-6
#: Heads, key size, features, readout.
SHAPES = [((3,), 4, 6, "mean"), ((2, 3), 4, 6, 2), ((2, 1, 3), 9, 4, "mean"), ((2, 2), 2, 40, -1)]

compiled = jax.jit(outputs, static_argnums=2)


def start(heads, features=6, width=8, key_size=4, seed=0) -> Trainable:
    return drawn_start(seed, heads, features=features, width=width, key_size=key_size)


def tokens(examples=5, length=7, features=6) -> np.ndarray:
    return 2 * np.random.default_rng(1).standard_normal((examples, length, features))


@pytest.mark.parametrize(("heads", "key_size", "features", "readout"), SHAPES)
def test_outputs_are_those_of_the_network(heads, key_size, features, readout):
    weights, x = start(heads, features=features, key_size=key_size), tokens(features=features)
    expected = with_attention(weights, readout).forward(of_order_one(weights), x)
    found = compiled(weights, jnp.asarray(x, jnp.float32), readout)
    np.testing.assert_allclose(found, expected, rtol=SINGLE, atol=SINGLE)


def test_both_ways_to_scores_are_tried_above():
    ways = {path_outputs._is_merged(7, features, key_size) for _, key_size, features, _ in SHAPES}
    assert ways == {True, False}


def test_derivatives_are_those_of_the_network():
    """Along random directions of every weight; central differences are off by step^2 and by rounding / step."""
    x, labels, step = tokens(), np.array([1.0, -1, -1, 1, 1]), 1e-5
    with double_precision():
        weights = jax.tree.map(lambda w: np.asarray(w, float), start((2, 3)))
        gradient = jax.jit(jax.grad(lambda w: ((outputs(w, jnp.asarray(x), "mean") - labels) ** 2).mean()))(weights)
        gradient = jax.tree.map(np.asarray, gradient)

    def loss(w: Trainable) -> float:
        return float(((with_attention(w, "mean").forward(of_order_one(w), x) - labels) ** 2).mean())

    flat, shape = jax.tree.flatten(weights)
    rng = np.random.default_rng(3)
    for place, slope in enumerate(jax.tree.leaves(gradient)):
        direction = rng.standard_normal(slope.shape)
        there = [[w + s * step * direction if k == place else w for k, w in enumerate(flat)] for s in (1, -1)]
        up, down = (loss(jax.tree.unflatten(shape, w)) for w in there)
        assert (up - down) / (2 * step) == pytest.approx(float((slope * direction).sum()), rel=1e-6, abs=1e-9)


def test_start_is_uniform_with_the_variance_of_linear_layers():
    weights = start((4, 4), features=100, width=64, key_size=50)
    for w in jax.tree.leaves(weights):
        bound = 1 / math.sqrt(w.shape[-1])
        assert abs(w).max() <= bound
        if w.size > 1000:  # the sd of a uniform variable's variance is 0.9 of it over the root of their number
            assert w.var() == pytest.approx(bound**2 / 3, rel=4 * 0.9 / math.sqrt(w.size))
    assert not np.array_equal(weights.queries[0], start((4, 4), 100, 64, 50, seed=1).queries[0])


def test_count_of_products_is_that_of_the_compiled_program():
    """Of large layers, beside whose products the sums and exponentials are few."""
    heads, sizes = (2, 2), {"features": 64, "width": 256, "key_size": 48}
    weights = start(heads, **sizes)
    x = jax.ShapeDtypeStruct((32, 24, 64), jnp.float32)
    cost = compiled.lower(weights, x, "mean").compile().cost_analysis()
    counted = products_per_example(heads, tokens=24, **sizes, batch=32) * 32
    assert cost is not None
    assert cost["flops"] / 2 == pytest.approx(counted, rel=0.15)
