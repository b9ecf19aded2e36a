"""Fibres found once for all priors: against closed forms, against brute force, and the bias of few points."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from asymptotix import MultiIndex
from asymptotix.numerics.precision import double_precision
from asymptotix.sequence_index.channels import supported
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.channels.links import fibre
from asymptotix.sequence_index.channels.links.fibre import FibreChannel
from asymptotix.sequence_index.channels.protocol import Accuracy, Posterior, score, score_jacobian
from asymptotix.sequence_index.channels.supported import SupportedPosterior, support_moments
from asymptotix.sequence_index.models.observed_link import ObservedLink

SAMPLES = 64


def drawn(channel, V, seed=0):
    """True indices, fields and observations at overlap I - V (diagonal)."""
    rng = np.random.default_rng(seed)
    Z, noise = rng.standard_normal((2, SAMPLES, channel.indices, channel.tokens))
    Q = np.eye(len(V)) - V
    return Z, Q @ Z + np.sqrt(Q @ V) @ noise, channel.observe(Z)


def brute_force(y, omega, V):
    """E[z|y] - omega for He3(z1) + z1 z2 = y: along the curve z2 = (y - He3(z1))/z1."""
    t = np.linspace(-9, 9, 200001) + 1e-6
    z2 = (y - t**3 + 3 * t) / t
    log_weight = -((t - omega[0]) ** 2) / (2 * V[0, 0]) - (z2 - omega[1]) ** 2 / (2 * V[1, 1]) - np.log(abs(t))
    weight = np.exp(log_weight - log_weight.max())
    return np.array([(weight * t).sum(), (weight * z2).sum()]) / weight.sum() - omega


@pytest.fixture(scope="module")
def curve():
    return channel_of(MultiIndex(lambda z: z[0] ** 3 - 3 * z[0] + z[0] * z[1], 2))


@pytest.mark.slow
@pytest.mark.parametrize("v", [(1.0, 1.0), (0.5, 0.5), (0.01, 0.01), (0.05, 1.0)], ids=str)
def test_level_curves_serve_all_priors(curve, v):
    V = np.diag(v)
    Z, omega, y = drawn(curve, V)
    found = curve.prepared(y, Z)(omega, V)
    exact = np.array([brute_force(*one, V) for one in zip(curve.model_output(Z)[:, 0], omega[:, :, 0], strict=True)])
    error = abs(found.shift[:, :, 0] - exact) / np.sqrt(v)
    # 160 lines per index: 1e-3 of the standard deviation, and where the curve bends sharply in between, a few percent.
    assert np.median(error) < 1e-3
    assert np.quantile(error, 0.9) < 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("v", [0.5, 0.05, 0.01])
def test_draws_on_spheres_serve_all_priors(v):
    """|z|^2 = y in three dimensions: von Mises and Fisher, E[z] = |z| (coth k - 1/k) omega/|omega|."""
    channel = channel_of(MultiIndex(lambda z: (z**2).sum(), 3))
    V = v * np.eye(3)
    Z, omega, y = drawn(channel, V)
    radius, length = np.sqrt(channel.model_output(Z)[:, 0]), np.linalg.norm(omega[:, :, 0], axis=1)
    k = radius * length / v
    exact = (radius * (1 / np.tanh(k) - 1 / k) / length)[:, None] * omega[:, :, 0] - omega[:, :, 0]
    found = channel.prepared(y, Z)(omega, V)
    away = (found.shift[:, :, 0] - exact) / np.sqrt(v)
    assert np.sqrt((away**2).mean()) < 0.2  # about a hundred effective draws
    # Their bias is of second order: along the exact shift, all samples together, it is lost in the noise of 64 samples.
    along = (away * exact / np.sqrt(v)).sum(1)
    assert abs(along.mean()) < 4 * along.std(ddof=1) / np.sqrt(SAMPLES)
    assert (found.effective_samples > 12).all()


def cut_normals(y, omega, v):
    """E[z|y] - omega and Cov[z|y] for max(z) = y under N(omega, v I): one index is y, the others are below it."""
    t, n = (y[:, None] - omega) / np.sqrt(v), omega.shape[1]
    below = stats.norm.logcdf(t)
    pull = np.exp(stats.norm.logpdf(t) - below)
    log_weights = stats.norm.logpdf(t) - below
    weights = np.exp(log_weights - log_weights.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    own = np.eye(n, dtype=bool)
    means = np.where(own, (y[:, None] - omega)[:, None], (-np.sqrt(v) * pull)[:, None])
    variances = np.where(own, 0.0, (v * (1 - t * pull - pull**2))[:, None])
    shift = np.einsum("sk,skp->sp", weights, means)
    second = np.einsum("sk,skp,skq->spq", weights, means, means) + np.einsum("sk,skp,pq->spq", weights, variances, own)
    return shift, second - shift[:, :, None] * shift[:, None]


@pytest.mark.slow
@pytest.mark.parametrize("v", [0.5, 0.05, 0.005])
def test_draws_where_one_coordinate_moves_the_output_serve_all_priors(v):
    """The largest of four: lines along the others hardly meet the fibre near the truth."""
    channel = channel_of(MultiIndex(lambda z: z.max(), 4))
    V = v * np.eye(4)
    Z, omega, y = drawn(channel, V)
    prepared: Any = channel.prepared(y, Z)
    found = prepared(omega, V)
    shift, covariance = cut_normals(channel.model_output(Z)[:, 0], omega[:, :, 0], v)
    away = (found.shift[:, :, 0] - shift) / np.sqrt(v)
    assert np.sqrt((away**2).mean()) < 0.2  # some fifty effective draws
    along = (away * shift / np.sqrt(v)).sum(1)
    assert abs(along.mean()) < 4 * along.std(ddof=1) / np.sqrt(SAMPLES)
    missing = np.einsum("spp->s", found.covariance[:, :, 0, :, 0] - covariance) / v
    assert abs(missing.mean()) < 4 * missing.std(ddof=1) / np.sqrt(SAMPLES)
    # With as many draws along each of the four, 37 % of samples at v = 0.005 are left with less than twelve that count.
    assert len(prepared._longer) < 0.2 * SAMPLES


@pytest.mark.slow
def test_several_fields_of_one_observation(curve):
    V = 0.3 * np.eye(2)
    Z, omega, y = drawn(curve, V)
    prepared = curve.prepared(y[:16], Z[:16])
    together = prepared(omega, V)
    for k in range(4):
        alone = prepared(omega[k::4], V)
        # Points are kept in single precision, and the order of a sum may depend on the size of its batch.
        np.testing.assert_allclose(together.shift[k::4], alone.shift, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_leaving_out_one_list_takes_the_bias_off():
    """Prior N(0, 1) and likelihood exp(z), from 4 x 8 draws of the prior: E[z|y] = 1 exactly."""
    rng = np.random.default_rng(1)
    points = rng.standard_normal((20000, 4, 1, 8))
    log_weights = points[:, :, 0] + 0.5 * points[:, :, 0] ** 2  # the prior comes with the precision

    def moments(points, log_weights):
        return support_moments(points, log_weights, jnp.zeros(1), jnp.eye(1))

    with double_precision():
        better = np.asarray(jax.vmap(moments)(points, log_weights).shift)[:, 0]
        plain = np.asarray(jax.vmap(moments)(points.reshape(-1, 1, 1, 32), log_weights.reshape(-1, 1, 32)).shift)[:, 0]
    error = better.std() / np.sqrt(len(better))
    assert plain.mean() < 1 - 0.03  # the bias of a ratio with about ten effective draws
    assert abs(better.mean() - 1) < 0.3 * abs(plain.mean() - 1) + 3 * error


@pytest.mark.slow
def test_jumps_are_no_roots():
    """Signs with noise: along a line of an index the link jumps across the observation and never meets it."""
    channel = channel_of(MultiIndex(lambda z: jnp.sign(z).sum(), 3, noise=0.3))
    V = 0.4 * np.eye(3)
    Z, omega, y = drawn(channel, V)
    found, own = channel.prepared(y, Z)(omega, V), channel.posterior(y, omega, V)
    away = (found.shift - own.shift)[:, :, 0] / np.sqrt(0.4)
    # Both from about a hundred effective draws.
    assert np.sqrt((away**2).mean()) < 0.25
    size = np.sqrt(len(away)) / away.std(0, ddof=1)
    assert (abs(away.mean(0)) * size < 4).all()


def test_many_outputs_of_rank_one_have_no_support():
    two = channel_of(MultiIndex(lambda z: jnp.stack([jnp.maximum(z.sum(), 0), jnp.maximum(-z.sum(), 0)]), 3))
    assert getattr(two, "finest", None) is None


@pytest.mark.slow
def test_points_of_a_fibre_lie_on_it_and_weigh_as_much_as_the_output_is_likely():
    """Sums of w_j N(z_j) are the density of y: chi squared for |z|^2, where lines meet spheres in two points."""
    channel: Any = channel_of(MultiIndex(lambda z: (z**2).sum(), 3))
    Z, _, y = drawn(channel, np.eye(3))
    with double_precision():
        points, log_weights = channel.support_program(y, Z[:, :, 0], channel.keys(np.arange(SAMPLES), 0))
    exists = np.isfinite(log_weights)
    assert exists.any(-1).all()
    outputs = channel.model_output(Z)
    square = np.broadcast_to(outputs[:, :, None], log_weights.shape)
    np.testing.assert_allclose((points**2).sum(-1)[exists], square[exists], rtol=1e-9)
    density = (np.exp(log_weights) * stats.norm.pdf(points).prod(-1)).sum(-1)
    ratio = density / (stats.chi2.pdf(outputs, 3) * np.exp(channel.log_output_volume(y))[:, None])
    # Every list is unbiased; that of a sample is wrong by a third.
    assert abs(ratio.mean() - 1) < 4 * ratio.mean(1).std(ddof=1) / np.sqrt(SAMPLES)
    assert ratio.mean(1).std() < 0.3


@pytest.mark.slow
def test_two_roots_that_hide_in_one_cell_are_found():
    """Spheres so small that no line has a place inside of them."""
    channel: Any = channel_of(MultiIndex(lambda z: (z**2).sum(), 3))
    Z = np.full((4, 3, 1), 0.05) * np.array([1.0, -1.0, 1.0, -1.0])[:, None, None]
    with double_precision():
        _, log_weights = channel.support_program(channel.observe(Z), Z[:, :, 0], channel.keys(np.arange(4), 0))
    count = np.isfinite(log_weights).sum(-1)
    assert (count > 0).all()
    assert (count % 2 == 0).all()


class FewPoints:
    """A channel that found twenty points of every fibre, of which one counts in some; its own posteriors are marked."""

    finest: float | None = 0.01
    stochastic = True

    def __init__(self, lonely):
        self._lonely = lonely

    def keys(self, numbers, seed):
        return np.asarray(numbers)

    def support_program(self, y, z, numbers, longer=1):
        log_weights = np.full((len(z), 1, 20), 0.0)
        log_weights[np.isin(numbers, self._lonely), :, 1:] = -40.0
        return np.broadcast_to(z[:, None, None], (len(z), 1, 20, 1)), log_weights

    def unjudged(self, observation, omega, V, accuracy):
        n = len(omega)
        return Posterior(np.zeros(n), np.full((n, 1, 1), 7.0), np.ones((n, 1, 1, 1, 1)), np.full(n, 100.0))

    def refuse_few_samples(self, effective):
        pass


@pytest.mark.parametrize("count", [1, 40], ids=["rare", "common"])
def test_a_point_that_stands_for_all_of_a_posterior_is_not_left_alone(count):
    lonely = np.arange(count)
    Z = np.zeros((1000, 1, 1))
    found = SupportedPosterior(FewPoints(lonely), np.zeros((1000, 1)), Z, Accuracy())(Z, np.eye(1))
    np.testing.assert_array_equal(np.flatnonzero(found.shift[:, 0, 0] == 7.0), lonely)


def scored(posteriors, V):
    """Per sample, E|g|^2 by both estimators as averages blend them, and |G|_F^2 summed over indices."""
    (g, G), (h, H) = ((score(one, V), score_jacobian(one, V)) for one in posteriors)
    q = 1 - V[0, 0]
    square, nishimori = (g * h).sum((1, 2)), -0.5 * np.einsum("npmpm->n", G + H)
    own = np.einsum("npmpk,npmpk->n", G, H)
    return np.stack([(1 - q**4) * square + q**4 * nishimori, own], 1)


@pytest.mark.slow
def test_samples_with_few_points_do_not_move_averages(monkeypatch):
    """Two products of two indices: samples with few points against sixteen times as many lines.

    Left as they are, averages move by 0.6(2) %.
    """
    v, model = 0.01, MultiIndex(lambda z: z[0] * z[1] + z[2] * z[3], 4)
    V, rng = v * np.eye(4), np.random.default_rng(3)
    Z, noise = rng.standard_normal((2, 512, 4, 1))
    omega = (1 - v) * Z + np.sqrt(v * (1 - v)) * noise
    channel = FibreChannel(ObservedLink(model), 1, (True,) * 4)
    y = channel.observe(Z)

    def found(rows, seeds):
        return [channel.prepared(y[rows], Z[rows], Accuracy(seed=k, numbers=rows))(omega[rows], V) for k in seeds]

    everything = np.arange(len(Z))
    with monkeypatch.context() as patch:
        patch.setattr(supported, "ENOUGH_POINTS", 0.0)
        plain = found(everything, (0, 1))
    few = np.flatnonzero((np.array([one.effective_samples for one in plain]) < 12).any(0))
    assert len(few) >= 10
    usual = found(few, (0, 1))
    monkeypatch.setattr(fibre, "_SUPPORT_DRAWS", 16 * fibre._SUPPORT_DRAWS)
    exact = found(few, (2, 3))
    mean = 0.5 * (exact[0].shift + exact[1].shift)
    lonely = plain[0].effective_samples[few] < 12
    before, after = ((shift - mean)[lonely].std() / np.sqrt(v) for shift in (plain[0].shift[few], usual[0].shift))
    assert after < 0.6 * before
    moved = (scored(usual, V) - scored(exact, V)) / len(Z) / scored(plain, V).mean(0)
    assert (abs(moved.sum(0)) < 2e-3 + 3 * moved.std(0, ddof=1) * np.sqrt(len(few))).all()
