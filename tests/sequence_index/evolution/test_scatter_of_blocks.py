"""The error of a number from blocks that are added until it is small: it must not be small by chance."""

from types import SimpleNamespace

import numpy as np

from asymptotix.core.progress import quietly
from asymptotix.sequence_index.evolution.thresholds import staircase
from asymptotix.sequence_index.evolution.thresholds.threshold import fill_a_net, scatter_of_blocks


def found(rng: np.random.Generator, tolerance: float) -> tuple[float, float]:
    """A number that is zero, and its error, from up to sixteen blocks of eight randomisations."""
    rows = []
    while True:
        rows.append(rng.standard_normal(8))
        if not fill_a_net(len(rows)):
            continue
        error = scatter_of_blocks(np.stack(rows))
        if len(rows) == 16 or error <= tolerance:
            return float(np.mean(rows)), error


def test_it_covers_where_one_stops_as_soon_as_it_is_small() -> None:
    """Of means of eight 2 % exceed three errors. Of those that stop at the first small scatter of means 4 % do."""
    rng = np.random.default_rng(0)
    scores = np.array([value / error for value, error in (found(rng, 0.1) for _ in range(6000))])
    assert (abs(scores) > 3).mean() < 0.035
    assert 0.58 < (abs(scores) <= 1).mean() < 0.8


def test_one_randomisation_has_none() -> None:
    assert scatter_of_blocks(np.ones((3, 1))) == 0.0


def test_means_of_all_blocks_may_be_others_than_those_of_each() -> None:
    rows = np.array([[0.0, 2.0], [2.0, 0.0]])
    assert scatter_of_blocks(rows) == np.sqrt(2.0) / 2 / np.sqrt(2)  # of one block, over two
    assert scatter_of_blocks(rows, np.array([0.0, 4.0])) == np.sqrt(8.0) / np.sqrt(2)


def test_nets_are_filled_by_powers_of_two() -> None:
    assert [n for n in range(1, 17) if fill_a_net(n)] == [1, 2, 4, 8, 16]


class _Growing:
    """Stands for a point with one small overlap, which grows by alpha times a rate."""

    def __init__(self, alpha: float, x: float = -4.0) -> None:
        self.alpha, self.logits = alpha, np.array([x])

    def at(self, alpha: float) -> "_Growing":
        return _Growing(alpha, self.logits[0])

    def moved(self, x: float) -> "_Growing":
        return _Growing(self.alpha, x)


def test_a_branch_starts_where_it_lives_on_few_nodes() -> None:
    """These see a rate of 1, that of the branch was 1/0.8."""
    asked = []

    def after(few: None, point: _Growing) -> float:
        asked.append(point.alpha)
        return float(point.logits[0] + np.log(point.alpha))

    evolution = SimpleNamespace(nodes=SimpleNamespace(few=None), after=after)
    alpha = staircase._rooted(evolution, _Growing(0.8), 0.8, quietly)  # pyright: ignore[reportArgumentType]
    assert 1 <= alpha < 1.05
    assert len(asked) <= 6
    assert staircase._rooted(evolution, _Growing(1.1), 1.1, quietly) == 1.1  # pyright: ignore[reportArgumentType]
