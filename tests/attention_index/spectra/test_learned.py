"""The learned spectrum: normalisation, reference numbers, bulks, distance to samples, power-law tails, plots."""

from dataclasses import replace
from functools import cache

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from asymptotix import Atoms, MarchenkoPastur, PowerLaw, Target
from asymptotix.attention_index.spectra.learned import LearnedSpectrum
from reference_numbers import reference

mpl.use("Agg")

FACTORIZED = {
    "one bulk": lambda: LearnedSpectrum(MarchenkoPastur(0.5).convolution(0.6), 0.9, 0.1),
    "two bulks": lambda: LearnedSpectrum(MarchenkoPastur(0.2).convolution(0.1), 1.3, 0.05),
    "atoms": lambda: LearnedSpectrum(Atoms((0.0, 1.0, 2.5), (0.5, 0.25, 0.25)).convolution(0.3), 0.7, 0.0),
    "power law": lambda: LearnedSpectrum(PowerLaw(2.5).convolution(0.4), 1.1, 0.3),
}
CASES = FACTORIZED | {"full": lambda: LearnedSpectrum(MarchenkoPastur(0.5).convolution(0.6), 0.5, kind="full")}


@cache
def spectrum_of(name: str) -> LearnedSpectrum:
    return CASES[name]()


GAUSS = np.polynomial.legendre.leggauss(400)


def integrated(density, intervals: np.ndarray) -> tuple[float, float]:
    """Zeroth and first moment of a density, by a Gauss rule in the angle on every interval."""
    nodes, weights = GAUSS
    theta = 0.5 * np.pi * (nodes + 1)
    mid, half = intervals.mean(axis=1)[:, None], 0.5 * np.diff(intervals, axis=1)
    x = mid - half * np.cos(theta)
    mass = density(x) * half * np.sin(theta) * 0.5 * np.pi * weights
    return float(mass.sum()), float((mass * x).sum())


@pytest.mark.parametrize("name", CASES)
def test_atom_and_densities_are_normalised(name: str) -> None:
    spectrum = spectrum_of(name)
    intervals = spectrum._intervals()[0]
    mass, mean = integrated(spectrum.eigenvalue_density, intervals)
    # 400 nodes per interval resolve the power law, with its layer of width delta^2 at the end, to 1e-7 only.
    assert spectrum.atom + mass == pytest.approx(1, abs=1e-7)
    assert spectrum.rank == pytest.approx(mass, abs=1e-7)
    if spectrum.kind == "factorized":
        moments = spectrum.convolution.moments(spectrum.eps)
        assert mean == pytest.approx(-0.5 * spectrum.scale * moments.J_eps, rel=1e-6)
        mass, _ = integrated(spectrum.singular_value_density, np.sqrt(intervals))
        assert spectrum.atom + mass == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("name", FACTORIZED)
def test_distribution_functions(name: str) -> None:
    spectrum = spectrum_of(name)
    top = spectrum._intervals()[0][-1, 1]
    rho = np.linspace(0.05, 0.9, 7) * np.sqrt(top)
    step = 1e-5
    slope = (spectrum.singular_value_cdf(rho + step) - spectrum.singular_value_cdf(rho - step)) / (2 * step)
    # Second-order differences of a function that curves on the scale of delta, rounding 1e-14/step.
    assert slope == pytest.approx(spectrum.singular_value_density(rho), abs=1e-6)
    assert spectrum.singular_value_cdf(rho) == pytest.approx(spectrum.eigenvalue_cdf(rho**2))
    assert float(spectrum.eigenvalue_cdf(0.0)) == pytest.approx(spectrum.atom)
    assert float(spectrum.singular_value_cdf(-0.1)) == 0 == float(spectrum.eigenvalue_density(-0.1))
    assert float(spectrum.eigenvalue_cdf(1.01 * top)) == 1


def learned_at(point: dict, target: Target, width_ratio: float, weight_decay: float) -> LearnedSpectrum:
    convolution = target.convolution(np.sqrt(point["qhat"]) / point["mhat"])
    threshold = 2 * np.sqrt(width_ratio) * weight_decay / point["mhat"]
    return LearnedSpectrum(convolution, point["mhat"] / point["Sigmahat"], threshold)


def test_rank_and_norm_match_the_reference_fixed_points() -> None:
    numbers = reference("attention_index")
    curve, atoms = numbers["state_evolution"]["fact_T2_k0.5_lam0.01_D0.5"], numbers["atoms_target_se"]
    values, weights = zip(*atoms["atoms"], strict=True)
    points: list[tuple[dict, Target]] = [(atoms["se"], Atoms(values, weights))]
    points += [(point, MarchenkoPastur(0.5)) for point in curve["points"]]
    for point, target in points:
        spectrum = learned_at(point, target, 1.0, 0.01)
        # q is the mean square of the learned eigenvalues. The stored fixed points solve their equations to 1e-7.
        q = spectrum.scale**2 * spectrum.convolution.moments(spectrum.eps).J
        assert q == pytest.approx(point["q"], rel=1e-6)
        assert spectrum.rank == pytest.approx(point["rank"], abs=1e-6)


def test_bulks_split_below_the_critical_delta() -> None:
    kappa0 = 0.2
    critical = (1 - kappa0 ** (1 / 3)) ** 1.5 / np.sqrt(kappa0)
    law = MarchenkoPastur(kappa0)
    narrow = law.convolution(0.5 * critical)
    assert LearnedSpectrum(narrow, 1.0, 0.0).bulks == 2
    assert LearnedSpectrum(narrow, 1.0, 1.01 * narrow.edges[0, 1]).bulks == 1  # the threshold removes the left bulk
    assert LearnedSpectrum(narrow, 1.0, 1.01 * narrow.edges[1, 1]).bulks == 0
    assert LearnedSpectrum(law.convolution(1.1 * critical), 1.0, 0.0).bulks == 1
    assert LearnedSpectrum(narrow, 1.0, 0.0, "full").bulks == 2


