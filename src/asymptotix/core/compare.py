"""Compare theory with experiment at the same controls, and decide whether noise explains the differences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..numerics import checks
from . import plot
from .comparison.comparison_table import ComparedObservable, ComparisonInWords
from .comparison.scores import PARTS, scores
from .comparison.size_trend import SizeTrend
from .dataset.assemble import RESERVED, assemble
from .dataset.rows import common_rows, in_rows, row_labels
from .dataset.selection import selected_by_name
from .grid import positions
from .problem import Outcome, Problem
from .result import Result
from .showing.notebook import comparison_html
from .specification import describe, differing, numeric_fields, value_at, with_fields
from .status import Status
from .verbs import solve
from .words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Comparison:
    """Theory and experiment on one grid.

    Attributes
    ----------
    ds
        For every shared observable

        - ``<name>_theory``; ``<name>_mean`` and ``<name>_sem``, mean and standard error over seeds; ``<name>_runs``
          counts the runs that gave a number, and ``<name>_floor`` combines the theory's numerical error with rounding;
        - ``<name>_difference`` = mean - theory, and ``<name>_relative``, the difference over the theory's absolute
          value;
        - ``<name>_t`` = difference / sqrt(sem² + floor²), Student's t with ``<name>_dof`` = runs - 1 degrees of
          freedom, and ``<name>_z``, the Gaussian z of the same probability. t, dof and z are NaN where the error of the
          runs is not known: for one run, or where all runs gave the same number. In the second case z is zero if that
          number equals the theory's.
    theory, experiment
        The two results that were compared.
    by
        None if final values were compared, "iteration" if values after every iteration were.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2))
    >>> theory = asx.solve(problem, alpha=[0.1, 2.0], progress=False)
    >>> runs = asx.simulate(problem, asx.GAMP(), alpha=2.0, dim=100, seeds=2, progress=False)
    >>> found = asx.compare(theory, runs)
    >>> int(found.ds.overlap_runs.squeeze()), isinstance(found.table(), str)
    (2, True)
    """

    ds: xr.Dataset
    theory: Result
    experiment: Result
    by: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the observables that were compared."""
        return tuple(str(name).removesuffix("_z") for name in self.ds.data_vars if str(name).endswith("_z"))

    @property
    def max_abs_z(self) -> float:
        """The largest absolute z-score of all observables and points; NaN where there is none.

        Among many entries, one is large by chance: :meth:`summary` says which entries are significant.
        """
        largest = [float(abs(self.ds[f"{name}_z"]).max()) for name in self.names]
        return max((z for z in largest if not math.isnan(z)), default=math.nan)

    def sel(self, *args: Any, **kwargs: Any) -> Comparison:
        """Return the comparison at coordinate values or labels, chosen as in :meth:`Result.sel`."""
        ds = selected_by_name(self.ds, self.experiment.problem, *args, **kwargs)
        return Comparison(ds, self.theory, self.experiment, self.by)

    def size_trend(self, name: str) -> SizeTrend | None:
        """Return the trend with ``dim`` of the distance of an observable from theory; None for a single size."""
        return ComparedObservable.of(self.ds, checks.one_of("name", name, self.names)).trend

    def table(self, *, every: bool = False) -> str:
        """Return a text with one line per observable, point and entry.

        Its columns are theory, mean ± standard error, number of runs, difference, difference over theory, t with its
        degrees of freedom, z, and a star for a significant entry: chance alone marks one in 1 % of all comparisons.

        Parameters
        ----------
        every
            List all entries. By default equal entries (i, j) and (j, i) are listed once. Off-diagonal entries that
            are exactly zero at all points of the theory, by symmetry, are listed only where they are significant.
        """
        return ComparisonInWords(self.ds, self.names).table(every=every)

    def summary(self) -> str:
        """Return a text with the largest difference of every observable, and whether noise explains it.

        The bound on z above which an entry is significant accounts for the number of entries. Where several ``dim``
        were run, the trend with ``dim`` is reported: a finite-size effect falls with ``dim``, other differences do not.
        """
        sizes = counted({name: length for name, length in self.ds.sizes.items() if name in self.ds.coords})
        algorithm, seeds = self.experiment.algorithm, self.experiment.ds.sizes.get("seed", 1)
        head = f"comparison of {type(algorithm).__name__} with theory: {sizes}; {seeds} seed{'s' * (seeds != 1)}"
        lines = ComparisonInWords(self.ds, self.names).sentences(self.theory.settings.get("tolerance"))
        if "theory_converged" in self.ds and not self.ds["theory_converged"].all():
            missed = int((~self.ds["theory_converged"]).sum())
            lines.append(f"the theory did not converge at {missed} of {self.ds['theory_converged'].size} points")
        return "\n".join([head, *(f"  {line}" for line in lines)])

    def plot(self, name: str, ax: Axes | None = None, **options: Any) -> Axes:
        """Plot one observable and return the axes; :func:`asymptotix.core.plot.plot_comparison` lists the options."""
        return plot.plot_comparison(self, name, ax=ax, **options)

    def __repr__(self) -> str:
        return f"<asymptotix {self.summary()}>"

    def _repr_html_(self) -> str:
        return comparison_html(self, ComparisonInWords(self.ds, self.names).html)


