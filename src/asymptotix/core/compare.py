"""Theory against experiment: the same observables at the same controls, with z-scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np
import xarray as xr

from . import plot
from .dataset.assemble import RESERVED, assemble
from .dataset.rows import INDEX_DIMENSIONS, common_rows, in_rows, row_labels
from .grid import positions
from .problem import Outcome, Problem
from .result import Result
from .showing.notebook import comparison_html
from .specification import describe, differing, numeric_fields, value_at, with_fields
from .status import Status
from .verbs import solve

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Comparison:
    """Theory and experiment on one grid.

    Attributes
    ----------
    ds
        For every shared observable ``<name>_theory``, ``<name>_mean`` and ``<name>_sem`` (over seeds) and
        ``<name>_z`` = (mean - theory) / sqrt(sem² + err²), with err the numerical error of the theory.
        ``<name>_runs`` counts the runs that gave a number; with one run sem and z are NaN.
    theory, experiment
        What was compared.
    by
        None, or "iteration".
    """

    ds: xr.Dataset
    theory: Result
    experiment: Result
    by: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The observables that were compared."""
        return tuple(str(name).removesuffix("_z") for name in self.ds.data_vars if str(name).endswith("_z"))

    @property
    def max_abs_z(self) -> float:
        """The largest absolute z-score of all observables and points; NaN where there is none."""
        largest = [float(abs(self.ds[f"{name}_z"]).max()) for name in self.names]
        return max((z for z in largest if not math.isnan(z)), default=math.nan)

    def sel(self, *args: Any, **kwargs: Any) -> Comparison:
        """Select by coordinate value, as :meth:`xarray.Dataset.sel` does."""
        return Comparison(self.ds.sel(*args, **kwargs), self.theory, self.experiment, self.by)

    def table(self) -> str:
        """Return one line per observable, point and entry that it has: theory, mean ± s.e.m., number of runs, z."""
        grid = [str(name) for name, values in self.ds.coords.items() if values.dtype.kind in "iuf" and values.ndim <= 1]
        rows = [(*grid, "observable", "theory", "experiment", "runs", "z")]
        for name in self.names:
            columns = [self.ds[f"{name}_{part}"] for part in ("theory", "mean", "sem", "runs", "z")]
            theory, mean, sem, runs, z = xr.broadcast(*columns)
            for position in np.argwhere(_listed(theory, runs).values):
                at = dict(zip(theory.dims, position, strict=True))
                own = [str(i) for dim, i in at.items() if dim not in grid]
                where = [_number(self.ds[c].isel({c: at[c]} if c in at else {}).values) for c in grid]
                measured = f"{_number(mean[at].values)} ± {_number(sem[at].values, digits=2)}"
                label = name + (f"[{', '.join(own)}]" if own else "")
                rows.append(
                    (
                        *where,
                        label,
                        _number(theory[at].values),
                        measured,
                        str(int(runs[at])),
                        f"{float(z[at]):+.2f}",
                    )
                )
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
        )

    def plot(self, name: str, ax: Axes | None = None) -> Axes:
        """Plot one observable; see :func:`asymptotix.core.plot.plot_comparison`."""
        return plot.plot_comparison(self, name, ax=ax)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {length}" for name, length in self.ds.sizes.items()) or "one point"
        return (
            f"<asymptotix comparison of {', '.join(self.names)}; {sizes}; largest |z| {self.max_abs_z:.2f}>"
        )

    def _repr_html_(self) -> str:
        return comparison_html(self)


