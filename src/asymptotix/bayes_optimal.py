"""Bayes-optimal learning: one name over several theories; the model it holds says which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from .attention_index.model import AttentionIndex
from .core.problem import Outcome, Problem
from .core.specification import Specification
from .numerics import checks


@dataclass(frozen=True)
class BayesOptimal(Problem):
    """The best that any estimator can do on data from a model, and what message passing reaches.

    Parameters
    ----------
    model : DeepAttention, ...
        Any model with a method ``bayes_optimal_theory()`` that returns a class; called with this problem, it gives
        the theory to which the verbs are handed on.
    side_information : float
        Overlap l in [0, 1) of side information S = sqrt(l) W + sqrt(1-l) noise about the teacher's weights.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2))
    >>> float(asx.solve(problem, alpha=0.1).test_error) > 0.2
    True
    """

    controls: ClassVar[tuple[str, ...]] = ("alpha",)

    model: Specification
    side_information: float = 0.0

    def __post_init__(self) -> None:
        if not (isinstance(self.model, AttentionIndex) or hasattr(self.model, "bayes_optimal_theory")):
            raise TypeError(f"model must have a Bayes-optimal theory, as DeepAttention has, got {self.model!r}")
        side = float(checks.probability("side_information", self.side_information))
        object.__setattr__(self, "side_information", side)
        _ = self.theory  # what is not covered is said now, not when a verb is called

    @cached_property
    def theory(self) -> Any:
        """The theory object that implements the verbs for this model."""
        if isinstance(self.model, AttentionIndex):
            from .attention_index.theory.bayes import AttentionIndexTheory

            return AttentionIndexTheory(self)
        return self.model.bayes_optimal_theory()(self)  # type: ignore[attr-defined]

    def dimensions(self) -> Mapping[str, tuple[str, ...]]:
        return self.theory.dimensions()

    def check_control(self, name: str, values: Any) -> np.ndarray:
        return self.theory.check_control(name, values)

    def solve_points(
        self, points: Sequence[Mapping[str, float]], *, start: Any, tolerance: float, progress: Any
    ) -> Iterator[tuple[int, Outcome]]:
        yield from self.theory.solve_points(points, start=start, tolerance=tolerance, progress=progress)

    def threshold_values(self, *, tolerance: float, progress: Any) -> Outcome:
        return self.theory.threshold_values(tolerance=tolerance, progress=progress)

    def trace(self, *, iterations: int, damping: float, **controls: float) -> Mapping[str, np.ndarray]:
        return self.theory.trace(iterations=iterations, damping=damping, **controls)

    def comparable(self, experiment: Any) -> Any:
        return self.theory.comparable(experiment)

    def index_labels(self) -> Sequence[str]:
        return self.theory.index_labels()
