"""The target of scaling laws: what it holds, how it is binned, what it refuses."""

import numpy as np
import pytest

import asymptotix as asx


def test_the_law_is_that_of_its_own_eigenvalues():
    target = asx.RankedPowerLaw(1.25, 400)
    exact = np.arange(1.0, 401) ** -1.25
    exact *= np.sqrt(400 / np.sum(exact**2))
    np.testing.assert_allclose(target.eigenvalues(400)[::-1], exact, rtol=1e-14)
    np.testing.assert_allclose(target.points[0][::-1], exact, rtol=1e-14)  # below 1000 ranks nothing is binned
    np.testing.assert_allclose(target.ranks(7), exact[:7], rtol=1e-14)
    assert target.mean == pytest.approx(exact.mean(), rel=1e-13)
    assert target.zero_mass == 0


@pytest.mark.parametrize("gamma", [0.3, 0.5, 0.75, 1.0, 2.0])
def test_bins_keep_the_number_and_the_mean_square(gamma):
    """The sums over bins are those over all ranks, at a size where these can still be added."""
    target = asx.RankedPowerLaw(gamma, 10**5, rank=30000, mean_square=2.5)
    values, weights = target.points
    assert weights.sum() == pytest.approx(1, abs=1e-13)
    assert weights @ values**2 == pytest.approx(2.5, rel=1e-13)
    assert target.zero_mass == pytest.approx(0.7, abs=1e-13)
    every = target.eigenvalues(10**5)
    assert np.mean(every**2) == pytest.approx(2.5, rel=1e-11)
    # within a bin eigenvalues differ by gamma/40 at most, and the mean by the square of that over 24
    assert target.mean == pytest.approx(every.mean(), rel=max(gamma**2, 0.1) / 40**2 / 12)


def test_binning_changes_errors_by_less_than_is_said():
    """Against all eigenvalues one by one, where both can be afforded."""
    binned = asx.RankedPowerLaw(1.0, 3000)
    exact = asx.Empirical(binned.eigenvalues(3000))
    found = [
        float(asx.solve(linear(target), alpha=3e-3, progress=False).estimation_error) for target in (binned, exact)
    ]
    assert found[0] == pytest.approx(found[1], rel=2e-5)


def linear(target, **options):
    task = asx.AttentionIndex(tokens=1, activation="linear", target=target, noise=0.5)
    return asx.RiskMinimization(task, **options)


def test_a_billion_directions_are_few_points():
    target = asx.RankedPowerLaw(1.5, 10**9)
    assert len(target.points[0]) < 1000
    assert target.zero_mass == 0  # the last eigenvalue is 3e-14 of the first, and no zero
    assert target.mean_square == pytest.approx(float(target.points[1] @ target.points[0] ** 2), rel=1e-13)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: asx.RankedPowerLaw(0, 100), "gamma must be"),
        (lambda: asx.RankedPowerLaw(-1.0, 100), "gamma must be"),
        (lambda: asx.RankedPowerLaw(11.0, 100), "gamma must be at most 10"),
        (lambda: asx.RankedPowerLaw(1.0, 1), "dim must be"),
        (lambda: asx.RankedPowerLaw(1.0, 10**10), "dim must be at most 1,000,000,000"),
        (lambda: asx.RankedPowerLaw(1.0, 100, rank=101), "rank must be at most dim = 100, got 101"),
        (lambda: asx.RankedPowerLaw(1.0, 100, rank=0), "rank must be"),
        (lambda: asx.RankedPowerLaw(1.0, 100, mean_square=0), "mean_square must be"),
        (lambda: asx.RankedPowerLaw(1.0, 100).eigenvalues(50), "dim must be that of the target, 100.*got 50"),
        (lambda: asx.RankedPowerLaw(1.0, 10**7).eigenvalues(10**7), "dim must be at most 1,000,000"),
        (lambda: asx.RankedPowerLaw(1.0, 100).ranks(101), "count must be at most 100, got 101"),
    ],
)
def test_what_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_rank_of_the_target_is_not_swept_where_the_learned_one_has_its_name():
    problem = linear(asx.RankedPowerLaw(1.0, 30))
    with pytest.raises(ValueError, match="rank cannot be swept, being the name of an observable"):
        asx.solve(problem, alpha=0.3, rank=[3, 20], progress=False)
    limits = asx.thresholds(problem, which="interpolation", rank=[3, 20], progress=False)
    assert limits.interpolation.sel(rank=3) < limits.interpolation.sel(rank=20)


def test_an_experiment_has_the_dimension_of_the_target():
    problem = linear(asx.RankedPowerLaw(1.0, 30))
    with pytest.raises(ValueError, match="dim must be that of the target, 30"):
        asx.simulate(problem, asx.Adam(steps=20), alpha=0.5, dim=40, seeds=1, progress=False)
