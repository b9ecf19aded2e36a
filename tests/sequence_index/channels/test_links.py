"""Channels of links of one's own: exact posteriors, identities, choices and refusals."""

from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm, truncnorm

from asymptotix.sequence_index.channels.choose import channel_of, channel_of_link
from asymptotix.sequence_index.channels.protocol import score
from asymptotix.sequence_index.models.link import MultiIndex, SequenceIndex
from link_brute_force import (
    CORRELATED,
    TWO_INDEX_PRIORS,
    draw,
    in_own_units,
    log_normal,
    moments_of,
    outputs_of,
    worst_error,
)

NOT_A_FUNCTION: Any = 3


def square(z):
    return z[0] ** 2


def sign(z):
    return jnp.sign(z[0])


def rectified(z):
    return jnp.maximum(z[0], 0.0)


def cubic(z):
    return z[0] ** 3 - 2 * z[0]


def product(z):
    return z[0] * z[1]


@lru_cache
def channel(link, indices: int = 1, noise: float = 0.0):
    """One channel per link for all tests: compiling takes most of the time."""
    return channel_of_link(MultiIndex(link, indices, noise))


def roots_posterior(roots: np.ndarray, slopes: np.ndarray, omega: float, v: float):
    x = (roots - omega)[:, None]
    return moments_of(log_normal(x, np.array([[v]])) - np.log(abs(slopes)), x)


def cut_posterior(lower: float, upper: float, omega: float, v: float):
    s = np.sqrt(v)
    law = truncnorm((lower - omega) / s, (upper - omega) / s)
    mass = norm.logsf((lower - omega) / s) if np.isinf(upper) else norm.logcdf((upper - omega) / s)
    return mass, np.array([s * law.mean()]), np.array([[v * law.var()]])


def expected_scalar(link, y: float, omega: float, v: float):
    if link is square:
        roots = np.sqrt(y) * np.array([1.0, -1.0])
        return roots_posterior(roots, 2 * roots, omega, v)
    if link is cubic:
        roots = np.roots([1.0, 0.0, -2.0, -y])
        roots = roots[abs(roots.imag) < 1e-9].real
        return roots_posterior(roots, 3 * roots**2 - 2, omega, v)
    if link is rectified and y > 0:
        return roots_posterior(np.array([y]), np.ones(1), omega, v)
    upper = link is sign and y > 0
    return cut_posterior(*((0.0, np.inf) if upper else (-np.inf, 0.0)), omega, v)


@pytest.mark.parametrize("link", [square, cubic, rectified, sign])
def test_one_index_against_roots_and_cut_gaussians(link) -> None:
    for v in (0.7, 0.1, 0.01):
        V = np.array([[v]])
        own = channel(link)
        Z, omega, y = draw(own, V, 40)
        outputs = own.model_output(Z)[:, 0]
        expected = [expected_scalar(link, float(outputs[i]), float(omega[i, 0, 0]), v) for i in range(40)]
        # Rounding: np.roots is good to 1e-12, scipy's truncated variance loses digits in the tail.
        assert worst_error(in_own_units(own, own.posterior(y, omega, V), y), expected, V).max() < 1e-8


def test_outputs_close_to_a_limit_have_their_roots() -> None:
    """A bell is exp(-16) = 1e-7 at |z| = 4: given it, z is 4 or -4, and not all that lies farther out."""
    bell = channel(lambda z: jnp.exp(-(z[0] ** 2)))
    found = bell.posterior(bell.observe(np.full((1, 1, 1), 4.0)), np.zeros((1, 1, 1)), np.eye(1))
    np.testing.assert_allclose([found.shift.item(), found.covariance.item()], [0, 16], atol=1e-8)  # of the root found


@pytest.mark.slow
def test_far_tails_and_single_precision_are_no_trouble() -> None:
    omega, V = np.array([[[-3.0]], [[3.0]]]), np.array([[1e-4]])
    found = channel(sign).posterior(channel(sign).observe(np.ones((2, 1, 1))), omega, V)
    # 300 deviations away: an exponential of scale V/|omega| beyond the jump, up to V/omega^2 = 1e-5.
    np.testing.assert_allclose(found.shift[0, 0, 0], 3.0 + 1e-4 / 3, rtol=1e-9)
    np.testing.assert_allclose(found.covariance[0], (1e-4 / 3) ** 2, rtol=1e-4)
    _, omega, y = draw(channel(square), np.array([[0.3]]), 200)
    y_low, omega_low = jnp.asarray(y, jnp.float32), jnp.asarray(omega, jnp.float32)
    low = channel(square).posterior(y_low, omega_low, jnp.full((1, 1), 0.3))
    high = channel(square).posterior(y, omega, np.array([[0.3]]))
    assert low.shift.dtype == jnp.float32
    assert abs(np.asarray(low.shift) - high.shift).max() < 1e-5  # rounding of y to 24 bits


