import numpy as np
import pytest

from asymptotix.numerics.control_variates import Control, hermite_polynomials
from asymptotix.numerics.quadrature import gauss_hermite


def test_hermite_polynomials_are_orthonormal_with_mean_zero():
    nodes, weights = gauss_hermite(6, 3)  # exact up to degree 11; products have degree 8
    found, quadratic = (hermite_polynomials(nodes, most) for most in (100, 20))
    assert found is not None
    assert quadratic is not None
    assert quadratic.shape == (216, 6)
    assert found.shape[1] == 6 + 15  # of degree 2 and 4 in three variables
    np.testing.assert_array_equal(found[:, :6], quadratic)
    np.testing.assert_allclose(weights @ found, 0.0, atol=1e-12)
    np.testing.assert_allclose((found.T * weights) @ found, np.eye(21), atol=1e-10)
    assert hermite_polynomials(nodes, 5) is None


def test_hermite_polynomials_of_known_points():
    z = np.array([[0.3, -1.2]])
    found = hermite_polynomials(z, 3)
    assert found is not None
    expected = [(0.3**2 - 1) / np.sqrt(2), 0.3 * -1.2, (1.2**2 - 1) / np.sqrt(2)]
    np.testing.assert_allclose(found[0], expected, rtol=1e-14)


def controlled(values, variates, randomisations):
    """Mean of every randomisation with the regression taken out, as averages use it."""
    control = Control(variates, randomisations)
    plain = values.reshape(randomisations, -1, values.shape[1]).mean(1)
    return plain - control.means @ (control.inverse @ values), plain


def test_regression_removes_what_the_variates_explain():
    rng = np.random.default_rng(0)
    variates = rng.standard_normal((4 * 64, 3))
    slopes = np.array([[1.0, -2.0], [0.5, 0.0], [3.0, 1.0]])
    found, plain = controlled([0.7, -0.2] + variates @ slopes, variates, 4)
    assert np.abs(plain - [0.7, -0.2]).max() > 0.05
    np.testing.assert_allclose(found, np.tile([0.7, -0.2], (4, 1)), atol=1e-12)  # rounding only


def test_what_is_left_has_the_variance_of_the_residual():
    rng = np.random.default_rng(1)
    variates, rest = rng.standard_normal((64 * 256, 2)), rng.standard_normal((64 * 256, 1))
    values = 1.0 + 10 * variates[:, :1] + 0.1 * rest
    found, plain = controlled(values, variates, 64)
    # Standard errors over 64 randomisations of 256: 10/16 and 0.1/16, each known to about 9 %.
    assert plain.std(ddof=1) == pytest.approx(10 / 16, rel=0.3)
    assert found.std(ddof=1) == pytest.approx(0.1 / 16, rel=0.3)
    assert found.mean() == pytest.approx(1.0, abs=4 * 0.1 / 128)


def test_dependent_variates_do_no_harm():
    rng = np.random.default_rng(2)
    variates = rng.standard_normal((256, 2))
    values = np.cos(variates[:, :1])
    once, _ = controlled(values, variates, 4)
    twice, _ = controlled(values, np.concatenate([variates, variates @ [[1.0], [2.0]]], 1), 4)
    np.testing.assert_allclose(twice, once, atol=1e-12)
