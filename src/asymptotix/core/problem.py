"""Base classes that connect a theory with the verbs ``solve``, ``simulate`` and ``thresholds``.

A theory outside this package needs a :class:`Problem` (and an :class:`Algorithm` for experiments), each a frozen
dataclass with the methods below. The verbs take care of grids, assembly, errors, progress, files and comparison.
"""

from __future__ import annotations

import abc
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from ..numerics import checks
from .definitions.common_names import COMMON
from .definitions.observable import Observable
from .specification import Specification
from .status import Status

if TYPE_CHECKING:
    import xarray as xr

    from .progress import Progress


@dataclass(frozen=True)
class Outcome:
    """The outcome of one point: its numbers, and the status with which it ended.

    Parameters
    ----------
    values
        Observable -> number or array. ``<name>_err`` is the numerical error of ``<name>`` and has its
        dimensions; ``<name>_trace`` has a leading dimension ``iteration``.
    status
        How the point ended. A sentence is accepted too; it counts as converged unless ``converged`` is False, and then
        its beginning decides the status.
    converged
        Whether the point converged. Give it only together with a sentence; otherwise it follows from the status.
    words
        A sentence for the user, if the text of the status does not say enough.

    Examples
    --------
    >>> outcome = Outcome({"overlap": 0.5}, Status.NOT_CONVERGED, words="still moving by 1e-3 after 200 steps")
    >>> outcome.converged, outcome.sentence
    (False, 'still moving by 1e-3 after 200 steps')
    """

    values: Mapping[str, Any]
    status: Status | str = Status.CONVERGED
    converged: bool | None = None
    words: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.status, Status):
            if self.converged not in (None, self.status.converged):
                raise ValueError(f"converged must be left out, or be what {self.status} says, got {self.converged}")
        elif not isinstance(self.status, str):
            raise TypeError(f"status must be a Status or a sentence, got {self.status!r}")
        else:
            object.__setattr__(self, "words", self.status)
            object.__setattr__(self, "status", Status.from_words(self.status, self.converged is not False))
        object.__setattr__(self, "converged", self.how.converged)

    @property
    def how(self) -> Status:
        """The status as a member of :class:`Status`."""
        assert isinstance(self.status, Status)
        return self.status

    @property
    def sentence(self) -> str:
        """How the point ended, as a sentence: ``words``, or the text of the status if ``words`` is empty."""
        return self.words or self.how.sentence

    @property
    def interrupted(self) -> bool:
        """Whether an interrupt stopped or prevented the work on the point, so that it can be resumed."""
        return not self.how.finished

    def only(self, names: Sequence[str] | None) -> Outcome:
        """Return this outcome reduced to the named values and their errors; None keeps all values."""
        if names is None:
            return self
        kept = [*names, *(f"{name}_err" for name in names)]
        return replace(self, values={name: value for name, value in self.values.items() if name in kept})


