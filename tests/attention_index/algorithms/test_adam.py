"""Data of the attention layer, the gradient of its loss, and full-batch Adam on it."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import Adam, AttentionIndex, MarchenkoPastur, RiskMinimization, simulate
from asymptotix.attention_index.algorithms import adam as training
from asymptotix.attention_index.algorithms import training_data as data
from asymptotix.attention_index.algorithms.adam import AdamSettings
from reference_numbers import reference
from toy import ToyLearning, ToyRegression

MODEL = AttentionIndex(tokens=2, target=MarchenkoPastur(0.5), noise=0.5)
DIM, SAMPLES = 10, 300  # two blocks of 256, the second filled up


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def tokens_and_labels(samples: data.Samples, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (n, T, d) and labels (n, T, T) of a data set that keeps its tokens in the frame of differences."""
    frames = np.moveaxis(np.asarray(samples.tokens, float), 2, 1).reshape(-1, *samples.tokens.shape[1::2])[:count]
    T, K = samples.centre.shape[:2]
    x = frames.copy()
    if K < T:
        x[:, :-1] += frames[:, -1:]
    labels = np.moveaxis(np.asarray(samples.labels, float), 3, 1).reshape(-1, T, T)[:count]
    return x, labels


def pre_activations(x, S, centring: str):
    forms = jnp.einsum("nad,de,nbe->nab", x, S, x)
    centre = jnp.eye(x.shape[1]) * jnp.trace(S) if centring == "trace" else forms.mean(0)
    return (forms - centre) / np.sqrt(x.shape[-1])


def naive_loss(weights, x, y, model: AttentionIndex, strength: float, kind: str):
    """L / d^2 as it is written, by autodiff."""
    dim = x.shape[-1]
    S = weights @ weights.T / np.sqrt(weights.size) if kind == "factorized" else (weights + weights.T) / 2
    h = pre_activations(x, S, model.centring)
    residual = y - (h if model.activation == "linear" else jax.nn.softmax(model.beta * h, axis=-1))
    if model.output == "sequence":
        error = (jnp.einsum("nab,nbd->nad", residual, x) ** 2).sum() / dim
    else:
        error = (residual**2).sum()
    penalty = (weights**2).sum() if kind == "factorized" else dim * (S**2).sum()
    return (error + strength * penalty) / dim**2


# -- options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"steps": 0}, {"learning_rate": 0.0}, {"chunk": 0}, {"steps": 1.5}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Adam(**options)


def test_other_problems_are_refused():
    with pytest.raises(TypeError, match="ToyLearning"):
        simulate(ToyLearning(ToyRegression()), Adam(), alpha=1.0, dim=20, seeds=1, progress=False)
    problem = RiskMinimization(replace(MODEL, output="sequence"), loss="cross_entropy")
    with pytest.raises(TypeError, match="output='sequence'"):
        Adam().check(problem)


# -- data ----------------------------------------------------------------------------------------------------


def test_draws_do_not_depend_on_chunks():
    whole = data.draw_samples(MODEL, DIM, 700, 3)
    cut = data.draw_samples(MODEL, DIM, 700, 3, chunk=256)
    assert whole.labels.shape[0] == 1
    assert cut.labels.shape[0] == 3
    for first, second in zip(tokens_and_labels(whole, 700), tokens_and_labels(cut, 700), strict=True):
        np.testing.assert_array_equal(first, second)


def test_streams_and_seeds_are_different():
    draws = [data.draw_samples(MODEL, DIM, 50, seed, stream=stream) for seed, stream in ((0, 0), (1, 0), (0, 1))]
    tokens = [np.asarray(draw.tokens).ravel() for draw in draws]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(tokens[first], tokens[second])[0, 1]) < 0.1


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_pre_activations_of_the_target_have_the_variance_of_the_limit(noise):
    model = replace(MODEL, tokens=3, noise=noise, activation="linear")
    R = tokens_and_labels(data.draw_samples(model, 40, 20_000, 0), 20_000)[1]
    np.testing.assert_allclose(R, R.swapaxes(1, 2), atol=1e-5)  # single precision
    expected = (model.signal + noise / 2) * (1 + np.eye(3))
    # Exactly Q(1 + delta_ab) at any dim; 2e4 samples leave 1 % (3 % for the heavier tails at small dim).
    np.testing.assert_allclose((R**2).mean(0), expected, rtol=0.06)
    assert abs(R.mean(0)).max() < 4 * np.sqrt(2 * model.noisy_signal / 20_000)


@pytest.mark.parametrize("tokens", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_labels_are_the_softmax_of_the_targets_pre_activations(tokens):
    model = replace(MODEL, tokens=tokens, noise=0.0, target_beta=1.7)
    x, y = tokens_and_labels(data.draw_samples(model, DIM, SAMPLES, 0), SAMPLES)
    h = pre_activations(x, np.diag(model.target.eigenvalues(DIM)), "trace")
    np.testing.assert_allclose(y, jax.nn.softmax(1.7 * h, axis=-1), atol=1e-5)  # single precision


# -- the gradient --------------------------------------------------------------------------------------------


def assert_same(found, expected):
    """Loss and gradient agree up to sums in single precision."""
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    size = abs(np.asarray(expected[1])).max()
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-5 * size)


