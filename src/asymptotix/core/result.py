"""The result of a verb: a dataset with its problem, the status of every point and its provenance."""

from __future__ import annotations

import functools
import os
import textwrap
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..numerics.precision import own_settings
from . import plot
from .dataset import files
from .dataset.files import Saved
from .dataset.labels import labelled, unlabelled, with_label_coordinates
from .dataset.selection import selected_by_name
from .problem import Algorithm, Problem
from .showing.frame import table_of_entries, table_of_points
from .showing.notebook import result_html
from .specification import numeric_fields, with_fields
from .status import Status

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class ConvergenceWarning(UserWarning):
    """Some points of a result did not converge; ``result.status`` says how each of them ended.

    Examples
    --------
    >>> import warnings
    >>> import asymptotix as asx
    >>> warnings.simplefilter("error", asx.ConvergenceWarning)           # stop where a point did not converge
    """


class Result:
    """The result of a verb (solve, simulate, thresholds): a thin wrapper on an :class:`xarray.Dataset`.

    Variables and coordinates are attributes (``result.overlap``, ``result.alpha``), ``<name>_err`` is the numerical
    error of ``<name>``, and the methods that the problem lists as ``readouts`` are methods of the result. Arrays read
    as attributes have the labels of their entries as coordinates: ``result.overlap.sel(index="layer 2")`` selects by
    label. In the dataset ``result.ds`` the labels are a separate coordinate, ``index_label``.

    Parameters
    ----------
    ds
        The numbers, with ``status``, ``status_code`` and ``converged`` per point.
    problem
        The problem that was solved. Fields that ``ds`` holds as scalar coordinates are set to those values.
    kind
        "theory", "experiment" or "thresholds".
    algorithm
        The algorithm of an experiment.
    settings
        Arguments of the verb that decide on the numbers, such as start, tolerance and fixed.
    provenance
        Versions, device, date, commit, wall seconds.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2))
    >>> theory = asx.solve(problem, alpha=[0.1, 2.0], progress=False)
    >>> theory.ok, theory.status_code.values.tolist()
    (True, ['converged', 'exact_recovery'])
    >>> float(theory.sel(alpha=2.0).overlap.squeeze())
    1.0
    """

    def __init__(
        self,
        ds: xr.Dataset,
        *,
        problem: Problem,
        kind: str,
        algorithm: Algorithm | None = None,
        settings: Mapping[str, Any] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        self.ds = with_label_coordinates(unlabelled(ds), problem)
        self.problem = at_fixed_values(problem, {n: c.values for n, c in ds.coords.items() if c.ndim == 0})
        self.kind = kind
        self.algorithm = algorithm
        self.settings = dict(settings or {})
        self.provenance = dict(provenance or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "ds" not in self.__dict__ or "problem" not in self.__dict__:
            raise AttributeError(name)
        if name in self.ds.variables:
            return labelled(self.ds[name], self.problem)
        if name in self.problem.readouts:
            return functools.partial(own_settings()(getattr(self.problem, name)), self)
        raise AttributeError(f"this {self.kind} result has no {name!r}; it has {', '.join(self._names())}")

    def __getitem__(self, name: str) -> xr.DataArray:
        if not isinstance(name, str) or name not in self.ds.variables:
            raise KeyError(f"this {self.kind} result has no {name!r}; it has {', '.join(self._names())}")
        return labelled(self.ds[name], self.problem)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._names()]

    def _names(self) -> list[str]:
        return [*map(str, self.ds.data_vars), *map(str, self.ds.coords), *self.problem.readouts]

    @property
    def status(self) -> xr.DataArray:
        """How every point ended, as a sentence: an array of text along the dimensions of the grid."""
        return self.ds["status"]

    @property
    def ok(self) -> bool:
        """Whether all points converged."""
        return bool(self.ds["converged"].all())

    @property
    def finished(self) -> bool:
        """Whether all points ended without an interrupt; ``solve(..., resume=result)`` computes the unfinished ones."""
        return all(status.finished for status in self._statuses())

    @property
    def begun(self) -> bool:
        """Whether at least one point was begun; False if an interrupt came before all points."""
        return any(status is not Status.NOT_REACHED for status in self._statuses())

    def _statuses(self) -> list[Status]:
        return [Status.from_code(code) for code in np.unique(self.ds["status_code"])]

    def sel(self, *args: Any, **kwargs: Any) -> Result:
        """Return the result at coordinate values, which :meth:`xarray.Dataset.sel` selects.

        A value may differ from the grid's in its last digits. Entries of an observable are selected by label,
        ``result.sel(index="layer 2")``, ``result.sel(path="1-3")``, or by position, a whole number counted from 0.

        Raises
        ------
        KeyError
            If a value is not on the grid; the error names the nearest ones. ``method="nearest"`` selects the nearest.
        """
        return self._with(selected_by_name(self.ds, self.problem, *args, **kwargs))

    def isel(self, *args: Any, **kwargs: Any) -> Result:
        """Return the result at positions along dimensions, which :meth:`xarray.Dataset.isel` selects."""
        return self._with(self.ds.isel(*args, **kwargs))

    def _with(self, ds: xr.Dataset) -> Result:
        return Result(
            ds,
            problem=self.problem,
            kind=self.kind,
            algorithm=self.algorithm,
            settings=self.settings,
            provenance=self.provenance,
        )

    def plot(self, name: str | None = None, ax: Axes | None = None, **options: Any) -> Axes:
        """Plot a variable and return the axes, by :func:`asymptotix.core.plot.plot_curve`. Thresholds need no name."""
        if name is None:
            if self.kind != "thresholds":
                raise TypeError(
                    f"plot needs the name of a variable; there are {', '.join(map(str, self.ds.data_vars))}"
                )
            return plot.mark_thresholds(self, ax=ax, **options)
        return plot.plot_curve(self, name, ax=ax, **options)

    def to_dataframe(self, name: str | None = None) -> pd.DataFrame:
        """Return the result as a pandas table, one row per point or one row per entry of a variable.

        Parameters
        ----------
        name
            None: one row per point, with its controls, its observables and their errors, one column per entry
            (``overlap[layer 1, layer 2]``), and its status. Traces (values per iteration) are left out. The name of a
            variable or trace: one row per entry, with the controls, the labels of the entry (columns ``index``,
            ``index_other``), the number, its error and the status.

        Examples
        --------
        >>> table = theory.to_dataframe()                                    # doctest: +SKIP
        >>> table.plot("alpha", "overlap[layer 1, layer 1]")                 # doctest: +SKIP
        >>> theory.to_dataframe("overlap").query("index == index_other")     # doctest: +SKIP
        """
        if name is None:
            return table_of_points(labelled(self.ds, self.problem))
        if self[name].name not in self.ds.data_vars:
            raise KeyError(f"name must be a variable, got the coordinate {name!r}")
        return table_of_entries(labelled(self.ds, self.problem), name)

    def save(self, path: str | os.PathLike) -> None:
        """Write a netCDF file, which :func:`load` reads and plain xarray opens.

        The data are written to a temporary file in the same folder, which is renamed when it is complete. After an
        error, such as an OSError on a full disk, an earlier file of this name is unchanged.
        """
        kept = Saved(self.ds, self.problem, self.kind, self.algorithm, self.settings, self.provenance)
        files.write(path, kept)

    def __repr__(self) -> str:
        dims = ", ".join(f"{name} {length}" for name, length in self.ds.sizes.items()) or "one point"
        converged = self.ds["converged"]
        return (
            f"<asymptotix {self.kind} of {textwrap.shorten(repr(self.problem), 100, placeholder=' ...')}\n"
            f"  dimensions: {dims}; {int(converged.sum())} of {converged.size} points ok\n"
            f"  variables: {', '.join(map(str, self.ds.data_vars))}>"
        )

    def _repr_html_(self) -> str:
        return result_html(self)


def load(path: str | os.PathLike, problem: Problem | None = None) -> Result:
    """Read a result that :meth:`Result.save` wrote.

    Parameters
    ----------
    path
        The file.
    problem
        The problem, needed only if it holds your own function: a file cannot store functions. It stores the function's
        values at several points and a digest of its program, so that a different function is detected.

    Raises
    ------
    ValueError
        If the file is truncated, damaged (by its checksums), no netCDF, not from asymptotix or from a newer version of
        it, or if ``problem`` is not the saved one. The message names the path.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2))
    >>> asx.solve(problem, alpha=[0.1, 2.0], progress=False).save("curve.nc")
    >>> asx.load("curve.nc").overlap.values.ravel()
    array([0., 1.])
    """
    return loaded_for(path, problem)


def loaded_for(path: str | os.PathLike, problem: Problem | None, free: Collection[str] = ()) -> Result:
    """Read as :func:`load` does; ``problem`` may differ in the fields in ``free``, which take the saved values."""
    saved = files.read(path, problem, free)
    with files.naming(path):
        return Result(
            saved.ds,
            problem=saved.problem,
            kind=saved.kind,
            algorithm=saved.algorithm,
            settings=saved.settings,
            provenance=saved.provenance,
        )


def at_fixed_values(problem: Problem, values: Mapping[Any, object]) -> Problem:
    """Return the problem with its fields set to ``values``, name of a scalar coordinate -> value; others are ignored.

    Unchanged if the values are invalid together with its other fields, which may have a grid.
    """
    known = numeric_fields(problem)
    fixed = {
        str(name): np.asarray(value).item()
        for name, value in values.items()
        if name in known and name not in (*problem.controls, "dim", "seed")
    }
    fixed = {name: value for name, value in fixed.items() if value != known[name]}
    try:
        return with_fields(problem, **fixed) if fixed else problem
    except ValueError:
        return problem
