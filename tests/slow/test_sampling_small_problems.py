"""Both samplers and the theory on small problems: against independent calculations and against each other."""

from typing import Any

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.attention_paths.predictors.draws_average import predict_draws, predict_path_weights
from asymptotix.attention_paths.sampling.nuts import NUTS
from reference_numbers import reference

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::asymptotix.ConvergenceWarning")]

#: Standard errors that two estimates may be apart; some fifty entries are compared per problem.
APART = 4.5


def small_problem(L: int, H: int, P: int, N0: int, Ttok: int, temp: float, seed: int, **_: Any):
    """Labels of a teacher that uses the first and the last path; five test examples."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((P + 5, N0, Ttok)).transpose(0, 2, 1)
    query_key = [rng.standard_normal((H, N0, N0)) * 2 / N0 for _ in range(L)]
    network = asx.AttentionPaths(query_key=query_key, readout="mean")
    xi, w = network.attended(x), rng.standard_normal(N0)
    labels = np.sign(xi[:, 0] @ w - 0.5 * xi[:, -1] @ w)
    return asx.PathPosterior(network, x[:P], labels[:P], temperature=temp), xi[P:]


def estimate(runs: asx.Result) -> tuple[np.ndarray, np.ndarray]:
    """Mean of U over the chains and its standard error."""
    error = np.sqrt((runs.order_parameter_err.values**2).sum(0)) / runs.ds.sizes["seed"]
    return runs.order_parameter.mean("seed").values, error


def assert_close(found: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> None:
    (mean, error), (expected, expected_error) = found, other
    distance = abs(mean - expected) / np.sqrt(error**2 + np.asarray(expected_error) ** 2)
    assert distance.max() < APART, distance


def pooled(runs: asx.Result, name: str) -> np.ndarray:
    draws = runs[name].values
    return draws.reshape(-1, *draws.shape[2:])


@pytest.mark.parametrize(
    "name", ["L1_H2_N10", pytest.param("L2_H2_N10", marks=pytest.mark.full), "L2_H2_N3", "L2_H2_N50"]
)
def test_small_problem(name):
    known = reference("attention_paths")["small_problems"][name]
    problem, xi_new = small_problem(**known)
    spaces = ("collapsed", "weights") if "weights" in known else ("collapsed",)
    found = {}
    for space in spaces:
        algorithm = NUTS(space=space, draws=600, warmup=300)
        runs = asx.simulate(problem, algorithm, width=known["N"], seeds=2, progress=False)
        assert float(runs.r_hat.max()) < 1.03
        assert float(runs.effective_samples.min()) > 150
        found[space] = estimate(runs)
        for source in ("collapsed", "weights"):
            if source in known:
                assert_close(found[space], (np.array(known[source]["U"]), known[source]["U_mcse"]))
        if space == "collapsed":
            U = pooled(runs, "order_parameter_draws")
            mean, variance = predict_draws(problem.attended, problem.labels, U, problem.temperature, 1.0, xi_new)
        else:
            mean, variance = predict_path_weights(pooled(runs, "path_weights_draws"), xi_new)
        # The reference's variances come without errors: its few thousand draws leave 5 %, ours as much.
        np.testing.assert_allclose(variance, known["collapsed"]["var"], rtol=0.2)
        scale = 1 if space == "collapsed" else 4  # means of f itself scatter by more than those given U
        np.testing.assert_allclose(mean, known["collapsed"]["mean"], atol=scale * 0.035)
    if len(spaces) == 2:
        assert_close(found["collapsed"], found["weights"])


def test_theory_is_near_the_exact_posterior_at_width_50():
    known = reference("attention_paths")["small_problems"]["L2_H2_N50"]
    problem, _ = small_problem(**known)
    theory = asx.solve(problem, width=50, progress=False).order_parameter.values
    # Corrections are of order d/N = 8 % of the typical entry.
    assert abs(theory - np.array(known["collapsed"]["U"])).max() < 0.08 * np.diag(theory).mean()


@pytest.mark.full
def test_hidden_markov_at_full_size():
    known = reference("attention_paths")["markov_exact_collapsed_N10_seed0"]
    task = asx.tasks.hidden_markov(examples=100, seed=0)
    problem = asx.PathPosterior(task.network, task.inputs, task.labels, temperature=0.01)
    runs = asx.simulate(problem, NUTS(draws=600, warmup=300), width=10, seeds=2, progress=False)
    assert float(runs.r_hat.max()) < 1.02
    assert_close(estimate(runs), (np.array(known["U_exact"]), known["U_mcse"]))
    U, xi_new = pooled(runs, "order_parameter_draws")[::4], task.network.attended(task.test_inputs)
    mean, variance = predict_draws(problem.attended, problem.labels, U, problem.temperature, 1.0, xi_new)
    # A thousand test examples, of which a few lie at the boundary.
    assert (np.sign(mean) == task.test_labels).mean() == pytest.approx(known["exact_acc"], abs=0.004)
    assert variance.mean() == pytest.approx(known["var_exact"], rel=0.03)
