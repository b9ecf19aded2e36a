"""The curvature that Newton steps use, and the search with them, on problems too small to need it."""

import numpy as np
import pytest

from asymptotix.attention_paths.theory import energy, order_parameter
from asymptotix.attention_paths.theory.action import Action
from asymptotix.attention_paths.theory.curvature import Curvature, newton_step
from asymptotix.attention_paths.theory.elimination import entropy
from asymptotix.attention_paths.theory.order_parameter import minimise, scaled_gradient


@pytest.fixture(autouse=True)
def without_a_table(monkeypatch):
    monkeypatch.setattr(energy, "table_bytes", lambda *_: 0)


def problem(heads, examples=60, features=40, temperature=0.5, width=10.0, seed=0, **options):
    """Inputs whose variance falls along token space, so that drafts can leave most of it out."""
    rng = np.random.default_rng(seed)
    spread = np.exp(-0.3 * np.arange(features)) + 0.01
    xi = rng.standard_normal((examples, int(np.prod(heads)), features)) * spread
    xi += rng.standard_normal((examples, 1, features)) * spread
    return Action(xi, np.sign(xi[:, 0, 0] + xi[:, 1, 1]), heads, temperature, width=width, **options)


def symmetric(rng, size):
    root = rng.standard_normal((size, size))
    return (root + root.T) / size


def moved(matrices, directions, t):
    """All order parameters at t along geodesics."""
    result = []
    for U, X in zip(matrices, directions, strict=True):
        values, vectors = np.linalg.eigh(U)
        root = (vectors * np.sqrt(values)) @ vectors.T
        change, axes = np.linalg.eigh(t * X)
        half = root @ axes
        result.append((half * np.exp(change)) @ half.T)
    return result


def second_difference(function, step):
    return (function(step) - 2 * function(0.0) + function(-step)) / step**2


def bend(curvature, directions):
    return sum((x * y).sum() for x, y in zip(directions, curvature(directions), strict=True))


@pytest.mark.parametrize("heads", [(6,), (2, 3), (2, 2, 2)])
def test_curvature_of_the_entropy_is_exact(heads):
    variances, ratios = np.linspace(0.6, 1.4, len(heads) + 2), np.linspace(0.5, 2, len(heads) + 1)
    # So wide that the data do not count.
    action = problem(heads, width=1e14, prior_variance=variances, width_ratios=ratios)
    rng = np.random.default_rng(1)
    root = rng.standard_normal((action.size, action.size + 2))
    U = root @ root.T / action.size
    value = action.at(U)
    curvature = Curvature(U, action, value)
    for _ in range(3):
        directions = [symmetric(rng, len(X)) for X in (U, *value.inner)]

        def along(t, directions=directions):
            first, *inner = moved([U, *value.inner], directions, t)
            return entropy(first, inner, action.layers)

        # Truncation 1e-6 and rounding 1e-15 S / 1e-6, both relative to a curvature of order one.
        np.testing.assert_allclose(bend(curvature, directions), second_difference(along, 1e-3), rtol=1e-5)


def test_curvature_of_the_energy_is_right_within_some_percent():
    action = problem((2, 4), examples=200, features=60)
    U = minimise(action, tolerance=1e-4).U
    value = action.at(U)
    curvature, still = Curvature(U, action, value), [np.zeros_like(x) for x in value.inner]
    wide = action.at_width(1e14)
    entropic = Curvature(U, wide, wide.at(U))
    rng = np.random.default_rng(2)
    for X in (np.eye(8), *(symmetric(rng, 8) for _ in range(4))):
        found = bend(curvature, [X, *still]) - bend(entropic, [X, *still])

        def along(t, X=X):
            return action._energy.at(moved([U], [X], t)[0], action.temperature).value / action.width

        # The covariance is no product of one of paths and one of token space: 10 % were seen.
        np.testing.assert_allclose(found, second_difference(along, 1e-3), rtol=0.15)


@pytest.mark.parametrize("heads", [(8,), (2, 4), (2, 2, 2)])
def test_a_newton_step_near_the_minimum_comes_much_nearer(heads):
    action = problem(heads)
    U = minimise(action, tolerance=1e-3).U
    value = action.at(U)
    after = newton_step(U, action, value)
    ratio = scaled_gradient(after, action.at(after).gradient) / scaled_gradient(U, value.gradient)
    assert ratio < 0.1  # plain steps: 0.22, 0.46, 0.81


@pytest.mark.parametrize("heads", [(8,), (2, 4), (2, 2, 2)])
@pytest.mark.parametrize("temperature", [0.5, 0.02])
def test_drafts_and_newton_steps_change_the_way_and_not_the_minimum(heads, temperature, monkeypatch):
    action = problem(heads, temperature=temperature)
    quick = minimise(action)
    monkeypatch.setattr(Action, "drafts", lambda self, coarse: iter(()))
    monkeypatch.setattr(order_parameter, "NEWTON", ())
    plain = minimise(action)
    assert quick.converged
    assert plain.converged
    assert quick.evaluations < plain.evaluations / 2
    assert (abs(quick.U - plain.U) <= quick.error + plain.error).all()
    np.testing.assert_allclose(quick.action, plain.action, rtol=1e-12)


def test_the_stated_error_after_newton_steps_covers_the_true_one():
    action = problem((2, 4))
    exact = minimise(action, tolerance=1e-11)
    for tolerance in (1e-4, 1e-6, 1e-8):
        found = minimise(action, tolerance=tolerance)
        off = abs(found.U - exact.U)
        assert (off <= found.error + exact.error).all()
        assert found.error.max() < 1e3 * (off.max() + exact.error.max())


def test_drafts_are_the_action_up_to_what_they_leave_out():
    action = problem((2, 4))
    U = minimise(action, tolerance=1e-2).U
    exact = action.at(U)
    (_, coarse), (_, single) = action.drafts(coarse=True)
    assert coarse._energy.features.shape[1] < action._energy.features.shape[1] / 2
    # Single precision; and half a percent of the variance, most of which is counted as noise.
    for draft, accuracy in ((single, 1e-5), (coarse, 5e-3)):
        value = draft.at(U)
        np.testing.assert_allclose(value.value, exact.value, rtol=accuracy)
        np.testing.assert_allclose(value.D, exact.D, atol=accuracy * abs(exact.D).max())
        np.testing.assert_allclose(value.R, exact.R, atol=accuracy * abs(exact.R).max())


def test_no_draft_is_made_where_single_precision_would_drown_the_temperature():
    assert len(list(problem((2, 4)).drafts(coarse=False))) == 1
    assert not list(problem((2, 4), temperature=1e-5).drafts(coarse=True))


def test_the_gradient_of_a_draft_is_its_derivative():
    """A coarse draft in double precision, so that differences can tell."""
    action = problem((2, 4))
    coarse = next(iter(action.drafts(coarse=True)))[1]
    coarse._energy.features = coarse._energy.features.astype(float)
    rng = np.random.default_rng(3)
    U, X = action.prior_order_parameter, symmetric(rng, 8)
    step = 1e-5
    slope = (coarse.at(U + step * X).value - coarse.at(U - step * X).value) / (2 * step)
    # Truncation and rounding of central differences: 1e-10 each.
    np.testing.assert_allclose((coarse.at(U).gradient * X).sum(), slope, rtol=1e-7)
