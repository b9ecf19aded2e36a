"""Which directions leave zero overlap: against closed forms and the definition of the operator."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from asymptotix import MultiIndex
from asymptotix.numerics.control_variates import hermite_polynomials
from asymptotix.numerics.linear_algebra import symmetric_basis
from asymptotix.numerics.quadrature import gauss_hermite
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.channels.protocol import DEFAULT_ACCURACY, Channel, score_jacobian
from asymptotix.sequence_index.evolution import nodes
from asymptotix.sequence_index.evolution.averages import QuasiRandomAverager
from asymptotix.sequence_index.evolution.fixed_points import StateEvolution
from asymptotix.sequence_index.evolution.instability import (
    NO_MOMENT,
    Instability,
    analysed,
    instability,
    visible_directions,
)
from asymptotix.sequence_index.evolution.sorting.sorted_outputs import instability_from_sorted_outputs
from asymptotix.sequence_index.evolution.thresholds.one_index import next_index
from asymptotix.sequence_index.evolution.thresholds.staircase import staircase
from asymptotix.sequence_index.evolution.zero_overlap import (
    _directions_with_a_mean,
    _moment_of_one_number,
    _outputs_with_shares,
    curvature_at_zero,
    sampled_instability_at_zero,
)
from small_channels import Drawn, LinearMap, RotatedSquares, Sign, SignOfProduct, Square

ROTATION = np.array([[np.cos(0.4), np.sin(0.4)], [-np.sin(0.4), np.cos(0.4)]])
#: Differences are measured in standard errors from 8 randomisations: Student's t with 7 degrees of freedom is beyond
#: 6 once in 2000 times; the seeds are fixed.
LIMIT = 6.0


def at_zero(channel: Channel, count: int = 2**9) -> Instability:
    P = channel.indices
    return instability([QuasiRandomAverager(channel, count, 8)], np.eye(P), np.eye(P))


def projector(*columns) -> np.ndarray:
    frame = np.linalg.qr(np.array(columns, float).T)[0]
    return frame @ frame.T


def test_phase_retrieval_along_a_direction():
    u = np.array([1.0, 2.0]) / np.sqrt(5)
    found = at_zero(Square(u))
    assert not found.starts_by_itself
    # G = (s^2 - 1) u u^T, a Hermite polynomial squared: the control variates leave nothing but rounding.
    np.testing.assert_allclose(found.rate, 2.0, rtol=1e-10)
    np.testing.assert_allclose(found.direction, np.outer(u, u), atol=1e-10)


def test_equal_rates_grow_together_from_an_isotropic_start():
    found = at_zero(RotatedSquares(ROTATION))
    np.testing.assert_allclose(found.rate, 2.0, rtol=1e-10)  # rounding, as above
    np.testing.assert_allclose(found.direction, np.eye(2) / np.sqrt(2), atol=1e-10)


def test_sign_of_a_product():
    # F(X) = (2/pi)^2 [[X22, X12], [X12, X11]]: the leading eigenvalue is double, the unit matrix belongs to it.
    found = at_zero(SignOfProduct())
    np.testing.assert_allclose(1 / found.rate, np.pi**2 / 4, rtol=1e-12)  # G depends on y only through its sign
    np.testing.assert_allclose(found.direction, np.eye(2) / np.sqrt(2), atol=1e-12)


@pytest.mark.parametrize(
    ("channel", "moment"),
    [
        (LinearMap([[1.0, 1.0]]), 0.5 * np.ones((2, 2))),  # E[z|y] = (1, 1) y / 2, E y^2 = 2
        (Sign([1.0, 1.0]), np.ones((2, 2)) / np.pi),  # E[s|y] = y sqrt(2/pi)
        (LinearMap([[1.0]], noise=0.5), np.ones((1, 1)) / 1.5),
    ],
    ids=["linear", "sign", "noisy"],
)
def test_links_that_are_not_even_start_by_themselves(channel, moment):
    found = at_zero(channel, 2**11)
    assert found.starts_by_itself
    # Quasi-random nodes: 1e-3 for the noiseless ones, 16384 random normals for the noise.
    np.testing.assert_allclose(found.moment, moment, rtol=0.03)
    if channel.indices == 2:
        np.testing.assert_allclose(found.rate, 0.0, atol=1e-12)  # nothing is said of (1, -1)


class Scattered:
    """One block of nodes: E[g g^T] and its operators with the scatter of rare data."""

    stochastic = False

    def __init__(self, number: int, moment: float) -> None:
        self.rows = moment + 0.005 * np.random.default_rng(number).permutation(np.repeat([-1.0, 1.0], 4))

    def moments_and_operators(self, V, complement, basis):
        d = complement.shape[1]
        return self.rows[:, None, None] * np.eye(d), np.zeros((8, len(basis), len(basis)))


def evolution_of_scattered(moment: float, monkeypatch) -> tuple[StateEvolution, dict]:
    evolution, asked = StateEvolution(LinearMap([[1.0, 0.5]], noise=0.5)), {}
    monkeypatch.setattr(evolution.nodes, "block", lambda number: asked.setdefault(number, Scattered(number, moment)))
    monkeypatch.setattr(evolution, "visible", np.eye(2))
    return evolution, asked


def test_more_nodes_are_asked_where_one_block_does_not_tell_whether_a_direction_is_learned(monkeypatch):
    # One block has an error of 0.005 / sqrt(7), of which 0.006 is 3.2: too few to be significant.
    (evolution, asked), learned = evolution_of_scattered(0.006, monkeypatch), np.diag([0.8, 0.0])
    found = evolution.growth(evolution.point(1.0, learned, np.eye(2) - learned))
    assert len(asked) == 4
    assert found.starts_by_itself
    np.testing.assert_allclose(found.moment, np.diag([0.0, 0.006]), atol=1e-12)  # the scatter of a block has no mean


def test_what_is_not_learned_has_a_bound(monkeypatch):
    (evolution, asked), learned = evolution_of_scattered(1e-5, monkeypatch), np.diag([0.8, 0.0])
    found = evolution.growth(evolution.point(1.0, learned, np.eye(2) - learned))
    assert not found.starts_by_itself
    assert len(asked) == 16
    assert 1e-5 < found.unseen < 2 * 0.005 / np.sqrt(7)  # two errors of one block


@pytest.mark.parametrize(
    ("link", "allowed"),
    [
        (lambda z: z[0] ** 2 + 3 * z[1] ** 2, False),  # the second sign does not show in what is learned of the first
        (lambda z: z[0] * z[1], True),  # one sign is known, so is the other
        (lambda z: z[0] ** 2 + z[1], True),
    ],
)
def test_what_a_sign_forbids_is_excluded_whatever_the_nodes_say(link, allowed, monkeypatch):
    evolution, learned = StateEvolution(channel_of(MultiIndex(link, 2))), np.diag([0.8, 0.0])
    monkeypatch.setattr(evolution.nodes, "block", lambda number: Scattered(number, 1e-3))
    found = evolution.growth(evolution.point(1.0, learned, np.eye(2) - learned))
    assert (found.unseen > 0) == allowed
    assert not found.moment[0].any()


def test_one_posterior_that_is_wrong_starts_nothing():
    class OneRootMissed(RotatedSquares):
        def posterior(self, observation, omega, V, accuracy=DEFAULT_ACCURACY):
            found = super().posterior(observation, omega, V, accuracy)
            found.shift[0] = observation[0, :, None]  # without the root of the other sign
            return found

    found = at_zero(OneRootMissed(np.eye(1)))
    assert not found.starts_by_itself
    np.testing.assert_allclose(found.rate, 2.0, rtol=1e-10)


def test_errors_of_equal_rates_cover():
    """Operators that are a multiple of the unit matrix but for noise: either half chooses the other's direction."""
    rng, basis, deviations = np.random.default_rng(1), symmetric_basis(2), []
    for _ in range(400):
        noise = 0.01 * rng.standard_normal((8, len(basis), len(basis)))
        found = analysed(
            np.zeros((8, 2, 2)), np.eye(len(basis)) + noise + np.swapaxes(noise, 1, 2), np.eye(2), NO_MOMENT, False
        )
        deviations.append((found.rate - 1) / found.error)
    # 400 of them: a share of 0.0027 beyond three errors would be more than four once in 200 times.
    assert np.count_nonzero(np.abs(deviations) > 3) <= 4
    assert abs(np.mean(deviations)) < 0.2  # no bias: the largest eigenvalue of the mean would be two errors too large


