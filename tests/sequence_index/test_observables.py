"""The free entropy is stationary where state evolution stands still, and nowhere else."""

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import BayesOptimal, DeepAttention, MultiIndex, solve
from asymptotix.sequence_index import streams
from asymptotix.sequence_index.channels.attention.sign import SignAverager, SignChannel
from asymptotix.sequence_index.channels.attention.two_layers import TwoLayerChannel
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.evolution.averages import QuasiRandomAverager
from asymptotix.sequence_index.observables import free_entropy, prediction_errors


def one_layer_slope(tokens: int, alpha: float, side: float, q: float) -> float:
    """d Phi / d q by central differences, of deterministic averages."""
    average, step = SignAverager(SignChannel(tokens, "softmax")), 1e-4 * min(q, 1 - q)
    up, down = (
        float(free_entropy(np.array([v]), alpha, average(np.array([[v]])), side).value)
        for v in (1 - q - step, 1 - q + step)
    )
    return (up - down) / (2 * step)


@pytest.mark.parametrize("side", [0.0, 0.25])
@pytest.mark.parametrize(("tokens", "alpha"), [(2, 0.25), (2, 0.4), (3, 0.15)])
def test_one_layer_is_stationary_at_the_fixed_point_only(tokens, alpha, side):
    problem = BayesOptimal(DeepAttention(layers=1, tokens=tokens), side_information=side)
    q = solve(problem, alpha=alpha, tolerance=1e-8).overlap.item()
    # Rounding of Phi over twice the step, 1e-15 / 1e-5, and the residual of the iteration times Phi''.
    assert abs(one_layer_slope(tokens, alpha, side, q)) < 1e-5
    average = SignAverager(SignChannel(tokens, "softmax"))
    for other in (0.7 * q, 1 - 0.7 * (1 - q)):
        hat = alpha * average(np.array([[1 - other]])).second_moment.item()
        # Qhat minus the one that would give this overlap
        expected = 0.5 * (hat - 1 / (1 - other) + 1 / (1 - side))
        found = one_layer_slope(tokens, alpha, side, other)
        # Central differences with a relative step of 1e-4
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        assert np.sign(found) == np.sign(q - other)  # a maximum: state evolution climbs
        assert abs(found) > 1e-3  # a hundred times what counts as zero


def two_layer_slopes(v: np.ndarray, index: int, alpha: float, side: float) -> np.ndarray:
    """q v d Phi / d q (the slope in the logit), one value per randomisation of common nodes."""
    average = QuasiRandomAverager(TwoLayerChannel(1.0, "softmax"), 2**10, 6, seed=20)
    step = 0.1 * (v * (1 - v))[index] * np.eye(2)[index]
    ends = []
    for moved in (v - step, v + step):
        averages = average(np.diag(moved))
        each = [averages._replace(log_evidence=row[None]) for row in averages.log_evidence]
        ends.append(np.array([float(free_entropy(moved, alpha, row, side).value) for row in each]))
    return (ends[0] - ends[1]) / 0.2


def assert_stationary(result, index: int, side: float) -> None:
    alpha = float(result.alpha)
    v = 1 - np.diag(result.overlap.values)
    here = two_layer_slopes(v, index, alpha, side)
    error = here.std(ddof=1) / np.sqrt(len(here))
    # The overlap's own error moves the slope by its error in the logit times a curvature below one; Student's
    # t with five degrees of freedom is beyond 6 once in 500 times (the seed is fixed).
    own = result.overlap_err.values[index, index] / (v * (1 - v))[index]
    allowed = 6 * error + 3 * own
    assert abs(here.mean()) < allowed
    for shift in (-1.5, 1.5):
        moved = v.copy()
        logit = np.log((1 - v[index]) / v[index]) + shift
        moved[index] = 1 / (1 + np.exp(logit))
        there = two_layer_slopes(moved, index, alpha, side).mean()
        assert np.sign(there) == -np.sign(shift)
        assert abs(there) > 2 * allowed


def test_two_layers_are_stationary_at_the_fixed_point_only(curve):
    assert_stationary(curve.sel(alpha=0.6), 1, 0.0)


def test_two_layers_with_side_information_are_stationary_at_the_fixed_point_only(with_side_information):
    assert_stationary(with_side_information, 1, 0.3)


def test_nothing_learned_leaves_the_evidence_of_the_prior(curve):
    # Phi(0) = alpha E log Z_out: linear in alpha, and the same averages at V = I.
    average = QuasiRandomAverager(TwoLayerChannel(1.0, "softmax"), 2**10, 6, seed=20)(np.eye(2)).log_evidence
    error = average.std(ddof=1) / np.sqrt(len(average))
    per_sample = curve.free_entropy.values[0] / 0.1
    assert abs(per_sample - average.mean()) < 6 * np.hypot(error, curve.free_entropy_err.values[0] / 0.1)


def test_free_entropy_of_one_layer_in_closed_form_at_zero_overlap():
    result = solve(BayesOptimal(DeepAttention(layers=1, tokens=2)), alpha=0.1)
    entropy = -(np.log(2 * np.pi) + 1) + np.log(2)  # of two standard normals known up to a common sign
    np.testing.assert_allclose(result.free_entropy.item(), 0.1 * entropy, rtol=1e-9)  # the error it reports


def test_errors_of_predictions_cover_for_links_that_jump(monkeypatch):
    """With errors from four randomisations the largest of these differences is ten errors."""
    problem = MultiIndex(lambda z: jnp.round(jnp.clip(z[0], -2, 2)) + jnp.exp(-0.7 * (z[1] + 0.95) ** 2), 2)
    channel, V = channel_of(problem), np.array([[0.68, 0.003], [0.003, 0.75]])
    found = []
    for seed in range(1000, 1040):
        monkeypatch.setattr(streams, "PREDICTION_NODES", seed)
        found.append(prediction_errors(channel, V))
    values, errors = np.array([one.value for one in found]), np.array([one.error for one in found])
    apart = abs(values - values.mean(0)) / errors
    assert apart.max() < 5  # Student's t with 15 degrees of freedom, 80 times: once in 80 sets of seeds
    assert np.sqrt((apart**2).mean()) < 1.5  # 1.07 for Student's t; scrambled nets have longer tails
