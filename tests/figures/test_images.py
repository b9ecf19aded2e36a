"""Heads taken out path by path, temperatures chosen on validation examples, networks trained once for three figures."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr

import asymptotix as asx
from asymptotix.attention_paths.network.weights import Weights
from asymptotix.attention_paths.predictors.draws_average import predict_draws
from asymptotix.attention_paths.training.trainable import drawn_start
from asymptotix.figures import images
from asymptotix.figures.image_parts import at_widths, collected, image_claims, pruned, trained_heads, without_heads
from asymptotix.figures.making import reproduce
from asymptotix.figures.making.claims import PublishedFigure, beyond
from asymptotix.figures.making.parts import Parts
from asymptotix.figures.making.record import Claim
from data_stand_ins import write_stand_in

HEADS = (3, 2)


@pytest.fixture(scope="module")
def network() -> asx.TrainedPaths:
    """Random weights, as training would start from, but larger scores; tokens of 6 features."""
    start = drawn_start(0, HEADS, features=6, width=5, key_size=4)
    return asx.TrainedPaths(start._replace(queries=tuple(6 * q for q in start.queries)))


@pytest.fixture(scope="module")
def examples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((40, 4, 6)), rng.choice([-1.0, 1.0], 40)


# ---------------------------------------------------------------------------------------------- heads taken out


def test_the_outputs_of_paths_sum_to_that_of_the_network(network, examples):
    f = network.path_outputs(examples[0])
    assert f.shape == (40, 6)
    np.testing.assert_allclose(f.sum(axis=1), network.network.forward(network.weights, examples[0]), atol=1e-13)


@pytest.mark.parametrize("removed", [(), ((0, 1),), ((1, 0),), ((0, 0), (0, 2)), ((0, 2), (1, 1))])
def test_without_heads_is_what_the_pruned_network_says(network, examples, removed):
    f = network.path_outputs(examples[0])
    (found,) = without_heads.without(f, HEADS, [removed])
    np.testing.assert_allclose(found, asx.prune(network, removed, rescale=False).predict(examples[0]), atol=1e-12)
    scale = without_heads.rescaling(HEADS, removed)
    np.testing.assert_allclose(scale * found, asx.prune(network, removed).predict(examples[0]), atol=1e-12)
    # The published rescaling is why no answer changes: one positive number.
    assert scale >= 1


def test_a_layer_without_heads_cuts_the_network_and_guesses(network, examples):
    f = network.path_outputs(examples[0])
    gone = [(1, 0), (1, 1)]
    assert not without_heads.without(f, HEADS, [gone]).any()
    assert without_heads.rescaling(HEADS, gone) == 1
    assert without_heads.right(np.array([0.0, 0.3, -2.0]), np.array([1.0, 1.0, 1.0])).tolist() == [0.5, 1.0, 0.0]


def test_a_curve_goes_from_the_whole_network_to_one_head_per_layer(network, examples):
    f = network.path_outputs(examples[0])
    order = [(0, 1), (1, 0), (0, 0), (0, 2), (1, 1)]
    curve = without_heads.removal_curve(f, examples[1], HEADS, order)
    assert curve.removed.values.tolist() == [0, 1, 2, 3]
    evaluated = [network.evaluate(*examples)] + [
        asx.prune(network, order[:count]).evaluate(*examples) for count in (1, 2, 3)
    ]
    np.testing.assert_allclose(curve.right.mean("example"), [float(one.accuracy) for one in evaluated])
    np.testing.assert_allclose(curve.rescaled_squared_error, [float(one.test_error) for one in evaluated], atol=1e-12)
    plain = asx.prune(network, order[:3], rescale=False).evaluate(*examples)
    assert float(curve.squared_error[-1]) == pytest.approx(float(plain.test_error))


def test_random_orders_average_to_all_sets_of_a_size(network, examples):
    f = network.path_outputs(examples[0])
    every = list(itertools.permutations(without_heads.all_heads(HEADS)))
    curves = without_heads.random_curves(f, examples[1], HEADS, every)
    for count in range(4):  # the first heads of a random order are a random set
        sets = without_heads.all_of_size(f, examples[1], HEADS, count)
        assert float(curves.sel(removed=count).mean()) == pytest.approx(sets.mean(), abs=1e-12)
    drawn = without_heads.random_orders(HEADS, 50)
    assert drawn == without_heads.random_orders(HEADS, 50)
    assert all(sorted(order) == without_heads.all_heads(HEADS) for order in drawn)
    assert len({tuple(order) for order in drawn}) > 25  # of 120


def test_search_begins_with_the_head_that_costs_least(network, examples):
    f = network.path_outputs(examples[0])
    order = without_heads.greedy_order(f, examples[1], HEADS)
    assert sorted(order) == without_heads.all_heads(HEADS)
    losses, errors = pruned.single_losses(f, examples[1], HEADS)
    assert losses[order[0]] == np.nanmin(losses)
    assert np.isnan(losses[1, 2])
    whole, *less = (
        float(one.evaluate(*examples).accuracy) for one in (network, *(asx.prune(network, [(0, h)]) for h in range(3)))
    )
    single = [100 * (whole - value) for value in less]
    np.testing.assert_allclose(losses[0], single, atol=1e-9)
    assert (errors[np.isfinite(errors)] >= 0).all()


def test_orders_by_size_and_by_score(network):
    weights = network.weights
    larger = weights._replace(V=(weights.V[0] * np.array([9.0, 1.0, 3.0])[:, None, None], weights.V[1] * 100))
    sizes = without_heads.magnitudes(Weights(*larger), HEADS)
    np.testing.assert_allclose(np.nanmean(sizes, axis=1), 1)  # within a layer: the second one's are larger all
    assert without_heads.by_rising(sizes, HEADS)[0] == (0, 1)
    assert without_heads.by_rising(sizes, HEADS)[-1] == (0, 0)


def test_a_network_whose_paths_are_known_is_pruned_as_its_scores_say():
    """One head per layer does the work, and theory knows: its order keeps the accuracy to the end."""
    rng = np.random.default_rng(3)
    labels = rng.choice([-1.0, 1.0], 200)
    f = 0.01 * rng.standard_normal((200, 4))
    f[:, 3] += labels  # path (2, 2)
    outputs = xr.Dataset(
        {f"outputs_{name}": ((f"example_{name}", "path"), f) for name in at_widths.SETS}
        | {f"labels_{name}": (f"example_{name}", labels) for name in at_widths.SETS}
    )
    U = xr.DataArray(np.diag([0.1, 0.2, 0.3, 4.0])[None], dims=("draw", "path", "path_other"))
    weights = Weights(np.ones((3, 2)), (np.ones((2, 3, 3)), np.ones((2, 3, 3))), np.ones(3))
    found = pruned.pruned(outputs, U, weights, 20)
    assert found.orders["score"] == [(0, 0), (1, 0), (1, 1), (0, 1)]  # 0.3, 0.4, 4.2, 4.3 over 4.3
    np.testing.assert_allclose(found.scores, np.array([[0.3, 4.3], [0.4, 4.2]]) / 4.3)
    assert found.loss("omniglot", "score", 2) == (0.0, 0.0)
    assert found.drop[0, 1] > 30  # what is left is noise
    assert found.standing("omniglot", "score") == 1.0


def test_errors_over_networks_are_those_of_few():
    assert pruned.over_networks(np.array([3.0]), 0.4) == (3.0, 0.4)
    mean, error = pruned.over_networks(np.array([1.0, 2.0, 3.0]), 0.1)
    assert mean == 2.0
    assert error == pytest.approx(4.303 / 2 / np.sqrt(3), rel=1e-3)  # Student's t of two degrees of freedom
    assert pruned.over_networks(np.array([1.0, 1.0]), 0.3)[1] == 0.3


def test_what_one_network_does_not_show_is_not_decided():
    claim = Claim("it gains", "yes", "here", "-3.0 ± 0.1", False)
    assert image_claims.of_networks(claim, 1).holds is None
    assert image_claims.of_networks(claim, 3).holds is False


# ---------------------------------------------------------------------------------------------- theory on heads


def table(validation: np.ndarray, test: np.ndarray, temperatures: list[float]) -> xr.Dataset:
    """Right answers (temperature, width, example) of two sets."""
    found = {
        f"right_{name}": (("temperature", "width", f"example_{name}"), right.astype(np.int8))
        for name, right in zip(at_widths.SETS, (validation, test, test, test), strict=True)
    }
    shape = test.shape[:2]
    numbers = np.arange(np.prod(shape), dtype=float).reshape(*shape, 1)
    found["order_parameter"] = (("temperature", "width", "path"), numbers)
    found["alignment"] = (("temperature", "width", "component"), numbers)
    return xr.Dataset(found, coords={"temperature": temperatures, "width": [10.0, np.inf]})


def test_temperatures_are_chosen_on_validation_examples_and_what_test_ones_would_add_is_known():
    validation, test = np.zeros((2, 3, 2, 4))
    validation[1, 0, :3] = validation[2, 1, :1] = 1  # best: the second temperature at width 10, the third in the limit
    test[0, 0, :] = test[1, 0, :2] = test[2, 1, :3] = 1
    found = at_widths.chosen([table(validation, test, [0.1, 0.5, 1.0])])
    assert found.temperature.values.tolist() == [[0.5, 1.0]]
    assert found.on_test.values.tolist() == [[0.1, 1.0]]
    assert at_widths.accuracy(found.right["omniglot"]).value.tolist() == [50.0, 75.0]
    assert at_widths.accuracy(found.right_on_test).value.tolist() == [100.0, 75.0]
    assert found.order_parameter.values.ravel().tolist() == [2.0, 5.0]
    assert "+25.00 points on average" in image_claims.choice_remark(found)


def test_of_equally_good_temperatures_the_middle_one_is_chosen():
    right = xr.DataArray(np.array([0, 1, 1, 1, 0, 1.0])[:, None], dims=("temperature", "example"))
    right = right.assign_coords(temperature=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert float(at_widths.best_temperature(right)) == 3.0  # of 2, 3, 4, 6 the lower middle


def test_what_is_right_is_what_predictions_say(network, examples):
    problem = asx.PathPosterior(network.network, *examples, prior_variance=0.7)
    grid: dict[str, Any] = {"width": [20.0, np.inf], "temperature": [0.1, 1.0]}
    theory = asx.solve(problem, progress=False, **grid)
    fresh = np.random.default_rng(2).standard_normal((30, 4, 6))
    labels = np.random.default_rng(3).choice([-1.0, 1.0], 30)
    table = at_widths.at_temperatures(problem, grid["temperature"], grid["width"])
    found = at_widths.answered(network.network, table, {"mnist": (fresh, labels)})
    order = ("temperature", "width", ...)
    own = theory.predict(fresh)[0].transpose(*order)
    mean = xr.dot(table.rows, xr.DataArray(network.network.attended(fresh), dims=("example", "path", "feature")))
    np.testing.assert_allclose(mean.transpose(*order), own, atol=1e-10)  # the tolerance of the order parameter is 1e-8
    np.testing.assert_array_equal(found["right_mnist"], np.sign(own.values) == labels)
    np.testing.assert_allclose(found.alignment, theory.alignment(40).transpose(*order), atol=1e-9)
    assert "rows" not in found


def test_the_mean_over_draws_of_chains_is_that_of_their_rows(network, examples):
    problem = asx.PathPosterior(network.network, *examples, temperature=0.3)
    factors = np.random.default_rng(5).standard_normal((2, 3, 6, 6))
    draws = factors @ factors.swapaxes(-1, -2)  # of two chains
    numbers = {name: ("seed", [1.0, 3.0]) for name in ("r_hat", "leapfrog_steps", "effective_samples", "divergences")}
    ds = xr.Dataset(
        numbers
        | {
            "cpu_seconds": ("seed", [5.0, 6.0]),
            "order_parameter": (("seed", "path", "path_other"), draws.mean(axis=1)),
            "order_parameter_err": (("seed", "path", "path_other"), np.full((2, 6, 6), 0.2)),
            "order_parameter_draws": (("seed", "draw", "path", "path_other"), draws),
        }
    )
    runs: Any = SimpleNamespace(ds=ds)
    found = at_widths.sampled(problem, runs)
    fresh = np.random.default_rng(2).standard_normal((7, 4, 6))
    xi = network.network.attended(fresh)
    own = predict_draws(problem.attended, problem.labels, draws.reshape(-1, 6, 6), 0.3, 1.0, xi).mean
    np.testing.assert_allclose(np.einsum("npk,pk->n", xi, found.rows.values), own, atol=1e-11)
    np.testing.assert_allclose(found.order_parameter, draws.mean(axis=(0, 1)))
    np.testing.assert_allclose(found.order_parameter_err, 0.2 / np.sqrt(2))
    assert (float(found.effective_samples), float(found.leapfrog_steps)) == (4.0, 2.0)


def test_errors_are_those_over_examples_and_over_draws():
    right = xr.DataArray(np.array([[1, 1, 0, 0]]), dims=("draw", "example"))
    share = at_widths.accuracy(right)
    assert (float(share.value), float(share.error)) == (50.0, pytest.approx(100 * np.sqrt(1 / 12)))
    # Draws that agree on every example add nothing; draws that differ add what they differ by.
    same = xr.concat([right, right, right], dim="draw")
    assert float(at_widths.accuracy(same).error) == pytest.approx(float(share.error))
    other = xr.concat([right, 1 - right], dim="draw").assign_coords(draw=[0, 1])
    assert float(at_widths.accuracy(other).error) == 0.0  # all are right in one of two: nothing is seen to vary
    apart = xr.concat([0 * right + 1, 0 * right], dim="draw")
    assert float(at_widths.accuracy(apart).error) == pytest.approx(50.0)
    assert at_widths.gain(right, right) == (0.0, 0.0)


# ---------------------------------------------------------------------------------------------- claims


def test_renaming_heads_finds_a_matrix_again():
    rng = np.random.default_rng(4)
    A = rng.standard_normal((6, 8))
    U = A @ A.T
    observed, chance = image_claims.head_permutations(U, U, HEADS)
    assert observed == pytest.approx(1.0)
    assert len(chance) == 12
    assert (chance > 1 - 1e-9).sum() == 1
    swapped = np.arange(6).reshape(3, 2)[::-1].ravel()  # other names of the first layer's heads
    observed, chance = image_claims.head_permutations(U, U[np.ix_(swapped, swapped)], HEADS)
    assert observed < 0.99
    assert chance.max() == pytest.approx(1.0)


@pytest.mark.parametrize(("value", "holds"), [(1.0, True), (-1.0, False), (0.3, None)])
def test_a_difference_within_two_errors_decides_nothing(value, holds):
    assert beyond(value, 0.2, errors=image_claims.ERRORS) is holds


def test_where_the_network_is_not_the_published_one_nothing_is_decided():
    said = PublishedFigure("paths/fig3")
    claim = image_claims.base_claim(said, 90.0, 1.0)
    assert claim.holds is True
    assert image_claims.base_claim(said, 80.0, 1.0).holds is False
    assert images._judged(said, [claim], images._scale(**images.fig3.settings_of("paper")))[0].holds is True
    assert images._judged(said, [claim], images._scale(**images.fig3.settings_of("quick")))[0].holds is None


# ---------------------------------------------------------------------------------------------- networks


@pytest.fixture
def trainings(monkeypatch, network):
    """Names of what `asx.train` was asked for; it returns the same random network each time."""
    asked: list[dict] = []

    def train(architecture, data, **options):
        asked.append(options)
        settings = {name: options[name] for name in trained_heads.IDENTITY if name != "heads"}
        settings |= {"heads": list(architecture.heads), "steps_done": options["steps"], "kept_step": 1}
        return asx.TrainedPaths(network.trained, "mean", network.history, settings)

    monkeypatch.setattr(asx, "train", train)
    return asked


class _Nothing:
    sequences = validation_inputs = validation_labels = None


TASK: Any = _Nothing()


def test_a_network_is_trained_once_and_one_of_other_settings_anew(trainings, tmp_path):
    said: list[str] = []
    recipe = trained_heads.Recipe(width=64, steps=30)
    for name in ("fig3", "fig7"):
        parts = Parts(tmp_path / name, said.append, shared=tmp_path / "shared")
        found = trained_heads.trained_network(parts, "L3H3", recipe, TASK)
        assert parts.files == {"L3H3_N64_30_steps": "../shared/L3H3_N64_30_steps.npz"}
    assert len(trainings) == 1
    assert trainings[0]["key_size"] == 21
    assert found.settings["heads"] == [3, 3, 3]
    other = trained_heads.Recipe(width=64, steps=30, learning_rate=1e-3)
    trained_heads.trained_network(parts, "L3H3", other, TASK)
    assert any("of something else and computed anew: learning_rate 0.0003, not 0.001" in line for line in said)
    trained_heads.trained_network(parts, "L3H3", trained_heads.Recipe(width=64, steps=30, seed=1), TASK)
    assert len(trainings) == 3
    names = ["L3H3_N64_30_steps.npz", "L3H3_N64_30_steps_seed_1.npz"]
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == names


def test_training_that_is_stopped_is_no_network(trainings, tmp_path, monkeypatch):
    done = asx.train

    def stopped(*args, **options):
        found = done(*args, **options)
        return asx.TrainedPaths(found.trained, "mean", found.history, {**found.settings, "steps_done": 3})

    monkeypatch.setattr(asx, "train", stopped)
    parts = Parts(tmp_path, print)
    with pytest.raises(KeyboardInterrupt):
        trained_heads.trained_network(parts, "L2H4", trained_heads.Recipe(64, 30), TASK)
    assert not list(tmp_path.glob("*.npz"))


def test_other_weights_are_told_from_these(network):
    changed = network.trained._replace(values=(network.trained.values[0], network.trained.values[1] + 1e-6))
    assert collected.fingerprint(network) != collected.fingerprint(asx.TrainedPaths(changed))


TINY = {
    "width": 16, "steps": 20, "batch": 8, "learning_rate": 1e-3, "examples": 24, "draws": 2,
    "validation_examples": 16, "test_examples": 30, "widths": [10, 100], "temperatures": [0.1, 0.5],
    "sampled": [10], "chains": 2, "warmup": 20, "sampler_draws": 8, "networks": 2, "random_orders": 10,
}  # fmt: skip


@pytest.mark.slow
def test_the_three_figures_are_made_of_a_stand_in(tmp_path, monkeypatch):
    """From images on the disk to the records; the network that all share is trained once."""
    place = write_stand_in(tmp_path / "data")
    monkeypatch.setenv("ASYMPTOTIX_DATA", str(place))
    one_shot, train, trained = asx.tasks.one_shot, asx.train, []
    monkeypatch.setattr(asx.tasks, "one_shot", lambda *args, **options: one_shot(*args, verify=False, **options))

    def counted(shape, *args, **options):
        trained.append(shape.heads)
        return train(shape, *args, **options)

    monkeypatch.setattr(asx, "train", counted)
    out, said = tmp_path / "figures", []
    for name in ("fig3", "fig6", "fig7"):
        chosen = images.__dict__[name]
        for key, value in TINY.items():
            monkeypatch.setitem(chosen.sizes["quick"].settings, key, value)
        record = reproduce.reproduce(f"paths/{name}", "quick", out, said.append)
        assert record["verdict"].startswith("0 of ")
        assert all("nan" not in claim["found"] for claim in record["claims"])
        assert (out / "paths" / name / f"{name}.png").stat().st_size > 50_000
    assert trained == [(4, 4), (4, 4), (3, 3, 3), (8, 8), (8, 8)]  # two seeds where heads go
    files = json.loads((out / "paths" / "fig6" / "record.json").read_text())["files"]
    assert "../shared/L2H4_N16_20_steps.npz" in files
    reproduce.reproduce("paths/fig3", "quick", out, said.append)
    assert said[-1] == "paths/fig3: there already"