def test_distance_to_exact_quantiles_and_to_the_published_law() -> None:
    spectrum = LearnedSpectrum(MarchenkoPastur(0.5).convolution(0.6), 0.8, 0.1)
    levels = (np.arange(400) + 0.5) / 400
    grid = np.linspace(0, np.sqrt(spectrum._intervals()[0][-1, 1]), 20_001)
    values = np.where(levels < spectrum.atom, 0.0, np.interp(levels, spectrum.singular_value_cdf(grid), grid))
    # Half a step of the empirical distribution function, and the interpolation.
    assert spectrum.kolmogorov_distance(values, zeros_below=0.0) == pytest.approx(1 / 800, abs=3e-5)
    assert spectrum.kolmogorov_distance(values) <= 1 / 800 + 3e-5
    slow = np.where(values == 0, 0.05, values)  # zeros that training has not quite reached
    assert spectrum.kolmogorov_distance(slow) == spectrum.kolmogorov_distance(values)
    printed = replace(spectrum, scale=1.0)  # eq. (13) as printed
    assert printed.kolmogorov_distance(values) > 0.03
    assert spectrum.kolmogorov_distance(1.1 * values) > 0.02


def test_distance_of_a_full_matrix_uses_eigenvalues() -> None:
    dim, delta, scale = 400, 0.6, 0.5
    noise = np.random.default_rng(0).standard_normal((dim, dim))
    target = MarchenkoPastur(0.5)
    matrix = np.diag(target.eigenvalues(dim)) + delta * (noise + noise.T) / np.sqrt(2 * dim)
    spectrum = LearnedSpectrum(target.convolution(delta), scale, kind="full")
    # Counting functions of random matrices fluctuate by O(log(dim)/dim).
    assert spectrum.kolmogorov_distance(scale * np.linalg.eigvalsh(matrix)) < 0.01
    assert spectrum.atom == 0
    assert float(spectrum.eigenvalue_cdf(0.0)) > 0.1
    with pytest.raises(ValueError, match="kind must be 'factorized'"):
        spectrum.singular_value_density(0.5)


@pytest.mark.parametrize("exponent", [2.0, 3.0, 4.0])
@pytest.mark.parametrize(("delta", "eps"), [(0.1, 0.05), (0.5, 0.2)])
def test_learned_spectrum_inherits_a_power_law_tail(exponent: float, delta: float, eps: float) -> None:
    target = PowerLaw(exponent)
    spectrum = LearnedSpectrum(target.convolution(delta), 1.0, eps)
    s, step = 0.6 * target.largest, 1e-3
    ends = np.log(spectrum.eigenvalue_density(s * np.exp([-step, step])))
    measured = (ends[0] - ends[1]) / (2 * step)
    expected = s / (s + eps) * (exponent + 2 * (exponent + 1) * (delta / (s + eps)) ** 2)
    # The next order of the expansion is (delta/s)^2 mean/s, below 0.01 here.
    assert measured == pytest.approx(expected, abs=0.01)
    assert measured == pytest.approx(exponent, rel=0.011)


def test_bad_input_is_named() -> None:
    convolution = MarchenkoPastur(0.5).convolution(0.5)
    with pytest.raises(ValueError, match="kind must be one of"):
        LearnedSpectrum(convolution, 1.0, 0.0, "half")
    with pytest.raises(ValueError, match="scale must be positive"):
        LearnedSpectrum(convolution, 0.0)
    with pytest.raises(ValueError, match="values"):
        LearnedSpectrum(convolution, 1.0).kolmogorov_distance([])


@pytest.mark.parametrize("name", CASES)
def test_plot_shows_theory_atom_and_experiment(name: str) -> None:
    spectrum = spectrum_of(name)
    values = np.concatenate([np.full(30, 0.01), np.linspace(0.2, 1.5, 70)])
    ax = spectrum.plot(histogram=values)
    labels = ax.get_legend_handles_labels()[1]
    if spectrum.kind == "factorized":
        assert labels == ["theory", "experiment, at zero: 0.300"]
        assert "singular value" in ax.get_xlabel()
        assert [text.get_text() for text in ax.texts] == [f"mass {spectrum.atom:.3g} at zero"]
        # The mass is no density: nothing on the axes of densities has its height.
        assert all(np.ptp(np.asarray(line.get_xdata())) > 0 for line in ax.lines)
    else:
        assert labels == ["theory", "experiment"]
        assert not ax.texts
        assert "eigenvalue" in ax.get_xlabel()
    assert "eigenvalue" in spectrum.plot(singular_values=False).get_xlabel()
    plt.close("all")


def test_laws_on_one_axes_have_their_own_colours_and_labels() -> None:
    spectrum = spectrum_of("one bulk")
    ax = spectrum.plot(label="first", linewidth=3)
    assert spectrum.plot(ax=ax, label="second", color="crimson") is ax
    assert [line.get_label() for line in ax.lines] == ["first", "second"]
    assert ax.lines[0].get_linewidth() == 3
    assert ax.lines[1].get_color() == "crimson"
    assert [text.get_color() for text in ax.texts] == [line.get_color() for line in ax.lines]
    assert spectrum.plot(ax=ax).lines[2].get_color() not in ("crimson", ax.lines[0].get_color())
    plt.close("all")
