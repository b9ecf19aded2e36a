"""Matrix message passing: its linear maps, its two estimators, and runs against state evolution and training."""

from dataclasses import replace

import numpy as np
import pytest

from asymptotix import (
    Adam,
    AttentionIndex,
    BayesOptimal,
    ConvergenceWarning,
    MarchenkoPastur,
    MatrixAMP,
    RiskMinimization,
    simulate,
    solve,
)
from asymptotix.attention_index.algorithms import matrix_amp as amp
from asymptotix.attention_index.algorithms.sensing import GaussianSensing, TokenSensing
from reference_numbers import reference
from toy import ToyLearning, ToyRegression

MODEL = AttentionIndex(tokens=2, target=MarchenkoPastur(0.5), noise=0.5)
PROBLEM = RiskMinimization(MODEL, weight_decay=0.01)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def symmetric(rng: np.random.Generator, dim: int) -> np.ndarray:
    S = rng.normal(size=(dim, dim)) / np.sqrt(dim)
    return (S + S.T) / 2


# -- options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"iterations": 0}, {"sensing": "sparse"}, {"damping": 0.0}, {"damping": 1.5}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        MatrixAMP(**options)


def test_other_problems_are_refused():
    with pytest.raises(TypeError, match="ToyLearning"):
        MatrixAMP().check(ToyLearning(ToyRegression()))
    with pytest.raises(TypeError, match="loss='squared'"):
        MatrixAMP().check(RiskMinimization(MODEL, loss="cross_entropy"))
    with pytest.raises(TypeError, match="hardmax"):
        MatrixAMP().check(BayesOptimal(replace(MODEL, activation="hardmax")))


def test_only_undamped_runs_are_followed_by_iteration():
    assert MatrixAMP(iterations=7).trace_options(PROBLEM) == {"iterations": 7, "damping": 1.0}
    with pytest.raises(ValueError, match=r"damping=0\.5"):
        MatrixAMP(damping=0.5).trace_options(PROBLEM)


def test_too_many_matrices_are_refused_before_they_are_drawn():
    with pytest.raises(MemoryError, match="smaller dim"):
        GaussianSensing.check_memory(MODEL, 2000, 4_000_000)


# -- linear maps ---------------------------------------------------------------------------------------------

SENSINGS = [
    (GaussianSensing, {}),
    pytest.param(TokenSensing, {}, marks=pytest.mark.slow),
    (TokenSensing, {"tokens": 3, "centring": "empirical"}),
    pytest.param(TokenSensing, {"tokens": 3, "activation": "linear"}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "fields"), SENSINGS)
def test_gathering_is_the_transpose_of_sensing(rng, kind, fields):
    sensing = kind(replace(MODEL, **fields), 12, 200, 0)
    S, f = symmetric(rng, 12), rng.normal(size=sensing.z0.shape)
    found = sensing.gathered(f)
    np.testing.assert_allclose(found, found.T)
    # 600 products in single precision
    np.testing.assert_allclose((found * S).sum(), (sensing.coordinates(S) * f).sum(), rtol=1e-4)


@pytest.mark.parametrize(("kind", "fields"), SENSINGS)
def test_coordinates_have_variance_q_and_tell_the_target(rng, kind, fields):
    dim, samples = 30, 6000
    noiseless = kind(replace(MODEL, noise=0.0, **fields), dim, samples, 0)
    target = np.diag(noiseless.target)
    if fields.get("centring") != "empirical":  # labels are always centred by the trace
        # softmax, logarithm and inverse map in single precision
        np.testing.assert_allclose(noiseless.coordinates(target), noiseless.z0, atol=1e-4)
    S = symmetric(rng, dim)
    r = noiseless.coordinates(S)
    assert r.shape == (samples, noiseless.model.visible_directions)
    covariance = r.T @ r / samples
    # 6000 samples leave 2 % (more with the heavy tails of tokens at this dim)
    np.testing.assert_allclose(covariance, (S**2).sum() / dim * np.eye(r.shape[1]), atol=0.1 * (S**2).sum() / dim)
    noisy = kind(replace(MODEL, noise=1.0, **fields), dim, samples, 0)
    difference = noisy.z0 - noiseless.z0
    np.testing.assert_allclose((difference**2).mean(0), 0.5, rtol=0.1)  # noise/2, 5 sigma


# -- denoisers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameterization", ["factorized", "full"])
def test_variance_is_the_divergence_of_the_denoiser(rng, parameterization):
    dim, estimator = (
        6,
        amp.PenalisedTraining(RiskMinimization(MODEL, weight_decay=0.2, parameterization=parameterization)),
    )

    def denoised(Theta):
        values, vectors = np.linalg.eigh(Theta)
        return (vectors * estimator.denoise(values, 1.3)[0]) @ vectors.T

    Theta = symmetric(rng, dim)
    total, step = 0.0, 1e-6
    for i in range(dim):
        for j in range(i + 1):  # orthonormal directions of symmetric matrices
            E = np.zeros((dim, dim))
            E[i, j] = E[j, i] = 1.0 if i == j else np.sqrt(0.5)
            total += ((denoised(Theta + step * E) - denoised(Theta - step * E)) * E).sum() / (2 * step)
    expected = 2 / dim**2 * total
    np.testing.assert_allclose(estimator.denoise(np.linalg.eigvalsh(Theta), 1.3)[1], expected, rtol=1e-6)  # differences