@pytest.mark.slow
def test_linear_links_are_gaussian_conditioning() -> None:
    B = np.array([[1.0, -0.5, 0.3, 0.0], [0.2, 0.0, 1.0, 1.0], [1.2, -0.5, 1.3, 1.0]])  # the third repeats the others
    model = SequenceIndex(lambda Z: B @ Z.ravel() + 0.5, indices=2, tokens=2)
    V = np.kron(CORRELATED, np.eye(2))
    for noise in (0.0, 0.3):
        linear = channel_of_link(SequenceIndex(model.link, 2, 2, noise))
        Z, omega, observed = draw(linear, CORRELATED, 5)
        found = in_own_units(linear, linear.posterior(observed, omega, CORRELATED), observed)
        flat, y = omega.reshape(5, 4), outputs_of(linear, Z, observed)
        if noise:
            covariance = np.linalg.inv(np.linalg.inv(V) + B.T @ B / noise)
            mean = (np.linalg.solve(V, flat.T).T + (y - 0.5) @ B / noise) @ covariance - flat
            evidence = log_normal(y - 0.5 - flat @ B.T, B @ V @ B.T + noise * np.eye(3))
            np.testing.assert_allclose(found.log_evidence, evidence, atol=1e-12)
        else:
            gain = V @ B[:2].T @ np.linalg.inv(B[:2] @ V @ B[:2].T)
            mean, covariance = (y - 0.5 - flat @ B.T)[:, :2] @ gain.T, V - gain @ B[:2] @ V
            assert linear.outputs == 2
        np.testing.assert_allclose(found.shift.reshape(5, 4), mean, atol=1e-12)
        np.testing.assert_allclose(found.covariance[0].reshape(4, 4), covariance, atol=1e-12)


def product_posterior(y: float, omega: np.ndarray, V: np.ndarray):
    """Along z1 = +-exp(l), where dz1/|z1| = dl: the trapezoidal rule converges exponentially."""
    logs = np.linspace(-45.0, 4.0, 60001)
    z1 = np.concatenate([np.exp(logs), -np.exp(logs)])
    x = np.stack([z1, y / z1], 1) - omega
    return moments_of(log_normal(x, V) + np.log(logs[1] - logs[0]), x)


@pytest.mark.slow
def test_product_of_two_indices() -> None:
    curve = channel(product, 2)
    assert curve.outputs == 1
    assert "level curve" in curve.description
    for V in TWO_INDEX_PRIORS:
        Z, omega, _ = draw(curve, V, 16)
        Z[:3] *= np.array([1e-1, 1e-2, 1e-3])[:, None, None]  # near the saddle, where the two branches nearly touch
        y, outputs = curve.observe(Z), curve.model_output(Z)[:, 0]
        expected = [product_posterior(float(outputs[i]), omega[i, :, 0], V) for i in range(16)]
        assert worst_error(in_own_units(curve, curve.posterior(y, omega, V), y), expected, V).max() < 1e-6


def noisy_cubic(y: float, omega: float, v: float, noise: float):
    """Trapezoidal rule with 200001 points within 12 deviations."""
    x = (np.linspace(-12, 12, 200001) * np.sqrt(v))[:, None]
    z = omega + x[:, 0]
    log_likelihood = -0.5 * (y - z**3 + 2 * z) ** 2 / noise - 0.5 * np.log(2 * np.pi * noise)
    return moments_of(log_normal(x, np.array([[v]])) + log_likelihood + np.log(x[1, 0] - x[0, 0]), x)


@pytest.mark.slow
def test_one_index_with_noise() -> None:
    noise = 1e-3
    noisy = channel(cubic, 1, noise)
    for v in (0.7, 0.1, 0.01):
        V = np.array([[v]])
        Z, omega, y = draw(noisy, V, 16)
        outputs = outputs_of(noisy, Z, y)
        expected = [noisy_cubic(float(outputs[i, 0]), float(omega[i, 0, 0]), v, noise) for i in range(16)]
        assert worst_error(in_own_units(noisy, noisy.posterior(y, omega, V), y), expected, V).max() < 1e-9


