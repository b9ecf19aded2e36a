"""Scores of heads, order parameters of given weights, and networks without some heads, by identities."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import xarray as xr

import asymptotix as asx
from asymptotix.attention_paths.heads import empirical_order_parameter, head_scores
from asymptotix.attention_paths.network.attended_inputs import AttendedInputs
from asymptotix.attention_paths.network.path_network import AttentionPaths
from asymptotix.attention_paths.network.weights import Weights
from asymptotix.attention_paths.pruning import prune, remaining_heads, remaining_paths

ROUNDING = 1e-12  # sums of at most some hundred terms of order one in float64
HEADS = (2, 3)


def random_network(heads=HEADS, features=5, seed=0) -> AttentionPaths:
    rng = np.random.default_rng(seed)
    return AttentionPaths(query_key=[rng.standard_normal((H, features, features)) for H in heads])


def random_tokens(examples=7, seed=1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((examples, 4, 5))


def random_weights(heads=HEADS, widths=(6, 3, 4), outputs: tuple[int, ...] = (), seed=2) -> Weights:
    rng = np.random.default_rng(seed)
    V = [rng.standard_normal((H, out, into)) for H, into, out in zip(heads, widths, widths[1:], strict=False)]
    return Weights(rng.standard_normal((widths[0], 5)), V, rng.standard_normal((*outputs, widths[-1])))


def random_order_parameter(size: int, seed=3) -> np.ndarray:
    root = np.random.default_rng(seed).standard_normal((size, size))
    return root @ root.T


@pytest.fixture(scope="module")
def theory() -> asx.Result:
    tokens = random_tokens(examples=30)
    labels = np.sign(np.random.default_rng(5).standard_normal(30))
    problem = asx.PathPosterior(random_network(), tokens, labels, temperature=0.2)
    return asx.solve(problem, width=[10.0, np.inf], progress=False)


# -- names -----------------------------------------------------------------------------------------------------------


def test_layers_heads_and_paths_are_counted_from_one(theory):
    found = head_scores(theory, normalize=False)
    assert found.layer.values.tolist() == [1, 2]
    assert found["head"].values.tolist() == [1, 2, 3]
    U = abs(theory.order_parameter)
    assert U.path_label.values.tolist() == ["1-1", "1-2", "1-3", "2-1", "2-2", "2-3"]
    through = [str(path) for path in U.path_label.values if path.startswith("2-")]
    expected = U.sel(path=through, path_other=through).sum(("path", "path_other"))
    np.testing.assert_allclose(found.sel(layer=1, head=2), expected, rtol=ROUNDING)
    last = U.sel(path=["1-3", "2-3"], path_other=["1-3", "2-3"]).sum(("path", "path_other"))
    np.testing.assert_allclose(found.sel(layer=2, head=3), last, rtol=ROUNDING)
    assert theory.sel(path="2-3").order_parameter.identical(theory.isel(path=5).order_parameter)
    pruned = prune(theory, [(1, 2)])  # head 3 of layer 2, which prune counts from zero
    assert not abs(pruned.order_parameter.sel(path=["1-3", "2-3"])).any()


# -- scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["both", "either"])
def test_scores_equal_the_sum_over_pairs_of_paths(rule):
    U = random_order_parameter(6)
    expected = np.full((2, 3), np.nan)
    paths = list(itertools.product(range(2), range(3)))
    quantifier = all if rule == "both" else any
    for layer, H in enumerate(HEADS):
        for head in range(H):
            pairs = itertools.product(enumerate(paths), repeat=2)
            chosen = [(i, j) for (i, pi), (j, pj) in pairs if quantifier(p[layer] == head for p in (pi, pj))]
            expected[layer, head] = sum(abs(U[pair]) for pair in chosen)
    found = head_scores(U, rule=rule, normalize=False, heads=HEADS)
    assert found.dims == ("layer", "head")
    np.testing.assert_allclose(found, expected, rtol=ROUNDING)
    np.testing.assert_allclose(head_scores(U, rule=rule, heads=random_network()), expected / np.nanmax(expected))


def test_scores_of_several_outputs_sum_over_them():
    U = random_order_parameter(12).reshape(6, 2, 6, 2)
    expected = head_scores(abs(U).sum((1, 3)), heads=HEADS)
    np.testing.assert_allclose(head_scores(U, heads=HEADS), expected, rtol=ROUNDING)


def test_scores_of_results_keep_their_dimensions(theory):
    found = head_scores(theory)
    assert found.dims == ("width", "layer", "head")
    np.testing.assert_array_equal(found.width, [10.0, np.inf])
    assert math.isnan(found.isel(width=0, layer=0, head=2))  # the first layer has two heads
    for position in range(2):
        U = theory.order_parameter.isel(width=position).values
        np.testing.assert_allclose(found.isel(width=position), head_scores(U, heads=HEADS), rtol=ROUNDING)
    # In the Gaussian-process limit U = I, and H_1 heads share the d paths.
    both = head_scores(theory, normalize=False).isel(width=1)
    np.testing.assert_allclose(both, [[3, 3, np.nan], [2, 2, 2]], rtol=ROUNDING)


def test_runs_are_scored_one_by_one_and_with_outputs_in_any_place(theory):
    draws = np.stack([random_order_parameter(12, seed).reshape(6, 2, 6, 2) for seed in (0, 1, 2)])
    draws[2] = np.nan  # this run failed
    dims = ("seed", "path", "output", "path_other", "output_other")
    U = xr.DataArray(draws, dims=dims, coords={"seed": [4, 7, 9]}).transpose("output", "path", ...)
    runs = asx.Result(xr.Dataset({"order_parameter": U}), problem=theory.problem, kind="experiment")
    found = head_scores(runs)
    assert found.dims == ("seed", "layer", "head")
    np.testing.assert_array_equal(found.seed, [4, 7, 9])
    for k in range(2):
        np.testing.assert_allclose(found.isel(seed=k), head_scores(draws[k], heads=HEADS), rtol=ROUNDING)
    assert found.isel(seed=2).isnull().all()


@pytest.mark.filterwarnings("error")
def test_a_failed_point_and_a_zero_order_parameter_have_scores_without_a_warning(theory):
    ds = theory.ds.copy(deep=True)
    ds.order_parameter[0] = np.nan
    found = head_scores(asx.Result(ds, problem=theory.problem, kind="theory"))
    assert found.isel(width=0).isnull().all()
    np.testing.assert_array_equal(found.isel(width=1), head_scores(theory).isel(width=1))
    np.testing.assert_array_equal(head_scores(np.zeros((2, 2)), heads=(2,)), [[0, 0]])


def test_bad_scores(theory):
    U = np.eye(6)
    with pytest.raises(ValueError, match="heads must be given with an array"):
        head_scores(U)
    with pytest.raises(ValueError, match=r"order_parameter must have shape \(4, 4\), got \(6, 6\)"):
        head_scores(U, heads=(2, 2))
    with pytest.raises(ValueError, match=r"order_parameter must have shape \(6, 2, 6, 2\)"):
        head_scores(np.ones((6, 2, 6, 3)), heads=HEADS)
    with pytest.raises(ValueError, match="order_parameter must not contain nan"):
        head_scores(np.nan * U, heads=HEADS)
    with pytest.raises(TypeError, match="heads must be a sequence"):
        head_scores(U, heads=6)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rule must be one of"):
        head_scores(U, heads=HEADS, rule="all")
    with pytest.raises(ValueError, match=r"heads must be those of the result's network, \(2, 3\)"):
        head_scores(theory, heads=(3, 2))
    with pytest.raises(ValueError, match="result must have an order parameter at some point"):
        head_scores(asx.Result(theory.ds.drop_vars("order_parameter"), problem=theory.problem, kind="theory"))
    other = asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2))
    with pytest.raises(TypeError, match="result must be that of a PathPosterior problem, got one of BayesOptimal"):
        head_scores(asx.Result(theory.ds.drop_vars("order_parameter"), problem=other, kind="theory"))


# -- order parameter of given weights --------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [(), (2,)])
def test_empirical_order_parameter_is_that_of_the_effective_weights(outputs):
    network, weights = random_network(), random_weights(outputs=outputs)
    E = network.effective_weights(weights)
    expected = np.tensordot(E, E, (-1, -1)) / E.shape[-1]
    found = empirical_order_parameter(weights)
    assert found.shape == (6, *outputs, 6, *outputs)
    np.testing.assert_allclose(found, expected, rtol=ROUNDING, atol=ROUNDING)
    scaled = Weights(
        weights.V0 / math.sqrt(5),
        [V / math.sqrt(V.shape[-1]) for V in weights.V],
        weights.a / math.sqrt(weights.a.shape[-1]),
    )
    np.testing.assert_allclose(empirical_order_parameter(scaled, "fan_in"), expected, rtol=ROUNDING, atol=ROUNDING)


def test_empirical_order_parameter_averages_to_the_prior():
    rng, variances, draws = np.random.default_rng(0), (0.5, 2.0, 1.5), 2000
    U = []
    for _ in range(draws):
        shapes = ((2, 3, 6), (1, 4, 3), (4,))
        *V, a = (math.sqrt(s) * rng.standard_normal(shape) for s, shape in zip(variances, shapes, strict=True))
        U.append(empirical_order_parameter(Weights(np.ones((6, 5)), V, a)))
    error = np.std(U, axis=0) / math.sqrt(draws)
    off = np.mean(U, axis=0) - math.prod(variances) * np.eye(2)
    assert np.all(abs(off) < 4 * error)  # three entries at four standard errors: one in five thousand seeds fails


def test_bad_empirical_weights():
    weights = random_weights()
    with pytest.raises(ValueError, match="scaling must be one of 'order one', 'fan_in'"):
        empirical_order_parameter(weights, scaling="torch")
    with pytest.raises(ValueError, match=r"weights.V\[1\] must have shape \(any, any, 3\)"):
        empirical_order_parameter(weights._replace(V=(weights.V[0], weights.V[1].swapaxes(1, 2))))
    with pytest.raises(ValueError, match=r"weights.a must not contain nan"):
        empirical_order_parameter(weights._replace(a=np.nan * weights.a))


# -- pruning ---------------------------------------------------------------------------------------------------------

GONE = [(0, 1), (1, 0)]
KEPT_PATHS = [1, 2]  # (0, 1) and (0, 2) of (h_1, h_2)


def test_remaining_paths_pass_through_none_of_the_heads():
    np.testing.assert_array_equal(np.flatnonzero(remaining_paths(HEADS, GONE)), KEPT_PATHS)
    np.testing.assert_array_equal(np.flatnonzero(remaining_paths((2, 2, 2), [(1, 0)])), [2, 3, 6, 7])
    assert remaining_paths(HEADS, []).all()


def test_pruned_networks_and_data_keep_the_other_paths():
    network, tokens = random_network(), random_tokens()
    kept = network.attended(tokens)[:, KEPT_PATHS]
    small = prune(network, GONE)
    assert (small.heads, small.readout) == ((1, 2), network.readout)
    np.testing.assert_allclose(small.attended(tokens), kept, atol=ROUNDING)
    data = prune(AttendedInputs(tokens, network.attention(tokens)), GONE)
    given = prune(AttentionPaths(heads=HEADS), GONE)
    np.testing.assert_allclose(given.attended(data), kept, atol=ROUNDING)
    np.testing.assert_array_equal(prune(prune(network, GONE[:1]), GONE[1:]).attended(tokens), small.attended(tokens))
    np.testing.assert_array_equal(prune(network, GONE[::-1] + GONE).attended(tokens), small.attended(tokens))


def test_a_pruned_network_divides_by_the_heads_that_remain():
    network, tokens, weights = random_network(), random_tokens(), random_weights()
    small, values = prune(network, GONE), prune(weights, GONE)
    E, xi = network.effective_weights(weights)[KEPT_PATHS], network.attended(tokens)[:, KEPT_PATHS]
    f = np.einsum("bpi,ni,pn->b", xi, weights.V0, E) / math.sqrt(len(KEPT_PATHS) * 6 * 5)
    np.testing.assert_allclose(small.forward(values, tokens), f, atol=ROUNDING)
    whole = empirical_order_parameter(weights)[np.ix_(KEPT_PATHS, KEPT_PATHS)]
    np.testing.assert_allclose(empirical_order_parameter(values), whole, atol=ROUNDING)


def gaussian_process_mean(kernel, cross, labels, temperature):
    return cross @ np.linalg.solve(kernel + temperature * np.eye(len(labels)), labels)


def test_gaussian_process_limits_of_pruned_networks_and_results_are_kernels_of_the_remaining_paths(theory):
    problem, test = theory.problem, random_tokens(examples=9, seed=11)
    own = np.einsum("ppij->pij", problem.network.path_kernels(problem.inputs))[KEPT_PATHS].sum(0)
    cross = np.einsum("ppij->pij", problem.network.path_kernels(test, problem.inputs))[KEPT_PATHS].sum(0)
    # The pruned network has 2 paths, the pruned result the prefactor of its 6.
    small = asx.PathPosterior(prune(problem.network, GONE), problem.inputs, problem.labels, temperature=0.2)
    mean, _ = asx.solve(small, width=np.inf, progress=False).predict(test)
    expected = gaussian_process_mean(own / 2, cross / 2, problem.labels, 0.2)
    np.testing.assert_allclose(mean, expected, atol=1e-10)  # a solve with condition number of some hundred
    mean, _ = prune(theory, GONE).isel(width=1).predict(test)
    expected = gaussian_process_mean(own / 6, cross / 6, problem.labels, 0.2)
    np.testing.assert_allclose(mean, expected, atol=1e-10)


def test_pruned_results_have_zero_rows_and_can_be_evaluated(theory):
    pruned = prune(theory, GONE)
    U, whole = pruned.order_parameter.values, theory.order_parameter.values
    gone = np.setdiff1d(np.arange(6), KEPT_PATHS)
    assert not U[:, gone].any()
    assert not U[:, :, gone].any()
    block = np.ix_([0, 1], KEPT_PATHS, KEPT_PATHS)
    np.testing.assert_array_equal(U[block], whole[block])
    assert pruned.order_parameter.dims == theory.order_parameter.dims
    assert "action" in theory.ds
    assert "action" not in pruned.ds
    assert pruned.settings["pruned"] == ((0, 1), (1, 0))
    assert pruned.ok
    again = prune(prune(theory, GONE[:1]), GONE[1:])
    np.testing.assert_array_equal(again.order_parameter, U)
    assert again.settings == pruned.settings
    numbers, before = (r.evaluate(random_tokens(50), np.ones(50)) for r in (pruned, theory))
    assert numbers.test_error.dims == ("width",)
    assert np.isfinite(numbers.test_error).all()
    assert (numbers.test_error != before.test_error).all()


def test_pruned_results_can_be_saved(theory, tmp_path):
    pytest.importorskip("h5netcdf")
    pruned = prune(theory, GONE)
    pruned.save(tmp_path / "pruned.nc")
    again = asx.load(tmp_path / "pruned.nc")
    assert again.settings["pruned"] == pruned.settings["pruned"]
    np.testing.assert_array_equal(
        prune(again, [(1, 1)]).order_parameter, prune(theory, [*GONE, (1, 1)]).order_parameter
    )


def test_draws_are_pruned_and_what_is_missing_stays_so(theory):
    rng = np.random.default_rng(8)
    draws = rng.standard_normal((2, 3, 6, 6))
    draws[1, 2] = np.nan  # this run was interrupted after two draws
    ds = xr.Dataset(
        {
            "order_parameter": (("seed", "path", "path_other"), draws[:, 0]),
            "order_parameter_draws": (("seed", "draw", "path", "path_other"), draws),
            "path_weights_draws": (("seed", "draw", "path", "feature"), rng.standard_normal((2, 3, 6, 5))),
            "chain_state": (("seed", "state"), np.ones((2, 4))),
            "r_hat": ("seed", [1.0, 1.1]),
        }
    )
    pruned = prune(asx.Result(ds, problem=theory.problem, kind="experiment"), GONE)
    kept = np.isin(np.arange(6), KEPT_PATHS)
    expected = np.where(np.isnan(draws), np.nan, draws * np.outer(kept, kept))
    np.testing.assert_array_equal(pruned.order_parameter_draws, expected)
    assert "path_weights_draws" not in pruned.ds  # fitted together with what is cut: predictions come from U
    np.testing.assert_array_equal(pruned.r_hat, ds.r_hat)
    assert "chain_state" not in pruned.ds
    assert pruned.kind == "experiment"


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([(0, 0), (0, 1)], r"heads must leave layer 0 \(in words layer 1\) at least one head, got all 2 of them"),
        ([(2, 0)], r"heads must name layers from 0 to 1 \(in words 1 to 2\), got the pair \(2, 0\)"),
        (["layer 3 head 1"], r"heads must name layers from 0 to 1 .* in words 'layer 3 head 1'"),
        (["layer 1 head 0"], "heads must name heads from 0 to 1 in layer 0"),
        (["layer 1"], "words such as 'layer 1 head 2', both counted from one"),
        ("layer 1 head 1", "heads must be a sequence of pairs"),
        ([(-1, 0)], "heads must name layers from 0 to 1"),
        ([(0, 2)], "heads must name heads from 0 to 1 in layer 0"),
        ([(0, 1.5)], "heads must be an integer"),
        ((0, 1), r"heads must be a sequence of pairs \(layer, head\), both counted from 0, or .* got \(0, 1\)"),
        ([(0, 1, 2)], "heads must be a sequence of pairs"),
        (None, "heads must be a sequence of pairs"),
    ],
)
def test_bad_heads_to_prune(theory, heads, message):
    tokens = random_tokens()
    data = AttendedInputs(tokens, random_network().attention(tokens))
    kinds: list[Any] = [random_network(), AttentionPaths(heads=HEADS), data, random_weights(), theory]
    for whole in kinds:
        with pytest.raises((ValueError, TypeError), match=message):
            prune(whole, heads)
    with pytest.raises((ValueError, TypeError), match=message.replace("heads must", "without must", 1)):
        remaining_heads(HEADS, heads, name="without")


def test_words_count_heads_from_one():
    words = [f"layer {layer + 1} head {head + 1}" for layer, head in GONE]
    expected = remaining_heads(HEADS, GONE)
    for found in (remaining_heads(HEADS, words), remaining_heads(HEADS, [words[0], *GONE[1:]])):
        assert [keep.tolist() for keep in found] == [keep.tolist() for keep in expected]


def test_what_cannot_be_pruned():
    with pytest.raises(TypeError, match=r"whole must be an AttentionPaths, .* got ndarray"):
        prune(np.eye(3), [])  # type: ignore[type-var]
