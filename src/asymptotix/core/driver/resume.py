"""Going on where an interrupted call stopped: which points are finished, and what the others left."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..dataset.assemble import RESERVED
from ..dataset.rows import INDEX_DIMENSIONS, Rows, label_name
from ..problem import Algorithm, Outcome, Problem
from ..result import Result, at_fixed_values, load
from ..specification import Specification, differences, differing, encode
from ..status import Status


def earlier_outcomes(
    resume: Result | str | os.PathLike | None,
    *,
    problem: Problem,
    algorithm: Algorithm | None,
    settings: Mapping[str, Any],
    shape: Mapping[str, int],
    coordinates: Mapping[str, Any],
    rows: Rows,
) -> list[Outcome | None]:
    """Outcomes of an earlier call for the same work, one per grid point in C order; None where there is none.

    Parameters
    ----------
    resume
        The result of that call, or the file it was saved to; None gives no outcomes.
    problem, algorithm, settings
        What is to be done now, and how; the earlier call must have been of the same.
    shape, coordinates
        Grid of the work: dimension -> length, and the coordinates as they will be assembled.
    rows
        The entries of ``index`` of the work; where they change from point to point the earlier call must have told
        them by their labels.
    """
    size = int(np.prod(list(shape.values()), dtype=int))
    if resume is None:
        return [None] * size
    problem = at_fixed_values(problem, {n: v for n, v in coordinates.items() if not isinstance(v, tuple)})
    if not isinstance(resume, Result):
        if not isinstance(resume, str | os.PathLike):
            raise TypeError(f"resume must be a Result or the path of a saved one, got {type(resume).__name__}")
        resume = load(resume, problem)
    _check_same_work(resume, problem, algorithm, settings, coordinates)
    _check_labels(resume, rows)
    ds = resume.ds.transpose(*shape, ...)
    names = [str(name) for name in ds.data_vars if name not in RESERVED]
    words, codes = ds["status"].values, ds["status_code"].values
    return [
        _outcome({name: ds[name].values[at] for name in names}, Status.from_code(codes[at]), str(words[at]))
        for at in np.ndindex(*shape.values())
    ]


def is_finished(outcome: Outcome | None) -> bool:
    """Whether nothing is left to do."""
    return outcome is not None and not outcome.interrupted


def _outcome(values: Mapping[str, Any], status: Status, words: str) -> Outcome | None:
    known = {name: value for name, value in values.items() if not _is_missing(np.asarray(value))}
    return Outcome(known, status, words=words) if known else None


def _is_missing(value: np.ndarray) -> bool:
    """Whether a point gave no such number: assembling filled its place."""
    if value.dtype.kind in "fc":
        return bool(np.isnan(value).all())
    return value.dtype.kind == "U" and bool((value == "").all())


def _check_same_work(
    resume: Result,
    problem: Problem,
    algorithm: Algorithm | None,
    settings: Mapping[str, Any],
    coordinates: Mapping[str, Any],
) -> None:
    """Refuse a result of other work, naming what differs."""
    pairs: list[tuple[str, Specification | None, Specification | None]] = [
        ("problem", resume.problem, problem),
        ("algorithm", resume.algorithm, algorithm),
    ]
    for name, before, now in pairs:
        if type(before) is not type(now):
            raise ValueError(f"resume must be of the same {name}, {type(now).__name__}, got {type(before).__name__}")
        if before is now or before is None or now is None:
            continue
        if found := differing(before, now):
            raise ValueError(f"resume must be of the same {name}, got one that differs in {', '.join(found)}")
    if found := differences(_encoded(resume.settings), _encoded(settings)):
        raise ValueError(f"resume must be made with the same settings, got one that differs in {', '.join(found)}")
    for name, given in coordinates.items():
        now = np.asarray(given[1] if isinstance(given, tuple) else given)
        before = resume.ds.coords[name].values if name in resume.ds.coords else np.array([])
        if before.shape != now.shape or not np.array_equal(before, now):
            raise ValueError(f"resume must have the same {name}, {now.tolist()}, got {before.tolist()}")


def _check_labels(resume: Result, rows: Rows) -> None:
    """Refuse numbers that lie by position where the entries of ``index`` change: whose they are cannot be told."""
    known = resume.ds.coords
    unlabelled = [dim for dim in INDEX_DIMENSIONS if dim in resume.ds.dims and label_name(dim) not in known]
    if rows.places is not None and unlabelled:
        raise ValueError(
            f"resume must have labels along {' and '.join(unlabelled)}, which change with what is swept, got none: "
            "it was written by an earlier version and must be computed anew"
        )


def _encoded(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: encode(value, path=name) for name, value in settings.items()}
