"""Small theories to sweep over, and what a test asks of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asymptotix as asx
from asymptotix.core.problem import Outcome
from asymptotix.core.progress import Progress
from asymptotix.sweeps.sweep_store import SweepStore
from toy import ToyLearning, ToyRegression, ToyRun

PROBLEM = ToyLearning(ToyRegression(indices=2, noise=0.125))
RUN = ToyRun()
ALPHAS = [0.25, 0.5, 1.5]
OVER: dict[str, Any] = {"noise": [0.0, 0.125], "alpha": ALPHAS}

#: Values of alpha at which ToyWithTrouble raises, and what: a disease that a test can heal.
troubles: dict[float, Exception] = {}


@dataclass(frozen=True)
class ToyWithTrouble(ToyLearning):
    """A theory that raises where a test says so."""

    def solve_points(
        self, points: Sequence[Mapping[str, float]], *, start: Any, tolerance: float, progress: Progress
    ) -> Iterator[tuple[int, Outcome]]:
        for point in points:
            if point["alpha"] in troubles:
                raise troubles[point["alpha"]]
        yield from super().solve_points(points, start=start, tolerance=tolerance, progress=progress)


@dataclass(frozen=True)
class ToyOfTwoControls(ToyLearning):
    """The overlap is that at alpha * ratio; chunks may go along either."""

    controls = ("alpha", "ratio")

    def solve_points(
        self, points: Sequence[Mapping[str, float]], *, start: Any, tolerance: float, progress: Progress
    ) -> Iterator[tuple[int, Outcome]]:
        together = [{"alpha": point["alpha"] * point["ratio"]} for point in points]
        yield from super().solve_points(together, start=start, tolerance=tolerance, progress=progress)


@dataclass(frozen=True)
class ToyWithFunction(ToyLearning):
    """A theory that holds what no file can."""

    transform: Callable[[float], float] = abs


TROUBLED = ToyWithTrouble(ToyRegression(indices=2, noise=0.125))


def log_of(store: Path, ended: str = "computed") -> list[str]:
    """Names of the chunks that ended so, in the order in which they did."""
    return [line["chunk"] for line in SweepStore(store).log() if line.get("ended") == ended]


def undisturbed(folder: Path, problem: ToyLearning = PROBLEM, over: Mapping[str, Any] = OVER, chunk: int = 1) -> Any:
    """The dataset of a sweep to which nothing happened."""
    asx.sweep(problem, over=over, store=folder / "undisturbed", chunk=chunk)
    return asx.collect(folder / "undisturbed", problem=problem).ds
