"""A theory that lives outside the package: ridge regression, exact in the limit, and its estimator at finite size.

A `Problem` and an `Algorithm` are all that the verbs, files, comparison and resuming need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import asymptotix as asx
from third_party.own_model import LinearTeacher


@dataclass(frozen=True)
class RidgeRegression(asx.Problem):
    """Minimise sum_mu (y_mu - w.x_mu/sqrt(D))^2 + weight_decay |w|^2 on data from a :class:`LinearTeacher`.

    With V the response of a weight and A = alpha/(1 + V), the error of a weight is

        weight_decay V^2 + (weight_decay + alpha - 1) V = 1,
        E = (weight_decay^2 + A^2 noise/alpha) / ((weight_decay + A)^2 - A^2/alpha).
    """

    model: LinearTeacher
    weight_decay: float = 0.1
    controls = ("alpha",)

    def __post_init__(self) -> None:
        if not isinstance(self.model, LinearTeacher):
            raise TypeError(f"model must be a LinearTeacher, got {self.model!r}")
        if isinstance(self.weight_decay, bool | str) or not 0 < self.weight_decay < np.inf:
            raise ValueError(f"weight_decay must be positive and finite, got {self.weight_decay!r}")

    def check_control(self, name: str, values: Any) -> np.ndarray:
        grid = super().check_control(name, values)
        if not (grid > 0).all():
            raise ValueError(f"{name} must be positive, got {values!r}")
        return grid

    def estimation_error(self, alpha: float) -> float:
        decay, noise = self.weight_decay, self.model.noise
        half = 0.5 * (decay + alpha - 1)
        A = alpha / (1 + (np.sqrt(half**2 + decay) - half) / decay)
        return float((decay**2 + A**2 * noise / alpha) / ((decay + A) ** 2 - A**2 / alpha))

    def solve_points(
        self, points: Sequence[Mapping[str, float]], *, start: Any, tolerance: float, progress: Any
    ) -> Iterator[tuple[int, asx.Outcome]]:
        if start != "uninformed":
            raise ValueError(f"start must be 'uninformed': a convex problem has one minimum, got {start!r}")
        for position, point in reversed(list(enumerate(points))):  # any order is allowed
            error = self.estimation_error(point["alpha"])
            values = {"estimation_error": error, "test_error": error + self.model.noise}
            yield position, asx.Outcome(values | {f"{name}_err": 1e-12 for name in values})


@dataclass(frozen=True)
class NormalEquations(asx.Algorithm):
    """The minimum itself, from data of dimension ``dim``; for Bayes-optimal learning weight_decay = noise.

    Parameters
    ----------
    double : bool
        In double precision.
    """

    double: bool = True

    def check(self, problem: asx.Problem) -> None:
        if not isinstance(getattr(problem, "model", None), LinearTeacher):
            raise TypeError(f"NormalEquations runs on problems of a LinearTeacher, got {type(problem).__name__}")

    def dimensions(self, problem: asx.Problem) -> Mapping[str, tuple[str, ...]]:
        return {**problem.dimensions(), "weights": ("weight",)}

    def run_points(
        self,
        problem: Any,
        points: Sequence[Mapping[str, float]],
        *,
        dim: int | None,
        seeds: Sequence[int],
        progress: Any,
    ) -> Iterator[tuple[int, int, asx.Outcome]]:
        assert dim is not None
        decay = getattr(problem, "weight_decay", problem.model.noise)
        for i, point in enumerate(points):
            samples = max(round(point["alpha"] * dim), 1)
            for j, seed in enumerate(seeds):
                rng = np.random.default_rng([seed, dim, samples])
                X, teacher = rng.standard_normal((samples, dim)) / np.sqrt(dim), rng.standard_normal(dim)
                y = X @ teacher + np.sqrt(problem.model.noise) * rng.standard_normal(samples)
                w = np.linalg.solve(X.T @ X + decay * np.eye(dim), X.T @ y)
                error = float(((w - teacher) ** 2).mean())
                found = {"estimation_error": error, "test_error": error + problem.model.noise, "weights": w}
                if "overlap" in problem.dimensions():
                    found["overlap"] = np.array([[2 * w @ teacher - w @ w]]) / dim
                yield i, j, asx.Outcome(found)
