"""Free entropies of noiseless links in the user's units, where the outputs fill a surface only, and scales of outputs.

The free entropy of outputs f(z) without noise is that of z less alpha E log sqrt(det J^T J), J = df/dz: the density of
the output is that on its image. Each of these numbers was once another one with the status "converged".
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import asymptotix as asx
from asymptotix.numerics.precision import double_precision
from asymptotix.sequence_index.channels.choose import channel_of_link
from asymptotix.sequence_index.channels.links.link_kind import link_kind
from asymptotix.sequence_index.models.observed_link import ObservedLink
from asymptotix.sequence_index.models.scaled_volume import scaled_log_volume

SLOW = pytest.mark.slow


def solved(link, alpha, indices=1, noise=0.0):
    found = asx.solve(asx.BayesOptimal(asx.MultiIndex(link, indices, noise)), alpha=alpha, progress=False)
    assert set(found.status_code.values) == {"converged"}
    return found


def of_known_index(alpha) -> np.ndarray:
    """Free entropy of one index that is the output itself: the overlap is alpha, E log Z_out that of N(0, 1-alpha)."""
    alpha = np.asarray(alpha)
    v = 1 - alpha
    return 0.5 * (np.log(v) + alpha) - 0.5 * alpha * (1 + np.log(2 * np.pi * v))


def within(found, expected) -> None:
    """The reported error is the tolerance; 1e-8 is that of the quadratures of this file."""
    error = 3 * found.free_entropy_err.values + 1e-8
    assert (abs(found.free_entropy.values - expected) <= error).all()
    assert (found.free_entropy_err.values < 2e-3 * (1 + abs(found.free_entropy.values))).all()


def mean(log_speed) -> float:
    """E log|f'(z)|, by quadrature on both sides of zero, where some slopes vanish."""
    halves = [quad(lambda z: log_speed(z) * norm.pdf(z), *ends, limit=200)[0] for ends in ((-15, 0), (0, 15))]
    return sum(halves)


#: Several outputs of one index that determine it, and log|f'|.
CURVES = {
    "two smooth outputs": (
        lambda z: jnp.stack([jnp.sin(z[0]) + 2 * z[0], jnp.cos(z[0])]),
        lambda z: 0.5 * np.log((np.cos(z) + 2) ** 2 + np.sin(z) ** 2),
    ),
    "other units": (
        lambda z: jnp.stack([jnp.sin(z[0]) + 2 * z[0], 10 * jnp.cos(z[0])]),
        lambda z: 0.5 * np.log((np.cos(z) + 2) ** 2 + 100 * np.sin(z) ** 2),
    ),
    "a sign and a square": (
        lambda z: jnp.stack([jnp.sign(z[0]), z[0] ** 2]),
        lambda z: np.log(2 * abs(z)),
    ),
    "a larger sign and a function of a square": (
        lambda z: jnp.stack([5 * jnp.sign(z[0]) ** 3, jnp.log1p(z[0] ** 2)]),
        lambda z: np.log(2 * abs(z) / (1 + z**2)),
    ),
    "one number twice": (
        lambda z: jnp.stack([jnp.tanh(z[0]), jnp.tanh(z[0]), z[0]]),
        lambda z: 0.5 * np.log(1 + 2 / np.cosh(z) ** 4),
    ),
    "spread": (lambda z: jnp.broadcast_to(jnp.sinh(z[0]), (3,)), lambda z: np.log(np.sqrt(3) * np.cosh(z))),
    "slopes below the smallest number": (
        lambda z: jnp.stack([jnp.exp(-jnp.exp(5 * z[0])), jnp.exp(-jnp.exp(6 * z[0]))]),
        lambda z: (
            0.5 * np.logaddexp(*(2 * (np.log(c) + c * z - np.exp(c * z)) for c in (5.0, 6.0)))
        ),
    ),
}  # fmt: skip


_LONG = ("two smooth outputs", "other units", "a larger sign and a function of a square")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[SLOW] * (name in _LONG)) for name in CURVES])
def test_outputs_on_a_curve_have_their_density_along_it(name):
    link, log_speed = CURVES[name]
    alpha = np.array([0.3, 0.7])
    within(solved(link, alpha), of_known_index(alpha) - alpha * mean(log_speed))


@SLOW
def test_where_the_outputs_are_constant_there_is_no_volume():
    alpha = [0.5, 1.2]
    one = solved(lambda z: jnp.maximum(z[0], 0), alpha)
    both = solved(lambda z: jnp.stack([3 * jnp.sign(z[0]), jnp.maximum(z[0], 0)]), alpha)
    within(both, one.free_entropy.values)
    within(both, np.array([-0.48254, -0.96508]))


def test_a_plane_among_three_outputs():
    B = np.array([[5.0, 5.0], [1.0, -1.0], [2.0, 3.0]])
    link = lambda z: jnp.stack([5 * (z[0] + z[1]), z[0] - z[1], 2 * z[0] + 3 * z[1]])  # noqa: E731
    expected = 2 * of_known_index([0.4]) - 0.4 * 0.5 * np.linalg.slogdet(B.T @ B)[1]
    within(solved(link, [0.4], 2), expected)


#: Links of two indices of rank 2 and 1 with three and two outputs.
SURFACES = {
    "rank two": lambda z: jnp.stack([7 * (z[0] + z[1] ** 2 / 5), z[1] - z[0] ** 2 / 5, jnp.tanh(z[0] - jnp.cos(z[1]))]),
    "rank one": lambda z: jnp.stack([40 * jnp.sin(z[0] * z[1]), jnp.cos(z[0] * z[1])]),
}


