"""The network that classifies, against its definition written out, and against differences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix.numerics.precision import double_precision
from asymptotix.sequence_index.classification.tied_attention import (
    ClassifierParameters,
    cross_entropy,
    logits,
    random_start,
)

SIZES = {"vocabulary": 11, "features": 5, "layers": 3, "rank": 4, "classes": 3}
TOKENS = np.array([[0, 3, 3, 7], [10, 1, 0, 0]])
LABELS = np.array([2, 0])


@pytest.fixture
def parameters():
    drawn = random_start(np.random.default_rng(1), **SIZES, key_sd=0.7)
    offsets = np.random.default_rng(2).normal(size=(3, 4))  # a start has none
    return ClassifierParameters(*(np.asarray(x, float) for x in drawn._replace(offsets=offsets)))


def by_hand(parameters, sentence, scale, key_bias):
    """Logits of one sentence, sum by sum."""
    x = [parameters.embedding[token] for token in sentence]
    for w, b in zip(parameters.keys, parameters.offsets, strict=True):
        h = [w @ token + (b if key_bias else 0 * b) for token in x]
        mixed = []
        for query in h:
            weights = [np.exp(scale * query @ key) for key in h]
            mixed.append(sum(weight * token for weight, token in zip(weights, x, strict=True)) / sum(weights))
        x = mixed
    return parameters.readout @ (sum(x) / len(x)) + parameters.bias


@pytest.mark.parametrize("key_bias", [True, False])
def test_forward(parameters, key_bias):
    with double_precision():
        forward = jax.jit(logits, static_argnames=("score_scale", "key_bias"))
        found = forward(jax.tree.map(jnp.asarray, parameters), TOKENS, score_scale=0.4, key_bias=key_bias)
    expected = [by_hand(parameters, sentence, 0.4, key_bias) for sentence in TOKENS]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("key_bias", [True, False])
def test_gradient_is_that_of_differences(parameters, key_bias):
    @jax.jit
    @jax.value_and_grad
    def loss_and_gradient(parameters):
        return cross_entropy(logits(parameters, TOKENS, score_scale=0.4, key_bias=key_bias), LABELS, np.ones(2))

    def by_hand_loss(parameters):
        found = np.array([by_hand(parameters, sentence, 0.4, key_bias) for sentence in TOKENS])
        return np.mean(np.log(np.exp(found).sum(1)) - found[np.arange(2), LABELS])

    with double_precision():
        value, gradient = loss_and_gradient(jax.tree.map(jnp.asarray, parameters))
        assert float(value) == pytest.approx(by_hand_loss(parameters), rel=1e-12)
    rng = np.random.default_rng(3)
    for _ in range(3):
        along = ClassifierParameters(*(rng.normal(size=x.shape) for x in parameters))
        step = 1e-5  # the third derivative is of order one: an error of 1e-10, beside 1e-16 / 1e-5 of rounding
        up, down = (
            by_hand_loss(ClassifierParameters(*(x + sign * step * d for x, d in zip(parameters, along, strict=True))))
            for sign in (1, -1)
        )
        slope = sum(float((np.asarray(g) * d).sum()) for g, d in zip(gradient, along, strict=True))
        assert slope == pytest.approx((up - down) / (2 * step), abs=1e-8)
    if not key_bias:
        np.testing.assert_array_equal(gradient.offsets, 0)


def test_examples_without_weight_do_not_count():
    given = np.random.default_rng(4).normal(size=(3, 3))
    labels = np.array([0, 2, 1])
    both = cross_entropy(given[:2], labels[:2], np.ones(2))
    assert float(cross_entropy(given, labels, np.array([True, True, False]))) == pytest.approx(float(both), rel=1e-6)


def test_start():
    sizes = {"vocabulary": 300, "features": 128, "layers": 2, "rank": 64, "classes": 6}
    drawn = random_start(np.random.default_rng(0), **sizes, key_sd=0.1)
    np.testing.assert_array_equal(drawn.offsets, 0)
    # Standard deviations of 38,400 and 16,384 normals, within five errors of 1/sqrt(2 n).
    assert drawn.embedding.std() == pytest.approx(1, abs=0.02)
    assert drawn.keys.std() == pytest.approx(0.1, rel=0.03)
    bound = 1 / np.sqrt(128)
    assert 0.9 * bound < abs(drawn.readout).max() <= bound
    assert abs(drawn.bias).max() <= bound
