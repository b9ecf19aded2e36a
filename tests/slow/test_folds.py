"""Exact recovery behind a fold: its error bars cover what closed forms and dense searches find."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ive, ndtr, ndtri
from scipy.stats import qmc

from asymptotix import BayesOptimal, MultiIndex, SequenceIndex, thresholds
from asymptotix.core.result import ConvergenceWarning
from asymptotix.sequence_index.channels.choose import channel_of_link as channel_of
from asymptotix.sequence_index.evolution.fixed_points import StateEvolution
from asymptotix.sequence_index.evolution.sorting.sorted_fields import SortedAverager

pytestmark = pytest.mark.slow


def recovery(
    model: MultiIndex | SequenceIndex, which: Sequence[str] | None = ("exact_recovery",)
) -> tuple[float, float]:
    """The threshold and its error; where all are asked for, from where the staircase ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        ds = thresholds(BayesOptimal(model), which=which, progress=False).ds
    return float(ds.exact_recovery), float(ds.exact_recovery_err)


def largest_alpha(moment: Callable[[float], float], overlaps: Sequence[float]) -> float:
    """Of fixed points q/(1-q) = alpha E[g^2], where all principal overlaps are the same."""
    return max(q / (1 - q) / moment(q) for q in overlaps)


def moment_of_largest(q: float, seed: int = 1, indices: int = 4, fields: int = 2**13) -> float:
    """E[g_i^2] of the largest |z|, whose posterior given a field is known: one index is the output, others are below.

    Quadrature over the output, Sobol points for the field.
    """
    s = np.sqrt(1 - q)
    omega = np.sqrt(q) * ndtri(qmc.Sobol(indices, rng=seed).random(fields))
    x, w = np.polynomial.legendre.leggauss(16)
    edges = np.linspace(0, 7, 31)
    half = np.diff(edges)[:, None] / 2
    y, weights = (edges[:-1, None] + half * (x + 1)).ravel(), (half * w).ravel()
    total = 0.0
    for part in np.split(omega, fields // 256):
        field = part[:, :, None]
        up, low = (y - field) / s, (-y - field) / s
        inside = ndtr(up) - ndtr(low)
        up, low = (np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi) for t in (up, low))
        below = field * inside - s * (up - low)  # E[z; |z| < y]
        density, signed = (up + low) / s, y * (up - low) / s
        without = [[np.prod(np.delete(inside, [i, j], 1), 1) for j in range(indices)] for i in range(indices)]
        evidence = sum(density[:, i] * without[i][i] for i in range(indices))
        seen = evidence > 1e-200
        for i in range(indices):
            rest = sum(density[:, j] * without[i][j] for j in range(indices) if j != i)
            mean = (signed[:, i] * without[i][i] + below[:, i] * rest) / np.where(seen, evidence, 1.0)
            total += float(((evidence * np.where(seen, mean - part[:, i, None], 0.0) ** 2) @ weights).sum())
    return total / (indices * fields * (1 - q) ** 2)


def alpha_of_circle(q: float) -> float:
    """That of the fixed point of |z|^2 of two indices with overlap q: the posterior is von Mises on the circle."""
    x, w = np.polynomial.legendre.leggauss(256)
    v, unit = 1 - q, (x + 1) / 2
    length, total = 8 * np.sqrt(q) * unit, 0.0  # of the field
    for omega, weight in zip(length, 4 * np.sqrt(q) * w * length / q * np.exp(-(length**2) / (2 * q)), strict=True):
        low, high = max(0.0, omega - 9 * np.sqrt(v)), omega + 9 * np.sqrt(v)
        r = low + unit * (high - low)
        kappa = r * omega / v
        density = w * (high - low) / 2 * r / v * np.exp(-((r - omega) ** 2) / (2 * v)) * ive(0, kappa)
        total += weight * float(density @ (r * ive(1, kappa) / ive(0, kappa) - omega) ** 2)
    return q / v / (total / 2 / v**2)


#: Links whose fold is that of a circle, little above the bound of two samples for each index.
LITTLE_ABOVE_THE_BOUND = {
    "circle": MultiIndex(lambda z: (z**2).sum(), 2),
    # The other two are known before, without a fold of their own.
    "circle and a product": MultiIndex(
        lambda z: jnp.stack([z[0] ** 2 + z[1] ** 2 + z[2] * z[3], z[2] ** 2 - z[3] ** 2]), 4
    ),
}


