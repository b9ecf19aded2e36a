"""The verb `sweep`: work over a grid that is cut into chunks, each of which is stored as soon as it is done."""

from __future__ import annotations

import dataclasses
import os
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..core.driver.works import seed_list, sizes_of
from ..core.grid import MOST_POINTS
from ..core.problem import Algorithm, Problem
from ..core.progress import Progress, as_progress
from ..core.result import Result
from ..core.specification import Specification
from ..numerics import checks, interrupts
from .chunk_work import TAKEN
from .collecting import collect
from .executors.executor_choice import as_executor
from .executors.submitting import Executor
from .leases import Watch
from .part import OPTIONS, SweepChunk, SweepPart
from .planning import planned
from .standing import Reporter, Standing, standing
from .sweep_store import SweepStore

SECONDS_BETWEEN_LOOKS = 0.5
#: Largest number of points for which an interrupted sweep returns a result. Larger: Ctrl-C seems to hang, because
#: collecting 10^5 points takes seconds.
MOST_COLLECTED_AT_AN_INTERRUPT = 20_000


def sweep(
    problem: Problem,
    *,
    over: Mapping[str, ArrayLike],
    store: str | os.PathLike,
    algorithm: Algorithm | None = None,
    thresholds: bool = False,
    dim: int | Sequence[int] | None = None,
    seeds: int | Sequence[int] | None = None,
    executor: object = None,
    part: str | None = None,
    chunk: int | None = None,
    retry_failed: bool = False,
    progress: Progress | bool | None = None,
    **options: Any,
) -> Result:
    """Solve a problem, run an algorithm or find thresholds over a grid, in chunks that are stored when done.

    The same call resumes after any interruption, and uses the stored chunks. With a wider grid, more sizes or more
    seeds, it computes only what is missing. Several calls may work on one store at a time, from several machines with a
    common file system.

    Parameters
    ----------
    problem
        The model with the estimator that is analysed.
    over
        Controls and numeric fields, each a number or a 1-D grid, as for :func:`solve`. The sweep covers all
        combinations of the grids.
    store
        Folder for the results; it is created if it does not exist.
    algorithm
        Algorithm to run, with sizes ``dim`` and ``seeds`` as for :func:`simulate`. None: theory.
    thresholds
        Whether to find thresholds instead of solving; then ``over`` has fields only.
    executor
        Processes that compute: None is this process; a number starts as many new processes, each with its share of the
        cores; or the address of a Dask scheduler, a Dask client, or anything with ``submit`` as in
        ``concurrent.futures``.
    part
        Name of this work in the store, which may hold several; by default "theory", "experiment" or "thresholds".
    chunk
        Number of theory points, or of runs, in a chunk; by default as many as take half a minute, which is measured.
        Each theory point continues from the one before in its chunk, so its last digits depend on ``chunk``, within the
        tolerance.
    retry_failed
        Whether chunks that raised an error are tried again.
    progress
        As for :func:`solve`.
    **options
        Options of the verb: ``start``, ``tolerance``, ``fixed``, ``which``.

    Returns
    -------
    Result
        The result of the verb. Points of failed chunks have a status with the message. After an interrupt, points that
        are not done have no numbers; on a grid of more than 20,000 points an interrupt raises KeyboardInterrupt
        instead, because collecting the points takes long.

    Raises
    ------
    ValueError
        If the store has another sweep under the same name (the error lists the differences), or a later version wrote
        it.

    Examples
    --------
    >>> import tempfile
    >>> import asymptotix as asx
    >>> problem = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.1)
    >>> folder = tempfile.mkdtemp()
    >>> found = asx.sweep(problem, over={"weight_decay": [0.1, 1.0], "alpha": [0.5, 1.0]}, store=folder, chunk=2)
    >>> found.test_error.dims, len(asx.sweep_status(folder).done)
    (('weight_decay', 'alpha'), 2)
    """
    verb = "simulate" if algorithm is not None else "thresholds" if thresholds else "solve"
    own = _part(verb, problem, over, algorithm, dim, seeds, options)
    _check(own)
    name = _checked_name({"solve": "theory", "simulate": "experiment"}.get(verb, verb) if part is None else part)
    chunk = None if chunk is None else checks.integer("chunk", chunk, minimum=1)
    workers = as_executor(executor)
    with workers.opened(), interrupts.deferred():
        kept = SweepStore(store, create=True)
        try:
            with as_progress(progress, None, f"sweep of {type(problem).__name__}") as bar:
                complete, seen, grows = False, set(), bar.total is None
                while not complete:
                    wanted, complete = planned(kept, name, own, chunk, bar)
                    new = {one.name for one in wanted} - seen
                    seen |= new
                    if retry_failed:
                        kept.forget_failures(new)
                    if damaged := kept.set_aside_damaged(new):
                        warnings.warn(_damaged(kept, damaged), RuntimeWarning, stacklevel=2)
                    _work_through(kept, wanted, workers, (problem, algorithm), bar, grows)
        except KeyboardInterrupt:
            if interrupts.insisting() or not any(one.part == name for one in kept.each_planned()):
                raise
            if own.points > MOST_COLLECTED_AT_AN_INTERRUPT:
                raise KeyboardInterrupt(
                    f"interrupted: finished chunks are in {kept.path}. Repeat the same call to resume, or read them "
                    "with asymptotix.collect"
                ) from None
    result = collect(kept.path, part=name, problem=problem, algorithm=algorithm)
    if complaint := _complaint(kept, name):
        warnings.warn(complaint, RuntimeWarning, stacklevel=2)
    return result


