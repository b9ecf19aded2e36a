import numpy as np
import pytest

from asymptotix.numerics.iteration import continuation, continuation_steps, fixed_point

LANES = 7


def rates(lanes):
    return np.linspace(0.1, 0.9, LANES)[lanes, None]


def curved(x, lanes):
    """A different contraction in every lane, built of row-wise elementary operations only."""
    return rates(lanes) * np.tanh(x) + 0.2 * np.sin(x[:, ::-1]) * (1 - rates(lanes)) + 0.3


def run(rebatch=True, **options):
    start = np.random.default_rng(0).standard_normal((LANES, 3))
    return fixed_point(curved, start, tolerance=1e-10, max_steps=400, rebatch=rebatch, **options)


def test_plain_iteration_is_the_dynamics():
    end = fixed_point(lambda x, lanes: np.cos(x), np.array([1.0]), tolerance=1e-12, max_steps=200)
    assert end.x == pytest.approx([0.7390851332151607], abs=1e-12)
    assert end.x.shape == (1,)
    expected = [1.0]
    while len(expected) < end.steps[0]:
        expected.append(np.cos(expected[-1]))
    assert end.trace[0][:, 0].tolist() == expected
    assert end.residual[0] == abs(np.cos(end.x[0]) - end.x[0])
    assert end.status.tolist() == ["converged"]


def test_damping_takes_part_of_the_step():
    end = fixed_point(lambda x, lanes: -3 * x + 4, [0.0], tolerance=1e-12, max_steps=100, damping=0.25)
    assert end.trace[0][:, 0].tolist() == [0.0, 1.0]
    undamped = fixed_point(lambda x, lanes: -3 * x + 4, [0.0], tolerance=1e-12, max_steps=20)
    assert not undamped.converged[0]


@pytest.mark.parametrize("anderson", [0, 2])
@pytest.mark.parametrize("rebatch", [True, False, "geometric"])
def test_rebatching_is_bit_identical_to_lane_by_lane(rebatch, anderson):
    together = run(rebatch, anderson=anderson)
    assert together.converged.all()
    assert len(set(together.steps)) > 2
    for lane in range(LANES):
        alone = fixed_point(
            lambda x, lanes, lane=lane: curved(x, lanes + lane),
            together.trace[lane][0],
            tolerance=1e-10,
            max_steps=400,
            anderson=anderson,
        )
        assert np.array_equal(alone.x, together.x[lane])
        assert np.array_equal(alone.trace[0], together.trace[lane])
        assert alone.residual[0] == together.residual[lane]
        assert alone.steps[0] == together.steps[lane]


def batch_sizes(rebatch):
    sizes = []

    def step(x, lanes):
        sizes.append(len(x))
        return rates(lanes) * x

    fixed_point(step, np.ones((LANES, 2)), tolerance=1e-8, max_steps=1000, rebatch=rebatch)
    return sizes


def test_geometric_batches_are_powers_of_two_and_shrink_at_rounds():
    sizes = batch_sizes("geometric")
    assert set(sizes) <= {8, 4, 2, 1}
    assert len(set(sizes)) > 2
    shrinks = [step for step in range(1, len(sizes)) if sizes[step] != sizes[step - 1]]
    assert set(shrinks) <= {16, 32, 64, 128}
    assert set(batch_sizes(False)) == {LANES}
    exact = batch_sizes(True)
    assert set(exact) == set(range(1, LANES + 1))
    assert (np.diff(exact) <= 0).all()


def test_status_words_for_every_ending():
    def step(x, lanes):
        slow = x + 1e-3
        blown = np.where(x < 5, x + 1, np.nan)
        return np.where(lanes[:, None] == 0, 0.5 * x, np.where(lanes[:, None] == 1, slow, blown))

    end = fixed_point(step, [[1.0], [0.0], [0.0]], tolerance=1e-6, max_steps=30)
    assert end.status.tolist() == [
        "converged",
        "not converged after 30 steps (residual 0.001)",
        "diverged: non-finite at step 6",
    ]
    assert end.converged.tolist() == [True, False, False]
    assert end.steps[1:].tolist() == [30, 6]
    assert end.x[2, 0] == 4.0
    assert end.residual[2] == 1.0


def test_overflow_is_named_not_raised():
    with np.errstate(over="ignore"):
        end = fixed_point(lambda x, lanes: x**2, [3.0], tolerance=1e-6, max_steps=100)
    assert end.status[0].startswith("diverged: non-finite at step")
    assert np.isfinite(end.x).all()


def test_stop_ends_a_lane_with_its_own_word():
    def stop(x, residual, lanes):
        assert len(x) == len(residual) == len(lanes)
        return ["exact recovery" if value < 1e-3 else None for value in x[:, 0]]

    end = fixed_point(
        lambda x, lanes: np.where(lanes[:, None] == 0, 0.1 * x, 0.5 * x + 0.5),
        [[1.0], [2.0]],
        tolerance=1e-9,
        max_steps=100,
        stop=stop,
    )
    assert end.status.tolist() == ["exact recovery", "converged"]
    assert end.converged.tolist() == [False, True]
    assert end.x[0, 0] < 1e-3


def test_stop_has_precedence_over_convergence():
    end = fixed_point(lambda x, lanes: x, [0.0], tolerance=1, max_steps=5, stop=lambda x, r, lanes: ["mine"])
    assert end.status[0] == "mine"


