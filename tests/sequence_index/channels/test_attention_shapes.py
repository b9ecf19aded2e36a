"""The forward map of every deep attention, its coordinates, and the channel that each gets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import BayesOptimal, DeepAttention, MultiIndex
from asymptotix.numerics.precision import double_precision
from asymptotix.sequence_index.channels.attention.sign import SignChannel
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.channels.tools.root_finding import gauss_newton
from asymptotix.sequence_index.models import attention_map as attention_link
from asymptotix.sequence_index.models import rank_one
from asymptotix.sequence_index.models import rank_one as attention

# Double precision, a few dozen operations on numbers up to about 1e3 (linear layers multiply).
ROUNDING = 1e-11
SHAPES = [
    DeepAttention(2, 3, rank=(2, 1), skip=0.7),
    DeepAttention(2, 2, tied=False, skip=0.7),
    DeepAttention(3, 2, rank=(1, 2, 1), heads=2),
    DeepAttention(2, 3, rank=2, tied=False, heads=2, output="sequence"),
    DeepAttention(2, 2, output="sequence", last_skip=True, skip=0.3, activation="linear"),
]


def normals(model: DeepAttention, count: int = 4, seed: int = 0) -> np.ndarray:
    return 0.6 * np.random.default_rng(seed).standard_normal((count, model.indices, model.tokens))


def named_rows(Z: np.ndarray, model: DeepAttention) -> dict:
    """The rows of one sample by what they are."""
    return {tuple(row): z for row, z in zip(model.rows, Z, strict=True)}


def written_out(Z: np.ndarray, model: DeepAttention) -> np.ndarray:
    """The recursion of one sample with every sum over rows, heads, blocks and tokens as a loop."""
    rows, H, M = named_rows(Z, model), model.heads, model.tokens
    B = [np.eye(M) for _ in range(H)]
    seen = []
    for layer in range(model.layers):
        last, new, seen = layer == model.layers - 1, [], []
        for h in range(H):
            logits = np.zeros((M, M))
            for p in range(model.ranks[layer]):
                key = sum(B[g] @ rows[False, layer, h, g, p] for g in range(H))
                query = key if model.tied else sum(B[g] @ rows[True, layer, h, g, p] for g in range(H))
                logits += np.outer(query, key) / H
            weights = np.exp(logits)
            R = logits if model.activation == "linear" else weights / weights.sum(1, keepdims=True)
            seen.append(R)
            skip = model.skip if not last or model.last_skip else 0.0
            new.append(R @ B[h] + skip * B[h])
        B = new
    found = np.array(seen if model.output == "attention" else B)
    return found if H > 1 else found[0]


@pytest.mark.parametrize("model", SHAPES, ids=str)
def test_output_is_the_recursion(model):
    Z = normals(model)
    expected = [written_out(z, model) for z in Z]
    np.testing.assert_allclose(attention_link.output(Z, model), expected, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("model", SHAPES, ids=str)
def test_numpy_and_jax_agree_and_keep_their_kind(model):
    Z = normals(model)
    with double_precision():
        for function in (attention_link.output, attention_link.coordinates):
            plain, traced = function(Z, model), jax.jit(lambda Z, f=function: f(Z, model))(Z)
            assert isinstance(plain, np.ndarray)
            assert isinstance(traced, jax.Array)
            np.testing.assert_allclose(traced, plain, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("activation", ["softmax", "linear"])
def test_rank_one_is_the_map_it_was(activation):
    model = DeepAttention(3, 3, skip=0.4, activation=activation)
    Z = normals(model)
    np.testing.assert_allclose(
        attention_link.output(Z, model), attention.output(Z, 0.4, activation), rtol=ROUNDING, atol=ROUNDING
    )


def test_untied_with_equal_keys_and_queries_is_tied():
    tied, untied = DeepAttention(2, 3, rank=2), DeepAttention(2, 3, rank=2, tied=False)
    Z = normals(tied)
    both = np.concatenate([Z, Z], 1)
    np.testing.assert_allclose(
        attention_link.output(both, untied), attention_link.output(Z, tied), rtol=ROUNDING, atol=ROUNDING
    )


def test_rows_of_the_softmax_belong_to_queries():
    # A query of length zero attends to all tokens alike, whatever the keys.
    model = DeepAttention(1, 3, tied=False)
    Z = normals(model)
    Z[:, 1, 0] = 0.0
    np.testing.assert_allclose(attention_link.output(Z, model)[:, 0], 1 / 3, rtol=1e-14)


def test_heads_that_see_only_their_own_block_are_single_heads():
    # The rows between different blocks at zero; the logits of H heads carry 1/H.
    many, one = DeepAttention(2, 3, heads=2), DeepAttention(2, 3)
    Z = np.zeros((5, many.indices, 3))
    own = normals(one, 10).reshape(5, 2, 2, 3)  # sample, head, layer, token
    for index, row in enumerate(many.rows):
        if row.head == row.block:
            Z[:, index] = np.sqrt(2) * own[:, row.head, row.layer]
    found = attention_link.output(Z, many)
    for head in range(2):
        np.testing.assert_allclose(
            found[:, head], attention_link.output(own[:, head], one), rtol=ROUNDING, atol=ROUNDING
        )


@pytest.mark.parametrize(("last_skip", "constant"), [(False, 0.0), (True, 0.7)])
def test_output_sequence_of_one_layer_is_its_attention_matrix_plus_a_constant(last_skip, constant):
    matrix = DeepAttention(1, 3, rank=2)
    sequence = DeepAttention(1, 3, rank=2, skip=0.7, output="sequence", last_skip=last_skip)
    Z = normals(matrix)
    expected = attention_link.output(Z, matrix) + constant * np.eye(3)
    np.testing.assert_allclose(attention_link.output(Z, sequence), expected, rtol=1e-14)
    np.testing.assert_array_equal(attention_link.coordinates(Z, sequence), attention_link.coordinates(Z, matrix))


def test_own_activation_is_applied_to_the_logits_in_double_precision():
    model = DeepAttention(2, 2, rank=2, activation=jnp.tanh)
    Z = normals(model)
    linear = DeepAttention(1, 2, rank=2, activation="linear")
    first = np.tanh(attention_link.output(Z[:, :2], linear))
    U = Z[:, 2:] @ np.swapaxes(np.eye(2) + first, 1, 2)
    expected = np.tanh(np.swapaxes(U, 1, 2) @ U)
    np.testing.assert_allclose(attention_link.output(Z, model), expected, rtol=ROUNDING, atol=ROUNDING)


def test_coordinates_of_a_softmax_are_logarithms_of_its_ratios():
    model = DeepAttention(2, 3, rank=2, tied=False)
    Z = normals(model)
    y = np.log(attention_link.output(Z, model))
    ratios = y - np.einsum("nii->ni", y)[:, :, None]
    found = attention_link.coordinates(Z, model)
    np.testing.assert_allclose(found, ratios[:, ~np.eye(3, dtype=bool)], rtol=ROUNDING, atol=ROUNDING)


def test_coordinates_tell_apart_what_the_rounded_output_does_not():
    model = DeepAttention(1, 2)
    Z = np.array([[[7.0, -7.0]], [[7.5, -7.5]]])
    first, second = attention_link.output(Z, model)
    assert abs(first - second).max() < 1e-40
    first, second = attention_link.coordinates(Z, model)
    assert abs(first - second).min() > 1.0


def test_numbers_blocks_and_names_of_the_rows():
    model = DeepAttention(2, 2, rank=(1, 2), tied=False, heads=2)
    assert model.indices == 2 * 4 * 3 == len(model.rows) == len(model.row_labels)
    assert model.row_labels[:2] == ("layer 1 key head 1 block 1", "layer 1 key head 1 block 2")
    assert model.row_labels[5] == "layer 2 key head 1 block 1 row 2"
    assert model.row_labels[-1] == "layer 2 query head 2 block 2 row 2"
    assert [row.block for row in model.rows] == model.groups.tolist()
    assert model.groups[:4].tolist() == [0, 1, 0, 1]
    assert DeepAttention(2, 2, rank=2).row_labels[3] == "layer 2 row 2"
    assert not DeepAttention(3, 2, rank=2).groups.any()


def test_results_are_labelled_by_row():
    labels = BayesOptimal(DeepAttention(1, 2, tied=False)).index_labels()
    assert list(labels) == ["layer 1 key", "layer 1 query"]


def test_sequence_output_of_one_rank_one_layer_has_the_channel_of_its_attention_matrix():
    channel = channel_of(DeepAttention(1, 3, output="sequence", last_skip=True))
    assert isinstance(channel, SignChannel)


@pytest.mark.parametrize(
    ("activation", "message"),
    [(np.tanh, r"activation must be a function that JAX can trace.*ufunc 'tanh'"),
     (lambda x: x[..., 0], r"which returns the shape \(2, 2\)")],
    ids=["not JAX", "wrong shape"],
)  # fmt: skip
def test_activations_that_cannot_be_used_are_named(activation, message):
    with pytest.raises(ValueError, match=message):
        channel_of(DeepAttention(1, 2, activation=activation))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "kind", "outputs"),
    [
        (DeepAttention(2, 2, tied=False), "FibreChannel", 2),
        (DeepAttention(2, 2, output="sequence"), "FibreChannel", 2),
        (DeepAttention(2, 2, heads=2), "FibreChannel", 4),
        (DeepAttention(1, 2, rank=2, activation=jnp.tanh), "FibreChannel", 3),
        (DeepAttention(2, 2, skip=0.0), "TwoLayerChannel", 2),
    ],
    ids=["untied", "sequence", "heads", "tanh", "no skip"],
)
def test_every_other_shape_gets_the_channel_of_a_link(model, kind, outputs):
    channel = channel_of(model)
    assert (type(channel).__name__, channel.outputs) == (kind, outputs)
    assert (channel.indices, channel.tokens) == (model.indices, model.tokens)
    Z = normals(model)
    if kind == "FibreChannel":
        np.testing.assert_allclose(channel.model_output(Z), attention_link.coordinates(Z, model), rtol=ROUNDING)
    tokens = Z @ rank_one.ROTATION if kind == "TwoLayerChannel" else Z  # that channel turns the basis of its tokens
    np.testing.assert_allclose(channel.output(Z), attention_link.output(tokens, model), rtol=ROUNDING, atol=ROUNDING)
    assert (channel.groups is None) == (model.heads == 1)


@pytest.mark.slow
def test_what_newton_would_miss_is_refused():
    with pytest.raises(NotImplementedError, match=r"it shows all 6 indices of a sample.*covered are"):
        channel_of(DeepAttention(2, 3, output="sequence"))


@pytest.mark.slow
def test_roots_near_a_fold_are_found():
    # (z_0^2, z_0 z_1): near z_0 = 0 the roots z_0 and -z_0 are close to each other, and Newton's method is slow.
    channel = channel_of(MultiIndex(lambda z: jnp.stack([z[0] ** 2, z[0] * z[1]]), 2))
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((64, 2, 1))
    Z[:32, 0, 0] = np.geomspace(1e-4, 1e-1, 32)
    V = 1e-2 * np.eye(2)
    omega = Z + 0.1 * rng.standard_normal(Z.shape)
    found = channel.posterior(channel.observe(Z), omega, V)
    # Two roots +-Z with weights N(+-Z; omega, V): the same volume element.
    t = np.tanh((Z * omega).sum((1, 2)) / 1e-2)[:, None, None]
    np.testing.assert_allclose(found.shift + omega, Z * t, atol=1e-6)  # rounding, over z_0


def _softmax(logits):
    return jax.nn.softmax(logits, axis=-1)


@double_precision()
def test_where_a_softmax_saturates_more_than_observed_there_is_no_root():
    def attention(z):
        return _softmax(jnp.outer(z, z)).ravel()

    def near(point):
        return gauss_newton(attention, attention(z), point, 0, 3)

    # Beyond, the first row of the attention matrix is the same, and the second saturates more.
    z, beyond = jnp.array([1.42, -3.62]), jnp.array([(np.sqrt(49 + 4 * 1.42 * 5.04) - 7) / 2, -7.0])
    assert abs(attention(beyond) - attention(z)).max() < 1e-7
    assert not near(beyond)[1]
    for root in (z, -z):
        found, is_root = near(root + 1e-3)
        assert is_root
        np.testing.assert_allclose(found, root, atol=1e-9)


@pytest.mark.slow
def test_posteriors_of_a_saturated_softmax_of_ones_own_are_those_of_the_sign():
    Z = np.array([[-3.04446905, 3.19413861], [1.42711626, -3.62304178], [4.23567751, -2.22404153], [0.3, -1.2]])[
        :, None
    ]
    own, sign = (channel_of(DeepAttention(1, 2, activation=activation)) for activation in (_softmax, "softmax"))
    for q in (0.15, 0.9):
        omega = q * Z + np.sqrt(q * (1 - q)) * np.random.default_rng(0).standard_normal(Z.shape)
        V = np.array([[1 - q]])
        found, expected = (channel.posterior(channel.observe(Z), omega, V) for channel in (own, sign))
        # The slopes of an entry near one have the rounding of one: that of weights is 1e-5 where others are 1e-12.
        np.testing.assert_allclose(found.shift, expected.shift, atol=1e-4)
        np.testing.assert_allclose(found.covariance, expected.covariance, atol=1e-4)