@pytest.mark.parametrize(
    ("link", "indices", "noise"), [(cubic, 1, 0.0), pytest.param(product, 2, 0.0, marks=pytest.mark.slow)]
)
def test_log_evidence_gives_the_score_and_its_derivative_the_covariance(link, indices, noise) -> None:
    own, V = channel(link, indices, noise), CORRELATED[:indices, :indices]
    _, omega, y = draw(own, V, 16, seed=2)
    found, step = own.posterior(y, omega, V), 1e-4
    g = score(found, V)
    for p in range(indices):
        move = np.zeros_like(omega)
        move[:, p] = step
        up, down = own.posterior(y, omega + move, V), own.posterior(y, omega - move, V)
        # Central differences: their own error is step^2 times third derivatives.
        np.testing.assert_allclose((up.log_evidence - down.log_evidence) / (2 * step), g[:, p, 0], atol=2e-5, rtol=1e-5)
        slope = (up.shift - down.shift)[:, :, 0] / (2 * step)
        expected = (found.covariance[:, :, 0, :, 0] @ np.linalg.inv(V))[:, :, p] - np.eye(indices)[p]
        np.testing.assert_allclose(slope, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("link", [rectified, cubic])
def test_estimates_are_as_large_as_their_overlap_with_the_truth(link) -> None:
    own, V = channel(link), np.array([[0.4]])
    Z, omega, y = draw(own, V, 1024, seed=3)
    shift = own.posterior(y, omega, V).shift[:, :, 0]
    difference = np.einsum("np,nq->npq", shift, (Z - omega)[:, :, 0] - shift)
    error = difference.std(0) / np.sqrt(len(Z))
    assert (abs(difference.mean(0)) < 4 * error).all()  # 4 standard errors


def test_noise_of_a_sample_is_its_own() -> None:
    noisy = channel(square, 1, 0.25)
    Z = np.random.default_rng(0).standard_normal((20000, 1, 1))
    silent, unit = noisy.observe(Z, np.zeros((20000, 1))), np.sqrt(0.25 / noisy.model.noise)
    noise = unit * (noisy.observe(Z) - silent)[:, 0]
    np.testing.assert_array_equal(noisy.observe(Z[5:9]), noisy.observe(Z)[5:9])
    assert abs(noise.mean()) < 4 * 0.5 / np.sqrt(20000)
    assert abs(noise.var() / 0.25 - 1) < 4 * np.sqrt(2 / 20000)
    assert abs(np.corrcoef(noise, Z[:, 0, 0])[0, 1]) < 4 / np.sqrt(20000)
    np.testing.assert_allclose(unit * (noisy.observe(Z[:3], np.ones((3, 1))) - silent[:3])[:, 0], 0.5)
    assert noisy.noises == 1
    assert channel(square).noises == 0
    np.testing.assert_allclose(noisy.output(Z)[:, 0], Z[:, 0, 0] ** 2)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (MultiIndex(lambda z: 2 * z[0] - z[1], 2, 0.1), "LinearChannel"),
        (MultiIndex(square, 1), "ScalarChannel"),
        (MultiIndex(square, 1, 0.1), "CubatureChannel"),
        (MultiIndex(product, 2, 0.1), "CubatureChannel"),
        (MultiIndex(lambda z: (z**2).sum(), 3, 0.1), "NoisyFibreChannel"),
        (MultiIndex(lambda z: (z**2).sum(), 3), "FibreChannel"),
        (MultiIndex(lambda z: jnp.argmax(z), 3), "LineChannel"),
        (SequenceIndex(lambda Z: Z[0, 0] > Z[0, 1], 1, 2), "PlaneChannel"),
        (MultiIndex(lambda z: jnp.floor((z**2).sum()), 2), "LineChannel"),  # lines change at too many places
        (SequenceIndex(lambda Z: jnp.outer(Z[0], Z[0]), 1, 3), "RootChannel"),
        (SequenceIndex(lambda Z: (Z**2).sum(), 1, 2), "CurveChannel"),
    ],
)
def test_the_choice_of_a_channel(model, name: str) -> None:
    chosen = channel_of_link(model)
    assert type(chosen).__name__ == name
    assert chosen.description
    assert chosen.stochastic == (name in ("LineChannel", "FibreChannel", "NoisyFibreChannel"))
    assert channel_of(model) is chosen  # compiled programs are kept


def test_part_constant_links_have_a_fractional_number_of_outputs() -> None:
    assert channel(rectified).outputs == pytest.approx(0.5, abs=1e-9)
    assert channel(sign).outputs == 0


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (
            lambda: channel_of_link(MultiIndex(lambda z: jnp.sign(jnp.cos(2 * (z**2).sum())), 2)),
            NotImplementedError,
            "takes and leaves a value",
        ),
        (lambda: MultiIndex(NOT_A_FUNCTION, 1), TypeError, "link must be a function"),
        (lambda: MultiIndex(square, 0), ValueError, "indices must be an integer of at least 1"),
        (lambda: MultiIndex(square, 1, -0.1), ValueError, "noise must be non-negative"),
        (lambda: MultiIndex(square, 1, float("inf")), ValueError, "noise must be finite"),
        (lambda: MultiIndex(lambda z: jnp.log(z[0]), 1), ValueError, "finite real numbers"),
        (lambda: MultiIndex(lambda z: float(z[0]), 1), ValueError, "JAX can trace"),
        (lambda: MultiIndex(lambda z: z[:0], 1), ValueError, "at least one number"),
        (lambda: SequenceIndex(lambda Z: Z @ jnp.ones(3), 1, 2), ValueError, r"shape \(1, 2\)"),
        (
            lambda: channel_of(MultiIndex(lambda z: jnp.maximum(z, 0).sum(), 2)),
            NotImplementedError,
            "rank 0 or 1.*noise=0.01",
        ),
        (
            lambda: channel_of(MultiIndex(lambda z: jnp.floor(1e4 * z[0] * z[1]), 2)),
            NotImplementedError,
            "values in 65536 draws.*noise=0.01",
        ),
    ],
)
def test_bad_links(build, error, words: str) -> None:
    with pytest.raises(error, match=words):
        build()
