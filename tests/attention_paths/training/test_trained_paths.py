"""What was trained: its outputs, order parameter and file; and what is left when heads are taken out."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.attention_paths.pruning import remaining_paths
from asymptotix.attention_paths.training import trained_paths
from asymptotix.attention_paths.training.trainable import drawn_start
from asymptotix.attention_paths.training.trained_paths import as_history
from attention_paths.training.small_training import (
    FEATURES,
    HEADS,
    KEY_SIZE,
    WIDTH,
    assert_same_bits,
    leaves,
    random_pair,
)

ROUNDING = 1e-12  # sums of at most some hundred terms of order one in float64


@pytest.fixture(scope="module")
def found() -> asx.TrainedPaths:
    """Weights as they are before training, queries and keys enlarged so that attention is far from uniform."""
    start = drawn_start(0, HEADS, features=FEATURES, width=WIDTH, key_size=KEY_SIZE)
    rows = {"step": [20, 40], "loss": [0.9, 0.8], "train_accuracy": [0.5, 0.6], "validation_accuracy": [0.5, 0.7]}
    settings = {"steps": 50, "steps_done": 40, "kept_step": 40, "heads": list(HEADS)}
    larger = {name: tuple(np.float32(5) * w for w in getattr(start, name)) for name in ("queries", "keys")}
    return asx.TrainedPaths(start._replace(**larger), "mean", as_history(rows), settings, {"device": "cpu"})


def direct(found: asx.TrainedPaths, x: np.ndarray, gone: set[tuple[int, int]], rescale: bool) -> np.ndarray:
    """Outputs example by example and head by head, with no output of the heads that are gone."""
    w = found.trained
    f = np.zeros(len(x))
    for mu, tokens in enumerate(x):
        z = tokens @ w.projection.T.astype(float)
        for layer, V in enumerate(w.values):
            total = np.zeros_like(z)
            for head, v in enumerate(V.astype(float)):
                if (layer, head) in gone:
                    continue
                q, k = (tokens @ side[layer][head].T.astype(float) for side in (w.queries, w.keys))
                weight = np.exp(q @ k.T / math.sqrt(q.shape[1]))
                total += weight / weight.sum(1, keepdims=True) @ z @ v.T
            left = len(V) - sum(place == layer for place, _ in gone)
            z = total / math.sqrt(left if rescale else len(V))
        f[mu] = z.mean(0) @ w.readout
    return f


def test_outputs_three_ways(found):
    x, _ = random_pair(seed=7)
    expected = direct(found, x, set(), True)
    np.testing.assert_allclose(found.predict(x), expected, rtol=ROUNDING, atol=ROUNDING)
    np.testing.assert_allclose(found.network.forward(found.weights, x), expected, rtol=ROUNDING, atol=ROUNDING)


def test_outputs_of_one_token(found):
    x, _ = random_pair(seed=7)
    last = dataclasses.replace(found, readout=-1)
    np.testing.assert_allclose(last.predict(x), last.network.forward(last.weights, x), rtol=ROUNDING, atol=ROUNDING)
    assert abs(last.predict(x) - found.predict(x)).max() > 1e-3


def test_outputs_do_not_depend_on_the_parts_they_are_computed_in(found, monkeypatch):
    x, _ = random_pair(seed=7)
    at_once = found.predict(x)
    monkeypatch.setattr(trained_paths, "_CHUNK_BYTES", 5 * 8 * math.prod(HEADS) * FEATURES)
    np.testing.assert_allclose(found.predict(x), at_once, rtol=ROUNDING)


def test_evaluation(found):
    x, y = random_pair(seed=7)
    f = found.predict(x)
    score = found.evaluate(x, y)
    assert float(score.accuracy) == np.mean(np.sign(f) == y)
    assert float(score.test_error) == pytest.approx(np.mean((f - y) ** 2))
    with pytest.raises(ValueError, match=r"labels must have shape \(24\)"):
        found.evaluate(x, y[:3])
    with pytest.raises(ValueError, match=r"labels must be \+1 or -1, got 0"):
        found.evaluate(x, (y + 1) / 2)
    with pytest.raises(ValueError, match="inputs must have 6 features"):
        found.predict(x[..., :4])


def test_order_parameter_and_scores(found):
    U = found.order_parameter()
    np.testing.assert_array_equal(U, asx.empirical_order_parameter(found.weights))
    w = found.trained
    E = np.stack([w.readout.astype(float) @ second @ first for first in w.values[0] for second in w.values[1]])
    np.testing.assert_allclose(U, E @ E.T, rtol=1e-10, atol=1e-14)  # in the scaling of training no factor is left
    assert asx.head_scores(U, heads=found.network).shape == (2, 3)


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_file_holds_everything(found, tmp_path):
    found.save(file := tmp_path / "trained.npz")
    read = asx.TrainedPaths.load(file)
    assert_same_bits(read, found)
    assert read.readout == "mean"
    assert dict(read.provenance) == dict(found.provenance)
    assert repr(read) == repr(found)
    with np.load(file) as plain:
        np.testing.assert_array_equal(plain["values.1"], found.trained.values[1])


def test_damaged_and_foreign_files_are_refused(found, tmp_path):
    found.save(file := tmp_path / "trained.npz")
    whole = file.read_bytes()
    for data, words in ((whole[:-1], "damaged"), (whole[:500], "damaged"), (b"", "damaged"), (b"x" * 300, "not writ")):
        file.write_bytes(data)
        with pytest.raises(ValueError, match=words):
            asx.TrainedPaths.load(file)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        asx.TrainedPaths.load(tmp_path / "nothing.npz")


# -- pruning ---------------------------------------------------------------------------------------------------------

GONE = [[(0, 1)], [(1, 0)], [(1, 2), (1, 0)], [(0, 0), (1, 1)], []]


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("gone", GONE, ids=str)
def test_pruned_outputs_are_those_without_the_heads(found, gone, rescale):
    x, _ = random_pair(seed=7)
    smaller = asx.prune(found, gone, rescale=rescale)
    expected = direct(found, x, set(gone), rescale)
    np.testing.assert_allclose(smaller.predict(x), expected, rtol=ROUNDING, atol=ROUNDING)
    if gone:  # and they are others
        assert abs(smaller.predict(x) - found.predict(x)).max() > 1e-3
        assert abs(direct(found, x, set(gone), not rescale) - expected).max() > 1e-3


@pytest.mark.parametrize("gone", GONE, ids=str)
def test_outputs_of_paths_give_all_prunings(found, gone):
    x, _ = random_pair(seed=7)
    kept = remaining_paths(HEADS, gone)
    left = found.path_outputs(x)[:, kept].sum(1)
    np.testing.assert_allclose(asx.prune(found, gone, rescale=False).predict(x), left, rtol=1e-10, atol=ROUNDING)
    left *= math.sqrt(math.prod(HEADS) / kept.sum())
    np.testing.assert_allclose(asx.prune(found, gone).predict(x), left, rtol=1e-10, atol=ROUNDING)


def test_pruned_networks_are_smaller(found, tmp_path):
    smaller = asx.prune(found, [(1, 2), (1, 0)])
    assert smaller.network.heads == (2, 1)
    removed = sum(x.size for x in leaves(found)) - sum(x.size for x in leaves(smaller))
    assert removed == 2 * (WIDTH**2 + 2 * KEY_SIZE * FEATURES)
    assert smaller.order_parameter().shape == (2, 2)
    smaller.save(file := tmp_path / "smaller.npz")
    assert_same_bits(asx.TrainedPaths.load(file), smaller)


@pytest.mark.parametrize("rescale", [True, False])
def test_pruning_in_two_steps_is_pruning_at_once(found, rescale):
    x, _ = random_pair(seed=7)
    at_once = asx.prune(found, [(1, 0), (1, 2)], rescale=rescale)
    first = asx.prune(found, [(1, 0)], rescale=rescale)
    second = asx.prune(first, [(1, 1)], rescale=rescale)  # that was head 2
    np.testing.assert_allclose(second.predict(x), at_once.predict(x), rtol=1e-10)
    assert second.settings["pruned"] == at_once.settings["pruned"] == [[1, 0], [1, 2]]


def test_weights_are_pruned_alike(found):
    x, _ = random_pair(seed=7)
    for rescale in (True, False):
        smaller = asx.prune(found, [(1, 1)], rescale=rescale)
        weights = asx.prune(found.weights, [(1, 1)], rescale=rescale)
        network = asx.prune(found.network, [(1, 1)])
        np.testing.assert_allclose(network.forward(weights, x), smaller.predict(x), rtol=1e-10)


def test_bad_pruning_is_named(found):
    with pytest.raises(ValueError, match="rescale must be True but for Weights and TrainedPaths, got AttentionPaths"):
        asx.prune(found.network, [(0, 1)], rescale=False)
    with pytest.raises(ValueError, match=r"heads must leave layer 0 \(in words layer 1\) at least one head"):
        asx.prune(found, [(0, 0), (0, 1)])
    with pytest.raises(ValueError, match="rescale must be one of True, False, got 'no'"):
        asx.prune(found, [(0, 0)], rescale="no")  # type: ignore[arg-type]