def _check(part: SweepPart) -> None:
    """Raise ValueError for a sweep that is too large or invalid, before anything is written."""
    if part.points > MOST_POINTS:
        raise ValueError(f"the grids of over must have at most {MOST_POINTS} points, got {part.points}")
    part.corners().work()


def _part(
    verb: str,
    problem: Problem,
    over: Mapping[str, ArrayLike],
    algorithm: Algorithm | None,
    dim: int | Sequence[int] | None,
    seeds: int | Sequence[int] | None,
    options: Mapping[str, Any],
) -> SweepPart:
    if not isinstance(over, Mapping):
        raise TypeError(f"over must be a mapping from names to numbers or grids, got {checks.named(over)}")
    if unknown := [name for name in options if name not in OPTIONS[verb]]:
        accepted = ", ".join(OPTIONS[verb]) or "none"
        raise TypeError(f"{unknown[0]!r} is no option of a sweep that would {verb}; accepted are {accepted}")
    if verb != "simulate" and (dim is not None or seeds is not None):
        raise TypeError(f"dim and seeds belong to an algorithm, which was not given: got dim={dim!r}, seeds={seeds!r}")
    if verb == "simulate" and seeds is None:
        raise TypeError("an algorithm needs seeds, for example seeds=8")
    grid = {name: np.asarray(values).tolist() for name, values in over.items()}
    one_size = dim is not None and checks.dimensions("dim", dim) == 0
    if verb != "simulate":
        return SweepPart(verb, problem, grid, options=dict(options))
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"algorithm must be an Algorithm, such as GAMP(), got {checks.named(algorithm)}")
    return SweepPart(
        verb, problem, grid, algorithm, sizes_of(algorithm, dim), seed_list(seeds), dict(options), one_size=one_size
    )


def _complaint(store: SweepStore, part: str) -> str:
    """Return the text of a warning about chunks of ``part`` that failed or are left undone; "" if all are done."""
    planned = {one.name for one in store.plan() if one.part == part}
    done = store.done() & planned
    failed = (store.failures() & planned) - done
    said = []
    if left := len(planned) - len(done) - len(failed):
        said.append(f"interrupted: {left} of {len(planned)} chunks are left, and the same call goes on")
    if failed:
        first = store.failure(min(failed))
        said.append(f"{len(failed)} of {len(planned)} chunks failed ({first}); retry_failed=True tries them again")
    return "; ".join(said)