class Problem(Specification, abc.ABC):
    """A model with the estimator that is analysed.

    Attributes
    ----------
    controls
        Names of the values that :func:`solve` needs besides the fields of the problem, such as ``("alpha",)``.
    readouts
        Names of methods that can be called on a result: ``result.name(...)`` is ``problem.name(result, ...)``.
    named_like_observables
        Fields that cannot be swept, because a result has an observable of the same name.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import asymptotix as asx
    >>> @dataclass(frozen=True)
    ... class Shrinkage(asx.Problem):
    ...     noise: float = 0.5
    ...     controls = ("alpha",)
    ...     def solve_points(self, points, *, start, tolerance, progress):
    ...         for position, point in enumerate(points):
    ...             yield position, asx.Outcome({"test_error": self.noise / (self.noise + point["alpha"])})
    >>> asx.solve(Shrinkage(), alpha=[0.5, 1.5], noise=[0.5, 1.0], progress=False).test_error.values
    array([[0.5       , 0.66666667],
           [0.25      , 0.4       ]])
    """

    controls: ClassVar[tuple[str, ...]] = ()
    readouts: ClassVar[tuple[str, ...]] = ()
    named_like_observables: ClassVar[tuple[str, ...]] = ()

    def dimensions(self) -> Mapping[str, tuple[str, ...]]:
        """Return observable -> names of the dimensions of its array at one point. Unlisted observables are scalars."""
        return {}

    def observables(self) -> Mapping[str, Observable]:
        """Return name -> definition, for observables, controls and fields with a meaning specific to this problem.

        The definitions become the attributes of a result's variables; that of ``<name>_err`` or ``<name>_trace``
        follows from ``<name>``. Default: none; then a name has only its common meaning, from
        ``core/definitions/common_names.py``.
        """
        return {}

    def check_control(self, name: str, values: ArrayLike) -> np.ndarray:
        """Return the values of the control ``name`` as a 1-D float array, or raise. Default: accept finite values."""
        return checks.finite_grid(name, values)

    def check_fixed(self, fixed: Any) -> Mapping[int, float]:
        """Return position along ``index`` -> overlap from ``fixed`` of ``solve``, or raise. Default: always raise."""
        raise ValueError(f"fixed must be None: {type(self).__name__} has no overlaps that can be held, got {fixed!r}")

    @abc.abstractmethod
    def solve_points(
        self,
        points: Sequence[Mapping[str, float]],
        *,
        start: Any,
        tolerance: float,
        progress: Progress,
        fixed: Mapping[int, float] | None = None,
    ) -> Iterator[tuple[int, Outcome]]:
        """Solve all points and yield (position in ``points``, outcome), in any order, as they finish.

        Every point maps a control to its value. The theory decides on batching and on continuation from point to point.
        The verb counts finished points on ``progress``; the theory may call ``progress.message``. ``fixed`` is passed
        only if :meth:`check_fixed` returned overlaps to hold: a theory that can hold none need not accept this
        argument.
        """

    def threshold_names(self) -> Sequence[str]:
        """Return the names that ``thresholds(..., which=)`` accepts. Default: none; all thresholds are computed."""
        return ()

    def threshold_values(self, *, tolerance: float, progress: Progress, which: Sequence[str] | None = None) -> Outcome:
        """Return the thresholds as the values of an outcome: name -> alpha, ``<name>_err`` -> its error.

        ``which`` is passed only if some of :meth:`threshold_names` were requested: a theory without such names need not
        accept this argument.
        """
        raise NotImplementedError(f"{type(self).__name__} has no thresholds")

    def trace(self, *, iterations: int, damping: float, **controls: float) -> Mapping[str, np.ndarray]:
        """Return the dynamics from the theory's start: observable -> array with a leading axis of ``iterations`` steps.

        ``damping`` is the share of every step that is taken, as in the algorithm.
        """
        raise NotImplementedError(f"{type(self).__name__} has no dynamics to compare with iteration by iteration")

    def comparable(self, experiment: xr.Dataset) -> xr.Dataset:
        """Return the dataset of an experiment with its known finite-size bias removed. Default: no change."""
        return experiment

    def index_labels(self) -> Sequence[str]:
        """Return the labels of the entries along ``index``. Default: none; they are shown as "index 1", "index 2", ...

        If a swept field changes the entries, those of different points are aligned by label. A part numbered 1 can be
        left out: "layer 2" is "layer 2 row 1".
        """
        return ()


def index_name(labels: Sequence[str], position: int) -> str:
    """Return the name of the entry of ``index`` at a position (from 0), given :meth:`Problem.index_labels`."""
    return labels[position] if position < len(labels) else f"index {position + 1}"


def definitions(problem: Problem, algorithm: Algorithm | None = None) -> dict[str, Observable]:
    """Return name -> definition for a result: the algorithm's, else the problem's, else the common one."""
    own = {} if algorithm is None else algorithm.observables(problem)
    return {**COMMON, **problem.observables(), **own}


#: Arguments of ``simulate`` that users often pass to the algorithm by mistake.
_OF_THE_VERB = ("dim", "seeds", "progress", "resume", "checkpoint")


