"""Variance reduction of an average by regression on functions whose mean is known to vanish."""

from itertools import combinations_with_replacement
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks

MAX_ENTRIES = 2**27
"""Largest table of features that is built, in numbers (1 GiB of float64)."""

RANK_TOLERANCE = 1e-10
"""Singular values of the scaled controls below this share of the largest are taken as linear dependence."""

MEAN_TOLERANCE = 8.0
"""Standard errors by which a control's sample mean may differ from zero before it is refused."""


class ControlledMean(NamedTuple):
    """Mean with the controls regressed out.

    Attributes
    ----------
    value : array (k,)
        Intercept of the regression, the estimate of the mean.
    error : array (k,)
        Standard error for independent samples; for quasi-Monte Carlo nodes use the spread over
        randomisations.
    residuals : array (n, k)
        What is left of every sample; their weighted mean is zero.
    coefficients : array (j, k)
    """

    value: NDArray[np.float64]
    error: NDArray[np.float64]
    residuals: NDArray[np.float64]
    coefficients: NDArray[np.float64]


class HermiteFeatures(NamedTuple):
    """Features (n, j) and multi-indices (j, d): feature a is the product over i of h_{indices[a, i]}(x_i)."""

    values: NDArray[np.float64]
    indices: NDArray[np.int64]


def control_variate_mean(
    values: ArrayLike, controls: ArrayLike, weights: ArrayLike | None = None
) -> ControlledMean:
    """Mean of `values` by least-squares regression on controls of known zero mean.

    The fit is ``values = mean + controls @ coefficients + residual`` and its intercept is the estimate,
    ``mean(values) - mean(controls) @ coefficients``. Linearly dependent or vanishing controls are harmless.
    Since the
    coefficients are fitted on the same samples the estimate has a bias of order 1/n.

    Parameters
    ----------
    values : array (n, k)
    controls : array (n, j)
        Functions of the same samples whose exact mean is zero; at most n/10 of them.
    weights : array (n,), optional
        Non-negative weights of the samples, normalised here; uniform by default.
    """
    y, c, w = _checked(values, controls, weights)
    control_mean = w @ c
    centred = c - control_mean
    spread = np.sqrt(w @ centred**2)
    _check_zero_mean(control_mean, spread, w)
    scale = np.where(spread > 0, spread, 1.0)
    mean = w @ y
    root = np.sqrt(w)[:, None]
    fit = np.linalg.lstsq(root * (centred / scale), root * (y - mean), rcond=RANK_TOLERANCE)[0]
    coefficients = fit / scale[:, None]
    residuals = y - mean - centred @ coefficients
    freedom = len(y) / (len(y) - c.shape[1] - 1)
    error = np.sqrt(freedom * (w**2 @ residuals**2))
    return ControlledMean(mean - control_mean @ coefficients, error, residuals, coefficients)


def hermite_features(x: ArrayLike, degree: int) -> HermiteFeatures:
    """Products of probabilists' Hermite polynomials of total degree 1 to `degree`.

    With h_k = He_k / sqrt(k!), which obeys sqrt(k+1) h_{k+1} = x h_k - sqrt(k) h_{k-1}, the features are
    orthonormal under N(0, I): zero mean, unit variance. There are binomial(d + degree, degree) - 1 of them,
    ordered by degree.

    Parameters
    ----------
    x : array (n, d)
    degree : int
        At least 1.
    """
    x = checks.array_of_shape("x", x, (None, None))
    degree = checks.integer("degree", degree, 1)
    samples, dim = x.shape
    features = comb(dim + degree, degree) - 1
    if samples * features > MAX_ENTRIES:
        size = 8 * samples * features / 2**30
        raise ValueError(
            f"{features} features of {samples} samples need {size:.3g} GiB, more than 1 GiB: lower degree"
        )
    ladder = _normalised_hermite(x, degree)
    indices = _multi_indices(dim, degree)
    columns = np.ones((samples, features))
    for column, index in zip(columns.T, indices, strict=True):
        for axis in np.flatnonzero(index):
            column *= ladder[index[axis], :, axis]
    return HermiteFeatures(columns, indices)


def _normalised_hermite(x: NDArray[np.float64], degree: int) -> NDArray[np.float64]:
    ladder = np.empty((degree + 1, *x.shape))
    ladder[0], ladder[1] = 1.0, x
    for k in range(1, degree):
        ladder[k + 1] = (x * ladder[k] - np.sqrt(k) * ladder[k - 1]) / np.sqrt(k + 1)
    return ladder


def _multi_indices(dim: int, degree: int) -> NDArray[np.int64]:
    rows = [
        np.bincount(axes, minlength=dim)
        for total in range(1, degree + 1)
        for axes in combinations_with_replacement(range(dim), total)
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, dim)


def _checked(
    values: ArrayLike, controls: ArrayLike, weights: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    y = checks.array_of_shape("values", values, (None, None))
    samples = len(y)
    c = checks.array_of_shape("controls", controls, (samples, None))
    if samples == 0 or 10 * c.shape[1] > samples:
        raise ValueError(
            f"controls must number at most n/10 = {samples // 10} for n = {samples}, got {c.shape[1]}"
        )
    w = np.ones(samples) if weights is None else checks.array_of_shape("weights", weights, (samples,))
    if (w < 0).any() or not w.sum() > 0:
        raise ValueError(
            f"weights must be non-negative with a positive sum, got minimum {w.min()}, sum {w.sum()}"
        )
    return y, c, w / w.sum()


def _check_zero_mean(mean: NDArray[np.float64], spread: NDArray[np.float64], w: NDArray[np.float64]) -> None:
    """A wrong mean would bias the answer silently; the samples themselves tell it in the gross cases."""
    error = spread * np.sqrt(w @ w)
    # Rounding leaves a mean of relative size 1e-16 in a column that cancels exactly.
    wrong = np.flatnonzero(np.abs(mean) > MEAN_TOLERANCE * error + 1e-13 * spread)
    if wrong.size:
        column = wrong[0]
        raise ValueError(
            f"controls must have zero mean, got {mean[column]:.3g} +- {error[column]:.1g} in column {column}"
        )
