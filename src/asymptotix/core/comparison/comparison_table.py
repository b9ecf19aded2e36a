"""A comparison in words and as a table: which entries there are, which of them count once, which are beyond noise."""

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

#: Relative difference below which two entries are one number that was computed twice.
_SAME = 1e-6
#: So few runs hardly know their own noise: only a difference of many times that is beyond it.
_FEW_RUNS = 3
_HEADER = ("observable", "theory", "experiment", "runs", "difference", "relative", "t", "dof", "z", "")


@dataclass(frozen=True)
class ComparedObservable:
    """The numbers of one observable as arrays of one shape, and which of its entries are listed.

    Parameters
    ----------
    name : str
    columns : mapping
        Part -> array with the dimensions of all parts together.
    """

    name: str
    columns: Mapping[str, xr.DataArray]

    @classmethod
    def of(cls, ds: xr.Dataset, name: str) -> ComparedObservable:
        """That of a comparison's dataset."""
        arrays = xr.broadcast(*(ds[f"{name}_{part}"] for part in PARTS))
        return cls(name, dict(zip(PARTS, arrays, strict=True)))

    def __getitem__(self, part: str) -> np.ndarray:
        return self.columns[part].values

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(map(str, self.columns["theory"].dims))

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Axes of rows and columns of the matrices that it consists of, if it does."""
        dims = self.dims
        return [(i, dims.index(f"{dim}_other")) for i, dim in enumerate(dims) if f"{dim}_other" in dims]

    @cached_property
    def present(self) -> np.ndarray:
        """Not the entries of other points' indices. A point that failed as a whole keeps its own."""
        missing = np.isnan(self["theory"]) & (self["runs"] == 0)
        axes = tuple(i for i, dim in enumerate(self.dims) if dim in INDEX_DIMENSIONS)
        return ~missing | missing.all(axis=axes, keepdims=True)

    @cached_property
    def off_diagonal(self) -> np.ndarray:
        """Entries between different rows and columns."""
        found = np.zeros(self["theory"].shape, bool)
        for row, column in self._row_and_column():
            found |= row != column
        return found

    @cached_property
    def again(self) -> np.ndarray:
        """Entries below the diagonal whose numbers are those above it."""
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
        """Entries off the diagonal that are exactly zero in the theory, at all points that have a number."""
        zero, missing = self["theory"] == 0, np.isnan(self["theory"])
        kept = {axis for pair in self.pairs for axis in pair}
        others = tuple(i for i in range(zero.ndim) if i not in kept)
        always = (zero | missing).all(axis=others, keepdims=True) & zero.any(axis=others, keepdims=True)
        return self.off_diagonal & always

    @property
    def judged(self) -> np.ndarray:
        """Entries that count and have a z, each once."""
        return self.present & ~self.again & np.isfinite(self["z"])

    def listed(self, beyond: np.ndarray) -> np.ndarray:
        """Entries that a reader wants to see: once each, and zeros of symmetry only where the runs contradict them."""
        return self.present & ~self.again & (~self.zero_by_symmetry | beyond)

    @property
    def trend(self) -> SizeTrend | None:
        """How the distance of what is listed goes with the size."""
        counted = self.columns["z"].copy(data=self.present & ~self.again & ~self.zero_by_symmetry)
        noise = (self.columns["sem"] ** 2 + self.columns["floor"] ** 2) ** 0.5
        parts = (self.columns["difference"], noise, self.columns["runs"], self.columns["z"])
        return size_trend(*(part.where(counted) for part in parts))

    def where(self, position: Sequence[int], controls: Sequence[str]) -> dict[str, str]:
        """The controls of an entry in words."""
        at = dict(zip(self.dims, position, strict=True))
        coords = self.columns["theory"].coords
        found = {name: coords[name].values for name in controls if name in coords}
        return {name: number(values[at[name]] if name in at else values) for name, values in found.items()}

    def entry(self, position: Sequence[int], controls: Sequence[str]) -> str:
        """What an entry is called: by the labels of its rows, one of them on the diagonal."""
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
    """All observables of a comparison, judged together.

    Parameters
    ----------
    ds : Dataset
        Of a comparison.
    names : sequence of str
        Its observables.
    """

    def __init__(self, ds: xr.Dataset, names: Sequence[str]) -> None:
        self.observables = [ComparedObservable.of(ds, name) for name in names]
        kinds = [(str(name), values) for name, values in ds.coords.items()]
        self.controls = [name for name, values in kinds if values.dtype.kind in "iuf" and values.ndim <= 1]
        # Every entry is a question, and every observable as a whole.
        self.bound = chance_bound(sum(int(one.judged.sum()) + 1 for one in self.observables))

    def beyond(self, one: ComparedObservable) -> np.ndarray:
        """Entries that differ by more than chance explains, in view of how many there are."""
        return one.judged & (abs(one["z"]) > self.bound)

    def table(self, *, every: bool) -> str:
        """One line per entry, see :meth:`Comparison.table`."""
        rows, notes = self._rows(every=every)
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*(line.rstrip() for line in lines), *notes])

    def html(self) -> str:
        """The table of what is listed by default, for a notebook."""
        (head, *rows), notes = self._rows(every=False)
        cells = [f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
        header = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        return f"<table><tr>{header}</tr>{''.join(cells)}</table>" + "".join(f"<p>{html.escape(n)}</p>" for n in notes)

    def _rows(self, *, every: bool) -> tuple[list[tuple[str, ...]], list[str]]:
        """The cells, header first, and what is to be said below them."""
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
        """Some lines per observable: the largest difference, whether it is noise, and if not how it goes with the size.

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
        """Whether noise explains the differences."""
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
        """The difference of an entry, where it is, and its t."""
        where = [f"{name} = {value}" for name, value in one.where(at, self.controls).items()]
        where += [text] if (text := one.entry(at, self.controls)) else []
        share = "" if np.isnan(one["relative"][at]) else f" ({percent(one['relative'][at])})"
        t, dof = float(one["t"][at]), float(one["dof"][at])
        known = "" if np.isnan(t) else f", t = {t:.2f} with {dof:g} degree{'s' * (dof != 1)} of freedom"
        place = f" at {', '.join(where)}" if where else ""
        return f"{number(one['difference'][at], 2)}{share}{place}{known}"


def _largest(one: ComparedObservable, listed: np.ndarray) -> tuple[int, ...] | None:
    """Where the largest difference is, at the largest size; None where there is none."""
    gaps = np.where(listed & np.isfinite(one["difference"]), abs(one["difference"]), -1.0)
    if "dim" in one.dims:
        sizes = one.columns["theory"]["dim"]
        gaps = one.columns["theory"].copy(data=gaps).where(sizes == sizes.max(), -1.0).values
    return _at_largest(gaps) if gaps.size and gaps.max() >= 0 else None


def _at_largest(values: np.ndarray) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(int(values.argmax()), values.shape)))


def _numbers(one: ComparedObservable, at: tuple[int, ...]) -> tuple[str, ...]:
    """Theory, experiment, runs, difference, relative difference, t, its degrees of freedom, z."""
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
    """To a few digits, a dash where there is none."""
    found = float(np.asarray(value, float))
    return "-" if math.isnan(found) else f"{found:.{digits}g}"


def percent(share: object) -> str:
    """A share in percent, a dash where there is none."""
    found = float(np.asarray(share, float))
    return "-" if math.isnan(found) else f"{100 * found:+.2g} %"
