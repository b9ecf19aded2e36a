"""Infinite depth: the mixing matrix against its definition, closed forms and finite depth."""

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import BayesOptimal, DeepAttention, InfiniteDepthAttention, solve
from asymptotix.core.specification import build, describe
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.models import rank_one as attention
from asymptotix.sequence_index.models.infinite_depth import limiting_mixing


def finite_depth(layers: int, tokens: int, rank: int, beta: float, count: int = 64, seed: int = 0) -> np.ndarray:
    """B before the last of so many layers, (count, M, M), drawn layer by layer."""
    rng = np.random.default_rng(seed)
    B = np.broadcast_to(np.eye(tokens), (count, tokens, tokens))
    for _ in range(layers - 1):
        U = rng.standard_normal((count, rank, tokens)) @ np.swapaxes(B, 1, 2)
        B = B + attention.activate(np.swapaxes(U, 1, 2) @ U, "softmax") @ B / (beta * layers)
    return B


@pytest.mark.parametrize(("tokens", "rank"), [(2, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("beta", [0.7, 4.0])
def test_finite_depth_tends_to_the_limit(tokens, rank, beta):
    model = InfiniteDepthAttention(tokens, beta, rank=rank)
    scatter = []
    for layers in (32, 128, 512):
        B = finite_depth(layers, tokens, rank, beta)
        scatter.append(B.std(0).max())
        # Beyond the scatter of the mean, the depth itself costs O(1/L): the Euler step of the differential equation.
        allowed = 5 * B.std(0) / np.sqrt(len(B)) + 2.0 * np.exp(1 / beta) / (beta * min(beta, 1.0) * layers)
        assert (abs(B.mean(0) - model.mixing) < allowed).all()
    # Fluctuations fall like 1/sqrt(L): by four over these depths, up to the 9 % that 64 draws leave in each.
    assert 3.0 < scatter[0] / scatter[2] < 5.3


@pytest.mark.parametrize("tokens", [2, 4])
def test_rows_sum_to_what_the_skip_connections_add_up_to(tokens):
    beta = 1.3
    limit, first = (InfiniteDepthAttention(tokens, beta, limit=limit).mixing for limit in ("ode", "first_order"))
    np.testing.assert_allclose(limit.sum(1), np.exp(1 / beta), rtol=1e-7)  # tolerance of the integrator
    np.testing.assert_allclose(first.sum(1), 1 + 1 / beta, rtol=1e-14)


def test_first_order_is_the_first_order():
    # Halving 1/beta divides the difference by four.
    gaps = []
    for beta in (50.0, 100.0):
        limit, first = (InfiniteDepthAttention(2, beta, limit=limit).mixing for limit in ("ode", "first_order"))
        gaps.append(abs(limit - first).max())
    assert 3.9 < gaps[0] / gaps[1] < 4.1  # the third order is 2 % of the second
    assert gaps[0] < 50.0**-2


def test_linear_activation_is_a_closed_form():
    rank, beta = 2, 5.0
    expected = np.eye(3) / np.sqrt(1 - 2 * rank / beta)
    found = InfiniteDepthAttention(3, beta, rank=rank, activation="linear").mixing
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)  # tolerance of the integrator


def test_average_attention_matrix_of_two_tokens():
    # Rank one, B = I: E[R_11 - R_12] = E[tanh] of half the logit, by Gauss-Hermite quadrature in the rotated basis.
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    m, p = np.meshgrid(nodes, nodes)
    tau = 0.5 * (np.tanh((m**2 + m * p) / 2) + np.tanh((m**2 - m * p) / 2))
    expected = (np.outer(weights, weights) * tau).sum() / (2 * np.pi)
    beta = 1e-1
    found = limiting_mixing(InfiniteDepthAttention(2, beta, limit="first_order"))
    # 2^13 quasi-random draws of a smooth function: about 3e-5; and the quadrature, about 1e-4 (tanh has poles nearby).
    assert abs(beta * (found[0, 0] - found[0, 1] - 1) - expected) < 3e-4


def test_output_is_the_last_layer():
    model = InfiniteDepthAttention(3, 2.0, rank=2)
    Z = np.random.default_rng(0).standard_normal((5, 2, 3))
    U = np.einsum("npm,im->npi", Z, model.mixing)
    weights = np.exp(np.einsum("npi,npj->nij", U, U))
    expected = weights / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(channel_of(model).output(Z), expected, rtol=1e-12)
    np.testing.assert_allclose(model.evaluate(jnp.asarray(Z)), expected, rtol=2e-4)  # JAX's single precision


def test_overlaps_are_those_of_one_layer_and_errors_are_not():
    deep, one = (
        solve(BayesOptimal(model), alpha=0.12, tolerance=2e-2, progress=False)
        for model in (InfiniteDepthAttention(3, 1.0), DeepAttention(1, 3))
    )
    np.testing.assert_array_equal(deep.overlap.values, one.overlap.values)
    assert 0.05 < deep.overlap.values[0, 0] < 0.95
    assert abs(float(deep.test_error) - float(one.test_error)) > 0.01


def test_posterior_is_that_of_one_layer_at_rank_two():
    # Checked against what the output itself fixes: its coordinates are the same along the fibre that the channel names.
    model, beta = InfiniteDepthAttention(2, 1.0, rank=2), 0.4
    Z = np.random.default_rng(1).standard_normal((6, 2, 2))
    difference, total = Z[:, :, 0] - Z[:, :, 1], Z[:, :, 0] + Z[:, :, 1]
    across = np.stack([-difference[:, 1], difference[:, 0]], 1)
    moved = total + beta * across  # the sum of the tokens moved at right angles to their difference
    other = np.stack([0.5 * (moved + difference), 0.5 * (moved - difference)], 2)
    channel = channel_of(model)
    np.testing.assert_allclose(channel.output(other), channel.output(Z), rtol=1e-10)
    np.testing.assert_allclose(channel.observe(other), channel.observe(Z), rtol=1e-10)


def test_description_round_trip_and_labels():
    problem = BayesOptimal(InfiniteDepthAttention(tokens=2, beta=3, rank=2))
    assert build(describe(problem)) == problem
    assert list(problem.index_labels()) == ["last layer row 1", "last layer row 2"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": 0.0}, "beta must be positive, got 0"),
        ({"limit": "oed"}, "limit"),
        ({"activation": "relu"}, "activation"),
        ({"rank": 0}, "rank"),
        ({"beta": 4.0, "rank": 2, "activation": "linear"}, r"beta must exceed twice the rank \(4\).* got 4.0"),
    ],
)
def test_bad_input_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        InfiniteDepthAttention(**{"tokens": 2, "beta": 1.0, **changes})
