"""The transforms of a law off its support, and the closed form of Marchenko and Pastur in Biane's coordinate."""

import numpy as np
import pytest
from scipy.integrate import quad

from asymptotix import Atoms, Empirical, MarchenkoPastur, PowerLaw
from asymptotix.attention_index.spectra.biane import BianeConvolution


@pytest.mark.parametrize("kappa0", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("delta", [0.05, 0.4, 2.0])
def test_marchenko_pastur_as_a_measure_gives_the_law_of_the_cubic(kappa0: float, delta: float) -> None:
    target = MarchenkoPastur(kappa0)
    cubic, biane = target.convolution(delta), BianeConvolution(target.parts(), delta)
    x = np.linspace(-2 * delta - 1, target.largest + 2 * delta, 31)
    assert biane.edges == pytest.approx(cubic.edges, abs=1e-12)
    assert biane.stieltjes(x) == pytest.approx(cubic.stieltjes(x), abs=1e-11 / delta)
    assert biane.mass_above(x) == pytest.approx(cubic.mass_above(x), abs=1e-12)
    assert biane.moments(0.2) == pytest.approx(cubic.moments(0.2), rel=1e-11)


@pytest.mark.parametrize("kappa0", [0.1, 0.5, 2.0])
def test_marchenko_pastur_off_its_support_is_the_integral_of_its_density(kappa0: float) -> None:
    target = MarchenkoPastur(kappa0)
    low, high = target.bulk

    def integral(z: float, power: int) -> float:
        def density(x: float) -> float:
            return np.sqrt(kappa0 * (x - low) * (high - x)) / (2 * np.pi * x)

        return quad(lambda x: density(x) / (z - x) ** power, low, high)[0] + target.zero_mass / z**power

    points = [0.5 * low, 1.1 * high, 3 * high]
    G, F = target.off_support(points)
    assert pytest.approx([integral(z, 1) for z in points], rel=1e-7) == G
    assert pytest.approx([integral(z, 2) for z in points], rel=1e-7) == F


@pytest.mark.parametrize("kappa0", [0.1, 0.5, 2.0])
def test_marchenko_pastur_off_its_support_is_the_closed_form(kappa0: float) -> None:
    """theta G^2 - l G + s = 0, F = (s G - G^2)/(l - 2 theta G) with s = sqrt(kappa0), l = 1 - kappa0 + theta s.

    The root is the smaller one to the right of the bulk and the larger one in the gap, where at full rank, without the
    zeros, it is negative.
    """
    target = MarchenkoPastur(kappa0)
    low, high = target.bulk
    s = np.sqrt(kappa0)
    for theta in (0.3 * low, 0.9 * low, 1.01 * high, 1.5 * high, 10 * high):
        level = 1 - kappa0 + theta * s
        side = -1 if theta > high else 1
        root = (level + side * np.sqrt(level**2 - 4 * theta * s)) / (2 * theta)
        slope = (s * root - root**2) / (level - 2 * theta * root)
        G, F = target.off_support(theta)
        assert float(G) == pytest.approx(root, rel=1e-10)
        assert float(F) == pytest.approx(slope, rel=1e-10)


def test_other_laws_off_their_support() -> None:
    power = PowerLaw(2.5, cutoff=10.0, kappa0=0.5)
    z = 1.2 * power.largest
    G, F = power.off_support(z)
    ends = power.lower_edge, power.largest
    assert float(G) == pytest.approx(quad(lambda x: float(power.density(x)) / (z - x), *ends)[0] + 0.5 / z, rel=1e-9)
    assert float(F) == pytest.approx(quad(lambda x: float(power.density(x)) / (z - x) ** 2, *ends)[0] + 0.5 / z**2)


def test_an_atom_at_the_point_itself_is_left_out() -> None:
    G, F = Empirical((0.0, 1.0, 3.0, 3.0)).off_support([3.0, 2.0])
    assert pytest.approx([(1 / 3 + 1 / 2) / 4, (1 / 2 + 1 - 2) / 4]) == G
    assert pytest.approx([(1 / 9 + 1 / 4) / 4, (1 / 4 + 1 + 2) / 4]) == F


@pytest.mark.parametrize("target", [MarchenkoPastur(0.5), Atoms((0.0, 1.0)), PowerLaw(3.0), Empirical((0.0, 2.0))])
def test_laws_without_spikes_say_so(target) -> None:
    assert target.spikes.shape == (0,)
    assert target.spike_weight == 0.0
