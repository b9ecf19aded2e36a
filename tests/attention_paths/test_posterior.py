"""The posterior at finite width as users see it: limits, predictions, scores, bad input."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.attention_paths.heads import scores


def small_network(readout: int | str = "mean"):
    rng = np.random.default_rng(4)
    return asx.AttentionPaths(query_key=tuple(rng.normal(size=(2, 8, 8)) / 8 for _ in range(2)), readout=readout)


def small_problem(network=None, **options):
    rng = np.random.default_rng(3)
    tokens = rng.normal(size=(40, 5, 8))
    network = network or small_network()
    labels = np.sign(rng.normal(size=40))
    settings: dict[str, Any] = {"temperature": 0.1} | options
    return asx.PathPosterior(network, tokens, labels, **settings), rng.normal(size=(300, 5, 8))


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


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize(("low", "high"), [(0, 1), (1, 2), (-3, 5), (0.0, 1e-9)])
def test_labels_of_two_classes_that_signs_do_not_tell_apart_are_refused(low, high, column):
    """With 0 and 1 for -1 and +1 the accuracy was 0.44 in place of 0.87."""
    problem, _ = small_problem()
    labels = np.where(problem.labels > 0, high, low)
    said = f"labels must be -1 and +1 for two classes, got {low:g} and {high:g}: use np.where(labels == {high:g}"
    said = re.escape(said)
    with pytest.raises(ValueError, match=said):
        replaced(problem, labels=labels[:, None] if column else labels)
    as_numbers = replaced(problem, labels=labels - 0.5 * (low + high))  # what the message says for regression
    assert as_numbers.labels.min() == -as_numbers.labels.max()


def test_labels_that_are_numbers_to_fit_or_one_hot_are_accepted():
    problem, _ = small_problem()
    one_hot = np.stack([problem.labels > 0, problem.labels < 0], axis=1).astype(float)
    for labels in (one_hot, 3.0 * problem.labels, np.arange(40.0), np.ones(40)):
        np.testing.assert_array_equal(replaced(problem, labels=labels).labels, labels)
    two_examples = replaced(problem, inputs=np.asarray(problem.inputs)[:2], labels=[0.3, 1.7])  # no evidence of classes
    assert two_examples.labels.tolist() == [0.3, 1.7]


@pytest.mark.parametrize("words", [["cat", "dog"] * 20, [True, False] * 20, np.array(["cat", "dog"] * 20)])
def test_labels_that_are_no_numbers_take_one_line(words):
    with pytest.raises(TypeError, match=r"labels must be real numbers, got 40 entries, ('cat', 'dog'|True, False), \."):
        replaced(small_problem()[0], labels=words)


def test_labels_to_evaluate_on_are_those_learned_from():
    problem, new = small_problem()
    theory = asx.solve(problem, width=20.0, progress=False)
    for labels in (np.arange(300) % 2, np.zeros(300), np.full(300, 2.0)):
        with pytest.raises(ValueError, match=r"labels must be -1 or 1, like those learned from, got [02]"):
            theory.evaluate(new, labels)
    assert theory.evaluate(new, np.ones(300)).accuracy.notnull().all()


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


def test_what_is_taken_out_and_what_is_left_add_up():
    problem, test = small_problem()
    theory = asx.solve(problem, width=[10.0, np.inf], progress=False)
    whole, _ = theory.predict(test)
    parts = [theory.predict(test, without=[(0, h)])[0] for h in range(2)]
    # f is a sum over paths, and every path passes through one head of the first layer.
    np.testing.assert_allclose(parts[0] + parts[1], whole, atol=1e-10)
    np.testing.assert_array_equal(theory.predict(test, without=[])[0], whole)
    numbers = theory.evaluate(test, np.ones(300), without=[(0, 1)])
    np.testing.assert_allclose(numbers.test_error, ((parts[1] - 1) ** 2).mean("example"))
    np.testing.assert_allclose(numbers.accuracy, (parts[1] > 0).mean("example"))


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ([(2, 0)], "without must name layers from 0 to 1"),
        ([(0, 2)], "without must name heads from 0 to 1 in layer 0"),
        ([(0, 0), (0, 1)], r"without must leave layer 0 \(in words layer 1\) at least one head"),
        ([(0, 0.5)], "without must be an integer"),
        ([0, 1], "without must be a sequence of pairs"),
    ],
)
def test_heads_that_cannot_be_taken_out(without, message):
    problem, test = small_problem()
    theory = asx.solve(problem, width=np.inf, progress=False)
    with pytest.raises((ValueError, TypeError), match=message):
        theory.predict(test, without=without)


def test_a_width_below_the_paths_is_said_and_solved():
    problem, _ = small_problem()
    with pytest.warns(RuntimeWarning, match="width 3 is below the 4 paths: .* NUTS is exact there"):
        theory = asx.solve(problem, width=[3.0, 4.0], progress=False)
    assert theory.ok
    assert np.isfinite(theory.order_parameter).all()
    narrow, fine = theory.status.values
    assert narrow.startswith("converged; width 3 is below the 4 paths")
    assert fine == "converged"
    with pytest.warns(RuntimeWarning, match="width 1.5 of layer 2 is below the 2 paths"):
        asx.solve(small_problem(width_ratios=(1.0, 0.3, 1.0))[0], width=5.0, progress=False)
    with pytest.warns(RuntimeWarning, match="width 5 is below the 12 paths x outputs"):
        asx.solve(replaced(problem, labels=np.ones((40, 3))), width=5.0, progress=False)


def replaced(problem, **changes):
    return dataclasses.replace(problem, **changes)


def test_a_point_that_failed_has_no_prediction():
    problem, test = small_problem()
    theory = asx.solve(problem, width=[10.0, np.inf], progress=False)
    ds = theory.ds.copy(deep=True)
    ds["order_parameter"][0] = np.nan
    broken = asx.Result(ds, problem=problem, kind="theory")
    mean, variance = broken.predict(test)
    assert np.isnan(mean[0]).all()
    assert np.isnan(variance[0]).all()
    np.testing.assert_array_equal(mean[1], theory.predict(test)[0][1])
    numbers = broken.evaluate(test, np.ones(300))
    assert np.isnan(numbers.accuracy[0])
    assert numbers.accuracy[1] == theory.evaluate(test, np.ones(300)).accuracy[1]
    assert np.isnan(broken.alignment(5)[0]).all()
    assert np.isnan(broken.kernel()[0]).all()
    np.testing.assert_array_equal(broken.kernel()[1], theory.kernel()[1])


def test_repr_is_short():
    problem, _ = small_problem(width_ratios=(1.0, 2.0, 1.0))
    assert repr(problem) == (
        "PathPosterior(2 x 2 heads, inputs (40, 5, 8), labels (40,), temperature=0.1, prior_variance=1.0, "
        "width_ratios=(1.0, 2.0, 1.0))"
    )


def test_more_paths_than_memory_are_refused_before_anything_is_built():
    problem, _ = small_problem()
    heads, outputs = (30, 30, 10), 100
    inputs = asx.AttendedInputs(np.ones((2, 1, 3)), tuple(np.ones((2, H, 1, 1)) for H in heads))
    many = asx.PathPosterior(asx.AttentionPaths(heads=heads), inputs, np.ones((2, outputs)))
    with pytest.raises(
        MemoryError, match=r"9000 paths and 100 outputs takes \d+.* GiB.*; try fewer examples, heads or"
    ):
        asx.solve(many, width=np.inf, progress=False)
    assert problem.attended.shape == (40, 4, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, "temperature must be positive, got 0"),
        ({"temperature": -1.0}, "temperature must be positive, got -1"),
        ({"temperature": np.inf}, "temperature must be .*finite, got inf"),
        ({"prior_variance": -1.0}, "prior_variance must be positive, got -1"),
    ],
)
def test_bad_numbers(change, message):
    with pytest.raises(ValueError, match=message):
        small_problem(**change)


def test_bad_arrays():
    problem, test = small_problem()
    with pytest.raises(ValueError, match="labels must be one per example, got 39 labels for 40 inputs"):
        replaced(problem, labels=problem.labels[:-1])
    with pytest.raises(ValueError, match="labels must not contain nan"):
        replaced(problem, labels=np.full(40, np.nan))
    with pytest.raises(ValueError, match="labels must be finite, got 1 that are not"):
        replaced(problem, labels=np.where(np.arange(40) == 3, np.inf, 1.0))
    with pytest.raises(ValueError, match=r"inputs must have shape \(examples, tokens, features\)"):
        replaced(problem, inputs=np.ones((40, 5)))
    with pytest.raises(ValueError, match="inputs must not contain nan"):
        replaced(problem, inputs=np.full((40, 5, 8), np.nan))
    with pytest.raises(ValueError, match="inputs must be finite"):
        asx.solve(replaced(problem, inputs=np.full((40, 5, 8), np.inf)), width=10.0, progress=False)
    with pytest.raises(TypeError, match="network must be an AttentionPaths"):
        replaced(problem, network=None)
    with pytest.raises(ValueError, match="width must be positive"):
        asx.solve(problem, width=-1.0, progress=False)
    with pytest.raises(ValueError, match="one per example"):
        asx.solve(problem, width=10.0, progress=False).evaluate(test, np.ones(3))


@pytest.mark.parametrize("swept", [{"readout": [0, 2]}, {"temperature": [0.1, 0.5]}, {"prior_variance": [0.5, 1.0]}])
def test_every_swept_field_is_that_of_its_point(swept):
    problem, test = small_problem(network=small_network(readout=0))
    theory = asx.solve(problem, width=5.0, progress=False, **swept)
    mean, variance = theory.predict(test)
    ((name, values),) = swept.items()
    for value in values:
        alone = asx.solve(problem, width=5.0, progress=False, **{name: value})
        expected, spread = alone.predict(test)
        np.testing.assert_allclose(mean.sel({name: value}), expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(variance.sel({name: value}), spread, rtol=1e-9, atol=1e-12)
        assert float(expected.coords["width"]) == 5.0
        np.testing.assert_allclose(theory.alignment(4).sel({name: value}), alone.alignment(4), atol=1e-9)


def test_tolerance_is_that_of_the_order_parameter():
    """The stated error over the largest entry is at most the tolerance, or the point says that it is not."""
    problem, _ = small_problem()
    theory = asx.solve(problem, width=[5.0, np.inf], tolerance=1e-6, progress=False)
    assert theory.ok
    assert theory.order_parameter_err.dims == theory.order_parameter.dims
    assert (theory.order_parameter_err.sel(width=5.0) > 0).all()
    assert (theory.order_parameter_err <= 1e-6 * abs(theory.order_parameter).max()).all()
    assert (theory.order_parameter_err.sel(width=np.inf) == 0).all()
    with pytest.warns(asx.ConvergenceWarning, match=r"numerical error .* of the order parameter exceeds the tolerance"):
        out_of_reach = asx.solve(problem, width=5.0, tolerance=1e-300, progress=False)
    assert out_of_reach.status_code.item() == "inaccurate"
    np.testing.assert_allclose(out_of_reach.order_parameter, theory.order_parameter.sel(width=5.0), rtol=1e-6)


def test_start_from_an_order_parameter():
    problem, _ = small_problem()
    theory = asx.solve(problem, width=5.0, progress=False)
    again = asx.solve(problem, width=5.0, start=theory.order_parameter.values, progress=False)
    np.testing.assert_allclose(again.order_parameter, theory.order_parameter, rtol=1e-6)
    with pytest.raises(ValueError, match=r"start must be 'uninformed'.*got 'informed'"):
        asx.solve(problem, width=5.0, start="informed", progress=False)


def test_result_without_any_order_parameter_says_why():
    problem, test = small_problem(temperature=1e-300)
    with pytest.warns(asx.ConvergenceWarning):
        failed = asx.solve(problem, width=[3.0, 5.0], progress=False)
    questions = (lambda: failed.predict(test), lambda: asx.head_scores(failed), lambda: asx.prune(failed, [(0, 1)]))
    for question in questions:
        with pytest.raises(ValueError, match="got none: failed: K \\+ T I is not positive definite"):
            question()


def test_inputs_are_checked_when_the_problem_is_described():
    problem, test = small_problem()
    bad = np.array(problem.inputs)
    bad[3, 1, 2] = np.inf
    for inputs, message in ((bad, r"finite, got 1 of 1600 entries.*\(3, 1, 2\)"), (bad[..., 3:], "8 features")):
        with pytest.raises(ValueError, match=message):
            asx.PathPosterior(problem.network, inputs, problem.labels)
    with pytest.raises(ValueError, match="readout must be a token index below 5"):
        asx.PathPosterior(small_network(readout=7), problem.inputs, problem.labels)
    theory = asx.solve(problem, width=5.0, progress=False)
    with pytest.raises(ValueError, match="inputs must have 8 features"):
        theory.predict(test[..., :6])
    with pytest.raises(ValueError, match="prior_variance must be one number or 4 numbers"):
        asx.PathPosterior(problem.network, problem.inputs, problem.labels, prior_variance=(1.0, 2.0))


def test_pruned_results_are_compared_with_pruned_ones_only():
    problem, _ = small_problem()
    theory = asx.solve(problem, width=[5.0, 8.0], progress=False)
    pruned = asx.prune(theory, [(0, 1)])
    with pytest.raises(ValueError, match="same settings, got one that differs in pruned"):
        asx.solve(problem, width=[5.0, 8.0], resume=pruned, progress=False)
    runs = asx.Result(
        theory.ds.expand_dims(seed=2), problem=problem, kind="experiment", algorithm=asx.NUTS(), provenance={}
    )
    with pytest.raises(ValueError, match="changed alike"):
        asx.compare(pruned, runs)
    assert asx.compare(pruned, asx.prune(runs, [(0, 1)])).max_abs_z == 0


def test_what_numbers_do_not_hold_has_failed():
    network = asx.AttentionPaths(heads=(2,))
    given = asx.AttendedInputs(np.ones((2, 3, 4)), (np.full((2, 2, 3, 3), 1 / 3),))
    problem = asx.PathPosterior(network, given, np.array([1.0, -1.0]), temperature=1e300)
    with pytest.warns(asx.ConvergenceWarning, match="the action is not finite"):
        assert asx.solve(problem, width=5e-324, progress=False).status_code.item() == "failed"
