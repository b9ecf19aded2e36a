"""A model that lives outside the package: noisy linear labels, with its Bayes-optimal theory in closed form.

All here is what somebody else would write: a description and a theory class. Nothing in the package is edited, and
`asx.BayesOptimal(LinearTeacher())` works with every verb.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import asymptotix as asx
from asymptotix import Specification


@dataclass(frozen=True)
class LinearTeacher(Specification):
    """Labels y = w.x/sqrt(D) + sqrt(noise) N(0, 1) of inputs x ~ N(0, I_D), weights w ~ N(0, I_D), n = alpha D.

    Parameters
    ----------
    noise : float
        Variance of the noise, positive.
    """

    noise: float = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.noise, bool | str) or self.noise is None:
            raise TypeError(f"noise must be a number, got {self.noise!r}")
        if not 0 < self.noise < np.inf:
            raise ValueError(f"noise must be positive and finite, got {self.noise}")

    def bayes_optimal_theory(self) -> type:
        return LinearTeacherTheory


class LinearTeacherTheory:
    """Q = 1 - e, where e = E(w - <w>)^2 solves e (1 + alpha/(e + noise)) = 1 - l, with l the side information."""

    def __init__(self, problem: Any) -> None:
        self.noise, self.side = float(problem.model.noise), float(problem.side_information)

    def error(self, alpha: float) -> float:
        """The positive root of e^2 + (noise + alpha v - v) e - noise v = 0, v = 1 - l the variance before any data."""
        v = 1 - self.side
        half = 0.5 * (self.noise + alpha * v - v)
        return float(-half + np.sqrt(half**2 + self.noise * v))

    def dimensions(self) -> Mapping[str, tuple[str, ...]]:
        return {"overlap": ("index", "index_other"), "weak_recovery": ("index",)}

    def index_labels(self) -> Sequence[str]:
        return ("teacher",)

    def check_control(self, name: str, values: Any) -> np.ndarray:
        grid = np.asarray(values, float)
        if not (np.isfinite(grid) & (grid > 0)).all():
            raise ValueError(f"{name} must be positive and finite, got {values!r}")
        return grid

    def solve_points(
        self, points: Sequence[Mapping[str, float]], *, start: Any, tolerance: float, progress: Any
    ) -> Iterator[tuple[int, asx.Outcome]]:
        if start not in ("uninformed", "informed"):
            raise ValueError(f"start must be 'uninformed' or 'informed' (there is one fixed point), got {start!r}")
        for position, point in enumerate(points):
            e = self.error(point["alpha"])
            values = {"overlap": np.array([[1 - e]]), "test_error": e + self.noise}
            errors = {f"{name}_err": 0.0 * value for name, value in values.items()}
            yield position, asx.Outcome({**values, **errors})

    def threshold_values(self, *, tolerance: float, progress: Any) -> asx.Outcome:
        return asx.Outcome({"weak_recovery": np.zeros(1), "exact_recovery": np.inf})

    def trace(self, *, iterations: int, damping: float, alpha: float) -> Mapping[str, np.ndarray]:
        raise NotImplementedError("a closed form has no dynamics")

    def comparable(self, experiment: Any) -> Any:
        return experiment
