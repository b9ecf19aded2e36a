"""Attended inputs and outputs of the network against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from asymptotix.attention_paths.network import attending
from asymptotix.attention_paths.network.attended_inputs import AttendedInputs
from asymptotix.attention_paths.network.path_network import AttentionPaths
from asymptotix.attention_paths.network.weights import Weights
from asymptotix.core.specification import build, describe, with_fields
from asymptotix.numerics import memory

ROUNDING = 1e-12  # sums of at most some hundred terms of order one in float64


def random_network(heads, readout: int | str = "mean", features=5, seed=0):
    rng = np.random.default_rng(seed)
    return AttentionPaths(query_key=[rng.standard_normal((H, features, features)) for H in heads], readout=readout)


def random_tokens(examples=3, length=4, features=5, seed=1):
    return np.random.default_rng(seed).standard_normal((examples, length, features))


def brute_force(tokens, attention, readout):
    """Every path over heads, every path over tokens, one product each."""
    examples, length, features = tokens.shape
    ends = range(length) if readout == "mean" else [readout % length]
    heads = [range(A.shape[1]) for A in attention]
    xi = np.zeros((examples, math.prod(len(h) for h in heads), features))
    for mu in range(examples):
        for place, pi in enumerate(itertools.product(*heads)):
            for route in itertools.product(*[range(length)] * len(attention), ends):
                weight = 1.0
                for layer, h in enumerate(pi):
                    weight *= attention[layer][mu, h, route[layer], route[layer + 1]]
                xi[mu, place] += weight * tokens[mu, route[0]] / len(ends)
    return xi


def random_weights(heads, widths, features, outputs=(), seed=2):
    rng = np.random.default_rng(seed)
    V = [rng.standard_normal((H, out, into)) for H, into, out in zip(heads, widths, widths[1:], strict=False)]
    return Weights(rng.standard_normal((widths[0], features)), V, rng.standard_normal((*outputs, widths[-1])))


def path_formula(weights, xi, heads):
    """f = sum_pi Veff^pi V0 xi^pi / sqrt(prod_l H_l N0 N_1), Veff^pi = a^T V^{L,h_L}..V^{1,h_1} / sqrt(N_2..N_a)."""
    features = xi.shape[-1]
    f = np.zeros(len(xi))
    for place, pi in enumerate(itertools.product(*[range(H) for H in heads])):
        row = weights.a / math.sqrt(len(weights.a))
        for V, h in reversed(list(zip(weights.V, pi, strict=True))):
            row = row @ V[h] / math.sqrt(V.shape[-1])
        f += xi[:, place] @ weights.V0.T @ row
    return f / math.sqrt(math.prod(heads) * features)


@pytest.mark.parametrize("readout", ["mean", 0, 2, -1])
@pytest.mark.parametrize("heads", [(3,), (2, 3), (2, 1, 3)])
def test_attended_inputs_equal_enumeration(heads, readout):
    network, tokens = random_network(heads, readout), random_tokens()
    attention = network.attention(tokens)
    expected = brute_force(tokens, attention, readout)
    assert network.paths == math.prod(heads) == expected.shape[1]
    np.testing.assert_allclose(network.attended(tokens), expected, atol=ROUNDING)
    given = AttentionPaths(heads=heads, readout=readout)
    np.testing.assert_allclose(given.attended(AttendedInputs(tokens, attention)), expected, atol=ROUNDING)


def test_attention_is_a_softmax_over_keys_of_unscaled_scores():
    network, tokens = random_network((2, 1)), random_tokens()
    assert network.query_key is not None
    for A, W in zip(network.attention(tokens), network.query_key, strict=True):
        scores = np.einsum("bsi,hij,btj->bhst", tokens, W, tokens)
        expected = np.exp(scores) / np.exp(scores).sum(axis=2, keepdims=True)
        np.testing.assert_allclose(A, expected, atol=ROUNDING)
        np.testing.assert_allclose(A.sum(axis=2), 1, atol=ROUNDING)


def test_chunks_do_not_change_the_answer(monkeypatch):
    network, tokens = random_network((2, 2)), random_tokens(examples=7)
    whole = network.attended(tokens), *network.attention(tokens)
    monkeypatch.setattr(attending, "_CHUNK_BYTES", 2 * 8 * 2 * 4 * 9)  # two examples each
    for one, other in zip(whole, (network.attended(tokens), *network.attention(tokens)), strict=True):
        np.testing.assert_allclose(one, other, atol=ROUNDING)


@pytest.mark.parametrize("readout", ["mean", 1])
@pytest.mark.parametrize(("heads", "widths"), [((2,), (6, 6)), ((2, 3), (6, 6, 6)), ((2, 1, 3), (6, 3, 5, 4))])
def test_path_formula_equals_the_network(heads, widths, readout):
    network, tokens = random_network(heads, readout), random_tokens()
    weights = random_weights(heads, widths, tokens.shape[-1])
    expected = path_formula(weights, network.attended(tokens), heads)
    np.testing.assert_allclose(network.forward(weights, tokens), expected, atol=ROUNDING)
    inputs = AttendedInputs(tokens, network.attention(tokens))
    np.testing.assert_allclose(network.forward(weights, inputs), expected, atol=ROUNDING)


@pytest.mark.parametrize(("heads", "widths"), [((2,), (6, 6)), ((2, 3), (6, 6, 6)), ((2, 1, 3), (6, 3, 5, 4))])
def test_effective_weights_give_the_output(heads, widths):
    network, tokens = random_network(heads), random_tokens()
    weights = random_weights(heads, widths, 5)
    E = network.effective_weights(weights)
    assert E.shape == (network.paths, widths[0])
    f = np.einsum("bpi,ni,pn->b", network.attended(tokens), weights.V0, E) / math.sqrt(network.paths * widths[0] * 5)
    np.testing.assert_allclose(f, network.forward(weights, tokens), atol=ROUNDING)


def test_several_outputs_are_one_after_the_other():
    network, tokens = random_network((2, 3)), random_tokens()
    weights = random_weights((2, 3), (6, 3, 4), 5, outputs=(3,))
    f, E = network.forward(weights, tokens), network.effective_weights(weights)
    assert (f.shape, E.shape) == ((3, 3), (6, 3, 6))
    for c, a in enumerate(weights.a):
        np.testing.assert_allclose(f[:, c], network.forward(weights._replace(a=a), tokens), atol=ROUNDING)
        np.testing.assert_allclose(E[:, c], network.effective_weights(weights._replace(a=a)), atol=ROUNDING)


def test_kernels_of_pairs_of_paths(monkeypatch):
    network, tokens, other = random_network((2, 3)), random_tokens(), random_tokens(examples=2, length=6, seed=7)
    xi, xi_other = network.attended(tokens), network.attended(other)
    expected = np.einsum("ipk,jqk->pqij", xi, xi_other) / 5
    np.testing.assert_allclose(network.path_kernels(tokens, other), expected, atol=ROUNDING)
    own = network.path_kernels(tokens)
    np.testing.assert_allclose(own, np.einsum("ipk,jqk->pqij", xi, xi) / 5, atol=ROUNDING)
    inputs = AttendedInputs(tokens, network.attention(tokens))
    np.testing.assert_allclose(network.path_kernels(inputs, tokens), own, atol=ROUNDING)
    monkeypatch.setattr(memory, "ALWAYS_THERE", 0)
    monkeypatch.setattr(memory, "physical_memory", lambda: 8 * 6**2 * 3**2)  # the answer itself and no more
    with pytest.raises(MemoryError, match=r"path_kernels of 6 x 6 paths on 3 x 3 examples takes .* GiB.*try fewer"):
        network.path_kernels(tokens)


def test_other_inputs_must_have_the_same_features():
    tokens = random_tokens()
    inputs = AttendedInputs(tokens, random_network((2,)).attention(tokens))
    short = AttendedInputs(tokens[..., :4], inputs.attention)
    with pytest.raises(ValueError, match="other must have 5 features, as inputs have, got 4"):
        AttentionPaths(heads=(2,)).path_kernels(inputs, short)


@pytest.mark.parametrize("scaling", ["order one", "fan_in"])
def test_network_from_queries_and_keys(scaling):
    rng = np.random.default_rng(4)
    queries = [rng.standard_normal((2, 3, 5)), rng.standard_normal((1, 7, 5))]
    keys = [rng.standard_normal((2, 3, 5)), rng.standard_normal((1, 7, 5))]
    network = AttentionPaths.from_queries_and_keys(queries, keys, readout=-1, scaling=scaling)
    tokens, root = random_tokens(), math.sqrt(5) if scaling == "order one" else 1.0
    assert (network.heads, network.readout) == ((2, 1), -1)
    for A, WQ, WK in zip(network.attention(tokens), queries, keys, strict=True):
        # Scores q . k / sqrt(G) of the weights W/sqrt(N0), or of w itself, heads one by one.
        for h in range(len(WQ)):
            q, k = tokens @ WQ[h].T / root, tokens @ WK[h].T / root
            weight = np.exp(np.einsum("bsg,btg->bst", k, q) / math.sqrt(WQ.shape[1]))
            np.testing.assert_allclose(A[:, h], weight / weight.sum(axis=1, keepdims=True), atol=ROUNDING)


@pytest.mark.parametrize(
    ("queries", "keys", "message"),
    [
        (np.ones((2, 3, 5)), [np.ones((2, 3, 5))], "queries must be a sequence"),
        ([np.ones((2, 3, 5))], "keys", "keys must be a sequence"),
        ([np.ones((2, 3, 5))], [np.ones((2, 3, 5))] * 2, "keys must have 1 layers, as many as queries, got 2"),
        ([np.ones((2, 3, 5))], [np.ones((2, 4, 5))], r"keys\[0\] must have shape \(2, 3, 5\), got \(2, 4, 5\)"),
        ([np.ones((2, 3, 5)), np.ones((2, 3, 4))], [np.ones((2, 3, 5)), np.ones((2, 3, 4))], r"query_key\[1\] must"),
        ([np.full((2, 3, 5), np.inf)], [np.ones((2, 3, 5))], r"queries\[0\] must be finite"),
        ([np.ones((2, 3, 5))], [np.full((2, 3, 5), np.nan)], r"keys\[0\] must not contain nan"),
    ],
)
def test_bad_queries_and_keys(queries, keys, message):
    with pytest.raises((ValueError, TypeError), match=message):
        AttentionPaths.from_queries_and_keys(queries, keys)


def test_a_scaling_that_is_none():
    given = [np.ones((2, 3, 5))]
    with pytest.raises(ValueError, match=r"scaling must be one of .*'order one'.*'fan_in', got 'torch'"):
        AttentionPaths.from_queries_and_keys(given, given, scaling="torch")


def test_reprs_are_short():
    tokens, network = random_tokens(), random_network((2, 3), readout=1)
    assert repr(network) == "AttentionPaths(query_key: (2, 5, 5), (3, 5, 5); heads=(2, 3), readout=1)"
    assert repr(AttentionPaths(heads=(2, 3))) == "AttentionPaths(heads=(2, 3), readout='mean')"
    inputs = AttendedInputs(tokens, network.attention(tokens))
    assert repr(inputs) == "AttendedInputs(tokens: (3, 4, 5); attention: (3, 2, 4, 4), (3, 3, 4, 4))"


def test_very_large_scores_do_not_overflow():
    network, tokens = random_network((2,)), 1e3 * random_tokens()
    A = network.attention(tokens)[0]
    np.testing.assert_allclose(A.sum(axis=2), 1, atol=ROUNDING)
    with pytest.raises(ValueError, match="overflow"):
        network.attended(1e200 * tokens)


def test_heads_and_layers():
    assert AttentionPaths(layers=3, heads=2).heads == (2, 2, 2)
    assert AttentionPaths(heads=(2, 1)).layers == 2
    assert AttentionPaths(layers=2).paths == 1
    assert random_network((2, 3)).heads == (2, 3)
    assert random_network((2, 3)).paths == 6


@pytest.mark.parametrize("network", [random_network((2, 1), 3), AttentionPaths(layers=2, heads=(2, 1))])
@pytest.mark.parametrize("beside", [None, {}])
def test_description_can_be_rebuilt(network, beside):
    again = build(describe(network, arrays=beside), arrays=beside)
    assert (again.heads, again.readout) == (network.heads, network.readout)
    for one, other in zip(again.query_key or (), network.query_key or (), strict=True):
        np.testing.assert_array_equal(one, other)
    assert with_fields(network, readout=-1).readout == -1


def test_attended_inputs_can_be_rebuilt():
    tokens = random_tokens()
    inputs = AttendedInputs(tokens, random_network((2, 1)).attention(tokens))
    again = build(describe(inputs))
    assert len(again) == len(inputs) == 3
    np.testing.assert_array_equal(again.tokens, inputs.tokens)
    np.testing.assert_array_equal(again.attention[1], inputs.attention[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "layers must be given"),
        ({"layers": 0}, "layers must be an integer of at least 1"),
        ({"layers": 3, "heads": (2, 2)}, "layers must be 2"),
        ({"heads": (2, 0)}, r"heads\[1\] must be"),
        ({"layers": 2, "readout": "last"}, "readout must be one of 'mean'"),
        ({"layers": 2, "readout": 1.5}, "readout must be an integer"),
        ({"query_key": np.ones((2, 5, 5))}, "query_key must be a sequence"),
        ({"query_key": [np.ones((2, 5, 4))]}, r"query_key\[0\] must have shape"),
        ({"query_key": [np.ones((2, 5, 5)), np.ones((2, 4, 4))]}, r"query_key\[1\] must have shape"),
        ({"query_key": [np.full((2, 5, 5), np.inf)]}, r"query_key\[0\] must be finite"),
        ({"query_key": [np.ones((2, 5, 5))], "heads": 3}, "heads must be those of query_key"),
        ({"query_key": [np.ones((2, 5, 5))], "layers": 2}, "layers must be 1"),
    ],
)
def test_bad_network(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        AttentionPaths(**options)


def test_bad_attended_inputs():
    tokens = random_tokens()
    A = random_network((2,)).attention(tokens)[0]
    with pytest.raises(ValueError, match="columns that sum to one"):
        AttendedInputs(tokens, (A.swapaxes(-1, -2),))
    with pytest.raises(ValueError, match=r"attention\[0\] must have shape \(3, any, 4, 4\)"):
        AttendedInputs(tokens, (A[:2],))
    off = A.copy()
    off[1, 0, :, 2] *= 1.01
    with pytest.raises(ValueError, match=r"attention\[0\] must have columns .* off by up to 0.01"):
        AttendedInputs(tokens, (off,))
    with pytest.raises(ValueError, match=r"attention\[1\] must not contain nan"):
        AttendedInputs(tokens, (A, np.nan * A))
    with pytest.raises(ValueError, match=r"attention\[0\] must be finite"):
        AttendedInputs(tokens, (np.where(A.max() > A, A, np.inf),))
    for bad, complaint in ((np.nan, "not contain nan"), (np.inf, "be finite")):
        poisoned = np.where(tokens == tokens.max(), bad, tokens)
        with pytest.raises(ValueError, match=f"tokens must {complaint}"):
            AttendedInputs(poisoned, (A,))
        with pytest.raises(ValueError, match=f"inputs must {complaint}"):
            random_network((2,)).attended(poisoned)
    with pytest.raises(TypeError, match="attention must be a sequence"):
        AttendedInputs(tokens, A)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tokens must have shape"):
        AttendedInputs(tokens[0], (A,))
    with pytest.raises(ValueError, match="tokens must not be empty"):
        AttendedInputs(tokens[:0], (A[:0],))


def test_inputs_that_do_not_fit_the_network():
    tokens = random_tokens()
    A = random_network((2,)).attention(tokens)[0]
    with pytest.raises(ValueError, match="this network has no query_key"):
        AttentionPaths(layers=1, heads=2).attended(tokens)
    with pytest.raises(ValueError, match=r"must have \(3,\) heads"):
        AttentionPaths(layers=1, heads=3).attended(AttendedInputs(tokens, (A,)))
    with pytest.raises(ValueError, match="5 features"):
        random_network((2,)).attended(tokens[..., :4])
    with pytest.raises(ValueError, match="readout must be a token index below 4"):
        random_network((2,), readout=4).attended(tokens)
    with pytest.raises(ValueError, match=r"weights.V\[0\] must have shape"):
        random_network((2,)).forward(random_weights((3,), (6, 6), 5), tokens)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"V0": np.full((6, 5), np.nan)}, "weights.V0 must not contain nan"),
        ({"V0": np.ones((6, 4))}, r"weights.V0 must have shape \(any, 5\), got \(6, 4\)"),
        ({"V": (np.full((2, 3, 6), np.inf),)}, r"weights.V\[0\] must be finite"),
        ({"V": np.ones((2, 3, 6))}, "weights.V must be a sequence"),
        ({"V": (np.ones((2, 3, 6)),) * 2}, "weights.V must hold one array per layer, 1, got 2"),
        ({"a": np.full(3, np.nan)}, "weights.a must not contain nan"),
        ({"a": np.full((2, 3), np.inf)}, "weights.a must be finite"),
        ({"a": np.ones(4)}, r"weights.a must have shape \(3\), got \(4,\)"),
        ({"a": np.ones((1, 2, 3))}, r"weights.a must have shape \(3,\) or \(outputs, 3\), got \(1, 2, 3\)"),
    ],
)
def test_bad_weights(change, message):
    weights = random_weights((2,), (6, 3), 5)._replace(**change)
    with pytest.raises((ValueError, TypeError), match=message):
        random_network((2,)).forward(weights, random_tokens())


def test_weights_must_be_weights():
    with pytest.raises(TypeError, match=r"weights must be Weights\(V0, V, a\), got tuple"):
        random_network((2,)).effective_weights((1, 2, 3))  # type: ignore[arg-type]


@pytest.mark.parametrize(("layers", "heads"), [(3, 5000), (40, 2), (1000, 2**31)])
def test_more_paths_than_memory_holds_are_refused(layers, heads):
    with pytest.raises(MemoryError, match=r"order parameter of .* paths takes .*; try fewer heads or layers"):
        AttentionPaths(layers=layers, heads=heads)


def test_attended_inputs_beyond_memory_are_refused(monkeypatch):
    monkeypatch.setattr("asymptotix.numerics.memory.physical_memory", lambda: 2**28)
    network = AttentionPaths(query_key=[np.zeros((40, 4, 4))] * 2)
    with pytest.raises(MemoryError, match="attending 10000 examples along 1600 paths takes"):
        network.attended(np.zeros((10_000, 1, 4)))
