"""The posterior of one observation against integrals, differences and identities."""

from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import kstest, norm

from asymptotix.numerics import interrupts
from asymptotix.sequence_index.channels.attention.sign import SignChannel
from asymptotix.sequence_index.channels.attention.two_layers import TwoLayerChannel, fastest_backend
from asymptotix.sequence_index.channels.choose import SequenceModel, channel_of
from asymptotix.sequence_index.channels.protocol import (
    DEFAULT_ACCURACY,
    Accuracy,
    Channel,
    Posterior,
    score,
    score_jacobian,
)
from asymptotix.sequence_index.channels.tools.random_lists import hashed_normals
from asymptotix.sequence_index.evolution.fixed_points import StateEvolution
from asymptotix.sequence_index.models import rank_one as attention
from attention_inverse import preactivation_from_output

ACTIVATIONS = ("softmax", "linear")
DIAGONAL = np.diag([0.7, 0.25])
CORRELATED = np.array([[0.6, 0.2], [0.2, 0.3]])
TIGHT = Accuracy(fineness=0.6, cut=30.0)  # far beyond the default, for tests that must not see the cubature


def draw(channel, V, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Z, omega and the observation at overlap Q = I - V: omega ~ N(0, Q), Z | omega ~ N(omega, V)."""
    rng = np.random.default_rng(seed)
    shape = (count, channel.indices, channel.tokens)
    Q = np.eye(channel.indices) - V
    omega = np.linalg.cholesky(Q + 1e-15 * np.eye(len(Q))) @ rng.standard_normal(shape)
    Z = omega + np.linalg.cholesky(V) @ rng.standard_normal(shape)
    return Z, omega, channel.observe(Z)


def by_dense_grid(channel: TwoLayerChannel, activation: str, u, omega, V, points: int = 241):
    """log evidence, mean and covariance of one sample: trapezoidal rule over z1, sum over the sign of u.

    The mixing matrix is that of the token basis, rotated. The rule converges exponentially once its step,
    here 1/18 standard deviation, is below the narrowest width of the integrand.
    """
    axis = np.linspace(-6.5, 6.5, points) * np.sqrt(V[0, 0])
    z1 = np.stack(np.meshgrid(omega[0, 0] + axis, omega[0, 1] + axis, indexing="ij"), -1).reshape(-1, 2)
    tokens = z1 @ attention.ROTATION
    mixing = attention.activate(tokens[:, :, None] * tokens[:, None, :], activation)
    mixing = attention.ROTATION @ (channel.skip * np.eye(2) + mixing) @ attention.ROTATION.T
    a, b, c, d = mixing[:, 0, 0], mixing[:, 0, 1], mixing[:, 1, 0], mixing[:, 1, 1]
    det = a * d - b * c
    precision, logs, samples = np.linalg.inv(V), [], []
    for sign in (1.0, -1.0):
        z2 = sign * np.stack([d * u[0] - b * u[1], a * u[1] - c * u[0]], 1) / det[:, None]
        Z = np.stack([z1, z2], 1)
        shift = Z - omega
        energy = 0.5 * np.einsum("npm,pq,nqm->n", shift, precision, shift, optimize=True)
        logs.append(-energy - np.log(abs(det)) - np.log(np.linalg.det(V)) - 2 * np.log(2 * np.pi))
        samples.append(shift.reshape(-1, 4))
    log_weights, shifts = np.concatenate(logs), np.concatenate(samples)
    total = logsumexp(log_weights)
    weights = np.exp(log_weights - total)
    mean = weights @ shifts
    covariance = (shifts * weights[:, None]).T @ shifts - np.outer(mean, mean)
    return total + 2 * np.log(axis[1] - axis[0]), mean.reshape(2, 2), covariance.reshape(2, 2, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("V", [np.eye(2), DIAGONAL, CORRELATED], ids=["identity", "diagonal", "correlated"])
def test_posterior_is_the_integral_over_the_first_layer(V, activation):
    channel = TwoLayerChannel(0.8, activation, "numba")
    _, omega, u = draw(channel, V, 3, seed=4)
    default, tight = channel.posterior(u, omega, V), channel.posterior(u, omega, V, TIGHT)
    for n in range(len(u)):
        log_evidence, mean, covariance = by_dense_grid(channel, activation, u[n], omega[n], V)
        # Left are the cubature's, about 1e-6, and what its box of six standard deviations cuts off: exp(-18)
        # of the prior, more of a posterior that sits in the tail.
        for found, expected in zip(tight[:3], (log_evidence, mean, covariance), strict=True):
            np.testing.assert_allclose(found[n], expected, rtol=0, atol=2e-5)
        # The default promises 1e-5 rms in the mean and 3e-4 in the covariance; the worst case is ten times
        # that.
        np.testing.assert_allclose(default.log_evidence[n], log_evidence, rtol=0, atol=1e-3)
        np.testing.assert_allclose(default.shift[n], mean, rtol=0, atol=1e-3)
        np.testing.assert_allclose(default.covariance[n], covariance, rtol=0, atol=3e-3)


def test_variance_may_differ_from_sample_to_sample():
    channel = TwoLayerChannel(1.0, "softmax", "numba")
    _, omega, u = draw(channel, DIAGONAL, 4)
    V = np.stack([DIAGONAL, CORRELATED, np.eye(2), 0.1 * np.eye(2)])
    together = channel.posterior(u, omega, V)
    for n in range(4):
        alone = channel.posterior(u[n : n + 1], omega[n : n + 1], V[n])
        for whole, single in zip(together[:3], alone[:3], strict=True):
            np.testing.assert_array_equal(whole[n], single[0])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("V", [DIAGONAL, CORRELATED], ids=["diagonal", "correlated"])
def test_jacobian_is_the_derivative_of_the_score(V, activation):
    channel = TwoLayerChannel(1.0, activation, "numba")
    _, omega, u = draw(channel, V, 3, seed=1)
    jacobian = score_jacobian(channel.posterior(u, omega, V, TIGHT), V)
    step = 1e-3
    for q in range(2):
        for k in range(2):
            move = np.zeros((2, 2))
            move[q, k] = step
            up, down = (score(channel.posterior(u, omega + d, V, TIGHT), V) for d in (move, -move))
            # Central differences: step^2 times a third derivative of order 100, plus 1e-7 / step of cubature.
            np.testing.assert_allclose(jacobian[..., q, k], (up - down) / (2 * step), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("V", [DIAGONAL, CORRELATED], ids=["diagonal", "correlated"])
def test_jacobian_is_symmetric(V):
    channel = TwoLayerChannel(1.0, "softmax", "numba")
    _, omega, u = draw(channel, V, 50)
    jacobian = score_jacobian(channel.posterior(u, omega, V), V)
    scale = abs(jacobian).max()
    # Rounding
    np.testing.assert_allclose(jacobian, jacobian.transpose(0, 3, 4, 1, 2), rtol=0, atol=1e-12 * scale)
    # The symmetry holds for pairs (index, token) only: exchanging the indices alone does change it.
    assert abs(jacobian - jacobian.transpose(0, 3, 2, 1, 4)).max() > 1e-3 * scale


def z_scores(samples: np.ndarray) -> np.ndarray:
    """Mean over its standard error, entry by entry, of samples (n, ...) whose expectation should vanish."""
    spread = samples.std(0) / np.sqrt(len(samples))
    return samples.mean(0) / np.where(spread > 0, spread, 1.0)


CHANNELS = [TwoLayerChannel(1.0, "softmax"), TwoLayerChannel(0.5, "linear"), SignChannel(3, "softmax")]
#: About 50 z-scores are looked at in each of a handful of tests with fixed seeds: 4.5 has probability 1e-3 in
#: all.
LIMIT = 4.5


def variance_for(channel, kind: str) -> np.ndarray:
    if channel.indices == 1:
        return np.array([[0.4]])
    return CORRELATED if kind == "correlated" else DIAGONAL


@pytest.mark.parametrize("kind", ["diagonal", "correlated"])
@pytest.mark.parametrize("channel", CHANNELS, ids=["softmax", "linear", "one layer"])
def test_nishimori_identities(channel, kind):
    V = variance_for(channel, kind)
    Z, omega, observation = draw(channel, V, 3000, seed=11)
    posterior = Posterior(*map(np.asarray, channel.posterior(observation, omega, V)[:3]))
    g, jacobian = score(posterior, V), score_jacobian(posterior, V)
    assert abs(z_scores(g)).max() < LIMIT  # E g = 0
    square = np.einsum("npm,nqm->npq", g, g)
    assert abs(z_scores(square + np.einsum("npmqm->npq", jacobian))).max() < LIMIT  # E g g^T = -E sum_m dg_mm
    assert square.mean() > 10 * abs((square + np.einsum("npmqm->npq", jacobian)).mean()) / LIMIT  # with power
    residual = Z - omega - posterior.shift
    spread = np.einsum("npm,nqk->npmqk", residual, residual)
    assert abs(z_scores(residual)).max() < LIMIT  # the posterior mean is unbiased
    assert abs(z_scores(spread - posterior.covariance)).max() < LIMIT  # and its covariance calibrated
    # Orthogonality
    assert abs(z_scores(np.einsum("npm,nqk->npmqk", residual, posterior.shift))).max() < LIMIT


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    "variances",
    [(1e-2, 1e-2), (1e-5, 1e-5), (0.3, 1e-3), (1.0, 1e-4), (1.0, 1e-5), (1e-5, 1.0), (1e-2, 1e-5)],
)
def test_small_variance_does_not_lose_the_peak(activation, variances):
    channel = TwoLayerChannel(1.0, activation, "numba")
    V = np.diag(variances)
    Z, omega, u = draw(channel, V, 500, seed=5)
    posterior = channel.posterior(u, omega, V)
    assert all(np.isfinite(x).all() for x in posterior[:3])
    scale = np.sqrt(np.diag(V))[:, None]
    residual = (Z - omega - posterior.shift) / scale
    predicted = np.einsum("npmpm->npm", posterior.covariance) / scale**2
    assert (predicted > -1e-6).all()  # a variance; the differences that give it cancel to about 1e-8
    assert abs(z_scores(residual)).max() < LIMIT
    assert abs(z_scores(residual**2 - predicted)).max() < LIMIT
    # A peak that was missed leaves truths many predicted standard deviations away.
    assert (abs(residual) < 7 * np.sqrt(predicted) + 1e-2).all()


def test_two_outputs_leave_two_of_four_dimensions_as_the_variance_vanishes():
    # The link is then linear over the prior, and V^{-1} Cov a projector of rank 4 - 2.
    channel = TwoLayerChannel(1.0, "softmax", "numba")
    V = 1e-5 * np.eye(2)
    _, omega, u = draw(channel, V, 200)
    trace = np.einsum("npmpm->n", channel.posterior(u, omega, V).covariance) / 1e-5
    # Bends of the fibre over a width of sqrt(1e-5) = 3e-3 leave about 1e-2 where |z| is typical.
    assert abs(np.median(trace) - 2) < 1e-2


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_one_layer_posterior_is_two_points(tokens):
    channel = SignChannel(tokens, "linear")
    V = np.array([[0.3]])
    _, omega, z = draw(channel, V, 20)
    found = channel.posterior(z, omega, V)
    points = np.stack([z, -z])
    energy = ((points - omega[None, :, 0]) ** 2).sum(-1) / (2 * 0.3) + 0.5 * tokens * np.log(2 * np.pi * 0.3)
    log_evidence = np.logaddexp(*-energy)
    weights = np.exp(-energy - log_evidence)
    mean = np.einsum("sn,snm->nm", weights, points)
    second = np.einsum("sn,snm,snk->nmk", weights, points, points)
    # Rounding, here and below
    np.testing.assert_allclose(found.log_evidence, log_evidence, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.shift[:, 0], mean - omega[:, 0], rtol=1e-12, atol=1e-12)
    covariance = second - np.einsum("nm,nk->nmk", mean, mean)
    np.testing.assert_allclose(found.covariance[:, 0, :, 0], covariance, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("channel", CHANNELS, ids=["softmax", "linear", "one layer"])
def test_observation_and_output_hold_the_same_information(channel):
    Z = 0.6 * np.random.default_rng(0).standard_normal((100, channel.indices, channel.tokens))
    flipped = Z.copy()
    flipped[:, -1] *= -1
    np.testing.assert_array_equal(channel.observe(Z), channel.observe(flipped))
    np.testing.assert_allclose(channel.output(Z), channel.output(flipped), rtol=1e-12)  # rounding
    if isinstance(channel, TwoLayerChannel):
        activation = "linear" if channel is CHANNELS[1] else "softmax"
        recovered = preactivation_from_output(channel.output(Z), activation)
        # Logs of rounded outputs
        np.testing.assert_allclose(recovered, channel.observe(Z), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("channel", CHANNELS[:2], ids=["softmax", "linear"])
def test_folded_nodes_have_gaussian_moments(channel):
    uniforms = np.random.default_rng(3).random((2**15, 4))
    Z, weights = channel.draw_indices(uniforms)
    r2 = (Z**2).sum(-1)
    checks = {
        "mass": np.ones(len(Z)),
        "square": Z[:, 0, 0] ** 2,
        "fourth": r2[:, 0] ** 2 / 8,
        "mixed": Z[:, 0, 0] ** 2 * Z[:, 0, 1] ** 2,
        "other layer": r2[:, 1] / 2,
        "both": r2.prod(-1) / 4,
        "plus of layer 2": 1 + Z[:, 1, 1],
    }
    for name, value in checks.items():
        assert abs(z_scores(weights * value - 1)) < LIMIT, name


def test_backend_is_chosen_by_what_there_is():
    assert TwoLayerChannel(1.0, "softmax").backend == fastest_backend()
    assert TwoLayerChannel(1.0, "softmax", "jax").backend == "jax"


@pytest.mark.parametrize("skip", [1e-2, 1e-3, 0.0])
@pytest.mark.parametrize("V", [np.eye(2), np.diag([0.9, 0.3])], ids=["prior", "narrow"])
def test_weak_skip_connections_are_integrated_too(skip, V):
    """The integrand is as narrow as sqrt(skip): cells much finer than the default's say the same, no sample is lost."""
    channel = TwoLayerChannel(skip, "softmax", "numba")
    _, omega, u = draw(channel, V, 64, seed=5)
    found, fine = channel.posterior(u, omega, V), channel.posterior(u, omega, V, TIGHT)
    deviation = np.sqrt(np.diag(V))[None, :, None]
    # About 2e-3 of a deviation in the worst of many samples, a tenth of that in most.
    assert abs((found.shift - fine.shift) / deviation).max() < 5e-3
    assert abs(found.log_evidence - fine.log_evidence).max() < 2e-3


def test_without_skip_it_is_the_limit_of_weak_ones():
    weak, none = (TwoLayerChannel(skip, "softmax", "numba") for skip in (1e-6, 0.0))
    _, omega, u = draw(weak, DIAGONAL, 32, seed=6)
    first, second = (channel.posterior(u, omega, DIAGONAL, TIGHT) for channel in (weak, none))
    close = u[:, 0] > 1e-2  # where z2- = u-/(skip + tau) differs by 1e-4 at most
    np.testing.assert_allclose(first.shift[close], second.shift[close], atol=1e-3)


def test_a_signal_to_stop_is_obeyed_between_blocks(monkeypatch):
    def stop():
        raise KeyboardInterrupt

    channel = TwoLayerChannel(1.0, "softmax", "numba")
    _, omega, u = draw(channel, DIAGONAL, 4, seed=7)
    monkeypatch.setattr(interrupts, "check", stop)
    with pytest.raises(KeyboardInterrupt):
        channel.posterior(u, omega, DIAGONAL)


class NoisyLine(Channel):
    """y = z + sqrt(noise) n, with the noise that it is given, as authors outside the package write it."""

    indices = tokens = noises = 1
    outputs = 0.0
    noise = 0.3

    def observe(self, Z, noise=None):
        assert noise is not None
        return Z[:, :, 0] + np.sqrt(self.noise) * noise

    def posterior(self, observation, omega, V, accuracy=DEFAULT_ACCURACY):
        S, left = V[..., 0, 0] + self.noise, observation[:, 0] - omega[:, 0, 0]
        log_evidence = -0.5 * (left**2 / S + np.log(2 * np.pi * S))
        covariance = np.broadcast_to(V - V**2 / S, (len(left), 1, 1))
        return Posterior(log_evidence, (V[..., 0, 0] / S * left)[:, None, None], covariance[:, :, None, :, None])


def test_averages_contain_the_noise_of_a_channel_that_does_not_draw_it():
    """They did not: observations without noise moved the overlap by two percent."""
    found = StateEvolution(NoisyLine()).uninformed(1.0, tolerance=1e-3)
    q = found.q[0]
    assert abs(q / (1 - q) - 1 / (1 - q + NoisyLine.noise)) < 3 * found.error[0] * 2 / (1 - q) ** 2
    assert found.error[0] < 1e-3


def test_noise_of_its_own_is_normal_and_equal_for_equal_indices():
    rows = np.random.default_rng(0).standard_normal((20000, 3))
    found = hashed_normals(rows, 2)
    np.testing.assert_array_equal(hashed_normals(rows[::-1], 2), found[::-1])
    assert len(np.unique(found)) == found.size
    uniforms = norm.cdf(found)
    for column in (*uniforms.T, uniforms[:, 0] - uniforms[:, 1] + (uniforms[:, 0] < uniforms[:, 1])):
        assert kstest(column, "uniform").pvalue > 1e-4  # one seed; the difference modulo one shows dependence
    # Neither the rows nor the noise of rows beside them, a rounding away, show in the noise.
    everything = np.concatenate([found, rows, hashed_normals(np.nextafter(rows, 9.0), 2)], 1)
    assert abs(everything.T @ found / len(rows) - np.eye(7, 2)).max() < 5 * np.sqrt(2 / len(rows))


def test_a_model_of_ones_own_must_give_a_channel():
    class Nothing(SequenceModel):
        def channel(self) -> Any:
            return None

    class Unsized(SequenceModel):
        def channel(self) -> Any:
            return NoSize()

    class NoSize(NoisyLine):
        def __getattribute__(self, name: str) -> Any:
            if name == "outputs":
                raise AttributeError(name)
            return super().__getattribute__(name)

    with pytest.raises(TypeError, match=r"channel\(\) of .* must return a Channel, got None"):
        channel_of(Nothing())
    with pytest.raises(TypeError, match="without outputs"):
        channel_of(Unsized())
    with pytest.raises(NotImplementedError, match="must have a method channel"):
        channel_of(SequenceModel())
