import numpy as np

from asymptotix.numerics.control_variates import Control, ControlledMeans, hermite_polynomials, regressed
from asymptotix.numerics.quadrature import gauss_hermite


def test_hermite_polynomials_have_mean_zero_and_unit_variance_and_are_orthogonal():
    nodes, weights = gauss_hermite(6, 3)  # exact up to degree 11; products have degree 8
    found = hermite_polynomials(nodes, 100)
    assert found is not None
    assert found.shape[1] == 6 + 15  # of degree 2 and 4 in three variables
    np.testing.assert_allclose(weights @ found, 0, atol=1e-12)
    np.testing.assert_allclose((found.T * weights) @ found, np.eye(found.shape[1]), atol=1e-11)


def test_no_more_hermite_polynomials_than_allowed():
    z = np.random.default_rng(0).standard_normal((50, 3))
    quadratic = hermite_polynomials(z, 20)
    assert quadratic is not None
    assert quadratic.shape == (50, 6)
    assert hermite_polynomials(z, 5) is None


def averages(values: np.ndarray, variates: np.ndarray, randomisations: int) -> np.ndarray:
    """Means of every randomisation, with the regression taken out."""
    control = Control(variates, randomisations)
    means = values.reshape(randomisations, -1, values.shape[1]).mean(1)
    return means - control.means @ (control.inverse @ values)


def test_regression_removes_what_the_variates_explain():
    z = np.random.default_rng(1).standard_normal((4 * 256, 2))
    variates = hermite_polynomials(z, 100)
    assert variates is not None
    # Polynomials of even degree up to four: nothing of their noise is left, only the exact means 3, 4 and 1.
    values = np.stack([z[:, 0] ** 4, z[:, 0] ** 2 * z[:, 1] ** 2 + 3, 1 + z[:, 0] * z[:, 1]], 1)
    np.testing.assert_allclose(averages(values, variates, 4), np.tile([3.0, 4.0, 1.0], (4, 1)), atol=1e-12)


def test_regression_leaves_the_mean_of_what_the_variates_do_not_explain():
    z = np.random.default_rng(2).standard_normal((8 * 512, 1))
    variates = hermite_polynomials(z, 100)
    assert variates is not None
    values = np.abs(z) + z**3  # |z| is explained in part, z^3 not at all
    found = averages(values, variates, 8)[:, 0]
    error = found.std(ddof=1) / np.sqrt(8)
    assert abs(found.mean() - np.sqrt(2 / np.pi)) < 5 * error
    sizes = np.abs(z)
    assert averages(sizes, variates, 8).std() < 0.5 * sizes.reshape(8, -1).mean(1).std()


def test_variates_that_repeat_one_another_do_no_harm():
    z = np.random.default_rng(3).standard_normal((2 * 128, 1))
    variates = np.concatenate([z, z, 2 * z], 1)
    np.testing.assert_allclose(averages(5 + z, variates, 2), 5.0, atol=1e-12)


def test_means_of_parts_know_as_much_as_all_nodes():
    rng = np.random.default_rng(5)
    z, values = rng.standard_normal((4 * 256, 2)), rng.standard_normal((4 * 256, 3))
    values += z[:, :1] ** 2
    variates = hermite_polynomials(z, 100)
    assert variates is not None
    parts = [ControlledMeans.of(*both) for both in zip(np.split(values, 4), np.split(variates, 4), strict=True)]
    plain, better = values.reshape(4, -1, 3).mean(1), averages(values, variates, 4)
    share = share_of_regression(regressed(parts), plain, better)
    assert plain.var(0).sum() > better.var(0).sum()
    assert 0.5 < share < 1
    alone = [ControlledMeans.of(part, None) for part in np.split(values, 4)]
    np.testing.assert_allclose(regressed(alone), values.reshape(4, -1, 3).mean(1), rtol=1e-12)


def share_of_regression(found: np.ndarray, plain: np.ndarray, better: np.ndarray) -> float:
    """The one share s of found = s better + (1 - s) plain, the same for all randomisations and values."""
    share = float(((found - plain) * (better - plain)).sum() / ((better - plain) ** 2).sum())
    np.testing.assert_allclose(found, share * better + (1 - share) * plain, rtol=1e-9, atol=1e-12)  # rounding
    return share


def test_the_share_of_a_regression_is_a_smooth_function_of_what_it_is_good_for():
    """From all harm, where nodes integrate values exactly and not variates, to all good, where both are the same."""
    rng = np.random.default_rng(4)
    rest, variates = rng.standard_normal((2, 8, 256, 1))
    rest -= rest.mean(1, keepdims=True)
    exact = rest + variates - variates.mean(1, keepdims=True)
    shares, good = [], []
    for t in np.linspace(0, np.pi / 2, 61):
        values = np.cos(t) * exact + np.sin(t) * variates
        parts = [ControlledMeans.of(*both) for both in zip(values, variates, strict=True)]
        plain = values.mean(1)
        better = averages(values.reshape(-1, 1), variates.reshape(-1, 1), 8)
        shares.append(share_of_regression(regressed(parts), plain, better))
        good.append(plain.var() > better.var())
    shares = np.array(shares)
    np.testing.assert_array_equal(shares > 0.5, good)
    assert shares[0] < 1e-12  # all harm: means are exact
    assert shares[-1] > 1 - 1e-12  # all good: now they are
    assert abs(np.diff(shares)).max() < 0.2  # a choice of one of both would jump by one


def test_a_regression_that_makes_means_scatter_more_is_left_out():
    """Of nodes whose means of the values are exact, as those of low discrepancy nearly are; not so their variates."""
    rng = np.random.default_rng(0)
    parts = []
    for _ in range(8):
        variates = rng.standard_normal((256, 1))
        values = variates + rng.standard_normal((256, 1))
        values -= values.mean(0)
        parts.append(ControlledMeans.of(values, variates))
    np.testing.assert_allclose(regressed(parts), 0, atol=1e-12)
