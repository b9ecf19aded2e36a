import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

from asymptotix.attention_paths.theory.action import Action
from asymptotix.attention_paths.theory.order_parameter import minimise, monotone_step, scaled_gradient
from asymptotix.attention_paths.theory.single_path import SinglePath
from asymptotix.core.status import Status
from reference_numbers import reference


def problem(heads, seed=0, examples=30, features=15, temperature=0.1, prior_variance: Any = 0.8, width=10.0):
    rng = np.random.default_rng(seed)
    xi = rng.standard_normal((examples, int(np.prod(heads)), features))
    return Action(xi, np.sign(xi[:, 0, 0]), heads, temperature, prior_variance, width)


def closed_form(xi, labels, layers, temperature, prior_variance, width):
    """ln U at one head per layer, where S = (L+1) U^(1/(L+1)) / s2 - ln U + energy / N."""
    values, vectors = np.linalg.eigh(xi[:, 0] @ xi[:, 0].T / xi.shape[2])
    weights = (vectors.T @ labels) ** 2

    def action(log_u):
        noise = prior_variance * np.exp(log_u) * values + temperature
        prior = (layers + 1) * np.exp(log_u / (layers + 1)) / prior_variance - log_u
        return prior + (np.log(noise) + weights / noise).sum() / width

    found: Any = minimize_scalar(action, bounds=(-8, 8), method="bounded", options={"xatol": 1e-12})
    return found.x


@pytest.mark.parametrize("heads", [(3,), (2, 2), (3, 1), pytest.param((2, 2, 2), marks=pytest.mark.slow)])
def test_plain_steps_never_raise_the_action(heads):
    action = problem(heads, temperature=0.02, width=3.0)
    root = np.random.default_rng(2).standard_normal((action.paths, action.paths))
    U = root @ root.T + 0.1 * np.eye(action.paths)
    values = [action.at(U).value]
    for _ in range(30):
        U = monotone_step(U, action)
        values.append(action.at(U).value)
    # Rounding of S, of order 100 here.
    assert np.diff(values).max() < 1e-12
    assert values[0] - values[-1] > 0.1


@pytest.mark.parametrize("heads", [(2,), (2, 3), (3, 1), (2, 1, 2), (2, 2, 2)])
@pytest.mark.parametrize("width", [2.0, 50.0])
def test_minimum_is_found_and_the_same_from_another_start(heads, width):
    action = problem(heads, width=width)
    found = minimise(action)
    assert found.converged
    assert found.words == "converged"
    assert found.gradient_norm <= 1e-8
    assert scaled_gradient(found.U, action.at(found.U).gradient) < 2e-8
    other = minimise(action, start=np.diag(np.linspace(0.1, 5.0, action.paths)))
    np.testing.assert_allclose(other.action, found.action, rtol=1e-12)
    # A gradient of 1e-8 over Hessian eigenvalues that are seldom below 0.05.
    np.testing.assert_allclose(other.U, found.U, atol=1e-6 * np.abs(found.U).max())


@pytest.mark.parametrize("heads", [(2, 2), (2, 1, 2)])
def test_same_answer_as_a_general_minimiser(heads):
    action = problem(heads)
    found = minimise(action)
    lower = np.tril_indices(action.paths)

    def objective(x):
        root = np.zeros((action.paths, action.paths))
        root[lower] = x
        value = action.at(root @ root.T)
        return value.value, 2 * (value.gradient @ root)[lower]

    start = np.linalg.cholesky(action.prior_order_parameter)[lower]
    # Tight beyond what L-BFGS can reach, so that it ends at rounding of S: |dU| ~ sqrt(1e-15 S / curvature) ~ 1e-7.
    general = minimize(objective, start, jac=True, method="L-BFGS-B", options={"ftol": 1e-16, "gtol": 1e-9})
    root = np.zeros((action.paths, action.paths))
    root[lower] = general.x
    np.testing.assert_allclose(found.action, general.fun, rtol=1e-12)
    np.testing.assert_allclose(found.U, root @ root.T, atol=2e-6)


def test_one_head_per_layer_is_the_closed_form_and_the_reference():
    rng = np.random.default_rng(5)
    for case in reference("attention_paths")["h1_closed_form"]:
        xi = rng.standard_normal((case["P"], 100, 1)).transpose(0, 2, 1)
        labels = 2.0 * np.sign(rng.standard_normal(case["P"]))
        action = Action(xi, labels, (1,) * case["L"], 0.05, 1.0, case["N"])
        found = minimise(action, tolerance=1e-10)
        assert found.converged
        # A bounded scalar search on S resolves ln U to the square root of the rounding of S, about 3e-8.
        np.testing.assert_allclose(found.U.item(), case["U_corrected_H1_action"], rtol=1e-6)
        np.testing.assert_allclose(
            np.log(found.U.item()), closed_form(xi, labels, case["L"], 0.05, 1.0, case["N"]), atol=1e-6
        )
        # u^(l) = U^((L+2-l)/(L+1)), l = 2..L+1
        L = case["L"]
        expected = [found.U.item() ** ((L + 2 - layer) / (L + 1)) for layer in range(2, L + 2)]
        np.testing.assert_allclose([x.item() for x in found.inner], expected, rtol=1e-10)


def test_one_head_per_layer_at_another_prior_variance():
    rng = np.random.default_rng(8)
    xi, labels = rng.standard_normal((40, 1, 60)), np.sign(rng.standard_normal(40))
    found = minimise(Action(xi, labels, (1, 1), 0.2, 0.6, 12.0), tolerance=1e-10)
    np.testing.assert_allclose(np.log(found.U.item()), closed_form(xi, labels, 2, 0.2, 0.6, 12.0), atol=1e-6)


