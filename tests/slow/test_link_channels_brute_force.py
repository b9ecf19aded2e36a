"""Channels of links that take long to compile: against brute force, other channels and closed forms."""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import norm

from asymptotix.sequence_index.channels.attention.two_layers import TwoLayerChannel
from asymptotix.sequence_index.channels.choose import channel_of, channel_of_link
from asymptotix.sequence_index.channels.links.fibre import NoisyFibreChannel
from asymptotix.sequence_index.channels.links.lines import LineChannel
from asymptotix.sequence_index.channels.links.link_kind import link_kind
from asymptotix.sequence_index.channels.protocol import Accuracy, Posterior, score
from asymptotix.sequence_index.models import rank_one as attention
from asymptotix.sequence_index.models.link import MultiIndex, SequenceIndex
from asymptotix.sequence_index.models.observed_link import ObservedLink
from link_brute_force import (
    CORRELATED,
    TWO_INDEX_PRIORS,
    draw,
    in_own_units,
    log_normal,
    moments_of,
    on_grid,
    outputs_of,
    worst_error,
)

pytestmark = pytest.mark.slow


def sign(z):
    return jnp.sign(z[0])


def sign_of_product(z):
    return jnp.sign(z[0] * z[1])


def radius(z):
    return z[0] ** 2 + z[1] ** 2


@lru_cache
def channel(link, indices: int = 1, noise: float = 0.0):
    return channel_of_link(MultiIndex(link, indices, noise))


