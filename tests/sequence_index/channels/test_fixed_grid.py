"""The fixed-shape grid against the adaptive cubature, and against the model itself."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

from asymptotix.numerics.precision import double_precision
from asymptotix.sequence_index.channels.attention import fixed_grid as grid
from asymptotix.sequence_index.channels.attention.activation_kinds import LINEAR, SOFTMAX
from asymptotix.sequence_index.channels.protocol import Accuracy
from asymptotix.sequence_index.models import rank_one as attention

NAMES = {SOFTMAX: "softmax", LINEAR: "linear"}
SAMPLES = 200  # one size, so that each activation is compiled once per precision; not a multiple of a block


def draw(kind, c, v1, v2, *, correlation=0.0, seed=0):
    """u, omega, V and the true Z of samples from the model at overlap 1 - V."""
    rng = np.random.default_rng(seed)
    cross = correlation * np.sqrt(v1 * v2)
    V = np.array([[v1, cross], [cross, v2]])
    omega = np.sqrt(1 - np.diag(V))[:, None] * rng.normal(size=(SAMPLES, 2, 2))
    Z = omega + np.linalg.cholesky(V) @ rng.normal(size=(SAMPLES, 2, 2))
    return attention.rotated_preactivation(Z, c, NAMES[kind]), omega.reshape(-1, 4), V, Z.reshape(-1, 4)


def double(kind, c, *arrays, **options):
    with double_precision():
        return [np.asarray(x) for x in grid.posterior_moments(kind, c, *arrays, **options)]


def single(kind, c, *arrays):
    arrays = [np.asarray(x, np.float32) for x in arrays]
    return [np.asarray(x) for x in grid.posterior_moments(kind, c, *arrays)]


@functools.cache
def exact(kind, c, v1, v2, correlation):
    """The adaptive cubature's answer to the samples of ``draw``."""
    from asymptotix.sequence_index.channels.attention.two_layer_batches import posterior_moments

    u, omega, V, _ = draw(kind, c, v1, v2, correlation=correlation)
    return posterior_moments(kind, c, u, omega, V, Accuracy(fineness=0.7, cut=20.0), threads=1)


#: Compiling takes longer than all else: one of the four combinations of activation and precision is left out.
PRECISIONS = [(SOFTMAX, double), (SOFTMAX, single), (LINEAR, single)]
SETTINGS = {
    SOFTMAX: [
        (1.0, 1.0, 1.0, 0.0),
        (1.0, 1.0, 0.1, 0.5),
        (4.0, 1.0, 1e-3, 0.0),
        (0.1, 1.0, 0.02, 0.0),
        (1.0, 1.0, 1e-5, 0.0),
        (1.0, 0.05, 5e-4, 0.5),
        (1.0, 1e-5, 1e-5, 0.5),
    ],
    LINEAR: [
        (1.0, 1.0, 0.1, 0.0),
        (1.0, 0.3, 0.004, 0.5),
        (0.1, 1.0, 1e-3, 0.0),
        (1.0, 1e-2, 1e-5, 0.0),
    ],
}
CASES = [(kind, precision, *setting) for kind, precision in PRECISIONS for setting in SETTINGS[kind]]


@pytest.mark.slow  # every case compiles a program of its own
@pytest.mark.parametrize(("kind", "precision", "c", "v1", "v2", "correlation"), CASES)
def test_agrees_with_the_adaptive_cubature(kind, precision, c, v1, v2, correlation):
    u, omega, V, _ = draw(kind, c, v1, v2, correlation=correlation)
    log_evidence, shift, covariance = precision(kind, c, u, omega, V)
    expected = exact(kind, c, v1, v2, correlation)
    scale = np.sqrt([v1, v1, v2, v2])
    error = (shift - expected[1]) / scale
    # The aim of the fixed grid: 1e-3 of a prior standard deviation over all samples, one in a hundred worse
    # than 0.01; among 200 samples there may by chance be four of the latter.
    assert np.sqrt(np.mean(error**2)) < 1e-3
    assert np.mean(np.abs(error).max(axis=1) > 0.01) <= 0.02
    # Second moments and the evidence err with the first; the factors were measured, with some room.
    assert np.sqrt(np.mean(((covariance - expected[2]) / np.outer(scale, scale)) ** 2)) < 4e-3
    assert np.median(np.abs(log_evidence - expected[0])) < 1e-3
    assert np.abs(log_evidence - expected[0]).max() < 0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "precision", "v1", "v2"),
    [
        pytest.param(SOFTMAX, double, 1.0, 0.1, marks=pytest.mark.full),
        (LINEAR, single, 0.5, 0.05),
    ],
)
def test_posterior_is_calibrated(kind, precision, v1, v2):
    """The truth is one more draw from the posterior (Nishimori): its squared z-score is 1 on average."""
    squares = []
    for seed in range(6):
        u, omega, V, Z = draw(kind, 1.0, v1, v2, correlation=0.3, seed=seed)
        _, shift, covariance = precision(kind, 1.0, u, omega, V)
        squares.append((Z - omega - shift) ** 2 / np.diagonal(covariance, axis1=1, axis2=2))
    squares = np.concatenate(squares)
    spread = squares.std(axis=0) / np.sqrt(len(squares))
    assert np.all(np.abs(squares.mean(axis=0) - 1) < 4 * spread)  # four standard errors, four components
    assert np.all(spread < 0.15)  # otherwise the line above says nothing


