"""Training of classifiers: the loop against one written out, and what a run must not depend on."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix.sequence_index import streams
from asymptotix.sequence_index.classification import attention_classifier
from asymptotix.sequence_index.classification.adamw import adamw
from asymptotix.sequence_index.classification.attention_classifier import AttentionClassifier, recorded_steps
from asymptotix.sequence_index.classification.tied_attention import cross_entropy, logits, random_start

pytest.importorskip("optax", reason="training needs optax")

SMALL: dict[str, Any] = {"features": 6, "rank": 4, "classes": 3, "batch": 4}
VOCABULARY = 40


#: Held out are all tokens that occur, each once: tasks of equal sizes share their compiled program.
ALL_THAT_OCCUR = np.arange(20).reshape(4, 5)


class DrawnTask(NamedTuple):
    tokens: np.ndarray
    labels: np.ndarray
    validation_tokens: np.ndarray
    validation_labels: np.ndarray
    vocabulary_size: int = VOCABULARY


def drawn_task(seed, *, examples=10, held_out=ALL_THAT_OCCUR):
    """Random sequences of five tokens below 20, of the class that the first token says."""
    tokens = np.random.default_rng(seed).integers(0, 20, (examples, 5))
    return DrawnTask(tokens, tokens[:, 0] % 3, held_out, held_out[:, 0] % 3)


RELEASED = AttentionClassifier(**SMALL, learning_rate=1e-2)
PRINTED = AttentionClassifier(
    **SMALL, learning_rate=1e-2, score_scale=1 / 6, key_bias=False, key_sd=1e-2, optimizer="torch"
)


@pytest.mark.parametrize("library", ["transformers", "torch"])
@pytest.mark.parametrize("size", [1.0, 1e-5, 1e-8])
def test_adamw_is_that_of_the_library(library, size):
    """From the formulas, with gradients far above and below what is added to their root."""
    gradients = size * np.random.default_rng(0).normal(size=(4, 3))
    w, m, v, rate = np.array([0.3, -2.0, 0.0]), 0.0, 0.0, 1e-3
    ours, optimizer = jnp.asarray(w, jnp.float32), adamw(library, rate)
    state = optimizer.init(ours)
    for t, g in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        if library == "torch":
            w = w - rate * 0.01 * w
            w = w - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        else:
            w = w - rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-6)
        change, state = optimizer.update(jnp.asarray(g, jnp.float32), state, ours)
        ours = ours + change
    # Single precision: 1e-7 of a weight, and of 1 - 0.999^t up to 1e-4 of a step; PyTorch decays before it steps.
    np.testing.assert_allclose(ours, w, atol=2e-6)
    assert size < 1e-7 or abs(w - [0.3, -2.0, 0.0]).min() > 1e-4  # it moved


@pytest.mark.slow
@pytest.mark.parametrize("classifier", [RELEASED, PRINTED])
def test_the_loop_is_the_one_written_out(classifier):
    """Batches of 4, 4 and 2 in the order of the seed's stream, a step on each, for two epochs."""
    task, seed = drawn_task(0), 5
    runs = classifier.train([task], epochs=2, record_every=2, seeds=[seed], progress=False)
    rng = np.random.default_rng(streams.classifier_start_of_run(seed))
    sizes = {"features": 6, "layers": 2, "rank": 4, "classes": 3}
    parameters = random_start(rng, vocabulary=VOCABULARY, **sizes, key_sd=classifier.key_sd)
    shape = {"score_scale": classifier.score_scale, "key_bias": classifier.key_bias}

    @jax.jit
    @jax.value_and_grad
    def loss_and_gradient(parameters, tokens, labels):
        return cross_entropy(logits(parameters, tokens, **shape), labels, np.ones(len(labels), np.float32))

    optimizer = adamw(classifier.optimizer, 1e-2)
    update = jax.jit(optimizer.update)
    state, norms, losses = optimizer.init(parameters), [], []
    parameters = jax.tree.map(jnp.asarray, parameters)
    norms.append(np.linalg.norm(parameters.keys, axis=(1, 2)))
    for epoch in range(2):
        order = np.random.default_rng(streams.batches_of_run(seed, epoch)).permutation(10)
        for batch in (order[:4], order[4:8], order[8:]):
            value, gradient = loss_and_gradient(parameters, task.tokens[batch], task.labels[batch])
            losses.append(float(value))
            change, state = update(gradient, state, parameters)
            parameters = jax.tree.map(jnp.add, parameters, change)
            norms.append(np.linalg.norm(parameters.keys, axis=(1, 2)))
    history = runs.history.isel(seed=0)
    assert history["step"].values.tolist() == [0, 2, 3, 5, 6]
    # Six steps of 1e-2, in single precision and another order of sums; Adam divides by little where gradients vanish.
    np.testing.assert_allclose(runs.keys[0], parameters.keys, atol=1e-4)
    # As of the keys: other orders of sums move these small norms by a relative 1.1e-4 on some CPUs.
    np.testing.assert_allclose(history["norm"].T, np.array(norms)[[0, 2, 3, 5, 6]], atol=1e-4)
    np.testing.assert_allclose(history["train_loss"], np.reshape(losses, (2, 3)).mean(1), rtol=1e-4)
    found = logits(parameters, task.validation_tokens, **shape)
    right = np.mean(found.argmax(1) == task.validation_labels)
    assert float(history["validation_accuracy"][-1]) == pytest.approx(right)


