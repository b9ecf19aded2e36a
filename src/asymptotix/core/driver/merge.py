"""Merge results of one problem on different points into one result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..dataset.assemble import RESERVED, assemble
from ..dataset.rows import INDEX_DIMENSIONS, Rows, common_rows, label_name, row_labels
from ..grid import MOST_POINTS, positions
from ..problem import Outcome, definitions
from ..result import Result
from ..specification import differences, differing, encode, numeric_fields
from ..status import Status
from .resume import outcomes_at

#: Relative difference up to which two runs of one seed, or two solutions without an error, agree. Smaller: results of
#: two machines, which round differently, cannot be merged.
ROUNDING = 1e-6
#: Sentence of the status of a point that no merged result has.
LACKING = "no result that was merged has this point"


def merge(results: Iterable[Result]) -> Result:
    """Merge results of the same problem on different points into one result.

    Parameters
    ----------
    results
        Results of the same kind (all from ``solve``, all from ``simulate`` or all from ``thresholds``), algorithm and
        settings. Their problems may differ in numeric fields only. Such fields become dimensions, as do controls,
        ``dim`` and ``seed``.

    Returns
    -------
    Result
        The result on the grid of all values, ascending. A point that no result has is NaN, and its status says so;
        ``solve(..., resume=merged)`` computes it. If several results have a point, the first converged one is taken.
        ``provenance["parts"]`` of the merged result holds the provenance of every result.

    Raises
    ------
    ValueError
        If the results differ in problem, algorithm or settings; the error names the difference. Also if two results
        converged at one point to numbers that differ by more than the sum of their numerical errors, twice the
        tolerance and a relative 1e-6, whichever is largest; the error names point and observable.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.1)
    >>> parts = [asx.solve(problem, alpha=[0.5, 2.0]), asx.solve(problem, alpha=1.0)]
    >>> asx.merge(parts).alpha.values.tolist()
    [0.5, 1.0, 2.0]
    """
    parts = _checked(results)
    first = parts[0]
    grid = _common_grid(parts)
    rows = _common_rows(parts)
    shape = {name: len(values) for name, values in grid.items() if values.ndim}
    if (points := int(np.prod(list(shape.values()), dtype=int))) > MOST_POINTS:
        raise ValueError(f"the results must have at most {MOST_POINTS} points together, got {points}")
    found: list[Outcome | None] = [None] * points
    for part in parts:
        for at, outcome in enumerate(outcomes_at(part, grid, shape, rows)):
            before = found[at]
            if before is not None and outcome is not None:
                _check_agreement(before, outcome, _named(grid, shape, at), first.settings)
            found[at] = _better(before, outcome)
    ds = assemble(
        [Outcome({}, Status.NOT_REACHED, words=LACKING) if outcome is None else outcome for outcome in found],
        grid=shape,
        coordinates={name: (name, values) if values.ndim else values for name, values in grid.items()},
        dimensions=_own_dimensions(parts),
        missing=Status.NOT_REACHED,
        rows=rows,
        definitions=definitions(first.problem, first.algorithm),
    )
    return Result(
        ds,
        problem=first.problem,
        kind=first.kind,
        algorithm=first.algorithm,
        settings=first.settings,
        provenance=_provenance(parts),
    )


def _checked(results: object) -> list[Result]:
    """Return the results as a list, or raise if they cannot be merged."""
    if isinstance(results, Result) or not isinstance(results, Iterable):
        raise TypeError(f"results must be several results, as in merge([first, second]), got {type(results).__name__}")
    parts = list(results)
    if not parts:
        raise ValueError("results must be at least one, got none")
    for place, part in enumerate(parts):
        if not isinstance(part, Result):
            raise TypeError(f"results[{place}] must be a Result, got {type(part).__name__}")
        _check_alike(parts[0], part, f"results[{place}]")
    return parts


def _check_alike(first: Result, other: Result, name: str) -> None:
    if other.kind != first.kind:
        raise ValueError(f"{name} must be of the same kind as results[0], {first.kind!r}, got {other.kind!r}")
    for what, one, two in (("problem", first.problem, other.problem), ("algorithm", first.algorithm, other.algorithm)):
        if type(one) is not type(two):
            raise ValueError(f"{name} must be of the same {what}, {type(one).__name__}, got {type(two).__name__}")
        if one is two or one is None or two is None:
            continue
        fields = numeric_fields(one) if what == "problem" else {}
        if found := [path for path in differing(one, two) if path.rpartition(".")[2] not in fields]:
            raise ValueError(f"{name} must be of the same {what} as results[0], got one that differs in {found[0]}")
    if found := differences(_encoded(first.settings), _encoded(other.settings)):
        raise ValueError(f"{name} must be made with the same settings as results[0], got another {', '.join(found)}")


def _encoded(settings: Mapping[str, object]) -> Mapping[str, object]:
    return {name: encode(value, path=name) for name, value in settings.items()}


def _common_grid(parts: Sequence[Result]) -> dict[str, np.ndarray]:
    """Return all values of every control and swept field, ascending; ``dim`` and ``seed`` last, as in ``simulate``."""
    coordinates = [_controls(part) for part in parts]
    swept = {path.rpartition(".")[2] for part in parts[1:] for path in differing(parts[0].problem, part.problem)}
    names = dict.fromkeys([name for known in coordinates for name in known] + sorted(swept))
    last = [name for name in ("dim", "seed") if name in names]
    grid = {}
    for name in [*(name for name in names if name not in last), *last]:
        known = [_values(part, own, name) for part, own in zip(parts, coordinates, strict=True)]
        together = np.unique(np.concatenate([values.ravel() for values in known]))
        # Values that differ only in the last digits are one point: the first of them is kept.
        kept = together[[k == int(positions(together, value)) for k, value in enumerate(together)]]
        is_one = len(kept) == 1 and not any(values.ndim for values in known)
        grid[name] = kept[0] if is_one else kept
    return {name: np.asarray(values) for name, values in grid.items()}


def _controls(part: Result) -> dict[str, np.ndarray]:
    numbers = {str(name): c.values for name, c in part.ds.coords.items() if c.dtype.kind in "iuf"}
    return {name: values for name, values in numbers.items() if np.ndim(values) == 0 or part.ds[name].dims == (name,)}


def _values(part: Result, own: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return the values of ``name`` in a result: its coordinate in ``own``, or else the field of its problem."""
    if name in own:
        return np.asarray(own[name])
    value = numeric_fields(part.problem).get(name)
    if value is None:
        raise ValueError(f"every result must have a value of {name}, got one that has none")
    return np.asarray(value)


