"""Thresholds and overlaps of one layer beyond rank one, through the public verbs."""

import numpy as np
import pytest

from asymptotix import BayesOptimal, DeepAttention, solve, thresholds
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.evolution.averages import QuasiRandomAverager
from asymptotix.sequence_index.evolution.instability import instability

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("model", "alpha"),
    [
        (DeepAttention(1, 2, rank=2), 2 / 5),  # 1 + 1/2 + 1
        (DeepAttention(1, 2, tied=False), np.sqrt(5) - 2),  # the matrix [[1, 2], [2, 3]]
        (DeepAttention(1, 3, rank=2), 1 / 6),  # the mean of z z^T over O(2) is U^T U/2: P/(M(M+1))
        (DeepAttention(1, 2, heads=3), 1 / 2),  # the uniform direction among the blocks of a head: H/(M(M+1))
    ],
    ids=["direction", "scale", "rotation", "heads"],
)
def test_stability_of_zero_overlap(model, alpha):
    here = channel_of(model)
    P = here.indices
    found = instability([QuasiRandomAverager(here, 2**9, 8)], np.eye(P), np.eye(P))
    assert not found.starts_by_itself
    # Where the average is exact (every sample's contribution is a polynomial that the control variates take out) only
    # rounding is left.
    assert abs(1 / found.rate - alpha) < 4 * found.error / found.rate**2 + 1e-9
    # A scatter of 3 % at most; of eight rows and equal rates an error is twice as large, see `error_of_mean`, `_ALIKE`.
    assert found.error < 0.065 * found.rate


def test_product_of_key_and_query_of_one_token():
    # y = k q has the threshold of the product of two indices.
    here = channel_of(DeepAttention(1, 1, tied=False, activation="linear"))
    found = instability([QuasiRandomAverager(here, 2**10, 8)], np.eye(2), np.eye(2))
    assert abs(1 / found.rate - 0.593751) < 4 * found.error / found.rate**2
    assert found.error < 0.02 * found.rate


@pytest.mark.parametrize(
    ("model", "weak", "exact", "tolerance"),
    [
        pytest.param(DeepAttention(1, 2, tied=False), np.sqrt(5) - 2, 1.0, 1e-3, marks=pytest.mark.full),
        (DeepAttention(1, 2, heads=2), 1 / 3, 1.0, 1e-3),
        # Its first threshold is tested above, and below that overlaps leave zero there and are full from one on.
        pytest.param(DeepAttention(1, 2, rank=2), 2 / 5, 1.0, 1e-2, marks=pytest.mark.full),
    ],
    ids=["untied", "two heads", "rank two"],
)
def test_thresholds(model, weak, exact, tolerance):
    found = thresholds(BayesOptimal(model), tolerance=tolerance, progress=False)
    # Everything is learned at once, and exactly from where full overlap is stable on: P/r.
    assert len(found.staircase) == 1
    assert abs(found.weak_recovery.values - weak).max() < 4 * found.weak_recovery_err.values.max() + 1e-9
    assert found.weak_recovery_err.values.max() < 2 * tolerance * weak
    assert abs(float(found.exact_recovery) - exact) <= float(found.exact_recovery_err)


@pytest.mark.parametrize(
    ("model", "weak"),
    [
        (DeepAttention(1, 2, rank=2), 2 / 5),
        pytest.param(DeepAttention(1, 2, tied=False), np.sqrt(5) - 2, marks=pytest.mark.full),  # as its thresholds say
    ],
    ids=["rank two", "untied"],
)
def test_overlap_leaves_zero_at_the_threshold_and_is_full_from_one_on(model, weak):
    found = solve(BayesOptimal(model), alpha=[0.9 * weak, 0.7, 1.2], tolerance=2e-2, progress=False)
    below, between, above = found.overlap.values
    assert not below.any()
    assert 0.2 < np.linalg.eigvalsh(between)[0] <= np.linalg.eigvalsh(between)[-1] < 0.9
    np.testing.assert_allclose(above, np.eye(2), atol=1e-9)
    assert found.converged.values.all()
    assert np.all(np.diff(found.test_error.values) < 0)


def test_two_rows_of_rank_two_are_learned_alike():
    # O(2) turns the rows into each other: the overlap of an isotropic start stays a multiple of the unit matrix.
    found = solve(BayesOptimal(DeepAttention(1, 2, rank=2)), alpha=0.9, tolerance=1e-2, progress=False)
    Q, error = found.overlap.values, found.overlap_err.values
    assert abs(Q[0, 0] - Q[1, 1]) < 5 * np.hypot(error[0, 0], error[1, 1])
    assert abs(Q[0, 1]) < 5 * error[0, 1]
    assert abs(Q[0, 0] - 0.725) < 5 * error[0, 0] + 5e-3  # measured on 16384 nodes: 0.7252(27), 0.7237(32)


@pytest.mark.parametrize(
    ("model", "kind", "outputs"),
    [
        (DeepAttention(2, 2, skip=0.0, activation="linear"), "FibreChannel", 2),
        (DeepAttention(2, 3, rank=(1, 2)), "FibreChannel", 5),
        (DeepAttention(1, 2, rank=3), "FibreChannel", 2),
        (DeepAttention(2, 1, activation="linear"), "CurveChannel", 1),
    ],
    ids=str,
)
def test_rarer_shapes_get_the_channel_of_a_link(model, kind, outputs):
    channel = channel_of(model)
    assert (type(channel).__name__, channel.outputs) == (kind, outputs)
