"""The sampler as users see it: exact where the answer is a one-dimensional integral, reproducible, resumable."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp

import asymptotix as asx
from asymptotix.attention_paths.sampling import chain_pool, chains
from asymptotix.attention_paths.sampling.nuts import NUTS
from asymptotix.attention_paths.streams import chain_entropy
from asymptotix.core.progress import Progress
from asymptotix.numerics import interrupts

WIDTH, WARMUP = 10, 200


def one_path(temperature: float = 0.05) -> asx.PathPosterior:
    """One layer with one head: U is one number."""
    rng = np.random.default_rng(5)
    network = asx.AttentionPaths(query_key=(np.zeros((1, 6, 6)),), readout="mean")
    labels = 2 * np.sign(rng.standard_normal(30))
    return asx.PathPosterior(network, rng.standard_normal((30, 2, 6)), labels, temperature=temperature)


def exact_moments(problem: asx.PathPosterior, width: int) -> tuple[float, float]:
    """Mean and standard deviation of U, a product of two Gamma variables under the prior, on a grid of ln U."""
    xi = problem.attended[:, 0]
    values, vectors = np.linalg.eigh(xi @ xi.T / xi.shape[1])
    squares = (vectors.T @ problem.labels) ** 2
    grid = np.linspace(-7, 7, 1401)

    def log_gamma_density(t: np.ndarray) -> np.ndarray:
        return 0.5 * width * (t - np.exp(t))

    log_prior = np.array([logsumexp(log_gamma_density(grid) + log_gamma_density(t - grid)) for t in grid])
    scales = np.exp(grid)[:, None] * np.maximum(values, 0) + problem.temperature
    log_p = log_prior - 0.5 * (np.log(scales) + squares / scales).sum(axis=1)
    p = np.exp(log_p - logsumexp(log_p))
    mean = p @ np.exp(grid)
    return float(mean), float(np.sqrt(p @ np.exp(2 * grid) - mean**2))


@pytest.mark.slow
@pytest.mark.parametrize(("space", "width"), [("collapsed", WIDTH), ("weights", 4)])
@pytest.mark.filterwarnings("ignore::asymptotix.ConvergenceWarning")  # of single chains, for a test that is quick
def test_one_path_against_quadrature(space, width):
    problem = one_path()
    mean, deviation = exact_moments(problem, width)
    algorithm = NUTS(space=space, draws=600, warmup=WARMUP)
    runs = asx.simulate(problem, algorithm, width=width, seeds=2, progress=False)
    draws = runs.order_parameter_draws
    assert draws.dims == ("seed", "draw", "path", "path_other")
    error = np.sqrt((runs.order_parameter_err.values**2).sum()) / 2
    assert error < 0.08 * deviation  # at least 160 of the 1200 draws count
    assert abs(float(runs.order_parameter.mean()) - mean) < 4 * error
    # The relative error of a standard deviation is about that of the mean in units of it, over sqrt 2, times a
    # heavier tail.
    assert abs(float(draws.std()) - deviation) < 6 * error
    assert float(runs.r_hat.max()) < 1.05
    assert (runs.cpu_seconds > 0).all()
    if space == "weights":
        w = runs["path_weights_draws"]
        assert w.dims == ("seed", "draw", "path", "feature")
    check_predictions(problem, runs)
    assert asx.compare(asx.solve(problem, width=width, progress=False), runs).names == ("order_parameter",)


def check_predictions(problem: asx.PathPosterior, runs: asx.Result) -> None:
    """Sampled results predict by averages over their draws, given U exactly, or over the weights' own outputs."""
    new = np.random.default_rng(6).standard_normal((4, 2, 6))
    mean, variance = runs.predict(new)
    assert mean.dims == ("seed", "example")
    xi, train = problem.network.attended(new)[:, 0], problem.attended[:, 0]
    for chain in range(2):
        if "path_weights_draws" in runs.ds:
            f = runs["path_weights_draws"].values[chain, :, 0] @ xi.T
            expected = f.mean(0), f.var(0)
        else:
            U = runs.order_parameter_draws.values[chain, :, 0, 0]
            at = [gaussian_process(u / 6, xi, train, problem) for u in U]
            means, variances = (np.array(part) for part in zip(*at, strict=True))
            expected = means.mean(0), variances.mean(0) + means.var(0)
        np.testing.assert_allclose(mean[chain], expected[0], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(variance[chain], expected[1], rtol=1e-9, atol=1e-12)
    assert runs.evaluate(new, np.full(4, 2.0)).accuracy.dims == ("seed",)
    assert runs.alignment(3).shape == (2, 3)


def gaussian_process(scale: float, new: np.ndarray, train: np.ndarray, problem: Any) -> tuple[np.ndarray, np.ndarray]:
    K, k = scale * train @ train.T + problem.temperature * np.eye(len(train)), scale * new @ train.T
    solved = np.linalg.solve(K, k.T)
    return solved.T @ problem.labels, scale * (new**2).sum(1) - (k * solved.T).sum(1)


def outcomes(problem: Any, seeds: list[int], earlier: Mapping | None = None, **options: Any) -> dict[int, asx.Outcome]:
    settings: dict[str, Any] = {"draws": 60, "warmup": WARMUP} | options
    algorithm = NUTS(**settings)
    points, silent = [{"width": float(WIDTH)}], Progress(None, "", enabled=False)
    found = algorithm.resume_points(problem, points, dim=None, seeds=seeds, earlier=earlier or {}, progress=silent)
    return {seeds[k]: outcome for _, k, outcome in found}


def interrupted(problem: Any, seeds: list[int], at: int, monkeypatch: pytest.MonkeyPatch) -> dict[int, asx.Outcome]:
    """What is yielded where Ctrl-C comes when every chain has done so many iterations, before it is raised."""

    def wait(running: Mapping, **options: Any) -> Any:
        if min(chain.iterations for chain in running.values()) >= at:
            raise KeyboardInterrupt
        return original(running, **options)

    original = chain_pool.wait
    algorithm = NUTS(draws=60, warmup=WARMUP)
    points, silent = [{"width": float(WIDTH)}], Progress(None, "", enabled=False)
    running = algorithm.run_points(problem, points, dim=None, seeds=seeds, progress=silent)
    with monkeypatch.context() as patch:
        patch.setattr(chain_pool, "wait", wait)
        patch.setattr(interrupts, "SECONDS_PER_CALL", 1e-4)  # blocks of one iteration
        found = {k: outcome for _, k, outcome in (next(running) for _ in seeds)}
        with pytest.raises(KeyboardInterrupt):
            next(running)
    return found


@pytest.mark.slow
def test_draws_belong_to_the_seed():
    problem = one_path()
    alone, among = outcomes(problem, [3]), outcomes(problem, [0, 3])
    np.testing.assert_array_equal(alone[3].values["order_parameter_draws"], among[3].values["order_parameter_draws"])
    assert abs(among[0].values["order_parameter_draws"] - among[3].values["order_parameter_draws"]).min() > 0


@pytest.mark.slow
@pytest.mark.parametrize("thin", [1, 3])
def test_thinning_takes_every_kth(thin):
    problem = one_path()
    every = outcomes(problem, [0], draws=60)[0].values["order_parameter_draws"]
    thinned = outcomes(problem, [0], draws=60 // thin, thin=thin)[0].values["order_parameter_draws"]
    np.testing.assert_array_equal(thinned, every[thin - 1 :: thin])


@pytest.mark.parametrize("at", [30, WARMUP + 10])
@pytest.mark.slow
def test_an_interrupted_chain_goes_on(at, monkeypatch):
    """Stopped in warm-up or between draws; the chain that is not stopped is cut into other blocks."""
    problem = one_path()
    whole = outcomes(problem, [0, 7])
    parts = interrupted(problem, [0, 7], at, monkeypatch)
    assert sorted(parts) == [0, 1]
    counts = [len(parts[k].values["order_parameter_draws"]) for k in (0, 1)]
    assert max(counts) < 60
    assert (min(counts) >= 10) == (at > WARMUP)
    assert parts[0].sentence == f"interrupted after {counts[0]} of 60 draws"
    assert not parts[0].converged
    padded = {(0, k): as_assembled(parts[k].values, 60) for k in (0, 1)}
    final = outcomes(problem, [0, 7], earlier=padded)
    for seed in (0, 7):
        for name, value in whole[seed].values.items():
            if name != "cpu_seconds":
                np.testing.assert_array_equal(final[seed].values[name], value, err_msg=name)
        assert (final[seed].how, final[seed].sentence) == (whole[seed].how, whole[seed].sentence)
        assert "chain_state" not in final[seed].values


@pytest.mark.slow
def test_finished_chains_are_judged_with_those_that_are_added(monkeypatch):
    """A chain that has ended leaves no state; it is not run again, and R-hat is that of one call with both."""
    problem = one_path()
    together, alone = outcomes(problem, [0, 7]), outcomes(problem, [0])
    assert alone[0].values["r_hat"] != together[0].values["r_hat"]
    started = []
    start = chains.Chain.__init__

    def begin(self, *given):
        started.append(given[-1])
        start(self, *given)

    monkeypatch.setattr(chains.Chain, "__init__", begin)
    final = outcomes(problem, [0, 7], earlier={(0, 0): alone[0].values})
    assert started == [chain_entropy(7, (WIDTH, WIDTH))]
    for seed in (0, 7):
        assert set(final[seed].values) == set(together[seed].values)
        for name, value in together[seed].values.items():
            if name != "cpu_seconds":
                np.testing.assert_array_equal(final[seed].values[name], value, err_msg=name)
        assert (final[seed].how, final[seed].sentence) == (together[seed].how, together[seed].sentence)
    assert final[0].values["cpu_seconds"] == alone[0].values["cpu_seconds"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::asymptotix.ConvergenceWarning")  # of so few draws
def test_chains_can_be_added_to_a_result(tmp_path):
    problem, algorithm = one_path(), NUTS(draws=60, warmup=WARMUP)
    asx.simulate(problem, algorithm, width=WIDTH, seeds=1, progress=False).save(tmp_path / "one.nc")
    both = asx.simulate(problem, algorithm, width=WIDTH, seeds=2, resume=tmp_path / "one.nc", progress=False)
    whole = asx.simulate(problem, algorithm, width=WIDTH, seeds=2, progress=False)
    np.testing.assert_array_equal(both.order_parameter_draws, whole.order_parameter_draws)
    np.testing.assert_array_equal(both.r_hat, whole.r_hat)
    np.testing.assert_array_equal(both.status, whole.status)


def test_no_chain_begins_a_block_while_a_signal_waits(monkeypatch):
    monkeypatch.setattr(chain_pool.interrupts, "waiting", lambda: True)
    idle: Any = object()  # it could not advance
    assert chain_pool._advance(idle) == 0


def test_impatient_interrupts_wait_for_the_chains():
    """Ctrl-C pressed again while chains finish their blocks: nothing is read before they have."""

    class Pool:
        calls = 0

        def shutdown(self, **_: Any) -> None:
            self.calls += 1
            if self.calls < 3:
                raise KeyboardInterrupt

    pool: Any = Pool()
    with pytest.raises(KeyboardInterrupt):
        chain_pool._settle(pool)
    assert pool.calls == 3


def test_chain_whose_draws_do_not_fit_its_state_is_refused(monkeypatch):
    problem = one_path()
    part = interrupted(problem, [0], WARMUP + 10, monkeypatch)[0]
    values = dict(part.values)
    values["order_parameter_draws"] = values["order_parameter_draws"][:-1]
    with pytest.raises(ValueError, match=r"must hold the .* draws that its state tells of"):
        outcomes(problem, [0], earlier={(0, 0): values})


def test_draws_beyond_memory_are_refused(monkeypatch):
    monkeypatch.setattr("asymptotix.numerics.memory.physical_memory", lambda: 2**30)
    with pytest.raises(MemoryError, match=r"3 runs of 100000000 draws.*fewer draws or seeds"):
        asx.simulate(one_path(), NUTS(draws=10**8), width=WIDTH, seeds=3, progress=False)


@pytest.mark.filterwarnings("ignore::asymptotix.ConvergenceWarning")  # of so few draws
def test_interrupted_call_is_resumed_from_its_file(tmp_path, monkeypatch):
    problem, algorithm = one_path(), NUTS(draws=60, warmup=WARMUP)
    whole = asx.simulate(problem, algorithm, width=WIDTH, seeds=2, progress=False)
    original = chain_pool.wait

    def wait(running: Mapping, **options: Any) -> Any:
        if min(chain.iterations for chain in running.values()) >= WARMUP + 5:
            raise KeyboardInterrupt
        return original(running, **options)

    with monkeypatch.context() as patch:
        patch.setattr(chain_pool, "wait", wait)
        patch.setattr(interrupts, "SECONDS_PER_CALL", 1e-4)
        with pytest.warns(RuntimeWarning, match="interrupted: 0 of 2 points"):
            part = asx.simulate(problem, algorithm, width=WIDTH, seeds=2, progress=False)
    assert all(str(status).startswith("interrupted after") for status in part.status.values)
    assert part.predict(np.ones((1, 2, 6)))[0].notnull().all()
    part.save(tmp_path / "part.nc")
    resumed = asx.simulate(problem, algorithm, width=WIDTH, seeds=2, resume=tmp_path / "part.nc", progress=False)
    np.testing.assert_array_equal(resumed.order_parameter_draws, whole.order_parameter_draws)
    assert "chain_state" not in resumed.ds


def as_assembled(values: Mapping[str, Any], draws: int) -> dict[str, np.ndarray]:
    """Padded with NaN along the draws and the state, and without what is NaN throughout, as in a saved result."""
    found = {name: np.asarray(value, float) for name, value in values.items()}
    rows = found["order_parameter_draws"]
    found["order_parameter_draws"] = np.concatenate([rows, np.full((draws - len(rows), *rows.shape[1:]), np.nan)])
    found["chain_state"] = np.append(found["chain_state"], np.nan)
    return {name: value for name, value in found.items() if not np.isnan(value).all()}


def test_few_draws_are_not_called_converged():
    found = outcomes(one_path(), [0], draws=12)[0]
    assert not found.converged
    assert "effective sample size" in found.sentence
    assert "raise draws" in found.sentence


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::asymptotix.ConvergenceWarning")  # of so few draws
def test_two_outputs_and_unequal_widths():
    rng = np.random.default_rng(9)
    network = asx.AttentionPaths(query_key=(rng.normal(size=(2, 4, 4)),), readout=0)
    inputs, labels = rng.normal(size=(12, 3, 4)), rng.normal(size=(12, 2))
    problem = asx.PathPosterior(
        network, inputs, labels, temperature=0.5, prior_variance=(0.8, 1.2, 0.9), width_ratios=(0.5, 1.0)
    )
    runs = asx.simulate(problem, NUTS(draws=30, warmup=20), width=6, seeds=1, progress=False)
    dims = ("path", "output", "path_other", "output_other")
    assert runs.order_parameter_draws.dims == ("seed", "draw", *dims)
    U = runs.order_parameter_draws.values[0].reshape(30, 4, 4)
    np.testing.assert_allclose(U, U.swapaxes(1, 2), atol=1e-14)
    # Below four paths times outputs, N_1 = 3 is the rank of every draw.
    assert {int(np.linalg.matrix_rank(u, tol=1e-9 * np.trace(u))) for u in U} == {3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"space": "prior"}, "space must be one of"),
        ({"draws": 0}, "draws must be an integer of at least 4"),
        ({"warmup": 5}, "warmup must be"),
        ({"thin": 1.5}, "thin must be"),
        ({"target_accept": 1.0}, r"target_accept must be in \(0, 1\), got 1.0"),
    ],
)
def test_bad_options(change, message):
    with pytest.raises(ValueError, match=message):
        NUTS(**change)


def test_bad_problems_and_widths():
    with pytest.raises(TypeError, match="NUTS runs on PathPosterior"):
        asx.simulate(asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2, rank=1)), NUTS(), alpha=1.0, seeds=1)
    for width, message in ((np.inf, "width must be finite to be sampled"), (10.5, "whole numbers.*got 10.5")):
        with pytest.raises(ValueError, match=message):
            asx.simulate(one_path(), NUTS(), width=width, seeds=1, progress=False)


def test_the_stream_of_a_chain_is_its_seed_and_its_widths():
    """Other numbers would be other chains than those that were saved before."""
    assert chain_entropy(0, (10, 12)) == (0, 10, 12)
