"""The hidden-Markov task: its chains, its heads, and stored predictions on the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from asymptotix.tasks.hidden_markov import hidden_markov
from reference_numbers import reference

STATES = slice(1, None)  # bos left out


def states(tokens):
    """The states of noise-free tokens: +1 where the first half of the features is on."""
    features = tokens[:, STATES, :200]
    return np.sign(features[..., :100].sum(axis=-1) - features[..., 100:].sum(axis=-1))


def scores(network, tokens, layer, head):
    return tokens @ network.query_key[layer][head] @ tokens.swapaxes(-1, -2)


def test_shapes_and_labels():
    task = hidden_markov(examples=7, test_examples=4)
    assert task.inputs.shape == (7, 31, 231)
    assert task.test_inputs.shape == (4, 31, 231)
    assert task.network.heads == (2, 2)
    assert task.network.readout == 0
    np.testing.assert_array_equal(task.labels, [1, 1, 1, 1, -1, -1, -1])
    np.testing.assert_array_equal(task.test_labels, [1, 1, -1, -1])
    np.testing.assert_array_equal(task.inputs[:, 0, :200], 0)
    np.testing.assert_array_equal(task.inputs[3, :, 200:], np.eye(31))


def test_flip_rates():
    task = hidden_markov(examples=2000, test_examples=2, noise_parallel=0, noise_perpendicular=0, flip=(0.2, 0.9))
    q = states(task.inputs)
    flips = (q[:, 1:] != q[:, :-1]).reshape(2, -1).mean(axis=1)
    # 29,000 independent flips per label: five standard errors of at most sqrt(.2 * .8 / 29000)
    np.testing.assert_allclose(flips, [0.2, 0.9], atol=0.012)
    assert abs((q[:, 0] > 0).mean() - 0.5) < 5 * np.sqrt(0.25 / 2000)


def test_noise_inside_and_outside_the_span():
    clean = hidden_markov(200, 2, noise_parallel=0, noise_perpendicular=0)
    noise = hidden_markov(200, 2, noise_parallel=0.5, noise_perpendicular=2).inputs - clean.inputs
    halves = noise[:, STATES, :200].reshape(-1, 2, 100)
    inside = halves.mean(axis=-1)  # the span of v_+ and v_- is what is constant on each half
    outside = halves - inside[..., None]
    # 12,000 coordinates inside, 1.2 million outside: five standard errors 1/sqrt(2 n) of a standard deviation
    assert np.sqrt((100 * inside**2).mean()) == pytest.approx(0.5, rel=5 / np.sqrt(2 * 12_000))
    assert np.sqrt((outside**2).sum() / (halves.size * 0.99)) == pytest.approx(2, rel=5 / np.sqrt(2 * 1_188_000))
    np.testing.assert_array_equal(noise[:, 0], 0)
    np.testing.assert_array_equal(noise[:, :, 200:], 0)


def test_scores_of_the_good_head():
    beta = 3.0
    task = hidden_markov(examples=20, test_examples=2, noise_parallel=0, noise_perpendicular=0, beta=beta)
    found = scores(task.network, task.inputs, 0, 0) / beta
    q = states(task.inputs)
    same = q[:, :, None] == q[:, None, :]
    neighbour = np.eye(30, k=1, dtype=bool)  # keys are rows: the token before the query
    expected = np.where(same, np.where(neighbour, 2, 1), np.where(neighbour, 0, -1))
    np.testing.assert_allclose(found[:, 1:, 1:], expected, atol=1e-12)
    np.testing.assert_allclose(found[:, 0, 1:], 1.5, atol=1e-12)
    np.testing.assert_allclose(found[:, :, 0], 0, atol=1e-12)


def test_good_head_of_layer_two_is_uniform():
    task = hidden_markov(examples=4, test_examples=2)
    np.testing.assert_allclose(task.network.attention(task.inputs)[1][:, 0], 1 / 31, atol=1e-12)


def test_random_heads_have_the_stated_scale():
    query_key = hidden_markov(examples=2, test_examples=2, beta=2.0).network.query_key
    assert query_key is not None
    for W in query_key:
        blocks = W[1, :200, :200] * 200, W[1, 200:, 200:], W[1, :200, 200:] * 200**0.5, W[1, 200:, :200] * 200**0.5
        for block in blocks:
            assert block.std() == pytest.approx(2.0, rel=5 / np.sqrt(2 * block.size))


def test_two_paths_and_uniform_second_head():
    task = hidden_markov(examples=4, test_examples=2, two_paths=True, second_head="uniform", readout=-1)
    assert task.network.heads == (2, 1)
    assert task.network.readout == -1
    np.testing.assert_allclose(task.network.attention(task.inputs)[0][:, 1], 1 / 31, atol=1e-12)
    full = hidden_markov(examples=4, test_examples=2, readout=-1)
    good = full.network.attended(full.inputs)[:, 0]
    np.testing.assert_allclose(task.network.attended(task.inputs)[:, 0], good, atol=1e-12)


def test_the_token_of_the_text_and_that_of_the_released_script():
    first, last = (hidden_markov(examples=4, test_examples=2, readout=readout) for readout in ("first", "last"))
    assert (first.network.readout, last.network.readout) == (0, -1)
    assert hidden_markov(examples=4, test_examples=2).network.readout == first.network.readout
    np.testing.assert_array_equal(first.inputs, last.inputs)


def test_seeds():
    first, again, other = (hidden_markov(examples=4, test_examples=4, seed=s) for s in (5, 5, 6))
    for name in ("inputs", "test_inputs", "labels", "test_labels"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    W, W_again, W_other = (np.stack(task.network.query_key or ()) for task in (first, again, other))
    np.testing.assert_array_equal(W, W_again)
    np.testing.assert_array_equal(W[:, 0], W_other[:, 0])  # the good heads are the same for all seeds
    assert not np.array_equal(W, W_other)
    assert not np.array_equal(first.inputs, other.inputs)
    assert not np.array_equal(first.inputs, first.test_inputs)


def test_stored_accuracy_of_seed_zero():
    stored = reference("attention_paths")["markov_exact_collapsed_N10_seed0"]
    task = hidden_markov(seed=0)
    xi, xi_test = task.network.attended(task.inputs), task.network.attended(task.test_inputs)
    features = np.einsum("pq,mqi->mpi", np.array(stored["U_theory"]), xi).reshape(100, -1) / (4 * 231)
    K, k = (features @ x.reshape(len(x), -1).T for x in (xi, xi_test))
    mean = np.linalg.solve(K + 0.01 * np.eye(100), task.labels) @ k
    # the same chains: the count of right answers is exact, whatever the rounding
    assert np.mean(np.sign(mean) == task.test_labels) == pytest.approx(stored["theory_acc"], abs=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"examples": 1}, "examples must be an integer of at least 2"),
        ({"test_examples": 2.5}, "test_examples must be an integer"),
        ({"seed": -1}, "seed must be an integer of at least 0"),
        ({"length": 1}, "length must be an integer of at least 2"),
        ({"noise_parallel": -1}, "noise_parallel must be non-negative"),
        ({"noise_perpendicular": np.inf}, "noise_perpendicular must be .*finite"),
        ({"readout": 31}, "readout must be 'first', 'last', 'mean' or a token from -31 to 30, got 31"),
        ({"readout": "middle"}, "readout must be one of 'first', 'last', 'mean'"),
        ({"two_paths": 1}, "two_paths must be one of False, True"),
        ({"second_head": "good"}, "second_head must be one of 'random', 'uniform'"),
        ({"beta": np.nan}, "beta must be"),
        ({"flip": (0.3, 1.2)}, r"flip\[1\] must be in \[0, 1\]"),
        ({"flip": 0.3}, r"flip must have shape \(2\)"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        hidden_markov(**options)


@pytest.mark.parametrize("given", [{"examples": 10**9}, {"test_examples": 10**12}, {"length": 10**8}])
def test_sizes_that_cannot_be_are_refused_with_the_estimate(given):
    with pytest.raises(MemoryError, match=r"takes .* GiB, and there are .* try fewer examples or a shorter length"):
        hidden_markov(**given)


@pytest.mark.parametrize("name", ["noise_parallel", "noise_perpendicular", "beta", "examples", "length", "seed"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 10**400, -1, "much"])
def test_numbers_are_finite_and_named(name, bad):
    with pytest.raises((TypeError, ValueError), match=name):
        hidden_markov(**{name: bad})
