"""What every problem and every algorithm is asked, those of this package and those of others."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import asymptotix as asx
from asymptotix.core.definitions.observable import definition
from asymptotix.core.problem import definitions
from asymptotix.core.progress import Progress
from asymptotix.core.specification import describe, numeric_fields
from protocol.cases import SEEDS, Case

ERRORS = (TypeError, ValueError)


# -- (a) the result ------------------------------------------------------------------------------------------------


def returns_what_it_promises(case: Case) -> None:
    """Dimensions, a status and a verdict per point, finite numbers where it converged, errors of a theory."""
    result = case.whole
    assert isinstance(result, asx.Result)
    assert result.kind == ("theory" if case.is_theory else "experiment")
    grid = grid_of(case)
    assert result.status.dims == result.converged.dims == tuple(grid)
    assert {dim: result.ds.sizes[dim] for dim in grid} == grid
    assert result.converged.dtype == bool
    assert all(isinstance(words, str) and words for words in result.status.values.ravel().tolist())
    np.testing.assert_array_equal(result[case.control], case.controls[case.control])
    for name, own in case.dimensions.items():
        assert result[name].dims == (*grid, *own), name
        where = result[name].where(result.converged, 0.0)
        assert np.isfinite(where).all(), f"{name} is not finite where it converged"
    if case.is_theory:
        assert result.ok, result.status.values
        states_its_errors(case, result)


def states_its_errors(case: Case, result: asx.Result) -> None:
    for name in numbers_of(result):
        if name.endswith("_err"):
            assert name.removesuffix("_err") in result.ds
            assert result[name].dims == result[name.removesuffix("_err")].dims
            assert (result[name].fillna(0.0) >= 0).all(), name
            # An error beyond both its number and the tolerance is never "converged".
            bound = np.maximum(abs(result[name.removesuffix("_err")]), case.tolerance)
            assert not (result.converged & (result[name] > bound)).any(), f"{name} exceeds its number"
        else:
            assert (f"{name}_err" in result.ds) != (name in case.without_error), f"{name}: is there an error or not?"


def defines_its_numbers(case: Case) -> None:
    """Every variable, control and field has a definition, and a docstring names what a result holds."""
    is_defined(case.whole)
    known = definitions(case.problem, case.algorithm)
    fields = {*numeric_fields(case.problem), *case.problem.controls}
    assert {field for field in fields if definition(field, known) is None} == set()
    texts = [type(case.problem).__doc__, None if case.algorithm is None else type(case.algorithm).__doc__]
    assert undocumented(case.whole, *texts) == set()


def is_defined(result: asx.Result, gone: Collection[str] = ()) -> None:
    """Ask whether all numbers have a definition; those that are not reported any more need none."""
    for name in {*map(str, result.ds.variables)}.difference(gone):
        attrs = result[name].attrs
        assert attrs.get("description"), f"{name} has no definition: add it to the table of its problem's observables"
        assert attrs["long_name"], name
        if result[name].dtype.kind in "biuf":
            assert attrs["units"], name


#: What a result of any kind holds, and what follows from another name: docstrings need not speak of them.
OF_ALL = ("status", "status_code", "converged")
DERIVED = ("_err", "_trace", "_draws")


def undocumented(result: asx.Result, *texts: str | None) -> set[str]:
    """Names of a result that none of the texts has in double backquotes, alone or with its dimensions."""
    names = {str(name) for name in result.ds.data_vars if name not in OF_ALL and not str(name).endswith(DERIVED)}
    return names - {name for text in texts for name in re.findall(r"``(\w+)(?:\([^`]*\))?``", text or "")}


# -- (b) and (g) the file ------------------------------------------------------------------------------------------


def survives_a_file(case: Case, folder: Path) -> None:
    """The same numbers, problem, algorithm and settings; and plain xarray reads them too."""
    result, path = case.whole, folder / "result.nc"
    result.save(path)
    if case.has_function:
        with pytest.raises(ValueError, match="problem="):
            asx.load(path)
    loaded = asx.load(path, problem=case.problem if case.has_function else None)
    assert loaded.ds.identical(result.ds)
    assert loaded.kind == result.kind
    assert type(loaded.problem) is type(case.problem)
    assert describe(loaded.problem) == describe(case.problem)
    assert loaded.algorithm == case.algorithm
    assert loaded.settings == result.settings
    assert loaded.provenance == result.provenance
    with xr.open_dataset(path) as plain:
        for name in result.ds.variables:
            np.testing.assert_array_equal(plain[name].values, result.ds[name].values, err_msg=str(name))


# -- (c) interrupt and resume --------------------------------------------------------------------------------------


class Impatient(Progress):
    """Ctrl-C as soon as one point is finished."""

    def __init__(self) -> None:
        super().__init__(None, "impatient", enabled=False)

    def advance(self, n: int = 1, message: str | None = None) -> None:
        super().advance(n, message)
        if n > 0:
            raise KeyboardInterrupt


def goes_on_after_an_interrupt(case: Case) -> None:
    """The finished point is kept, the others say what became of them, and the rest is done by a second call."""
    with pytest.warns(RuntimeWarning, match="interrupted: 1 of"):
        part = case.run(progress=Impatient())
    finished = ~part.status.str.startswith("interrupted")
    assert int(finished.sum()) == 1, part.status.values
    assert not part.converged.where(~finished, False).any()
    for name in numbers_of(part, case):
        kept, whole = part[name].where(finished), case.whole[name].where(finished)
        np.testing.assert_array_equal(*in_common(kept, whole), err_msg=name)
    # A theory may come to the points that are left from another one than before.
    agree(case, case.run(resume=part), case.whole, depends_on="history" if case.is_theory else None)


# -- (d) what else is in the call ----------------------------------------------------------------------------------


def does_not_depend_on_the_rest_of_the_call(case: Case) -> None:
    """The last point, and of an experiment the last seed, alone and together with the others."""
    value = case.controls[case.control][-1]
    if case.is_theory:
        alone = case.run(**{case.control: value})
        agree(case, alone, case.whole.isel({case.control: -1}), depends_on="history")
        return
    alone = case.run(seeds=[SEEDS[-1]], **{case.control: value}).isel(seed=0)
    together = case.whole.isel({case.control: -1, "seed": -1})
    agree(case, alone, together, depends_on="batch", words=not case.of_the_call)


# -- (e) bad input -------------------------------------------------------------------------------------------------


def refuses_bad_controls(case: Case) -> None:
    """What cannot be meant raises at once, and the message names the argument."""
    name = case.control
    for bad in (float("nan"), -1.0, 0.0, [1.0, float("nan")], [[1.0, 2.0]], [], [1.0, 1.0], "much", None, True):
        refuses(case, name, **{name: bad})
    refuses(case, "no_such_control", no_such_control=1.0)
    refuses(case, "resume", resume=3)
    refuses(case, "progress", progress="loud")
    for field in case.fields:
        refuses(case, field, **{field: float("nan")})
        refuses(case, field, **{field: "much"})
    if case.is_theory:
        for bad in (0.0, -1e-3, float("nan"), "tight"):
            refuses(case, "tolerance", tolerance=bad)
        refuses(case, "start", start="nowhere")
        refuses(case, "fixed", fixed=[0.0])
        refuses(case, "fixed", fixed={-1: 0.0})
        with pytest.raises(TypeError, match=name):
            asx.solve(case.problem)
        with pytest.raises(TypeError, match="problem"):
            asx.solve(None, **{name: 1.0})  # type: ignore[arg-type]
        return
    for bad in (0, -1, 1.5, float("nan"), [1, 1], [], [-1], "two"):
        refuses(case, "seeds", seeds=bad)
    for bad in (0, -5, 2.5, float("nan"), "large", [10, 10]):
        refuses(case, "dim", dim=bad)
    with pytest.raises(TypeError, match="algorithm"):
        asx.simulate(case.problem, None, seeds=1, **{name: 1.0})  # type: ignore[arg-type]


def refuses(case: Case, name: str, **given: Any) -> None:
    with pytest.raises(ERRORS) as caught:
        case.run(**given)
    assert name in str(caught.value), f"{given} gives {caught.value!r}, which does not name {name}"


# -- (f) sweeps ----------------------------------------------------------------------------------------------------


def can_be_swept(case: Case) -> None:
    """A numeric field becomes a dimension, and at the value that the problem has nothing changes."""
    value = case.controls[case.control][-1]
    for name, (own, other) in case.fields.items():
        swept = case.run(**{case.control: value, name: [own, other]})
        assert swept.status.dims == (name, *(dim for dim in grid_of(case) if dim != case.control))
        np.testing.assert_array_equal(swept[name], [own, other])
        same = swept.isel({name: 0})
        assert describe(same.problem) == describe(case.problem)
        assert describe(swept.isel({name: 1}).problem) != describe(case.problem)
        whole = case.whole.isel({case.control: -1})
        agree(case, same, whole, depends_on="history" if case.is_theory else None)
        for observable, dims in case.dimensions.items():
            assert swept[observable].dims[1:] == (*grid_of(case), *dims)[1:], observable


# -- tools ---------------------------------------------------------------------------------------------------------


def grid_of(case: Case) -> dict[str, int]:
    lengths = {name: len(values) for name, values in case.controls.items()}
    return lengths if case.is_theory else {**lengths, "seed": len(SEEDS)}


def numbers_of(result: asx.Result, case: Case | None = None) -> list[str]:
    """Numerical variables, those left out that are of the clock or of the whole call."""
    left_out = () if case is None else case.of_the_call
    return [str(n) for n, v in result.ds.data_vars.items() if v.dtype.kind in "fiu" and n not in left_out]


def agree(case: Case, found: asx.Result, expected: asx.Result, *, depends_on: str | None, words: bool = True) -> None:
    """The same numbers: exactly, or within what they may depend on "history" or on the "batch"."""
    assert set(found.ds.data_vars) == set(expected.ds.data_vars)
    if words:
        rounded = depends_on == "batch" and case.rounding > 0
        assert said(found, rounded) == said(expected, rounded)
        np.testing.assert_array_equal(found.converged.values, expected.converged.values)
    for name in numbers_of(expected, case):
        now, before = in_common(found[name], expected[name])
        scale = np.max(abs(before[np.isfinite(before)]), initial=0.0)
        bound: Any = case.rounding * scale if depends_on == "batch" else 0.0
        if depends_on == "history":
            stated = np.nan_to_num(expected[f"{name}_err"].values) if f"{name}_err" in expected.ds else 0.0
            bound = stated + case.history_of.get(name, case.history) * scale
            if name.endswith("_err"):  # an error is known to its order of magnitude
                bound = np.maximum(before, case.history_of.get(name, case.history))
        different = (now != before) & ~(np.isnan(now) & np.isnan(before))
        with np.errstate(invalid="ignore"):
            wrong = different & ~(abs(now - before) <= bound)
        assert not wrong.any(), f"{name}: {now[wrong]} is not {before[wrong]}, more than {bound} away"


def said(result: asx.Result, rounded: bool) -> list[str]:
    """The statuses, or only their words where the numbers in them may be rounded otherwise."""
    statuses = [str(words) for words in result.status.values.ravel()]
    return [re.sub(r"[-+.e\d]*\d", "#", words) for words in statuses] if rounded else statuses


def in_common(found: xr.DataArray, expected: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Values along the same dimensions; the longest run of a call decides how long its traces are."""
    lengths = {dim: slice(min(found.sizes[dim], expected.sizes[dim])) for dim in expected.dims if dim in found.dims}
    return np.asarray(found.isel(lengths).values, float), np.asarray(expected.isel(lengths).values, float)
