"""Closed-form channels of one layer: brute force over the fibre, identities, stability of zero overlap."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from asymptotix import DeepAttention
from asymptotix.numerics.precision import double_precision
from asymptotix.sequence_index.channels.attention.one_layer import HeadsChannel, OneLayerChannel
from asymptotix.sequence_index.channels.attention.sign import SignChannel
from asymptotix.sequence_index.channels.choose import channel_of, one_layer_channel
from asymptotix.sequence_index.channels.protocol import score, score_jacobian
from asymptotix.sequence_index.evolution.averages import QuasiRandomAverager
from asymptotix.sequence_index.evolution.instability import instability
from asymptotix.sequence_index.models import attention_map as attention_link
from link_brute_force import CORRELATED, TWO_INDEX_PRIORS, draw, log_normal, moments_of, worst_error

DIRECTION = DeepAttention(1, 2, rank=2)
ROTATION = DeepAttention(1, 3, rank=2)
SCALE = DeepAttention(1, 2, tied=False)
LINEAR_SCALE = DeepAttention(1, 2, tied=False, activation="linear")
HEADS = DeepAttention(1, 2, heads=2)
MODELS = [DIRECTION, ROTATION, SCALE, LINEAR_SCALE, HEADS]


@lru_cache
def channel(model: DeepAttention) -> OneLayerChannel:
    """One channel per model for all tests: compiling takes most of the time."""
    found = one_layer_channel(model)
    assert found is not None
    return found


class Chart(NamedTuple):
    """Indices as a function of observed coordinates, free ones and a sign, and the grid of the free ones."""

    indices: Callable[[Any, Any, Any], Any]
    observed: Callable[[np.ndarray], np.ndarray]
    free: list[np.ndarray]
    branches: tuple[float, ...]


ANGLES = np.arange(400) * 2 * np.pi / 400
ACROSS = np.linspace(-6, 6, 150, endpoint=False)
SCALES = np.arange(-12, 3, 0.02)
#: Samples in every test: one compiled program per channel serves all.
COUNT = 256


def direction_indices(seen, free):
    e, across = jnp.array([jnp.cos(free[0]), jnp.sin(free[0])]), jnp.array([-jnp.sin(free[0]), jnp.cos(free[0])])
    d, s = seen[0] * e, seen[1] * e + free[1] * across
    return jnp.stack([(s + d) / np.sqrt(2), (s - d) / np.sqrt(2)], 1)


def rotation_indices(seen, free, sign):
    cos, sin = jnp.cos(free[0]), jnp.sin(free[0])
    U = jnp.stack([jnp.array([seen[0], seen[1], seen[2]]), jnp.array([0.0, seen[3], seen[4]])])
    return jnp.array([[cos, -sin * sign], [sin, cos * sign]]) @ U


def scale_indices(seen, free, sign):
    """Two tokens, softmax: q_i (k_1 - k_2) observed."""
    kappa = sign * jnp.exp(free[0])
    return jnp.stack([jnp.array([free[1] + kappa / 2, free[1] - kappa / 2]), seen / kappa])


def linear_indices(seen, free, sign):
    """Two tokens, linear: q_i k_1 and the angle of k observed."""
    kappa = sign * jnp.exp(free[0])
    return jnp.stack([kappa * jnp.array([jnp.cos(seen[2]), jnp.sin(seen[2])]), seen[:2] / kappa])


def seen_by_rotation(Z):
    """QR with signs: the first token on the positive first axis, the second above it."""
    triangular = np.linalg.qr(Z)[1]
    triangular = triangular * np.where(np.array([triangular[0, 0], triangular[1, 1]]) < 0, -1.0, 1.0)[:, None]
    return np.array([*triangular[0], *triangular[1, 1:]])


def seen_by_direction(Z):
    d, s = (Z[:, 0] - Z[:, 1]) / np.sqrt(2), (Z[:, 0] + Z[:, 1]) / np.sqrt(2)
    return np.array([np.linalg.norm(d), s @ d / np.linalg.norm(d)])


def seen_by_linear_scale(Z):
    size = np.linalg.norm(Z[0])
    return np.array([*(Z[1] * size), np.arctan2(Z[0, 1], Z[0, 0])])


CHARTS = {
    DIRECTION: Chart(lambda s, f, b: direction_indices(s, f), seen_by_direction, [ANGLES, ACROSS], (1.0,)),
    ROTATION: Chart(rotation_indices, seen_by_rotation, [ANGLES], (1.0, -1.0)),
    SCALE: Chart(scale_indices, lambda Z: Z[1] * (Z[0, 0] - Z[0, 1]), [SCALES, ACROSS], (1.0, -1.0)),
    LINEAR_SCALE: Chart(linear_indices, seen_by_linear_scale, [SCALES], (1.0, -1.0)),
}


@lru_cache
def points_and_volumes(model: DeepAttention, sign: float) -> Callable[[Any], tuple[Any, Any]]:
    """Indices of (observed, free) coordinates (m, n), and the differential of that map by automatic differentiation."""

    def indices(x):
        free = len(CHARTS[model].free)
        return CHARTS[model].indices(x[:-free], x[-free:], sign).ravel()

    return jax.jit(lambda x: (jax.vmap(indices)(x), jax.vmap(jax.jacfwd(indices))(x)))


@double_precision()
def brute_force(model: DeepAttention, Z: np.ndarray, omega: np.ndarray, V: np.ndarray):
    """Trapezoidal rule over all free coordinates."""
    chart = CHARTS[model]
    seen = chart.observed(Z)
    grid = np.stack(np.meshgrid(*chart.free, indexing="ij"), -1).reshape(-1, len(chart.free))
    log_cell = sum(np.log(axis[1] - axis[0]) for axis in chart.free)
    x = np.concatenate([np.broadcast_to(seen, (len(grid), len(seen))), grid], 1)
    parts = [map(np.asarray, points_and_volumes(model, sign)(x)) for sign in chart.branches]
    points, volumes = (np.concatenate(column) for column in zip(*parts, strict=True))
    shift = points - omega.ravel()
    log_weights = np.linalg.slogdet(volumes)[1] + log_cell + log_normal(shift, np.kron(V, np.eye(model.tokens)))
    return moments_of(log_weights, shift)


@pytest.mark.slow
@pytest.mark.parametrize("model", CHARTS, ids=["direction", "rotation", "scale", "linear scale"])
def test_moments_are_those_of_brute_force(model):
    for V in (TWO_INDEX_PRIORS[0], TWO_INDEX_PRIORS[2], TWO_INDEX_PRIORS[4]):
        Z, omega, y = draw(channel(model), V, COUNT, seed=3)
        expected = [brute_force(model, Z[i], omega[i], V) for i in range(2)]
        _, mean, covariance = worst_error(channel(model).posterior(y, omega, V), expected, V)
        # The trapezoidal rule is good to 1e-9 here, the adaptive one to 1e-5 in the worst samples.
        assert mean < 5e-5
        assert covariance < 5e-5


@pytest.mark.slow
@pytest.mark.parametrize("model", [SCALE, DIRECTION], ids=["scale", "direction"])
def test_evidence_is_that_of_brute_force_up_to_what_does_not_depend_on_the_prior(model):
    """Densities of other coordinates of the same observation: their ratio is the same for all priors."""
    Z, omega, y = draw(channel(model), CORRELATED, COUNT, seed=5)
    gaps = []
    for V in TWO_INDEX_PRIORS[:2]:
        found = channel(model).posterior(y, omega, V).log_evidence
        gaps.append([found[i] - brute_force(model, Z[i], omega[i], V)[0] for i in range(2)])
    np.testing.assert_allclose(gaps[0], gaps[1], atol=5e-5)  # as above


def some_prior(P: int, scale: float) -> np.ndarray:
    """A full matrix with eigenvalues between a tenth and one, times ``scale``."""
    turn = np.linalg.qr(np.random.default_rng(P).standard_normal((P, P)))[0]
    return scale * (turn * np.linspace(0.1, 0.9, P)) @ turn.T


@pytest.mark.parametrize("model", MODELS, ids=["direction", "rotation", "scale", "linear scale", "heads"])
@pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-5])
@pytest.mark.slow  # every model compiles a program of its own
def test_moments_are_derivatives_of_the_log_evidence(model, scale):
    """Grad log Z_out = V^-1 shift, and the derivative of that is V^-1 Cov V^-1 - V^-1."""
    here = channel(model)
    P, M = here.indices, here.tokens
    V = some_prior(P, scale)
    _, omega, y = draw(here, V, COUNT, seed=1)
    found = here.posterior(y, omega, V)
    g, G = score(found, V), score_jacobian(found, V)
    rng = np.random.default_rng(2)
    for _ in range(2):
        step = 1e-4 * np.sqrt(scale) * rng.standard_normal((P, M))
        ends = [here.posterior(y, omega + sign * step, V) for sign in (1, -1)]
        slope = (ends[0].log_evidence - ends[1].log_evidence) / 2
        # In units of the prior's standard deviation; differences of second order leave 1e-8, the quadrature 1e-6 in
        # its worst samples, both divided by the step of 1e-4.
        assert abs(slope - np.einsum("pm,npm->n", step, g)).max() / 1e-4 < 1e-3
        change = (score(ends[0], V) - score(ends[1], V)) / 2 * np.sqrt(scale)
        expected = np.einsum("npmqk,qk->npm", G, step) * np.sqrt(scale)
        np.testing.assert_allclose(change / 1e-4, expected / 1e-4, rtol=1e-3, atol=5e-3 * abs(expected / 1e-4).max())


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=["direction", "rotation", "scale", "linear scale", "heads"])
@pytest.mark.parametrize("scale", [0.5, 1e-6])
def test_errors_of_the_posterior_mean_are_what_the_covariance_says(model, scale):
    here = channel(model)
    P = here.indices
    V = some_prior(P, scale)
    Z, omega, y = draw(here, V, COUNT, seed=7)
    found = here.posterior(y, omega, V)
    assert np.isfinite(found.log_evidence).all()
    square = (np.linalg.solve(np.linalg.cholesky(V), Z - omega - found.shift) ** 2).sum((1, 2))
    said = np.einsum("pq,nqmpm->n", np.linalg.inv(V), found.covariance)
    gap = square - said
    assert abs(gap.mean()) < 5 * gap.std() / np.sqrt(len(gap))
    assert said.mean() < P * here.tokens - 0.5 * here.outputs  # something is learned from the output


@pytest.mark.parametrize("model", MODELS, ids=["direction", "rotation", "scale", "linear scale", "heads"])
def test_equal_outputs_are_equal_observations_and_the_other_way_round(model):
    here = channel(model)
    Z = np.random.default_rng(0).standard_normal((50, here.indices, here.tokens))
    symmetric = -Z if model is not HEADS else Z * np.array([1.0, 1.0, -1.0, -1.0])[:, None]
    np.testing.assert_allclose(here.observe(symmetric), here.observe(Z), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(here.output(symmetric), here.output(Z), rtol=1e-12)
    # As many independent numbers as the differential of the output has rank.
    with double_precision():
        J = jax.jit(jax.vmap(jax.jacfwd(lambda z: attention_link.coordinates(z, model))))(Z[:8])
        own = jax.jit(jax.vmap(jax.jacfwd(lambda z: here.observe(z[None])[0].ravel())))(Z[:8])
    J, own = (np.asarray(x).reshape(8, -1, here.size) for x in (J, own))
    assert (np.linalg.matrix_rank(J, tol=1e-8) == here.outputs).all()
    assert (np.linalg.matrix_rank(np.concatenate([J, own], 1), tol=1e-8) == here.outputs).all()
    assert (np.linalg.matrix_rank(own, tol=1e-8) == here.outputs).all()


def test_one_head_is_the_channel_of_one_sign():
    one, sign = HeadsChannel(DeepAttention(1, 3)), SignChannel(3, "softmax")
    V = np.array([[0.3]])
    _, omega, y = draw(one, V, 20)
    found, expected = one.posterior(y, omega, V), sign.posterior(y[:, 0], omega, V)
    for mine, theirs in zip(found[:3], expected[:3], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-10)


def test_evidence_of_heads_is_a_mixture_of_gaussians():
    here, V = channel(HEADS), some_prior(4, 1.0)
    sums = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    _, omega, y = draw(here, V, 5)
    found = here.posterior(y, omega, V).log_evidence
    for i in range(5):
        law = multivariate_normal((sums @ omega[i]).ravel(), np.kron(sums @ V @ sums.T, np.eye(2)))  # type: ignore[arg-type]
        signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
        total = sum(law.pdf((s[:, None] * y[i]).ravel()) for s in signs)
        assert abs(found[i] - np.log(total)) < 1e-10


@pytest.mark.slow
def test_stability_of_zero_overlap_of_heads():
    here = channel(HEADS)
    found = instability([QuasiRandomAverager(here, 2**10, 8)], np.eye(4), np.eye(4))
    # The uniform direction among the blocks of a head, H/(M(M+1)); every sample's contribution is a polynomial of
    # degree four, which the control variates take out: only rounding is left.
    assert abs(1 / found.rate - 1 / 3) < 1e-9


@pytest.mark.parametrize("model", MODELS, ids=["direction", "rotation", "scale", "linear scale", "heads"])
def test_models_get_these_channels(model):
    assert type(channel_of(model)) is type(channel(model))
    sequence = DeepAttention(1, model.tokens, rank=model.rank, tied=model.tied, heads=model.heads, output="sequence",
                             activation=model.activation)  # fmt: skip
    assert type(channel_of(sequence)) is type(channel(model))
