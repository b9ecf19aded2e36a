import tracemalloc

import numpy as np
import pytest

from asymptotix.attention_paths.theory import energy
from asymptotix.attention_paths.theory.action import Action, required_bytes
from asymptotix.attention_paths.theory.elimination import Layers, eliminate, entropy, partial_trace, riccati

NETWORKS = [(3,), (2, 2), (3, 1), (1, 3), (2, 2, 2), (2, 1, 3)]


def random_spd(rng, size):
    root = rng.standard_normal((size, size + 2))
    return root @ root.T / size + 0.1 * np.eye(size)


def random_action(heads, seed=0, examples=12, features=9, width=7.0, prior_variance=None, temperature=0.3):
    rng = np.random.default_rng(seed)
    xi = rng.standard_normal((examples, int(np.prod(heads)), features))
    labels = np.sign(rng.standard_normal(examples))
    if prior_variance is None:
        prior_variance = rng.uniform(0.5, 1.5, len(heads) + 2).tolist()
    return xi, labels, Action(xi, labels, heads, temperature, prior_variance, width)


def numerical_gradient(function, U, step=1e-5):
    """Central differences along E_ij + E_ji, halved: the symmetric gradient."""
    gradient = np.zeros_like(U)
    for i, j in zip(*np.triu_indices(len(U)), strict=True):
        direction = np.zeros_like(U)
        direction[i, j] += 0.5
        direction[j, i] += 0.5
        slope = (function(U + step * direction) - function(U - step * direction)) / (2 * step)
        gradient[i, j] = gradient[j, i] = slope
    return gradient


@pytest.mark.parametrize("heads", NETWORKS)
def test_gradient_is_the_derivative_of_the_action(heads):
    _, _, action = random_action(heads)
    U = random_spd(np.random.default_rng(1), action.paths)
    expected = numerical_gradient(lambda V: action.at(V).value, U)
    # Central differences with step 1e-5 leave about 1e-10 of truncation and 1e-10 of rounding, times third derivatives.
    np.testing.assert_allclose(action.at(U).gradient, expected, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize(("examples", "features"), [(12, 9), (3, 50), (20, 4)])
def test_energy_and_its_slopes_are_those_of_the_explicit_kernels(examples, features):
    heads, temperature = (2, 2), 0.3
    xi, labels, action = random_action(heads, examples=examples, features=features, temperature=temperature)
    U = random_spd(np.random.default_rng(1), 4)
    C = np.einsum("apx,bqx->pqab", xi, xi) / features
    share = action.prior_variances[0] / 4
    K = share * np.einsum("pq,pqab->ab", U, C)
    A = np.linalg.inv(K + temperature * np.eye(examples))
    v = A @ labels
    value = action.at(U)
    found = energy.Energy(xi, labels[:, None], action.prior_variances[0]).at(U, temperature)
    np.testing.assert_allclose(found.mean_weights[:, 0], v, atol=1e-10)
    np.testing.assert_allclose(value.D, share * np.einsum("ab,pqab->pq", A, C), atol=1e-10)
    np.testing.assert_allclose(value.R, share * np.einsum("a,pqab,b->pq", v, C, v), atol=1e-10)
    expected = np.linalg.slogdet(K + temperature * np.eye(examples))[1] + labels @ v
    np.testing.assert_allclose(found.value, expected, rtol=1e-11)
    least_entropy = entropy(U, eliminate(U, action.layers), action.layers)
    np.testing.assert_allclose(value.value, least_entropy + found.value / action.width, rtol=1e-14)


def test_inputs_of_low_rank_are_compressed_without_changing_the_action():
    rng = np.random.default_rng(3)
    xi = rng.standard_normal((20, 4, 3)) @ rng.standard_normal((3, 40))
    # A random part of relative size 1e-5 keeps the rank full, and the action changes by as little.
    spread = xi + 1e-5 * rng.standard_normal(xi.shape)
    labels, U = np.ones(20), random_spd(rng, 4)
    low, full = (Action(x, labels, (2, 2), 0.5, width=5.0) for x in (xi, spread))
    assert low._energy.features.shape == (4, 3, 20)
    assert full._energy.features.shape == (4, 40, 20)
    np.testing.assert_allclose(low.at(U).value, full.at(U).value, rtol=1e-4)


@pytest.mark.parametrize("heads", NETWORKS)
def test_eliminated_order_parameters_are_stationary(heads):
    rng = np.random.default_rng(4)
    variances = tuple(rng.uniform(0.5, 1.5, len(heads) + 1).tolist())
    layers = Layers(heads, variances, (1.0,) * len(variances))
    U = random_spd(rng, layers.paths)
    inner = eliminate(U, layers)
    for layer, X in enumerate(inner):

        def shifted(Z, layer=layer):
            return entropy(U, [*inner[:layer], Z, *inner[layer + 1 :]], layers)

        # Same accuracy of central differences as above; the entropy is of order ten.
        np.testing.assert_allclose(numerical_gradient(shifted, X, 1e-5 * np.abs(X).max()), 0.0, atol=1e-6)


def test_sweeps_end_at_the_same_point_from_any_start():
    rng = np.random.default_rng(5)
    layers = Layers((2, 2, 2), (0.7, 1.3, 0.9, 1.1), (1.0, 1.0, 1.0, 1.0))
    U = random_spd(rng, 8)
    first = eliminate(U, layers)
    second = eliminate(U, layers, [random_spd(rng, 4), random_spd(rng, 2), np.array([[7.0]])])
    for x, y in zip(first, second, strict=True):
        # Sweeps stop at relative changes of 1e-13 and contract by 1/2 or better.
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("c", [-1.0, 0.0, 2.5])
def test_riccati_root(c):
    rng = np.random.default_rng(6)
    A, B = random_spd(rng, 5), random_spd(rng, 5)
    X = riccati(A, B, c)
    np.testing.assert_allclose(X @ A @ X + c * X, B, atol=1e-12 * np.abs(B).max())
    assert np.linalg.eigvalsh(X).min() > 0


def test_partial_trace_is_over_the_slow_index():
    small = np.array([[2.0, 1.0], [1.0, 3.0]])
    extended = np.asarray(np.kron(np.diag([1.0, 4.0, 5.0]), small), dtype=float)
    np.testing.assert_allclose(partial_trace(extended, 3), 10 * small)


def test_the_prior_order_parameter_is_stationary_without_data():
    _, _, action = random_action((2, 3, 2), width=np.inf)
    value = action.at(action.prior_order_parameter)
    np.testing.assert_allclose(value.gradient, 0.0, atol=1e-11)
    np.testing.assert_allclose(value.inner[-1], [[action.prior_variances[-1]]], rtol=1e-11)


def test_another_width_is_building_anew():
    xi, labels, action = random_action((2, 2), prior_variance=0.8)
    U = random_spd(np.random.default_rng(1), 4)
    anew = Action(xi, labels, (2, 2), 0.3, 0.8, 30.0)
    assert action.at_width(30.0).at(U).value == anew.at(U).value
    assert action.width == 7.0


def test_memory_estimate_covers_what_is_used():
    examples, paths, features = 60, 16, 100
    rng = np.random.default_rng(0)
    xi = rng.standard_normal((examples, paths, features))
    labels = np.ones(examples)
    tracemalloc.start()
    Action(xi, labels, (4, 4), 0.5, width=10.0).at(np.eye(paths))
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.4 * required_bytes(examples, paths, features) < used <= required_bytes(examples, paths, features)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"heads": (2, 3)}, r"xi must have shape \(any, 6, any\)"),
        ({"heads": ()}, "heads must name at least one layer"),
        ({"heads": (0, 4)}, "heads must be an integer of at least 1, got 0"),
        ({"labels": np.ones(4)}, "labels must have shape"),
        ({"temperature": 0.0}, "temperature must be positive, got 0"),
        ({"width": -1.0}, "width must be positive, got -1"),
        ({"prior_variance": (1.0, 1.0)}, "prior_variance must be one number or 4 numbers"),
        ({"prior_variance": -2.0}, "prior_variance must be positive, got -2"),
        ({"prior_variance": np.inf}, "prior_variance must be .*finite"),
        ({"xi": np.full((5, 4, 3), np.nan)}, "xi must not contain nan"),
    ],
)
def test_bad_input_is_named(changed, message):
    given = {"xi": np.ones((5, 4, 3)), "labels": np.ones(5), "heads": (2, 2), "temperature": 0.1} | changed
    with pytest.raises(ValueError, match=message):
        Action(**given)


