"""Averages over data: deterministic quadrature, quasi-random nodes and identities against each other."""

import numpy as np
import pytest

from asymptotix.numerics.linear_algebra import symmetric_basis
from asymptotix.numerics.quadrature import sobol_uniforms
from asymptotix.sequence_index.channels.attention.sign import SignAverager, SignChannel
from asymptotix.sequence_index.channels.attention.two_layers import TwoLayerChannel
from asymptotix.sequence_index.channels.protocol import score, score_jacobian
from asymptotix.sequence_index.evolution import averages
from asymptotix.sequence_index.evolution.averages import QuasiRandomAverager, averager
from asymptotix.sequence_index.evolution.nodes import Nodes
from asymptotix.sequence_index.evolution.zero_overlap import curvature_at_zero

TWO_LAYERS = [TwoLayerChannel(1.0, "softmax"), TwoLayerChannel(1.0, "linear")]
IDS = ["softmax", "linear"]
#: Differences are measured in standard errors from 8 randomisations: Student's t with 7 degrees of freedom is
#: beyond 6 once in 2000 times; the seeds are fixed.
LIMIT = 6.0


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))


@pytest.mark.parametrize("tokens", [1, 2, 3])
@pytest.mark.parametrize("q", [1e-3, 0.3, 0.9])  # closer to 1 the nodes miss what decides: a rare small |z|
def test_one_layer_quadrature_agrees_with_quasi_random_nodes(tokens, q):
    channel, V = SignChannel(tokens, "linear"), np.array([[1 - q]])
    exact, sampled = SignAverager(channel)(V), QuasiRandomAverager(channel, 2**11, 8)(V)
    for name in ("second_moment", "log_evidence"):
        mean, error = mean_and_error(getattr(sampled, name))
        assert np.all(abs(mean - getattr(exact, name)[0]) < LIMIT * error), name


@pytest.mark.parametrize("channel", TWO_LAYERS, ids=IDS)
@pytest.mark.parametrize("rough", [True, False])
@pytest.mark.parametrize("v", [(1.0, 1.0), (0.9999, 0.5), (0.6, 0.02), (1e-6, 0.3)])
def test_one_pass_over_the_nodes_is_that_through_posteriors(channel, rough, v, monkeypatch):
    V = np.diag(v)
    found = QuasiRandomAverager(channel, 32, 8, rough=rough)(V)
    monkeypatch.setattr(TwoLayerChannel, "score_squares", lambda *_: None)
    expected = QuasiRandomAverager(channel, 32, 8, rough=rough)(V)
    for one, other in zip(found, expected, strict=True):
        # Rounding of a covariance relative to the prior's, 1e-16 over the variance, and of rows that cancel.
        np.testing.assert_allclose(one, other, rtol=1e-15 / min(v) + 1e-13, atol=1e-13)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_one_layer_at_zero_overlap(tokens):
    # There G = z z^T - I, and E|G|^2 = M(M+1).
    found = SignAverager(SignChannel(tokens, "linear"))(np.eye(1))
    assert found.second_moment.item() == 0
    assert found.curvature.item() == tokens * (tokens + 1)
    entropy = -0.5 * tokens * (np.log(2 * np.pi) + 1) + np.log(2)  # a standard normal known up to its sign
    np.testing.assert_allclose(found.log_evidence, entropy, rtol=1e-14)  # rounding


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_one_layer_is_continuous_at_zero_overlap(tokens):
    average = SignAverager(SignChannel(tokens, "linear"))
    q = 1e-6
    found = average(np.array([[1 - q]]))
    # E g^2 = M(M+1) q + O(q^2) with a coefficient of order M^3.
    np.testing.assert_allclose(found.second_moment.item() / q, tokens * (tokens + 1), rtol=1e-4)
    # 1/2 E g^2 q
    np.testing.assert_allclose(found.log_evidence, average(np.eye(1)).log_evidence, rtol=0, atol=1e-8)


def test_many_tokens_give_the_sign_away():
    # 60 tokens at overlap 1/2 leave no doubt about the sign: z is known, E|z - omega|^2/v^2 = M/v.
    found = SignAverager(SignChannel(60, "linear"))(np.array([[0.5]]))
    np.testing.assert_allclose(found.second_moment, 120.0, rtol=1e-6)  # what is left in doubt is exp(-60/4)


@pytest.mark.parametrize("channel", TWO_LAYERS, ids=IDS)
def test_curvature_at_zero_agrees_with_sampled_posteriors(channel):
    exact = curvature_at_zero(channel)
    rows = []
    for r in range(8):
        Z, weights = channel.draw_indices(sobol_uniforms(2**8, 4, (5, r)))
        posterior = channel.posterior(channel.observe(Z), np.zeros_like(Z), np.eye(2))
        own = np.einsum("npmpk->npmk", score_jacobian(posterior, np.eye(2)))
        rows.append((weights[:, None] * (own**2).sum((-1, -2))).mean(0))
    mean, error = mean_and_error(np.array(rows))
    assert (error < 0.1 * mean).all()  # the comparison means something
    assert (abs(mean - exact.value) < LIMIT * error).all()


