import pytest

from asymptotix import BayesOptimal, DeepAttention
from asymptotix.core.specification import build, describe, numeric_fields, with_fields
from asymptotix.sequence_index.channels.attention.sign import SignChannel
from asymptotix.sequence_index.channels.attention.two_layers import TwoLayerChannel
from asymptotix.sequence_index.channels.choose import channel_of


def test_defaults_are_the_plain_model():
    model = DeepAttention(layers=2, tokens=2)
    assert (model.rank, model.skip, model.activation, model.output) == (1, 1.0, "softmax", "attention")
    assert model.tied
    assert model.heads == 1
    assert not model.last_skip


def test_ranks_and_indices():
    assert DeepAttention(layers=3, tokens=2, rank=2).ranks == (2, 2, 2)
    model = DeepAttention(layers=2, tokens=3, rank=(1, 3))
    assert model.ranks == (1, 3)
    assert model.indices == 4


def test_equal_descriptions_are_equal_however_they_are_written():
    model = DeepAttention(layers=2, tokens=2, rank=(1, 1), skip=2.0)
    assert DeepAttention(layers=2.0, tokens=2, rank=[1, 1], skip=2) == model  # type: ignore[arg-type]
    assert hash(DeepAttention(layers=2, tokens=2, rank=[1, 1], skip=2)) == hash(model)  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", [1, (1, 1)])
def test_description_round_trip(rank):
    problem = BayesOptimal(DeepAttention(layers=2, tokens=2, rank=rank, skip=0.5), side_information=0.1)
    assert build(describe(problem)) == problem


def test_numbers_of_the_model_can_be_controls_of_the_problem():
    problem = BayesOptimal(DeepAttention(layers=2, tokens=2))
    assert {"skip", "tokens", "layers", "side_information"} <= set(numeric_fields(problem))
    changed = with_fields(problem, skip=4.0, side_information=0.2)
    assert changed == BayesOptimal(DeepAttention(layers=2, tokens=2, skip=4.0), side_information=0.2)


@pytest.mark.parametrize(
    ("layers", "tokens", "activation", "kind"),
    [
        (1, 2, "softmax", SignChannel),
        (1, 7, "softmax", SignChannel),
        (1, 1, "linear", SignChannel),
        (2, 2, "softmax", TwoLayerChannel),
        (2, 2, "linear", TwoLayerChannel),
    ],
)
def test_what_is_covered_has_a_channel(layers, tokens, activation, kind):
    channel = channel_of(DeepAttention(layers=layers, tokens=tokens, activation=activation))
    assert isinstance(channel, kind)
    assert (channel.indices, channel.tokens, channel.outputs) == (layers, tokens, tokens)


def test_layers_are_labelled_from_one():
    assert list(BayesOptimal(DeepAttention(layers=2, tokens=2)).index_labels()) == ["layer 1", "layer 2"]
