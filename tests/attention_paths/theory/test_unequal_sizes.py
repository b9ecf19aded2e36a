"""Layers of different widths and prior variances: gradients, descent, elimination, exact identities, bad input."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.attention_paths.theory import elimination
from asymptotix.attention_paths.theory.action import Action
from asymptotix.attention_paths.theory.elimination import Layers, eliminate, entropy
from asymptotix.attention_paths.theory.order_parameter import minimise, monotone_step

# Heads, outputs, ratios of widths. With H_l r_l < r_{l+1} the linear term of the Riccati equation is negative.
CASES = [
    ((3,), 1, (0.4, 2.0)),
    ((2,), 3, (0.2, 1.5)),
    ((2, 2), 1, (0.3, 2.0, 0.7)),
    ((2, 1), 1, (0.2, 1.0, 3.0)),
    ((2, 2), 2, (2.0, 0.5, 1.5)),
    ((1, 2), 3, (0.5, 2.0, 0.3)),
    ((2, 1, 2), 1, (0.5, 2.0, 1.0, 4.0)),
    ((2, 2, 1), 2, (1.5, 0.4, 2.0, 1.0)),
]


def random_spd(rng, size, scale=1.0):
    root = rng.standard_normal((size, size + 2))
    return scale * (root @ root.T / size + 0.1 * np.eye(size))


def random_action(heads, outputs, ratios, width=6.0, temperature=0.2, examples=10, prior_variance: Any = None, seed=0):
    rng = np.random.default_rng(seed)
    xi = rng.standard_normal((examples, int(np.prod(heads)), 7))
    labels = rng.standard_normal(examples if outputs == 1 else (examples, outputs))
    if prior_variance is None:
        prior_variance = rng.uniform(0.5, 1.5, len(heads) + 2).tolist()
    return Action(xi, labels, heads, temperature, prior_variance, width, ratios)


def slope_along(function, U, direction, step=1e-5):
    return (function(U + step * direction) - function(U - step * direction)) / (2 * step)


@pytest.mark.parametrize(("heads", "outputs", "ratios"), CASES)
def test_gradient_is_the_derivative_of_the_action(heads, outputs, ratios):
    action = random_action(heads, outputs, ratios)
    rng = np.random.default_rng(1)
    U = random_spd(rng, action.size)
    gradient = action.at(U).gradient
    np.testing.assert_allclose(gradient, gradient.T, atol=1e-12 * np.abs(gradient).max())
    for _ in range(6):
        direction = rng.standard_normal(U.shape)
        direction += direction.T
        # Central differences leave step^2 times the third derivative and rounding of S over the step: 1e-8 of S.
        expected = slope_along(lambda V: action.at(V).value, U, direction)
        np.testing.assert_allclose((gradient * direction).sum(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("heads", "outputs", "ratios"), CASES)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_eliminated_order_parameters_are_stationary(heads, outputs, ratios, scale):
    rng = np.random.default_rng(4)
    layers = Layers(heads, tuple(rng.uniform(0.5, 1.5, len(heads) + 1).tolist()), ratios)
    U = random_spd(rng, layers.paths * outputs, scale)
    inner = eliminate(U, layers)
    for place, X in enumerate(inner):

        def shifted(Z, place=place):
            return entropy(U, [*inner[:place], Z, *inner[place + 1 :]], layers)

        # Relative moves X -> X^1/2 (1 + e) X^1/2: S_0 changes by its own size times e where it is not stationary.
        root = np.linalg.cholesky(X)
        for _ in range(3):
            move = rng.standard_normal(X.shape)
            slope = slope_along(shifted, X, root @ (move + move.T) @ root.T)
            assert abs(slope) < 1e-6 * (1 + abs(entropy(U, inner, layers)))


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "outputs", "ratios"), CASES)
def test_plain_steps_never_raise_the_action(heads, outputs, ratios):
    action = random_action(heads, outputs, ratios, width=3.0, temperature=0.05)
    U = random_spd(np.random.default_rng(2), action.size)
    values = [action.at(U).value]
    for _ in range(15):
        U = monotone_step(U, action)
        values.append(action.at(U).value)
    # Rounding of S, of order 100 here.
    assert max(after - before for before, after in pairwise(values)) < 1e-11
    assert values[0] - values[-1] > 0.1


@pytest.mark.parametrize(("heads", "outputs", "ratios"), CASES)
def test_minimum_is_found_and_the_same_from_another_start(heads, outputs, ratios):
    action = random_action(heads, outputs, ratios)
    found = minimise(action)
    assert found.converged
    other = minimise(action, start=np.diag(np.linspace(0.2, 3.0, action.size)))
    # A gradient of 1e-8 over Hessian eigenvalues that are seldom below 0.05.
    np.testing.assert_allclose(other.U, found.U, atol=1e-6 * np.abs(found.U).max())


@pytest.mark.parametrize(("heads", "outputs"), [((2, 2), 1), ((2, 2), 2), ((2, 1, 2), 1)])
def test_only_the_widths_themselves_matter(heads, outputs):
    ones = (1.0,) * (len(heads) + 1)
    plain = minimise(random_action(heads, outputs, None, width=6.0))
    equal = minimise(random_action(heads, outputs, ones, width=6.0))
    np.testing.assert_array_equal(equal.U, plain.U)
    twice = minimise(random_action(heads, outputs, tuple(2 * r for r in ones), width=3.0))
    # Both within 1e-8 of the minimum in the scaled gradient.
    np.testing.assert_allclose(twice.U, plain.U, atol=1e-6 * np.abs(plain.U).max())
    np.testing.assert_allclose(twice.action, 2 * plain.action, rtol=1e-12)


@pytest.mark.parametrize(("heads", "outputs", "ratios"), CASES)
def test_variances_matter_through_their_product(heads, outputs, ratios):
    # Dividing all weights by their standard deviations leaves f times the root of the product; the kernels s_0 U agree.
    variances = np.linspace(0.6, 1.4, len(heads) + 2)
    first = random_action(heads, outputs, ratios, prior_variance=variances)
    second = random_action(heads, outputs, ratios, prior_variance=[np.prod(variances)] + [1.0] * (len(heads) + 1))
    one, two = minimise(first), minimise(second)
    np.testing.assert_allclose(one.U, two.U * np.prod(variances[1:]), atol=1e-6 * np.abs(one.U).max())


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_wide_layer_with_one_head_drops_out(outputs):
    rng = np.random.default_rng(3)
    xi, labels = rng.standard_normal((20, 2, 9)), rng.standard_normal((20, outputs))
    deep = minimise(Action(xi, labels, (2, 1), 0.1, (0.9, 0.8, 1.2, 0.7), 8.0, (1.0, 1e7, 1.5)))
    flat = minimise(Action(xi, labels, (2,), 0.1, (0.9, 0.8, 1.2 * 0.7), 8.0, (1.0, 1.5)))
    # What is left of the wide layer is of order 1e-7.
    np.testing.assert_allclose(deep.U, flat.U, atol=1e-5)
    np.testing.assert_allclose(deep.inner[0], 1.2 * deep.inner[1], rtol=1e-5)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_wide_readout_stays_at_its_prior(outputs):
    found = minimise(random_action((2, 2), outputs, (1.0, 0.5, 1e7), prior_variance=(1.0, 0.8, 1.1, 0.6)))
    np.testing.assert_allclose(found.inner[-1], 0.6 * np.eye(outputs), atol=1e-5)
    assert np.abs(found.U - 0.8 * 1.1 * 0.6 * np.eye(4 * outputs)).max() > 0.1


def posterior(**options):
    rng = np.random.default_rng(3)
    tokens = rng.normal(size=(30, 4, 6))
    network = asx.AttentionPaths(query_key=tuple(rng.normal(size=(2, 6, 6)) / 6 for _ in range(2)))
    settings: dict[str, Any] = {"temperature": 0.1} | options
    return asx.PathPosterior(network, tokens, np.sign(rng.normal(size=30)), **settings)


def test_the_problem_hands_its_widths_and_variances_over():
    variances, ratios = (0.9, 0.8, 1.2, 0.7), (1.0, 0.5, 2.0)
    problem = posterior(prior_variance=list(variances), width_ratios=np.array(ratios))
    assert problem.prior_variances == problem.prior_variance == variances
    assert problem.widths(20) == (20.0, 10.0, 40.0)
    theory = asx.solve(problem, width=20, progress=False)
    action = Action(problem.attended, problem.labels, (2, 2), 0.1, variances, 20, ratios)
    np.testing.assert_allclose(theory.order_parameter, minimise(action).U, rtol=1e-12)
    # The projection's variance, not another's, scales the kernel.
    K = variances[0] / (4 * 6) * np.einsum("pq,apx,bqx->ab", theory.order_parameter, problem.attended, problem.attended)
    mean = K @ np.linalg.solve(K + 0.1 * np.eye(30), problem.labels)
    np.testing.assert_allclose(theory.predict(problem.inputs)[0], mean, atol=1e-10)
    assert posterior().prior_variances == (1.0,) * 4
    assert posterior().widths(7) == (7.0, 7.0, 7.0)
    assert posterior().widths(np.inf) == (np.inf,) * 3
    assert posterior(width_ratios=(0.7, 1.1, 0.3)).widths(10) == (7.0, 11.0, 3.0)


def test_a_single_prior_variance_can_be_swept_and_several_cannot():
    theory = asx.solve(posterior(), width=20, prior_variance=[0.5, 1.0], progress=False)
    alone = asx.solve(posterior(prior_variance=0.5), width=20, progress=False)
    np.testing.assert_allclose(theory.order_parameter.sel(prior_variance=0.5), alone.order_parameter, rtol=1e-12)
    test = np.random.default_rng(0).normal(size=(5, 4, 6))
    np.testing.assert_allclose(theory.predict(test)[1].sel(prior_variance=0.5), alone.predict(test)[1], rtol=1e-10)
    with pytest.raises(TypeError, match="'prior_variance' is no control"):
        asx.solve(posterior(prior_variance=(1.0,) * 4), width=20, prior_variance=[0.5, 1.0], progress=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width_ratios": (1.0, 1.0)}, r"width_ratios must be 3 numbers .*got \(1.0, 1.0\)"),
        ({"width_ratios": (1.0, 0.0, 1.0)}, "width_ratios must be positive, got 0"),
        ({"width_ratios": (1.0, np.inf, 1.0)}, "width_ratios must be finite"),
        ({"prior_variance": (1.0, 1.0)}, r"prior_variance must be one number or 4 numbers .*got \(1.0, 1.0\)"),
        ({"prior_variance": (1.0, 1.0, -0.5, 1.0)}, "prior_variance must be positive, got -0.5"),
        ({"prior_variance": np.inf}, "prior_variance must be .*finite, got inf"),
    ],
)
def test_bad_sizes_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        posterior(**change)
    with pytest.raises(ValueError, match=message):
        random_action((2, 2), 1, **({"ratios": change.pop("width_ratios", None)} | change))


def test_an_elimination_that_does_not_converge_is_said(monkeypatch):
    monkeypatch.setattr(elimination, "PLAIN_SWEEPS", 1)
    monkeypatch.setattr(elimination, "MAX_SWEEPS", 1)
    layers = elimination.Layers((2, 2, 2), (1.0,) * 4, (1.0, 30.0, 0.1, 1.0))
    U = np.diag(np.linspace(0.1, 5.0, 8))
    with pytest.raises(FloatingPointError, match=r"deeper layers still move by .* after 1 sweeps"):
        elimination.eliminate(U, layers)
