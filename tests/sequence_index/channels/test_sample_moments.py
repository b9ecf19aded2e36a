"""Posteriors from several lists of draws put together."""

import numpy as np
import pytest

from asymptotix.sequence_index.channels.tools.sample_moments import SampleMoments, merged


def moments_of(weights: np.ndarray, x: np.ndarray) -> SampleMoments:
    """Of weighted points x (m, n), summed."""
    mean = weights @ x / weights.sum()
    covariance = (weights[:, None] * (x - mean)).T @ (x - mean) / weights.sum()
    return SampleMoments(np.log(weights.sum()), mean, covariance, weights.sum() ** 2 / (weights**2).sum())


def stacked(parts: list[SampleMoments]) -> SampleMoments:
    return SampleMoments(*(np.array(column)[None] for column in zip(*parts, strict=True)))


@pytest.fixture
def lists() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [(rng.exponential(size=50) ** 3, rng.normal(size=(50, 2))) for _ in range(4)]


def test_lists_together_are_one_long_list(lists):
    found = merged(stacked([moments_of(w, x) for w, x in lists]))
    long = moments_of(*(np.concatenate(part) for part in zip(*lists, strict=True)))
    np.testing.assert_allclose(found.shift[0], long.shift, rtol=1e-12)
    np.testing.assert_allclose(found.effective_samples[0], long.effective_samples, rtol=1e-12)
    np.testing.assert_allclose(found.log_evidence[0], long.log_evidence - np.log(4), rtol=1e-12)
    assert (np.linalg.eigvalsh(found.covariance[0] - long.covariance) > 0).all()  # the variance of the mean is added


def test_the_covariance_has_no_bias():
    """Of four lists of five draws each: a covariance about their own mean would be 5 % too small."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40_000, 4, 5))
    mean, covariance = x.mean(2)[..., None], x.var(2)[..., None, None]
    parts = SampleMoments(np.zeros((40_000, 4)), mean, covariance, np.full((40_000, 4), 5.0))
    # Twenty draws scatter by sqrt(2/20), their mean over 40,000 by 0.0016: three of that.
    assert abs(merged(parts).covariance.mean() - 1) < 0.005


def test_lists_without_a_point_do_not_count(lists):
    parts = [moments_of(w, x) for w, x in lists]
    lost = SampleMoments(np.nan, np.full(2, np.nan), np.full((2, 2), np.nan), np.nan)
    found, without = merged(stacked([*parts, lost])), merged(stacked(parts))
    np.testing.assert_allclose(found.shift, without.shift, rtol=1e-12)
    np.testing.assert_allclose(np.exp(found.log_evidence), 0.8 * np.exp(without.log_evidence), rtol=1e-12)
    nothing = merged(stacked([lost, lost]))
    assert np.isnan(nothing.log_evidence).all()
    assert (nothing.effective_samples == 0).all()