compiled = jax.jit(training.loss_and_gradient, static_argnums=4)


@pytest.mark.parametrize(
    ("activation", "tokens", "output", "centring", "kinds"),
    [
        ("softmax", 2, "label", "trace", ("factorized", "full")),
        pytest.param("softmax", 2, "sequence", "empirical", ("full",), marks=pytest.mark.slow),
        pytest.param("softmax", 3, "label", "empirical", ("full",), marks=pytest.mark.slow),
        pytest.param("softmax", 3, "sequence", "trace", ("factorized", "full"), marks=pytest.mark.slow),
        pytest.param("linear", 2, "sequence", "trace", ("full",), marks=pytest.mark.slow),
        pytest.param("linear", 3, "label", "empirical", ("full",), marks=pytest.mark.slow),
    ],
)
def test_gradient_is_that_of_the_loss_as_written(rng, activation, tokens, output, centring, kinds):
    beta = 1.3 if activation == "softmax" else 1.0
    model = replace(MODEL, activation=activation, tokens=tokens, output=output, centring=centring, beta=beta)
    samples = data.draw_samples(model, DIM, SAMPLES, 0, chunk=256)
    x, y = tokens_and_labels(samples, SAMPLES)
    for kind in kinds:
        width = 7 if kind == "factorized" else DIM
        weights = rng.normal(size=(DIM, width)).astype(np.float32)
        strength = 0.3 * (np.sqrt(width / DIM) if kind == "factorized" else 1)
        found = compiled(weights, samples, beta, strength, AdamSettings(1, activation, kind))
        naive = partial(naive_loss, model=model, strength=0.3, kind=kind)
        assert_same(found, jax.jit(jax.value_and_grad(naive))(weights, x, y))


def own_loss(y, h):
    return jnp.log1p((y - jax.nn.softmax(h, axis=-1)) ** 2).sum() + 0.1 * (h**2).sum()


def cross_entropy(y, h):
    return -(y * jax.nn.log_softmax(h, axis=-1)).sum()


@pytest.mark.slow
@pytest.mark.parametrize(("given", "loss"), [("cross_entropy", cross_entropy), (own_loss, own_loss)])
def test_gradient_of_other_losses_and_penalties(rng, given, loss):
    weights = rng.normal(size=(DIM, 7)).astype(np.float32)

    def naive(weights, x, y):
        S = weights @ weights.T / np.sqrt(weights.size)
        error = jax.vmap(loss)(y, pre_activations(x, S, "trace")).sum()
        return error / DIM**2 + 0.3 / DIM * (jnp.trace(S @ S) + jnp.trace(S @ S @ S))

    settings = AdamSettings(1, "softmax", "factorized", given, lambda t: t**2 + t**3)
    samples = data.draw_samples(MODEL, DIM, SAMPLES, 0, differences=settings.differences)
    found = compiled(weights, samples, 1.0, 0.3, settings)
    assert_same(found, jax.jit(jax.value_and_grad(naive))(weights, *tokens_and_labels(samples, SAMPLES)))


def test_a_loss_that_calls_lapack_has_the_same_gradient(rng, monkeypatch):
    """On one matrix after the other, see `programs.compiled`: many at once may wait for one another for ever."""

    def loss(y, h):
        return ((y - h) ** 2).sum() + jnp.linalg.slogdet(jnp.eye(len(h)) + h @ h.T)[1] + jnp.linalg.eigvalsh(y @ y.T)[0]

    settings = AdamSettings(1, "softmax", "factorized", loss)
    weights = rng.normal(size=(DIM, DIM)).astype(np.float32)
    samples = data.draw_samples(MODEL, DIM, SAMPLES, 0, chunk=256, differences=settings.differences)
    found = compiled(weights, samples, 1.0, 0.3, settings)
    monkeypatch.setattr("asymptotix.attention_index.algorithms.adam.one_by_one", lambda error: error)
    # Other settings are another program.
    assert_same(found, compiled(weights, samples, 1.0, 0.3, settings._replace(steps=2)))


@pytest.mark.slow
def test_chunks_and_drawing_again_do_not_change_the_gradient(rng):
    weights = rng.normal(size=(DIM, DIM)).astype(np.float32)
    whole = data.draw_samples(MODEL, DIM, 700, 0)
    cut, again = (data.draw_samples(MODEL, DIM, 700, 0, chunk=256, stored=stored) for stored in (True, False))
    assert again.tokens is None
    found = [
        compiled(weights, samples, 1.0, 0.01, AdamSettings(1, "softmax", "factorized"))
        for samples in (whole, cut, again)
    ]
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])


# -- training ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs():
    return simulate(RiskMinimization(MODEL), Adam(steps=400), alpha=1.0, dim=30, seeds=3, progress=False).ds