def no_block(number):
    raise AssertionError(f"block {number} of nodes is not needed where the output is one number")


@pytest.mark.slow
def test_one_number_as_output_needs_no_posterior():
    found = sampled_instability_at_zero(Square([1.0, 2.0]), no_block, 1e-3)
    assert abs(found.rate - 2.0) < LIMIT * found.error
    assert found.error < 2e-3  # the tolerance asked for
    np.testing.assert_allclose(found.direction, projector([1, 2]), atol=0.01)
    linear = instability_from_sorted_outputs(LinearMap([[1.0, 1.0]]), 1e-3)
    np.testing.assert_allclose(linear.moment, 0.5 * np.ones((2, 2)), rtol=5e-3)  # windows of 1/256 of the outputs
    assert abs(linear.rate) < LIMIT * max(linear.error, 1e-3)


@pytest.mark.slow
def test_a_small_mean_is_seen():
    """z1 z2 + 0.02 z1 starts by itself, though E|g|^2 is lost in the noise of any table."""
    found = sampled_instability_at_zero(channel_of(MultiIndex(lambda z: z[0] * z[1] + 0.02 * z[0], 2)), no_block, 1e-2)
    assert found.starts_by_itself
    assert np.trace(found.moment) < 5e-3


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (lambda z: z.min(), 1),  # an exchange of the indices
        (lambda z: z[0] + z[1] ** 2, 1),  # the sign of the second
        (lambda z: z[0] * z[1], 0),  # that of both
        (lambda z: z[0] + z[0] * z[1], 2),
        (lambda z: z[0] ** 3 - z[1], 2),  # the sign of both is seen
    ],
)
def test_symmetries_tell_which_directions_may_have_a_mean(link, expected):
    assert _directions_with_a_mean(channel_of(MultiIndex(link, 2))) == expected