@pytest.mark.parametrize("name", ["rank one", pytest.param("rank two", marks=SLOW)])
def test_volumes_of_surfaces_are_those_of_differentials(name):
    """E log of the ratio of the products of nonzero singular values, of the user's and of the observed differential."""
    channel = channel_of_link(asx.MultiIndex(SURFACES[name], 2))
    rank = int(channel.outputs)
    assert rank < channel.observe(np.ones((1, 2, 1))).shape[1]
    z = np.random.default_rng(3).standard_normal((20000, 2))
    with double_precision():
        logs = [
            np.log(np.linalg.svd(np.asarray(jax.vmap(jax.jacfwd(one))(jnp.asarray(z))), compute_uv=False)[:, :rank])
            for one in (SURFACES[name], channel.link)
        ]
    ratio = (logs[0] - logs[1]).sum(1)
    found, error = channel.mean_log_volume, ratio.std() / np.sqrt(len(z))
    assert abs(float(found.value) - ratio.mean()) < 4 * np.hypot(error, float(found.error))  # 4 standard errors
    volumes = channel.log_output_volume(channel.observe(z[:50].reshape(50, 2, 1)))
    np.testing.assert_allclose(volumes.mean(), float(found.value), atol=10 * ratio.std() / np.sqrt(50))


def test_volumes_of_one_index_belong_to_each_observation():
    channel = channel_of_link(asx.MultiIndex(CURVES["other units"][0], 1))
    z = np.random.default_rng(4).standard_normal(50)
    found = channel.log_output_volume(channel.observe(z.reshape(50, 1, 1)))
    with double_precision():
        slopes = np.asarray(jax.vmap(jax.jacfwd(lambda t: channel.link(t[None])))(jnp.asarray(z)))
    expected = CURVES["other units"][1](z) - 0.5 * np.log((slopes**2).sum(1))
    np.testing.assert_allclose(found, expected, atol=1e-9)  # roots are good to 1e-12


def test_scaled_volumes_are_those_of_a_determinant():
    rng, volume = np.random.default_rng(5), jax.jit(scaled_log_volume)
    with double_precision():
        for k, r in ((4, 1), (3, 3), (6, 3)):
            W, logs = rng.standard_normal((k, r)), 3 * rng.standard_normal(k)
            A = np.exp(logs)[:, None] * W
            expected = 0.5 * np.linalg.slogdet(A.T @ A)[1]
            # Scales of up to e^9 on either side: the determinant itself loses digits.
            np.testing.assert_allclose(volume(logs, W), expected, atol=1e-7)
            np.testing.assert_allclose(volume(logs - 1e5, W), expected - 1e5 * r, atol=1e-7)
        hidden = volume(np.array([-1e4, np.inf, -2e4]), np.array([[2.0], [0.0], [1.0]]))
        np.testing.assert_allclose(hidden, np.log(2) - 1e4, rtol=1e-14)


def kind_of(link, indices=2, noise=0.0):
    return link_kind(ObservedLink(asx.MultiIndex(link, indices, noise)))


@pytest.mark.parametrize("scale", [1.0, 1e11])
def test_a_small_output_beside_a_large_one_is_not_affine(scale):
    kind = kind_of(lambda z: jnp.stack([scale * z[1], z[0] ** 2]), noise=0.1)
    assert kind.matrix is None
    assert kind.affine == (False, True)
    assert kind_of(lambda z: jnp.stack([scale * z[1], z[0]]), noise=0.1).matrix is not None


def test_what_the_noise_hides_is_affine():
    kind = kind_of(lambda z: jnp.stack([z[1], 1e-9 * z[0] ** 2]), noise=0.1)
    assert kind.matrix is not None
    assert kind_of(lambda z: jnp.stack([z[1], 1e-2 * z[0] ** 2]), noise=0.1).matrix is None


@pytest.mark.parametrize("levels", [(0.0, 1e-4, 1e9), pytest.param((1e-4, 0.0, -1e9), marks=SLOW)])
def test_labels_have_no_units(levels):
    near, left, right = levels
    kind = kind_of(lambda z: jnp.where(abs(z[0] * z[1]) < 0.5, near, jnp.where(z[0] < 0, left, right)))
    assert kind.alphabet == 3
    rounded = kind_of(lambda z: 0.1 * jnp.sign(z[0]) + 0.2 * jnp.sign(z[1]) + 0.3 * jnp.sign(z[0] * z[1]) + 7.0)
    assert rounded.alphabet == 4


@SLOW
def test_independent_outputs_do_not_disturb_each_other():
    """The overlap 0.17782 of a square with noise 0.1 is that of a quadrature; that of the regression beside it 0.8."""
    problem = asx.BayesOptimal(asx.MultiIndex(lambda z: jnp.stack([1e3 * z[1], z[0] ** 2]), 2, 0.1))
    found = asx.solve(problem, alpha=[0.8], tolerance=2e-3, progress=False)
    assert found.ok
    error = 3 * found.overlap_err.values[0] + 1e-5
    # A noise of 1e-7 of the signal's variance leaves 0.8 of the index beside the square.
    assert (abs(found.overlap.values[0] - np.diag([0.17782, 0.8])) <= error).all()
