import numpy as np
import pytest

from asymptotix.numerics.iteration import QuasiNewton, continuation_steps, fixed_point, increasing_root


def test_plain_iteration_is_the_dynamics():
    points = []

    def step(x):
        points.append(float(x[0]))
        return np.cos(x)

    end = fixed_point(step, np.array([1.0]), tolerance=1e-12, max_steps=200)
    assert end.x == pytest.approx([0.7390851332151607], abs=1e-12)
    assert end.x.shape == (1,)
    expected = [1.0]
    while len(expected) < end.steps:
        expected.append(np.cos(expected[-1]))
    assert points == expected
    assert end.residual == abs(np.cos(end.x[0]) - end.x[0])
    assert end.status == "converged"
    assert end.converged


@pytest.mark.parametrize(
    ("step", "start", "status", "steps"),
    [
        (lambda x: 0.5 * x, 1.0, "converged", 20),
        (lambda x: x + 1e-3, 0.0, "not converged after 30 steps (residual 0.001)", 30),
        (lambda x: np.where(x < 5, x + 1, np.nan), 0.0, "diverged: non-finite at step 6", 6),
    ],
)
def test_status_words_for_every_ending(step, start, status, steps):
    end = fixed_point(step, [start], tolerance=1e-6, max_steps=30)
    assert end.status == status
    assert end.converged == (status == "converged")
    assert end.steps == steps


def test_what_is_kept_of_a_divergence_is_the_last_good_point():
    end = fixed_point(lambda x: np.where(x < 5, x + 1, np.nan), [0.0], tolerance=1e-6, max_steps=30)
    assert end.x[0] == 4.0
    assert end.residual == 1.0
    never = fixed_point(lambda x: np.full(2, np.nan), [1.0, 2.0], tolerance=1e-6, max_steps=30)
    assert never.x.tolist() == [1.0, 2.0]
    assert never.residual == np.inf


def test_overflow_is_named_not_raised():
    with np.errstate(over="ignore"):
        end = fixed_point(lambda x: x**2, [3.0], tolerance=1e-6, max_steps=100)
    assert end.status.startswith("diverged: non-finite at step")
    assert np.isfinite(end.x).all()


def test_stop_ends_the_iteration_with_its_own_word():
    def stop(x, residual):
        assert residual == pytest.approx(0.9 * x[0])
        return "exact recovery" if x[0] < 1e-3 else None

    end = fixed_point(lambda x: 0.1 * x, [1.0], tolerance=1e-9, max_steps=100, stop=stop)
    assert end.status == "exact recovery"
    assert not end.converged
    assert end.x[0] < 1e-3


def test_stop_has_precedence_over_convergence():
    end = fixed_point(lambda x: x, [0.0], tolerance=1, max_steps=5, stop=lambda x, residual: "mine")
    assert end.status == "mine"