def test_few_outputs_are_all_that_is_needed():
    discrete = sampled_instability_at_zero(SignOfProduct(), no_block, 1e-3)
    np.testing.assert_allclose(1 / discrete.rate, np.pi**2 / 4, rtol=1e-12)  # two outputs and their posteriors


@pytest.mark.slow
def test_the_largest_of_equal_eigenvalues_is_not_too_large():
    """By symmetry all directions of |z|^2 in four dimensions grow alike, at rate 1/2."""

    class Norm(Square):
        def __init__(self):
            super().__init__([1.0, 0.0, 0.0, 0.0])

        def observe(self, Z, noise=None):
            return (np.asarray(Z) ** 2).sum((1, 2))[:, None]

    found = instability_from_sorted_outputs(Norm(), 2e-3)
    assert abs(found.rate - 0.5) < 3 * found.error
    assert found.error < 2e-3 * 0.5


def test_what_starts_by_itself_is_left_out_of_the_operator():
    found = at_zero(RotatedSquares(ROTATION, signed=[True, False]))
    first, second = ROTATION
    np.testing.assert_allclose(found.moment, np.outer(first, first), atol=2e-3)  # E s^2 on 4096 nodes
    np.testing.assert_allclose(found.rate, 2.0, rtol=1e-10)
    np.testing.assert_allclose(found.direction, np.outer(second, second), atol=1e-8)


def test_operator_is_its_definition(monkeypatch):
    channel = RotatedSquares(ROTATION)
    V = np.array([[0.7, 0.1], [0.1, 0.6]])
    average = QuasiRandomAverager(channel, 2**6, 2)
    monkeypatch.setattr(average, "_control_at", lambda Q: (None, 1.0))  # plain means
    basis = symmetric_basis(2)
    _, operators = average.moments_and_operators(V, np.eye(2), basis)
    _, weights, _, posterior = average.samples(V)
    G = score_jacobian(posterior, V)[:, :, 0, :, 0]
    for a, A in enumerate(basis):
        for b, B in enumerate(basis):
            direct = np.mean([w * np.trace(A @ g @ B @ g.T) for w, g in zip(weights, G, strict=True)])
            np.testing.assert_allclose(operators.mean(0)[a, b], direct, rtol=1e-10, atol=1e-12)  # rounding


def test_hermite_polynomials_are_orthonormal_with_mean_zero():
    nodes, weights = gauss_hermite(6, 3)  # exact up to degree 11; products have degree 8
    found, quadratic = (hermite_polynomials(nodes, most) for most in (100, 20))
    assert found is not None
    assert quadratic is not None
    assert quadratic.shape == (216, 6)
    assert found.shape[1] == 6 + 15  # of degree 2 and 4 in three variables
    np.testing.assert_allclose(weights @ found, 0.0, atol=1e-12)
    np.testing.assert_allclose((found.T * weights) @ found, np.eye(21), atol=1e-10)
    assert hermite_polynomials(nodes, 5) is None


def test_squares_of_draws_are_products_of_independent_lists():
    exact, error = Square([1.0]), 0.6
    found = at_zero(Drawn(exact, error), 2**11)
    assert not found.starts_by_itself  # E[g_A g_B] vanishes
    assert abs(found.rate - 2.0) < LIMIT * found.error
    # One list alone would be off by the variance of its error, far more than what is allowed.
    assert (2 * error) ** 2 > 2 * LIMIT * found.error


