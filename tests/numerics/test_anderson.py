import numpy as np
import pytest
from scipy.optimize import brentq

from asymptotix.numerics.anderson import Anderson
from asymptotix.numerics.iteration import fixed_point


def magnetisation(slope):
    """Positive solution of m = tanh(slope m)."""
    return brentq(lambda m: np.tanh(slope * m) - m, 0.1, 1.0, xtol=1e-14)


def linear_map(size, seed, radius=0.95):
    """J and b of x -> J x + b with a dense, non-symmetric J of given spectral radius, and its fixed point."""
    rng = np.random.default_rng(seed)
    jacobian = rng.standard_normal((size, size))
    jacobian *= radius / np.abs(np.linalg.eigvals(jacobian)).max()
    offset = rng.standard_normal(size)
    return jacobian, offset, np.linalg.solve(np.eye(size) - jacobian, offset)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_linear_map_is_solved_in_n_plus_one_steps(size):
    jacobian, offset, solution = linear_map(size, seed=3)
    end = fixed_point(lambda x: jacobian @ x + offset, np.zeros(size), tolerance=1e-9, max_steps=50, anderson=size)
    # Points 0..n span the space, point n+1 is exact, and its residual is measured by evaluation n+2.
    assert end.converged
    assert end.steps <= size + 2
    assert end.x == pytest.approx(solution, abs=1e-8)


def test_far_fewer_steps_than_plain_near_marginality():
    def step(x):
        return np.tanh(1.02 * x + 1e-4) + 0.1 * np.sin(x[::-1]) ** 2

    start = np.full(2, 0.5)
    plain = fixed_point(step, start, tolerance=1e-9, max_steps=5000)
    fast = fixed_point(step, start, tolerance=1e-9, max_steps=5000, anderson=3)
    assert plain.converged
    assert fast.converged
    assert fast.steps < plain.steps / 4
    # Residual 1e-9 leaves 1e-9 / (1 - slope) in x, with 1 - slope above 0.02 here.
    assert fast.x == pytest.approx(plain.x, abs=1e-7)


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
@pytest.mark.parametrize("seed", [1e-6, 1e-3, -1e-3])
def test_leaves_an_unstable_fixed_point_like_the_dynamics(depth, seed):
    """m = tanh(1.5 m): zero is a fixed point of slope 1.5, which a bare secant method would run into."""
    end = fixed_point(lambda x: np.tanh(1.5 * x), [seed], tolerance=1e-11, max_steps=300, anderson=depth)
    assert end.converged
    assert end.x[0] == pytest.approx(np.sign(seed) * magnetisation(1.5), abs=1e-9)


@pytest.mark.parametrize("depth", [0, 2, 3])
def test_leaves_an_unstable_direction_hidden_among_stable_ones(depth):
    def step(x):
        return np.array([np.tanh(1.2 * x[0]), 0.9 * x[1] + 0.1, 0.5 * x[2] + 0.1 * x[1]])

    end = fixed_point(step, [1e-2, 0.0, 0.0], tolerance=1e-10, max_steps=1000, anderson=depth)
    assert end.converged
    assert end.x == pytest.approx([magnetisation(1.2), 1.0, 0.2], abs=1e-8)


def test_extrapolation_into_trouble_is_undone():
    """Outside |x| < 1 the map is not defined; the slowly contracting inside tempts the secant across."""

    def step(x):
        inside = 0.9 * x + 0.09 + 0.2 * (x > 0.5)
        return np.where(np.abs(x) < 1, np.minimum(inside, 0.8), np.nan)

    free = fixed_point(step, [-0.9], tolerance=1e-9, max_steps=200, anderson=1)
    assert free.converged
    assert free.x[0] == pytest.approx(0.8, abs=1e-8)


def test_non_finite_extrapolated_point_is_taken_back():
    """Contracting to 0.95 with slope 0.9, but the first secant from the curved part jumps beyond 1."""
    evaluated = []

    def step(x):
        evaluated.append(float(x[0]))
        image = np.where(x < 0.3, x + 0.2 - 0.1 * x, 0.6 * x + 0.38)
        return np.where(x < 1.0, image, np.nan)

    end = fixed_point(step, [0.0], tolerance=1e-10, max_steps=60, anderson=1)
    assert max(evaluated) > 1.0
    assert end.converged
    assert end.x[0] == pytest.approx(0.95, abs=1e-9)
    assert np.isfinite(end.residual)


def test_max_move_limits_extrapolation_only():
    def longest(**options):
        points = []

        def step(x):
            points.append(float(x[0]))
            return 0.99 * x + 0.05

        end = fixed_point(step, [0.0], tolerance=1e-9, max_steps=400, anderson=1, **options)
        return np.abs(np.diff(points)).max(), end

    free, _ = longest()
    assert free > 4
    capped, end = longest(max_move=0.5)
    assert capped <= 0.5
    assert end.x[0] == pytest.approx(5.0, abs=1e-6)


def test_a_drift_is_followed_in_strides():
    """Along x <- x + 0.1 there is nothing to extrapolate; every second step may be eight times as long."""
    points = []

    def step(x):
        points.append(float(x[0]))
        return x + 0.1

    fixed_point(step, [0.0], tolerance=1e-9, max_steps=12, anderson=2, max_move=0.5, stride=8.0)
    steps = np.diff(points)
    assert steps.max() == pytest.approx(0.5)  # 0.8, cut to max_move
    assert steps.min() == pytest.approx(0.1)


def test_history_starts_afresh_when_the_residual_grows():
    story = [
        ([0.0, 0.0], [1.0, 0.5]),
        ([1.0, 0.5], [0.3, -0.2]),
        ([1.1, 0.2], [0.1, 0.3]),
        ([1.3, 0.4], [-4.0, 1.0]),
        ([-2.7, 1.4], [2.0, -0.4]),
    ]
    used, fresh = (Anderson(2, depth=3, max_move=None) for _ in range(2))
    for point, change in story[:-2]:
        used.advance(np.array(point), np.array(change))
    (point, change), (last, last_change) = (np.array(pair) for pair in story[-2:])
    # The residual went from 0.3 to 4: the plain step, though the history would offer an extrapolation.
    assert np.array_equal(used.advance(point, change), point + change)
    fresh.advance(point, change)
    assert np.array_equal(used.advance(last, last_change), fresh.advance(last, last_change))