@pytest.mark.parametrize("name", ["circle", pytest.param("circle and a product", marks=pytest.mark.full)])
def test_little_above_the_bound(name: str) -> None:
    alpha, error = recovery(LITTLE_ABOVE_THE_BOUND[name])
    circle = max(alpha_of_circle(q) for q in np.linspace(0.92, 0.96, 9))
    assert 2.02 < circle < 2.03
    assert error < 2e-3 * alpha
    assert abs(alpha - circle) <= 3 * error


def test_of_one_of_two_outputs() -> None:
    """The largest of two, seen through a mixture with a square: that is known before."""

    def link(z):
        largest, square = abs(z[:2]).max(), z[2] ** 2
        return jnp.stack([0.6 * largest + 0.8 * square, 0.8 * largest - 0.6 * square])

    alpha, error = recovery(MultiIndex(link, 3))
    one, other = (
        largest_alpha(partial(moment_of_largest, seed=seed, indices=2), np.linspace(0.905, 0.925, 5).tolist())
        for seed in (1, 2)
    )
    assert error < 2e-3 * alpha
    assert abs(alpha - (one + other) / 2) < 3 * np.hypot(error, abs(one - other) / 2)


@pytest.mark.full
def test_the_largest_of_four() -> None:
    alpha, error = recovery(MultiIndex(lambda z: abs(z).max(), 4))
    one, other = (largest_alpha(partial(moment_of_largest, seed=seed), (0.91, 0.92)) for seed in (1, 2))
    exact, scatter = (one + other) / 2, abs(one - other) / 2
    assert scatter < 1e-3 * alpha
    assert error <= 1e-3 * alpha
    assert abs(alpha - exact) < 3 * np.hypot(error, scatter)


COSINE = pytest.param(lambda z: jnp.cos(z[0]), marks=pytest.mark.full, id="cos")


@pytest.mark.parametrize("link", [COSINE, pytest.param(lambda z: z[0] ** 2, id="square")])
def test_one_index(link: Callable) -> None:
    """On the same exact averages, at many overlaps; the search stops within 0.02 of the logit of the fold."""
    model = MultiIndex(link, 1)
    average = channel_of(model).exact_averager()
    assert average is not None
    exact = largest_alpha(
        lambda q: float(average(np.array([[1 - q]])).second_moment.mean()), np.linspace(0.05, 0.95, 361).tolist()
    )
    alpha, error = recovery(model)
    assert error <= 1e-4 * alpha
    np.testing.assert_allclose(alpha, exact, rtol=1e-4)


@pytest.mark.full
def test_one_index_beside_another_that_is_known_by_then() -> None:
    """sin(3 z1) is found last, when z2^2 is known: at the alpha of the first alone, which quadrature knows."""
    alone, _ = recovery(MultiIndex(lambda z: jnp.sin(3 * z[0]), 1))
    both, error = recovery(MultiIndex(lambda z: jnp.sin(3 * z[0]) + z[1] ** 2, 2), which=None)
    assert abs(both - alone) < 3 * error
    assert error < 0.04 * alone  # two or three percent is what sixteen blocks leave, itself known to a quarter


@pytest.mark.full
def test_one_index_of_three_tokens() -> None:
    """On four times as many fields."""
    model = SequenceIndex(lambda Z: jnp.tanh(Z**2).sum(), 1, 3)
    average = SortedAverager(channel_of(model), fields=2**8, draws=2**12, seed=77)

    def moment(q: float) -> float:
        return float(average(np.array([[1 - q]])).second_moment.mean())

    alpha, error = recovery(model)
    exact = largest_alpha(moment, (0.53, 0.56, 0.59))
    assert error <= 1e-3 * alpha
    assert abs(alpha - exact) < 3 * np.hypot(error, 3e-4 * alpha)


def test_it_is_where_the_dynamics_passes() -> None:
    """On exact averages the dynamics itself tells: below it stays, above it ends at full overlap."""
    model = MultiIndex(lambda z: z[0] ** 2, 1)
    alpha, _ = recovery(model)
    evolution = StateEvolution(channel_of(model))
    below, above = (evolution.uninformed(f * alpha, tolerance=1e-3) for f in (0.998, 1.002))
    assert not below.exact
    assert above.exact
