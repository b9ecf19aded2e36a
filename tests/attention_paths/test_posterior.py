"""The posterior at finite width as users see it: limits, predictions, scores, bad input."""

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.attention_paths.heads import scores


def small_problem(**options):
    rng = np.random.default_rng(3)
    tokens = rng.normal(size=(40, 5, 8))
    query_key = tuple(rng.normal(size=(2, 8, 8)) / 8 for _ in range(2))
    network = asx.AttentionPaths(query_key=query_key, readout="mean")
    labels = np.sign(rng.normal(size=40))
    return asx.PathPosterior(network, tokens, labels, **({"temperature": 0.1} | options)), rng.normal(size=(300, 5, 8))


def brute_kernel(problem, U, first, second):
    a, b = problem.network.attended(first), problem.network.attended(second)
    paths, features = a.shape[1:]
    return problem.prior_variance / (paths * features) * np.einsum("pq,npk,mqk->nm", U, a, b)


def test_predictions_are_those_of_the_path_kernel():
    problem, test = small_problem(prior_variance=0.7)
    theory = asx.solve(problem, width=[5.0, np.inf], progress=False)
    mean, variance = theory.predict(test)
    assert mean.dims == ("width", "example")
    for position in range(2):
        U = theory.order_parameter.isel(width=position).values
        K = brute_kernel(problem, U, problem.inputs, problem.inputs) + problem.temperature * np.eye(40)
        k = brute_kernel(problem, U, test, problem.inputs)
        np.testing.assert_allclose(mean.isel(width=position), k @ np.linalg.solve(K, problem.labels), atol=1e-9)
        own = np.array([brute_kernel(problem, U, x[None], x[None])[0, 0] for x in test[:5]])
        left = own - np.einsum("nm,mn->n", k[:5], np.linalg.solve(K, k[:5].T))
        np.testing.assert_allclose(variance.isel(width=position)[:5], left, atol=1e-9)


def test_wide_networks_tend_to_the_gaussian_process():
    problem, _ = small_problem(prior_variance=0.7)
    theory = asx.solve(problem, width=[10.0, 1e3, 1e5, np.inf], progress=False)
    assert theory.ok
    gaps = abs(theory.order_parameter - 0.7**3 * np.eye(4)).max(["path", "path_other"]).values
    assert gaps[0] > gaps[1] > gaps[2] > gaps[3] == 0
    assert gaps[2] < 0.02 * gaps[1]  # the correction is P/N


def test_scores_of_heads():
    U = np.diag([4.0, 0.0, 1.0, 0.0]) + 0.5 * (np.eye(4, k=2) + np.eye(4, k=-2))
    # paths (0,0), (0,1), (1,0), (1,1): the second layer's head 1 carries nothing
    both = scores(U, (2, 2), "both", normalize=False)
    np.testing.assert_allclose(both, [[4.0, 1.0], [6.0, 1.0]])
    either = scores(U, (2, 2), "either", normalize=False)
    np.testing.assert_allclose(either, [[6.0, 3.0], [6.0, 1.0]])  # all of 7 but the pairs that avoid the head
    theory = asx.solve(small_problem()[0], width=[10.0, 100.0], progress=False)
    found = asx.head_scores(theory)
    assert found.dims == ("width", "layer", "head")
    assert float(found.max()) == 1


def test_evaluate_and_save(tmp_path):
    problem, test = small_problem()
    theory = asx.solve(problem, width=[10.0, np.inf], temperature=[0.1, 1.0], progress=False)
    numbers = theory.evaluate(test, np.ones(300))
    assert set(numbers.accuracy.dims) == {"width", "temperature"}
    alone = asx.solve(small_problem(temperature=1.0)[0], width=10.0, progress=False).evaluate(test, np.ones(300))
    assert float(numbers.test_error.sel(width=10, temperature=1.0)) == pytest.approx(float(alone.test_error), rel=1e-6)
    assert theory.alignment(5).shape[-1] == 5
    pytest.importorskip("h5netcdf")
    theory.save(tmp_path / "paths.nc")
    again = asx.load(tmp_path / "paths.nc").evaluate(test, np.ones(300))
    np.testing.assert_array_equal(again.test_error, numbers.test_error)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, "temperature must be"),
        ({"prior_variance": -1.0}, "prior_variance must be"),
    ],
)
def test_bad_numbers(change, message):
    with pytest.raises(ValueError, match=message):
        small_problem(**change)


def test_bad_arrays():
    problem, test = small_problem()
    with pytest.raises(ValueError, match="one per example"):
        asx.PathPosterior(problem.network, problem.inputs, problem.labels[:-1])
    with pytest.raises(ValueError, match="labels must not contain nan"):
        asx.PathPosterior(problem.network, problem.inputs, np.full(40, np.nan))
    with pytest.raises(ValueError, match="width must be positive"):
        asx.solve(problem, width=-1.0, progress=False)
    with pytest.raises(ValueError, match="one per example"):
        asx.solve(problem, width=10.0, progress=False).evaluate(test, np.ones(3))