class Algorithm(Specification, abc.ABC):
    """An algorithm that runs on data of finite size drawn from a :class:`Problem`.

    Attributes
    ----------
    needs_dim
        Whether the size is given by ``simulate(..., dim=)``; False where the problem itself fixes the size.
    runs_together
        Whether the outcome of a run depends on the runs of the same point with other seeds (R-hat over chains). If so
        and one run of a point is unfinished, all runs of the point are given to :meth:`resume_points`.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> import asymptotix as asx
    >>> @dataclass(frozen=True)
    ... class Guess(asx.Algorithm):
    ...     def run_points(self, problem, points, *, dim, seeds, progress):
    ...         for i, point in enumerate(points):
    ...             for j, seed in enumerate(seeds):
    ...                 draw = np.random.default_rng([seed, dim]).standard_normal(dim)
    ...                 yield i, j, asx.Outcome({"mean": draw.mean()})
    >>> model = asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2))
    >>> asx.simulate(model, Guess(), alpha=[0.5, 1.0], dim=100, seeds=3, progress=False).mean.shape
    (2, 3)
    """

    needs_dim: ClassVar[bool] = True
    runs_together: ClassVar[bool] = False

    def __new__(cls, *given: object, **named: object) -> Self:
        """Create the algorithm; raise for an unknown argument, with a hint if it is an argument of ``simulate``."""
        accepted = dict(inspect.signature(cls.__init__).parameters)
        accepted.pop("self", None)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
            for name in named.keys() - accepted.keys():
                verb = f"; {name} belongs to simulate(problem, {cls.__name__}(), ...)" if name in _OF_THE_VERB else ""
                raise TypeError(f"{cls.__name__} takes {', '.join(accepted) or 'no arguments'}, got {name}{verb}")
        return super().__new__(cls)

    def check(self, problem: Problem) -> None:
        """Raise a TypeError if this algorithm does not fit the problem; the error says which problems are accepted."""

    def check_points(
        self, problem: Problem, points: Sequence[Mapping[str, float]], *, dim: int | None, seeds: Sequence[int]
    ) -> None:
        """Raise if a run is impossible: too few samples, or too little memory. Default: never raise.

        The verb calls it for all points, with the arguments of :meth:`run_points`, before the first run.
        """

    def dimensions(self, problem: Problem) -> Mapping[str, tuple[str, ...]]:
        """Return observable -> names of the dimensions of its array in one run. Default: as in the theory."""
        return problem.dimensions()

    def observables(self, problem: Problem) -> Mapping[str, Observable]:
        """Return name -> definition, for observables that the theory lacks or defines differently. Default: none."""
        return {}

    @abc.abstractmethod
    def run_points(
        self,
        problem: Problem,
        points: Sequence[Mapping[str, float]],
        *,
        dim: int | None,
        seeds: Sequence[int],
        progress: Progress,
    ) -> Iterator[tuple[int, int, Outcome]]:
        """Run every point with every seed; yield (position in ``points``, position in ``seeds``, outcome) in any order.

        Every point maps a control to its value. The draws of a run depend only on its seed, dim and point, not on the
        other runs of the call.
        """

    def resume_points(
        self,
        problem: Problem,
        points: Sequence[Mapping[str, float]],
        *,
        dim: int | None,
        seeds: Sequence[int],
        earlier: Mapping[tuple[int, int], Mapping[str, Any]],
        progress: Progress,
    ) -> Iterator[tuple[int, int, Outcome]]:
        """Run as :meth:`run_points` does, given the values that an interrupted call left of some of the runs.

        ``earlier`` maps (position in ``points``, position in ``seeds``) to the values of a run, unfinished or, with
        ``runs_together``, finished. Default: ignore it and start all runs anew. An algorithm that can continue in the
        middle of a run yields its unfinished values with ``Status.INTERRUPTED`` when it is interrupted, and raises the
        KeyboardInterrupt when the next outcome is requested.
        """
        return self.run_points(problem, points, dim=dim, seeds=seeds, progress=progress)

    def trace_options(self, problem: Problem) -> Mapping[str, Any]:
        """Return the arguments iterations and damping with which :meth:`Problem.trace` follows this algorithm.

        Raise a ValueError with the reason if no theory follows the algorithm iteration by iteration. Default: raise.
        """
        raise ValueError(f"{type(self).__name__} cannot be followed iteration by iteration")
