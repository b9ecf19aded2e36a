"""Densities that the samplers use: the Wishart hierarchy, the likelihood and the posterior of the weights."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import asymptotix as asx
from asymptotix.attention_paths.network.weights import Weights
from asymptotix.attention_paths.predictors import draws_average
from asymptotix.attention_paths.sampling.hierarchy import Hierarchy, _lower_triangle
from asymptotix.attention_paths.sampling.weight_space import WeightPosterior, weight_data
from asymptotix.attention_paths.theory import likelihood
from asymptotix.numerics.precision import double_precision

# heads, widths (N_1..N_L, N_a), outputs, variances (s_1..s_L, s_a)
REGULAR = [
    ((2,), (5, 4), 2, (0.7, 1.4)),
    ((2, 2), (7, 6, 3), 1, (1.3, 0.8, 0.6)),
    ((1, 3), (8, 9, 2), 1, (1.1, 0.5, 2.0)),
]
SINGULAR = [
    ((2, 2), (3, 2, 5), 1, (1.3, 0.8, 0.6)),  # both layers below their number of rows
    ((2,), (2, 3), 2, (0.7, 1.4)),
    ((3, 1), (4, 1, 1), 2, (1.0, 1.5, 0.5)),  # one readout unit for two outputs
]


def prior_draws(hierarchy: Hierarchy, count: int) -> np.ndarray:
    rng, parts = np.random.default_rng(1), []
    for level in hierarchy.levels:
        z = rng.standard_normal((count, level.size))
        if level.triangular:
            k = level.width - np.arange(level.rows)
            places = np.diag(_lower_triangle(jnp.arange(level.size), level.rows))
            z[:, places] = np.sqrt(k / 2) * np.log(rng.chisquare(k, size=(count, len(k))) / k)
        parts.append(z)
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize(("heads", "widths", "outputs", "variances"), REGULAR + SINGULAR)
@double_precision()
def test_prior_moments(heads, widths, outputs, variances):
    hierarchy = Hierarchy(heads, widths, outputs)
    z = prior_draws(hierarchy, 20_000)
    numbers = hierarchy.numbers(variances)
    F = np.asarray(jax.jit(jax.vmap(lambda row: hierarchy.factors(row, numbers)[0][0]))(z))
    U = F @ F.swapaxes(-1, -2)
    assert U.shape[-1] == math.prod(heads) * outputs
    assert np.linalg.matrix_rank(U[0]) == F.shape[-1]
    mean = math.prod(variances) * np.eye(U.shape[-1])
    # Five standard errors of the mean, for some forty entries with a fixed seed.
    assert (abs(U.mean(0) - mean) < 5 * U.std(0) / np.sqrt(len(U)) + 1e-12).all()
    # A diagonal entry is a product of independent chi^2_{N_l} / N_l: its square has mean prod s_l^2 (1 + 2/N_l).
    square = (np.einsum("nii->ni", U) ** 2).reshape(len(U), -1)
    expected = math.prod(s**2 * (1 + 2 / N) for s, N in zip(variances, widths, strict=True))
    assert (abs(square.mean(0) - expected) < 5 * square.std(0) / np.sqrt(len(U))).all()


@pytest.mark.parametrize(("heads", "widths", "outputs", "variances"), REGULAR)
@double_precision()
def test_log_density_is_that_of_the_wisharts(heads, widths, outputs, variances):
    hierarchy = Hierarchy(heads, widths, outputs)
    z, numbers = prior_draws(hierarchy, 1)[0], hierarchy.numbers(variances)

    def entries(z):
        factors, log_density = hierarchy.factors(z, numbers)
        U = [F @ F.T for F in factors]
        return jnp.concatenate([U[i, : i + 1] for U in U for i in range(len(U))]), (U, log_density)

    # Compiled: op by op JAX takes many times longer here.
    slopes, (U, log_density) = jax.jit(jax.jacfwd(entries, has_aux=True))(z)
    expected = np.linalg.slogdet(slopes)[1]
    deeper = [*(np.kron(np.eye(H), below) for H, below in zip(heads, U[1:], strict=True)), np.eye(outputs)]
    for matrix, N, s, scale in zip(U, widths, variances, deeper, strict=True):
        expected += scipy.stats.wishart.logpdf(np.asarray(matrix), df=N, scale=s / N * scale)
    assert float(log_density) == pytest.approx(expected, rel=1e-10)


@double_precision()
def test_one_shape_serves_all_large_widths():
    narrow, wide = Hierarchy((2, 2), (4, 2, 1)), Hierarchy((2, 2), (1000, 50, 7))
    assert wide.shape == narrow
    z, numbers = np.random.default_rng(3).standard_normal(wide.size), wide.numbers((1.0, 1.0, 1.0))
    own, shared = (jax.jit(lambda z, h=h: h.factors(z, numbers)[0])(z) for h in (wide, narrow))
    for one, other in zip(own, shared, strict=True):
        np.testing.assert_array_equal(one, other)


def likelihood_problem(outputs: int):
    rng = np.random.default_rng(4)
    xi, labels = rng.standard_normal((9, 3, 5)), rng.standard_normal((9, outputs))
    return xi, labels, rng.standard_normal((3 * outputs, 2))


def brute_kernel(xi, U, s_0, outputs):
    _, d, N0 = xi.shape
    blocks = U.reshape(d, outputs, d, outputs)
    K = s_0 / (d * N0) * np.einsum("pcqe,mpk,nqk->mcne", blocks, xi, xi)
    return K.reshape(len(xi) * outputs, -1)


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("outputs", [1, 2])
@double_precision()
def test_likelihood_and_gradient(outputs, is_stored, monkeypatch):
    if not is_stored:
        monkeypatch.setattr(likelihood, "stored_bytes", lambda *_: 0)
    xi, labels, F = likelihood_problem(outputs)
    kernels = likelihood.path_kernels(xi, 0.7, outputs)
    assert (kernels.tensor is not None) == is_stored
    K = brute_kernel(xi, F @ F.T, 0.7, outputs)
    found = jax.jit(lambda F: likelihood.kernel(F, kernels, outputs))(F)
    np.testing.assert_allclose(found, K, atol=1e-13)

    @jax.jit
    def value(F):
        return likelihood.log_likelihood(F, kernels, labels, 0.3, outputs)

    expected = scipy.stats.multivariate_normal.logpdf(labels.reshape(-1), cov=K + 0.3 * np.eye(len(K)))
    assert float(value(F)) == pytest.approx(expected, rel=1e-12)
    direction, step = np.random.default_rng(5).standard_normal(F.shape), 1e-5
    slope = (value(F + step * direction) - value(F - step * direction)) / (2 * step)
    # Central differences: rounding 1e-16 * |value| / step and curvature step^2, each about 1e-9.
    assert float((jax.jit(jax.grad(value))(F) * direction).sum()) == pytest.approx(float(slope), rel=1e-7)


@double_precision()
def test_slope_of_the_labels():
    xi, labels, F = likelihood_problem(1)
    kernels = likelihood.path_kernels(xi, 0.7)
    found = jax.jit(jax.grad(lambda y: likelihood.log_likelihood(F, kernels, y, 0.3)))(labels[:, 0])
    K = brute_kernel(xi, F @ F.T, 0.7, 1) + 0.3 * np.eye(9)
    np.testing.assert_allclose(found, -np.linalg.solve(K, labels[:, 0]), atol=1e-12)


@double_precision()
def test_path_weights_are_the_network():
    """Unequal widths, heads and variances, two outputs: against the forward pass over tokens."""
    rng = np.random.default_rng(6)
    network = asx.AttentionPaths(query_key=(rng.normal(size=(2, 4, 4)), rng.normal(size=(3, 4, 4))), readout="mean")
    tokens, labels = rng.normal(size=(5, 3, 4)), rng.normal(size=(5, 2))
    posterior = WeightPosterior(network.heads, (5, 3, 2), 4, 2)
    variances, z = (0.5, 1.5, 0.7, 2.0), rng.standard_normal(posterior.size)
    xi = network.attended(tokens)
    data = weight_data(xi, labels, 0.3, variances)
    weights = posterior.weights(z, variances)
    f = np.stack([network.forward(Weights(weights.V0, weights.V, row), tokens) for row in weights.a], axis=1)
    seen = posterior.observe(z, data)
    w = np.asarray(seen["path_weights"]).reshape(6, 2, 4)
    np.testing.assert_allclose(np.einsum("npk,pck->nc", xi, w), f, atol=1e-12)
    expected = -0.5 * z @ z - ((f - labels) ** 2).sum() / 0.6
    assert float(posterior.log_density(z, data)) == pytest.approx(expected, rel=1e-12)
    # Of path (h_1, h_2) and output c: a_c V^{2, h_2} V^{1, h_1} / sqrt(N_a N_2), by hand.
    V1, V2 = (np.asarray(V) for V in weights.V)
    rows = [a @ V2[j] @ V1[i] for i in range(2) for j in range(3) for a in np.asarray(weights.a)]
    E = np.stack(rows) / np.sqrt(2 * 3)
    np.testing.assert_allclose(seen["order_parameter"], E @ E.T / 5, atol=1e-12)


@pytest.mark.parametrize("tensor_bytes", [0, draws_average._TENSOR_BYTES])
@pytest.mark.parametrize("outputs", [1, 2])
def test_predictions_average_over_draws(outputs, tensor_bytes, monkeypatch):
    monkeypatch.setattr(draws_average, "_TENSOR_BYTES", tensor_bytes)
    rng = np.random.default_rng(7)
    xi, new, labels = rng.normal(size=(9, 3, 5)), rng.normal(size=(70, 3, 5)), rng.normal(size=(9, outputs))
    F = rng.normal(size=(4, 3 * outputs, 2))
    U = F @ F.swapaxes(-1, -2)
    means, variances = [], []
    for matrix in U:
        K = brute_kernel(np.concatenate([xi, new]), matrix, 0.7, outputs)
        n = 9 * outputs
        A = np.linalg.inv(K[:n, :n] + 0.3 * np.eye(n))
        means.append(K[n:, :n] @ A @ labels.reshape(-1))
        variances.append(np.diag(K[n:, n:] - K[n:, :n] @ A @ K[:n, n:]))
    given = labels if outputs > 1 else labels[:, 0]
    shape = (4, 3, 2, 3, 2) if outputs > 1 else (4, 3, 3)
    found = draws_average.predict_draws(xi, given, U.reshape(shape), 0.3, 0.7, new)
    assert found.mean.shape == (70, *given.shape[1:])
    np.testing.assert_allclose(found.mean.reshape(-1), np.mean(means, 0), atol=1e-12)
    np.testing.assert_allclose(found.variance.reshape(-1), np.mean(variances, 0) + np.var(means, 0), atol=1e-12)


@pytest.mark.parametrize("outputs", [(), (2,)])
def test_predictions_of_path_weights(outputs):
    rng = np.random.default_rng(8)
    w, new = rng.normal(size=(6, 3, *outputs, 5)), rng.normal(size=(70, 3, 5))
    f = np.einsum("spck,npk->snc", w.reshape(6, 3, -1, 5), new).reshape(6, 70, *outputs)
    found = draws_average.predict_path_weights(w, new)
    np.testing.assert_allclose(found.mean, f.mean(0), atol=1e-12)
    np.testing.assert_allclose(found.variance, f.var(0), atol=1e-12)
