"""The parts of the channel of deep attention, against differentiation and direct evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix.numerics.precision import double_precision
from asymptotix.sequence_index.channels.attention.many_layers import DeepChannel
from asymptotix.sequence_index.channels.attention.mixing_layer import (
    applied,
    attention_rows,
    determinant,
    inverted,
    log_slope,
    mixing,
    solved,
)
from asymptotix.sequence_index.channels.tools.mode_mixture import modes
from asymptotix.sequence_index.channels.tools.random_lists import (
    normals_from,
    random_rotations,
    starts,
    uniforms_from,
)

CASES = [(2, "softmax"), (2, "linear"), (3, "linear")]


@pytest.fixture
def rng():
    return np.random.default_rng(8)


def _vectors(rng, count, tokens):
    return [rng.standard_normal((tokens, 5)) for _ in range(count)]


@pytest.mark.parametrize(("tokens", "activation"), CASES)
def test_the_inverse_gives_back_the_vector_up_to_its_sign(rng, tokens, activation):
    with double_precision():
        v, t = (list(jnp.asarray(x)) for x in _vectors(rng, 2, tokens))
        r = applied(attention_rows(v, activation), t)
        found, exists = inverted(t, r, activation)
        sign = np.sign(np.asarray(found[0] * v[0]))
        assert np.asarray(exists).all()
        # Rounding, enlarged by the slope of the logits.
        np.testing.assert_allclose(np.array(found) * sign, np.array(v), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("tokens", "activation"), CASES)
def test_the_slope_is_the_determinant_of_the_derivative(rng, tokens, activation):
    with double_precision():
        v, t = (jnp.asarray(x) for x in _vectors(rng, 2, tokens))

        def attended(x, y):
            return jnp.stack(applied(attention_rows(list(x), activation), list(y)))

        J = jax.vmap(jax.jacfwd(attended), in_axes=(1, 1))(v, t)
        exact = np.linalg.slogdet(np.asarray(J))[1]
        np.testing.assert_allclose(np.asarray(log_slope(list(v), list(t), activation)), exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("tokens", "activation"), [*CASES, (3, "softmax"), (4, "softmax")])
def test_layers_are_inverted_as_matrices(rng, tokens, activation):
    with double_precision():
        v, b = (list(jnp.asarray(x)) for x in _vectors(rng, 2, tokens))
        A = mixing(v, 0.5, activation)
        matrices = np.moveaxis(np.array(A), -1, 0)
        exact = np.linalg.solve(matrices, np.array(b).T[..., None])[..., 0]
        np.testing.assert_allclose(np.array(solved(A, b)).T, exact, rtol=1e-9)
        np.testing.assert_allclose(np.asarray(determinant(A)), abs(np.linalg.det(matrices)), rtol=1e-9)


@pytest.mark.slow
def test_the_mixture_of_a_linear_problem_is_its_posterior():
    with double_precision():
        slope, offset = jnp.asarray([[2.0, 0.5], [0.0, 3.0]]), jnp.asarray([1.0, -2.0])
        start = jnp.asarray([[0.3, 0.1], [-1.0, 0.7]])
        found = modes(lambda x, _: slope @ x - offset, start, jnp.zeros(2), 8)
        exact = np.linalg.solve(np.eye(2) + slope.T @ slope, slope.T @ offset)
        # Damping of Gauss-Newton falls tenfold per step from 1e-3: nothing is left of it after eight.
        np.testing.assert_allclose(np.asarray(found.centres), np.stack([exact, exact]), atol=1e-9)
        x = [jnp.asarray([0.2]), jnp.asarray([0.4])]
        C = np.asarray(found.factors[0])
        away = np.array([0.2, 0.4]) - exact
        log_q = np.log(np.diag(C)).sum() - 0.5 * ((C.T @ away) ** 2).sum()
        np.testing.assert_allclose(np.asarray(found.log_ratio(x)), log_q + 0.5 * 0.2, rtol=1e-9)


def test_rotations_are_orthogonal_and_have_no_preferred_direction(rng):
    with double_precision():
        turns = np.asarray(random_rotations(jnp.asarray(rng.standard_normal((20000, 3, 3)))))
    np.testing.assert_allclose(turns @ np.swapaxes(turns, 1, 2), np.broadcast_to(np.eye(3), turns.shape), atol=1e-13)
    # The mean of 20000 entries of variance 1/3: four standard errors.
    assert abs(turns.mean(0)).max() < 4 / np.sqrt(3 * 20000)


def test_random_numbers_of_samples_are_uniform_normal_and_independent():
    count = 64
    with double_precision():
        uniforms = np.asarray(jax.vmap(lambda start: uniforms_from(start, count))(starts(np.arange(4096), 7)))
        normals = np.asarray(jax.vmap(normals_from)(uniforms))
    assert uniforms.min() > 0
    assert uniforms.max() < 1
    # Every count of 64 bins: five standard errors. Correlations of columns, and of a sample with the next: the same.
    bins = np.bincount((64 * uniforms.ravel()).astype(int), minlength=64)
    assert abs(bins - 4096).max() < 5 * 64
    for x in (np.sqrt(12) * (uniforms - 0.5), normals):
        assert abs(x.T @ x / 4096 - np.eye(count)).max() < 5 * np.sqrt(2 / 4096)
        assert abs(x[1:].T @ x[:-1] / 4096).max() < 5 / np.sqrt(4096)
    assert abs((normals**4).mean() - 3) < 5 * np.sqrt(96 / normals.size)


@pytest.mark.slow  # compiles the program twice
@pytest.mark.parametrize(
    "shape",
    [(3, 2, 1.0), pytest.param((3, 2, 0.1), marks=pytest.mark.full), pytest.param((2, 3, 1.0), marks=pytest.mark.full)],
)
def test_single_precision_is_enough(shape: tuple[int, int, float], rng):
    channel, double = (DeepChannel(*shape, activation="softmax") for _ in range(2))
    assert channel.precision == "float32"
    n, double.precision = 128, "float64"
    V = np.diag(np.geomspace(0.3, 0.01, channel.layers))
    Q = np.eye(channel.layers) - V
    Z, noise = rng.standard_normal((2, n, channel.layers, channel.tokens))
    omega = Q @ Z + np.sqrt(Q @ V) @ noise
    one, two = (which.posterior(which.observe(Z), omega, V) for which in (channel, double))
    # Of their deviations, which the draws themselves give to a few percent.
    scale = np.sqrt(np.diag(V))[:, None]
    assert np.quantile(abs(one.shift - two.shift) / scale, 0.98) < 1e-3
    assert np.quantile(abs(one.log_evidence - two.log_evidence), 0.98) < 1e-3


def test_linear_layers_without_skip_are_refused():
    with pytest.raises(NotImplementedError, match="skip=0"):
        DeepChannel(3, 2, 0.0, "linear")


def test_equal_channels_share_their_programs():
    assert DeepChannel(3, 2, 1.0, "softmax") == DeepChannel(3, 2, 1.0, "softmax")
    assert hash(DeepChannel(3, 2, 1.0, "softmax")) != hash(DeepChannel(4, 2, 1.0, "softmax"))
