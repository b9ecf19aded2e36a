"""Infinite depth: the mixing matrix against its definition, closed forms and finite depth."""

from decimal import Decimal

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import BayesOptimal, DeepAttention, InfiniteDepthAttention, solve
from asymptotix.core.specification import build, describe
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.models import rank_one as attention
from asymptotix.sequence_index.models.infinite_depth import limiting_logs
from asymptotix.sequence_index.observables import prediction_errors


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


def average_on_differences(log_b: float, t: float) -> float:
    """E[tau] of two tokens, rank one, B = (b, e^t): tau = sinh(b^2 m^2)/(cosh(b^2 m^2) + cosh(b e^t m p)).

    By the trapezoidal rule in log m and in asinh(p e^t/(b m)), whose range follows the narrow peak around p = 0.
    """
    step, ratio = 0.15, np.exp(t - log_b)
    m = np.exp(np.arange(-14, 2.2, step))[:, None]
    x = np.arange(0, np.arcsinh(400 * ratio) + step, step)
    p = np.sinh(x) * m / ratio
    alike, other = (np.exp(log_b) * m) ** 2, np.exp(log_b + t) * m * p
    top = np.maximum(alike, other)
    up, down, left, right = (np.exp(sign * y - top) for y in (alike, other) for sign in (1, -1))
    weights = 4 * step**2 * m * np.cosh(x) * m / ratio * np.exp(-0.5 * (m**2 + p**2)) / (2 * np.pi)
    weights[:, 0] /= 2
    return float((weights * (up - down) / (up + down + left + right)).sum())


@pytest.mark.slow
def test_mixing_of_two_tokens_from_deep_to_shallow():
    # Only the time 1/beta enters: one integration serves all. Sobol draws leave 3e-5 in the rate, and where the rate is
    # small few of them carry it: 3e-4 in its integral (against four times as many draws).
    from scipy.integrate import solve_ivp

    betas = np.array([2.0, 0.3, 0.1, 0.01, 1e-4])
    times = np.minimum(1 / betas, 36.0)
    reference = solve_ivp(
        lambda t, y: [average_on_differences(y[0], t)], (0, 36), [0.0], rtol=1e-4, atol=1e-6, dense_output=True
    )
    found = np.array([limiting_logs(InfiniteDepthAttention(2, beta)) for beta in betas])
    assert abs(found[:, 0] - reference.sol(times)[0]).max() < 5e-4
    np.testing.assert_allclose(found[:, 1], 1 / betas, rtol=1e-14)


@pytest.mark.parametrize("beta", [1e-4, 0.002, 0.01, 0.03, 0.1, 0.5, 2.0])
def test_output_against_numbers_of_any_size(beta):
    # y_11 = 1/(1 + exp(-x)), x = b_0 m (b_0 m + e^{1/beta} p), in decimal arithmetic, whose exponents do not overflow.
    model, Z = InfiniteDepthAttention(2, beta), np.random.default_rng(3).standard_normal((20, 1, 2))
    b0, b1 = Decimal(float(np.exp(limiting_logs(model)[0]))), (1 / Decimal(beta)).exp()
    m, p = ((Z[:, 0, 0] + sign * Z[:, 0, 1]) / np.sqrt(2) for sign in (-1, 1))
    logits = [b0 * Decimal(a) * (b0 * Decimal(a) + b1 * Decimal(b)) for a, b in zip(m, p, strict=True)]
    expected = [float(1 / (1 + (-min(max(x, Decimal(-800)), Decimal(800))).exp())) for x in logits]
    np.testing.assert_allclose(model.evaluate(Z)[:, 0, 0], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("beta", [1e-4, 0.002, 0.01, 0.03])
def test_errors_of_very_strong_mixing(beta):
    # Both rows point at the token with the larger product: y = y' where sign(m p) = sign(m' p'), each of the two pairs
    # of normals having correlation q; |y - y'|^2 = 4 elsewhere.
    q, model = 0.6, InfiniteDepthAttention(2, beta)
    value, error = prediction_errors(channel_of(model), np.array([[1 - q]]))
    angle = np.arccos(q) / np.pi
    assert abs(value[0] - 4 * angle * (1 - angle)) < 4 * error[0] < 0.02


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
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-14)


def test_average_attention_matrix_of_two_tokens():
    # Rank one, B = I: E[R_11 - R_12] = E[tanh] of half the logit, by Gauss-Hermite quadrature in the rotated basis.
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    m, p = np.meshgrid(nodes, nodes)
    tau = 0.5 * (np.tanh((m**2 + m * p) / 2) + np.tanh((m**2 - m * p) / 2))
    expected = (np.outer(weights, weights) * tau).sum() / (2 * np.pi)
    beta = 1e-1
    found = InfiniteDepthAttention(2, beta, limit="first_order").mixing
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
        ({"beta": float("inf")}, "beta must be finite, got inf"),
        ({"beta": 1e-320}, "beta must be at least 1e-100"),
        ({"limit": "oed"}, "limit"),
        ({"activation": "relu"}, "activation"),
        ({"rank": 0}, "rank"),
        ({"beta": 4.0, "rank": 2, "activation": "linear"}, r"beta must exceed twice the rank \(4\).* got 4.0"),
    ],
)
def test_bad_input_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        InfiniteDepthAttention(**{"tokens": 2, "beta": 1.0, **changes})
