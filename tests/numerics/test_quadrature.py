import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import t as student

from asymptotix.numerics.quadrature import (
    error_of_mean,
    gauss_hermite,
    randomised_average,
    sobol_normals,
    sobol_uniforms,
)


@pytest.mark.parametrize("order", [1, 2, 5, 12, 40])
def test_gauss_hermite_is_exact_up_to_degree_2n_minus_1(order):
    nodes, weights = gauss_hermite(order)
    assert weights.sum() == pytest.approx(1.0, abs=1e-14)
    double_factorial = 1.0
    for degree in range(0, min(2 * order - 1, 40), 2):
        assert weights @ nodes[:, 0] ** (degree + 1) == pytest.approx(0.0, abs=1e-12 * double_factorial)
        assert weights @ nodes[:, 0] ** degree == pytest.approx(double_factorial, rel=1e-12)
        double_factorial *= degree + 1


def test_gauss_hermite_misses_the_next_degree():
    nodes, weights = gauss_hermite(3)
    # E[x^6] = 15 and the error of an n-point rule at degree 2n is n! exactly.
    assert weights @ nodes[:, 0] ** 6 == pytest.approx(15 - 6, rel=1e-13)


def test_gauss_hermite_tensor_moments_and_layout():
    nodes, weights = gauss_hermite(4, dim=3)
    assert nodes.shape == (64, 3)
    assert weights.shape == (64,)
    assert (weights > 0).all()
    assert weights @ (nodes[:, 0] ** 4 * nodes[:, 1] ** 2 * nodes[:, 2] ** 6) == pytest.approx(3 * 1 * 15, rel=1e-12)
    assert (nodes[:16, 0] == nodes[0, 0]).all()


def test_gauss_hermite_refuses_absurd_sizes_with_the_number():
    with pytest.raises(ValueError, match=r"24\*\*8 .* GiB"):
        gauss_hermite(24, dim=8)
    with pytest.raises(ValueError, match="order must be an integer of at least 1, got 0"):
        gauss_hermite(0)


def test_sobol_normals_are_deterministic_finite_and_seed_dependent():
    first = sobol_normals(1024, 5, 3)
    assert first.shape == (1024, 5)
    assert np.array_equal(first, sobol_normals(1024, 5, 3))
    assert not np.array_equal(first, sobol_normals(1024, 5, 4))
    assert not np.array_equal(sobol_normals(8, 2, (3, 0)), sobol_normals(8, 2, (3, 1)))
    assert np.isfinite(first).all()
    assert np.abs(first).max() < 8.3


def test_sobol_uniforms_are_one_per_cell():
    """A net in base 2: each coordinate has exactly one point in every dyadic cell of width 1/count."""
    cells = np.floor(ndtr(sobol_normals(256, 4, 11)) * 256)
    for column in cells.T:
        assert sorted(column) == list(range(256))


def test_a_block_of_sobol_points_does_not_depend_on_those_before():
    forwards = [sobol_uniforms(2**3, 2, (5, 1), block=number) for number in range(4)]
    for number in (2, 0, 3, 1, 1):
        np.testing.assert_array_equal(sobol_uniforms(2**3, 2, (5, 1), block=number), forwards[number])


def test_blocks_of_sobol_points_are_one_sequence():
    whole = sobol_uniforms(2**6, 3, (4, 1))
    blocks = [sobol_uniforms(2**4, 3, (4, 1), block=number) for number in range(4)]
    np.testing.assert_array_equal(np.concatenate(blocks), whole)
    for block in blocks:  # each is a net: one point in every interval of length 1/16
        np.testing.assert_array_equal(np.sort((16 * block).astype(int), axis=0), np.tile(np.arange(16)[:, None], 3))


def test_sobol_uniforms_are_centred_in_their_cell_so_never_zero_or_one():
    cells = sobol_uniforms(256, 3, 0) * 2.0**52  # exact: a power of two
    np.testing.assert_array_equal(cells % 1, 0.5)


