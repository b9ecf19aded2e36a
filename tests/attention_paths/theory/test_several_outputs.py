"""Several outputs: the action against explicit kernels, exact identities, predictions, heads taken out."""

import tracemalloc

import numpy as np
import pytest
from scipy.stats import special_ortho_group

import asymptotix as asx
from asymptotix.attention_paths.theory.action import Action, required_bytes
from asymptotix.attention_paths.theory.energy import Energy
from asymptotix.attention_paths.theory.order_parameter import minimise

VARIANCES, RATIOS = (0.9, 0.8, 1.2, 0.7), (1.0, 0.5, 2.0)


def random_data(outputs, paths=4, examples=18, features=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((examples, paths, features)), rng.standard_normal((examples, outputs))


def action_of(xi, labels, heads=(2, 2), width=8.0):
    return Action(xi, labels, heads, 0.2, VARIANCES, width, RATIOS)


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_energy_and_its_slopes_are_those_of_the_explicit_kernels(outputs):
    xi, labels = random_data(outputs)
    P, d, N0 = xi.shape
    root = np.random.default_rng(1).standard_normal((d * outputs, d * outputs + 2))
    U = root @ root.T
    action = action_of(xi, labels)
    share = VARIANCES[0] / d
    C = np.einsum("apx,bqx->pqab", xi, xi) / N0
    K = share * np.einsum("pcqe,pqab->acbe", U.reshape(d, outputs, d, outputs), C)
    matrix = K.reshape(P * outputs, -1) + 0.2 * np.eye(P * outputs)
    A = np.linalg.inv(matrix).reshape(P, outputs, P, outputs)
    v = np.einsum("acbe,be->ac", A, labels)
    value = action.at(U)
    size = d * outputs
    # Inverses of matrices with condition numbers of 1e3 or so.
    found = Energy(xi, labels, VARIANCES[0]).at(U, 0.2)
    np.testing.assert_allclose(found.mean_weights, v, atol=1e-10)
    np.testing.assert_allclose(value.D, share * np.einsum("acbe,pqab->pcqe", A, C).reshape(size, size), atol=1e-10)
    np.testing.assert_allclose(value.R, share * np.einsum("ac,be,pqab->pcqe", v, v, C).reshape(size, size), atol=1e-10)
    expected = np.linalg.slogdet(matrix)[1] + (labels * v).sum()
    np.testing.assert_allclose(found.value, expected, rtol=1e-11)


@pytest.mark.parametrize("heads", [(2,), (2, 2), (2, 1, 2)])
def test_rotating_the_outputs_rotates_the_order_parameter(heads):
    outputs, paths = 3, int(np.prod(heads))
    xi, labels = random_data(outputs, paths)
    rotation = np.asarray(special_ortho_group.rvs(outputs, random_state=2))
    first, second = (minimise(Action(xi, y, heads, 0.2, 0.8, 6.0)) for y in (labels, labels @ rotation))
    turned = np.einsum("pcqe,cf,eg->pfqg", first.U.reshape(paths, outputs, paths, outputs), rotation, rotation)
    # A gradient of 1e-8 over Hessian eigenvalues that are seldom below 0.05.
    np.testing.assert_allclose(second.U, turned.reshape(first.U.shape), atol=1e-6 * np.abs(first.U).max())
    np.testing.assert_allclose(second.action, first.action, rtol=1e-12)
    np.testing.assert_allclose(second.inner[-1], rotation.T @ first.inner[-1] @ rotation, atol=1e-6)


def test_an_output_without_labels_leaves_the_other_alone():
    # Changing the sign of the second output changes nothing, so that the outputs do not mix.
    xi, labels = random_data(1)
    both = minimise(action_of(xi, np.hstack([labels, 0 * labels]))).U.reshape(4, 2, 4, 2)
    np.testing.assert_allclose(both[:, 0, :, 1], 0.0, atol=1e-12)
    np.testing.assert_allclose(both[:, 0, :, 0], minimise(action_of(xi, labels)).U, atol=1e-6)
    np.testing.assert_allclose(both[:, 1, :, 1], minimise(action_of(xi, 0 * labels)).U, atol=1e-6)


def test_outputs_that_share_a_path_correlate():
    xi, labels = random_data(1)
    U = minimise(action_of(xi, np.hstack([labels, labels]))).U.reshape(4, 2, 4, 2)
    # Symmetric under exchange, and equal outputs are cheaper with correlated weights.
    np.testing.assert_allclose(U, U[:, ::-1, :, ::-1], atol=1e-6)
    assert np.trace(U[:, 0, :, 1]) > 0.1


def test_permuting_heads_permutes_the_order_parameter():
    xi, labels = random_data(2)
    U = minimise(action_of(xi, labels)).U.reshape(2, 2, 2, 2, 2, 2)
    swapped = xi.reshape(18, 2, 2, 6)[:, ::-1].reshape(18, 4, 6)
    other = minimise(action_of(swapped, labels)).U.reshape(2, 2, 2, 2, 2, 2)
    np.testing.assert_allclose(other, U[::-1, :, :, ::-1], atol=1e-6)


def test_memory_estimate_covers_what_is_used():
    examples, paths, features, outputs = 60, 4, 50, 4
    xi, labels = random_data(outputs, paths, examples, features)
    needed = required_bytes(examples, paths, features, outputs)
    tracemalloc.start()
    Action(xi, labels, (2, 2), 0.5, width=10.0).at(np.eye(paths * outputs))
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.4 * needed < used <= needed


def problem_of(outputs, **options):
    rng = np.random.default_rng(3)
    tokens = rng.normal(size=(24, 5, 6))
    network = asx.AttentionPaths(query_key=tuple(rng.normal(size=(2, 6, 6)) / 2 for _ in range(2)))
    labels = rng.normal(size=(24, outputs) if outputs else 24)
    settings = {"temperature": 0.1, "prior_variance": VARIANCES, "width_ratios": RATIOS} | options
    return asx.PathPosterior(network, tokens, labels, **settings), rng.normal(size=(40, 5, 6))


def explicit_prediction(problem, U, test, kept):
    """Mean and variance of the kept paths' share of f, by the kernels written out."""
    a, b = problem.network.attended(problem.inputs), problem.network.attended(test) * kept[:, None]
    share = problem.prior_variances[0] / (a.shape[1] * a.shape[2])
    P, C = problem.labels.shape
    K = share * np.einsum("pcqe,apk,bqk->acbe", U, a, a).reshape(P * C, P * C) + problem.temperature * np.eye(P * C)
    k = share * np.einsum("pcqe,npk,bqk->ncbe", U, b, a).reshape(len(b), C, P * C)
    own = share * np.einsum("pcqc,npk,nqk->nc", U, b, b)
    explained = np.einsum("ncx,xy,ncy->nc", k, np.linalg.inv(K), k)
    return k @ np.linalg.solve(K, problem.labels.ravel()), own - explained


@pytest.mark.parametrize(
    ("without", "kept"), [(None, [1, 1, 1, 1]), ([(0, 1)], [1, 1, 0, 0]), ([(0, 0), (1, 1)], [0, 0, 1, 0])]
)
def test_predictions_are_those_of_the_path_kernel(without, kept):
    problem, test = problem_of(2)
    theory = asx.solve(problem, width=[20.0, np.inf], progress=False)
    assert theory.order_parameter.dims == ("width", "path", "output", "path_other", "output_other")
    mean, variance = theory.predict(test, without=without)
    assert mean.dims == variance.dims == ("width", "example", "output")
    for position in range(2):
        U = theory.order_parameter.isel(width=position).values
        expected = explicit_prediction(problem, U, test, np.array(kept, float))
        np.testing.assert_allclose(mean.isel(width=position), expected[0], atol=1e-9)
        np.testing.assert_allclose(variance.isel(width=position), expected[1], atol=1e-9)


def test_outputs_are_separate_in_the_gaussian_process_limit():
    problem, test = problem_of(3)
    together = asx.solve(problem, width=np.inf, progress=False)
    mean, variance = together.predict(test)
    for c in range(3):
        one = asx.PathPosterior(problem.network, problem.inputs, problem.labels[:, c], 0.1, VARIANCES, RATIOS)
        alone = asx.solve(one, width=np.inf, progress=False).predict(test)
        np.testing.assert_allclose(mean[:, c], alone[0], atol=1e-10)
        np.testing.assert_allclose(variance[:, c], alone[1], atol=1e-10)


def test_one_output_with_an_axis_is_one_output():
    problem, test = problem_of(1)
    flat = asx.PathPosterior(problem.network, problem.inputs, problem.labels[:, 0], 0.1, VARIANCES, RATIOS)
    assert problem.outputs == flat.outputs == 1
    first, second = (asx.solve(one, width=20.0, progress=False) for one in (problem, flat))
    assert first.order_parameter.dims == ("path", "output", "path_other", "output_other")
    np.testing.assert_array_equal(first.order_parameter.values.squeeze(), second.order_parameter)
    np.testing.assert_allclose(first.predict(test)[0][:, 0], second.predict(test)[0], atol=1e-12)
    np.testing.assert_allclose(first.alignment(5), second.alignment(5), atol=1e-12)
    target = np.sign(test[:, 0, 0])
    assert first.evaluate(test, target[:, None]).accuracy == second.evaluate(test, target).accuracy


def test_accuracy_is_of_the_largest_output():
    problem, test = problem_of(3)
    theory = asx.solve(problem, width=[20.0, np.inf], progress=False)
    mean, _ = theory.predict(test)
    target = np.eye(3)[np.arange(40) % 3]
    numbers = theory.evaluate(test, target)
    right = mean.values.argmax(-1) == target.argmax(-1)
    np.testing.assert_allclose(numbers.accuracy, right.mean(-1))
    np.testing.assert_allclose(numbers.test_error, ((mean.values - target) ** 2).mean((-1, -2)))
    assert numbers.variance.dims == ("width",)
    assert float(theory.evaluate(test, mean.sel(width=20).values).accuracy.sel(width=20)) == 1


def test_alignment_is_with_the_eigenvectors_of_the_whole_kernel():
    problem, _ = problem_of(2)
    theory = asx.solve(problem, width=20.0, progress=False)
    U, xi = theory.order_parameter.values, problem.attended
    K = VARIANCES[0] / xi[0].size * np.einsum("pcqe,apx,bqx->acbe", U, xi, xi).reshape(48, 48)
    found = theory.kernel().transpose("example", "output", "example_other", "output_other")
    np.testing.assert_allclose(found.values.reshape(48, 48), K, atol=1e-12)
    vectors = np.linalg.eigh(K)[1][:, ::-1]
    np.testing.assert_allclose(
        theory.alignment(6), abs(vectors.T @ problem.labels.ravel())[:6] / np.sqrt(48), atol=1e-9
    )


def test_a_result_comes_back_from_a_file(tmp_path):
    pytest.importorskip("h5netcdf")
    problem, test = problem_of(2)
    theory = asx.solve(problem, width=[20.0, np.inf], progress=False)
    theory.save(tmp_path / "outputs.nc")
    again = asx.load(tmp_path / "outputs.nc")
    assert isinstance(again.problem, asx.PathPosterior)
    assert again.problem.prior_variance == VARIANCES
    assert again.problem.width_ratios == RATIOS
    np.testing.assert_array_equal(again.predict(test)[0], theory.predict(test)[0])


def test_labels_of_another_shape_are_named():
    problem, test = problem_of(2)
    theory = asx.solve(problem, width=20.0, progress=False)
    with pytest.raises(
        ValueError, match=r"labels must have shape \(examples, 2\) like those learned from, got \(40,\)"
    ):
        theory.evaluate(test, np.ones(40))
    with pytest.raises(
        ValueError, match=r"labels must have shape \(examples,\) or \(examples, outputs\), got \(24, 0\)"
    ):
        asx.PathPosterior(problem.network, problem.inputs, np.ones((24, 0)))
    with pytest.raises(ValueError, match=r"labels must have at least one output, got shape \(24, 0\)"):
        action_of(problem.attended, np.ones((24, 0)))
