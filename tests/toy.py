"""A theory that lives outside the package: all here is what a third party writes, and nothing is edited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from asymptotix.core.problem import Algorithm, Outcome, Problem
from asymptotix.core.progress import Progress
from asymptotix.core.result import Result
from asymptotix.core.specification import Specification
from asymptotix.numerics import checks


@dataclass(frozen=True)
class ToyRegression(Specification):
    """Linear regression on ``indices`` directions; the labels carry noise of the given variance."""

    indices: int = 2
    noise: float = 0.0

    def __post_init__(self) -> None:
        checks.integer("indices", self.indices, minimum=1)
        checks.non_negative("noise", self.noise)


@dataclass(frozen=True)
class ToyLearning(Problem):
    """The overlap of every direction is Q = min(alpha, 1) / (1 + noise), in closed form."""

    model: ToyRegression
    weight_decay: float = 0.0
    controls = ("alpha",)
    readouts = ("double_overlap",)

    def dimensions(self) -> Mapping[str, tuple[str, ...]]:
        return {"overlap": ("index", "index_other"), "weak_recovery": ("index",)}

    def check_control(self, name: str, values: Any) -> np.ndarray:
        grid = checks.finite_grid(name, values)
        for value in grid:
            checks.positive(name, value)
        return grid

    def expected(self, alpha: float) -> float:
        return min(alpha, 1.0) / (1.0 + self.model.noise) / (1.0 + self.weight_decay)

    def solve_points(
        self, points: Sequence[Mapping[str, float]], *, start: Any, tolerance: float, progress: Progress
    ) -> Iterator[tuple[int, Outcome]]:
        for i in reversed(range(len(points))):  # any order is allowed
            q = self.expected(points[i]["alpha"])
            exact = q == 1.0
            yield (
                i,
                Outcome(
                    {
                        "overlap": q * np.eye(self.model.indices),
                        "overlap_err": np.full((self.model.indices,) * 2, 1e-6),
                        "test_error": 1 - q + self.model.noise,
                    },
                    status="exact recovery" if exact else "converged",
                ),
            )

    def threshold_values(self, *, tolerance: float, progress: Progress) -> Outcome:
        weak = 0.1 * np.arange(1, self.model.indices + 1) * (1 + self.model.noise)
        return Outcome({"weak_recovery": weak, "exact_recovery": 1.0 if self.model.noise == 0 else np.inf})

    def trace(self, *, iterations: int, damping: float, **controls: float) -> Mapping[str, np.ndarray]:
        weight = 1 - damping ** np.arange(1, iterations + 1)
        return {"overlap": weight[:, None, None] * self.expected(controls["alpha"]) * np.eye(self.model.indices)}

    def comparable(self, experiment: xr.Dataset) -> xr.Dataset:
        return experiment.assign(overlap=experiment["overlap"] - 1 / experiment["dim"])

    def double_overlap(self, result: Result, *, factor: float = 2.0) -> xr.DataArray:
        return factor * result.overlap


@dataclass(frozen=True)
class ToyRun(Algorithm):
    """A fake experiment: theory plus noise of size 1/sqrt(dim) plus the bias 1/dim of an unlearned index."""

    iterations: int = 6
    damping: float = 0.5
    shift: float = 0.0

    def check(self, problem: Problem) -> None:
        if not isinstance(problem, ToyLearning):
            raise TypeError(f"ToyRun runs on ToyLearning, got {type(problem).__name__}")

    def run_points(
        self,
        problem: Any,
        points: Sequence[Mapping[str, float]],
        *,
        dim: int | None,
        seeds: Sequence[int],
        progress: Progress,
    ) -> Iterator[tuple[int, int, Outcome]]:
        assert dim is not None  # this algorithm needs it, and simulate asks for it
        for i, point in enumerate(points):
            for j, seed in enumerate(seeds):
                rng = np.random.default_rng([seed, dim, int(1e6 * point["alpha"])])
                size = problem.model.indices
                noise = rng.standard_normal((size, size)) / np.sqrt(dim)
                trace = problem.trace(iterations=self.iterations - j % 2, damping=self.damping, **point)["overlap"]
                values = {
                    "overlap": problem.expected(point["alpha"]) * np.eye(size) + noise + 1 / dim + self.shift,
                    "test_error": 1 - problem.expected(point["alpha"]) + problem.model.noise + noise[0, 0],
                    "overlap_trace": trace + 1e-3 * noise,
                }
                yield i, j, Outcome(values)

    def trace_options(self, problem: Problem) -> Mapping[str, Any]:
        return {"iterations": self.iterations, "damping": self.damping}