def compare(theory: Result, experiment: Result, *, by: str | None = None) -> Comparison:
    """Compare an experiment with its theory.

    Parameters
    ----------
    theory
        From :func:`solve`. It is solved anew, from the same start and with the same overlaps held, at the controls of
        the experiment that are not on its grid.
    experiment
        From :func:`simulate`. The finite-size bias that the problem knows of is removed first.
    by
        None compares what both ended with. "iteration" compares the experiment's traces with the theory's
        dynamics; a run that stopped early counts with its last value from there on.

    Raises
    ------
    ValueError
        If the two are of different problems, naming the field, or share no observable.
    """
    _check_pair(theory, experiment)
    if by not in (None, "iteration"):
        raise ValueError(f"by must be None or 'iteration', got {by!r}")
    measured = _comparable(experiment)
    if "seed" not in measured.dims:
        measured = measured.expand_dims("seed")
    if by == "iteration":
        if "fixed" in theory.settings:
            raise ValueError(f"theory must hold no overlap with by='iteration', got fixed={theory.settings['fixed']}")
        return Comparison(_by_iteration(experiment, measured), theory, experiment, by)
    exact = in_rows(theory_at(theory, experiment).ds, row_labels(measured))
    names = [name for name in _observables(exact) if name in _observables(measured)]
    if not names:
        raise ValueError(
            f"theory and experiment share no observable: {', '.join(_observables(exact))} and "
            f"{', '.join(_observables(measured))}"
        )
    zero = xr.DataArray(0.0)
    pairs = {name: (exact[name], exact.get(f"{name}_err", zero), measured[name]) for name in names}
    ds = _scores(pairs)
    converged = exact["converged"].reset_coords(drop=True)
    converged = converged.assign_coords({dim: measured[dim] for dim in converged.dims})
    return Comparison(ds.assign(theory_converged=converged), theory, experiment)


def _comparable(experiment: Result, at: Mapping[str, int] | None = None) -> xr.Dataset:
    """The experiment without its known bias, which is that of every run's own problem: a swept field may change it.

    ``at`` are the positions chosen so far; the fields of a point are set together, for one of them alone may not fit.
    """
    at = at or {}
    fields, ds = numeric_fields(experiment.problem), experiment.ds
    free = (*experiment.problem.controls, "dim", "seed")
    swept = [str(dim) for dim in ds.dims if dim in fields and dim not in (*free, *at)]
    if not swept:
        chosen = experiment.isel(at)
        return chosen.problem.comparable(chosen.ds)
    parts = [_comparable(experiment, {**at, swept[0]: k}) for k in range(ds.sizes[swept[0]])]
    whole = xr.concat(
        parts, dim=swept[0], data_vars="all", coords="minimal", compat="override", join="override"
    )
    order = {name: [dim for dim in ds[name].dims if dim not in at] for name in ds.data_vars if name in whole}
    return whole.assign({name: whole[name].transpose(*dims, ...) for name, dims in order.items()})


def theory_at(theory: Result, experiment: Result) -> Result:
    """Return the theory at the controls of the experiment, solving anew only what is not on its grid."""
    wanted = _controls(theory, experiment)
    found = {name: positions(_values(theory, name), values) for name, values in wanted.items()}
    lacking = [name for name, places in found.items() if (places < 0).any()]
    if not lacking:
        return theory.isel({n: p for n, p in found.items() if n in theory.ds.dims})
    name = lacking[0]
    on_grid = found[name] >= 0
    if len(lacking) > 1 or not on_grid.any() or name not in theory.ds.dims:
        return _solve_again(theory, experiment, wanted)
    new = _solve_again(theory, experiment, wanted | {name: wanted[name][~on_grid]})
    kept = theory.isel({n: p[p >= 0] for n, p in found.items() if n in theory.ds.dims})
    parts = [row_labels(kept.ds), row_labels(new.ds)]
    rows = {dim: common_rows([part[dim] for part in parts], [name]).labels for dim in parts[0] if dim in parts[1]}
    both = xr.concat(
        [in_rows(kept.ds, rows), in_rows(new.ds, rows)],
        dim=name, data_vars="minimal", coords="minimal", compat="override", join="override",
    )  # fmt: skip
    return theory._with(both.isel({name: positions(both[name].values, wanted[name])}))


