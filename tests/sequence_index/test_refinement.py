"""The end of state evolution on noisy nodes, for a linear map whose fixed point, slow direction and noise are known."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from asymptotix.core.linalg import from_logit
from asymptotix.sequence_index.averages import Averages
from asymptotix.sequence_index.overlap_coordinates import Coordinates
from asymptotix.sequence_index.refinement import State, refined

END = np.array([0.8, 0.2])
ROWS, SCATTER = 16, 0.004
#: The slow and the fast direction. They are far from orthogonal: the noise that counts is not that along the first.
DIRECTIONS = np.array([[1.0, 0.7], [0.9, 1.0]])


class NoisyMap:
    """Stands for a state evolution: x -> x* + J_r (x - x*) + noise_br, for every randomisation r and block b."""

    def __init__(self, seed: int, gap: float, noise_of_slopes: float = 0.0) -> None:
        self.channel = SimpleNamespace(stochastic=True)
        jacobian = DIRECTIONS @ np.diag([1 - gap, 0.5]) @ np.linalg.inv(DIRECTIONS)
        rng = np.random.default_rng([7, seed])
        self._slopes = jacobian + noise_of_slopes * rng.normal(size=(ROWS, 2, 2))
        self._noise = SCATTER * rng.normal(size=(32, ROWS, 2))

    def block(self, number: int) -> Any:
        def averages(V: np.ndarray) -> Averages:
            x = np.log((1 - np.diag(V)) / np.diag(V))
            rows = END + self._slopes @ (x - END) + self._noise[number]
            return Averages(np.exp(rows)[:, :, None] * np.eye(2), np.zeros(ROWS), np.zeros((ROWS, 2)))

        return averages

    def update(self, averages: Averages, alpha: float, space: Coordinates) -> np.ndarray:
        return space.of_precision(alpha * averages.second_moment)


def ended(evolution: NoisyMap, tolerance: float, start: tuple[float, float] = (0.6, 0.1)) -> State:
    space = Coordinates.of_rows(np.ones(2, bool), True)
    return refined(cast(Any, evolution), 1.0, space, np.array(start), tolerance)


@pytest.mark.parametrize(("gap", "tolerance"), [(0.3, 0.001), (0.04, 0.02), (0.04, 0.006)])
def test_errors_are_those_of_the_fixed_point(gap, tolerance):
    found = [ended(NoisyMap(seed, gap), tolerance) for seed in range(200)]
    assert all(state.converged for state in found)
    q = from_logit(END)[0]
    scores = np.array([(state.q - q) / state.error for state in found])
    # Student's t with 15 degrees of freedom has a deviation of 1.07, 0.05 from 200 of them; the overlap is a curved
    # function of the logit, and blocks are added until the error is small, which takes a little from it.
    assert np.sqrt((scores**2).mean(0)).min() > 0.9
    assert np.sqrt((scores**2).mean(0)).max() < 1.3
    assert max(state.error.max() for state in found) < 1.1 * tolerance


def test_a_far_start_leads_to_the_same_end():
    near, far = (ended(NoisyMap(3, 0.04), 0.006, start) for start in ((0.8, 0.2), (-0.8, 1.5)))
    # The way there leaves less than the tolerance, which is that of the noise on both ways alike.
    assert abs(near.q - far.q).max() < 0.006
    np.testing.assert_allclose(near.error, far.error, rtol=0.2)


def test_a_slow_direction_lost_in_noise_is_said_so():
    # The eigenvalue has an error of about 0.2 / sqrt(16) times the sensitivity of this Jacobian.
    assert "the slow direction is not resolved" in ended(NoisyMap(0, 0.04, noise_of_slopes=0.2), 0.02).status
    assert ended(NoisyMap(0, 0.04, noise_of_slopes=0.002), 0.02).status == "converged"


def test_an_error_above_the_tolerance_is_said_so():
    assert "exceeds the tolerance 1.0e-05" in ended(NoisyMap(0, 0.04), 1e-5).status