@pytest.mark.slow  # every case compiles a program of its own
@pytest.mark.parametrize(
    ("kind", "precision"), [pytest.param(*one, marks=[pytest.mark.full] * (one[1] is double)) for one in PRECISIONS]
)
def test_covariance_is_symmetric_and_positive(kind, precision):
    for v1, v2 in ((1.0, 1.0), (1.0, 1e-3), (1.0, 1e-5), (1e-5, 1e-5)):
        u, omega, V, _ = draw(kind, 0.5, v1, v2, seed=2)
        results = precision(kind, 0.5, u, omega, V)
        assert all(np.isfinite(x).all() for x in results)
        covariance = results[2]
        np.testing.assert_array_equal(covariance, covariance.swapaxes(1, 2))
        lowest, largest = np.linalg.eigvalsh(covariance.astype(float))[:, [0, -1]].T
        assert np.all(lowest >= -8 * np.finfo(covariance.dtype).eps * largest)  # rounding of a sum of squares


@pytest.mark.slow
def test_far_outliers_stay_finite_in_float32():
    """Fields that the model would never produce, as in the first iterations of message passing."""
    rng = np.random.default_rng(3)
    u, omega = 20 * rng.normal(size=(SAMPLES, 2)), 6 * rng.normal(size=(SAMPLES, 4))
    omega[:8, :2], omega[8:16, 2:], u[16:24, 0] = 0, 0, 0
    for kind in (SOFTMAX, LINEAR):
        for v2 in (1.0, 1e-5):
            results = single(kind, 0.1, u, omega, np.diag([1.0, v2]))
            assert all(np.isfinite(x).all() for x in results)


@pytest.mark.slow
def test_symmetries_of_the_model():
    """u -> -u changes nothing; omega1 -> -omega1 flips z1 and keeps z2."""
    u, omega, V, _ = draw(SOFTMAX, 1.0, 0.4, 0.1)
    evidence, shift, _ = double(SOFTMAX, 1.0, u, omega, V)
    flipped = double(SOFTMAX, 1.0, -u, omega, V)
    np.testing.assert_allclose(flipped[0], evidence, rtol=1e-10)
    np.testing.assert_allclose(flipped[1], shift, atol=1e-10)
    mirror = np.array([-1, -1, 1, 1])
    mirrored = double(SOFTMAX, 1.0, u, omega * mirror, V)
    # Another normal, so another grid: equal up to the accuracy of the grid only.
    np.testing.assert_allclose(mirrored[1] * mirror, shift, atol=5e-3)
    np.testing.assert_allclose(mirrored[0], evidence, atol=5e-3)


@pytest.mark.slow  # compiles for ten seconds
def test_one_compilation_for_all_parameters():
    u, omega, V, _ = draw(SOFTMAX, 1.0, 0.4, 0.1)
    each = np.broadcast_to(V, (SAMPLES, 2, 2))
    double(SOFTMAX, 1.0, u, omega, V)
    compiled: Any = grid._one_piece
    count = compiled._cache_size()
    for c, scale in ((1.0, 1.0), (0.3, 1.0), (2.0, 0.1)):
        double(SOFTMAX, c, u, omega, scale * each, refinements=4)
    assert compiled._cache_size() == count


def test_skip_strength_may_be_traced_and_the_precision_is_that_of_the_inputs():
    u, omega, V, _ = draw(LINEAR, 1.0, 0.4, 0.1)
    u, omega, V = (np.float32(x) for x in (u, omega, V))
    shapes = jax.eval_shape(lambda c: grid.posterior_moments(LINEAR, c, u, omega, V), 1.0)
    assert [x.shape for x in shapes] == [(SAMPLES,), (SAMPLES, 4), (SAMPLES, 4, 4)]
    assert {x.dtype for x in shapes} == {np.dtype(np.float32)}


def test_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="kind must be SOFTMAX"):
        grid.posterior_moments(7, 1.0, np.zeros((1, 2)), np.zeros((1, 4)), np.eye(2))
