"""The runs of an algorithm at the points of a grid, with their numbers of samples."""

from __future__ import annotations

import abc
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from .problem import Algorithm, Outcome, Problem
from .progress import Progress


@dataclass(frozen=True)
class PointRuns:
    """All runs of an algorithm at one point, one per seed.

    Attributes
    ----------
    position : int
        Position of the point in the argument ``points`` of :meth:`Algorithm.run_points`.
    control, value
        Name and value of the control, such as alpha.
    seeds : sequence of int
    samples, dim : int
        Number of samples of one run and their dimension; 0 where the problem contains the data.
    """

    position: int
    control: str
    value: float
    seeds: Sequence[int]
    samples: int = 0
    dim: int = 0

    @property
    def label(self) -> str:
        """The point as text for the progress output, such as "alpha = 0.5"."""
        return f"{self.control} = {self.value:.4g}"

    def each(self) -> Iterator[tuple[int, int, str]]:
        """Yield (position in ``seeds``, seed, text for the progress output) for every run."""
        for k, seed in enumerate(self.seeds):
            yield k, seed, f"{self.label}, seed {seed}"

    def batches(self, together: int) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield (position of the first seed in ``seeds``, seeds) for batches of at most ``together`` runs."""
        for first in range(0, len(self.seeds), together):
            yield first, self.seeds[first : first + together]


def point_runs(
    points: Sequence[Mapping[str, float]],
    seeds: Sequence[int],
    *,
    control: str = "alpha",
    samples: Callable[[float], float] | None = None,
    dim: int = 0,
) -> Iterator[PointRuns]:
    """Yield the runs at every point, in the order of the points.

    Parameters
    ----------
    points
        For every point, control -> value.
    control : str
        Name of the control that decides on the number of samples.
    samples : callable, optional
        Number of samples as a function of the control, such as alpha D; it is rounded. None: 0.
    dim : int
        Dimension of the samples.

    Raises
    ------
    ValueError
        If a point has less than one sample.
    """
    for position, point in enumerate(points):
        value = float(point[control])
        count = 0 if samples is None else _whole(samples(value), control, value, dim)
        yield PointRuns(position, control, value, seeds, count, dim)


def _whole(samples: float, control: str, value: float, dim: int) -> int:
    """Return ``samples`` rounded; raise if it is below one or infinite. The error names ``control`` = ``value``."""
    if not math.isfinite(samples):
        raise ValueError(f"{control} must give a finite number of samples, got {control}={value:g} at dim={dim}")
    if round(samples) < 1:
        raise ValueError(
            f"{control} must give a sample at least, got {control}={value:g}, which gives {samples:.2g} at dim={dim}; "
            f"one sample is {control}={value / samples:.3g}"
        )
    return round(samples)


class AlgorithmOnSamples(Algorithm):
    """An algorithm that draws its data: alpha dim**samples_power samples of dimension ``dim`` for every run.

    A subclass implements only the runs of one point, :meth:`run_point`.
    """

    #: Power of ``dim`` in the number of samples: 1 for alpha D samples, 2 for alpha d^2.
    samples_power: ClassVar[int] = 1

    def check_size(self, problem: Problem, runs: PointRuns) -> None:
        """Raise if runs of this dim and number of samples are impossible (too little memory). Default: pass."""

    def check_points(
        self, problem: Problem, points: Sequence[Mapping[str, float]], *, dim: int | None, seeds: Sequence[int]
    ) -> None:
        """Raise if :meth:`check_size` does at a point; warn if several points have the same number of samples."""
        assert dim is not None  # the verb asks for it
        equal: dict[int, list[str]] = {}
        for runs in self._runs(points, dim, seeds):
            self.check_size(problem, runs)
            equal.setdefault(runs.samples, []).append(f"{runs.value:g}")
        for samples, values in equal.items():
            if len(values) > 1:
                text = f"alpha = {', '.join(values)} all give {samples} samples at dim={dim}: their runs are the same"
                warnings.warn(text, UserWarning, stacklevel=4)  # skips this method, the work and the verb

    def _runs(self, points: Sequence[Mapping[str, float]], dim: int, seeds: Sequence[int]) -> Iterator[PointRuns]:
        unit = dim**self.samples_power
        return point_runs(points, seeds, samples=lambda alpha: alpha * unit, dim=dim)

    @abc.abstractmethod
    def run_point(self, problem: Problem, runs: PointRuns, progress: Progress) -> Iterator[tuple[int, Outcome]]:
        """Run one point with every seed; yield (position in ``runs.seeds``, outcome) as the runs end."""

    def run_points(
        self,
        problem: Problem,
        points: Sequence[Mapping[str, float]],
        *,
        dim: int | None,
        seeds: Sequence[int],
        progress: Progress,
    ) -> Iterator[tuple[int, int, Outcome]]:
        """Run one point after the other; yield (position in ``points``, position in ``seeds``, outcome)."""
        assert dim is not None  # the verb asks for it
        for runs in self._runs(points, dim, seeds):
            for k, outcome in self.run_point(problem, runs, progress):
                yield runs.position, k, outcome
