"""Checkpoints that are damaged, foreign, of another training or that cannot be written."""

from __future__ import annotations

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.attention_paths.training import train_checkpoint
from attention_paths.training.small_training import assert_same_bits, random_pair, trained


@pytest.fixture(scope="module")
def whole() -> asx.TrainedPaths:
    return trained(validation=random_pair(seed=5))


@pytest.fixture
def half(tmp_path):
    """The checkpoint of a training that has done 20 of 50 steps."""
    file = tmp_path / "training.npz"
    trained(validation=random_pair(seed=5), steps=20, checkpoint=file)
    return file


def again(file, **changes) -> asx.TrainedPaths:
    return trained(**{"validation": random_pair(seed=5), "checkpoint": file, **changes})


def test_more_steps_go_on(half, whole):
    assert_same_bits(again(half), whole)


@pytest.mark.parametrize("left", [0, 20, 2000, -1])
def test_a_truncated_checkpoint_is_put_aside_and_training_starts_anew(half, whole, left):
    data = half.read_bytes()
    half.write_bytes(data[:left])
    with pytest.warns(UserWarning, match=r"training.npz is damaged: .* It is now training.npz.damaged, and training"):
        found = again(half)
    assert_same_bits(found, whole)
    assert half.with_name("training.npz.damaged").read_bytes() == data[:left]
    assert_same_bits(again(half), whole)  # the next call finds a whole one


def test_a_changed_byte_is_noticed(half):
    data = bytearray(half.read_bytes())
    data[len(data) // 2] ^= 1
    half.write_bytes(data)
    with pytest.warns(UserWarning, match="damaged"):
        again(half, steps=1)


@pytest.mark.parametrize("content", [b"my thesis", b"PK\x03\x04 another archive" + bytes(200)])
def test_a_foreign_file_is_refused_and_left_alone(tmp_path, content):
    file = tmp_path / "thesis.txt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"checkpoint must be a new name .* was not written by asymptotix"):
        again(file)
    assert file.read_bytes() == content


def test_a_trained_network_is_no_checkpoint(tmp_path, whole):
    whole.save(file := tmp_path / "trained.npz")
    with pytest.raises(ValueError, match="must hold a training checkpoint, got a trained network"):
        again(file)
    assert_same_bits(asx.TrainedPaths.load(file), whole)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learning_rate": 0.5}, r"differs in learning_rate \(there 0.02, here 0.5\)"),
        ({"width": 9, "seed": 3}, r"differs in width \(there 8, here 9\), seed \(there 0, here 3\)"),
        ({"data": random_pair(seed=9)}, "differs in the data"),
        ({"validation": random_pair(seed=6)}, "differs in validation"),
        ({"validation": None}, "differs in validation"),
        ({"steps": 10}, "steps must be at least 20, which the checkpoint .* has done, got 10"),
    ],
)
def test_another_training_is_refused_and_left_alone(half, change, words):
    before = half.read_bytes()
    with pytest.raises(ValueError, match=words):
        again(half, **change)
    assert half.read_bytes() == before


def test_what_cannot_be_written_does_not_end_the_training(tmp_path, whole, monkeypatch):
    def full(*_):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(train_checkpoint, "write_arrays", full)
    with pytest.warns(asx.ConvergenceWarning, match="checkpoint could not be written: .*no space left"):
        found = again(tmp_path / "training.npz")
    assert_same_bits(found, whole)


def test_it_is_written_while_the_training_goes_on(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(train_checkpoint, "SECONDS_BETWEEN_WRITES", 0.0)
    monkeypatch.setattr(train_checkpoint, "SHARE_OF_WRITING", np.inf)
    monkeypatch.setattr(train_checkpoint, "write_arrays", lambda path, header, arrays: written.append(header))
    again(tmp_path / "training.npz")
    assert len(written) > 2
