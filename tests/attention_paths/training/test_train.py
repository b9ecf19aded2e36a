"""Training by identities: the first step, fresh batches, the best weights, interrupts, bad input."""

from __future__ import annotations

import re
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import asymptotix as asx
from asymptotix.attention_paths.training import train
from asymptotix.attention_paths.training.batch_source import batch_source
from asymptotix.attention_paths.training.path_outputs import outputs
from asymptotix.attention_paths.training.train import TrainingInterrupted, _steps
from asymptotix.attention_paths.training.trainable import drawn_start, of_order_one, with_attention
from asymptotix.numerics import interrupts
from asymptotix.numerics.precision import double_precision
from attention_paths.training.small_training import (
    BATCH,
    FEATURES,
    HEADS,
    KEY_SIZE,
    NETWORK,
    TOKENS,
    WIDTH,
    FirstFeature,
    SameBatch,
    Stopping,
    assert_same_bits,
    leaves,
    random_pair,
    trained,
)

LAST_TOKEN = asx.AttentionPaths(heads=HEADS, readout=-1)


@pytest.fixture
def signals():
    """Ctrl-C as in a terminal, also where tests run in the background; nothing is remembered afterwards."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    interrupts.forget()
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def slope():
    """Gradient at the start, of one batch."""
    x, y = random_pair(BATCH)
    begin = drawn_start(0, HEADS, features=FEATURES, width=WIDTH, key_size=KEY_SIZE)
    return jax.jit(jax.grad(lambda w: ((outputs(w, jnp.asarray(x, jnp.float32), -1) - y) ** 2).mean()))(begin)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_first_step_of_adam(slope, decay):
    """Its averages are the gradient g and g^2 themselves: every weight moves by rate g / (|g| + 1e-8)."""
    x, y = random_pair(BATCH)
    begin = drawn_start(0, HEADS, features=FEATURES, width=WIDTH, key_size=KEY_SIZE)
    found = trained(SameBatch(x, y), network=LAST_TOKEN, steps=1, weight_decay=decay)
    for w, before, g in zip(leaves(found), jax.tree.leaves(begin), jax.tree.leaves(slope), strict=True):
        g = np.asarray(g, float) + decay * before
        moved = np.asarray(w, float) - before
        large = abs(g) > 1e-4  # of smaller ones the rounding of the gradient, 1e-7, is seen
        np.testing.assert_allclose(moved[large], (-0.02 * g / (abs(g) + 1e-8))[large], rtol=1e-3)
        assert large.mean() > 0.5


@pytest.mark.slow
def test_learns_given_examples_by_heart():
    x, y = random_pair()
    found = trained(validation=(x, y), steps=400, validate_every=100)
    assert found.evaluate(x, y).accuracy == 1
    assert found.history.loss[-1] < 0.1 < found.history.loss[0]
    assert found.finished
    assert found.settings["steps_done"] == 400


@pytest.mark.slow
def test_learns_from_fresh_batches():
    """A rule that the network can express; an accuracy of 95 % of 250 examples has an sd of 1.4 %."""
    source = FirstFeature()
    x = np.random.default_rng(99).uniform(-2, 2, (250, TOKENS, FEATURES))
    y = np.sign(x[:, :, 0].mean(1))
    found = trained(source, validation=(x, y), steps=400, validate_every=200)
    assert found.history.validation_accuracy[-1] > 0.9
    best = int(np.argmax(found.history.validation_accuracy.values))
    assert found.settings["kept_step"] == found.history.step[best]
    row, score = found.history.isel(step=best), found.evaluate(x, y)
    assert float(score.accuracy) == pytest.approx(float(row.validation_accuracy), abs=4e-3)  # one with f = 0
    assert float(score.test_error) == pytest.approx(float(row.validation_error), rel=1e-4)


@pytest.mark.slow
def test_the_best_weights_are_kept_and_not_the_last():
    """On labels turned round validation falls while the loss does: the first row is the best."""
    x, y = random_pair()
    found = trained(validation=(x, -y), steps=60)
    accuracy = found.history.validation_accuracy.values
    assert accuracy[0] > accuracy[-1]
    assert found.settings["kept_step"] == 20
    for kept, last in zip(leaves(found), leaves(trained(steps=20)), strict=True):
        np.testing.assert_array_equal(kept, last)


def test_history_is_of_the_batches_since_the_row_before():
    """Of one batch again and again the loss of every step is that of the outputs before it."""
    x, y = random_pair(BATCH)
    found = trained(SameBatch(x, y), network=LAST_TOKEN, steps=5, validate_every=2)
    assert found.history.step.values.tolist() == [2, 4, 5]
    assert set(found.history.data_vars) == {"loss", "train_accuracy"}
    begin = drawn_start(0, HEADS, features=FEATURES, width=WIDTH, key_size=KEY_SIZE)
    weights = (begin, trained(SameBatch(x, y), network=LAST_TOKEN, steps=1).trained)
    losses = [((with_attention(w, -1).forward(of_order_one(w), x) - y) ** 2).mean() for w in weights]
    assert float(found.history.loss[0]) == pytest.approx(np.mean(losses), rel=1e-5)


def test_ten_epochs_by_default():
    assert trained(steps=None).settings["steps"] == 10 * 24 // BATCH
    assert _steps(None, FirstFeature(), BATCH) == 10 * FirstFeature.epoch // BATCH


def test_seed_decides_and_nothing_else():
    first = trained()
    with double_precision():
        assert_same_bits(first, trained())
    other = trained(seed=1)
    assert not np.array_equal(first.trained.readout, other.trained.readout)


def test_batches_depend_on_the_step_alone_and_hold_all_examples():
    source = batch_source(random_pair(), BATCH)
    draw = jax.jit(lambda step: source.draw(source.constants, jax.random.fold_in(jax.random.key(0), step))[0])
    firsts = {float(example[0, 0]) for step in range(40) for example in np.asarray(draw(step))}
    assert len(firsts) == 24  # 320 draws miss one of 24 with probability 24 (23/24)^320 = 3e-5


# -- interrupts ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_returns_what_was_found_and_the_rest_gives_the_same_bits(number, tmp_path):
    file, pair = tmp_path / "training.npz", random_pair()
    whole = trained(validation=pair, steps=200)
    part = trained(validation=pair, steps=200, checkpoint=file, progress=Stopping(30, number))
    assert 30 <= part.settings["steps_done"] < 200
    assert not part.finished
    assert len(part.history.step) == part.settings["steps_done"] // 20
    interrupts.forget()  # after SIGTERM the process should end, and the next call would
    rest = trained(validation=pair, steps=200, checkpoint=file)
    assert_same_bits(rest, whole)
    assert_same_bits(trained(validation=pair, steps=200, checkpoint=file), whole)  # nothing is left to do


@pytest.mark.usefixtures("signals")
def test_a_second_signal_raises_with_what_was_found():
    with pytest.raises(TrainingInterrupted) as caught:
        trained(steps=200, progress=Stopping(30, times=2))
    assert caught.value.result.settings["steps_done"] >= 30


# -- what does not work ----------------------------------------------------------------------------------------------


def test_divergence_is_named():
    with pytest.raises(FloatingPointError, match=r"learning_rate must be smaller: .* before step \d+, with 1e\+30"):
        trained(learning_rate=1e30)


def test_divergence_returns_the_best_until_then(monkeypatch):
    sound = train.advanced

    def failing(*args, **options):
        state = sound(*args, **options)
        return state._replace(loss=jnp.float32(np.nan)) if state.step > 40 else state

    monkeypatch.setattr(train, "advanced", failing)
    with pytest.warns(asx.ConvergenceWarning, match=r"grew beyond all numbers before step 40; .* of step \d+\. Try"):
        found = trained(validation=random_pair())
    assert found.settings["kept_step"] in (20, 40)
    assert not found.finished


X, Y = random_pair()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"network": "L2H4"}, TypeError, "network must be an AttentionPaths, got 'L2H4'"),
        ({"network": asx.AttentionPaths(query_key=[np.eye(6)[None]])}, ValueError, "network must have no query_key"),
        ({"network": asx.AttentionPaths(heads=HEADS, readout=5)}, ValueError, "readout must be a token index below 5"),
        ({"data": X}, TypeError, r"data must be a pair \(inputs, labels\) of arrays, or have draw"),
        ({"data": (X, Y[:-1])}, ValueError, r"labels of data must have shape \(24\), got \(23,\)"),
        ({"data": (X, 2 * Y)}, ValueError, r"labels of data must be \+1 or -1, got -2, 2"),
        ({"data": (X[0], Y)}, ValueError, "inputs of data must have shape"),
        ({"data": (1e300 * X, Y)}, ValueError, "inputs of data must fit single precision"),
        ({"data": (np.where(X > 2, np.inf, X), Y)}, ValueError, "inputs of data must be finite"),
        ({"validation": (X[:, :4], Y)}, ValueError, r"validation inputs must have shape \(examples, 5, 6\)"),
        ({"validation": X}, TypeError, r"validation must be a pair \(inputs, labels\) of arrays, got ndarray"),
        ({"width": 0}, ValueError, "width must be an integer of at least 1, got 0"),
        ({"key_size": 2.5}, ValueError, "key_size must be an integer"),
        ({"steps": 0}, ValueError, "steps must be an integer of at least 1"),
        ({"batch": -3}, ValueError, "batch must be an integer of at least 1"),
        ({"learning_rate": 0}, ValueError, "learning_rate must be positive"),
        ({"weight_decay": -1}, ValueError, "weight_decay must be non-negative"),
        ({"validate_every": 0}, ValueError, "validate_every must be"),
        ({"seed": -1}, ValueError, "seed must be"),
        ({"precision": "half"}, ValueError, "precision must be one of 'default', 'highest', got 'half'"),
        ({"checkpoint": 7}, TypeError, "checkpoint must be the path of a file, got 7"),
        ({"checkpoint": "/"}, ValueError, "checkpoint must be a file in a folder that exists"),
        ({"width": 10**6}, MemoryError, "training with batches of 8 takes"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_input_is_named(change, error, words):
    with pytest.raises(error, match=words):
        trained(**change)


@pytest.mark.parametrize(
    ("drawn", "error", "words"),
    [
        (lambda key, count: X, TypeError, r"data.draw\(key, 8\) must return a pair"),
        (lambda key, count: (X[:3], Y[:3]), ValueError, r"inputs \(8, tokens, features\) and labels \(8,\), got"),
        (lambda key, count: (X[:8] / 0.0, Y[:8]), ValueError, "must return finite inputs"),
        (lambda key, count: (X[:8], 3 * Y[:8]), ValueError, r"must be \+1 or -1, got -3, 3"),
        (lambda key, count: (X[:8] * float(jax.random.uniform(key)), Y[:8]), TypeError, "written in JAX"),
    ],
)
def test_bad_sources_are_named(drawn, error, words):
    class Source:
        draw = staticmethod(drawn)

    with np.errstate(divide="ignore"), pytest.raises(error) as caught:
        trained(Source())
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert re.search(words, said)


def test_source_without_epoch_needs_steps():
    with pytest.raises(ValueError, match="steps must be given: data has no epoch"):
        trained(SameBatch(*random_pair(BATCH)), steps=None)


def test_sizes_are_those_asked_for():
    found = trained(steps=1)
    assert found.network.heads == NETWORK.heads
    assert [q.shape for q in found.trained.queries] == [(H, KEY_SIZE, FEATURES) for H in HEADS]
    assert [V.shape for V in found.weights.V] == [(H, WIDTH, WIDTH) for H in HEADS]
    assert found.settings["tokens"] == TOKENS
