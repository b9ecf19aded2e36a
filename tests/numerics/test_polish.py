import numpy as np
import pytest

from asymptotix.numerics.iteration import fixed_point
from asymptotix.numerics.polish import finite_jacobian, polish, spectral_radius

SLOPES = np.array([[0.5, 0.2], [0.9, -0.3], [0.99, 0.0]])


def step(x, lanes):
    a, b = SLOPES[lanes].T
    return np.stack([a * np.tanh(x[:, 0]) + b * x[:, 1] + 0.1, 0.3 * np.sin(x[:, 0]) + 0.2 * x[:, 1]], axis=1)


def exact_jacobian(x, lane):
    a, b = SLOPES[lane]
    return np.array([[a / np.cosh(x[0]) ** 2, b], [0.3 * np.cos(x[0]), 0.2]])


@pytest.mark.parametrize("lane", [0, 1, 2])
def test_finite_jacobian_matches_the_derivative(lane):
    x = np.array([0.7, -1.3])
    # Central differences with h = 1e-5: truncation h^2 and rounding 1e-16 / h, both 1e-11 to 1e-10.
    assert finite_jacobian(step, x, lane) == pytest.approx(exact_jacobian(x, lane), abs=1e-9)


def test_finite_jacobian_names_bad_arguments():
    with pytest.raises(ValueError, match="x must have shape"):
        finite_jacobian(step, np.zeros((1, 2)))
    with pytest.raises(ValueError, match="h must be positive"):
        finite_jacobian(step, np.zeros(2), 0, h=0.0)


@pytest.mark.parametrize("given", [False, True])
def test_polish_reaches_rounding_in_a_few_steps(given):
    rough = fixed_point(step, np.zeros((3, 2)), tolerance=1e-4, max_steps=500)
    jacobian = np.array([exact_jacobian(x, lane) for lane, x in enumerate(rough.x)]) if given else None
    end = polish(step, rough.x, jacobian, tolerance=1e-13, max_steps=6)
    assert end.converged.all(), end.status
    assert (end.steps <= 6).all()
    assert np.abs(step(end.x, np.arange(3)) - end.x).max() < 1e-13
    assert end.x.shape == (3, 2)
    assert np.array_equal(end.trace[0][0], rough.x[0])


def test_polish_of_a_linear_map_takes_one_step():
    jacobian = np.array([[0.2, 0.7], [-0.4, 0.1]])
    end = polish(lambda x, lanes: x @ jacobian.T + 1, np.zeros(2), jacobian, tolerance=1e-12)
    assert end.steps.tolist() == [1]
    assert end.x == pytest.approx(np.linalg.solve(np.eye(2) - jacobian, [1.0, 1.0]), abs=1e-13)


def test_polish_never_makes_it_worse_and_says_so():
    wrong = np.full((1, 1), 3.0)
    end = polish(lambda x, lanes: 0.5 * x, [1.0], wrong, tolerance=1e-12)
    assert end.x.tolist() == [1.0]
    assert end.status[0].startswith("not converged: polishing stalled at step 1 (residual 0.5)")
    singular = polish(lambda x, lanes: 0.5 * x, [1.0], np.eye(1), tolerance=1e-12)
    assert "I - J is singular" in singular.status[0]
    short = polish(lambda x, lanes: np.cos(x), [0.0], tolerance=1e-15, max_steps=1)
    assert not short.converged[0]
    assert "not" in short.status[0]


def test_polish_names_a_bad_jacobian():
    with pytest.raises(ValueError, match=r"jacobian must have shape \(3, 2, 2\) or \(2, 2\)"):
        polish(step, np.zeros((3, 2)), np.zeros((2, 2, 2)), tolerance=1e-9)


def test_spectral_radius_tells_stable_from_unstable():
    def tanh_step(x, lanes):
        return np.tanh(1.5 * x)

    assert spectral_radius(finite_jacobian(tanh_step, np.zeros(1))) == pytest.approx(1.5, abs=1e-8)
    magnetised = polish(tanh_step, [0.85], tolerance=1e-14).x
    assert spectral_radius(finite_jacobian(tanh_step, magnetised)) == pytest.approx(
        1.5 * (1 - magnetised[0] ** 2), abs=1e-8
    )
    rotation = np.array([[0.0, -0.8], [0.8, 0.0]])
    assert spectral_radius(np.stack([rotation, 2 * rotation])) == pytest.approx([0.8, 1.6], rel=1e-14)
