import numpy as np
import pytest

from asymptotix.numerics.control_variates import control_variate_mean, hermite_features
from asymptotix.numerics.quadrature import gauss_hermite


def exponential_samples(seed, count=400):
    """E exp(x_0 / 2 + x_1 / 4) = exp(5 / 32) under N(0, I)."""
    x = np.random.default_rng(seed).standard_normal((count, 2))
    return np.exp(x @ [0.5, 0.25])[:, None], x


def test_variance_falls_and_mean_is_unbiased():
    exact = np.exp(5 / 32)
    plain, controlled, errors = [], [], []
    for seed in range(300):
        values, x = exponential_samples(seed)
        estimate = control_variate_mean(values, hermite_features(x, 2).values)
        plain.append(values.mean())
        controlled.append(estimate.value[0])
        errors.append(estimate.error[0])
    # With t = 5/16 degree 2 leaves the share (e^t - 1 - t - t^2/2) / (e^t - 1) = 0.015 of the variance.
    assert np.var(controlled) < 0.05 * np.var(plain)
    spread = np.std(controlled, ddof=1)
    assert abs(np.mean(controlled) - exact) < 4 * spread / np.sqrt(300)
    # The reported error is the spread; 300 repetitions know it to 4 %, the heavy tail of exp adds some.
    assert np.mean(errors) == pytest.approx(spread, rel=0.2)


def test_exact_when_the_controls_span_the_function():
    _, x = exponential_samples(0)
    features = hermite_features(x, 3)
    values = np.stack([2.0 + x[:, 0] ** 3, x[:, 0] * x[:, 1] - 1.0], axis=1)
    estimate = control_variate_mean(values, features.values)
    assert estimate.value == pytest.approx([2.0, -1.0], abs=1e-11)
    assert np.abs(estimate.residuals).max() < 1e-10
    rebuilt = estimate.value + features.values @ estimate.coefficients + estimate.residuals
    assert rebuilt == pytest.approx(values, abs=1e-11)


def test_dependent_and_vanishing_controls_are_harmless():
    values, x = exponential_samples(1)
    reference = control_variate_mean(values, x)
    crowded = np.column_stack([x, 1e6 * x[:, 0] - x[:, 1], np.zeros(len(x)), 1e-9 * x[:, 1]])
    estimate = control_variate_mean(values, crowded)
    assert estimate.value == pytest.approx(reference.value, rel=1e-10)
    assert np.isfinite(estimate.coefficients).all()


def test_weights_reproduce_repeated_samples():
    values, x = exponential_samples(2, count=60)
    times = np.random.default_rng(0).integers(1, 4, size=60)
    repeated = control_variate_mean(np.repeat(values, times, axis=0), np.repeat(x, times, axis=0))
    weighted = control_variate_mean(values, x, weights=times)
    assert weighted.value == pytest.approx(repeated.value, rel=1e-12)
    assert weighted.coefficients == pytest.approx(repeated.coefficients, rel=1e-10)


def test_no_controls_is_the_plain_mean():
    values, _ = exponential_samples(3)
    estimate = control_variate_mean(values, np.zeros((400, 0)))
    assert estimate.value == pytest.approx(values.mean(axis=0), rel=1e-14)
    assert estimate.error == pytest.approx(values.std(axis=0, ddof=1) / 20, rel=1e-12)


def test_refusals_name_the_argument():
    values, x = exponential_samples(4, count=100)
    with pytest.raises(ValueError, match="controls must number at most n/10 = 10"):
        control_variate_mean(values, np.zeros((100, 11)))
    with pytest.raises(ValueError, match=r"controls must have zero mean, got [23]"):
        control_variate_mean(values, x + [0.0, 3.0])
    with pytest.raises(ValueError, match="controls must have zero mean"):
        control_variate_mean(values, np.ones((100, 1)))
    with pytest.raises(ValueError, match="values must not contain nan"):
        control_variate_mean(np.full((100, 1), np.nan), x)
    with pytest.raises(ValueError, match="weights must be non-negative"):
        control_variate_mean(values, x, weights=-np.ones(100))
    with pytest.raises(ValueError, match="controls must have shape"):
        control_variate_mean(values, x[:50])


def test_hermite_features_are_orthonormal():
    nodes, weights = gauss_hermite(6, dim=3)
    features, indices = hermite_features(nodes, 5)
    assert features.shape[1] == len(indices) == 55
    assert len({tuple(index) for index in indices}) == 55
    totals = indices.sum(axis=1)
    assert totals.min() == 1
    assert totals.max() == 5
    assert (np.diff(totals) >= 0).all()
    # Products have degree at most 10, for which six nodes are exact.
    assert weights @ features == pytest.approx(np.zeros(55), abs=1e-12)
    assert features.T @ (weights[:, None] * features) == pytest.approx(np.eye(55), abs=1e-11)


def test_hermite_features_match_their_indices():
    x = np.array([[0.3, -1.2]])
    features, indices = hermite_features(x, 3)
    found = {tuple(index): value for index, value in zip(indices.tolist(), features[0], strict=True)}
    assert found[2, 1] == pytest.approx((0.3**2 - 1) / np.sqrt(2) * -1.2, rel=1e-14)
    assert found[0, 3] == pytest.approx(((-1.2) ** 3 + 3 * 1.2) / np.sqrt(6), rel=1e-14)


def test_hermite_features_refuse_absurd_sizes():
    with pytest.raises(ValueError, match="GiB"):
        hermite_features(np.zeros((1000, 60)), 6)
    with pytest.raises(ValueError, match="degree must be"):
        hermite_features(np.zeros((10, 2)), 0)