def quadrant_posterior(y: float, omega: np.ndarray, V: np.ndarray):
    """The two quadrants of the observed sign by Gauss-Legendre squares of side 9 deviations."""
    nodes, weights = np.polynomial.legendre.leggauss(160)
    deviation = np.sqrt(np.diag(V))
    parts = []
    for first in (1.0, -1.0):
        signs = np.array([first, first * y])
        lengths = abs(omega) + 9 * deviation
        axes = [s * 0.5 * length * (nodes + 1) for s, length in zip(signs, lengths, strict=True)]
        x = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2) - omega
        cell = np.log(np.multiply.outer(weights, weights).ravel() * lengths.prod() / 4)
        parts.append((log_normal(x, V) + cell, x))
    return moments_of(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def test_sign_of_a_product_of_two_indices() -> None:
    plane = channel(sign_of_product, 2)
    assert plane.outputs == 0
    assert not plane.stochastic
    for V in TWO_INDEX_PRIORS:
        Z, omega, y = draw(plane, V, 8)
        outputs = outputs_of(plane, Z, y)[:, 0]
        expected = [quadrant_posterior(float(outputs[i]), omega[i, :, 0], V) for i in range(8)]
        # The brute force is the limit: 160 nodes over up to 40 deviations.
        assert worst_error(in_own_units(plane, plane.posterior(y, omega, V), y), expected, V).max() < 1e-6


def rotated(z):
    """A link of full rank, with two roots z and -z."""
    return jnp.stack([z[0] * z[1], z[0] ** 2 - z[1] ** 2])


def test_full_rank_is_a_sum_over_roots() -> None:
    roots = channel(rotated, 2)
    assert roots.outputs == 2
    for V in (0.7 * np.eye(2), CORRELATED, 0.02 * CORRELATED):
        Z, omega, y = draw(roots, V, 64)
        expected = []
        for i in range(64):
            z = np.stack([Z[i, :, 0], -Z[i, :, 0]])
            x = z - omega[i, :, 0]
            expected.append(moments_of(log_normal(x, V) - np.log(2 * (z**2).sum(1)), x))
        assert worst_error(in_own_units(roots, roots.posterior(y, omega, V), y), expected, V).max() < 1e-8


def test_sign_with_noise_is_a_mixture_of_cut_gaussians() -> None:
    noisy, v = channel(sign, 1, 0.4), 0.3
    Z, omega, y = draw(noisy, np.array([[v]]), 40)
    outputs = outputs_of(noisy, Z, y)
    t, likely = omega[:, 0, 0] / np.sqrt(v), np.exp(-0.5 * (outputs - np.array([1.0, -1.0])) ** 2 / 0.4)
    evidence = likely[:, 0] * norm.cdf(t) + likely[:, 1] * norm.cdf(-t)
    found = in_own_units(noisy, noisy.posterior(y, omega, np.array([[v]])), y)
    shift = np.sqrt(v) * norm.pdf(t) * (likely[:, 0] - likely[:, 1]) / evidence
    # The jump lies inside a cell of the last level, 17/48/2^14 = 2e-5 deviations wide.
    np.testing.assert_allclose(found.log_evidence, np.log(evidence / np.sqrt(2 * np.pi * 0.4)), atol=2e-5)
    np.testing.assert_allclose(found.shift[:, 0, 0], shift, atol=2e-5)


def circle_posterior(y: float, omega: np.ndarray, V: np.ndarray):
    """On the circle of radius sqrt(y), ds/|grad g| = dangle/2; the trapezoidal rule of a periodic function."""
    angle = np.arange(20000) * 2 * np.pi / 20000
    x = np.sqrt(y) * np.stack([np.cos(angle), np.sin(angle)], 1) - omega
    return moments_of(log_normal(x, V) + np.log(np.pi / 20000), x)


def test_curves_with_turning_points() -> None:
    curve = channel(radius, 2)
    for V in (0.7 * np.eye(2), CORRELATED, 0.02 * CORRELATED):
        Z, omega, _ = draw(curve, V, 16)
        Z[:3] *= np.array([1e-1, 1e-2, 1e-3])[:, None, None]  # small circles, which a grid of lines could miss
        y, outputs = curve.observe(Z), curve.model_output(Z)[:, 0]
        expected = [circle_posterior(float(outputs[i]), omega[i, :, 0], V) for i in range(16)]
        found = in_own_units(curve, curve.posterior(y, omega, V), y)
        # 384 lines either way: typical circles to a few 1e-6, those of a thousandth of the window to 1e-4.
        assert worst_error(found, expected, V).max() < 1e-4
        typical = Posterior(*(x[3:] for x in found[:3]))
        assert worst_error(typical, expected[3:], V).max() < 5e-6


def test_two_indices_with_noise() -> None:
    noise = 0.05
    noisy = channel(radius, 2, noise)

    def log_likelihood(y: float, z: np.ndarray) -> np.ndarray:
        return -0.5 * (y - (z**2).sum(1)) ** 2 / noise - 0.5 * np.log(2 * np.pi * noise)

    for V in (0.7 * np.eye(2), 0.02 * CORRELATED):
        Z, omega, y = draw(noisy, V, 6)
        outputs = outputs_of(noisy, Z, y)[:, 0]
        expected = [on_grid(partial(log_likelihood, float(outputs[i])), omega[i, :, 0], V, 900) for i in range(6)]
        assert worst_error(in_own_units(noisy, noisy.posterior(y, omega, V), y), expected, V).max() < 1e-6


def test_noise_too_small_for_the_cells_is_refused() -> None:
    noisy = channel_of(MultiIndex(lambda z: z[0] * z[1], 2, 1e-9))
    _, omega, y = draw(noisy, 0.7 * np.eye(2), 8)
    with pytest.raises(FloatingPointError, match=r"too coarse for noise=1e-09; take more draws"):
        noisy.posterior(y, omega, 0.7 * np.eye(2))


def test_random_lines_of_a_sign_of_three_indices() -> None:
    lines = LineChannel(ObservedLink(MultiIndex(lambda z: jnp.sign(z[0] * z[1] * z[2]), 3)))
    for v in (0.7, 0.01):
        Z, omega, observed = draw(lines, v * np.eye(3), 64)
        y = outputs_of(lines, Z, observed)
        found = lines.posterior(observed, omega, v * np.eye(3))
        # P(y) = (1 + y e_1 e_2 e_3)/2, e = 2 Phi(omega/sqrt v) - 1.
        e = 2 * ndtr(omega[:, :, 0] / np.sqrt(v)) - 1
        evidence = 0.5 * (1 + y[:, 0] * e.prod(1))
        slopes = 2 * norm.pdf(omega[:, :, 0] / np.sqrt(v)) * np.sqrt(v)
        others = np.stack([e[:, 1] * e[:, 2], e[:, 0] * e[:, 2], e[:, 0] * e[:, 1]], 1)
        shift = 0.5 * y * slopes * others / evidence[:, None]
        # 768 lines, half of them mirror images: about one per cent of the prior's deviation.
        assert np.sqrt(((found.shift[:, :, 0] - shift) ** 2).mean()) < 0.02 * np.sqrt(v)
        np.testing.assert_allclose(np.exp(found.log_evidence), evidence, atol=0.02)
        assert found.effective_samples.shape == (64,)


@pytest.mark.parametrize("link", [sign_of_product, lambda z: z[0] * z[1]])
def test_estimates_are_as_large_as_their_overlap_with_the_truth(link) -> None:
    own = channel(link, 2)
    Z, omega, y = draw(own, CORRELATED, 512, seed=3)
    shift = own.posterior(y, omega, CORRELATED).shift[:, :, 0]
    difference = np.einsum("np,nq->npq", shift, (Z - omega)[:, :, 0] - shift)
    error = difference.std(0) / np.sqrt(len(Z))
    assert (abs(difference.mean(0)) < 4 * error).all()  # 4 standard errors


def two_layers(Z):
    """Two layers of rank-one attention, two tokens, skip 1, in well-scaled coordinates."""
    mixing = jnp.eye(2) + jax.nn.softmax(jnp.outer(Z[0], Z[0]), -1)
    u = mixing @ Z[1]
    return jnp.stack([u[0] * u[1] - u[0] ** 2, u[0] * u[1] - u[1] ** 2])


@pytest.mark.full
def test_fibre_of_two_layer_attention_against_its_own_channel() -> None:
    fibre, own = channel_of(SequenceIndex(two_layers, 2, 2)), TwoLayerChannel(1.0, "softmax")
    assert fibre.outputs == 2
    assert fibre.stochastic
    R = attention.ROTATION
    for v, bound in ((0.7, 0.12), (0.1, 0.07)):
        V = v * np.eye(2)
        Z, omega, y = draw(fibre, V, 128)
        rotated = own.posterior(own.observe(Z @ R.T), omega @ R.T, V, Accuracy(fineness=0.8, cut=20.0))
        exact = np.asarray(rotated.shift) @ R
        first, second = (fibre.posterior(y, omega, V, Accuracy(seed=seed)) for seed in (0, 1))
        size = (exact**2).mean()
        assert ((first.shift - exact) ** 2).mean() < bound**2 * size
        # Two lists are independent: their product is unbiased, within 4 standard errors.
        excess = (first.shift * second.shift - exact**2).sum((1, 2))
        assert abs(excess.mean()) < 4 * excess.std() / np.sqrt(len(excess)) + 0.01 * size
        assert not np.array_equal(first.shift, second.shift)
        assert np.median(first.effective_samples) > 64
    with pytest.raises(FloatingPointError, match=r"effective number of draws is .*, below 30"):
        fibre.posterior(y, omega, V, Accuracy(draws=16))


@pytest.mark.parametrize("noise", [0.5, 1e-3])
def test_weighted_draws_with_noise_against_the_closed_form(noise: float) -> None:
    model = MultiIndex(lambda z: jnp.stack([z[0] - 0.5 * z[1], z[1] + z[2]]), 3, noise)
    observed = ObservedLink(model)
    sampled, exact = NoisyFibreChannel(observed, link_kind(observed)), channel_of(model)
    V = np.array([[0.5, 0.1, 0.0], [0.1, 0.3, 0.1], [0.0, 0.1, 0.2]])
    _, omega, y = draw(exact, V, 64)
    found, expected = sampled.posterior(y, omega, V), exact.posterior(y, omega, V)
    size = np.sqrt((score(expected, V) ** 2).mean())
    assert np.sqrt(((score(found, V) - score(expected, V)) ** 2).mean()) < 0.1 * size
    np.testing.assert_allclose(found.log_evidence, expected.log_evidence, atol=0.3)
    assert abs(np.mean(found.log_evidence - expected.log_evidence)) < 0.02