def test_a_small_layer_reaches_the_minimum_that_theory_predicts(runs):
    point = next(p for p in reference("attention_index")["state_evolution"]["fact_T2_k0.5_lam0.01_D0.5"]["points"]
                 if p["alpha"] == 1.0)  # fmt: skip
    assert runs.converged.all()
    assert (runs.gradient_norm < 1e-3 * runs.train_loss).all()
    # 0.05793 in the limit; measured at d = 30: 0.061(1), at d = 100: 0.0585(4)
    assert abs(runs.train_loss.mean() / point["loss"] - 1) < 0.1
    for name, key in (("train_error", "train"), ("test_error", "test"), ("m", "m"), ("q", "q"), ("rank", "rank")):
        assert abs(runs[name].mean() / point[key] - 1) < 0.12, name  # 3 runs of d = 30 scatter by 2 to 5 % each


def test_what_is_reported_fits_together(runs):
    target = MODEL.target.eigenvalues(30)
    np.testing.assert_allclose(runs.q, (runs.eigenvalues**2).mean("eigenvalue"), rtol=1e-5)
    np.testing.assert_allclose(runs.estimation_error, runs.q - 2 * runs.m + (target**2).mean(), rtol=1e-6)
    penalty = 0.01 * runs.eigenvalues.mean("eigenvalue")
    np.testing.assert_allclose(runs.train_loss, runs.train_error + penalty, rtol=1e-5)
    np.testing.assert_array_equal(runs.test_error, runs.label_error)
    assert runs.loss_trace.sizes["iteration"] == 400
    assert (runs.loss_trace.isel(iteration=0) > 5 * runs.train_loss).all()
    assert (runs.eigenvalues >= -1e-6).all()


def test_a_seed_gives_the_same_run_alone_and_in_any_chunks(runs):
    for algorithm in (Adam(steps=400), Adam(steps=400, chunk=256)):
        alone = simulate(RiskMinimization(MODEL), algorithm, alpha=1.0, dim=30, seeds=[2], progress=False)
        expected = runs.train_loss.sel(seed=2).item()
        np.testing.assert_allclose(alone.train_loss.values.item(), expected, rtol=1e-5)  # single precision


SEQUENCES = replace(MODEL, tokens=3, output="sequence", centring="empirical")


@pytest.mark.slow
@pytest.mark.parametrize("model", [MODEL, SEQUENCES])
def test_a_seed_gives_the_same_run_beside_others(model, monkeypatch):
    def run():
        with pytest.warns(match="did not converge"):
            return simulate(RiskMinimization(model), Adam(steps=12), alpha=1.0, dim=12, seeds=3, progress=False).ds

    alone = run()
    monkeypatch.setattr(training, "_together", lambda model, runs: 2)  # as on an accelerator: two seeds, then one
    beside = run()
    for name in ("loss_trace", "train_loss", "test_error", "eigenvalues", "gradient_norm"):
        # twelve steps of single precision
        np.testing.assert_allclose(beside[name], alone[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_a_run_that_diverges_does_not_take_others_with_it(monkeypatch):
    monkeypatch.setattr(training, "_together", lambda model, runs: 3)
    start = training._start
    bad = iter([False, True, False] + [False, True, False])  # together, then one by one

    def broken(*args):
        state = start(*args)
        return state._replace(weights=state.weights * np.float32(np.inf)) if next(bad) else state

    monkeypatch.setattr(training, "_start", broken)
    with pytest.warns(match="did not converge"):
        run = simulate(RiskMinimization(MODEL), Adam(steps=5), alpha=1.0, dim=12, seeds=3, progress=False)
    assert ["failed" in words for words in run.status.values.ravel()] == [False, True, False]


def test_an_unfinished_run_says_so():
    with pytest.warns(match="did not converge"):
        run = simulate(RiskMinimization(MODEL), Adam(steps=20), alpha=1.0, dim=30, seeds=1, progress=False)
    assert "still falling" in run.status.values.item()


@pytest.mark.slow
def test_symmetric_matrices_sequences_and_own_centring_train():
    model = replace(MODEL, output="sequence", centring="empirical")
    problem = RiskMinimization(model, parameterization="full")
    run = simulate(problem, Adam(steps=400), alpha=0.5, dim=30, seeds=2, progress=False).ds
    points = reference("attention_index")["state_evolution"]["nonfact_T2_k0.5_tau0.01_D0.5"]["points"]
    expected = next(p for p in points if p["alpha"] == 0.5)
    assert run.converged.all()
    assert (run.eigenvalues.min("eigenvalue") < -0.1).all()
    # 0.0243 in the limit; two runs of d = 30 scatter by 5 % each
    assert abs(run.train_loss.mean() / expected["loss"] - 1) < 0.15
    # the norm of the tokens makes the error of a sequence larger by O(1/d)
    assert (run.test_error != run.label_error).all()
    np.testing.assert_allclose(run.test_error, run.label_error, rtol=0.1)
