"""How the distance of an experiment from theory goes with its size: what is bias of finite size and what is not.

Theory is the limit of large dimension. A distance beyond noise that falls with the dimension is what finite size does;
one that stays tells of something else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from ..words import format_number
from .scores import chance_bound, common_z

#: Standard errors by which two distances must differ to be told apart.
_APART = 2.0
#: The slowest fall with the dimension that is expected of finite size, distance ~ dim^-p.
_SLOWEST = 0.5


@dataclass(frozen=True, repr=False)
class SizeTrend:
    """The distance from theory at every size.

    Attributes
    ----------
    sizes : tuple of int
        The dimensions, ascending.
    distances, errors : tuple of float
        Root mean square over points and entries of the difference, without what noise adds to it (never below zero),
        and its standard error.
    seen : tuple of bool
        Whether at that size an entry lies beyond noise, or all of them together.
    """

    sizes: tuple[int, ...]
    distances: tuple[float, ...]
    errors: tuple[float, ...]
    seen: tuple[bool, ...]

    def __repr__(self) -> str:
        return f"<asymptotix size trend: {self.words}>"

    @property
    def exponent(self) -> tuple[float, float]:
        """The p of distance ~ dim^-p and its error, from the sizes at which one is seen; NaN of fewer than two."""
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
        """Whether the distance falls from the smallest to the largest size; None where that cannot be told.

        It does not where the largest size shows more than dim^-1/2 would leave of the distance at the smallest, beyond
        the errors of both. Otherwise, and within noise at the largest size, it may fall or not.
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
        """The distances, and what they tell."""
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
    """The trend of one observable along ``dim``; None where there is one size, or no error to judge by.

    It is that of the entries that are beyond noise at one of the sizes, if there are any, since others would only add
    their noise.

    Parameters
    ----------
    difference, noise, runs, z
        Of the entries that count, NaN elsewhere: mean minus theory, the standard error of that, the number of runs, z.
    """
    if difference.sizes.get("dim", 1) < 2:
        return None
    order = np.argsort(difference["dim"].values)
    # Entries of one run are not independent of one another, runs at different controls and sizes are.
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
    """The values as (points, entries): along dimensions with a coordinate, and along all others."""
    grid = [dim for dim in values.dims if dim in values.coords]
    own = [dim for dim in values.dims if dim not in grid]
    points = int(np.prod([values.sizes[dim] for dim in grid], dtype=int))
    return values.transpose(*grid, *own).values.reshape(points, -1)


def _distance(
    gap: np.ndarray, noise: np.ndarray, runs: np.ndarray, z: np.ndarray, judged: np.ndarray
) -> tuple[float, float, bool]:
    """Root mean square distance without the part of noise, its error, and whether it is beyond noise.

    All are (points, entries). noise² is known from n runs to a share sqrt(2/(n-1)) of itself.
    """
    count = int(judged.sum())
    square, variance, spare = (np.where(judged, x, 0.0) for x in (gap**2, noise**2, 1 / np.maximum(runs - 1, 1)))
    bias = np.maximum(square - variance, 0)
    uncertain = np.sqrt(2 * variance**2 * (1 + spare) + 4 * bias * variance).sum(1)
    mean, error = (square - variance).sum() / count, np.sqrt((uncertain**2).sum()) / count
    # The error of a root is that of the square over twice the root, where the root is larger than it.
    distance, spread = max(mean, 0.0) ** 0.5, error / max(4 * mean, error) ** 0.5 if error > 0 else 0.0
    known = np.where(judged, z, np.nan)
    seen = np.nanmax(abs(known)) > chance_bound(2 * count) or abs(common_z(known)) > chance_bound(2)
    return float(distance), float(spread), bool(seen)