def test_interrupt_returns_what_there_is():
    calls = []

    def step(x, lanes):
        calls.append(len(lanes))
        if len(calls) == 12:
            raise KeyboardInterrupt
        return np.where(lanes[:, None] == 0, 0.01 * x, 0.9 * x)

    end = fixed_point(step, np.ones((2, 1)), tolerance=1e-6, max_steps=100, anderson=0)
    assert end.interrupted
    assert end.status.tolist() == ["converged", "interrupted at step 12"]
    assert end.steps[1] == 11
    assert end.x[1, 0] == pytest.approx(0.9**10, rel=1e-14)
    assert len(end.trace[1]) == 11


def test_interrupt_before_anything_was_measured():
    def step(x, lanes):
        raise KeyboardInterrupt

    end = fixed_point(step, [1.0, 2.0], tolerance=1e-6, max_steps=3)
    assert end.x.tolist() == [1.0, 2.0]
    assert end.residual[0] == np.inf
    assert end.status[0] == "interrupted at step 1"
    assert not run().interrupted


def test_zero_tolerance_runs_all_steps_and_trace_can_be_left_out():
    end = fixed_point(lambda x, lanes: x, [0.0], tolerance=0, max_steps=9)
    assert end.steps[0] == len(end.trace[0]) == 9
    assert fixed_point(lambda x, lanes: x, [0.0], tolerance=1, max_steps=9, keep_trace=False).trace == []


def test_progress_counts_every_lane_once():
    class Count:
        total = 0
        last = ""

        def advance(self, n=1, message=None):
            self.total += n
            self.last = message or self.last

    counter = Count()
    run(progress=counter)
    assert counter.total == LANES
    assert "all 7 finished" in counter.last
    counter = Count()
    fixed_point(lambda x, lanes: x + 1, np.zeros((3, 1)), tolerance=1e-3, max_steps=4, progress=counter)
    assert counter.total == 3


def test_compiled_step_is_welcome():
    import jax
    import jax.numpy as jnp

    step = jax.jit(lambda x, lanes: 0.5 * jnp.cos(x))
    end = fixed_point(step, np.ones((3, 2)), tolerance=1e-5, max_steps=50, anderson=1, rebatch="geometric")
    # JAX's default float32 resolves 0.5 cos x = x to about 3e-8.
    assert end.converged.all()
    assert end.x == pytest.approx(np.full((3, 2), 0.450183611), abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": 0}, "max_steps must be an integer of at least 1, got 0"),
        ({"tolerance": -1.0}, "tolerance must be non-negative"),
        ({"damping": 0.0}, r"damping must lie in \(0, 1\], got 0.0"),
        ({"damping": 1.5}, "damping"),
        ({"anderson": -1}, "anderson must be"),
        ({"max_move": 0.0}, "max_move must be positive"),
        ({"rebatch": "sometimes"}, "rebatch must be one of"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        fixed_point(lambda x, lanes: x, [0.0], **{"tolerance": 1e-3, "max_steps": 5} | options)


@pytest.mark.parametrize("start", [np.zeros((2, 2, 2)), [], [np.nan], [np.inf], 1.0])
def test_bad_start_is_named(start):
    with pytest.raises(ValueError, match="start must"):
        fixed_point(lambda x, lanes: x, start, tolerance=1e-3, max_steps=5)


def test_bad_step_or_stop_is_named():
    with pytest.raises(ValueError, match="step must return an array of shape"):
        fixed_point(lambda x, lanes: x[:, :1], [0.0, 1.0], tolerance=1e-3, max_steps=5)
    with pytest.raises(ValueError, match="stop must return one entry per lane"):
        fixed_point(lambda x, lanes: x, [0.0], tolerance=1e-3, max_steps=5, stop=lambda x, r, lanes: [])


def magnetisation(field, start):
    """m = tanh(2 (m + h)): two branches at small |h|, so the answer tells from where it was continued."""
    end = fixed_point(lambda x, lanes: np.tanh(2 * (x + field)), start, tolerance=1e-12, max_steps=2000)
    return end.x, end


def test_continuation_shows_hysteresis_and_keeps_the_order():
    grid = np.array([0.05, -1.0, 1.0, -0.05])
    up = [end.x[0] for end in continuation(magnetisation, grid, np.zeros(1)) if end is not None]
    down = [
        end.x[0] for end in continuation(magnetisation, grid, np.zeros(1), descending=True) if end is not None
    ]
    assert np.sign(up).tolist() == [-1, -1, 1, -1]
    assert np.sign(down).tolist() == [1, -1, 1, 1]
    for field, m in zip(grid, up, strict=True):
        assert m == pytest.approx(np.tanh(2 * (m + field)), abs=1e-11)


def test_continuation_goes_on_from_the_last_good_point():
    seen = []

    def solve_at(value, start):
        seen.append((value, start))
        return (None if value == 2 else value), f"at {value}"

    assert continuation(solve_at, [3, 1, 2], 0.0) == ["at 3.0", "at 1.0", "at 2.0"]
    assert seen == [(1.0, 0.0), (2.0, 1.0), (3.0, 1.0)]


def test_continuation_ends_at_an_interrupt():
    def solve_at(value, start):
        def step(x, lanes):
            if value == 2:
                raise KeyboardInterrupt
            return 0.5 * x

        end = fixed_point(step, start, tolerance=1e-6, max_steps=99)
        return end.x, end

    first, second, third = continuation(solve_at, [3, 1, 2], np.ones(1))
    assert first is None
    assert second is not None
    assert second.converged[0]
    assert third is not None
    assert third.interrupted
    assert [position for position, _ in continuation_steps(solve_at, [3, 1, 2], np.ones(1))] == [1, 2]

    def interrupted(value, start):
        raise KeyboardInterrupt

    assert continuation(interrupted, [1, 2], 0.0) == [None, None]
