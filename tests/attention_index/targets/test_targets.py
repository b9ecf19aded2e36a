"""Target spectra: their moments, finite-size eigenvalues, what is refused, and descriptions."""

import numpy as np
import pytest
from scipy.integrate import quad

from asymptotix import Atoms, Empirical, MarchenkoPastur, PowerLaw, Target
from asymptotix.core.specification import build, describe, numeric_fields, with_fields

LAWS: tuple[Target, ...] = (
    MarchenkoPastur(0.3),
    MarchenkoPastur(1.0),
    MarchenkoPastur(2.5),
    Atoms((0.0, 1.0, 2.5), (0.5, 0.25, 0.25)),
    Atoms((3.0, 1.0)),
    PowerLaw(2.5),
    PowerLaw(1.0, cutoff=20.0, kappa0=0.4, mean_square=2.0),
    PowerLaw(3.0, cutoff=5.0),
    Empirical((0.0, 0.5, 2.0, 2.0)),
)


@pytest.mark.parametrize("target", LAWS, ids=repr)
def test_finite_spectrum_has_the_moments_and_support_of_the_law(target: Target) -> None:
    dim = 20_000
    eigenvalues = target.eigenvalues(dim)
    assert eigenvalues.shape == (dim,)
    assert np.all(np.diff(eigenvalues) >= 0)
    assert np.sum(eigenvalues == 0) == round(target.zero_mass * dim)
    assert np.mean(eigenvalues**2) == pytest.approx(target.mean_square, rel=1e-13)
    # Midpoint quantiles miss the ends of a bulk: O(dim^{-2/3}) of the mean at a hard edge, less elsewhere.
    assert np.mean(eigenvalues) == pytest.approx(target.mean, rel=2e-3)
    assert target.smallest <= eigenvalues[0] + 1e-3 * target.largest
    assert eigenvalues[-1] <= 1.01 * target.largest


@pytest.mark.parametrize("kappa0", [0.3, 1.0, 2.5])
def test_marchenko_pastur_quantiles_match_the_density(kappa0: float) -> None:
    target = MarchenkoPastur(kappa0)
    low, high = target.bulk

    def density(x: float) -> float:
        return np.sqrt(kappa0 * (x - low) * (high - x)) / (2 * np.pi * x)

    eigenvalues = target.eigenvalues(5000)
    at = 0.4 * low + 0.6 * high
    mass, _ = quad(density, at, high)
    # One eigenvalue more or less, and the rescaling of all by O(1/dim).
    assert np.mean(eigenvalues > at) == pytest.approx(mass, abs=5e-4)


def test_marchenko_pastur_is_the_spectrum_of_a_wishart_matrix() -> None:
    dim, kappa0 = 400, 0.5
    factor = np.random.default_rng(0).standard_normal((dim, int(kappa0 * dim)))
    drawn = np.linalg.eigvalsh(factor @ factor.T / np.sqrt(kappa0) / dim)
    expected = MarchenkoPastur(kappa0).eigenvalues(dim)
    # Eigenvalues fluctuate by O(1/dim) in the bulk, and by a few dim^{-2/3} = 0.018 at the upper edge.
    assert np.abs(drawn - expected).max() < 0.2
    assert np.abs(drawn - expected).mean() < 0.01


def test_power_law_density_and_normalisation() -> None:
    target = PowerLaw(2.5, cutoff=50.0, kappa0=0.7, mean_square=1.5)
    low, high = target.lower_edge, target.largest
    moments = [quad(lambda x, k=k: x**k * float(target.density(x)), low, high, limit=200)[0] for k in range(3)]
    assert moments == pytest.approx([0.7, target.mean, 1.5], rel=1e-8)
    assert float(target.density(2 * low) / target.density(4 * low)) == pytest.approx(2**2.5)
    assert float(target.density(0.5 * low)) == 0 == float(target.density(2 * high))
    assert PowerLaw(3.3).mean_square == 1.0


def test_empirical_spectrum_is_kept_at_its_own_size() -> None:
    spectrum = np.array([0.3, 0.0, 1.7, -1e-15, 0.9])
    target = Empirical(spectrum)
    assert target.eigenvalues(5) == pytest.approx([0, 0, 0.3, 0.9, 1.7])
    assert target.zero_mass == pytest.approx(0.4)
    assert target.mean_square == pytest.approx(np.mean(spectrum**2))
    assert isinstance(target.spectrum, tuple)


def test_equal_atoms_are_merged() -> None:
    values, weights = Atoms((2.0, 1.0, 2.0)).points
    assert values == pytest.approx([1, 2])
    assert weights == pytest.approx([1 / 3, 2 / 3])


@pytest.mark.parametrize("target", LAWS, ids=repr)
def test_description_is_rebuilt(target: Target) -> None:
    assert build(describe(target)) == target
    assert hash(build(describe(target))) == hash(target)


def test_numeric_fields_can_be_swept() -> None:
    assert set(numeric_fields(PowerLaw(2.0))) == {"exponent", "cutoff", "kappa0", "mean_square"}
    assert with_fields(MarchenkoPastur(0.5), kappa0=0.2) == MarchenkoPastur(0.2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MarchenkoPastur(0.0), "kappa0 must be positive"),
        (lambda: MarchenkoPastur(float("nan")), "kappa0"),
        (lambda: MarchenkoPastur(float("inf")), "kappa0 must be finite"),
        (lambda: Atoms(()), "values"),
        (lambda: Atoms((1.0, float("nan"))), "values must not contain nan"),
        (lambda: Atoms((1.0, -0.5)), "values must be non-negative"),
        (lambda: Atoms((0.0, 0.0)), "values must contain a positive eigenvalue"),
        (lambda: Atoms((1.0, 2.0), (0.5, 0.4)), "weights must sum to one"),
        (lambda: Atoms((1.0, 2.0), (1.5, -0.5)), "weights must be positive"),
        (lambda: Atoms((1.0, 2.0), (1.0,)), "weights must have shape"),
        (lambda: Empirical(()), "spectrum"),
        (lambda: Empirical((1.0, -0.1)), "spectrum must be non-negative"),
        (lambda: PowerLaw(-1.0), "exponent must be non-negative"),
        (lambda: PowerLaw(2.0, cutoff=1.0), "cutoff must be above 1"),
        (lambda: PowerLaw(2.0, kappa0=1.5), "kappa0 must be in"),
        (lambda: PowerLaw(2.0, mean_square=0.0), "mean_square must be positive"),
        (lambda: MarchenkoPastur(0.1).eigenvalues(3), "dim must be at least"),
        (lambda: MarchenkoPastur(0.5).convolution(0.0), "delta must be positive"),
    ],
)
def test_bad_input_is_named(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
