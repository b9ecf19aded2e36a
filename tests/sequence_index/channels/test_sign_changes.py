"""A channel that says `diagonal` is asked whether the signs of its indices are really unseen."""

import numpy as np
import pytest

from asymptotix import Status
from asymptotix.sequence_index.channels.attention.sign import SignChannel
from asymptotix.sequence_index.channels.attention.two_layers import TwoLayerChannel
from asymptotix.sequence_index.channels.sign_changes import refuse_seen_signs
from asymptotix.sequence_index.evolution.fixed_points import StateEvolution
from small_channels import LinearMap, RotatedSquares

TURNED = np.array([[0.8, 0.6], [-0.6, 0.8]])


def linear(diagonal: bool) -> LinearMap:
    """y = z, whose sign is seen."""
    channel = LinearMap([[1.0]])
    channel.diagonal = diagonal
    return channel


@pytest.mark.parametrize("channel", [linear(True), RotatedSquares(TURNED, diagonal=True)], ids=["z", "turned squares"])
def test_a_sign_that_is_seen_is_an_error(channel):
    with pytest.raises(ValueError, match=r"diagonal of \w+ must be True only .* index 1 .*: set diagonal = False"):
        StateEvolution(channel).uninformed(0.3, tolerance=1e-2)


def test_with_the_flag_taken_back_it_is_learned():
    """At alpha = 0.3 the overlap of y = z is alpha: nothing is learned only for who takes it for diagonal."""
    found = StateEvolution(linear(False)).uninformed(0.3, tolerance=1e-2)
    assert found.how is Status.CONVERGED
    assert abs(found.q.item() - 0.3) < 1e-2


@pytest.mark.parametrize(
    "channel",
    [SignChannel(2, "softmax"), TwoLayerChannel(1.0, "softmax", "numba"), RotatedSquares(np.eye(2), diagonal=True)],
    ids=["one layer", "two layers", "squares"],
)
def test_signs_that_are_unseen_pass(channel):
    assert channel.diagonal
    refuse_seen_signs(channel)


def test_a_channel_that_is_not_diagonal_is_not_asked():
    refuse_seen_signs(linear(False))
