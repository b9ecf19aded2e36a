"""The cubature of two layers in single precision: no worse than in double precision, and only where that holds."""

import numpy as np
import pytest

from asymptotix.sequence_index.channels.attention.activation_kinds import LINEAR, SOFTMAX
from asymptotix.sequence_index.channels.attention.two_layer_batches import posterior_moments
from asymptotix.sequence_index.channels.protocol import DEFAULT_ACCURACY, Accuracy
from asymptotix.sequence_index.models import rank_one

AVERAGES, EXACT = Accuracy(fineness=2.0, cut=9.0), Accuracy(fineness=1.0, cut=16.0)
NAMES = {SOFTMAX: "softmax", LINEAR: "linear"}


def problems(kind, c, V, count=256, seed=0):
    """Observations and fields as state evolution has them."""
    draw = np.random.default_rng(seed).standard_normal
    Z, noise = draw((2, count, 2, 2))
    Q = np.eye(2) - V
    omega = Q @ Z + np.linalg.cholesky(Q @ V + 1e-15 * np.eye(2)) @ noise
    u = rank_one.canonical_sign(rank_one.rotated_preactivation(Z, c, NAMES[kind]))
    return kind, c, u, omega.reshape(count, 4), V


def in_deviations(moments, exact, V):
    """Errors of the log evidence, of the mean and of the covariance, in prior standard deviations, root mean square."""
    v = np.repeat(np.diag(V), 2)
    scales = 1.0, np.sqrt(v), np.sqrt(np.outer(v, v))
    pairs = zip(moments, exact, scales, strict=True)
    return np.array([np.sqrt((((a - b) / scale) ** 2).mean()) for a, b, scale in pairs])


@pytest.mark.parametrize("kind", [SOFTMAX, LINEAR])
@pytest.mark.parametrize("c", [4.0, 1.0, 0.1])
@pytest.mark.parametrize("v", [(0.99, 0.99), (0.9, 1e-3), (1e-2, 0.9), (1e-3, 1e-5)])
def test_single_precision_adds_nothing_to_the_errors_of_the_cubature(kind, c, v):
    given = problems(kind, c, np.diag(v))
    exact = posterior_moments(*given, EXACT, single=False)
    single, double = (posterior_moments(*given, AVERAGES, single=single) for single in (True, False))
    # Rounding alone is 1e-5 to 1e-4 at the smallest variance, 1e-6 elsewhere; which cells are dropped may differ.
    added = 1e-4 if min(v) < 1e-4 else 2e-5
    assert (in_deviations(single, exact, np.diag(v)) < 1.5 * in_deviations(double, exact, np.diag(v)) + added).all()


def test_single_precision_with_correlated_layers():
    V = np.array([[0.5, 0.1], [0.1, 0.03]])
    given = problems(SOFTMAX, 1.0, V)
    exact = posterior_moments(*given, EXACT, single=False)
    single = posterior_moments(*given, AVERAGES)
    assert (in_deviations(single, exact, V) < 5e-3).all()  # the cubature's own error at this fineness
    assert (in_deviations(single, exact, V) > 1e-8).all()  # it was another computation


@pytest.mark.parametrize(
    ("c", "v", "accuracy", "is_single"),
    [
        (1.0, (0.5, 0.01), AVERAGES, True),
        (1.0, (0.5, 0.01), DEFAULT_ACCURACY, False),  # a posterior that is wanted for itself
        (1.0, (0.5, 1e-6), AVERAGES, False),
        (0.01, (0.5, 0.01), AVERAGES, False),
    ],
)
def test_which_precision_is_taken(c, v, accuracy, is_single):
    given = problems(SOFTMAX, c, np.diag(v), count=8)
    found, same, other = (
        posterior_moments(*given, accuracy, single=single) for single in (None, is_single, not is_single)
    )
    np.testing.assert_array_equal(found[0], same[0])
    assert (found[0] != other[0]).any()


def test_a_long_and_narrow_ridge_is_followed():
    """A known second layer leaves of the first a line where the softmax saturates: more than 2^14 cells."""
    draw = np.random.default_rng(5)
    Z, V = np.stack([draw.uniform(1.7, 2.5, (48, 2)), draw.normal(size=(48, 2))], 1), np.diag([0.99, 1e-6])
    Q = np.eye(2) - V
    omega = Q @ Z + np.sqrt(Q @ V) @ draw.normal(size=Z.shape)
    u = rank_one.canonical_sign(rank_one.rotated_preactivation(Z, 1.0, "softmax"))
    log_evidence, shift, _ = posterior_moments(SOFTMAX, 1.0, u, omega.reshape(-1, 4), V, AVERAGES)
    assert np.isfinite(log_evidence).all()
    # What is seen is what was there: the mean of the second layer within 6 deviations, 1e-3 each.
    assert abs(shift[:, 2:] + omega.reshape(-1, 4)[:, 2:] - Z[:, 1]).max() < 6e-3