def test_an_order_parameter_that_is_not_one_is_named():
    _, _, action = random_action((2, 2))
    with pytest.raises(ValueError, match=r"U must have shape \(4, 4\), got \(3, 3\)"):
        action.at(np.eye(3))
    with pytest.raises(np.linalg.LinAlgError, match="U must be positive definite, got smallest eigenvalue -1"):
        action.at(np.diag([1.0, 1.0, 1.0, -1.0]))


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_kernel_beyond_double_precision_is_named(outputs):
    # Equal inputs of kernel one: the second pivot of the Cholesky factor is exactly zero.
    action = Action(np.ones((3, 1, 1)), np.ones((3, outputs)), (1,), 1e-300, 1.0, 10.0)
    with pytest.raises(np.linalg.LinAlgError, match=r"not positive definite .* at temperature 1e-300: a higher"):
        action.at(np.eye(outputs))


@pytest.mark.parametrize("heads", [(2,), (2, 3), (1, 2, 2)])
def test_table_of_inner_products_gives_what_the_inputs_give(heads, monkeypatch):
    """The same sums in another order: equal up to rounding."""
    rng = np.random.default_rng(len(heads))
    d = int(np.prod(heads))
    xi, labels = rng.normal(size=(20, d, 7)), np.sign(rng.normal(size=20))
    half = rng.normal(size=(d, d + 2))
    U = half @ half.T / d
    stored = Action(xi, labels, heads, 0.1, 0.7, 6.0).at(U)
    monkeypatch.setattr(energy, "table_bytes", lambda *_: 0)
    streamed = Action(xi, labels, heads, 0.1, 0.7, 6.0).at(U)
    assert stored.value == pytest.approx(streamed.value, rel=1e-12)
    for name in ("D", "R", "gradient"):
        np.testing.assert_allclose(getattr(stored, name), getattr(streamed, name), rtol=1e-9, atol=1e-9)
