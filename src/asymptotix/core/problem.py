"""The protocol between the verbs and a theory.

A theory outside this package needs a :class:`Problem` (and an :class:`Algorithm` for experiments), each a
frozen dataclass with the methods below; the verbs do grids, assembly, errors, progress, files, comparison.
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
    """What one point gave.

    Parameters
    ----------
    values
        Observable -> number or array. ``<name>_err`` is the numerical error of ``<name>`` and has its
        dimensions; ``<name>_trace`` has a leading dimension ``iteration``.
    status
        How the point ended. A sentence is accepted in its place; its first word and ``converged`` then say which
        value is meant.
    converged
        Follows from the status; to be given only with a sentence.
    words
        The sentence that people read, where there is more to say than the status itself does.

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
        """The status, always as a value."""
        assert isinstance(self.status, Status)
        return self.status

    @property
    def sentence(self) -> str:
        """How the point ended, in words."""
        return self.words or self.how.sentence

    @property
    def interrupted(self) -> bool:
        """Whether the run can go on from here."""
        return not self.how.finished

    def only(self, names: Sequence[str] | None) -> Outcome:
        """The same with these values and their errors alone; None keeps all."""
        if names is None:
            return self
        kept = [*names, *(f"{name}_err" for name in names)]
        return replace(self, values={name: value for name, value in self.values.items() if name in kept})


class Problem(Specification, abc.ABC):
    """A model with the estimator that is analysed.

    Attributes
    ----------
    controls
        What :func:`solve` needs besides the description, such as ``("alpha",)``.
    readouts
        Methods that can be called on a result: ``result.name(...)`` is ``problem.name(result, ...)``.
    named_like_observables
        Fields of parts that a result has an observable of the same name for, so that it has no room for a sweep.

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
        """Observable -> names of its own dimensions. An observable that is not listed is a scalar."""
        return {}

    def observables(self) -> Mapping[str, Observable]:
        """Name -> what it means: of observables, of controls and of fields, as far as it is this problem's own meaning.

        They become the attributes of a result's variables. Default: none, and what the names of
        ``core/definitions/common_names.py`` mean everywhere is all that is said. Errors and traces follow.
        """
        return {}

    def check_control(self, name: str, values: ArrayLike) -> np.ndarray:
        """Return the values of one of the ``controls`` as a 1-D float array, or raise. Default: finite."""
        return checks.finite_grid(name, values)

    def check_fixed(self, fixed: Any) -> Mapping[int, float]:
        """Return what ``solve(..., fixed=)`` holds, index -> overlap, or raise. Default: nothing can be held."""
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
        """Solve at every point and yield (position in ``points``, outcome), in any order, as they finish.

        Continuation from point to point and batching are the theory's own affair. The verb counts finished
        points on ``progress``; the theory may call ``progress.message``. ``fixed`` is handed over only where
        :meth:`check_fixed` accepted something to hold: a theory that refuses all need not take it.
        """

    def threshold_names(self) -> Sequence[str]:
        """Return what ``thresholds(..., which=)`` may ask for. Default: nothing, and always all are computed."""
        return ()

    def threshold_values(self, *, tolerance: float, progress: Progress, which: Sequence[str] | None = None) -> Outcome:
        """Return the phase-transition thresholds, or only those that are asked for.

        ``which`` is handed over only where some of :meth:`threshold_names` were asked for: a theory without such names
        need not take it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no thresholds")

    def trace(self, *, iterations: int, damping: float, **controls: float) -> Mapping[str, np.ndarray]:
        """Return the theory's dynamics from its start: observable -> array with a leading iteration axis."""
        raise NotImplementedError(f"{type(self).__name__} has no dynamics to compare with iteration by iteration")

    def comparable(self, experiment: xr.Dataset) -> xr.Dataset:
        """Return an experiment with its known finite-size bias removed. Default: as it is."""
        return experiment

    def index_labels(self) -> Sequence[str]:
        """Return what the entries of ``index`` are called. Default: none, and they are "index 1", "index 2", ...

        Where a swept field changes them, an entry of one problem and one of another are the same if their labels are,
        and the first of anything need not be said: "layer 2" is "layer 2 row 1".
        """
        return ()


def index_name(labels: Sequence[str], position: int) -> str:
    """What the entry of ``index`` at a position (from 0) is called, given :meth:`Problem.index_labels`."""
    return labels[position] if position < len(labels) else f"index {position + 1}"


def definitions(problem: Problem, algorithm: Algorithm | None = None) -> dict[str, Observable]:
    """The table of all that a result of these may hold: the algorithm's own meaning first, then the problem's."""
    own = {} if algorithm is None else algorithm.observables(problem)
    return {**COMMON, **problem.observables(), **own}


#: What is said to the verb and not to the algorithm.
_OF_THE_VERB = ("dim", "seeds", "progress", "resume", "checkpoint")


class Algorithm(Specification, abc.ABC):
    """A finite-size algorithm that runs on the same description.

    Attributes
    ----------
    needs_dim
        Whether the size is given by ``simulate(..., dim=)``; False where the problem itself fixes it.
    runs_together
        Whether what is said of one run of a point rests on the others (R-hat over chains): where one of them is left
        to do, all of them are given to :meth:`resume_points`.

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

    def __new__(cls, *given: Any, **named: Any) -> Self:
        """Refuse an argument that belongs to the verb with a sentence that says so."""
        accepted = dict(inspect.signature(cls.__init__).parameters)
        accepted.pop("self", None)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
            for name in named.keys() - accepted.keys():
                verb = f"; {name} belongs to simulate(problem, {cls.__name__}(), ...)" if name in _OF_THE_VERB else ""
                raise TypeError(f"{cls.__name__} takes {', '.join(accepted) or 'no arguments'}, got {name}{verb}")
        return super().__new__(cls)

    def check(self, problem: Problem) -> None:
        """Raise a TypeError that says what is accepted if this algorithm does not fit the problem."""

    def check_points(
        self, problem: Problem, points: Sequence[Mapping[str, float]], *, dim: int | None, seeds: Sequence[int]
    ) -> None:
        """Raise if one of these runs cannot be: too few samples, more than the memory holds. Default: all can.

        It is asked of all points of a call before the first of them is run.
        """

    def dimensions(self, problem: Problem) -> Mapping[str, tuple[str, ...]]:
        """Observable -> names of its own dimensions. Default: those of the theory."""
        return problem.dimensions()

    def observables(self, problem: Problem) -> Mapping[str, Observable]:
        """Name -> what it means, for what is this algorithm's own or has another meaning than in the theory."""
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
        """Run every point with every seed; yield (position in ``points``, position in ``seeds``, outcome).

        The draws of a run depend on its seed, dim and point only, not on what else is run in the same call.
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
        """As :meth:`run_points`, with the values that an interrupted call left of some of the runs.

        ``earlier`` is keyed by the positions in ``points`` and in ``seeds``. Default: all are run from the start. An
        algorithm that can go on in the middle of a run yields, when it is interrupted, what it has under
        ``Status.INTERRUPTED``, and raises the KeyboardInterrupt when it is asked for more.
        """
        return self.run_points(problem, points, dim=dim, seeds=seeds, progress=progress)

    def trace_options(self, problem: Problem) -> Mapping[str, Any]:
        """Return what :meth:`Problem.trace` needs to follow this algorithm (iterations, damping).

        Raises a ValueError with the reason where the theory cannot follow it.
        """
        raise ValueError(f"{type(self).__name__} cannot be followed iteration by iteration")