def _common_rows(parts: Sequence[Result]) -> Rows:
    """Return the labels of the entries of ``index`` in any of the results; entries of equal label are one entry."""
    labelled = [row_labels(part.ds) for part in parts]
    lengths = {dim: {part.ds.sizes[dim] for part in parts if dim in part.ds.dims} for dim in INDEX_DIMENSIONS}
    for dim, found in lengths.items():
        missing = any(dim in part.ds.dims and label_name(dim) not in part.ds.coords for part in parts)
        if missing and len(found) > 1:
            raise ValueError(f"the results must have labels along {dim}, which has {found} entries, got none")
    known = [labels[dim] for labels in labelled for dim in labels]
    return Rows(common_rows(known, ["results"]).labels) if known else Rows()


def _own_dimensions(parts: Sequence[Result]) -> dict[str, tuple[str, ...]]:
    return {
        str(name): tuple(str(dim) for dim in values.dims if dim not in part.ds["status"].dims)
        for part in parts
        for name, values in part.ds.data_vars.items()
        if name not in RESERVED
    }


def _better(one: Outcome | None, two: Outcome | None) -> Outcome | None:
    """Return the better of two outcomes of a point: converged before finished before any other; else the first."""
    if one is None or two is None:
        return one or two
    return max((one, two), key=lambda outcome: (outcome.how.converged, outcome.how.finished))


def _check_agreement(one: Outcome, two: Outcome, where: str, settings: Mapping[str, Any]) -> None:
    """Raise if two outcomes at ``where`` converged to numbers that differ by more than :func:`merge` allows."""
    if not (one.how.converged and two.how.converged):
        return
    for name in one.values.keys() & two.values.keys():
        if name.endswith(("_err", "_trace")) or np.asarray(one.values[name]).dtype.kind not in "iuf":
            continue
        a, b = (np.asarray(outcome.values[name], float) for outcome in (one, two))
        aimed = 2 * float(settings.get("tolerance", 0.0))
        errors = sum(np.nan_to_num(np.asarray(o.values.get(f"{name}_err", 0.0), float)) for o in (one, two))
        allowed = np.maximum(np.maximum(errors, aimed), ROUNDING * np.abs(a))
        same = (np.abs(a - b) <= allowed) | (a == b) | (np.isnan(a) & np.isnan(b)) if a.shape == b.shape else False
        if not np.all(same):
            got = f"{a} and {b}" if a.ndim == 0 else "numbers of which some differ by more than their errors"
            raise ValueError(f"the results must agree where they have the same point, got at {where} for {name} {got}")


def _named(grid: Mapping[str, np.ndarray], shape: Mapping[str, int], at: int) -> str:
    place = np.unravel_index(at, tuple(shape.values())) if shape else ()
    return ", ".join(f"{name} = {grid[name][i]:g}" for name, i in zip(shape, place, strict=True)) or "their one point"


def _provenance(parts: Sequence[Result]) -> dict[str, Any]:
    """Return what all provenances share, the latest date, the total time, and under "parts" those of all results."""
    single = [one for part in parts for one in part.provenance.get("parts", [part.provenance])]
    common = {name: value for name, value in single[0].items() if all(one.get(name) == value for one in single)}
    seconds = sum(float(one.get("wall_seconds", 0.0)) for one in single)
    latest = max((str(one.get("date", "")) for one in single), default="")
    return {**common, "date": latest, "wall_seconds": round(seconds, 3), "parts": single}
