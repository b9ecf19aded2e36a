"""One index by quadrature: against the closed forms of a square and of a link that hides nothing."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy.stats import norm

from asymptotix import MultiIndex
from asymptotix.numerics.precision import double_precision
from asymptotix.sequence_index.channels.attention.sign import SignAverager, SignChannel
from asymptotix.sequence_index.channels.choose import channel_of, channel_of_link
from asymptotix.sequence_index.channels.links.one_index.scalar_averager import ScalarAverager, _Roots
from asymptotix.sequence_index.evolution.averages import QuasiRandomAverager


def averager(link) -> ScalarAverager:
    found = channel_of_link(MultiIndex(link, 1)).exact()
    assert isinstance(found, ScalarAverager)
    return found


@pytest.fixture(scope="module")
def square():
    return averager(lambda z: z[0] ** 2)


@pytest.mark.parametrize("v", [0.9, 0.5, 0.1, 0.01, 1e-3, 1e-5])
def test_a_square_hides_the_sign(square, v):
    exact = SignAverager(SignChannel(1, "linear"), order=160)(np.array([[v]]))
    found = square(np.array([[v]]))
    np.testing.assert_allclose(found.second_moment, exact.second_moment, rtol=square.accuracy)


def test_zero_overlap_of_a_square(square):
    found = square(np.eye(1))
    assert found.second_moment[0, 0, 0] < 1e-12
    np.testing.assert_allclose(found.curvature, 2.0, rtol=square.accuracy)  # E (z^2 - 1)^2
    _, operators = square.moments_and_operators(np.eye(1), np.eye(1), np.ones((1, 1, 1)))
    np.testing.assert_allclose(operators[0, 0, 0], 2.0, rtol=square.accuracy)


@pytest.mark.parametrize("v", [1.0, 0.3, 1e-3])
def test_a_monotone_link_hides_nothing(v):
    found = averager(lambda z: z[0] + jnp.tanh(z[0]))(np.array([[v]]))
    np.testing.assert_allclose(found.second_moment, 1 / v, rtol=1e-9)
    np.testing.assert_allclose(found.curvature, 1 / v**2, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("v", [0.7, 0.1])
def test_many_roots_against_random_nodes(v):
    """A link with folds of different heights, where the number of roots changes in between."""
    channel = channel_of(MultiIndex(lambda z: jnp.sin(2 * z[0]) + z[0] / 3, 1))
    V = np.array([[v]])
    exact = channel.exact_averager()
    assert exact is not None
    found, sampled = exact(V), QuasiRandomAverager(channel, 2**10, 8)(V)
    for name in ("second_moment", "log_evidence", "curvature"):
        rows = getattr(sampled, name).reshape(8, -1)[:, 0]
        error = rows.std(ddof=1) / np.sqrt(8)
        # Student's t with 7 degrees of freedom is beyond 6 once in 2000 times; the nodes are fixed.
        assert abs(rows.mean() - getattr(found, name).ravel()[0]) < 6 * error, name


def by_equidistant_nodes(link, v: float) -> float:
    """E[g^2] with 200 nodes for omega and 10001 for z, roots from a table of two million places."""
    table = np.linspace(-9, 9, 2_000_001)
    with double_precision():
        value, slope = (np.asarray(x) for x in jax.vmap(lambda z: jax.jvp(link, (z[None],), (jnp.ones(1),)))(table))
    turns = [0, *(np.flatnonzero(np.diff(np.sign(slope))) + 1), len(table)]
    x, weights = hermegauss(200)
    u = np.linspace(-8.5, 8.5, 10001)
    share = norm.pdf(u) / norm.pdf(u).sum()
    found = 0.0
    for omega, weight in zip(np.sqrt(1 - v) * x, weights / weights.sum(), strict=True):
        if weight < 1e-14:
            continue
        y, mass, first = np.interp(omega + np.sqrt(v) * u, table, value), np.zeros(len(u)), np.zeros(len(u))
        for a, b in pairwise(turns):
            order = slice(a, b) if value[b - 1] > value[a] else slice(b - 1, a - 1 if a else None, -1)
            z, size = (np.interp(y, value[order], one[order], np.nan, np.nan) for one in (table, slope))
            own = np.where(np.isfinite(z), norm.pdf(z, omega, np.sqrt(v)) / abs(size), 0.0)
            mass, first = mass + own, first + own * np.where(own > 0, z - omega, 0.0)
        score = np.divide(first, mass * v, out=np.zeros(len(u)), where=mass > 0)
        found += weight * share @ score**2
    return float(found)


@pytest.mark.parametrize(
    ("link", "v"),
    [
        # The slope falls to 0.11 at an inflection: roots there have a large weight, for a range of 0.008 of the others.
        (lambda z: z[0] ** 4 - 0.685 * z[0] ** 2 + 0.42 * z[0], 0.5),
        # Nearly a jump, in front of the far side of a fold.
        pytest.param(lambda z: z[0] ** 2 / 2 + jnp.tanh(40 * (z[0] - 0.5)), 0.5, marks=pytest.mark.slow),
        pytest.param(lambda z: z[0] ** 3 - 0.9 * z[0] ** 2 + 0.28 * z[0], 0.7, marks=pytest.mark.slow),
    ],
)
def test_where_slopes_are_small_or_change_fast(link, v):
    found = averager(link)
    moment = found(np.array([[v]])).second_moment[0, 0, 0]
    np.testing.assert_allclose(moment, by_equidistant_nodes(link, v), rtol=found.accuracy)


def test_a_link_too_rough_for_a_quadrature_ends_the_halving():
    """Slopes that change between any two nodes: intervals would double thirty times."""
    moving = _Roots(
        np.array([[-7.0, 0.0], [0.0, 7.0]]), np.zeros(2, bool), lambda z: (abs(z), 1 + 0.5 * np.sin(1e9 * z))
    )
    z, _ = moving.nodes(np.array([[-7.0, -3.0], [-3.0, 3.0], [3.0, 7.0]]))
    assert len(z) < 10**6
    smooth = _Roots(np.array([[-7.0, 0.0], [0.0, 7.0]]), np.zeros(2, bool), lambda z: (z**2, 2 * z))
    smooth.nodes(np.array([[-7.0, 0.0], [0.0, 7.0]]))
    assert smooth.resolved
    assert not moving.resolved


def half_known(v: float) -> float:
    """E[g^2] of a rectifier: the index itself where it is positive, else a normal variable cut to the negative side."""
    x = np.linspace(-12, 12, 400001)
    # omega has variance 1-v; where the output is zero, g = -phi(a)/(sqrt(v) Phi(-a)), a = omega/sqrt(v).
    omega = np.sqrt(1 - v) * x
    a = omega / np.sqrt(v)
    cut = np.exp(norm.logpdf(a) - norm.logcdf(-a)) / np.sqrt(v)
    # And where it is positive g = (z - omega)/v, of which E[(z - omega)^2; z > 0] is a moment of a cut normal variable.
    seen = v * (norm.cdf(a) - a * norm.pdf(a)) / v**2
    return float(np.trapezoid((cut**2 * norm.cdf(-a) + seen) * norm.pdf(x), x))


@pytest.mark.parametrize("v", [0.9, 0.3, 0.01, 1e-4])
@pytest.mark.parametrize("link", [lambda z: jnp.maximum(z[0], 0.0), lambda z: 1e6 + 1e-3 * jnp.maximum(z[0], 0.0) ** 2])
def test_a_rectifier_hides_one_side(link, v):
    found = averager(link)
    np.testing.assert_allclose(found(np.array([[v]])).second_moment[0, 0, 0], half_known(v), rtol=found.accuracy)


@pytest.mark.parametrize("v", [0.5, 0.01])
def test_discrete_outputs_against_random_nodes(v):
    """Three values, one of which is taken on two intervals."""
    channel = channel_of_link(MultiIndex(lambda z: jnp.where(abs(z[0]) < 0.5, 1.0, jnp.where(z[0] > 1, 2.0, 0.0)), 1))
    V = np.array([[v]])
    exact = channel.exact_averager()
    assert exact is not None
    found, sampled = exact(V), QuasiRandomAverager(channel, 2**10, 8)(V)
    for name in ("second_moment", "log_evidence", "curvature"):
        rows = getattr(sampled, name).reshape(8, -1)[:, 0]
        error = rows.std(ddof=1) / np.sqrt(8)
        assert abs(rows.mean() - getattr(found, name).ravel()[0]) < 6 * error, name  # as above


def test_the_evidence_of_outputs_that_round_to_one_number_beside_an_extremum():
    """With its last operation hidden, the link is 1 up to rounding where |z| < 1e-4: there roots are vague."""

    def link(z: jax.Array) -> jax.Array:
        return jnp.exp(-0.513 * jnp.where(jnp.abs(z) > 2.08, z, z**2) ** 2)

    plain = channel_of_link(MultiIndex(lambda z: link(z[0]), 1))
    exact, hidden = plain.exact_averager(), channel_of_link(MultiIndex(lambda z: link(z)[jnp.array([0])], 1)).exact()
    assert exact is not None
    assert isinstance(hidden, ScalarAverager)
    unit = channel_of_link(MultiIndex(lambda z: link(z)[jnp.array([0])], 1)).mean_log_volume.value
    V = np.array([[0.869]])
    # The mean volume is an average over draws. |z| < 1e-4 has probability 8e-5, and vague roots up to twice the weight.
    tolerance = 3 * plain.volume_error + 6e-5
    np.testing.assert_allclose(hidden(V).log_evidence - unit, exact(V).log_evidence, atol=tolerance)