def _solve_again(theory: Result, experiment: Result, controls: Mapping[str, np.ndarray]) -> Result:
    if changed := _changes(theory):
        raise ValueError(
            f"theory must have the controls of the experiment on its grid: it was changed after it was solved "
            f"({', '.join(changed)}) and cannot be solved anew at {dict(controls)}"
        )
    options: dict[str, Any] = {**theory.settings, **controls}
    return solve(experiment.problem, **options)


def _controls(theory: Result, experiment: Result) -> dict[str, np.ndarray]:
    """Every control that either result has, with the values of the experiment."""
    fields = numeric_fields(experiment.problem)
    names = dict.fromkeys([*experiment.ds.coords, *theory.ds.coords])
    controls: dict[str, np.ndarray] = {}
    for name in map(str, names):
        if name not in experiment.problem.controls and name not in fields:
            continue
        controls[name] = _values(experiment, name)
    return controls


def _values(result: Result, name: str) -> np.ndarray:
    """The values of a control in a result; a field that was not given has the value of the problem."""
    return np.asarray(result.ds[name] if name in result.ds.coords else numeric_fields(result.problem)[name])


def _by_iteration(experiment: Result, measured: xr.Dataset) -> xr.Dataset:
    algorithm = experiment.algorithm
    assert algorithm is not None  # every experiment has one
    shape, points = _points(experiment)
    options = [algorithm.trace_options(problem) for problem, _ in points]
    traces = [str(name) for name in measured.data_vars if str(name).endswith("_trace")]
    if not traces:
        raise ValueError(
            f"the experiment recorded no trace: {type(algorithm).__name__} gives no '<name>_trace'"
        )
    dynamics = [
        {f"{name}_trace": values for name, values in problem.trace(**chosen, **own).items()}
        for (problem, own), chosen in zip(points, options, strict=True)
    ]
    traces = [name for name in traces if all(name in known for known in dynamics)]
    if not traces:
        raise ValueError("the theory's dynamics and the experiment's traces share no observable")
    taken = (*shape, "dim", "seed")
    exact = assemble(
        [Outcome({name: known[name] for name in traces}) for known in dynamics],
        grid=shape,
        coordinates={},
        dimensions={name: tuple(str(d) for d in measured[name].dims if d not in taken) for name in traces},
        missing=Status.NO_RESULT,
        rows=common_rows([problem.index_labels() for problem, _ in points], list(shape)),
    )
    exact = in_rows(exact, row_labels(measured))
    pairs = {}
    for name in traces:
        run = _carried_forward(measured[name])
        length = {"iteration": slice(min(exact.sizes["iteration"], run.sizes["iteration"]))}
        pairs[name.removesuffix("_trace")] = (exact[name].isel(length), xr.DataArray(0.0), run.isel(length))
    return _scores(pairs)


def _points(experiment: Result) -> tuple[dict[str, int], list[tuple[Problem, dict[str, Any]]]]:
    """Lengths of the experiment's grid, and at every point of it the problem and the values of its controls."""
    problem, grid = experiment.problem, _controls(experiment, experiment)
    shape = {name: len(values) for name, values in grid.items() if values.ndim}
    problems: dict[tuple, Problem] = {}  # points that share one share what it has computed
    points = []
    for position in np.ndindex(*shape.values()):
        at = dict(zip(shape, position, strict=True))
        point = {name: values[at[name]].item() if name in at else values.item() for name, values in grid.items()}
        fields = {name: value for name, value in point.items() if name not in problem.controls}
        key = tuple(fields.values())
        if key not in problems:
            problems[key] = with_fields(problem, **fields)
        points.append((problems[key], {name: point[name] for name in point if name in problem.controls}))
    return shape, points


