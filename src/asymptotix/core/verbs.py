"""The public functions solve, simulate and thresholds, called verbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .driver.run import CheckpointOption, ProgressOption, ResumeOption, run
from .driver.works import experiment_work, theory_work, threshold_work
from .problem import Algorithm, Problem
from .result import Result

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def solve(
    problem: Problem,
    *,
    start: str | ArrayLike = "uninformed",
    tolerance: float = 1e-3,
    fixed: Mapping[int, float] | Mapping[str, float] | None = None,
    progress: ProgressOption = None,
    resume: ResumeOption = None,
    checkpoint: CheckpointOption = None,
    **controls: ArrayLike,
) -> Result:
    """Return the exact theory of a problem.

    Parameters
    ----------
    problem
        The model with the estimator that is analysed.
    start
        Starting point of state evolution: "uninformed", "informed" or an order parameter.
    tolerance
        Target for the numerical error of the observables.
    fixed
        For Bayes-optimal learning of sequence multi-index models, which include attention of any depth: overlaps in
        [0, 1] at which indices are held. An index is named by its label in the result, ``fixed={"layer 2": 0.9}``, or
        by its position along ``index``, counted from 0. For attention of rank one, ``fixed={0: 0.0}`` is
        ``fixed={"layer 1": 0.0}``: the other layers learn while the first stays unlearned. State evolution updates only
        the other indices. A held index has no overlap with them, whatever ``start`` is, and 1 is replaced by 1 - 1e-6.
        All observables are those of the overlap with these entries; the free entropy is maximised over the other
        indices only. The status is never "exact recovery": an overlap that tends to one is followed to 1 - 1e-6. The
        settings of the result record ``fixed``.
    progress
        None shows progress if the work takes long, True always, False never.
    resume
        The result of an earlier call for the same problem, or the file to which it was saved. Finished points are kept,
        the others are computed. The grid may be larger than that of the earlier call.
    checkpoint
        A file to which finished points are written, at most once a second. It is always a complete result, which
        :func:`load` reads and ``resume`` accepts.
    **controls
        All of the problem's own controls (such as ``alpha``), and any numeric fields of the problem or of its model,
        each a number or a 1-D grid. Grids become dimensions; all combinations are computed.

    Returns
    -------
    Result
        Its dimensions are the grids in the order given, then the observable's own. The docstring of the problem lists
        its variables; each one is defined in its ``attrs``: ``result.overlap.attrs["description"]``. A point that
        failed stays, with its status. Where a swept field changes the indices, numbers are stored by their
        ``index_label``, and a point without an index has NaN there.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2))
    >>> theory = asx.solve(problem, alpha=[0.1, 2.0], progress=False)
    >>> theory.overlap.dims, theory.overlap.values.ravel()
    (('alpha', 'index', 'index_other'), array([0., 1.]))
    """
    work = theory_work(problem, start=start, tolerance=tolerance, fixed=fixed, controls=controls)
    return run(work, progress=progress, resume=resume, checkpoint=checkpoint)


def simulate(
    problem: Problem,
    algorithm: Algorithm,
    *,
    seeds: int | Sequence[int],
    dim: int | Sequence[int] | None = None,
    progress: ProgressOption = None,
    resume: ResumeOption = None,
    checkpoint: CheckpointOption = None,
    **controls: ArrayLike,
) -> Result:
    """Run a finite-size algorithm on a problem. :func:`solve` gives its theory.

    Parameters
    ----------
    problem
        The model with the estimator that is analysed.
    algorithm
        The algorithm, such as ``GAMP()``.
    seeds
        The number of runs, with seeds 0, 1, ..., or a list of seeds.
    dim
        The dimension of the data, or several ones, which then become a dimension ``dim`` of the result. None for an
        algorithm whose problem contains the data.
    progress
        None shows progress if the work takes long, True always, False never.
    resume
        The result of an earlier call for the same problem, or the file to which it was saved. Finished runs are kept
        and the others computed; some algorithms continue in the middle of a run. There may be more grid points, sizes
        and seeds than in the earlier call.
    checkpoint
        A file to which finished runs are written, at most once a second. :func:`load` reads it, ``resume`` accepts it.
    **controls
        All of the problem's own controls (such as ``alpha``), and any numeric fields of the problem or of its model,
        each a number or a 1-D grid. All combinations are run.

    Returns
    -------
    Result
        Its dimensions are the grids in the order given, ``dim`` if there are several, ``seed``, then the observable's
        own. Variables shared with the theory have the same name and meaning, at finite size. The algorithm's docstring
        lists its other variables; all are defined in their ``attrs``.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2))
    >>> runs = asx.simulate(problem, asx.GAMP(), alpha=[1.5, 2.0], dim=100, seeds=3, progress=False)
    >>> runs.overlap.dims, runs.overlap.shape
    (('alpha', 'seed', 'index', 'index_other'), (2, 3, 1, 1))
    """
    work = experiment_work(problem, algorithm, seeds=seeds, dim=dim, controls=controls)
    return run(work, progress=progress, resume=resume, checkpoint=checkpoint)


def thresholds(
    problem: Problem,
    *,
    which: str | Sequence[str] | None = None,
    tolerance: float = 1e-3,
    progress: ProgressOption = None,
    resume: ResumeOption = None,
    checkpoint: CheckpointOption = None,
    **fields: ArrayLike,
) -> Result:
    """Return the phase-transition thresholds of a problem.

    Parameters
    ----------
    problem
        The model with the estimator that is analysed.
    which
        Names of the requested thresholds, such as ``"weak_recovery"`` or ``("weak_recovery", "exact_recovery")``; None
        requests all. Others are neither computed nor in the result.
    tolerance
        Target for the numerical error.
    progress
        None shows progress if the work takes long, True always, False never.
    resume, checkpoint
        An earlier result to continue, and a file for finished points; see :func:`solve`.
    **fields
        Any numeric field of the problem or of its model, a number or a 1-D grid. Grids become dimensions.

    Returns
    -------
    Result
        Every threshold is a value of alpha, with its numerical error ``<name>_err``; inf means never. For Bayes-optimal
        learning of sequence multi-index models:

        - ``weak_recovery(index)``: smallest alpha at which that index has an overlap from the uninformed start; 0 where
          any number of samples is enough.
        - ``staircase(step)``: alpha of the successive instabilities, in the order in which directions are learned, and
          ``direction(step, index, index_other)``: the matrix of Frobenius norm 1 along which the overlap appears.
        - ``exact_recovery``: smallest alpha at which everything is recovered without error from the uninformed start;
          ``exact_recovery_informed``: smallest alpha at which full overlap is stable; ``exact_recovery_gap``: a flag,
          not a width: 1.0 if ``exact_recovery`` exceeds ``exact_recovery_informed`` by more than three errors, else
          0.0.

        For Bayes-optimal learning with an AttentionIndex: ``exact_recovery``. For training, in the limit of vanishing
        weight decay: ``interpolation``, the largest alpha at which all data are fitted (without noise: the smallest
        alpha at which the interpolator is unique), and ``exact_recovery``, the smallest alpha at which the target is
        found without noise.

        If the target of an AttentionIndex has spikes, also, for every ``spike``: ``outlier``, the alpha above which the
        spike is visible as an outlier of the learned spectrum, except between ``outlier_until`` and ``outlier_again``.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2))
    >>> limits = asx.thresholds(problem, tokens=[2, 3], progress=False)
    >>> limits.weak_recovery.values.ravel().round(4)                     # 1/6 and 1/12
    array([0.1667, 0.0833])
    """
    work = threshold_work(problem, which=which, tolerance=tolerance, fields=fields)
    return run(work, progress=progress, resume=resume, checkpoint=checkpoint)
