"""Staircases of two and three steps: their error bars cover what a quadrature of their own finds."""

import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy.stats import chi2

import link_quadrature
import staircase_quadrature as by
from asymptotix import BayesOptimal, MultiIndex, SequenceIndex, thresholds
from asymptotix.core.result import ConvergenceWarning

pytestmark = pytest.mark.slow

#: The tolerance of the verb unless told otherwise.
TOLERANCE = 1e-3


class Case(NamedTuple):
    """A model, and its steps as the quadrature finds them with ``finer`` times the nodes."""

    model: MultiIndex | SequenceIndex
    steps: Callable[[int], list[float]]


def starting(averages: Callable[..., by.Averages], indices: int, starts: bool = True):
    """Steps of a link whose index 0 starts by itself, or of which none does."""

    def steps(finer: int) -> list[float]:
        return [step.alpha for step in by.staircase(averages(finer=finer), indices, starts)]

    return steps


def apart(*answers: Callable[..., link_quadrature.Answer], seen: int = 0):
    """Steps where each output tells of one index: their first thresholds, and zero for each that is ``seen`` itself."""

    def steps(finer: int) -> list[float]:
        return [0.0] * seen + [1 / link_quadrature.growth_rate(answer(finer=finer), 1) for answer in answers]

    return steps


def rotated(link: Callable, indices: int) -> Callable:
    """A link of indices rotated so that none of its directions lies along one."""
    R = np.linalg.qr(np.vander(np.arange(1.0, indices + 1)))[0]
    return lambda z: link(jnp.asarray(R) @ z)


def parabola(z):
    return z[0] + z[1] ** 2


def paraboloid(z):
    return z[0] + z[1] ** 2 + 0.5 * z[2] ** 2


def ellipsoid(z):
    return z[0] ** 2 + 0.5 * z[1] ** 2 + 0.25 * z[2] ** 2


def quartic(s):
    return s**4 - 4 * s**2


SQUARE = partial(link_quadrature.without_noise, link_quadrature.square())
PARABOLA = partial(by.summed, [by.linear(), by.squares()])
ELLIPSOID = [by.squares(), by.squares(0.5), by.squares(0.25)]
PARABOLOID = partial(by.summed, [by.linear(), by.squares(), by.squares(0.5)])

CASES = {
    # two steps
    "parabola": Case(MultiIndex(parabola, 2), starting(partial(PARABOLA, noise=0.0), 2)),
    "rotated parabola": Case(MultiIndex(rotated(parabola, 2), 2), starting(partial(PARABOLA, noise=0.0), 2)),
    "stretched": Case(
        MultiIndex(lambda z: z[0] * (1 + z[1] ** 2), 2),
        starting(partial(by.conditioned, by.stretched(lambda z: 1 + z[0] ** 2), 2), 2),
    ),
    "paraboloid of two tokens with noise": Case(
        SequenceIndex(lambda Z: Z[0].sum() + (Z[1] ** 2).sum(), 2, 2, 0.1),
        starting(partial(by.summed, [by.linear(2), by.squares(1.0, 2)], 0.1), 2),
    ),
    "itself and a square": Case(MultiIndex(lambda z: jnp.stack([z[0], z[1] ** 2]), 2), apart(SQUARE, seen=1)),
    "a square and a quartic": Case(
        MultiIndex(lambda z: jnp.stack([z[0] ** 2, quartic(z[1])]), 2), apart(SQUARE, link_quadrature.quartic)
    ),
    # three steps
    "paraboloid": Case(MultiIndex(paraboloid, 3), starting(partial(PARABOLOID, noise=0.0), 3)),
    "rotated paraboloid with noise": Case(
        MultiIndex(rotated(paraboloid, 3), 3, 0.1), starting(partial(PARABOLOID, noise=0.1), 3)
    ),
    "ellipsoid with noise": Case(
        MultiIndex(ellipsoid, 3, 0.1), starting(partial(by.summed, ELLIPSOID, 0.1), 3, starts=False)
    ),
    "itself, a square and a quartic": Case(
        MultiIndex(lambda z: jnp.stack([z[0], z[1] ** 2, quartic(z[2])]), 3),
        apart(SQUARE, link_quadrature.quartic, seen=1),
    ),
}


#: Each is much like another one.
SIMILAR = {
    "parabola", "itself and a square", "a square and a quartic", "paraboloid", "rotated paraboloid with noise",
    "stretched", "ellipsoid with noise",
}  # fmt: skip
NAMES = [pytest.param(name, marks=pytest.mark.full) if name in SIMILAR else name for name in CASES]


@cache
def alphas(name: str) -> np.ndarray:
    """The steps as the quadrature finds them."""
    return np.array(CASES[name].steps(1))