def test_bayes_denoiser_has_the_error_it_claims(rng):
    dim, Lambda = 300, 3.0
    target = np.diag(MODEL.target.eigenvalues(dim))
    noise = symmetric(rng, dim) * np.sqrt(2)  # the Gaussian orthogonal ensemble
    values, vectors = np.linalg.eigh(Lambda * target + np.sqrt(Lambda) * noise)
    shrunk, V = amp.PosteriorMean(MODEL).denoise(values, Lambda)
    error = (((vectors * shrunk) @ vectors.T - target) ** 2).sum() / dim
    np.testing.assert_allclose(error, V, rtol=0.03)  # fluctuations of order 1/d, and Q_0 - q = 0.19


# -- runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_training_reaches_the_fixed_point_of_state_evolution(alpha):
    numbers = reference("attention_index")
    points = numbers["state_evolution"]["fact_T2_k0.5_lam0.01_D0.5"]["points"]
    theory = next(p for p in points if p["alpha"] == alpha)
    others = [run for run in numbers["amp"] if run["alpha"] == alpha]
    # damped, because one of these runs goes round its fixed point for long
    found = simulate(PROBLEM, MatrixAMP(damping=0.8), alpha=alpha, dim=36, seeds=4, progress=False).ds
    assert found.converged.all()
    names = {"V": "V", "Lambda": "Lam", "m": "m", "q": "q", "train_loss": "loss", "test_error": "test", "rank": "rank"}
    in_theory = {"V": "Sigma", "Lambda": "Sigmahat", "train_loss": "loss", "test_error": "test"}
    for name, key in names.items():
        expected = theory[in_theory.get(name, name)]
        mean, spread = found[name].mean().item(), found[name].std(ddof=1).item()
        theirs = np.array([run[key] for run in others])
        # four standard errors of our four runs, and of their three at d = 50, whose target was drawn at random
        assert abs(mean - expected) < 2 * spread + 0.02 * expected, name
        assert abs(mean - theirs.mean()) < 2 * spread + 3 * theirs.std(ddof=1) + 0.02 * expected, name


@pytest.mark.slow
def test_on_tokens_it_reaches_the_minimum_of_training():
    options = {"alpha": 1.0, "dim": 24, "seeds": 2, "progress": False}
    passed = simulate(PROBLEM, MatrixAMP(iterations=60, sensing="tokens", damping=0.5), **options).ds
    trained = simulate(PROBLEM, Adam(steps=400), **options).ds
    assert passed.converged.all()
    for name in ("train_loss", "m", "q", "estimation_error"):
        # the same data and the same minimum; message passing still moves by less than 1e-3
        np.testing.assert_allclose(passed[name], trained[name], rtol=5e-3)
    np.testing.assert_allclose(passed.eigenvalues, trained.eigenvalues, atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"tokens": 3}, {"activation": "linear"}])
def test_bayes_optimal_learning_stays_on_the_nishimori_line(fields):
    model = replace(MODEL, noise=0.1, **fields)
    found = simulate(BayesOptimal(model), MatrixAMP(), alpha=0.3, dim=36, seeds=3, progress=False).ds
    theory = solve(BayesOptimal(model), alpha=0.3, progress=False)
    assert found.converged.all()
    np.testing.assert_allclose(found.V, theory.estimation_error, rtol=0.2)  # measured on some hundred samples
    np.testing.assert_allclose(found.m.mean(), theory.q, rtol=0.06)  # fluctuations of order 1/d
    np.testing.assert_allclose(found.q.mean(), theory.q, rtol=0.08)
    np.testing.assert_allclose(found.estimation_error.mean(), theory.estimation_error, rtol=0.25)
    # 2^13 fresh samples leave 2 %, the estimation error of small runs the rest
    np.testing.assert_allclose(found.test_error.mean(), theory.test_error, rtol=0.2)


def test_exact_recovery_without_noise():
    problem = BayesOptimal(replace(MODEL, noise=0.0))
    found = simulate(problem, MatrixAMP(), alpha=0.4, dim=24, seeds=2, progress=False).ds
    assert found.converged.all()
    assert (found.estimation_error < 1e-6).all()  # single precision; 0.1 at alpha = 0.15, below the threshold


def test_runs_follow_state_evolution_by_iteration():
    with pytest.warns(ConvergenceWarning):  # six iterations are not enough
        runs = simulate(PROBLEM, MatrixAMP(iterations=6), alpha=1.0, dim=40, seeds=3, progress=False).ds
    expected = PROBLEM.trace(iterations=6, damping=1.0, alpha=1.0)
    for name in ("V", "Lambda", "m", "q"):
        # fluctuations and corrections of order 1/d; from the first to the last iteration V falls by a factor of four
        np.testing.assert_allclose(runs[f"{name}_trace"].mean("seed"), expected[name], rtol=0.12, err_msg=name)


def test_a_strong_penalty_ends_at_zero():
    problem = RiskMinimization(AttentionIndex(noise=0.5), weight_decay=10.0)
    runs = simulate(problem, MatrixAMP(iterations=5), alpha=0.5, dim=20, seeds=2, progress=False)
    assert runs.ok
    assert (runs.q == 0).all()
    theory = solve(problem, alpha=0.5, progress=False)
    assert abs(float(runs.test_error.mean() / theory.test_error) - 1) < 0.1  # a few thousand fresh samples
