"""Curves of links that jump: the posterior is a sum over straight pieces that end, whose integrals are closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from asymptotix.sequence_index.channels.choose import channel_of_link
from asymptotix.sequence_index.channels.links.curve import CurveChannel
from asymptotix.sequence_index.channels.protocol import Posterior
from asymptotix.sequence_index.models.link import MultiIndex

V = np.array([[0.81, 0.27], [0.27, 0.34]])
#: Steps of the free index are 1/384 of 17 deviations; the end of a piece lies anywhere in its step, with a density of
#: at most 0.4 in those units: 0.018 sqrt(1/12). That is the error of masses, and of means in units of the deviation.
OF_ONE_STEP = 0.4 * 17 / 384 / np.sqrt(12)


def either(z):
    return jnp.where(z[0] > 1.0, z[1], z[0])


def with_sign(z):
    return jnp.sign(z[0]) * z[1]


def two_slopes(z):
    return jnp.where(z[0] > 0.4, z[1], -2 * z[1])


def pieces_of(link, y: float):
    """Pieces of {link = y}: the index that is fixed, its value, the ends of the other one, and 1/|slope|."""
    if link is either:
        return [(1, y, 1.0, np.inf, 1.0), *([(0, y, -np.inf, np.inf, 1.0)] if y < 1 else [])]
    if link is with_sign:
        return [(1, y, 0.0, np.inf, 1.0), (1, -y, -np.inf, 0.0, 1.0)]
    return [(1, y, 0.4, np.inf, 1.0), (1, -y / 2, -np.inf, 0.4, 0.5)]


def on_piece(mean: np.ndarray, fixed: int, value: float, low: float, high: float, weight: float):
    """Mass, first and second moments of N(mean, V) on one piece."""
    free = 1 - fixed
    centre = mean[free] + V[0, 1] / V[fixed, fixed] * (value - mean[fixed])
    deviation = np.sqrt(V[free, free] - V[0, 1] ** 2 / V[fixed, fixed])
    a, b = (low - centre) / deviation, (high - centre) / deviation
    share = norm.cdf(b) - norm.cdf(a)
    mass = weight * share * norm.pdf(value, mean[fixed], np.sqrt(V[fixed, fixed]))
    if share < 1e-200:
        return 0.0, np.zeros(2), np.zeros((2, 2))
    lower, upper = (0.0 if np.isinf(x) else x * norm.pdf(x) for x in (a, b))
    shift = (norm.pdf(a) - norm.pdf(b)) / share
    first = np.empty(2)
    first[fixed], first[free] = value, centre + deviation * shift
    second = np.outer(first, first)
    second[free, free] += deviation**2 * (1 + (lower - upper) / share - shift**2)
    return mass, mass * first, mass * second


def closed_form(link, y: np.ndarray, omega: np.ndarray):
    """Log evidence, mean less omega, and covariance of every sample."""
    found = []
    for value, mean in zip(y, omega, strict=True):
        mass, first, second = (
            sum(parts) for parts in zip(*(on_piece(mean, *piece) for piece in pieces_of(link, value)), strict=True)
        )
        found.append((np.log(mass), first / mass - mean, second / mass - np.outer(first, first) / mass**2))
    return [np.array(column) for column in zip(*found, strict=True)]


@pytest.mark.parametrize("link", [pytest.param(either, marks=pytest.mark.slow), with_sign, two_slopes])
def test_posteriors_on_curves_that_end_are_closed_forms(link):
    rng = np.random.default_rng(3)
    Z = rng.standard_normal((200, 2))
    omega = Z @ (np.eye(2) - V) + rng.standard_normal((200, 2)) @ np.linalg.cholesky(V @ (np.eye(2) - V)).T
    channel = channel_of_link(MultiIndex(link, 2))
    assert isinstance(channel, CurveChannel)
    found: Posterior = channel.posterior(channel.observe(Z[:, :, None]), omega[:, :, None], V)
    evidence, mean, covariance = closed_form(link, np.array([float(link(z)) for z in Z]), omega)
    offset = np.asarray(found.log_evidence) - evidence  # the unit of the observed output
    errors = [
        offset - np.median(offset),
        np.reshape(found.shift, (200, 2)) - mean,
        np.reshape(found.covariance, (200, 2, 2)) - covariance,
    ]
    for error in errors:
        # A bound of all samples: an end of a piece is at most half a step away, and two pieces may end in one sample.
        assert np.sqrt((error**2).mean()) < 2 * OF_ONE_STEP
        assert abs(error).max() < 4 * np.sqrt(12) * OF_ONE_STEP