def _carried_forward(trace: xr.DataArray) -> xr.DataArray:
    """Fill the end of a run that stopped early with its last value.

    Averaging only the runs that go on would select the slow ones.
    """
    moved = trace.transpose("iteration", ...)
    values = moved.values.copy()
    for i in range(1, len(values)):
        values[i] = np.where(np.isnan(values[i]), values[i - 1], values[i])
    return moved.copy(data=values).transpose(*trace.dims)


def _scores(pairs: Mapping[str, tuple[xr.DataArray, xr.DataArray, xr.DataArray]]) -> xr.Dataset:
    columns: dict[str, xr.DataArray] = {}
    for name, (exact, error, runs) in pairs.items():
        # A point of the theory that is on the grid up to rounding must not be dropped by alignment.
        exact, error = exact.reset_coords(drop=True), error.reset_coords(drop=True)
        exact, error = (
            part.assign_coords({d: runs[d] for d in part.dims if d in runs.coords}) for part in (exact, error)
        )
        count = runs.notnull().sum("seed")
        mean = runs.mean("seed")
        sem = runs.std("seed", ddof=1).where(count > 1) / np.sqrt(count)
        spread = np.sqrt(sem**2 + error**2)
        gap = (mean - exact).where(np.isfinite(exact))
        columns[f"{name}_theory"] = exact
        columns[f"{name}_mean"] = mean
        columns[f"{name}_sem"] = sem
        columns[f"{name}_runs"] = count
        # No gap and no spread is agreement, not 0/0. Runs that all agree, as counts may, say nothing of their scatter.
        z = (gap / spread).where((sem > 0) | (count < 2))
        columns[f"{name}_z"] = xr.where((gap == 0) & (spread == 0), 0.0, z)
    ds = xr.Dataset(columns)
    return ds.drop_vars([name for name in ("seed", "iteration") if name in ds.coords])


def _listed(theory: xr.DataArray, runs: xr.DataArray) -> xr.DataArray:
    """Which entries a table lists: not those of other points' indices. A point that failed as a whole keeps its own."""
    missing = theory.isnull() & (runs == 0)
    return ~missing | missing.all([dim for dim in INDEX_DIMENSIONS if dim in missing.dims])


def _observables(ds: xr.Dataset) -> list[str]:
    return [
        str(name)
        for name, values in ds.data_vars.items()
        if name not in RESERVED and not str(name).endswith(("_err", "_trace")) and values.dtype.kind in "iuf"
    ]


def _check_pair(theory: Result, experiment: Result) -> None:
    for name, result, kind in (("theory", theory, "theory"), ("experiment", experiment, "experiment")):
        if not isinstance(result, Result) or result.kind != kind:
            got = f"a result of kind {result.kind!r}" if isinstance(result, Result) else repr(result)
            raise TypeError(f"{name} must be a result of kind {kind!r}, got {got}")
    if _changes(theory) != _changes(experiment):
        raise ValueError(
            "theory and experiment must have been changed alike after they were made, got "
            f"{_changes(theory) or 'no change'} and {_changes(experiment) or 'no change'}"
        )
    if theory.problem is experiment.problem:
        return
    swept = {*map(str, theory.ds.dims), *map(str, experiment.ds.dims)}
    found = differing(theory.problem, experiment.problem)
    if found := [path for path in found if path.rpartition(".")[2] not in swept]:
        path = found[0].partition(":")[0]  # of a function it also says that it is another one
        first, second = (value_at(describe(result.problem), path) for result in (theory, experiment))
        kept = f"{first!r} in the theory and {second!r} in the experiment" if path == found[0] else "another function"
        raise ValueError(f"theory and experiment are of different problems: {path} is {kept}")


def _changes(result: Result) -> dict[str, Any]:
    """What was done to a result after the verb returned it: settings beyond those that solve takes."""
    return {name: value for name, value in result.settings.items() if name not in ("start", "tolerance", "fixed")}


def _number(value: SupportsFloat, digits: int = 4) -> str:
    return f"{float(value):.{digits}g}"