@pytest.mark.parametrize(
    ("channel", "expected"),
    [
        (LinearMap([[1.0, 1.0, 0.0], [0.0, 1.0, 2.0]]), projector([1, 1, 0], [0, 1, 2])),
        (Square([1.0, 2.0]), projector([1, 2])),
        (RotatedSquares(ROTATION), np.eye(2)),
        (Drawn(Square([1.0, 2.0]), 0.1), projector([1, 2])),
    ],
    ids=["linear", "square", "both", "drawn"],
)
def test_visible_directions(channel, expected):
    found = visible_directions(QuasiRandomAverager(channel, 2**9, 8), np.eye(channel.indices))
    # Exact posteriors: rounding. Drawn ones: the error 0.1 twice over 64 standard deviations of 4096 nodes.
    np.testing.assert_allclose(found @ found.T, expected, atol=0.03 if channel.stochastic else 1e-10)


def test_curvature_of_any_channel():
    found = curvature_at_zero(RotatedSquares(np.eye(2), seen=[1.0, 0.5]))
    assert abs(found.value[0] - 2.0) < 1e-10
    assert abs(found.value[1] - 1.0) < LIMIT * found.error[1]
    assert found.error[1] < 0.1


# -- staircases ------------------------------------------------------------------------------------------------


@pytest.fixture
def fewer_nodes(monkeypatch):
    """Enough for these channels, at a quarter of the time."""
    monkeypatch.setattr(nodes, "BLOCK", 2**9)


def rotation3() -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(3).standard_normal((3, 3)))[0]


def test_staircase_from_a_direction_that_starts_by_itself(fewer_nodes):
    R = rotation3()
    steps, _ = staircase(StateEvolution(RotatedSquares(R, signed=[True, False, False])), tolerance=0.02)
    assert [step.threshold.alpha for step in steps] == pytest.approx([0.0, 0.5], abs=0.02)
    np.testing.assert_allclose(steps[0].direction, np.outer(R[0], R[0]), atol=1e-3)
    # The other two have equal rates: they appear together.
    np.testing.assert_allclose(steps[1].direction, projector(R[1], R[2]) / np.sqrt(2), atol=0.02)


@pytest.mark.slow
def test_directions_that_are_not_seen_are_no_step():
    steps, _ = staircase(StateEvolution(Square([1.0, 2.0])), tolerance=2e-4)
    assert len(steps) == 1
    assert abs(steps[0].threshold.alpha - 0.5) < LIMIT * steps[0].threshold.error
    assert steps[0].threshold.error < 2e-4  # half of it is what windows of sorted outputs smooth


def test_of_two_that_come_close_the_first_is_taken():
    # Independent directions, learned at 1/(2 p): the branch of the first is its own foot for the third.
    evolution = StateEvolution(RotatedSquares(np.eye(3), seen=[1.0, 0.95, 1.0], diagonal=True))
    step = next_index(evolution, 0, 0.01)
    assert step.direction[2, 2] == 1
    assert abs(step.threshold.alpha - 0.5) < LIMIT * step.threshold.error + 1e-9  # rounding


def test_outputs_as_rare_as_one_in_fifty_thousand_are_part_of_the_moment_at_zero():
    # y = z1, but z2 where z1 > 2.6. Above 2.6 an output is z2, in a share p^2 = 2e-5 of the data, and shows all of it;
    # below it is z2 with probability p/(1+p).
    p, density = norm.sf(2.6), norm.pdf(2.6)
    above, below = p + 2.6 * density, norm.cdf(2.6) - 2.6 * density
    moment = _moment_of_one_number(channel_of(MultiIndex(lambda z: jnp.where(z[0] > 2.6, z[1], z[0]), 2)))
    assert moment is not None
    # Shares halve towards the ends: the one in which 2.6 lies counts as a whole or not at all, half of p^2 at most.
    np.testing.assert_allclose(moment[1, 1], p * above + p**2 / (1 + p) * below, rtol=0.5)


def test_outputs_stand_for_their_shares_of_the_data_far_into_both_ends():
    channel = channel_of(MultiIndex(lambda z: z[0] - z[1], 2, 0.5))
    y, shares = _outputs_with_shares(channel)
    unit = np.asarray(channel.observe(np.array([[[1.0], [0.0]]]), np.zeros((1, 1))), float).item()
    middle = np.cumsum(shares) - shares / 2
    known = norm.cdf(y / (unit * np.sqrt(2.5)))
    for found, exact in ((known, middle), (1 - known, 1 - middle)):
        rare = (exact > 1e-5) & (exact < 0.5)
        # Wide draws beyond 4.3 deviations are some hundreds: five of their standard errors.
        np.testing.assert_allclose(found[rare], exact[rare], rtol=0.3)
