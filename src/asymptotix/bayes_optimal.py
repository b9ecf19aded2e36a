"""Bayes-optimal learning: one problem class for several models. Only this file chooses the theory of a model."""

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
    """Interface of a theory of Bayes-optimal learning: each method does what :class:`Problem` says of its namesake."""

    def dimensions(self) -> Mapping[str, tuple[str, ...]]: ...

    def check_control(self, name: str, values: ArrayLike) -> np.ndarray: ...

    # A theory may also have check_fixed; its solve_points then takes ``fixed``.
    def solve_points(
        self, points: Sequence[Mapping[str, float]], *, start: Any, tolerance: float, progress: Progress
    ) -> Iterator[tuple[int, Outcome]]: ...

    def threshold_names(self) -> Sequence[str]: ...  # optional; without it threshold_values takes no ``which``

    def threshold_values(
        self, *, tolerance: float, progress: Progress, which: Sequence[str] | None = None
    ) -> Outcome: ...

    def trace(self, *, iterations: int, damping: float, alpha: float) -> Mapping[str, np.ndarray]: ...

    def comparable(self, experiment: xr.Dataset) -> xr.Dataset: ...

    def index_labels(self) -> Sequence[str]: ...

    def observables(self) -> Mapping[str, Observable]: ...  # optional


@dataclass(frozen=True)
class BayesOptimal(Problem):
    """Bayes-optimal learning of a model: the errors of the posterior mean, and those that message passing reaches.

    Parameters
    ----------
    model : DeepAttention, InfiniteDepthAttention, SequenceIndex, MultiIndex or AttentionIndex
        Or any model with a method ``bayes_optimal_theory()`` that returns a class. An instance of this class, created
        with this problem as its argument, is the theory that the verbs use.
    side_information : float
        Overlap l in [0, 1) of side information S = sqrt(l) W* + sqrt(1-l) noise about the teacher's weights W*.

    Notes
    -----
    ``<name>_err`` is the numerical error of ``<name>``; full definitions are in the attributes of a result, for example
    ``result.overlap.attrs``. For all models except AttentionIndex, with D the dimension, W (P, D) weights drawn from
    the posterior, W* those of the teacher, g the noiseless output and n = alpha D samples:

    - ``overlap(index, index_other)``: Q = E[W W*^T]/D; 0 if nothing is learned, the identity if everything is. Its
      diagonal is a squared cosine.
    - ``test_error``: squared error, summed over outputs, of the posterior mean of g on fresh data; ``plugin_error``:
      this error for the g computed with the posterior mean of the weights.
    - ``estimation_error``: |W*^T W* - E[W^T W]|_F^2/D^2 = P - |Q|_F^2.
    - ``free_entropy``: log evidence per dimension, the largest of all fixed points; inf at exact recovery.
    - Message passing adds ``variance(index)``, the posterior variance in the run; ``empirical_variance(index)``, this
      variance computed from the precision measured in the data; and ``eigenvalue(index)``, ``eigenvalue_gap(index)``
      and ``spectral_overlap(index)`` of the spectral start. The observables of SGD are listed in its docstring.

    For an AttentionIndex, with n = alpha d^2 samples, S_0 (d, d) the target and S its posterior mean:

    - ``q``: Tr(S^2)/d; ``estimation_error``: |S - S_0|_F^2/d; ``test_error``: squared error of the posterior mean of
      the label on fresh data, for hardmax of the predicted label.
    - ``qhat``: precision of the field; the posterior is that of S_0 observed with GOE noise of variance 1/qhat.

    Thresholds are listed in :func:`thresholds`. The equations, each with the function that computes it, are in
    docs/theory/sequence_index.md, and for an AttentionIndex in docs/theory/attention_index.md.

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
        theory_of(self.model)  # raises first if the model has no theory
        side = float(checks.probability("side_information", self.side_information))
        object.__setattr__(self, "side_information", side)
        _ = self.theory  # raises here, and not in a verb, if the theory does not cover the problem

    @cached_property
    def theory(self) -> Any:
        """The :class:`Theory` of this model and side information; it may have more attributes than that interface."""
        return theory_of(self.model)(self)

    @property
    def readouts(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Names of the methods that a result offers: ``result.name(...)`` calls ``problem.name(result, ...)``."""
        return getattr(self.theory, "readouts", ())

    def outliers(self, result: Result) -> xr.Dataset:
        """Return the outliers of the spikes of an AttentionIndex's target; see :meth:`RiskMinimization.outliers`."""
        return self.theory.outliers(result)

    def dimensions(self) -> Mapping[str, tuple[str, ...]]:
        return self.theory.dimensions()

    def observables(self) -> Mapping[str, Observable]:
        return self.theory.observables() if hasattr(self.theory, "observables") else {}

    def check_control(self, name: str, values: ArrayLike) -> np.ndarray:
        return self.theory.check_control(name, values)

    def check_fixed(self, fixed: object) -> Mapping[int, float]:
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
    """Return the class that computes the theory of a model from a BayesOptimal problem; TypeError if there is none."""
    if hasattr(model, "bayes_optimal_theory"):
        return model.bayes_optimal_theory()
    # Imports are local, the lighter theory first, so that a model loads only what it needs.
    from .attention_index.model import AttentionIndex

    if isinstance(model, AttentionIndex):
        from .attention_index.outliers.inference_outliers import AttentionIndexInference

        return AttentionIndexInference
    from .sequence_index.channels.choose import covers

    if covers(model):
        from .sequence_index.theory import SequenceIndexTheory

        return SequenceIndexTheory
    raise TypeError(f"model must have a Bayes-optimal theory, as DeepAttention has, got {model!r}")
