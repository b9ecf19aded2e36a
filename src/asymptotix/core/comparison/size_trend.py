"""The distance of an experiment from theory against its size: which part is a finite-size bias.

Theory is the limit of large dimension. A significant distance that falls with the dimension is a finite-size effect; a
distance that does not fall has another cause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from ..words import format_number
from .scores import chance_bound, common_z

#: Number of standard errors by which two distances must differ to count as different. Smaller: noise counts as trend.
_APART = 2.0
#: Slowest decay expected of a finite-size effect: the p of distance ~ dim^-p. Larger: slower effects count as no decay.
_SLOWEST = 0.5


@dataclass(frozen=True, repr=False)
class SizeTrend:
    """The distance of one observable from theory at every size.

    Attributes
    ----------
    sizes : tuple of int
        The dimensions, ascending.
    distances, errors : tuple of float
        For each size, the root mean square of mean - theory over points and entries, after the variance of the noise is
        subtracted (at least zero), and its standard error.
    seen : tuple of bool
        For each size, whether the distance is significant, in one entry or in all entries together.
    """

    sizes: tuple[int, ...]
    distances: tuple[float, ...]
    errors: tuple[float, ...]
    seen: tuple[bool, ...]

    def __repr__(self) -> str:
        return f"<asymptotix size trend: {self.words}>"

    @property
    def exponent(self) -> tuple[float, float]:
        """The pair (p, its error) of a fit distance ~ dim^-p to the significant distances; NaN for fewer than two."""
        chosen = np.flatnonzero([s and d > 0 for s, d in zip(self.seen, self.distances, strict=True)])
        if len(chosen) < 2:
            return np.nan, np.nan
        distance, error = (np.array(column)[chosen] for column in (self.distances, self.errors))
        x, weight = np.log(np.array(self.sizes, float)[chosen]), (distance / error) ** 2
        centred = x - np.average(x, weights=weight)
        curvature = (weight * centred**2).sum()
        return float(-(weight * centred * np.log(distance)).sum() / curvature), float(curvature**-0.5)

    @property
    def falls(self) -> bool | None:
        """Whether the distance falls from the smallest to the largest size; None where this is undecided.

        True: the distance is significant at the smallest size, and smaller at the largest by more than the errors.
        False: at the largest size the distance is significant, and larger, beyond the errors, than a decay as dim^-1/2
        from the smallest size would leave.
        """
        apart = _APART * np.hypot(self.errors[0], self.errors[-1])
        if self.seen[0] and self.distances[0] - self.distances[-1] > apart:
            return True
        left = (self.sizes[0] / self.sizes[-1]) ** _SLOWEST
        beyond = self.distances[-1] - left * self.distances[0]
        if self.seen[-1] and beyond > _APART * np.hypot(left * self.errors[0], self.errors[-1]):
            return False
        return None

    @property
    def words(self) -> str:
        """The distances and the conclusion as a sentence."""
        if not any(self.seen):
            return f"no bias of finite size is seen beyond noise from dim {self.sizes[0]} to {self.sizes[-1]}"
        columns = zip(self.sizes, self.distances, self.errors, self.seen, strict=True)
        found = ", ".join(
            f"{format_number(distance, error)} at dim {size}" + ("" if seen else " (within noise)")
            for size, distance, error, seen in columns
        )
        return f"distance from theory {found}: {self._verdict}"

    @property
    def _verdict(self) -> str:
        if self.falls is None:
            return "more seeds would tell whether it falls with dim"
        if not self.falls:
            return "it does not visibly fall with dim, so that finite size alone does not explain it"
        power, error = self.exponent
        if np.isnan(power):
            return "it falls with dim, as finite size does"
        return f"it falls with dim, as dim^-{format_number(power, error)}, as finite size does"


def size_trend(difference: xr.DataArray, noise: xr.DataArray, runs: xr.DataArray, z: xr.DataArray) -> SizeTrend | None:
    """Return the trend with ``dim`` of the distance of one observable from theory.

    None for a single size, or if no entry of some size has a known error. If some entries are significant at one of the
    sizes, only these are used: others would only add noise.

    Parameters
    ----------
    difference, noise, runs, z
        Mean minus theory, its standard error, number of runs, and z of every entry; NaN for entries to be ignored.
    """
    if difference.sizes.get("dim", 1) < 2:
        return None
    order = np.argsort(difference["dim"].values)
    # Entries of one run are not independent; runs at different controls and sizes are.
    arrays = [[by_points(array.isel(dim=k)) for k in order] for array in xr.broadcast(difference, noise, runs, z)]
    gap, noises, counts, scores = map(np.array, arrays)  # each (sizes, points, entries)
    judged = np.isfinite(gap) & np.isfinite(scores) & (counts > 1)
    beyond = (judged & (abs(scores) > chance_bound(2 * int(judged.sum())))).any(0)
    judged &= beyond if beyond.any() else True
    if not judged.any((1, 2)).all():
        return None
    found = [_distance(*parts) for parts in zip(gap, noises, counts, scores, judged, strict=True)]
    return SizeTrend(tuple(int(difference["dim"][k]) for k in order), *zip(*found, strict=True))


def by_points(values: xr.DataArray) -> np.ndarray:
    """Return an array (points, entries): dimensions with a coordinate (the controls), and all others."""
    grid = [dim for dim in values.dims if dim in values.coords]
    own = [dim for dim in values.dims if dim not in grid]
    points = int(np.prod([values.sizes[dim] for dim in grid], dtype=int))
    return values.transpose(*grid, *own).values.reshape(points, -1)


def _distance(
    gap: np.ndarray, noise: np.ndarray, runs: np.ndarray, z: np.ndarray, judged: np.ndarray
) -> tuple[float, float, bool]:
    """Return (root mean square of ``gap`` without the part of the noise, its error, whether it is significant).

    All arrays are (points, entries); ``judged`` is the mask of the entries to use. From n runs, noise² is known with a
    relative error of sqrt(2/(n-1)).
    """
    count = int(judged.sum())
    square, variance, spare = (np.where(judged, x, 0.0) for x in (gap**2, noise**2, 1 / np.maximum(runs - 1, 1)))
    bias = np.maximum(square - variance, 0)
    uncertain = np.sqrt(2 * variance**2 * (1 + spare) + 4 * bias * variance).sum(1)
    mean, error = (square - variance).sum() / count, np.sqrt((uncertain**2).sum()) / count
    # Error of a square root: the error of the square over twice the root, as long as the root exceeds its error.
    distance, spread = max(mean, 0.0) ** 0.5, error / max(4 * mean, error) ** 0.5 if error > 0 else 0.0
    known = np.where(judged, z, np.nan)
    seen = np.nanmax(abs(known)) > chance_bound(2 * count) or abs(common_z(known)) > chance_bound(2)
    return float(distance), float(spread), bool(seen)
