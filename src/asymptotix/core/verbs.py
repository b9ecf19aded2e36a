"""The verbs solve, simulate and thresholds: their work is described in `driver/works.py`; `run` does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .driver.run import CheckpointOption, ProgressOption, ResumeOption, run
from .driver.works import experiment_work, theory_work, threshold_work
from .problem import Algorithm, Problem
from .result import Result


def solve(
    problem: Problem,
    *,
    start: Any = "uninformed",
    tolerance: float = 1e-3,
    fixed: Mapping[int, float] | Mapping[str, float] | None = None,
    progress: ProgressOption = None,
    resume: ResumeOption = None,
    checkpoint: CheckpointOption = None,
    **controls: Any,
) -> Result:
    """Return the exact theory of a problem.

    Parameters
    ----------
    problem
        The model with the estimator that is analysed.
    start
        Where state evolution starts: "uninformed", "informed" or an order parameter.
    tolerance
        Numerical error aimed at in the observables.
    fixed
        For Bayes-optimal learning of sequence multi-index models, attention of any depth among them: overlaps in [0, 1]
        at which indices are held, by their label as the result has it, ``fixed={"layer 2": 0.9}``, or by their position
        along ``index``, counted from 0: ``fixed={0: 0.0}`` is ``fixed={"layer 1": 0.0}`` for attention of rank one,
        learning of the other layers while the first stays unlearned. State evolution moves the others only; a held
        index has no overlap with them, whatever ``start`` says, and 1 is taken as 1 - 1e-6. All observables are those
        at that overlap: the free entropy is the one that the others maximise with the held ones where they are. Exact
        recovery is not concluded: an overlap that tends to one is followed to 1 - 1e-6. The result notes it in its
        settings.
    progress
        None shows it where the work takes long, True always, False never.
    resume
        What an earlier call for the same problem returned, or the file it was saved to: its finished points are taken,
        the rest is run. The grid may be wider now than it was.
    checkpoint
        A file into which what is finished is written as points finish, at the latest every few seconds; it is always a
        complete result that :func:`load` reads and ``resume`` takes.
    **controls
        The problem's own controls (such as ``alpha``), all of them, and any numeric field of the problem or
        of its model, each a number or a 1-D grid. Grids multiply and become dimensions.

    Returns
    -------
    Result
        With dimensions (grids in the order given, the observable's own). What it holds is listed in the docstring of
        the problem, and every variable says what it means in its ``attrs``: ``result.overlap.attrs["description"]``.
        A point that failed stays, with its status. Where a swept field changes the indices, every number lies under
        its own ``index_label``, and a point without that index has NaN there.

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
    **controls: Any,
) -> Result:
    """Run a finite-size algorithm on the problem that :func:`solve` treats exactly.

    Parameters
    ----------
    problem
        The model with the estimator that is analysed.
    algorithm
        What to run, such as ``GAMP()``.
    seeds
        The number of runs, with seeds 0, 1, ..., or the seeds themselves.
    dim
        The size, or several, which then become a dimension ``dim``.
    progress
        None shows it where the work takes long, True always, False never.
    resume
        What an earlier call for the same problem returned, or the file it was saved to: its finished runs are taken,
        the rest is run, and an algorithm that can goes on in the middle of a run. Grids, sizes and seeds may be more
        now than they were.
    checkpoint
        As for :func:`solve`.
    **controls
        As for :func:`solve`.

    Returns
    -------
    Result
        With dimensions (grids in the order given, ``dim`` if several, ``seed``, the observable's own). Its variables
        have the names of the theory's, and mean the same at finite size; the algorithm's own are listed in its
        docstring, and all say what they mean in their ``attrs``.

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
    **fields: Any,
) -> Result:
    """Return the phase-transition thresholds of a problem.

    Parameters
    ----------
    problem
        The model with the estimator that is analysed.
    which
        Names of the thresholds wanted, such as ``"weak_recovery"`` or ``("weak_recovery", "exact_recovery")``; None is
        all of them. What is not asked for is not computed, and not in the result.
    tolerance
        Numerical error aimed at.
    progress
        None shows it where the work takes long, True always, False never.
    resume, checkpoint
        As for :func:`solve`.
    **fields
        Any numeric field of the problem or of its model, a number or a 1-D grid.

    Returns
    -------
    Result
        Every threshold is a value of alpha, with its numerical error ``<name>_err``; inf is never. Of Bayes-optimal
        learning:

        - ``weak_recovery(index)``: smallest alpha at which that index has an overlap from the uninformed start; 0 where
          any number of samples will do.
        - ``staircase(step)``: alpha of the successive instabilities, in the order in which directions are learned, and
          ``direction(step, index, index_other)``: the matrix of Frobenius norm 1 along which the overlap appears.
        - ``exact_recovery``: smallest alpha at which all is recovered without error from the uninformed start;
          ``exact_recovery_informed``: alpha from which full overlap is stable; ``exact_recovery_gap``: a flag and no
          width, 1.0 where the first exceeds the second by more than three errors, else 0.0.

        Where the target of an AttentionIndex has spikes, for every ``spike``: ``outlier``, the alpha from which on it
        is visible as an outlier of the learned spectrum; ``outlier_until`` and ``outlier_again``, between which it is
        not.

        Of Bayes-optimal learning with an AttentionIndex else only ``exact_recovery``. Of training, as the weight decay
        vanishes, ``interpolation``: largest alpha at which all data are fitted (without noise the one from which on the
        interpolator is unique), and ``exact_recovery``: smallest alpha at which the target is found without noise.

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
