"""Message passing: its options, what is measured on a run, the spectral start, and runs against state evolution."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import (
    GAMP,
    BayesOptimal,
    ConvergenceWarning,
    DeepAttention,
    MultiIndex,
    Result,
    compare,
    simulate,
    solve,
)
from asymptotix.core.status import Status
from asymptotix.numerics.quadrature import sobol_normals
from asymptotix.sequence_index.algorithms import message_passing as mp
from asymptotix.sequence_index.algorithms.data_sets import draw_data
from asymptotix.sequence_index.algorithms.estimate_quality import estimation_error, fresh_errors, overlaps, settled
from asymptotix.sequence_index.algorithms.schedule import joint_stage
from asymptotix.sequence_index.algorithms.spectral_start import spectral_start
from asymptotix.sequence_index.algorithms.spectral_theory import SpectralTheory, spectral_theory
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.channels.protocol import Averager, Averages, Channel
from asymptotix.sequence_index.evolution.averages import QuasiRandomAverager
from asymptotix.sequence_index.evolution.fixed_points import StateEvolution
from asymptotix.sequence_index.observables import prediction_errors
from toy import ToyLearning, ToyRegression

ONE_LAYER = DeepAttention(layers=1, tokens=2)
TWO_LAYERS = DeepAttention(layers=2, tokens=2)


@pytest.fixture
def two_layers() -> Channel:
    return channel_of(TWO_LAYERS)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# -- options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": "warm"}, "start"),
        ({"variances": "exact"}, "variances"),
        ({"damping": 1.5}, "damping"),
        ({"damping": 0.0}, "damping"),
        ({"iterations": 0}, "iterations"),
        ({"jitter": -1e-3}, "jitter"),
        ({"start": "random"}, "variances='empirical'"),
        ({"start": "random", "variances": "state_evolution"}, "variances='empirical'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GAMP(**options)


def test_algorithm_1_is_what_was_published():
    expected = GAMP(start="random", variances="empirical", iterations=7, damping=0.8, jitter=1e-3)
    assert GAMP.algorithm1(iterations=7) == expected


def test_other_problems_are_refused():
    with pytest.raises(TypeError, match="ToyLearning"):
        simulate(ToyLearning(ToyRegression()), GAMP(), alpha=1.0, dim=20, seeds=1, progress=False)


def test_start_must_fit_the_side_information():
    with pytest.raises(ValueError, match="side_information > 0"):
        GAMP(start="side_information").check(BayesOptimal(ONE_LAYER))
    with pytest.raises(ValueError, match="without side information"):
        GAMP(start="staged").check(BayesOptimal(ONE_LAYER, side_information=0.1))


def test_only_runs_from_side_information_are_followed_by_iteration():
    with pytest.raises(ValueError, match="side information"):
        GAMP().trace_options(BayesOptimal(ONE_LAYER))
    options = GAMP(iterations=9, damping=0.7).trace_options(BayesOptimal(ONE_LAYER, side_information=0.1))
    assert options == {"iterations": 9, "damping": 0.7}


# -- what is measured ----------------------------------------------------------------------------------------


def test_overlap_of_the_teacher_is_one(rng, two_layers):
    teacher = rng.normal(size=(3, 2, 400))
    found = overlaps(jnp.asarray(2.5 * teacher), jnp.asarray(teacher), two_layers)
    assert np.allclose(np.einsum("spp->sp", found), 1, rtol=1e-5)  # single precision
    cosine = (teacher[:, 0] * teacher[:, 1]).sum(1) / np.linalg.norm(teacher, axis=2).prod(1)
    assert np.allclose(found[:, 0, 1], cosine, atol=1e-5)  # single precision


def test_overlap_does_not_depend_on_signs(rng, two_layers):
    teacher, noise = rng.normal(size=(2, 1, 2, 400))
    W = jnp.asarray(0.6 * teacher + 0.8 * noise)
    expected = overlaps(W, teacher, two_layers)
    signs = jnp.asarray([[[-1.0], [1.0]]])
    assert np.allclose(overlaps(-W, teacher, two_layers), expected, atol=1e-6)  # single precision
    assert np.allclose(overlaps(signs * W, teacher, two_layers), expected, atol=1e-6)  # single precision
    assert np.isfinite(expected).all()
    assert (overlaps(0 * W, teacher, two_layers) == 0).all()


def test_estimation_error(rng, two_layers):
    teacher = rng.normal(size=(2, 20_000))
    assert abs(estimation_error(teacher, teacher, two_layers)) < 1e-12  # rounding of numbers of order one
    assert abs(estimation_error(-teacher, teacher, two_layers)) < 1e-12
    # |W* W*^T / D|^2 = P + O(1/sqrt(D)), 4 sigma
    assert abs(estimation_error(0 * teacher, teacher, two_layers) - 2) < 0.08


@pytest.mark.parametrize("model", [ONE_LAYER, TWO_LAYERS], ids=["one layer", "two layers"])
def test_no_error_at_the_teacher(rng, model):
    channel = channel_of(model)
    teacher = rng.normal(size=(channel.indices, 2000))
    bayes, plugin = fresh_errors(channel, teacher, teacher, 1e-12 * np.eye(channel.indices))
    # The ridge 1e-12 of the covariance moves the fields by 1e-6. That flips few of the signs seen by one layer.
    assert max(bayes, plugin) < 1e-3


@pytest.mark.parametrize(
    ("model", "q"), [(ONE_LAYER, [0.7]), (TWO_LAYERS, [0.5, 0.8])], ids=["one layer", "two layers"]
)
def test_fresh_errors_agree_with_theory_on_the_nishimori_line(rng, model, q):
    channel, q = channel_of(model), np.array(q)
    teacher, noise = rng.normal(size=(2, len(q), 20_000))
    W = q[:, None] * teacher + np.sqrt(q * (1 - q))[:, None] * noise
    found = fresh_errors(channel, W, teacher, np.diag(1 - q))
    expected = prediction_errors(channel, np.diag(1 - q)).value
    # W at finite D gives 1 %, 2^12 fresh samples 1 %; 2^7 posterior draws add 1/2^7 of the Bayes error
    np.testing.assert_allclose(found, expected, rtol=0.03)


# -- the spectral start --------------------------------------------------------------------------------------


def limit_of_spectral_start(channel: Channel, alpha: float) -> SpectralTheory:
    Z, weights, _, posterior = QuasiRandomAverager(channel, 2**12, 1, seed=6).samples(np.eye(1))
    return spectral_theory(alpha, posterior.covariance, Z, weights)


@pytest.mark.slow
def test_spectral_start_against_theory():
    channel, alpha, dim = channel_of(ONE_LAYER), 0.6, 1500
    expected = limit_of_spectral_start(channel, alpha)
    cosines, eigenvalues = [], []
    for seed in range(3):
        data = draw_data(channel, round(alpha * dim), dim, [seed], 0.0)
        state = mp.MessageState.at_prior(channel, data)
        covariance = mp.covariance_along(channel, data, state, np.eye(1), np.zeros((1, 1)))
        found = spectral_start(data.tokens, covariance[0], seed, np.eye(1), expected)
        teacher = np.asarray(data.teacher[0, 0], float)
        vector = np.asarray(found.vectors[0], float)
        np.testing.assert_allclose(vector @ vector / dim, expected.gram.item(), rtol=1e-5)  # single precision
        cosines.append((vector @ teacher) ** 2 / (teacher @ teacher) / (vector @ vector))
        eigenvalues.append(found.eigenvalue)
    assert expected.overlap.item() > 0.2
    assert abs(np.mean(cosines) - expected.overlap.item()) < 0.08  # seeds differ by some 0.04 at this size
    assert abs(np.mean(eigenvalues) / expected.eigenvalue - 1) < 0.1  # of order 1/sqrt(D) = 0.03


def test_spectral_start_knows_nothing_below_threshold():
    assert limit_of_spectral_start(channel_of(ONE_LAYER), 0.12).overlap.item() == 0


# -- runs ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_layer_runs() -> Result:
    problem = BayesOptimal(ONE_LAYER)
    return simulate(problem, GAMP(iterations=15), alpha=0.45, dim=600, seeds=4, progress=False)


def test_one_layer_reaches_the_fixed_point(one_layer_runs):
    expected = solve(BayesOptimal(ONE_LAYER), alpha=0.45, progress=False).overlap.item()
    found = one_layer_runs.overlap.values.ravel()
    sem = found.std(ddof=1) / np.sqrt(len(found))
    assert abs(found.mean() - expected) < 4 * sem + 0.05  # a bias of about 1/sqrt(D) is left at D = 600


def test_a_run_is_converged_where_its_last_iterations_stand_still(one_layer_runs):
    """The statements of a run against its own trace: a step or a drift that exceeds the tolerance, or neither."""
    trace = one_layer_runs.overlap_trace.values[..., 0, 0].reshape(4, -1)
    moving = abs(np.diff(trace[:, -4:], axis=1)).max(1)
    (slope, _), variance = np.polyfit(np.arange(8), trace[:, -8:].T, 1, cov=True)
    late, _ = np.polyfit(np.arange(4), trace[:, -4:].T, 1)
    drift = np.where(slope * late > 0, np.minimum(abs(slope), abs(late)), 0)
    drifts = (7 * drift >= 1e-2) & (abs(slope) > 3 * np.sqrt(variance[0, 0]))
    begins = "not converged: the overlap still"
    said = np.where(drifts, [f"{begins} drifts by {size:.2g} per iteration" for size in drift], "converged")
    said = np.where(moving < 1e-2, said, [f"{begins} moves by {size:.2g} per iteration" for size in moving])
    found = one_layer_runs.status.values.ravel().astype(str)
    assert [words.startswith(start) for words, start in zip(found, said, strict=True)] == [True] * 4, found
    assert (one_layer_runs.converged.values.ravel() == (said == "converged")).all()
    assert drifts[moving < 1e-2].any()  # what fifteen iterations are too few for


@pytest.mark.filterwarnings("ignore:3 of 3 points:asymptotix.ConvergenceWarning")  # fifteen iterations are few
def test_runs_that_were_given_time_are_converged():
    runs = simulate(BayesOptimal(ONE_LAYER), GAMP(iterations=60), alpha=0.45, dim=300, seeds=3, progress=False)
    assert runs.ok, runs.status.values
    short = simulate(BayesOptimal(ONE_LAYER), GAMP(iterations=15), alpha=0.45, dim=300, seeds=3, progress=False)
    assert not short.converged.any()
    assert [str(words).startswith("not converged: the overlap still") for words in short.status.values] == [True] * 3
    away = abs(short.overlap - runs.overlap).values.ravel()
    assert np.median(away) > 1e-2  # they were further than the tolerance from where they went


@pytest.mark.parametrize(
    ("overlap", "share", "status"),
    [
        ([0.1, 0.5, 0.5, 0.5, 0.505], 1.0, Status.CONVERGED),
        ([0.5, 0.1, 0.5, 0.5, 0.5], 1.0, Status.NOT_CONVERGED),  # within the last four
        ([0.1, 0.5, 0.5, 0.5, 0.505], 0.1, Status.NOT_CONVERGED),  # damped to a tenth
        ([0.5], 1.0, Status.NOT_CONVERGED),
        (np.linspace(0.5, 0.54, 12), 1.0, Status.NOT_CONVERGED),  # 0.025 over the last eight
        (np.linspace(0.5, 0.51, 12), 1.0, Status.CONVERGED),  # 0.006
        (np.linspace(0.5, 0.51, 12), 0.5, Status.NOT_CONVERGED),  # 0.013, had the steps been taken in full
        ([0.34, 0.35, 0.36, 0.37, 0.376, 0.38, 0.38, 0.38, 0.38], 1.0, Status.CONVERGED),  # it has come to its end
        ([0.0, 0.0, 0.0, 0.2, 0.2, 0.2, 0.2], 1.0, Status.CONVERGED),  # a stage begins: no drift
        (0.5 + 0.004 * np.array([1, -1, 1, 1, -1, 1, -1, -1]), 1.0, Status.CONVERGED),  # noise of that size
    ],
)
def test_what_counts_as_settled(overlap, share, status):
    assert settled(np.array(overlap)[:, None, None], 1e-2, share)[0] is status


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:2 of 2 points:asymptotix.ConvergenceWarning")  # four iterations are few
def test_a_run_that_loses_samples_is_over_and_the_others_go_on(monkeypatch):
    """NaN from the channel in iteration 3 of one of two runs: what is reported of it ends before."""
    problem, options = BayesOptimal(ONE_LAYER, side_information=0.2), {"alpha": 0.8, "dim": 40, "progress": False}
    whole = simulate(problem, GAMP(iterations=4), seeds=2, **options)
    kind = type(problem.theory.channel)
    original, calls = kind.posterior, []

    def posterior(self, observation, omega, V, *rest, **named):
        found = original(self, observation, omega, V, *rest, **named)
        calls.append(len(omega))
        if calls.count(64) == 5 and len(omega) == 64:  # two runs of 32 samples, after two posteriors that are timed
            found = found._replace(shift=jnp.asarray(found.shift).at[5].set(np.nan))
        return found

    monkeypatch.setattr(kind, "posterior", posterior)
    with pytest.warns(ConvergenceWarning, match="failed: the channel lost 1 of 32 samples after 2 iterations"):
        runs = simulate(problem, GAMP(iterations=4), seeds=2, **options)
    assert runs.status_code.values[0] == "failed"
    assert np.isnan(runs.overlap.values[0]).all()
    assert np.isnan(runs.test_error.values[0])
    np.testing.assert_array_equal(runs.overlap_trace.values[0, :2], whole.overlap_trace.values[0, :2])
    assert np.isnan(runs.overlap_trace.values[0, 2:]).all()
    np.testing.assert_array_equal(runs.overlap_trace.values[1], whole.overlap_trace.values[1])


@pytest.mark.slow
def test_draws_of_a_posterior_do_not_depend_on_the_other_runs(monkeypatch, two_layers):
    """A channel whose draws go by the numbers of the samples: in a batch, alone, and in blocks."""

    def posterior(observation: Any, omega: Any, V: Any, accuracy: Any) -> Any:
        drawn = jnp.asarray(accuracy.numbers, jnp.float32)[:, None, None]
        return SimpleNamespace(shift=omega + drawn, covariance=jnp.zeros((len(omega), 2, 2, 2, 2)))

    monkeypatch.setattr(two_layers, "posterior", posterior)

    def shift(seeds: list[int], rows: slice) -> np.ndarray:
        data = draw_data(two_layers, 6, 20, seeds, 0.0)
        state = mp.MessageState.at_prior(two_layers, data)
        fields = data.tokens.fields(data.teacher)[:, rows]
        return np.asarray(mp.posterior_at(two_layers, data, state, rows, fields, np.eye(2)).shift)[-1]

    alone = shift([3], slice(0, 6))
    np.testing.assert_allclose(shift([2, 3], slice(0, 6)), alone, rtol=1e-5)  # single precision
    np.testing.assert_allclose(shift([3], slice(4, 6)), alone[4:], rtol=1e-5)


def test_a_plan_that_is_not_finite_is_refused():
    """State evolution that yields NaN at some step, which the test for steadiness would take for no change."""

    class Unknown(Averager):
        def __call__(self, V: np.ndarray) -> Averages:
            return Averages(*(np.full(shape, np.nan) for shape in ((1, 1, 1), 1, (1, 1))))

    evolution: Any = BayesOptimal(ONE_LAYER, side_information=0.1).theory.state_evolution
    with pytest.raises(FloatingPointError, match="no finite precision"):
        joint_stage(evolution, Unknown(), 0.5, iterations=3, damping=1.0)


def test_stages_and_traces_of_a_run(one_layer_runs):
    trace = one_layer_runs.overlap_trace
    assert trace.sizes["iteration"] <= 15
    last = trace.ffill("iteration").isel(iteration=-1) if trace.isnull().any() else trace.isel(iteration=-1)
    np.testing.assert_array_equal(last.values, one_layer_runs.overlap.values)
    assert (one_layer_runs.variance > 0).all()
    assert (one_layer_runs.plugin_error >= one_layer_runs.test_error).all()


@pytest.mark.slow
def test_a_seed_gives_the_same_run_in_any_batch():
    problem, options = BayesOptimal(ONE_LAYER), {"alpha": 0.6, "dim": 200, "progress": False}
    alone = simulate(problem, GAMP(iterations=5), seeds=[3], **options)
    second = simulate(problem, GAMP(iterations=5), seeds=[2, 3], **options)
    a, b = (runs.overlap.values.reshape(-1)[-1] for runs in (alone, second))
    np.testing.assert_allclose(a, b, rtol=1e-4)  # single-precision sums, whose order depends on the batch


@pytest.mark.slow
def test_two_layers_follow_state_evolution_by_iteration():
    problem = BayesOptimal(TWO_LAYERS, side_information=0.05)
    theory = solve(problem, alpha=1.2, tolerance=0.05, progress=False)
    runs = simulate(problem, GAMP(iterations=6), alpha=1.2, dim=300, seeds=3, progress=False)
    found = compare(theory, runs, by="iteration").ds
    assert found.sizes["iteration"] == 6
    distance = abs(found.overlap_mean - found.overlap_theory).values.reshape(-1, 2, 2)
    assert np.einsum("tpp->tp", distance).mean() < 0.08  # finite size: about 1/sqrt(D) = 0.06


# -- overlaps that are full matrices -------------------------------------------------------------------------


def test_projected_overlap_is_the_overlap_whatever_the_symmetry(rng):
    Q = np.array([[0.7, 0.2], [0.2, 0.5]])
    teacher, noise = rng.normal(size=(2, 1, 2, 50_000))
    root = np.linalg.cholesky(Q - Q @ Q)
    W = Q @ teacher + root @ noise
    channel = channel_of(MultiIndex(lambda z: z[0] * z[1], indices=2))
    found = overlaps(W, teacher, channel)[0]
    assert abs(found - Q).max() < 0.02  # 4/sqrt(D)
    for change in (np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[0.6, -0.8], [0.8, 0.6]])):
        assert abs(overlaps(change @ W, teacher, channel)[0] - found).max() < 1e-4  # products in single precision
    assert abs(overlaps(teacher, teacher, channel)[0] - np.eye(2)).max() < 1e-4
    assert (overlaps(0 * W, teacher, channel) == 0).all()


@pytest.mark.slow
def test_one_visible_direction_of_two_follows_its_closed_form():
    """y = z_1 + z_2 is noiseless regression along (1, 1)/sqrt2: Q = alpha there, nothing elsewhere."""
    problem = BayesOptimal(MultiIndex(lambda z: z[0] + z[1], indices=2))
    runs = simulate(problem, GAMP(iterations=30), alpha=0.6, dim=1500, seeds=2, progress=False)
    expected = 0.3 * np.ones((2, 2))
    assert abs(runs.overlap.values.reshape(2, 2, 2) - expected).max() < 0.08  # 3/sqrt(D)
    assert runs.ds.stage_trace.max() == 0  # it starts by itself
    assert np.isnan(runs.ds.eigenvalue.values).all()


@pytest.mark.slow
def test_full_matrix_overlaps_follow_state_evolution_by_iteration():
    problem = BayesOptimal(MultiIndex(lambda z: z[0] + 0.5 * z[1], indices=2, noise=0.1), side_information=0.2)
    theory = solve(problem, alpha=0.8, tolerance=0.05, progress=False)
    runs = simulate(problem, GAMP(iterations=6), alpha=0.8, dim=2000, seeds=2, progress=False)
    found = compare(theory, runs, by="iteration").ds
    assert abs(found.overlap_mean - found.overlap_theory).max() < 0.07  # 3/sqrt(D)


@pytest.mark.full
def test_spectral_start_of_two_directions_against_theory():
    """Of y = z_1 z_2 the combinations z_1 + z_2 and z_1 - z_2 enter together, each with a sign of its own."""
    channel, alpha, dim = channel_of(MultiIndex(lambda z: z[0] * z[1], indices=2)), 3.0, 800
    Z, weights, _, posterior = QuasiRandomAverager(channel, 2**10, 1, seed=6).samples(np.eye(2))
    expected = spectral_theory(alpha, posterior.covariance, Z, weights)
    data = draw_data(channel, round(alpha * dim), dim, [0], 0.0)
    state = mp.MessageState.at_prior(channel, data)
    covariance = mp.covariance_along(channel, data, state, np.eye(2), np.zeros((2, 2)))
    found = spectral_start(data.tokens, covariance[0], 0, np.eye(2), expected)
    assert np.allclose(found.vectors @ found.vectors.T / dim, expected.gram, atol=1e-5)  # single precision
    cosines = overlaps(found.vectors[None], data.teacher, channel)[0]
    assert np.diag(expected.overlap).min() > 0.4
    assert abs(np.diag(cosines) - np.diag(expected.overlap)).max() < 0.12  # 3/sqrt(D), and the bias 2/D
    assert expected.multiplicity == 2
    assert abs(found.eigenvalue / expected.eigenvalue - 1) < 0.2  # the lesser of two that scatter by 2/sqrt(D)


@pytest.mark.parametrize("seed", [pytest.param(3, marks=pytest.mark.slow), 11])
def test_a_surplus_of_one_sign_hides_no_direction(seed):
    """Without the term A a surplus of y = 1 in sign(z_1 z_2) lifts the bulk of one direction above the other."""
    channel, alpha, dim = channel_of(MultiIndex(lambda z: jnp.sign(z[0] * z[1]), indices=2)), 5.0, 300

    def covariance(y):
        """Cov[z|y] (n, 2, 1, 2, 1) without a channel: variances one and E[z_1 z_2|y] = 2 y / pi."""
        return (np.eye(2) + 2 / np.pi * np.reshape(y, (-1, 1, 1)) * np.eye(2)[::-1])[:, :, None, :, None]

    Z = sobol_normals(2**10, 2, 0)
    expected = spectral_theory(alpha, covariance(np.sign(Z[:, 0] * Z[:, 1])), Z[:, :, None], np.ones(len(Z)))
    # With c = 2/pi the overlap s solves c^2 s^2 - alpha c^2 s + alpha c^2 = 1.
    exact = (alpha - np.sqrt(alpha**2 - 4 * alpha + np.pi**2)) / 2
    assert expected.multiplicity == 2
    assert abs(expected.overlap - exact * np.eye(2)).max() < 0.03  # 1/sqrt(nodes)
    data = draw_data(channel, round(alpha * dim), dim, [seed], 0.0)
    y = np.prod(np.sign(data.tokens.fields(data.teacher)[0, :, :, 0]), axis=1)
    found = spectral_start(data.tokens, covariance(y), seed, np.eye(2), expected)
    cosines = overlaps(found.vectors[None], data.teacher, channel)[0]
    assert abs(np.linalg.eigvalsh(cosines) - exact).max() < 0.18  # 3/sqrt(D); of a lost direction it is zero


class Scattered(Averager):
    """Averages from draws: E[g g^T] of an index that is not learned comes out a little below zero."""

    def __call__(self, V: np.ndarray) -> Averages:
        return Averages(np.diag([-1e-4, 2.0])[None], np.zeros(1), np.ones((1, 2)))


def test_noise_of_the_averages_makes_no_variance_larger_than_that_of_the_prior(two_layers):
    stage = joint_stage(StateEvolution(two_layers, 0.1), Scattered(), 0.5, iterations=3, damping=1.0)
    np.testing.assert_allclose(stage.V[1:, 0, 0], 0.9, rtol=1e-12)  # rounding: that of the side information
    np.testing.assert_allclose(stage.V[1:, 1, 1], 1 / (1 / 0.9 + 1.0), rtol=1e-12)