@cache
def found(name: str) -> xr.Dataset:
    """The staircase as the verb finds it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # what is not as good as asked for has a test of its own
        return thresholds(BayesOptimal(CASES[name].model), which=("staircase",), progress=False).ds


def distances(name: str) -> np.ndarray:
    """Of every step from the quadrature, in stated errors; what is exact is so up to rounding."""
    ds = found(name)
    return abs(ds.staircase.values - alphas(name)) / (ds.staircase_err.values + 1e-6 * alphas(name) + 1e-300)


@pytest.mark.parametrize("name", NAMES)
def test_the_errors_cover_the_distances(name: str) -> None:
    assert found(name).sizes["step"] == len(alphas(name))
    assert distances(name).max() < 3


@pytest.mark.parametrize("name", NAMES)
def test_the_steps_are_as_good_as_asked_for(name: str) -> None:
    # Twice the tolerance, which is one standard error.
    assert np.all(found(name).staircase_err <= 2 * TOLERANCE * alphas(name))
    assert np.all(abs(found(name).staircase - alphas(name)) <= 2 * TOLERANCE * alphas(name))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_as_good_says_so(name: str) -> None:
    ds = found(name)
    assert bool(ds.converged) == bool((ds.staircase_err <= TOLERANCE * ds.staircase).all())


@pytest.mark.parametrize("name", NAMES)
def test_one_direction_is_learned_after_the_other(name: str) -> None:
    """The projections on them add up to the whole space."""
    directions = found(name).direction.values
    np.testing.assert_allclose(directions.sum(0), np.eye(directions.shape[1]), atol=0.1)


def sampled_distances() -> np.ndarray:
    """Of all steps that are not exact."""
    relative = np.concatenate([found(name).staircase_err / found(name).staircase.clip(1e-9) for name in CASES])
    return np.concatenate([distances(name) for name in CASES])[relative > 1e-9]


@pytest.mark.full
def test_distances_are_as_large_as_those_of_normal_errors() -> None:
    """Deterministic: the limit says what may be called right. With errors of half the size it is 5e-13."""
    sampled = sampled_distances()
    assert chi2.sf((sampled**2).sum(), len(sampled)) > 0.01


@pytest.mark.full
def test_half_of_all_lie_within_one_error() -> None:
    assert np.mean(sampled_distances() < 1) >= 0.5


@pytest.mark.full  # of the quadrature alone
@pytest.mark.parametrize("name", CASES)
def test_twice_the_nodes_move_the_quadrature_by_less_than_1e_5(name: str) -> None:
    np.testing.assert_allclose(CASES[name].steps(2), alphas(name), rtol=1e-5)


@pytest.mark.full
def test_four_steps_of_four_indices_are_those_of_a_quadrature() -> None:
    """Two minutes of it."""
    model = MultiIndex(lambda z: (jnp.arange(4.0, 0.0, -1.0) * z**2).sum(), 4, 0.5)
    exact = starting(partial(by.summed, [by.squares(float(k)) for k in (4, 3, 2, 1)], 0.5), 4, starts=False)(1)
    ds = thresholds(BayesOptimal(model), which=("staircase",), progress=False).ds
    np.testing.assert_array_less(abs(ds.staircase.values - exact), 3 * ds.staircase_err.values)
    assert np.all(ds.staircase_err <= 2 * TOLERANCE * ds.staircase)


def test_the_quadrature_of_one_index_gives_known_averages() -> None:
    q, noise = np.array([0.4]), 0.3
    exact = 1 / (1 - q + noise)  # E|g|^2 of z and noise
    np.testing.assert_allclose(by.summed([by.linear()], noise)(q), exact, rtol=1e-9)
    np.testing.assert_allclose(by.conditioned(by.shifted(lambda z: 0.0, noise), 1)(q), exact, rtol=1e-9)
    np.testing.assert_allclose(by.conditioned(by.stretched(lambda z: 1.0), 1)(q), 1 / (1 - q), rtol=1e-6)
    rate = link_quadrature.growth_rate(link_quadrature.with_noise(link_quadrature.square(), noise, 80.0), 1)
    np.testing.assert_allclose(by.summed([by.squares()], noise)(0 * q), rate, rtol=1e-5)


@pytest.mark.full  # of the quadrature alone
def test_sums_of_waves_and_of_nodes_give_the_same_steps() -> None:
    nodes = by.conditioned(by.shifted(lambda z: z[0] ** 2 + 0.5 * z[1] ** 2, 0.1), 3)
    steps = [step.alpha for step in by.staircase(nodes, 3)]
    # With so few nodes the posteriors of large outputs, which are narrow, are good to 1e-4.
    np.testing.assert_allclose(steps, alphas("rotated paraboloid with noise"), rtol=1e-4)


def test_overlaps_at_a_step_are_those_reached_from_nothing() -> None:
    averages = PARABOLOID(noise=0.1)
    for step in by.staircase(averages, 3)[1:]:
        start = np.where(step.overlap > 0, 0.01, 0.0)
        np.testing.assert_allclose(by.evolved(averages, start, step.alpha, 1e-7), step.overlap, atol=1e-5)
