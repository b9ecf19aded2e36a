"""Linear regression with Gaussian noise: the overlap is the root of a quadratic equation, and nothing is sampled."""

import numpy as np
import pytest

from asymptotix import BayesOptimal, MultiIndex, SequenceIndex, solve, thresholds
from asymptotix.core.status import Status
from asymptotix.sequence_index.channels.choose import channel_of, channel_of_link
from asymptotix.sequence_index.channels.links.affine import LinearAverager
from asymptotix.sequence_index.evolution.averages import QuasiRandomAverager
from asymptotix.sequence_index.evolution.fixed_points import StateEvolution


def first(z):
    return z[0]


def ridge_overlap(alpha: float, noise: float) -> float:
    """The q with q = Qhat/(1 + Qhat), Qhat = alpha/(1 - q + noise): Bayes-optimal ridge regression."""
    total = 1 + alpha + noise
    return 2 * alpha / (total + np.sqrt(total**2 - 4 * alpha))


@pytest.mark.parametrize("noise", [1e-4, 0.3, 1.0, 1e4])
@pytest.mark.parametrize("alpha", [1e-2, 0.9, 1.0, 7.0, 1e4])
def test_linear_regression(alpha, noise):
    state = StateEvolution(channel_of(MultiIndex(first, 1, noise))).uninformed(alpha, tolerance=2e-5)
    assert state.how is Status.CONVERGED, state.words
    expected = ridge_overlap(alpha, noise)
    # The iteration is solved to 1e-9 in the logit; near alpha = 1 with little noise it is slow, by 1/sqrt(noise).
    assert abs(state.q[0] - expected) < 1e-7 + state.error[0]
    # An overlap below 1e-5 is left out, one above 1 - 1e-6 is held there.
    assert state.error[0] < (1e-8 if 1e-5 < expected < 1 - 1e-6 else 1.1e-5)


def test_solved_to_its_free_entropy():
    alpha, noise = 1.5, 0.4
    found = solve(BayesOptimal(MultiIndex(first, 1, noise)), alpha=alpha, progress=False)
    q = ridge_overlap(alpha, noise)
    evidence = -0.5 * (1 + np.log(2 * np.pi * (1 - q + noise)))
    assert abs(float(found.free_entropy) - (0.5 * (np.log(1 - q) + q) + alpha * evidence)) < 1e-8
    assert float(found.free_entropy_err) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_averages_are_those_of_samples(noise):
    mixing = np.random.default_rng(5).standard_normal((3, 2, 2))
    channel = channel_of_link(SequenceIndex(lambda Z: (mixing * Z).sum((1, 2)) + 1.0, 2, 2, noise))
    exact = channel.exact_averager()
    assert exact is not None
    assert isinstance(channel.exact(), LinearAverager)
    sampled, V = QuasiRandomAverager(channel, 2**9, 8), np.array([[0.6, 0.2], [0.2, 0.5]])
    basis = np.array([[[1.0, 0], [0, 0]], [[0, 0], [0, 1.0]], [[0, 0.5**0.5], [0.5**0.5, 0]]])
    pairs = zip(
        [*exact(V), *exact.moments_and_operators(V, np.eye(2), basis)],
        [*sampled(V), *sampled.moments_and_operators(V, np.eye(2), basis)],
        strict=True,
    )
    for one, many in pairs:
        scatter = many.std(0, ddof=1) / np.sqrt(8)
        assert (abs(many.mean(0) - one[0]) < 5 * scatter + 1e-9).all()  # five standard errors; slopes have none


def test_several_outputs_of_several_indices():
    # Two independent outputs with their own noise share nothing: each is a regression of its own.
    found = StateEvolution(channel_of(MultiIndex(lambda z: z[:2], 3, 0.5))).uninformed(1.2, tolerance=1e-6)
    expected = np.diag([ridge_overlap(1.2, 0.5)] * 2 + [0.0])
    np.testing.assert_allclose(found.Q, expected, atol=1e-7)


@pytest.mark.slow
def test_thresholds_of_a_linear_link():
    found = thresholds(BayesOptimal(MultiIndex(lambda z: z[:2], 3, 0.5)), progress=False)
    assert found.status_code.item() == "converged"
    assert found.weak_recovery.values.tolist() == [0.0, 0.0, np.inf]
    assert found.weak_recovery_err.values.tolist() == [0.0, 0.0, 0.0]