@pytest.mark.slow
def test_tokens_that_do_not_occur_change_nothing():
    """Held-out sequences of the whole vocabulary make every embedding be kept; trained on is half of it.

    The optimiser is the one with weight decay, which moves also what is not read.
    """
    settings = {"epochs": 2, "record_every": 2, "progress": False}
    whole = np.arange(VOCABULARY).reshape(8, 5)
    restricted, full = (
        PRINTED.train([drawn_task(1, held_out=held_out)], **settings) for held_out in (ALL_THAT_OCCUR, whole)
    )
    np.testing.assert_array_equal(restricted.keys, full.keys)
    np.testing.assert_array_equal(restricted.history["train_loss"], full.history["train_loss"])
    np.testing.assert_array_equal(restricted.history["similarity"], full.history["similarity"])


@pytest.mark.slow
def test_a_run_does_not_depend_on_those_beside_it():
    tasks = [drawn_task(seed) for seed in range(3)]
    together = RELEASED.train(tasks, epochs=1, record_every=2, progress=False)
    alone = RELEASED.train(tasks[2:], epochs=1, record_every=2, seeds=[2], progress=False)
    np.testing.assert_allclose(alone.keys[0], together.keys[2], atol=1e-4)  # three steps, as in the loop above
    assert together.history["seed"].values.tolist() == [0, 1, 2]
    assert abs(together.keys[0] - together.keys[1]).max() > 0.1


@pytest.mark.slow
def test_it_learns():
    """Ten sequences are known by heart in the end, and every curve ends at its own last iterate."""
    history = RELEASED.train([drawn_task(0)], epochs=60, record_every=2, progress=False).history.isel(seed=0)
    assert float(history["train_loss"][-1]) < 0.1 * float(history["train_loss"][0])
    assert history["similarity"].values[:, -1] == pytest.approx(1)
    assert history["score_similarity"].values[:, -1] == pytest.approx(1)
    assert history["score_similarity"].values[:, 0].max() < 0.99


def test_recorded_steps():
    assert recorded_steps(7, 2, 3).tolist() == [0, 3, 6, 7, 10, 13, 14]
    assert recorded_steps(6, 2, 3).tolist() == [0, 3, 6, 9, 12]
    assert recorded_steps(2, 2, 5).tolist() == [0, 2, 4]
    assert recorded_steps(273, 40, 7)[-1] == 10_920


def test_what_was_published():
    released, printed = AttentionClassifier.released(), AttentionClassifier.printed()
    assert (released.score_scale, printed.score_scale) == (1 / np.sqrt(64), 1 / 128)
    assert (released.key_sd, printed.key_sd) == (0.1, 1e-4)
    assert (released.key_bias, printed.key_bias) == (True, False)


def test_bad_input():
    with pytest.raises(ValueError, match="key_sd must be positive, got 0"):
        AttentionClassifier(key_sd=0)
    with pytest.raises(ValueError, match="optimizer must be one of 'transformers', 'torch', got 'adam'"):
        AttentionClassifier(optimizer="adam")
    classifier, task = RELEASED, drawn_task(0)
    with pytest.raises(ValueError, match="tasks must be as many as seeds and at least one, got 1 and 2"):
        classifier.train([task], seeds=[0, 1])
    with pytest.raises(ValueError, match=r"tasks must have the same size, got tokens of shapes"):
        classifier.train([task, drawn_task(1, examples=11)])
    task.labels[3] = 3
    with pytest.raises(ValueError, match="labels must be from 0 to 2, got 0 to 3"):
        classifier.train([task])
    with pytest.raises(ValueError, match="tokens must be from 0 to 39, got 0 to 40"):
        classifier.train([drawn_task(0, held_out=np.full((2, 5), 40))])


def test_what_is_not_finite_is_said(monkeypatch):
    def broken(rng, **sizes):
        start = random_start(rng, **sizes)
        return start._replace(bias=np.nan * start.bias)

    monkeypatch.setattr(attention_classifier, "random_start", broken)
    with pytest.raises(FloatingPointError, match="the loss of epoch 1 is not finite; try a smaller learning_rate"):
        RELEASED.train([drawn_task(0)], record_every=2, progress=False)