@pytest.mark.parametrize("count", [0, 3, 1000])
def test_sobol_count_must_be_a_power_of_two(count):
    with pytest.raises(ValueError, match="count must be"):
        sobol_normals(count, 2, 0)


def test_sobol_names_bad_seed_and_size():
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, got -1"):
        sobol_normals(8, 2, -1)
    with pytest.raises(ValueError, match="GiB"):
        sobol_normals(2**20, 1000, 0)
    with pytest.raises(ValueError, match="dim must be at most"):
        sobol_normals(2, 30000, 0)


def test_sobol_error_falls_faster_than_monte_carlo():
    def rms(count):
        errors = [np.cos(sobol_normals(count, 3, seed).sum(axis=1)).mean() - np.exp(-1.5) for seed in range(16)]
        return np.sqrt(np.mean(np.square(errors)))

    rate = np.log(rms(2**13) / rms(2**6)) / np.log(2**7)
    # Monte Carlo has -0.5; a smooth integrand of three normals shows about -1.
    assert rate < -0.8


def test_randomised_average_agrees_with_exact_and_error_bar_covers():
    exact, factor = np.array([1.0, np.exp(-1.0), 0.0]), student.ppf(0.975, df=3)  # of four randomisations

    def function(x):
        return np.stack([x[:, 0] ** 2, np.cos(x.sum(axis=1)), x[:, 1] ** 3], axis=1)

    hits = np.array(
        [
            np.abs(estimate.value - exact) < factor * estimate.error
            for estimate in (randomised_average(function, 256, 2, seed=seed) for seed in range(60))
        ]
    )
    # 60 draws at 95 % give 57 +- 1.7 hits; 51 is 3.5 standard deviations below.
    assert (hits.sum(axis=0) >= 51).all()
    assert hits.sum() < hits.size


def test_randomised_average_is_deterministic_and_keeps_shape():
    def function(x):
        return np.einsum("ni,nj->nij", x, x)

    first = randomised_average(function, 512, 2)
    assert first.value.shape == first.error.shape == (2, 2)
    assert np.array_equal(first.value, randomised_average(function, 512, 2).value)
    assert not np.array_equal(first.value, randomised_average(function, 512, 2, seed=1).value)
    nodes = [sobol_normals(512, 2, (0, index)) for index in range(4)]
    assert first.value == pytest.approx(np.mean([function(x).mean(axis=0) for x in nodes], axis=0), rel=1e-14)


def test_errors_of_few_rows_cover_as_those_of_many():
    rng = np.random.default_rng(0)
    for rows in (4, 8, 64):
        means = rng.standard_normal((rows, 20000))
        beyond = np.mean(abs(means.mean(0)) > 3 * error_of_mean(means))
        assert beyond == pytest.approx(0.0027, abs=3 * np.sqrt(0.0027 / 20000))  # three standard errors of the share
    assert error_of_mean(np.ones((1, 5))).tolist() == [0.0] * 5


def test_randomised_average_reports_a_bad_function():
    with pytest.raises(ValueError, match="one row per node"):
        randomised_average(lambda x: x[:3], 8, 1)
    with pytest.raises(ValueError, match="randomisations must be"):
        randomised_average(lambda x: x, 8, 1, randomisations=1)
    estimate = randomised_average(lambda x: np.stack([x[:, 0], np.full(8, np.nan)], axis=1), 8, 1)
    assert np.isnan(estimate.value).tolist() == np.isnan(estimate.error).tolist() == [False, True]


@pytest.mark.full  # minutes: every point before the block is passed
def test_the_last_block_of_a_sequence():
    assert sobol_uniforms(2**10, 70, 1, block=2**20 - 1).shape == (2**10, 70)


def test_a_sequence_ends_before_its_direction_numbers_do():
    with pytest.raises(ValueError, match=r"block must be at most 1048575 with count = 1024.*got 1048576"):
        sobol_uniforms(2**10, 70, 1, block=2**20)
