"""Bayes-optimal learning: one name over several theories; this file alone asks which of them a model has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from .core.definitions.observable import Observable
from .core.problem import Outcome, Problem
from .core.progress import Progress
from .core.specification import Specification
from .numerics import checks

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import ArrayLike

    from .core.result import Result


class Theory(Protocol):
    """What a theory of Bayes-optimal learning does for the verbs; each method is that of :class:`Problem`."""

    def dimensions(self) -> Mapping[str, tuple[str, ...]]: ...

    def check_control(self, name: str, values: ArrayLike) -> np.ndarray: ...

    # It may have check_fixed too; then solve_points takes ``fixed``.
    def solve_points(
        self, points: Sequence[Mapping[str, float]], *, start: Any, tolerance: float, progress: Progress
    ) -> Iterator[tuple[int, Outcome]]: ...

    def threshold_names(self) -> Sequence[str]: ...  # may be missing, and ``which`` below with it

    def threshold_values(
        self, *, tolerance: float, progress: Progress, which: Sequence[str] | None = None
    ) -> Outcome: ...

    def trace(self, *, iterations: int, damping: float, alpha: float) -> Mapping[str, np.ndarray]: ...

    def comparable(self, experiment: xr.Dataset) -> xr.Dataset: ...

    def index_labels(self) -> Sequence[str]: ...

    def observables(self) -> Mapping[str, Observable]: ...  # may be missing


@dataclass(frozen=True)
class BayesOptimal(Problem):
    """The best that any estimator can do on data from a model, and what message passing reaches.

    Parameters
    ----------
    model : DeepAttention, InfiniteDepthAttention, SequenceIndex, MultiIndex or AttentionIndex
        Or any model with a method ``bayes_optimal_theory()`` that returns a class; called with this problem, it gives
        the theory to which the verbs are handed on.
    side_information : float
        Overlap l in [0, 1) of side information S = sqrt(l) W + sqrt(1-l) noise about the teacher's weights.

    Notes
    -----
    What a result holds; ``result.overlap.attrs``, say, has the definition in full, and ``<name>_err`` is the numerical
    error of ``<name>``. With D the dimension, P rows W of the weights, g the output and n = alpha D samples, of all
    models but AttentionIndex:

    - ``overlap(index, index_other)``: Q = E[W W*^T]/D with the teacher W*; 0 is nothing, the identity all, and the
      diagonal is a squared cosine.
    - ``test_error``: squared error, summed over outputs, of the posterior mean of g on fresh data; ``plugin_error``:
      that of g at the posterior mean of the weights.
    - ``estimation_error``: |W*^T W* - E[W^T W]|_F^2/D^2 = P - |Q|_F^2.
    - ``free_entropy``: log evidence per dimension; of several fixed points the largest counts; inf at exact recovery.
    - Of message passing also ``variance(index)``, that of the posterior in the run, and ``empirical_variance(index)``,
      by the data's own precision; ``eigenvalue(index)``, ``eigenvalue_gap(index)`` and ``spectral_overlap(index)`` of
      the spectral start. Those of SGD are listed there.

    Of an AttentionIndex, with n = alpha d^2 samples, S_0 the target and S its posterior mean:

    - ``q``: Tr(S^2)/d; ``estimation_error``: |S - S_0|_F^2/d; ``test_error``: squared error of the mean label.
    - ``qhat``: the posterior is that of S_0 seen through noise of variance 1/qhat.

    Thresholds are listed in :func:`thresholds`. The equations, each with the function that computes it, are in
    docs/theory/sequence_index.md, those of an AttentionIndex in docs/theory/attention_index.md.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2))
    >>> float(asx.solve(problem, alpha=0.1, progress=False).test_error) > 0.14
    True
    """

    controls: ClassVar[tuple[str, ...]] = ("alpha",)

    model: Specification
    side_information: float = 0.0

    def __post_init__(self) -> None:
        theory_of(self.model)  # a model without one is refused before anything else
        side = float(checks.probability("side_information", self.side_information))
        object.__setattr__(self, "side_information", side)
        _ = self.theory  # what is not covered is said now, not when a verb is called

    @cached_property
    def theory(self) -> Any:
        """The theory of this model, a :class:`Theory`; what else it has, such as a channel, is its own."""
        return theory_of(self.model)(self)

    @property
    def readouts(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What can be called on results of this model."""
        return getattr(self.theory, "readouts", ())

    def outliers(self, result: Result) -> xr.Dataset:
        """What the spikes of an AttentionIndex's target have become; see :meth:`RiskMinimization.outliers`."""
        return self.theory.outliers(result)

    def dimensions(self) -> Mapping[str, tuple[str, ...]]:
        return self.theory.dimensions()

    def observables(self) -> Mapping[str, Observable]:
        return self.theory.observables() if hasattr(self.theory, "observables") else {}

    def check_control(self, name: str, values: ArrayLike) -> np.ndarray:
        return self.theory.check_control(name, values)

    def check_fixed(self, fixed: Any) -> Mapping[int, float]:
        if hasattr(self.theory, "check_fixed"):
            return self.theory.check_fixed(fixed)
        model = type(self.model).__name__
        raise ValueError(f"fixed must be None: {model} has no overlaps of indices that can be held, got {fixed!r}")

    def solve_points(
        self,
        points: Sequence[Mapping[str, float]],
        *,
        start: Any,
        tolerance: float,
        progress: Progress,
        fixed: Mapping[int, float] | None = None,
    ) -> Iterator[tuple[int, Outcome]]:
        held = {} if fixed is None else {"fixed": fixed}
        yield from self.theory.solve_points(points, start=start, tolerance=tolerance, progress=progress, **held)

    def threshold_names(self) -> Sequence[str]:
        return self.theory.threshold_names() if hasattr(self.theory, "threshold_names") else ()

    def threshold_values(self, *, tolerance: float, progress: Progress, which: Sequence[str] | None = None) -> Outcome:
        asked = {} if which is None else {"which": which}
        return self.theory.threshold_values(tolerance=tolerance, progress=progress, **asked)

    def trace(self, *, iterations: int, damping: float, **controls: float) -> Mapping[str, np.ndarray]:
        return self.theory.trace(iterations=iterations, damping=damping, **controls)

    def comparable(self, experiment: xr.Dataset) -> xr.Dataset:
        return self.theory.comparable(experiment)

    def index_labels(self) -> Sequence[str]:
        return self.theory.index_labels()


def theory_of(model: Any) -> Callable[[BayesOptimal], Theory]:
    """The class of the theory of a model; TypeError where it has none."""
    if hasattr(model, "bayes_optimal_theory"):
        return model.bayes_optimal_theory()
    # Imported here, the lighter theory first: what a model does not need is not loaded.
    from .attention_index.model import AttentionIndex

    if isinstance(model, AttentionIndex):
        from .attention_index.outliers.inference_outliers import AttentionIndexInference

        return AttentionIndexInference
    from .sequence_index.channels.choose import covers

    if covers(model):
        from .sequence_index.theory import SequenceIndexTheory

        return SequenceIndexTheory
    raise TypeError(f"model must have a Bayes-optimal theory, as DeepAttention has, got {model!r}")