def compare(theory: Result, experiment: Result, *, by: str | None = None) -> Comparison:
    """Compare an experiment with its theory.

    Parameters
    ----------
    theory
        A result of :func:`solve`. If a point of the experiment is not on its grid, the theory is solved there, from the
        same start and with the same overlaps held.
    experiment
        A result of :func:`simulate`. The finite-size bias that the problem knows is removed first.
    by
        None compares the final values. "iteration" compares the experiment's traces with the theory's dynamics; a run
        that stopped early keeps its last value in later iterations.

    Raises
    ------
    ValueError
        If the two are of different problems (the error names the field), or share no observable.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2))
    >>> theory = asx.solve(problem, alpha=[0.1, 2.0], progress=False)
    >>> runs = asx.simulate(problem, asx.GAMP(), alpha=2.0, dim=100, seeds=2, progress=False)
    >>> found = asx.compare(theory, runs)
    >>> float(found.ds.overlap_theory.squeeze()), "overlap" in found.names
    (1.0, True)
    """
    _check_pair(theory, experiment)
    if by not in (None, "iteration"):
        raise ValueError(f"by must be None or 'iteration', got {by!r}")
    for result in (theory, experiment):
        _refuse_nothing(result)
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
    """Return the dataset of an experiment after :meth:`Problem.comparable` removed its known finite-size bias.

    A swept field may change the bias. ``at`` (dimension -> position) holds the positions chosen so far: all fields of a
    point are set together, because one new value with the old values of the others may be invalid.
    """
    at = at or {}
    fields, ds = numeric_fields(experiment.problem), experiment.ds
    free = (*experiment.problem.controls, "dim", "seed")
    swept = [str(dim) for dim in ds.dims if dim in fields and dim not in (*free, *at)]
    if not swept:
        chosen = experiment.isel(at)
        return chosen.problem.comparable(chosen.ds)
    parts = [_comparable(experiment, {**at, swept[0]: k}) for k in range(ds.sizes[swept[0]])]
    whole = xr.concat(parts, dim=swept[0], data_vars="all", coords="minimal", compat="override", join="override")
    order = {name: [dim for dim in ds[name].dims if dim not in at] for name in ds.data_vars if name in whole}
    return whole.assign({name: whole[name].transpose(*dims, ...) for name, dims in order.items()})


def theory_at(theory: Result, experiment: Result) -> Result:
    """Return the theory at the points of the experiment; those that are not on its grid are solved."""
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
    """Return control or swept field -> its values in the experiment, without fields that are None in the theory."""
    fields = numeric_fields(experiment.problem)
    names = dict.fromkeys([*experiment.ds.coords, *theory.ds.coords])
    controls: dict[str, np.ndarray] = {}
    for name in map(str, names):
        if name not in experiment.problem.controls and name not in fields:
            continue
        if name not in theory.ds.coords and numeric_fields(theory.problem).get(name, 0) is None:
            continue  # a field that is None: the theory is its limit, at any size of the experiment
        controls[name] = _values(experiment, name)
    return controls


