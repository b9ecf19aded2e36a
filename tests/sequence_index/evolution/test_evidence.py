"""E log Z_out without posteriors: at zero overlap the entropy of the output, beyond it what sorted draws gain."""

from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import k0
from scipy.stats import ncx2

from asymptotix import MultiIndex
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.channels.links.cubature import CubatureChannel
from asymptotix.sequence_index.channels.links.link_channel import LinkChannel
from asymptotix.sequence_index.channels.links.link_kind import link_kind
from asymptotix.sequence_index.evolution.sorting.evidence import evidence_at_zero, evidence_gained
from asymptotix.sequence_index.evolution.sorting.sorted_fields import SortedNodes
from asymptotix.sequence_index.models.observed_link import ObservedLink


def link_channel(model: MultiIndex) -> LinkChannel:
    channel = channel_of(model)
    assert isinstance(channel, LinkChannel)
    return channel


X, DX = np.linspace(-60, 60, 2**17, endpoint=False, retstep=True)


def with_noise(density: np.ndarray, variance: float) -> np.ndarray:
    """A density on the grid after Gaussian noise was added."""
    frequency = 2 * np.pi * np.fft.fftfreq(len(X), DX)
    return np.fft.ifft(np.fft.fft(density) * np.exp(-0.5 * variance * frequency**2)).real.clip(1e-300)


def mean_log(density: np.ndarray) -> float:
    density = density / (density.sum() * DX)
    return float((density * np.log(density)).sum() * DX)


def exponential() -> np.ndarray:
    """Of z1^2 + z2^2."""
    return np.where(X > 0, 0.5 * np.exp(-X / 2), 0.0)


def product() -> np.ndarray:
    """Of z1 z2; the point at zero stands for its cell."""
    return k0(abs(X) + DX / 8 * (X == 0)) / np.pi


CASES = {
    "circle": (MultiIndex(lambda z: z[0] ** 2 + z[1] ** 2, 2), lambda: -1 - np.log(2)),
    "product with noise": (MultiIndex(lambda z: z[0] * z[1], 2, 0.5), lambda: mean_log(with_noise(product(), 0.5))),
    "circle and product with noise": (
        MultiIndex(lambda z: jnp.stack([z[0] ** 2 + z[1] ** 2, z[2] * z[3]]), 4, 0.3),
        lambda: mean_log(with_noise(exponential(), 0.3)) + mean_log(with_noise(product(), 0.3)),
    ),
    "circle and a hundredth of another": (
        MultiIndex(lambda z: jnp.stack([z[0] ** 2 + z[1] ** 2, 0.01 * (z[2] ** 2 + z[3] ** 2)]), 4),
        lambda: -2 - 2 * np.log(2) + np.log(100),
    ),
    "parity": (MultiIndex(lambda z: jnp.sign(z.prod()), 3), lambda: -np.log(2)),
    "shells": (
        MultiIndex(lambda z: jnp.floor((z**2).sum()), 2),
        lambda: np.log(1 - np.exp(-0.5)) - 0.5 / (np.exp(0.5) - 1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_at_zero_overlap_it_is_the_entropy_of_the_output(name: str) -> None:
    model, exact = CASES[name]
    found = evidence_at_zero(link_channel(model), 8)
    assert found is not None
    scatter = found.rows.std(ddof=1) / np.sqrt(8)
    assert scatter + found.error < 2e-2  # 2^18 draws leave some thousandths of numbers of order one
    # From eight rows the scatter is known to a quarter only.
    assert abs(found.rows.mean() - exact()) < 4 * scatter + found.error + 1e-9


@pytest.mark.parametrize("noise", [1e-6, 1e-4])
def test_around_a_surface_neighbours_tell_it_or_are_not_believed(noise: float) -> None:
    """z/|z| with little noise: a ring of width sqrt(noise), as good as straight."""
    model = MultiIndex(lambda z: z / jnp.sqrt((z**2).sum()), 2, noise)
    exact = -np.log(2 * np.pi) - 0.5 * np.log(2 * np.pi * np.e * noise)
    found = evidence_at_zero(link_channel(model), 8)
    assert found is None or abs(found.rows.mean() - exact) < 3 * found.error


def test_where_neighbours_do_not_tell_it_posteriors_are_asked() -> None:
    model = MultiIndex(lambda z: jnp.stack([z[0] * z[1], z[1] * z[2], z[2] + z[0] ** 2]), 4)
    assert evidence_at_zero(link_channel(model), 8) is None


@cache
def linear_nodes() -> SortedNodes:
    """Of a link for which everything is known, as if it were not known to be linear."""
    model = ObservedLink(MultiIndex(lambda z: z[0] + 2 * z[1], 2, 0.5))
    return SortedNodes(CubatureChannel(model, link_kind(model)))


@pytest.mark.parametrize("Q", [0.05 * np.eye(2), np.diag([0.3, 0.6]), np.array([[0.6, 0.3], [0.3, 0.7]])])
def test_what_is_gained_by_a_linear_link(Q: np.ndarray) -> None:
    a, V = np.array([1.0, 2.0]), np.eye(2) - Q
    exact = -0.5 * np.log((a @ V @ a + 0.5) / (a @ a + 0.5))
    rows = evidence_gained(linear_nodes().block(0), V)
    # Of E[g g^T] a thousandth is lost between neighbours among a thousand draws.
    assert abs(rows.mean() - exact) < 4 * rows.std(ddof=1) / np.sqrt(8) + 2e-3 * exact
    assert rows.std(ddof=1) / np.sqrt(8) < 0.02 * exact


@pytest.mark.parametrize("v", [0.5, 0.05])
def test_what_is_gained_by_a_circle(v: float) -> None:
    """Given omega, y/v has the noncentral law of |omega|^2/v with two degrees of freedom."""
    channel = link_channel(MultiIndex(lambda z: z[0] ** 2 + z[1] ** 2, 2))
    u = (np.arange(400) + 0.5) / 400
    square = -2 * (1 - v) * np.log(1 - u)[:, None]  # quantiles of |omega|^2
    y = ncx2.ppf(u, 2, square / v)
    there = (ncx2.logpdf(y, 2, square / v) - np.log(v)).mean()
    rows = evidence_gained(SortedNodes(channel).block(0), v * np.eye(2))
    exact = there + 1 + np.log(2)
    # Midpoints of 400 quantiles leave a thousandth, neighbours and six nodes another.
    assert abs(rows.mean() - exact) < 4 * rows.std(ddof=1) / np.sqrt(8) + 2e-3 * (1 + exact)
