"""Which models have a channel, and what a channel promises about itself."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import AttentionIndex, BayesOptimal, DeepAttention, InfiniteDepthAttention, MultiIndex, SequenceIndex
from asymptotix.core.specification import Specification
from asymptotix.sequence_index.channels.attention.sign import SignAverager
from asymptotix.sequence_index.channels.choose import channel_of, covers
from asymptotix.sequence_index.channels.protocol import MANY_EFFECTIVE_SAMPLES, Channel
from small_channels import Drawn, Square


def first(z):
    return z[0]


@pytest.mark.parametrize(
    "model",
    [
        DeepAttention(1, 2),
        InfiniteDepthAttention(2, 1.0),
        SequenceIndex(lambda Z: Z.sum(), 1, 2),
        MultiIndex(first, 1),
    ],
)
def test_models_of_this_theory_are_covered(model):
    assert covers(model)
    channel = channel_of(model)
    assert (channel.indices, channel.tokens) == (model.indices, model.tokens)
    assert type(BayesOptimal(model).theory).__name__ == "SequenceIndexTheory"


def test_others_are_not_covered():
    assert not covers(AttentionIndex())
    with pytest.raises(TypeError, match="DeepAttention, InfiniteDepthAttention, SequenceIndex or MultiIndex"):
        channel_of(AttentionIndex())
    assert type(BayesOptimal(AttentionIndex()).theory).__name__ == "AttentionIndexInference"


class OwnTheory:
    """What somebody else's theory may look like."""

    def __init__(self, problem) -> None:
        self.problem = problem

    def index_labels(self):
        return ("mine",)


@dataclass(frozen=True)
class OwnModel(Specification):
    """A model from outside of this package, with its own theory."""

    tokens: int = 1

    def bayes_optimal_theory(self) -> type:
        return OwnTheory


def test_a_model_may_bring_its_own_theory():
    assert BayesOptimal(OwnModel()).index_labels() == ("mine",)


def test_another_output_leaves_the_channel_as_it_was():
    channel, Z = channel_of(DeepAttention(1, 3)), np.random.default_rng(0).standard_normal((5, 1, 3))
    own = channel.output(Z)
    seen = channel.with_output(lambda Z: 2 * Z)
    np.testing.assert_array_equal(seen.output(Z), 2 * Z)
    np.testing.assert_array_equal(seen.model_output(Z), own)
    np.testing.assert_array_equal(channel.output(Z), own)
    np.testing.assert_array_equal(seen.observe(Z), channel.observe(Z))


def test_what_is_known_without_sampling():
    one, two = channel_of(DeepAttention(1, 3)), channel_of(DeepAttention(2, 2))
    assert isinstance(one.exact_averager(), SignAverager)
    assert two.exact_averager() is None
    found = one.curvature_at_zero()
    assert found is not None
    np.testing.assert_array_equal(found.value, [12.0])  # M (M + 1)
    assert one.curvature_is_control
    assert two.curvature_is_control
    linear = channel_of(DeepAttention(3, 2, activation="linear"))
    assert linear.curvature_at_zero() is None  # tails that no list reaches
    assert not linear.curvature_is_control
    assert channel_of(DeepAttention(1, 2, rank=2)).curvature_at_zero() is None


def test_channels_that_fold_their_nodes_say_so():
    folding = [channel_of(DeepAttention(layers, 2)) for layers in (1, 2, 3)]
    assert [channel.folds_symmetries for channel in folding] == [False, True, False]
    for channel in folding:
        assert channel.folds_symmetries == (type(channel).draw_indices is not Channel.draw_indices)


def test_more_effective_draws_are_asked_for_where_there_are_enough_draws():
    drawn = Drawn(Square([1.0]), 0.1)
    assert drawn.careful_enough is None
    drawn.draws = int(4 * MANY_EFFECTIVE_SAMPLES)
    assert drawn.careful_enough == MANY_EFFECTIVE_SAMPLES
    assert Square([1.0]).careful_enough is None


@pytest.mark.slow
def test_only_channels_with_a_program_for_it_change_in_single_precision():
    one, two = channel_of(DeepAttention(1, 2)), channel_of(DeepAttention(2, 2), "jax")
    assert one.in_single_precision() is one
    Z = np.random.default_rng(0).standard_normal((4, 2, 2))
    single = two.in_single_precision()
    assert single.posterior(two.observe(Z), 0 * Z, np.eye(2)).shift.dtype == np.float32


@pytest.mark.parametrize(
    "model",
    [
        MultiIndex(lambda z: jnp.cos(z[0]), 1),
        MultiIndex(lambda z: jnp.sin(z[0] * z[1]) + z[2], 3, noise=0.1),
        DeepAttention(layers=3, tokens=2),
    ],
)
def test_outputs_are_in_double_precision_in_any_thread(model):
    """Averages call them in threads, each of which has JAX's precision for itself."""
    channel = channel_of(model)
    Z = np.random.default_rng(0).standard_normal((16, channel.indices, channel.tokens))
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(lambda: np.asarray(channel.output(Z))).result()
    assert there.dtype == np.float64
    np.testing.assert_array_equal(there, np.asarray(channel.output(Z)))