def _checked_name(part: object) -> str:
    """Return the name of a part, checked because it is also the name of a file."""
    if isinstance(part, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", part):
        return part
    raise ValueError(f"part must be a name of letters, digits, '_', '-' and '.', got {part!r}")


def _work_through(
    store: SweepStore,
    wanted: Sequence[SweepChunk],
    workers: Executor,
    given: tuple[Problem, Algorithm | None],
    bar: Progress,
    grows: bool,
) -> None:
    """Compute all ``wanted`` chunks; wait for chunks that another process computes, as long as that process runs.

    Parameters
    ----------
    store : SweepStore
    wanted : sequence of SweepChunk
        Chunks that are done or failed when the function returns.
    workers : Executor
    given : (Problem, Algorithm or None)
        Problem and algorithm, passed to workers if the store cannot hold them.
    bar : Progress
    grows : bool
        Whether to add the number of missing chunks to the total of ``bar``.
    """
    lines = {one.name: one.to_json() for one in wanted}
    handed = {one.part: given if any(map(_only_here, given)) else None for one in wanted}
    ended = (store.done() | store.failures()) & lines.keys()
    # Chunks that exist already do not count: they would make the remaining time far too short.
    if grows:  # the total grows with every list of newly planned chunks
        bar.total = bar.done + len(lines) - len(ended)
    report, watch = Reporter(store, bar), Watch()  # watched here: a new worker has not seen a claim for a whole lease
    while left := [line for name, line in lines.items() if name not in ended]:
        interrupts.check()
        held = store.claimed()
        free = [line for line in left if line["name"] not in held or watch.frees(store.claim_path(line["name"]))]
        taken = len(left) - len(free)
        for name, how in workers.run(str(store.path), free, handed) if free else ():
            taken += how == TAKEN
            if how != TAKEN and name not in ended:
                ended.add(name)
                report.now_and_then()
                bar.advance()
        gone = (store.done() | store.failures()) & lines.keys()
        bar.advance(len(gone - ended))
        ended |= gone
        if taken and len(ended) < len(lines):
            bar.message(f"{taken} chunks are worked on elsewhere")
            time.sleep(SECONDS_BETWEEN_LOOKS)
    report.at_the_end()


def _only_here(value: object) -> bool:
    """Return whether ``value`` has functions, or classes of another package, so that the store cannot rebuild it.

    Such an object is itself passed to other processes.
    """
    if isinstance(value, Specification):
        outside = not type(value).__module__.startswith(__name__.partition(".")[0] + ".")
        return outside or any(_only_here(getattr(value, field.name)) for field in dataclasses.fields(value))  # pyright: ignore[reportArgumentType]
    if isinstance(value, Mapping | tuple | list):
        return any(map(_only_here, value.values() if isinstance(value, Mapping) else value))
    return callable(value)


def _damaged(store: SweepStore, names: Sequence[str]) -> str:
    return (
        f"{len(names)} chunks of {store.path} were not what was written ({', '.join(names[:3])}"
        f"{', ...' if len(names) > 3 else ''}); they are now in {store.path / 'damaged'} and computed anew"
    )


def sweep_status(store: str | os.PathLike) -> Standing:
    """Return how far a sweep has come, also while it runs and from another machine.

    Parameters
    ----------
    store
        The folder that was given to :func:`sweep`.

    Returns
    -------
    Standing
        It has the names of chunks that are ``done``, ``running``, ``failed`` and ``left``, and the ``messages`` of
        failed chunks. Printing it shows a few lines with rate and remaining time.

    Examples
    --------
    >>> import tempfile
    >>> import asymptotix as asx
    >>> folder = tempfile.mkdtemp()
    >>> problem = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.1)
    >>> _ = asx.sweep(problem, over={"alpha": [0.5, 1.0]}, store=folder, chunk=1)
    >>> len(asx.sweep_status(folder).done), asx.sweep_status(folder).left
    (2, [])
    """
    return standing(SweepStore(store))