def test_an_interrupt_is_the_callers():
    """A point in the middle of its iteration is not finished: the verb must hear of Ctrl-C."""

    def step(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fixed_point(step, [1.0, 2.0], tolerance=1e-6, max_steps=3)


def test_zero_tolerance_runs_all_steps():
    assert fixed_point(lambda x: x, [0.0], tolerance=0, max_steps=9).steps == 9


def test_a_step_that_writes_into_its_argument_does_no_harm():
    def step(x):
        x *= 0.5
        return x

    end = fixed_point(step, [1.0], tolerance=1e-6, max_steps=50, anderson=1)
    assert end.converged
    assert end.x[0] == pytest.approx(0.0, abs=1e-5)


def test_compiled_step_is_welcome():
    import jax
    import jax.numpy as jnp

    step = jax.jit(lambda x: 0.5 * jnp.cos(x))
    end = fixed_point(step, np.ones(2), tolerance=1e-5, max_steps=50, anderson=1)
    # JAX's default float32 resolves 0.5 cos x = x to about 3e-8.
    assert end.converged
    assert end.x == pytest.approx(np.full(2, 0.450183611), abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": 0}, "max_steps must be an integer of at least 1, got 0"),
        ({"tolerance": -1.0}, "tolerance must be non-negative"),
        ({"anderson": -1}, "anderson must be"),
        ({"max_move": 0.0}, "max_move must be positive"),
        ({"stride": 0.5}, "stride must be at least 1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        fixed_point(lambda x: x, [0.0], **{"tolerance": 1e-3, "max_steps": 5} | options)


@pytest.mark.parametrize("start", [np.zeros((2, 2)), [], [np.nan], [np.inf], 1.0])
def test_bad_start_is_named(start):
    with pytest.raises(ValueError, match="start must"):
        fixed_point(lambda x: x, start, tolerance=1e-3, max_steps=5)


def test_bad_step_is_named():
    with pytest.raises(ValueError, match="step must return an array of shape"):
        fixed_point(lambda x: x[:1], [0.0, 1.0], tolerance=1e-3, max_steps=5)


def magnetisation(field, start):
    """m = tanh(2 (m + h)): two branches at small |h|, so the answer tells from where it was continued."""
    end = fixed_point(lambda x: np.tanh(2 * (x + field)), start, tolerance=1e-12, max_steps=2000)
    return end.x, end.x[0]


def continued(*args, **options):
    found = dict(continuation_steps(*args, **options))
    return [found[position] for position in range(len(found))]


def test_continuation_shows_hysteresis_and_knows_the_positions():
    grid = np.array([0.05, -1.0, 1.0, -0.05])
    up = continued(magnetisation, grid, np.zeros(1))
    down = continued(magnetisation, grid, np.zeros(1), descending=True)
    assert np.sign(up).tolist() == [-1, -1, 1, -1]
    assert np.sign(down).tolist() == [1, -1, 1, 1]
    for field, m in zip(grid, up, strict=True):
        assert m == pytest.approx(np.tanh(2 * (m + field)), abs=1e-11)


def test_continuation_goes_on_from_the_last_good_point():
    seen = []

    def solve_at(value, start):
        seen.append((value, start))
        return (None if value == 2 else value), f"at {value}"

    assert continued(solve_at, [3, 1, 2], 0.0) == ["at 3.0", "at 1.0", "at 2.0"]
    assert seen == [(1.0, 0.0), (2.0, 1.0), (3.0, 1.0)]


def curved(x, shift=0.0):
    """A smooth map with a fixed point near zero, which a plain iteration does not find."""
    return np.array([1.6 * x[0] - 0.4 * x[1] + x[1] ** 2 + 0.01, 0.5 * np.sin(x[0]) - 0.8 * x[1] + 0.02 + shift])


def residuals(newton, function, steps):
    """Largest changes by the map along quasi-Newton steps from zero."""
    x, sizes = np.zeros(len(newton.inverse)), []
    for _ in range(steps):
        image = function(x)
        sizes.append(abs(image - x).max())
        x = newton.step(x, image)
    return sizes


def test_quasi_newton_steps_learn_the_derivative_and_keep_it_for_the_next_map():
    newton = QuasiNewton(np.linalg.inv([[-0.7, 0.5], [-0.4, 2.1]]))  # of 1 - G', every entry wrong by about a fifth
    first = residuals(newton, curved, 8)
    # With the derivative that it was given each step brings a factor of five, and no more: 2e-7 in the end.
    assert first[-1] < 1e-12
    newton.begin()
    again = residuals(newton, lambda x: curved(x, 1e-3), 4)
    assert again[3] < 1e-3 * first[3]


def test_a_quasi_newton_method_that_is_told_the_derivative():
    G = np.array([[0.2, -1.5], [0.7, 3.0]])  # the plain iteration runs away from the fixed point at zero
    newton = QuasiNewton(np.eye(2))
    newton.step(np.ones(2), np.zeros(2))
    newton.know(G)
    x = np.array([1.0, -0.5])
    np.testing.assert_allclose(newton.step(x, G @ x), 0.0, atol=1e-12)  # nor is x compared with what was before


def test_a_jump_teaches_a_quasi_newton_method_nothing():
    newton = QuasiNewton(np.eye(1))
    residuals(newton, lambda x: np.where(x < 0.5, 1.0, 0.0), 4)
    assert newton.inverse == np.eye(1)


def test_a_cycle_is_found_and_its_two_values_are_said():
    """A map that jumps: above one half it leads to 0.3, below to 0.7; another coordinate converges."""
    seen = []

    def step(x):
        seen.append(x)
        return np.array([0.3 if x[0] > 0.5 else 0.7, 0.5 * x[1]])

    found = fixed_point(step, [0.1, 1.0], tolerance=1e-8, max_steps=1000, names=("overlap", "other"))
    assert not found.converged
    assert found.status.startswith("not converged after")
    assert "it cycles between overlap = 0.3 and 0.7" in found.status
    assert len(seen) < 100


def test_a_slow_oscillation_that_dies_out_is_no_cycle():
    for factor, steps in ((0.97, 2000), (0.999, 30_000)):
        found = fixed_point(lambda x, factor=factor: -factor * x, [1.0], tolerance=1e-8, max_steps=steps)
        assert found.converged


def test_chaos_and_drifts_are_no_cycles():
    for step in (lambda x: 3.9 * x * (1 - x), lambda x: x + 0.1):
        found = fixed_point(step, [0.2], tolerance=1e-12, max_steps=200)
        assert not found.converged
        assert "cycles" not in found.status


def test_increasing_roots_are_found_from_both_sides_of_a_pole() -> None:
    """Functions 1/(1 - x) - c on brackets that end at the pole, where nothing is evaluated, and one that is zero."""
    c = np.array([1e-3, 0.5, 2.0, 1e6])

    def excess(x: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert (x < 1).all()
        return 1 / (1 - x) - c[active], 1 / (1 - x) ** 2

    found = increasing_root(excess, np.full(4, -2000.0), np.ones(4))
    np.testing.assert_allclose(found, 1 - 1 / c, rtol=1e-13)
    from_near = increasing_root(excess, np.full(4, -2000.0), np.ones(4), start=1 - 1.001 / c)
    np.testing.assert_allclose(from_near, found, rtol=1e-13)
    rough = increasing_root(excess, np.full(4, -2000.0), np.ones(4), close=1e-2)
    assert (abs(rough - found) < 1e-2).all()
    assert increasing_root(excess, np.zeros(0), np.zeros(0)).shape == (0,)
