"""Gradient descent on deep attention: its steps against plain formulas, its batches, what it reports."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import BayesOptimal, ConvergenceWarning, DeepAttention, simulate
from asymptotix.core.progress import Progress
from asymptotix.core.status import Status
from asymptotix.sequence_index.algorithms.sgd import SGD, Rule, _SgdBatch, _verdict, stepped
from toy import ToyLearning, ToyRegression

TWO_LAYERS = DeepAttention(layers=2, tokens=2)
RATE, DECAY = 3.0, 0.01


def rule(model: DeepAttention) -> Rule:
    return Rule(model.skip, str(model.activation), 1, False, 5, 1, model.tokens)


def plain_output(W: np.ndarray, x: np.ndarray, skip: float) -> np.ndarray:
    """Attention matrix of one sample x (M, D), written as tokens that pass through layers."""
    dim = x.shape[1]
    for layer, w in enumerate(W):
        u = x @ w / np.sqrt(dim)
        weights = np.exp(np.outer(u, u))
        weights /= weights.sum(1, keepdims=True)
        if layer == len(W) - 1:
            return weights
        x = skip * x + weights @ x
    raise AssertionError


def plain_loss(W: np.ndarray, X: np.ndarray, teacher: np.ndarray, skip: float) -> float:
    errors = [((plain_output(W, x, skip) - plain_output(teacher, x, skip)) ** 2).sum() for x in X]
    return sum(errors) / X.shape[-1]


@pytest.mark.parametrize(("layers", "tokens"), [(1, 2), (2, 2), (3, 4)])
def test_a_step_is_that_of_the_loss(layers, tokens):
    model, rng = DeepAttention(layers=layers, tokens=tokens, skip=0.7), np.random.default_rng(layers)
    W, teacher = rng.normal(size=(2, layers, 12))
    X = rng.normal(size=(5, tokens, 12))
    labels = np.array([plain_output(teacher, x, 0.7) for x in X])
    inputs = (jnp.asarray(a[None], jnp.float32) for a in (W, X, labels))
    moved, error = stepped(*inputs, np.array([RATE, DECAY], np.float32), rule(model))
    assert abs(float(error[0]) / (12 * plain_loss(W, X, teacher, 0.7)) - 1) < 1e-5  # single precision
    direction, h = rng.normal(size=W.shape), 1e-5
    slope = (plain_loss(W + h * direction, X, teacher, 0.7) - plain_loss(W - h * direction, X, teacher, 0.7)) / (2 * h)
    gradient = (W - np.asarray(moved[0], float)) / RATE - DECAY * W
    assert abs((gradient * direction).sum() - slope) < 1e-5 * (1 + np.linalg.norm(W))  # single precision of W


def test_only_weight_decay_moves_the_teacher():
    rng = np.random.default_rng(0)
    W, X = jnp.asarray(rng.normal(size=(1, 2, 30)), jnp.float32), jnp.asarray(rng.normal(size=(1, 5, 2, 30)), "float32")
    labels = jnp.asarray([[plain_output(np.asarray(W[0]), np.asarray(x), 1.0) for x in X[0]]])
    moved, error = stepped(W, X, labels, np.array([RATE, DECAY], np.float32), rule(TWO_LAYERS))
    assert float(error[0]) < 1e-10
    np.testing.assert_allclose(moved, (1 - RATE * DECAY) * W, atol=1e-5)  # single precision


QUIET = Progress(None, "test", enabled=False)


@pytest.mark.slow
def test_batches_come_in_order_and_the_last_may_be_smaller():
    options = SGD(epochs=2, batch=8, reuse=2, learning_rate=2.0, weight_decay=0.1)
    batch = _SgdBatch(options, TWO_LAYERS, 21, 16, [4])
    assert list(batch.batches.counts) == [8, 8, 5]
    W, teacher = batch.W, batch.teacher
    X = batch.batches.X.reshape(1, 24, 2, 16)
    assert not np.asarray(X[0, 21:]).any()
    outcome = batch.run(QUIET, "test")[0]
    losses, numbers = [], np.array([2.0, 0.1 / 16], np.float32)
    for start in [0, 8, 16] * 2:
        part = X[:, start : min(start + 8, 21)]
        labels = jnp.asarray([[plain_output(np.asarray(teacher[0]), np.asarray(x), 1.0) for x in part[0]]])
        losses.append(float(stepped(W, part, labels, numbers, batch.rule)[1][0]) / part.shape[1])
        for _ in range(2):
            W = stepped(W, part, labels, numbers, batch.rule)[0]
    np.testing.assert_allclose(batch.W, W, atol=1e-4)  # single precision after twelve steps
    np.testing.assert_allclose(outcome.values["loss_trace"], losses, rtol=1e-3)
    assert list(outcome.values["step_trace"]) == [2, 4, 6, 8, 10, 12]
    np.testing.assert_allclose(outcome.values["train_error"], np.dot(losses[3:], [8, 8, 5]) / 21, rtol=1e-3)
    w, v = np.asarray(W[0, 1], float), np.asarray(teacher[0, 1], float)
    cosine = abs(w @ v) / np.linalg.norm(w) / np.linalg.norm(v)
    np.testing.assert_allclose(outcome.values["cosine"][1], cosine, rtol=1e-4)
    np.testing.assert_allclose(outcome.values["overlap"][1, 1], cosine**2, rtol=1e-3)


@pytest.mark.slow
def test_online_batches_are_new_and_the_others_come_again():
    def losses(online: bool) -> np.ndarray:
        options = SGD(epochs=2, batch=8, reuse=2, learning_rate=1e-12, online=online)
        return _SgdBatch(options, TWO_LAYERS, 21, 16, [1]).run(QUIET, "test")[0].values["loss_trace"]

    again, new = losses(False), losses(True)
    np.testing.assert_allclose(again[:3], again[3:], rtol=1e-5)  # W does not move
    assert len(np.unique(new)) == 6


@pytest.mark.slow
def test_layer_2_is_learned_first():
    problem = BayesOptimal(TWO_LAYERS)
    with warnings.catch_warnings():  # one may still move a little
        warnings.simplefilter("ignore", ConvergenceWarning)
        runs = simulate(problem, SGD(epochs=12, batch=100), alpha=15, dim=100, seeds=[0, 1], progress=False)
    cosine, passage = (runs.ds[name].values.reshape(2, 2) for name in ("cosine", "first_passage"))
    assert (cosine[:, 1] > 0.8).all(), cosine
    assert (passage[:, 1] < 120).all()
    assert runs.overlap_trace.sizes["iteration"] <= 180
    last = runs.cosine_trace.values.reshape(2, -1, 2)[:, -1]
    np.testing.assert_array_equal(last, cosine)
    start = runs.test_error.values.ravel()
    assert (start < 0.3).all()  # 0.387 where nothing is learned


@pytest.mark.slow
def test_a_seed_gives_the_same_run_in_any_batch():
    def last(seeds: list[int]) -> np.ndarray:
        batch = _SgdBatch(SGD(epochs=2, batch=8, reuse=2), TWO_LAYERS, 21, 16, seeds)
        return batch.run(QUIET, "test")[-1].values["overlap"]

    np.testing.assert_allclose(last([3]), last([2, 3]), rtol=1e-3)  # single precision


def test_a_short_run_is_not_called_converged():
    """Within one epoch nothing can move by much, learned or not."""
    batch = _SgdBatch(SGD(epochs=1, batch=2), TWO_LAYERS, 40, 16, [0])
    outcome = batch.run(QUIET, "test")[0]
    assert outcome.status is Status.NOT_CONVERGED
    assert "1 epochs cannot show whether the overlap still moves; increase epochs to 10 or more" in outcome.sentence


@pytest.mark.parametrize(
    ("last", "status"), [(0.5, Status.CONVERGED), (0.6, Status.NOT_CONVERGED), (np.nan, Status.FAILED)]
)
def test_a_run_is_judged_by_its_last_tenth(last, status):
    overlap = np.full((100, 1, 1), 0.5)
    overlap[-1] = last
    found, words = _verdict(overlap, np.ones(100), SGD(epochs=10, tolerance=0.05))
    assert found is status
    assert ("0.1 over the last tenth" in words) == (status is Status.NOT_CONVERGED)


def test_a_run_that_explodes_says_so():
    batch = _SgdBatch(SGD(epochs=3, batch=8, reuse=2, learning_rate=1e30), TWO_LAYERS, 21, 16, [0])
    outcome = batch.run(QUIET, "test")[0]
    assert outcome.status is Status.FAILED
    assert "learning_rate" in outcome.sentence


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epochs": 0}, ValueError, "epochs"),
        ({"batch": 2.5}, ValueError, "batch"),
        ({"reuse": 0}, ValueError, "reuse"),
        ({"learning_rate": -1}, ValueError, "learning_rate"),
        ({"weight_decay": -1}, ValueError, "weight_decay"),
        ({"online": 1}, TypeError, "online"),
    ],
)
def test_bad_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        SGD(**options)


def test_other_problems_are_refused():
    with pytest.raises(TypeError, match="ToyLearning"):
        SGD().check(ToyLearning(ToyRegression()))
    with pytest.raises(ValueError, match="side_information"):
        SGD().check(BayesOptimal(TWO_LAYERS, side_information=0.1))


def test_memory_is_asked_first(monkeypatch):
    monkeypatch.setattr("asymptotix.numerics.memory.physical_memory", lambda: 2**30)
    with pytest.raises(MemoryError, match="smaller dim"):
        simulate(BayesOptimal(TWO_LAYERS), SGD(epochs=1), alpha=15, dim=5000, seeds=1, progress=False)
