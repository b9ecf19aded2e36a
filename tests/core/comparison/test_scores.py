"""Does the statistic call alarm as often as it says, whatever the number of runs?"""

import numpy as np
import pytest
import xarray as xr
from scipy.stats import norm
from scipy.stats import t as student

from asymptotix.core.comparison.scores import PARTS, chance_bound, common_z, gaussian_equivalent, scores

EXPERIMENTS = 20_000


def drawn(seeds: int, *, error: float = 0.0, seed: int = 0) -> np.ndarray:
    """The z of experiments with runs N(0, 1) against a theory that is right, up to its stated error."""
    rng = np.random.default_rng([seed, seeds])
    runs = xr.DataArray(rng.normal(size=(EXPERIMENTS, seeds)), dims=("alpha", "seed"))
    theory = xr.DataArray(error * rng.normal(size=EXPERIMENTS), dims="alpha")
    return scores(theory, xr.DataArray(error), runs)["z"].values


@pytest.mark.parametrize("seeds", [2, 3, 8])
@pytest.mark.parametrize("level", [0.05, 0.01, 0.001])
def test_false_alarms_are_as_frequent_as_stated(seeds, level):
    found = (abs(drawn(seeds)) > norm.isf(level / 2)).mean()
    assert abs(found - level) < 4 * np.sqrt(level * (1 - level) / EXPERIMENTS)  # four standard errors of a frequency


@pytest.mark.parametrize("seeds", [2, 3, 8])
@pytest.mark.parametrize("error", [0.05, 0.2, 1.0, 5.0])
def test_numerical_error_of_the_theory_never_makes_more_alarms(seeds, error):
    found = (abs(drawn(seeds, error=error)) > norm.isf(0.005)).mean()
    assert found < 0.01 + 4 * np.sqrt(0.01 / EXPERIMENTS)


def test_a_difference_is_found_where_it_is():
    rng = np.random.default_rng(1)
    runs = xr.DataArray(rng.normal(1.0, 0.1, size=(200, 8)), dims=("alpha", "seed"))
    z = scores(xr.DataArray(np.zeros(200), dims="alpha"), xr.DataArray(0.0), runs)["z"]
    assert z.min() > 4  # t is about 28


def test_rounding_is_a_floor():
    runs = xr.DataArray([1 - 3e-8, 1 - 5e-8, 1 - 4e-8], dims="seed")
    found = scores(xr.DataArray(1.0), xr.DataArray(0.0), runs)
    assert set(found) == set(PARTS)
    assert abs(found["t"]) < 1  # 4e-8 is less than single precision resolves


def test_gaussian_equivalent_has_the_probability_of_t():
    t = np.array([-3.0, -0.1, 0.0, 2.0, 12.7])
    for dof in (1, 2, 7, 31, 1e6):
        np.testing.assert_allclose(gaussian_equivalent(t, dof), norm.isf(student.sf(t, dof)), rtol=1e-9, atol=1e-15)
    assert np.isnan(gaussian_equivalent(np.nan, 3.0))
    assert np.isnan(gaussian_equivalent(2.0, np.nan))
    # Beyond the smallest probability of a double it goes on, and grows.
    far = gaussian_equivalent([1e4, 1e6, 1e9], 100.0)
    assert np.isfinite(far).all()
    assert (np.diff(far) > 0).all()
    assert far[0] > 30


def test_all_points_together():
    rng = np.random.default_rng(2)
    each = np.array([common_z(np.repeat(rng.normal(size=(5, 1)), 3, axis=1)) for _ in range(4000)])
    assert abs(each.std() - 1) < 4 / np.sqrt(2 * 4000)  # entries of a point that are one number count once
    assert common_z(np.full((25, 2), 1.0)) == pytest.approx(5.0)
    assert common_z(np.array([[1.0, np.nan], [np.nan, np.nan]])) == 1.0
    assert np.isnan(common_z(np.full((2, 2), np.nan)))


def test_bound_keeps_the_chance_of_a_whole_comparison():
    for entries in (1, 10, 1000):
        assert 2 * norm.sf(chance_bound(entries)) * entries == pytest.approx(0.01)