def _values(result: Result, name: str) -> np.ndarray:
    """Return the values of a control in a result: its coordinate, or else the value of the problem's field."""
    return np.asarray(result.ds[name] if name in result.ds.coords else numeric_fields(result.problem)[name])


def _by_iteration(experiment: Result, measured: xr.Dataset) -> xr.Dataset:
    algorithm = experiment.algorithm
    assert algorithm is not None  # every experiment has one
    shape, points = _points(experiment)
    options = [algorithm.trace_options(problem) for problem, _ in points]
    traces = [str(name) for name in measured.data_vars if str(name).endswith("_trace")]
    if not traces:
        raise ValueError(f"the experiment recorded no trace: {type(algorithm).__name__} gives no '<name>_trace'")
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
    """Return the grid (name -> length), and for every point in C order its problem and its control -> value."""
    problem, grid = experiment.problem, _controls(experiment, experiment)
    shape = {name: len(values) for name, values in grid.items() if values.ndim}
    problems: dict[tuple, Problem] = {}  # points with equal fields share one problem and its cached computations
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
    """Return a trace in which NaN after the last value of a run, which stopped early, is replaced by that value.

    An average over only those runs that continue would select the slow ones.
    """
    moved = trace.transpose("iteration", ...)
    values = moved.values.copy()
    for i in range(1, len(values)):
        values[i] = np.where(np.isnan(values[i]), values[i - 1], values[i])
    return moved.copy(data=values).transpose(*trace.dims)


def _scores(pairs: Mapping[str, tuple[xr.DataArray, xr.DataArray, xr.DataArray]]) -> xr.Dataset:
    columns: dict[str, xr.DataArray] = {}
    for name, (exact, error, runs) in pairs.items():
        # The theory takes the runs' coordinates: xarray would drop points that differ by rounding.
        exact, error = exact.reset_coords(drop=True), error.reset_coords(drop=True)
        exact, error = (
            part.assign_coords({d: runs[d] for d in part.dims if d in runs.coords}) for part in (exact, error)
        )
        about = exact.attrs
        for part, values in scores(exact, error, runs).items():
            words, in_units = PARTS[part]
            columns[f"{name}_{part}"] = values.copy(deep=False)
            columns[f"{name}_{part}"].attrs = {
                "long_name": words.format(about.get("long_name", name)),
                "units": about.get("units", "1") if in_units else "1",
            }
    ds = xr.Dataset(columns)
    return ds.drop_vars([name for name in ("seed", "iteration") if name in ds.coords])


def _refuse_nothing(result: Result) -> None:
    """Raise a ValueError if no point of the result has a number; the message says why and how to continue."""
    if _observables(result.ds):
        return
    what, verb = ("run", "simulate") if result.kind == "experiment" else ("point", "solve")
    codes = result.ds["status_code"].values.astype(str).ravel()
    waiting = int(np.isin(codes, [Status.NOT_REACHED.code, Status.INTERRUPTED.code]).sum())
    if waiting:
        raise ValueError(
            f"no {what} has finished (0 of {codes.size}, interrupted): nothing to compare. "
            f"Continue with {verb}(..., resume=result)"
        )
    first = result.ds["status"].values.ravel()[0]
    raise ValueError(
        f"no {what} has a number ({codes.size} of {codes.size} failed; the first: {first}): nothing to compare"
    )


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
        path = found[0].partition(":")[0]  # for a function the text is "path: another function"
        first, second = (value_at(describe(result.problem), path) for result in (theory, experiment))
        kept = f"{first!r} in the theory and {second!r} in the experiment" if path == found[0] else "another function"
        raise ValueError(f"theory and experiment are of different problems: {path} is {kept}")


def _changes(result: Result) -> dict[str, Any]:
    """Return the settings of a result that are no arguments of ``solve``: each records a change made after the verb."""
    return {name: value for name, value in result.settings.items() if name not in ("start", "tolerance", "fixed")}
