"""The end of state evolution on noisy nodes, for a linear map whose fixed point, slow direction and noise are known."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

from asymptotix.core.status import Status
from asymptotix.numerics.linear_algebra import from_logit
from asymptotix.sequence_index.channels.protocol import Averages, Correction
from asymptotix.sequence_index.evolution.coordinates import PRECISIONS, Coordinates
from asymptotix.sequence_index.evolution.point import Point
from asymptotix.sequence_index.evolution.refinement import OverlapSolution, _errors_of_axes, _newton, refined

END = np.array([0.8, 0.2])
ROWS, SCATTER = 16, 0.004
#: The slow and the fast direction. They are far from orthogonal: the noise that counts is not that along the first.
DIRECTIONS = np.array([[1.0, 0.7], [0.9, 1.0]])


class NoisyMap:
    """Stands for a state evolution: x -> x* + J_r (x - x*) + curvature + noise_br of randomisation r and block b.

    The precision exp(x) is what is averaged, and what ``noise_of_average``, in shares of it, is added to.
    """

    def __init__(
        self,
        seed: int,
        gap: float,
        *,
        scatter: float = SCATTER,
        noise_of_slopes: float = 0.0,
        noise_of_average: float = 0.0,
        curved: float = 0.0,
        concurrent: bool = False,
    ) -> None:
        self.nodes = self.rough = self
        self.noisy = self.biased = True
        self.concurrent = concurrent
        jacobian = DIRECTIONS @ np.diag([1 - gap, 0.5]) @ np.linalg.inv(DIRECTIONS)
        rng = np.random.default_rng([7, seed])
        self._slopes = jacobian + noise_of_slopes * rng.normal(size=(ROWS, 2, 2))
        self._noise = scatter * rng.normal(size=(32, ROWS, 2))
        self._factors = 1 + noise_of_average * rng.normal(size=(32, ROWS, 2))
        self._curved = curved

    def block(self, number: int) -> Any:
        def averages(V: np.ndarray) -> Averages:
            x = np.log((1 - np.diag(V)) / np.diag(V))
            rows = END + self._slopes @ (x - END) - self._curved * (x - END) ** 2 + self._noise[number]
            precision = np.exp(rows) * self._factors[number]
            return Averages(precision[:, :, None] * np.eye(2), np.zeros(ROWS), np.zeros((ROWS, 2)))

        averages.accuracy, averages.uncorrected = 0.0, None  # but for the scatter
        return averages

    def better_block(self, number: int) -> Any:
        return self.block(number)

    def with_evidence(self, averages: Averages, V: np.ndarray) -> Averages:
        return averages

    def corrections(self, V: np.ndarray) -> Iterator[Correction]:
        return iter(())

    def image(self, averages: Averages, point: Point) -> np.ndarray:
        return point.space.of_precision(point.alpha * averages.second_moment)


class RoughMap(NoisyMap):
    """The same with rough nodes too, whose averages are too large by a share, and a noisy correction of that share.

    On more nodes it has half the noise.
    """

    def __init__(self, seed: int, gap: float, *, share: float, noise_of_correction: float) -> None:
        super().__init__(seed, gap)
        noise = noise_of_correction * np.random.default_rng([8, seed]).normal(size=(ROWS, 2))
        self._corrections = [(1 + part * noise) / (1 + share) for part in (1.0, 0.5)]
        self.corrected = 0  # times
        self.asked: list[int] = []
        self.rough = NoisyMap(seed, gap)
        self.rough._factors = self.rough._factors * (1 + share)

    def block(self, number: int) -> Any:
        self.asked.append(number)
        return super().block(number)

    def corrections(self, V: np.ndarray) -> Iterator[Correction]:
        for factors in self._corrections:
            self.corrected += 1
            yield Correction(factors[:, :, None] * np.eye(2), np.zeros(ROWS), factors)


def ended(evolution: NoisyMap, tolerance: float, start: tuple[float, float] = (0.6, 0.1)) -> OverlapSolution:
    space = Coordinates.of_rows(np.ones(2, bool), True)
    return refined(cast(Any, evolution), Point(1.0, space, np.array(start)), tolerance)


@pytest.mark.parametrize(
    ("gap", "tolerance", "concurrent"),
    [
        (0.3, 0.001, False),
        (0.04, 0.02, False),
        pytest.param(0.04, 0.006, False, marks=pytest.mark.slow),
        pytest.param(0.04, 0.006, True, marks=pytest.mark.slow),  # six blocks and more: two at the same time
    ],
)
def test_errors_are_those_of_the_fixed_point(gap, tolerance, concurrent):
    found = [ended(NoisyMap(seed, gap, concurrent=concurrent), tolerance) for seed in range(200)]
    assert all(state.settled for state in found)
    q = from_logit(END)[0]
    scores = np.array([(state.q - q) / state.error for state in found])
    # Student's t with 15 degrees of freedom has a deviation of 1.07, 0.05 from 200 of them; the overlap is a curved
    # function of the logit, and blocks are added until the error is small, which takes a little from it.
    assert np.sqrt((scores**2).mean(0)).min() > 0.9
    assert np.sqrt((scores**2).mean(0)).max() < 1.3
    assert max(state.error.max() for state in found) < 1.1 * tolerance


@pytest.mark.parametrize("noise_of_correction", [0.0, 0.004, 0.1])
def test_rough_nodes_do_not_move_the_end(noise_of_correction):
    """Averages ten percent too large, corrected with no noise, with as much as a block has, and with too much of it."""
    maps = [RoughMap(seed, 0.3, share=0.1, noise_of_correction=noise_of_correction) for seed in range(100)]
    found = [ended(evolution, 0.01) for evolution in maps]
    scores = np.array([(state.q - from_logit(END)[0]) / state.error for state in found])
    # As above, with 100 of them; uncorrected the end is off by thirty errors.
    assert np.sqrt((scores**2).mean(0)).min() > 0.85
    assert np.sqrt((scores**2).mean(0)).max() < 1.35


@pytest.mark.parametrize(
    ("noise_of_correction", "times", "used"), [(0.001, 1, True), (0.006, 2, True), (0.1, 2, False)]
)
def test_a_correction_that_would_be_felt_is_taken_on_more_nodes_or_not_used(noise_of_correction, times, used):
    evolution = RoughMap(0, 0.3, share=0.1, noise_of_correction=noise_of_correction)
    ended(evolution, 0.005)
    assert (evolution.corrected, evolution.asked == []) == (times, used)


def test_logarithms_of_noisy_averages_have_no_bias():
    """A log of an average with ten percent noise is 0.005 too small; sixteen blocks have an error of 0.006."""
    found = [ended(NoisyMap(seed, 0.3, scatter=0.0, noise_of_average=0.1), 1e-4) for seed in range(100)]
    scores = np.array([(state.q - from_logit(END)[0]) / state.error for state in found])
    # A sixteenth of that bias is left. Means of 100 scores scatter by 0.1: three of that.
    assert abs(scores.mean(0)).max() < 0.3 + 0.05


@pytest.mark.parametrize("start", [(0.4, -0.1), (1.6, 1.0)])
def test_a_far_start_on_a_curved_map_leads_to_its_end(start):
    state = ended(NoisyMap(0, 0.1, scatter=1e-4, curved=0.1), 0.01, start)
    assert state.settled
    # Twice the tolerance may be left when the way ends, a tenth of it after the last prediction.
    assert abs(state.q - from_logit(END)[0]).max() < 0.005


def test_a_slow_direction_lost_in_noise_is_said_so():
    left, right = np.linalg.inv(DIRECTIONS)[0], DIRECTIONS[:, 0]
    one = np.linalg.norm(left) * np.linalg.norm(right) / np.sqrt(ROWS)  # error of the eigenvalue for unit noise
    for share, least, most in ((0.2, 0, 2), (1.0, 12, 30)):
        noise = share * 0.2 / one
        status = [ended(NoisyMap(seed, 0.2, noise_of_slopes=noise), 0.02).words for seed in range(30)]
        assert least <= sum("the slow direction is not resolved" in words for words in status) <= most


def test_no_step_leads_away_where_the_slow_direction_seems_unstable():
    """An eigenvalue of J above one by less than its error: (I - J)^{-1} is bounded by that error, with its sign."""
    rng, noise, many = np.random.default_rng(3), 0.01, 4000
    left, right = np.linalg.inv(DIRECTIONS), DIRECTIONS
    slopes = right @ np.diag([1.0, 0.5]) @ left + noise * rng.normal(size=(many, 2, 2))
    slopes += right @ np.diag([2e-4, 0.0]) @ left - (slopes.mean(0) - right @ np.diag([1.0, 0.5]) @ left)
    inverse, resolved = _newton(slopes)
    assert not resolved
    error = noise * np.linalg.norm(left[0]) * np.linalg.norm(right[:, 0]) / np.sqrt(many)
    # Scatters of 4000 rows are known to 1.1 %: four of that.
    np.testing.assert_allclose(left[0] @ inverse @ right[:, 0], 1 / error, rtol=0.045)
    np.testing.assert_allclose(left[1] @ inverse @ right[:, 1], 2.0, rtol=0.01)


@pytest.mark.parametrize(
    ("gap", "tolerance", "curved", "allowed"),
    [(0.04, 0.005, 0.0, 1e-10), (0.04, 1e-5, 0.0, 1e-10), (0.3, 3e-4, 0.1, 0.01)],
)
def test_blocks_at_the_same_time_are_those_one_after_the_other(gap, tolerance, curved, allowed):
    """Of a linear map, a block predicts the same end from anywhere; of a curved one, from where the last few led."""
    maps = [NoisyMap(0, gap, curved=curved, concurrent=concurrent) for concurrent in (False, True)]
    one, together = (ended(evolution, tolerance) for evolution in maps)
    # Rounding; 0.003 errors are curvature times the square of what the blocks in between move the point by.
    np.testing.assert_allclose(together.Q, one.Q, rtol=0, atol=allowed * one.error.max())
    np.testing.assert_allclose(together.error, one.error, rtol=allowed)


def test_an_error_above_the_tolerance_is_said_so():
    assert "exceeds the tolerance 1.0e-05" in ended(NoisyMap(0, 0.04), 1e-5).words


@pytest.mark.parametrize(("tolerance", "how"), [(0.02, Status.CONVERGED), (1e-5, Status.INACCURATE)])
def test_converged_means_that_the_tolerance_was_met(tolerance, how):
    state = ended(NoisyMap(0, 0.04), tolerance)
    assert state.how is how
    assert (state.error.max() <= tolerance) == how.converged


@pytest.mark.parametrize("known", [False, True])
def test_the_error_covers_how_far_what_is_learned_is_turned(known):
    """One direction is learned and another one is not, or is known; few nodes have chosen both a little off."""
    precisions = np.array([PRECISIONS[1] if known else 0.0, 3.0])
    turned = np.array([[np.cos(1e-3), -np.sin(1e-3)], [np.sin(1e-3), np.cos(1e-3)]])
    space = Coordinates(turned[:, 1:], False, known=turned[:, :1] if known else None)
    point = Point(2.0, space, np.log(precisions[1:]))
    moments = np.tile(np.diag(precisions) / point.alpha, (4, 1, 1))
    distance = abs(point.Q - np.diag(precisions / (1 + precisions)))
    errors = _errors_of_axes(point, moments)
    assert distance[0, 1] > 1e-4
    assert errors[0, 1] == pytest.approx(distance[0, 1], rel=0.01)  # linear in the angle
