"""Tokens drawn anew in every pass: the same data as those that are kept, and the same runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import GAMP, BayesOptimal, DeepAttention, Result, simulate
from asymptotix.sequence_index.algorithms import spectral_start as spectral
from asymptotix.sequence_index.algorithms.data_sets import draw_data
from asymptotix.sequence_index.algorithms.spectral_theory import preprocessing, uninformative
from asymptotix.sequence_index.algorithms.tokens import TILE, DrawnTokens, normals
from asymptotix.sequence_index.channels.choose import channel_of

ONE_LAYER = DeepAttention(layers=1, tokens=2)
SAMPLES = 2 * TILE + 37  # two tiles and a part of one


def drawn(seeds: int = 2, tiles: int | None = None, samples: int = SAMPLES) -> DrawnTokens:
    keys = np.array([jax.random.key_data(jax.random.key(seed)) for seed in range(seeds)])
    return DrawnTokens(keys, (seeds, samples, 2, 30), tiles=tiles)


def all_of(tokens: DrawnTokens) -> np.ndarray:
    return np.concatenate([np.asarray(X) for _, X in tokens.blocks()], axis=1)


@pytest.mark.parametrize("tiles", [1, 2])
def test_tokens_do_not_depend_on_the_blocks(tiles):
    kept = np.asarray(drawn().kept().X)
    assert kept.shape == (2, SAMPLES, 2, 30)
    # The bits are the same; the last digit of a normal may depend on how a program was compiled.
    np.testing.assert_allclose(all_of(drawn(tiles=tiles)), kept, rtol=1e-6)
    rows = [rows for rows, _ in drawn(tiles=tiles).blocks()]
    assert [(r.start, r.stop) for r in rows[:1]] == [(0, min(tiles * TILE, SAMPLES))]
    assert rows[-1].stop == SAMPLES


def test_equal_seeds_give_the_tokens_of_earlier_versions():
    """Other numbers would be other data of a seed."""
    keys = [jax.random.key(seed) for seed in (0, 7)]
    found = normals(np.array([jax.random.key_data(key) for key in keys]), np.uint32(3), (2, 2))
    expected = [
        [-0.6219435930252075, 0.6248040795326233, 1.6820775270462036, -0.8080127835273743],
        [-0.7344603538513184, -0.4773978590965271, 0.8121104836463928, 0.08711232244968414],
    ]
    np.testing.assert_allclose(np.reshape(found, (2, 4)), expected, rtol=1e-6)


@pytest.mark.slow
def test_normals_are_those_of_jax():
    keys = [jax.random.key(seed) for seed in (0, 7)]
    found = normals(np.array([jax.random.key_data(key) for key in keys]), np.uint32(3), (50, 2, 7))
    expected = [jax.random.normal(jax.random.fold_in(key, 3), (50, 2, 7)) for key in keys]
    # As above; with the older way of drawing that JAX may still be told to use the bits would be others.
    np.testing.assert_allclose(found, np.array(expected), rtol=1e-6)


def test_tokens_of_a_seed_do_not_depend_on_the_others():
    np.testing.assert_allclose(all_of(drawn(3).of_seed(1))[0], np.asarray(drawn(2).kept().X)[1], rtol=1e-6)


def test_tokens_are_independent_standard_normals():
    X = np.asarray(drawn(2).kept().X, float)
    assert abs(X.mean()) < 4 / np.sqrt(X.size)
    assert abs(X.var() - 1) < 4 * np.sqrt(2 / X.size)
    tiles = [X[0, :TILE], X[0, TILE : 2 * TILE], X[1, :TILE]]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs((tiles[a] * tiles[b]).mean()) < 4 / np.sqrt(tiles[a].size)


def test_passes_agree_with_plain_products():
    tokens, rng = drawn(tiles=1), np.random.default_rng(0)
    X = np.asarray(tokens.kept().X, float)
    W = rng.normal(size=(2, 3, 30))
    Z = np.einsum("snmd,spd->snpm", X, W) / np.sqrt(30)
    np.testing.assert_allclose(tokens.fields(jnp.asarray(W, jnp.float32)), Z, atol=1e-5)  # single precision
    shift = rng.normal(size=Z.shape)
    found = tokens.sweep(jnp.asarray(W, jnp.float32), lambda rows, fields: jnp.tanh(fields + shift[:, rows]))
    expected = np.einsum("snmd,snpm->spd", X, np.tanh(Z + shift)) / np.sqrt(30)
    np.testing.assert_allclose(found, expected, atol=1e-4)  # single precision, sums of 10^3 terms


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("asymptotix.sequence_index.algorithms.tokens._BLOCK_BYTES", (1, 1))  # one tile per block


@pytest.mark.slow
def test_streamed_runs_are_the_runs(small_blocks):
    problem = BayesOptimal(ONE_LAYER, side_information=0.1)
    options = {"alpha": 0.45, "dim": 580, "seeds": [5], "progress": False}
    kept, streamed = (
        simulate(problem, GAMP(variances="empirical", iterations=5, stream=stream), **options)
        for stream in (False, True)
    )
    for name in ("overlap_trace", "empirical_variance_trace", "test_error"):
        a, b = kept.ds[name].values, streamed.ds[name].values
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, rtol=1e-4)  # single-precision sums, whose order depends on the blocks
    assert (kept.status.values == streamed.status.values).all()


@pytest.mark.slow
def test_runs_on_arrays_of_jax_are_the_runs(monkeypatch):
    def run() -> Result:
        options = {"alpha": 0.6, "dim": 200, "seeds": 2, "progress": False}
        return simulate(BayesOptimal(ONE_LAYER), GAMP(iterations=6, tolerance=0.1), **options)

    plain = run()
    for module in ("placed_arrays", "tokens"):
        monkeypatch.setattr(f"asymptotix.sequence_index.algorithms.{module}.on_cpu", lambda: False)
    seen = []
    inner = spectral.spectral_start
    monkeypatch.setattr(
        "asymptotix.sequence_index.algorithms.gamp_batch.spectral_start",
        lambda tokens, *rest: seen.append(tokens) or inner(tokens, *rest),
    )
    compiled = run()
    assert [type(tokens.X) for tokens in seen] == [type(jnp.zeros(1))] * 2
    for name in ("overlap_trace", "empirical_variance_trace", "test_error"):
        a, b = plain.ds[name].values, compiled.ds[name].values
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, rtol=1e-4)  # single-precision sums in another order


def test_spectral_start_of_streamed_tokens():
    roots = np.random.default_rng(0).normal(size=(SAMPLES, 2, 3))
    covariance = np.einsum("nik,njk->nij", roots, roots)
    tokens = drawn(1, tiles=1)
    one_index = covariance[:, None, :, None, :]
    theory = uninformative(1.0, 1)._replace(eigenvalue=1.0)  # R = 1 and mean A = 0
    streamed, kept = (spectral.spectral_start(t, one_index, 0, np.eye(1), theory) for t in (tokens, tokens.kept()))
    assert abs(streamed.eigenvalue / kept.eigenvalue - 1) < 1e-5  # single precision
    np.testing.assert_allclose(streamed.vectors, kept.vectors, atol=1e-3)
    np.testing.assert_allclose(streamed.scores, kept.scores, atol=1e-2)
    t, axes = preprocessing(one_index)
    T = np.einsum("nij,nj,nkj->nik", axes, t, axes)
    X = np.asarray(tokens.kept().X[0], float)
    own = -(t / (1 - t)).sum() / X.shape[-1]  # A of the data
    matrix = np.einsum("nad,nab,nbe->de", X, T, X) / X.shape[-1] + own * np.eye(X.shape[-1])
    values, vectors = np.linalg.eigh(matrix)
    np.testing.assert_allclose(streamed.eigenvalue, values[-1], rtol=1e-3)  # residual 3e-3, squared over the gap
    np.testing.assert_allclose(abs(streamed.vectors[0] @ vectors[:, -1]), np.sqrt(len(matrix)), rtol=1e-3)
    fields = np.einsum("nad,d->na", X, streamed.vectors[0]) / np.sqrt(len(matrix))
    np.testing.assert_allclose(streamed.scores[:, 0], np.einsum("nab,nb->na", T, fields), atol=1e-3)  # single precision


def test_memory_decides_what_is_kept(monkeypatch):
    algorithm, channel = GAMP(), channel_of(ONE_LAYER)
    monkeypatch.setattr("asymptotix.sequence_index.algorithms.gamp.physical_memory", lambda: 2**30)
    assert algorithm._memory_plan(channel, 1000, 1000) == (False, 2**31 // (8 * 10**6))
    assert algorithm._memory_plan(channel, 10**4, 10**4) == (True, 1)
    monkeypatch.setattr("asymptotix.numerics.memory.physical_memory", lambda: 2**30)
    with pytest.raises(MemoryError, match="stream=True"):
        GAMP(stream=False)._memory_plan(channel, 10**4, 10**4)
    with pytest.raises(MemoryError, match="a smaller dim"):
        GAMP(stream=True)._memory_plan(channel, 10**8, 10**6)


def test_a_streamed_run_never_keeps_the_tokens(monkeypatch, small_blocks):
    def refuse(self):
        raise AssertionError("all tokens were asked for")

    monkeypatch.setattr(DrawnTokens, "kept", refuse)
    data = draw_data(channel_of(ONE_LAYER), 600, 50, [0], 0.0, stream=True)
    assert max(X.shape[1] for _, X in data.tokens.blocks()) == TILE
    assert data.observation.shape == (1, 600, 2)


def test_stream_must_be_a_choice():
    with pytest.raises(TypeError, match="stream"):
        GAMP(stream="yes")  # type: ignore[arg-type]


def test_top_eigenpair():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(200, 200)))[0]
    eigenvalues = np.append(rng.uniform(-8, 0.7, 199), 1.0)
    matrix = (basis * eigenvalues) @ basis.T
    products = []

    def product(v: np.ndarray) -> np.ndarray:
        products.append(v)
        return v @ matrix

    values, (vector,), residual = spectral.top_eigenpairs(product, rng.normal(size=(1, 200)))
    assert len(products) < 100
    assert 0 < residual < 3e-3
    # The eigenvalue's error is the square of the residual 3e-3 over the gap 0.3, the vector's their ratio.
    assert abs(values[0] - 1) < 1e-4
    assert 1 - abs(vector @ basis[:, -1]) < 1e-4
    assert abs(values[1] - np.sort(eigenvalues)[-2]) < 0.03


def test_eigenvectors_that_are_not_found_are_known_by_their_residual(monkeypatch):
    monkeypatch.setattr(spectral, "_KRYLOV", 5)
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(200, 200))
    matrix = matrix + matrix.T
    values, (vector,), residual = spectral.top_eigenpairs(lambda v: v @ matrix, rng.normal(size=(1, 200)))
    true = np.linalg.norm(matrix @ vector - values[0] * vector) / abs(values[0])
    np.testing.assert_allclose(residual, true, rtol=1e-6)
    assert residual > 0.1


def test_a_space_without_room_for_the_next_eigenvalue_is_named():
    with pytest.raises(ValueError, match="1 eigenvectors and the next eigenvalue need a space of 2 dimensions, got 1"):
        spectral.top_eigenpairs(lambda v: 2 * v, np.ones((1, 1)))


@pytest.mark.parametrize("dim", [2, 3, 12])
def test_top_eigenpair_of_small_matrices(dim):
    rng = np.random.default_rng(dim)
    matrix = rng.normal(size=(dim, dim))
    matrix = matrix + matrix.T
    values, (vector,), residual = spectral.top_eigenpairs(lambda v: v @ matrix, rng.normal(size=(1, dim)))
    assert residual < 3e-3
    expected = np.linalg.eigh(matrix)
    np.testing.assert_allclose(values[0], expected[0][-1], rtol=1e-3)
    np.testing.assert_allclose(abs(vector @ expected[1][:, -1]), 1, rtol=1e-3)


def test_rows_see_their_own_part_of_the_data():
    keys = drawn(1).keys
    tokens = DrawnTokens(keys, (1, 40, 4, 30), groups=(0, 1, 0)).kept()
    rng = np.random.default_rng(0)
    W = rng.normal(size=(1, 3, 30)).astype(np.float32)
    g = rng.normal(size=(1, 40, 3, 2)).astype(np.float32)
    X = np.asarray(tokens.X[0], float)
    parts = [X[:, :2], X[:, 2:], X[:, :2]]  # of two parts with two tokens each
    fields = np.stack([parts[p] @ W[0, p] for p in range(3)], 1) / np.sqrt(30)
    np.testing.assert_allclose(tokens.fields(W)[0], fields, atol=1e-5)  # single precision
    gathered = np.stack([np.einsum("nmd,nm->d", parts[p], g[0, :, p]) for p in range(3)]) / np.sqrt(30)
    np.testing.assert_allclose(tokens.gathered_of(tokens.X, g)[0], gathered, atol=1e-4)
    twice = tokens.fields(np.concatenate([W, 2 * W], 1))
    np.testing.assert_allclose(twice[:, :, 3:], 2 * twice[:, :, :3], atol=1e-5)
