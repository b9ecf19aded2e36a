"""The runs of an algorithm at the points of a grid: what every ``run_points`` starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PointRuns:
    """All runs at one point.

    Attributes
    ----------
    position : int
        Of the point among those of the call.
    control, value
        Name and value of the control, such as alpha.
    seeds : sequence of int
    samples : int
        Number of samples of one run; 0 where the problem brings its own data.
    """

    position: int
    control: str
    value: float
    seeds: Sequence[int]
    samples: int = 0

    @property
    def label(self) -> str:
        """Where the work is, for a line of progress."""
        return f"{self.control} = {self.value:.4g}"

    def each(self) -> Iterator[tuple[int, int, str]]:
        """Position among the seeds, seed and label of every run, one after the other."""
        for k, seed in enumerate(self.seeds):
            yield k, seed, f"{self.label}, seed {seed}"

    def batches(self, together: int) -> Iterator[tuple[int, Sequence[int]]]:
        """Position of the first seed and the seeds of every batch of at most ``together`` runs."""
        for first in range(0, len(self.seeds), together):
            yield first, self.seeds[first : first + together]


def point_runs(
    points: Sequence[Mapping[str, float]],
    seeds: Sequence[int],
    *,
    control: str = "alpha",
    samples: Callable[[float], float] | None = None,
) -> Iterator[PointRuns]:
    """The runs at every point, in the order of the points.

    Parameters
    ----------
    points
        Control -> value.
    samples : callable, optional
        Number of samples at a value of the control, alpha D say; it is rounded, and at least one.
    """
    for position, point in enumerate(points):
        value = float(point[control])
        count = max(round(samples(value)), 1) if samples is not None else 0
        yield PointRuns(position, control, value, seeds, count)
