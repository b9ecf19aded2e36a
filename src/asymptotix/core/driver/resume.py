"""Resume from the result of an earlier call: find the requested points that it contains.

The earlier call may have been interrupted, or had a smaller grid, fewer seeds or fewer sizes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..dataset.assemble import RESERVED
from ..dataset.rows import INDEX_DIMENSIONS, Rows, in_rows, label_name
from ..grid import positions
from ..problem import Algorithm, Outcome, Problem
from ..result import Result, at_fixed_values, loaded_for
from ..specification import Specification, differences, differing, encode, numeric_fields
from ..status import Status


def earlier_outcomes(
    resume: Result | str | os.PathLike | None,
    *,
    problem: Problem,
    algorithm: Algorithm | None,
    settings: Mapping[str, Any],
    shape: Mapping[str, int],
    coordinates: Mapping[str, object],
    rows: Rows,
) -> list[Outcome | None]:
    """Return the outcomes of an earlier call for the same work, one per grid point in C order, None where missing.

    Parameters
    ----------
    resume
        The result of the earlier call, or the file to which it was saved; None gives no outcomes.
    problem, algorithm, settings
        Those of this call. The earlier call must have had the same, except for fields that are swept.
    shape, coordinates
        The grid of this call: dimension -> length, and the coordinates of the result.
    rows
        The labels of ``index`` in this call. If they change from point to point, the earlier result must have labels
        for its entries.
    """
    size = int(np.prod(list(shape.values()), dtype=int))
    if resume is None:
        return [None] * size
    fixed = at_fixed_values(problem, {n: v for n, v in coordinates.items() if not isinstance(v, tuple)})
    if not isinstance(resume, Result):
        if not isinstance(resume, str | os.PathLike):
            raise TypeError(f"resume must be a Result or the path of a saved one, got {type(resume).__name__}")
        resume = loaded_for(resume, fixed, free=list(coordinates))
    wanted = _wanted_values(resume, fixed, coordinates)
    swept = [name for name, values in wanted.items() if values.ndim or name in resume.ds.dims]
    _check_same_work(resume, fixed, algorithm, settings, swept)
    _check_labels(resume, rows)
    return [o if o is None or _is_known(o) else None for o in outcomes_at(resume, wanted, shape, rows)]


def _wanted_values(resume: Result, problem: Problem, coordinates: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Return name -> values requested by this call, for every coordinate of this call or the earlier result."""
    values = {name: np.asarray(given[1] if isinstance(given, tuple) else given) for name, given in coordinates.items()}
    fields = numeric_fields(problem)
    for name in map(str, resume.ds.coords):
        if name in fields and name not in values:
            values[name] = _number(fields[name])
    return values


def outcomes_at(
    resume: Result, wanted: Mapping[str, np.ndarray], shape: Mapping[str, int], rows: Rows
) -> list[Outcome | None]:
    """Return the outcomes in ``resume`` at the points of this call, in C order, None where it does not have the point.

    ``wanted`` maps coordinates to values, ``shape`` dimensions to lengths. A point without a number has an outcome too.
    """
    ds = in_rows(resume.ds, {dim: rows.labels for dim in INDEX_DIMENSIONS if rows.labels and dim in resume.ds.dims})
    at: dict[str, np.ndarray] = {}
    for name, values in wanted.items():
        there = ds[name].values if name in ds.coords else _number(numeric_fields(resume.problem).get(name))
        found = positions(there, values)
        if (found < 0).all():
            raise ValueError(
                f"resume must have points in common with this call: {name} is {_listed(there)} there and "
                f"{_listed(values)} here"
            )
        at[name] = found
    dims = [str(dim) for dim in ds["status"].dims]
    names = [str(name) for name in ds.data_vars if name not in RESERVED]
    columns = {name: ds[name].transpose(*dims, ...).values for name in (*names, "status", "status_code")}
    outcomes: list[Outcome | None] = []
    for point in np.ndindex(*shape.values()):
        places = dict(zip(shape, point, strict=True))
        there = {name: int(found[places[name]] if found.ndim else found) for name, found in at.items()}
        if min(there.values(), default=0) < 0:
            outcomes.append(None)
            continue
        place = tuple(there[dim] for dim in dims)
        known = {name: columns[name][place] for name in names}
        outcomes.append(_outcome(known, columns["status_code"][place], columns["status"][place]))
    return outcomes


def _number(value: float | None) -> np.ndarray:
    """Return a field's value as a coordinate. None becomes NaN, which matches no value."""
    return np.asarray(np.nan if value is None else value)


def _listed(values: np.ndarray) -> str:
    return np.array2string(values, threshold=8, edgeitems=2)


def is_finished(outcome: Outcome | None) -> bool:
    """Return whether a point needs no more work: it has an outcome, which was not interrupted."""
    return outcome is not None and not outcome.interrupted


def _is_known(outcome: Outcome) -> bool:
    """Return whether a point gave any number."""
    return not all(_is_missing(np.asarray(value)) for value in outcome.values.values())


def _outcome(values: Mapping[str, np.ndarray | np.generic], code: str, words: str) -> Outcome:
    known = {name: value for name, value in values.items() if not _is_missing(np.asarray(value))}
    status = Status.from_code(code)
    # NaN of a finished point is a value of its own. NaN of an interrupted run only fills the place of a later number.
    return Outcome(values if status.finished else known, status, words=str(words))


def _is_missing(value: np.ndarray) -> bool:
    """Return whether a value is only NaN or empty text, with which :func:`assemble` fills points without a value."""
    if value.dtype.kind in "fc":
        return bool(np.isnan(value).all())
    return value.dtype.kind == "U" and bool((value == "").all())


def _check_same_work(
    resume: Result,
    problem: Problem,
    algorithm: Algorithm | None,
    settings: Mapping[str, Any],
    swept: Sequence[str],
) -> None:
    """Raise if the earlier result has another problem, algorithm or settings. Fields in ``swept`` may differ."""
    pairs: list[tuple[str, Specification | None, Specification | None]] = [
        ("problem", resume.problem, problem),
        ("algorithm", resume.algorithm, algorithm),
    ]
    for name, before, now in pairs:
        if type(before) is not type(now):
            raise ValueError(f"resume must be of the same {name}, {type(now).__name__}, got {type(before).__name__}")
        if before is now or before is None or now is None:
            continue
        if found := [path for path in differing(before, now) if path.rpartition(".")[2] not in swept]:
            raise ValueError(f"resume must be of the same {name}, got one that differs in {', '.join(found)}")
    if found := differences(_encoded(resume.settings), _encoded(settings)):
        raise ValueError(f"resume must be made with the same settings, got one that differs in {', '.join(found)}")


def _check_labels(resume: Result, rows: Rows) -> None:
    """Raise if the earlier result has no labels although the entries of ``index`` change from point to point.

    Positions alone do not identify entries there.
    """
    known = resume.ds.coords
    unlabelled = [dim for dim in INDEX_DIMENSIONS if dim in resume.ds.dims and label_name(dim) not in known]
    if rows.places is not None and unlabelled:
        raise ValueError(
            f"resume must have labels along {' and '.join(unlabelled)}, which change with what is swept, got none: "
            "it was written by an earlier version and must be computed anew"
        )


def _encoded(settings: Mapping[str, object]) -> Mapping[str, object]:
    return {name: encode(value, path=name) for name, value in settings.items()}
