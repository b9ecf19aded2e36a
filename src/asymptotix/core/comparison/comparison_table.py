"""A comparison as sentences and as a table: which entries exist, which are duplicates, which are significant."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import xarray as xr

from ..dataset.rows import INDEX_DIMENSIONS, label_name
from .scores import PARTS, chance_bound, common_z
from .size_trend import SizeTrend, by_points, size_trend

#: Relative difference below which two entries, such as those of a symmetric matrix, count as the same number.
_SAME = 1e-6
#: Largest number of runs for which the text says that agreement means little: their standard error is uncertain.
_FEW_RUNS = 3
_HEADER = ("observable", "theory", "experiment", "runs", "difference", "relative", "t", "dof", "z", "")


@dataclass(frozen=True)
class ComparedObservable:
    """One observable of a comparison: its numbers as arrays of one shape, and masks of this shape.

    Parameters
    ----------
    name : str
    columns : mapping
        Name of a number of :data:`PARTS`, such as "mean" or "z" -> array; all arrays have the same dimensions.
    """

    name: str
    columns: Mapping[str, xr.DataArray]

    @classmethod
    def of(cls, ds: xr.Dataset, name: str) -> ComparedObservable:
        """Return the observable of this name from a comparison's dataset."""
        arrays = xr.broadcast(*(ds[f"{name}_{part}"] for part in PARTS))
        return cls(name, dict(zip(PARTS, arrays, strict=True)))

    def __getitem__(self, part: str) -> np.ndarray:
        return self.columns[part].values

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(map(str, self.columns["theory"].dims))

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Positions (row, column) among ``dims`` of every pair of dimensions ``<dim>`` and ``<dim>_other``."""
        dims = self.dims
        return [(i, dims.index(f"{dim}_other")) for i, dim in enumerate(dims) if f"{dim}_other" in dims]

    @cached_property
    def present(self) -> np.ndarray:
        """Mask of the entries that exist at their point: not those of indices that only other points have.

        At a point without any number, because it failed, all entries count as existing.
        """
        missing = np.isnan(self["theory"]) & (self["runs"] == 0)
        axes = tuple(i for i, dim in enumerate(self.dims) if dim in INDEX_DIMENSIONS)
        return ~missing | missing.all(axis=axes, keepdims=True)

    @cached_property
    def off_diagonal(self) -> np.ndarray:
        """Mask of the entries whose row and column differ."""
        found = np.zeros(self["theory"].shape, bool)
        for row, column in self._row_and_column():
            found |= row != column
        return found

    @cached_property
    def again(self) -> np.ndarray:
        """Mask of the entries below the diagonal whose theory and mean equal those of their mirror image above it."""
        below = np.zeros(self["theory"].shape, bool)
        undecided = ~below
        for row, column in self._row_and_column():
            below |= undecided & (row > column)
            undecided &= row == column
        for part in ("theory", "mean"):
            below &= np.isclose(self[part], self._transposed(self[part]), rtol=_SAME, atol=0, equal_nan=True)
        return below

    @cached_property
    def zero_by_symmetry(self) -> np.ndarray:
        """Mask of the off-diagonal entries for which theory is exactly zero at every point where it has a number."""
        zero, missing = self["theory"] == 0, np.isnan(self["theory"])
        kept = {axis for pair in self.pairs for axis in pair}
        others = tuple(i for i in range(zero.ndim) if i not in kept)
        always = (zero | missing).all(axis=others, keepdims=True) & zero.any(axis=others, keepdims=True)
        return self.off_diagonal & always

    @property
    def judged(self) -> np.ndarray:
        """Mask of the entries that are tested: they exist, have a z and are no mirror image of another."""
        return self.present & ~self.again & np.isfinite(self["z"])

    def listed(self, beyond: np.ndarray) -> np.ndarray:
        """Return the mask of entries to list: no mirror images, zeros by symmetry only if significant (``beyond``)."""
        return self.present & ~self.again & (~self.zero_by_symmetry | beyond)

    @property
    def trend(self) -> SizeTrend | None:
        """The trend with ``dim`` of the distance from theory; None as in :func:`size_trend`."""
        counted = self.columns["z"].copy(data=self.present & ~self.again & ~self.zero_by_symmetry)
        noise = (self.columns["sem"] ** 2 + self.columns["floor"] ** 2) ** 0.5
        parts = (self.columns["difference"], noise, self.columns["runs"], self.columns["z"])
        return size_trend(*(part.where(counted) for part in parts))

    def where(self, position: Sequence[int], controls: Sequence[str]) -> dict[str, str]:
        """Return control -> its value as text, at the entry with this ``position`` along ``dims``."""
        at = dict(zip(self.dims, position, strict=True))
        coords = self.columns["theory"].coords
        found = {name: coords[name].values for name in controls if name in coords}
        return {name: number(values[at[name]] if name in at else values) for name, values in found.items()}

    def entry(self, position: Sequence[int], controls: Sequence[str]) -> str:
        """Return the name of the entry at ``position``, such as "[layer 1, layer 2]"; one label on the diagonal."""
        names = [self._label(dim, i) for dim, i in zip(self.dims, position, strict=True) if dim not in controls]
        names = list(dict.fromkeys(names)) if self.pairs and not self.off_diagonal[tuple(position)] else names
        return f"[{', '.join(names)}]" if names else ""

    def _label(self, dim: str, i: int) -> str:
        given = self.columns["theory"].coords.get(label_name(dim))
        return f"{dim.removesuffix('_other')} {i + 1}" if given is None else str(given.values[i])

    def _row_and_column(self) -> list[tuple[np.ndarray, np.ndarray]]:
        indices = np.indices(self["theory"].shape, sparse=True)
        return [(indices[row], indices[column]) for row, column in self.pairs]

    def _transposed(self, values: np.ndarray) -> np.ndarray:
        for row, column in self.pairs:
            values = values.swapaxes(row, column)
        return values


class ComparisonInWords:
    """The texts about a comparison, with one bound of significance for all of its entries.

    Parameters
    ----------
    ds : Dataset
        The dataset of a comparison.
    names : sequence of str
        Its observables.
    """

    def __init__(self, ds: xr.Dataset, names: Sequence[str]) -> None:
        self.observables = [ComparedObservable.of(ds, name) for name in names]
        kinds = [(str(name), values) for name, values in ds.coords.items()]
        self.controls = [name for name, values in kinds if values.dtype.kind in "iuf" and values.ndim <= 1]
        # Number of tests: one for each entry, and one for each observable as a whole.
        self.bound = chance_bound(sum(int(one.judged.sum()) + 1 for one in self.observables))

    def beyond(self, one: ComparedObservable) -> np.ndarray:
        """Return the mask of the significant entries; the bound on z accounts for the number of all entries."""
        return one.judged & (abs(one["z"]) > self.bound)

    def table(self, *, every: bool) -> str:
        """Return the text of the table, one line per entry; ``every`` lists all, see :meth:`Comparison.table`."""
        rows, notes = self._rows(every=every)
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*(line.rstrip() for line in lines), *notes])

    def html(self) -> str:
        """Return the table of ``table(every=False)`` as HTML for a notebook."""
        (head, *rows), notes = self._rows(every=False)
        cells = [f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
        header = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        return f"<table><tr>{header}</tr>{''.join(cells)}</table>" + "".join(f"<p>{html.escape(n)}</p>" for n in notes)

    def _rows(self, *, every: bool) -> tuple[list[tuple[str, ...]], list[str]]:
        """Return (rows of cells, the header first; notes below the table), of all entries if ``every``."""
        rows: list[tuple[str, ...]] = [(*self.controls, *_HEADER)]
        left_out, starred = 0, False
        for one in self.observables:
            beyond = self.beyond(one)
            listed = one.present if every else one.listed(beyond)
            left_out += int((one.present & ~listed).sum())
            starred |= bool(beyond.any())
            for at in map(tuple, np.argwhere(listed)):
                where = one.where(at, self.controls)
                cells = [where.get(name, "") for name in self.controls]
                star = "*" if beyond[at] else ""
                rows.append((*cells, one.name + one.entry(at, self.controls), *_numbers(one, at), star))
        notes = ["* beyond noise: chance gives one such entry in fewer than one of a hundred comparisons"] * starred
        if left_out:
            notes.append(f"not listed, because equal or zero by symmetry: {left_out}; table(every=True) does")
        return rows, notes

    def sentences(self, tolerance: float | None) -> list[str]:
        """Return the lines of the summary: per observable the largest difference, whether noise explains it, its trend.

        ``tolerance`` is that of the theory.
        """
        lines = []
        for one in self.observables:
            beyond = self.beyond(one)
            listed = one.listed(beyond)
            largest = _largest(one, listed)
            if largest is None:
                lines.append(f"{one.name}: nothing to compare")
                continue
            lines.append(f"{one.name}: largest difference {self._said_of(one, largest)}")
            lines.append(f"  {self._verdict(one, listed, beyond, largest, tolerance)}")
            trend = one.trend
            if trend is not None and trend.falls is not None:
                lines.append(f"  {trend.words}")
        return lines

    def _verdict(
        self,
        one: ComparedObservable,
        listed: np.ndarray,
        beyond: np.ndarray,
        largest: tuple[int, ...],
        tolerance: float | None,
    ) -> str:
        """Return a phrase on whether noise explains the differences; ``beyond`` masks the significant ones."""
        judged = one.judged & listed
        missing = int((listed & ~judged).sum())
        if not judged.any():
            few = not (one["runs"][listed] > 1).any()
            return "the error is not known: " + ("one run" if few else "all runs gave the same number")
        unknown = f" (the error of {missing} is not known)" if missing else ""
        if not beyond.any():
            said = f"{_counted(judged)} within noise"
            together = common_z(by_points(one.columns["z"].where(judged)))
            if abs(together) <= self.bound:
                most = int(one["runs"][judged].max())
                return said + (f", of which {most} runs tell little" if most <= _FEW_RUNS else "") + unknown
            side = "above" if together > 0 else "below"
            said, meant = f"{said}, but together they lie {side} the theory, z = {together:.1f}", judged
        else:
            said, meant = f"{int(beyond.sum())} of {_counted(judged)} beyond noise", beyond
            clearest = _at_largest(np.where(beyond, abs(one["z"]), -1.0))
            said += "" if clearest == largest else f", clearest {self._said_of(one, clearest)}"
        gaps = abs(one["difference"]) / np.maximum(abs(one["theory"]), 1.0)
        if tolerance is not None and (gaps[meant] <= tolerance).all():
            return f"{said}{unknown}; all of that is within the theory's tolerance of {tolerance:g}"
        if "dim" in one.columns["theory"].coords and "dim" not in one.dims:
            return f"{said}{unknown}; one size only: whether finite size explains it is seen from several dim"
        return said + unknown

    def _said_of(self, one: ComparedObservable, at: tuple[int, ...]) -> str:
        """Return the difference, controls, labels and t of the entry at position ``at`` as text."""
        where = [f"{name} = {value}" for name, value in one.where(at, self.controls).items()]
        where += [text] if (text := one.entry(at, self.controls)) else []
        share = "" if np.isnan(one["relative"][at]) else f" ({percent(one['relative'][at])})"
        t, dof = float(one["t"][at]), float(one["dof"][at])
        known = "" if np.isnan(t) else f", t = {t:.2f} with {dof:g} degree{'s' * (dof != 1)} of freedom"
        place = f" at {', '.join(where)}" if where else ""
        return f"{number(one['difference'][at], 2)}{share}{place}{known}"


def _largest(one: ComparedObservable, listed: np.ndarray) -> tuple[int, ...] | None:
    """Return the position of the listed entry of largest difference at the largest ``dim``; None if there is none."""
    gaps = np.where(listed & np.isfinite(one["difference"]), abs(one["difference"]), -1.0)
    if "dim" in one.dims:
        sizes = one.columns["theory"]["dim"]
        gaps = one.columns["theory"].copy(data=gaps).where(sizes == sizes.max(), -1.0).values
    return _at_largest(gaps) if gaps.size and gaps.max() >= 0 else None


def _at_largest(values: np.ndarray) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(int(values.argmax()), values.shape)))


def _numbers(one: ComparedObservable, at: tuple[int, ...]) -> tuple[str, ...]:
    """Return the cells of the entry at position ``at``: theory, experiment, runs, difference, relative, t, dof, z."""
    sem = float(one["sem"][at])
    measured = number(one["mean"][at]) + ("" if np.isnan(sem) else f" ± {number(sem, 2)}")
    t, dof, z = (float(one[part][at]) for part in ("t", "dof", "z"))
    return (
        number(one["theory"][at]),
        measured,
        str(int(one["runs"][at])),
        number(one["difference"][at], 2),
        percent(one["relative"][at]),
        "-" if np.isnan(t) else f"{t:+.2f}",
        "-" if np.isnan(dof) else f"{dof:g}",
        "-" if np.isnan(z) else f"{z:+.2f}",
    )


def _counted(entries: np.ndarray) -> str:
    count = int(entries.sum())
    return "1 entry" if count == 1 else f"{count} entries"


def number(value: object, digits: int = 4) -> str:
    """Return a number as text with ``digits`` significant digits; a dash for NaN."""
    found = float(np.asarray(value, float))
    return "-" if math.isnan(found) else f"{found:.{digits}g}"


def percent(share: object) -> str:
    """Return a share, such as 0.1, as text in percent with two digits and sign, "+10 %"; a dash for NaN."""
    found = float(np.asarray(share, float))
    return "-" if math.isnan(found) else f"{100 * found:+.2g} %"