def test_infinite_width_is_the_gaussian_process():
    found = minimise(problem((2, 3), width=np.inf))
    np.testing.assert_allclose(found.U, 0.8**3 * np.eye(6), rtol=1e-15)
    np.testing.assert_allclose(found.inner[1], [[0.8]], rtol=1e-12)
    assert found.converged
    assert found.evaluations == 1
    variances = (0.9, 0.5, 1.5, 0.7)
    np.testing.assert_allclose(
        minimise(problem((2, 3), width=np.inf, prior_variance=variances)).U, 0.5 * 1.5 * 0.7 * np.eye(6), rtol=1e-15
    )


def test_large_width_approaches_the_gaussian_process():
    action = problem((2, 2))
    limit = action.prior_order_parameter
    gaps = [np.abs(minimise(action.at_width(N)).U - limit).max() for N in (1e4, 1e6)]
    # The correction is of first order in 1/N.
    np.testing.assert_allclose(gaps[0] / gaps[1], 100.0, rtol=0.05)


def test_a_budget_that_is_spent_is_reported():
    found = minimise(problem((2, 2), width=2.0), max_steps=4)
    assert found.status is Status.NOT_CONVERGED
    assert 4 <= found.evaluations <= 5
    assert found.words.startswith("not converged after")
    assert found.gradient_norm > 1e-8


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize(("heads", "width"), [((3,), 2.0), ((2, 2), 5.0), ((2, 1, 2), 50.0)])
def test_the_stated_error_covers_the_true_one(heads, width, tolerance):
    """Against a search that goes on to 1e-12; a bound that exceeds the truth a thousand times would say nothing."""
    action = problem(heads, temperature=0.02, width=width)
    found, exact = minimise(action, tolerance=tolerance), minimise(action, tolerance=1e-12, max_steps=1000)
    off = abs(found.U - exact.U)
    assert (off <= found.error + exact.error).all()
    assert found.error.max() < 1e3 * (off.max() + exact.error.max())
    assert abs(found.action - exact.action) <= found.action_error + exact.action_error
    assert np.allclose(found.error, found.error.T)


def test_the_error_of_one_path_covers_the_distance_from_the_closed_form():
    rng = np.random.default_rng(3)
    xi, labels = rng.standard_normal((40, 1, 10)), 2.0 * rng.standard_normal(40)
    exact = closed_form(xi, labels, 2, 0.1, 1.0, 5.0)
    single = SinglePath(xi, labels, 2, 0.1).minimise(5.0)
    # The scalar search finds a minimum to the square root of the rounding of S: 1e-7.
    assert abs(np.log(single.U.item()) - exact) < 1e-7
    assert 0 < single.error.item() < 1e-12 * single.U.item()  # rounding of a slope whose terms sum up to a hundred
    for tolerance in (1e-3, 1e-6):
        found = minimise(Action(xi, labels, (1, 1), 0.1, 1.0, 5.0), tolerance=tolerance)
        off = abs(found.U - single.U).item()
        assert single.error.item() < off <= found.error.item() < 100 * off


def test_a_tolerance_out_of_reach_ends_with_a_finite_answer():
    found = minimise(problem((2, 2)), tolerance=1e-300, max_steps=60)
    assert found.status in (Status.INACCURATE, Status.NOT_CONVERGED)
    assert found.gradient_norm < 1e-10


def test_labels_that_a_path_explains_strengthen_that_path():
    rng = np.random.default_rng(1)
    xi = rng.standard_normal((60, 4, 30))
    labels = 3.0 * xi[:, 2] @ rng.standard_normal(30) / np.sqrt(30)
    U = minimise(Action(xi, labels, (2, 2), 0.01, 1.0, 5.0)).U
    assert np.argmax(np.diag(U)) == 2
    assert np.diag(U)[2] > 3 * np.delete(np.diag(U), 2).max()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"start": np.eye(3)}, r"start must have shape \(4, 4\), got \(3, 3\)"),
        ({"start": np.triu(np.ones((4, 4)))}, "start must be symmetric"),
        ({"start": -np.eye(4)}, "start must be positive definite, got smallest eigenvalue -1"),
        ({"tolerance": 0.0}, "tolerance must be positive, got 0"),
        ({"max_steps": 0}, "max_steps must be an integer of at least 1, got 0"),
    ],
)
def test_bad_input_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        minimise(problem((2, 2)), **given)


TIMED = """
import time
import numpy as np
from asymptotix.attention_paths.theory.action import Action
from asymptotix.attention_paths.theory.order_parameter import minimise
rng = np.random.default_rng(0)
xi = rng.standard_normal((100, 4, 231))
labels = np.sign(xi[:, 0] @ rng.standard_normal(231))
begin = time.process_time()
assert minimise(Action(xi, labels, (2, 2), 0.01, 1.0, 10.0)).converged
print(time.process_time() - begin)
"""


def test_two_layers_of_two_heads_take_less_than_half_a_second():
    # One BLAS thread: on a busy machine several threads spend their time waiting for one another.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    run = subprocess.run([sys.executable, "-c", TIMED], env=environment, capture_output=True, text=True, check=True)
    assert float(run.stdout) < 0.5


def test_a_large_action_is_minimised_beyond_its_own_rounding():
    """Labels out of reach of the inputs at a low temperature: S is a million, and its last digits say nothing."""
    rng = np.random.default_rng(2)
    xi = 2 * rng.standard_normal((12, 2, 3))
    action = Action(xi, 20 * rng.choice([-1.0, 1.0], size=(12, 2)), (1, 2), 1e-4, width=20.0)
    found = minimise(action)
    assert found.action > 1e5
    assert found.converged, found.words
    assert scaled_gradient(found.U, action.at(found.U).gradient) < 1e-8
