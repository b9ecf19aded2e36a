"""Moments along a path: few averages, and what lies between them is as good."""

import numpy as np
import pytest

from asymptotix.sequence_index.channels.protocol import Averager, Averages
from asymptotix.sequence_index.evolution.followed_moments import FollowedMoments


class Counted(Averager):
    """E[g_l^2] = f_l q_l / (v_l + noise), f_l a function of both overlaps; remembers where it was asked."""

    def __init__(self, noise: float = 0.0) -> None:
        self.noise, self.places = noise, []

    def __call__(self, V: np.ndarray) -> Averages:
        v = np.diag(V)
        self.places.append(v)
        f = np.array([2.0, 1.0]) * np.exp(-0.5 * v[::-1] ** 2) * (1 + 0.3 * v**2)
        return Averages(np.diag(f * (1 - v) / (v + self.noise))[None], np.zeros(1), np.ones((1, 2)))


def followed(alpha: float, noise: float, start: list[float], steps: int) -> tuple[int, np.ndarray, np.ndarray]:
    """Number of averages, and moments on a path of state evolution: followed, and exact at the same places."""
    averages, exact = Counted(noise), Counted(noise)
    moments, V, pairs = FollowedMoments(averages, np.array([True, True])), np.diag(start), []
    for _ in range(steps):
        pairs.append((np.diag(moments(V)), np.diag(exact(V).second_moment[0])))
        V = np.diag((1 / (1 + alpha * pairs[-1][0])).clip(1e-6))
    found, expected = np.array(pairs).swapaxes(0, 1)
    return len(averages.places), found, expected


# Towards a fixed point, to exact recovery, and with a row that dies out.
@pytest.mark.parametrize(
    ("alpha", "noise", "start"), [(1.4, 0.2, [0.9, 0.95]), (1.4, 0.0, [0.9, 0.95]), (0.6, 0.0, [0.5, 0.999])]
)
def test_moments_on_a_path_need_few_averages(alpha, noise, start):
    count, found, expected = followed(alpha, noise, start, 60)
    assert count < 40
    np.testing.assert_allclose(found, expected, rtol=1e-3)  # three times the error that is aimed at


def test_a_turn_of_the_path_is_not_extrapolated():
    averages = Counted()
    moments = FollowedMoments(averages, np.array([True, True]))
    for v in np.linspace(0.9, 0.8, 30):
        moments(np.diag([v, 0.7]))
    before = len(averages.places)
    assert before < 20
    turned = np.diag([0.8, 0.699])
    np.testing.assert_array_equal(moments(turned), Counted()(turned).second_moment[0])
    assert len(averages.places) == before + 1


def test_nothing_is_extrapolated_from_zero_overlap():
    averages = Counted()
    moments = FollowedMoments(averages, np.array([False, True]))
    for _ in range(5):
        found = moments(np.eye(2))
    assert len(averages.places) == 5
    np.testing.assert_array_equal(found, np.zeros((2, 2)))
