"""Free convolution with a semicircle: reference numbers, exact identities, two methods, and large random matrices."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.integrate import trapezoid

from asymptotix import Atoms, Empirical, MarchenkoPastur, PowerLaw, Spiked, Target
from asymptotix.attention_index.spectra.biane import BianeConvolution
from asymptotix.attention_index.spectra.convolution import Convolution
from asymptotix.attention_index.spectra.measures import Atomic, Continuous, Measure
from reference_numbers import reference

THREE_ATOMS = Atoms((0.0, 1.0, 2.5), (0.5, 0.25, 0.25))
TARGETS: tuple[Target, ...] = (
    MarchenkoPastur(0.5),
    MarchenkoPastur(1.0),
    THREE_ATOMS,
    PowerLaw(3.5),
    PowerLaw(2.0, kappa0=0.3),
)


class ChebyshevBulk(Continuous):
    """One interval with square-root edges: with y in [-1, 1] along it, the density is

        sqrt(1 - y^2) sum_k c_k U_k(y),    for which    G_0 = pi sum_k c_k (zeta - sqrt(zeta^2 - 1))^{k+1}

    at the point zeta of the same coordinate: exact down to the real axis.

    Parameters
    ----------
    density : callable
        On the interval.
    low, high : float
        Its ends.
    degree : int
        Number of terms c_k.
    """

    def __init__(self, density: Callable[[np.ndarray], np.ndarray], low: float, high: float, degree: int) -> None:
        self._mid, self._half = 0.5 * (low + high), 0.5 * (high - low)
        theta = np.pi * np.arange(1, degree + 1) / (degree + 1)
        self._nodes = self._mid + self._half * np.cos(theta)
        values = density(self._nodes)
        sines = np.sin(np.outer(np.arange(1, degree + 1), theta))
        self._coefficients = 2 / (degree + 1) * (sines @ values)
        self._masses = np.pi / (degree + 1) * np.sin(theta) * values * self._half

    @property
    def islands(self) -> np.ndarray:
        return np.array([[self._mid - self._half, self._mid + self._half]])

    @property
    def island_masses(self) -> np.ndarray:
        return np.array([self._masses.sum()])

    @property
    def second_moment(self) -> float:
        return float(self._masses @ self._nodes**2)

    def transform(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        power, root = self._inward(w)
        value, slope = _power_series(power, self._coefficients)
        return np.pi * value, -np.pi * slope * power / (root * self._half)

    def argument(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Im of the integral of log(w - s): with zeta = (p + 1/p)/2, int p^{k+1} dzeta is elementary."""
        power, _ = self._inward(u + 1j * v)
        total = self._coefficients[0] * (0.25 * power**2 - 0.5 * np.log(power))
        for k, c in enumerate(self._coefficients[1:], start=1):
            total = total + 0.5 * c * (power ** (k + 2) / (k + 2) - power**k / k)
        return np.pi * self._half * total.imag

    def _inward(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The solution zeta - sqrt(zeta^2 - 1) of modulus below one, and the root."""
        zeta = (w - self._mid) / self._half
        root = np.sqrt(zeta - 1) * np.sqrt(zeta + 1)
        return 1 / (zeta + root), root


def _power_series(power: np.ndarray, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    value, slope = np.zeros_like(power), np.zeros_like(power)
    for k in range(len(coefficients), 0, -1):
        value = (value + coefficients[k - 1]) * power
        slope = slope * power + k * coefficients[k - 1]
    return value, slope


def gap_closes_at(kappa0: float) -> float:
    return (1 - kappa0 ** (1 / 3)) ** 1.5 / np.sqrt(kappa0)


def chebyshev_marchenko_pastur(kappa0: float, delta: float) -> BianeConvolution:
    target = MarchenkoPastur(kappa0)
    low, high = target.bulk

    def density(x: np.ndarray) -> np.ndarray:
        return np.sqrt(kappa0 * np.maximum((x - low) * (high - x), 0)) / (2 * np.pi * x)

    # Coefficients fall off as kappa0^{k/2}: the density has a pole at zero.
    degree = 10 + int(40 / abs(np.log(np.sqrt(kappa0))))
    parts: list[Measure] = [ChebyshevBulk(density, low, high, degree)]
    if kappa0 < 1:
        parts.append(Atomic(np.zeros(1), np.array([1 - kappa0])))
    return BianeConvolution(parts, delta)


def assert_moments(convolution: Convolution, target: Target, rel: float) -> None:
    """Mass one, the mean of mu_0, and its mean square plus delta^2."""
    x, weight, h = convolution.nodes()
    size = np.sqrt(target.mean_square + convolution.delta**2)
    assert weight.sum() == pytest.approx(1, abs=rel)
    assert weight @ x == pytest.approx(target.mean, abs=rel * size)
    assert weight @ x**2 == pytest.approx(size**2, rel=rel)
    # The Hilbert transform is antisymmetric, and int int x/(x - y) = 1/2: sums with Re g are right too.
    assert weight @ h == pytest.approx(0, abs=rel / convolution.delta)
    assert weight @ (x * h) == pytest.approx(0.5, abs=rel * size / convolution.delta)


# -- Marchenko-Pastur ----------------------------------------------------------------------------------------


def test_moments_match_the_reference_numbers() -> None:
    for row in reference("attention_index")["J_MP"]:
        moments = MarchenkoPastur(row["kappa0"]).convolution(row["delta"]).moments(row["eps"])
        expected = [row[name] for name in ("J", "dJ_ddelta", "dJ_deps", "mass_above_eps", "DIV")]
        assert moments == pytest.approx(expected, abs=1e-10)  # the references are good to about 1e-12


@pytest.mark.parametrize("kappa0", [1e-3, 0.05, 0.5, 0.99, 1.0, 1.01, 3.0])
def test_marchenko_pastur_from_tiny_to_large_delta(kappa0: float) -> None:
    target = MarchenkoPastur(kappa0)
    for delta in (1e-6, 1e-3, 0.1, 1.0, 30.0, 1e3):
        assert_moments(target.convolution(delta), target, rel=1e-12)


@pytest.mark.parametrize("kappa0", [0.05, 0.2, 0.5, 0.8])
def test_gap_opens_where_the_closed_form_says(kappa0: float) -> None:
    critical = gap_closes_at(kappa0)
    target = MarchenkoPastur(kappa0)
    assert target.convolution(critical * (1 - 1e-9)).bulks == 2
    assert target.convolution(critical * (1 + 1e-9)).bulks == 1
    below = target.convolution(0.9 * critical)
    gap = 0.5 * (below.edges[0, 1] + below.edges[1, 0])
    assert float(below.mass_above(gap)) == pytest.approx(kappa0, abs=1e-14)
    # Integrated over x, the density has a cube root at the point where the gap closes.
    assert_moments(target.convolution(critical), target, rel=1e-11)


def test_gap_location_agrees_with_the_stored_bisection() -> None:
    for kappa0, stored in reference("attention_index")["lambda0_and_phi"]["delta_split"].items():
        assert gap_closes_at(float(kappa0)) == pytest.approx(stored["delta"], rel=1e-10)


# -- both methods --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa0", [0.2, 0.5, 1.5])
@pytest.mark.parametrize("delta", [1e-4, 0.03, 0.5, 1.0, 100.0])
def test_biane_agrees_with_the_cubic(kappa0: float, delta: float) -> None:
    cubic, biane = MarchenkoPastur(kappa0).convolution(delta), chebyshev_marchenko_pastur(kappa0, delta)
    size = 1 + delta
    assert biane.edges == pytest.approx(cubic.edges, abs=1e-12 * size)
    for eps in (0.0, 0.3 * delta, 0.8):
        scales = np.array([size**2, size, size, 1, 1])
        assert np.abs(np.subtract(biane.moments(eps), cubic.moments(eps)) / scales).max() < 1e-12
    x = np.linspace(cubic.edges[0, 0] - 0.1 * size, cubic.edges[-1, 1] + 0.1 * size, 60)
    # At an edge the density is a root, and a rounding error of x counts as its own root: none of x is that close.
    assert np.abs(biane.stieltjes(x) - cubic.stieltjes(x)).max() * delta < 1e-11
    assert biane.cdf(x) == pytest.approx(cubic.cdf(x), abs=1e-12)
    assert biane.cube() == pytest.approx(cubic.cube(), rel=1e-12)


def test_biane_agrees_with_the_cubic_where_the_gap_closes() -> None:
    delta = gap_closes_at(0.5)
    moments = chebyshev_marchenko_pastur(0.5, delta).moments(0.1)
    # The accuracy here is that of the cubic, which integrates over x.
    assert moments == pytest.approx(MarchenkoPastur(0.5).convolution(delta).moments(0.1), abs=1e-11)


@pytest.mark.parametrize("target", TARGETS, ids=repr)
@pytest.mark.parametrize("delta", [1e-4, 0.02, 0.6, 5.0])
def test_mass_mean_and_second_moment(target: Target, delta: float) -> None:
    # Rounding of u relative to the width delta of an isolated bulk: 1e-16/1e-4.
    assert_moments(target.convolution(delta), target, rel=3e-12)


@pytest.mark.parametrize("target", TARGETS, ids=repr)
@pytest.mark.parametrize("delta", [0.05, 0.7])
def test_derivatives_match_finite_differences(target: Target, delta: float) -> None:
    eps, step = 0.1, 1e-4 * delta
    moments = target.convolution(delta).moments(eps)
    around = [target.convolution(delta + sign * step).moments(eps).J for sign in (1, -1)]
    # Truncation step^2/6 J''' with J''' ~ 1/delta, and rounding 1e-16/step.
    assert (around[0] - around[1]) / (2 * step) == pytest.approx(moments.J_delta, abs=1e-7)
    around = [target.convolution(delta).moments(eps + sign * step).J for sign in (1, -1)]
    assert (around[0] - around[1]) / (2 * step) == pytest.approx(moments.J_eps, abs=1e-7)
    assert moments.J_delta == pytest.approx(2 * delta * moments.divergence, rel=1e-14)


@pytest.mark.parametrize("target", [MarchenkoPastur(0.2), THREE_ATOMS, PowerLaw(2.0, kappa0=0.3)], ids=repr)
def test_divergence_is_the_double_integral(target: Target) -> None:
    convolution = target.convolution(0.02)
    x, weight, _ = convolution.nodes()
    # With eps in a gap the integrand is smooth on every pair of bulks and the rule is as accurate as for one bulk.
    eps = 0.4 * convolution.edges[0, 1] + 0.6 * convolution.edges[1, 0]
    kept = np.maximum(x - eps, 0)
    difference = x[:, None] - x
    with np.errstate(invalid="ignore"):
        ratio = np.where(difference == 0, x > eps, (kept[:, None] - kept) / difference)
    assert convolution.moments(eps).divergence == pytest.approx(weight @ ratio @ weight, rel=1e-12)


@pytest.mark.parametrize("target", [THREE_ATOMS, PowerLaw(3.0)], ids=repr)
def test_divergence_with_a_threshold_inside_a_bulk(target: Target) -> None:
    convolution, eps = target.convolution(0.8), 0.3
    x, weight, _ = convolution.nodes(order=150)
    kept, difference = np.maximum(x - eps, 0), x[:, None] - x
    with np.errstate(invalid="ignore"):
        ratio = np.where(difference == 0, x > eps, (kept[:, None] - kept) / difference)
    # The rule does not know of the kink at eps: error of the order of the square of the distance of two nodes.
    assert convolution.moments(eps).divergence == pytest.approx(weight @ ratio @ weight, abs=1e-4)


@pytest.mark.parametrize("target", TARGETS, ids=repr)
@pytest.mark.parametrize("delta", [0.03, 0.8])
def test_distribution_function_agrees_with_the_rule(target: Target, delta: float) -> None:
    convolution = target.convolution(delta)
    low, high = convolution.edges[0, 0], convolution.edges[-1, 1]
    points = np.concatenate([[low - 1], np.linspace(low, high, 9)[1:-1], [high + 1]])
    masses = [convolution.nodes(point)[1].sum() for point in points]
    assert convolution.mass_above(points) == pytest.approx(masses, abs=1e-11)
    assert convolution.cdf(points) + convolution.mass_above(points) == pytest.approx(np.ones(9), abs=1e-14)
    grid = np.linspace(low, high, 1000)
    assert np.all(np.diff(convolution.cdf(grid)) >= -1e-13)


@pytest.mark.parametrize("target", TARGETS, ids=repr)
def test_stieltjes_transform_outside_and_inside(target: Target) -> None:
    convolution = target.convolution(0.3)
    low, high = convolution.edges[0, 0], convolution.edges[-1, 1]
    x, weight, h = convolution.nodes()
    outside = np.array([low - 2.0, low - 0.5, high + 0.5, high + 20.0])
    g = convolution.stieltjes(outside)
    assert np.all(g.imag == 0)
    assert g.real == pytest.approx((weight / (outside[:, None] - x)).sum(axis=1), rel=1e-11)
    g = convolution.stieltjes(x)
    assert np.all(g.imag <= 0)
    # Nodes near an edge: the density is a root there, and a relative rounding error of x is magnified by its slope.
    assert g.real == pytest.approx(h, abs=1e-8)
    assert convolution.density(x) == pytest.approx(-g.imag / np.pi)
    assert convolution.density(np.array(low - 1.0)) == 0


def test_stieltjes_transform_solves_its_equation() -> None:
    values, weights = THREE_ATOMS.points
    convolution = THREE_ATOMS.convolution(0.4)
    x = np.linspace(-0.5, 3.0, 40)
    g = convolution.stieltjes(x)
    again = (weights / (x[:, None] - 0.4**2 * g[:, None] - values)).sum(axis=1)
    assert np.abs(again - g).max() < 1e-11


# -- exact cases ---------------------------------------------------------------------------------------------


def test_one_atom_gives_a_semicircle() -> None:
    centre, delta = 1.3, 0.2
    convolution = Atoms((centre,)).convolution(delta)
    assert convolution.edges == pytest.approx(np.array([[centre - 2 * delta, centre + 2 * delta]]))
    x = np.linspace(0.95, 1.65, 15)
    semicircle = np.sqrt(4 * delta**2 - (x - centre) ** 2) / (2 * np.pi * delta**2)
    assert convolution.density(x) == pytest.approx(semicircle, rel=1e-12)
    assert convolution.cube() == pytest.approx(3 / (4 * np.pi**2 * delta**2), rel=1e-13)
    assert convolution.moments(centre).divergence == pytest.approx(0.5, abs=1e-14)
    assert convolution.moments(0.0) == pytest.approx([centre**2 + delta**2, 2 * delta, -2 * centre, 1, 1])


def test_two_atoms_merge_at_half_their_distance() -> None:
    # Between them F = 1/(2u^2) + 1/(2(1-u)^2) has its minimum 4 at u = 1/2, so the gap closes at delta = 1/2.
    target = Atoms((0.0, 1.0))
    for delta, bulks in ((0.3, 2), (0.5 - 1e-7, 2), (0.5 + 1e-7, 1), (0.9, 1)):
        assert target.convolution(delta).bulks == bulks
        assert_moments(target.convolution(delta), target, rel=1e-12)
    # The density at the middle: 1/(1/4 + v^2) = 1/delta^2 there.
    assert float(target.convolution(0.9).density(0.5)) == pytest.approx(np.sqrt(0.9**2 - 0.25) / (np.pi * 0.9**2))


def test_threshold_outside_the_support() -> None:
    for target in (MarchenkoPastur(0.5), THREE_ATOMS):
        convolution = target.convolution(0.3)
        assert convolution.moments(convolution.edges[-1, 1] + 1) == (0, 0, 0, 0, 0)
        everything = convolution.moments(convolution.edges[0, 0] - 1)
        assert everything.mass == pytest.approx(1)
        assert everything.divergence == pytest.approx(1)  # (xi(x) - xi(y))/(x - y) is 1 for all x, y
        with pytest.raises(ValueError, match="eps"):
            convolution.moments(float("nan"))


def test_cube_of_the_density() -> None:
    for target in (MarchenkoPastur(0.5), THREE_ATOMS, PowerLaw(3.5)):
        convolution = target.convolution(0.7)
        low, high = convolution.edges[0, 0], convolution.edges[-1, 1]
        x = 0.5 * (low + high) - 0.5 * (high - low) * np.cos(np.linspace(0, np.pi, 4001))
        # Trapezoidal rule with 4001 points that are dense at the edges.
        assert convolution.cube() == pytest.approx(trapezoid(convolution.density(x) ** 3, x), rel=1e-4)


@pytest.mark.parametrize("delta", [1e-3, 0.03, 0.1, 0.3, 3.0])
def test_hundreds_of_atoms_from_separate_to_merged(delta: float) -> None:
    target = Empirical(np.random.default_rng(1).uniform(0, 4, 500))
    convolution = target.convolution(delta)
    # Between 495 bulks and one; some atoms are closer to each other than the width of their bulks.
    assert {1e-3: 480, 0.03: 200, 0.1: 30, 0.3: 1, 3.0: 1}[delta] <= convolution.bulks <= 499
    assert np.all(np.diff(convolution.edges.ravel()) > 0)
    assert_moments(convolution, target, rel=1e-11)


def test_ripples_of_equally_spaced_atoms_are_seen() -> None:
    # A rule with few nodes per atom takes a comb for a smooth density and is wrong by 1e-9.
    target = Empirical(MarchenkoPastur(0.5).eigenvalues(400))
    for delta in (0.1, 0.2, 0.4):
        assert_moments(target.convolution(delta), target, rel=1e-12)


def test_small_layers_at_the_ends_of_a_density_are_resolved() -> None:
    # The density falls to zero within delta^2 = 1e-8 of each end.
    target = PowerLaw(2.0, cutoff=30.0)
    convolution = target.convolution(1e-4)
    assert_moments(convolution, target, rel=1e-13)
    middle = np.array([2.0, 5.0]) * target.lower_edge
    assert convolution.density(middle) == pytest.approx(target.density(middle), rel=1e-6)  # delta^2 small


@pytest.mark.parametrize(
    ("target", "delta"),
    [(PowerLaw(4.3, cutoff=814.0, kappa0=0.9), 0.15), (PowerLaw(3.0, cutoff=1400.0), 2e-3), (PowerLaw(0.3, 2.2), 7e-4)],
)
def test_ends_of_a_density_beyond_the_resolution_of_floats(target: Target, delta: float) -> None:
    # At the far end the density is 1e-13: v is a rounding error of u there, and must do no harm elsewhere.
    convolution = target.convolution(delta)
    x, weight, h = convolution.nodes()
    assert weight.sum() == pytest.approx(1, abs=1e-12)
    assert weight @ (x * h) == pytest.approx(0.5, abs=1e-9)  # Re g has a peak log(1/delta) at each end


# -- random matrices -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "delta"),
    [(Atoms((0.0, 1.0, 2.5), (0.5, 0.25, 0.25)), 0.35), (PowerLaw(2.5, cutoff=20.0), 0.5)],
    ids=["atoms", "power law"],
)
@pytest.mark.slow
def test_spectrum_of_a_large_random_matrix(target: Target, delta: float) -> None:
    dim = 1500
    noise = np.random.default_rng(2).standard_normal((dim, dim))
    matrix = np.diag(target.eigenvalues(dim)) + delta * (noise + noise.T) / np.sqrt(2 * dim)
    eigenvalues = np.linalg.eigvalsh(matrix.astype(np.float32))  # single precision is faster and precise enough
    theory = target.convolution(delta).cdf(eigenvalues)
    distance = np.abs(theory - (np.arange(dim) + 0.5) / dim).max()
    # Eigenvalues repel: the counting function fluctuates by O(log(dim)/dim), 0.005, not by dim^{-1/2} = 0.026.
    assert distance < 0.005


@pytest.mark.parametrize("delta", [0.1, 1.2, 5.0, 6.0, 7.0, 8.0, 100.0])
def test_atoms_that_join_a_density(delta: float) -> None:
    """Where the bulk of a spike has just joined the others, at delta of 6 and 7, a root is hard to find."""
    target = Spiked(MarchenkoPastur(0.5), (9.0, 6.0), dim=100)
    convolution = target.convolution(delta)
    x, weight, _ = convolution.nodes()
    # Moments of a free convolution are known: the tolerance is that of the quadrature.
    assert weight.sum() == pytest.approx(1.0, abs=1e-11)
    assert weight @ x == pytest.approx(target.mean, rel=1e-9)
    assert weight @ x**2 == pytest.approx(target.mean_square + delta**2, rel=1e-10)