@pytest.mark.parametrize("channel", TWO_LAYERS, ids=IDS)
def test_average_is_the_plain_mean_over_data(channel):
    # No control variates, no folding, no blending: independent normal draws and both estimators of E[g g^T].
    V = np.diag([0.7, 0.2])
    rng = np.random.default_rng(8)
    omega = np.sqrt(1 - np.diag(V))[:, None] * rng.standard_normal((2000, 2, 2))
    Z = omega + np.sqrt(np.diag(V))[:, None] * rng.standard_normal(omega.shape)
    posterior = channel.posterior(channel.observe(Z), omega, V)
    square = (score(posterior, V) ** 2).sum(-1)
    nishimori = -np.einsum("npmpm->np", score_jacobian(posterior, V))
    log_evidence = posterior.log_evidence - channel.log_output_volume(channel.observe(Z))
    found = QuasiRandomAverager(channel, 2**8, 8)(V)
    diagonal = np.einsum("rpp->rp", found.second_moment)
    pairs = [(diagonal, square), (diagonal, nishimori), (found.log_evidence, log_evidence)]
    for sampled, direct in pairs:
        mean, error = mean_and_error(sampled)
        plain, plain_error = mean_and_error(direct)
        assert np.all(abs(mean - plain) < LIMIT * np.hypot(error, plain_error))
    np.testing.assert_array_equal(found.second_moment[:, 0, 1], 0.0)  # the rows change sign independently


def test_nothing_learned_gives_exactly_nothing():
    found = QuasiRandomAverager(TWO_LAYERS[0], 2**7, 2)(np.diag([1.0, 0.3]))
    # g_1 vanishes with omega_1 by the symmetry z1 -> -z1; what is left is rounding of the cubature, squared.
    assert (found.second_moment[:, 0, 0] < 1e-20).all()
    assert (found.second_moment[:, 1, 1] > 1).all()


@pytest.mark.parametrize("q", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_one_layer_evidence_grows_by_half_the_squared_score(tokens, q):
    # d/dq E log Z_out = 1/2 E|g|^2
    average, step = SignAverager(SignChannel(tokens, "linear")), 1e-4
    up, down = (average(np.array([[1 - q - d]])).log_evidence.item() for d in (step, -step))
    expected = 0.5 * average(np.array([[1 - q]])).second_moment.item()
    # Central differences: (step/v)^2 / 6 of a second derivative of relative order one, at v = 0.05.
    np.testing.assert_allclose((up - down) / (2 * step), expected, rtol=1e-5)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("channel", TWO_LAYERS, ids=IDS)
def test_two_layer_evidence_grows_by_half_the_squared_score(channel, index):
    average = QuasiRandomAverager(channel, 2**8, 8)
    v = np.array([0.6, 0.3])
    step = 0.1 * v[index] * np.eye(2)[index]
    up, down, here = average(np.diag(v - step)), average(np.diag(v + step)), average(np.diag(v))
    slope = (up.log_evidence - down.log_evidence) / (2 * step[index])
    expected = 0.5 * here.second_moment[:, index, index]
    mean, error = mean_and_error(slope - expected)
    # Common nodes make the difference precise, not the identity, which holds for the mean; central
    # differences over a tenth of v leave a relative 0.1^2 / 3 of what goes like 1/v.
    bias = 0.01 * expected.mean()
    assert abs(mean) < LIMIT * error + bias
    assert LIMIT * error + bias < 0.5 * expected.mean()  # the comparison means something


def test_nodes_are_common_to_all_overlaps_and_calls():
    channel = TWO_LAYERS[0]
    first, again = (QuasiRandomAverager(channel, 2**7, 2, seed=3)(np.diag([0.5, 0.5])) for _ in range(2))
    other = QuasiRandomAverager(channel, 2**7, 2, seed=4)(np.diag([0.5, 0.5]))
    np.testing.assert_array_equal(first.second_moment, again.second_moment)
    assert (first.second_moment != other.second_moment).any()


def test_best_averager_of_each_channel():
    assert isinstance(averager(SignChannel(2, "softmax"), 2**7, 2), SignAverager)
    assert isinstance(averager(TWO_LAYERS[0], 2**7, 2), QuasiRandomAverager)


@pytest.mark.parametrize("q", [(0.0, 0.5), (0.4, 0.99)])
@pytest.mark.parametrize("activation", IDS)
def test_corrected_averages_with_rough_posteriors_are_those_with_better_ones(activation, q):
    """On the same nodes: what is left is the error of the correction, which its rows show."""
    nodes, V = Nodes(TwoLayerChannel(1.0, activation, backend="numba")), np.diag(1 - np.array(q))
    better, rough, correction = nodes.block(0)(V), nodes.rough.block(0)(V), next(nodes.corrections(V))
    assert nodes.rough is not nodes
    assert correction is not None
    learned = np.flatnonzero(q)
    for name in ("second_moment", "curvature"):
        ratio = (getattr(better, name) / np.where(getattr(rough, name) == 0, 1, getattr(rough, name))).mean(0)
        factor, error = mean_and_error(getattr(correction, name))
        at = np.ix_(learned, learned) if ratio.ndim == 2 else learned
        off = abs(ratio - factor)[at]
        assert np.all((off < LIMIT * error[at] + 1e-5) | (ratio[at] == 0)), name  # the second: of the ratio of means
    shift, error = mean_and_error(correction.log_evidence)
    assert abs((better.log_evidence - rough.log_evidence).mean() - shift) < LIMIT * error + 1e-6


def test_operators_in_parts_between_which_signals_are_obeyed(monkeypatch):
    rng, basis, looks = np.random.default_rng(0), symmetric_basis(3), []
    G, H = rng.normal(size=(2, 100, 9, 4))  # two tokens
    monkeypatch.setattr(averages, "_PRODUCTS_AT_ONCE", 11 * 81)
    monkeypatch.setattr(averages.interrupts, "check", lambda: looks.append(1))
    found = averages._forms(G, H, basis)
    pairs = (array.reshape(100, 3, 3, 4) for array in (G, H))
    expected = np.einsum("aij,nikt,bkl,njlt->nba", basis, next(pairs), basis, next(pairs))
    np.testing.assert_allclose(found, expected, atol=1e-12)  # rounding of 324 terms
    assert len(looks) == 10
