"""Scores of an observable: the difference of runs from theory, and whether noise explains it.

The standard error of few runs is itself uncertain, so that (mean - theory)/error is Student's t and not a Gaussian:
with two runs it exceeds 12 in one case of twenty. What the theory does not know (its numerical error) and what
arithmetic does not resolve are a floor under the error of the runs. The degrees of freedom stay those of the runs: the
floor is known better than their scatter, but Welch's and Satterthwaite's formula, which counts that, calls one pair of
runs in thirteen different at a level of one in a hundred where the floor is a fifth of their standard deviation.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtr

#: Relative rounding of single precision, in which most experiments run.
ROUNDING = 2.0**-23
#: How often chance alone may say of a whole comparison that an entry of it differs.
CHANCE = 0.01
#: Part of an observable -> words for its long name, and whether it has the observable's units.
PARTS: Mapping[str, tuple[str, bool]] = {
    "theory": ("{} of the theory", True),
    "mean": ("{}, mean over runs", True),
    "sem": ("{}, standard error over runs", True),
    "runs": ("runs that gave {}", False),
    "difference": ("{}, mean minus theory", True),
    "relative": ("{}, difference over theory", False),
    "floor": ("{}, what theory and rounding leave open", True),
    "t": ("{}, Student's t of the difference", False),
    "dof": ("{}, degrees of freedom of t", False),
    "z": ("{}, Gaussian z with the probability of t", False),
}


def scores(exact: xr.DataArray, error: xr.DataArray, runs: xr.DataArray) -> dict[str, xr.DataArray]:
    """All parts of :data:`PARTS`, from theory, its numerical error, and runs along ``seed``.

    t, dof and z are NaN where the error of the runs is not known: one run, or runs that all gave the same number, as
    counts may. Of these z is zero where that number is the theory's.
    """
    count = runs.notnull().sum("seed")
    mean = runs.mean("seed")
    sem = runs.std("seed", ddof=1).where(count > 1) / count**0.5
    gap = (mean - exact).where(np.isfinite(exact))
    size = xr.where(abs(exact) < abs(mean), abs(mean), abs(exact.where(np.isfinite(exact))))
    floor = (error**2 + (ROUNDING * size) ** 2) ** 0.5
    known = sem > 0
    spread = (sem**2 + floor**2).where(known)
    t = gap / spread**0.5
    dof = (count - 1).where(known)
    z = xr.apply_ufunc(gaussian_equivalent, t, dof)
    return {
        "theory": exact,
        "mean": mean,
        "sem": sem,
        "runs": count,
        "difference": gap,
        "relative": gap / abs(exact.where(exact != 0)),
        "floor": floor,
        "t": t,
        "dof": dof,
        "z": xr.where((gap == 0) & (sem == 0), 0.0, z),
    }


def gaussian_equivalent(t: ArrayLike, dof: ArrayLike) -> np.ndarray:
    """The z that a Gaussian exceeds as often as Student's t exceeds ``t``.

    >>> gaussian_equivalent([51.0, 51.0], [1, 7]).round(1)
    array([2.5, 6.3])
    """
    t, dof = np.broadcast_arrays(np.asarray(t, float), np.asarray(dof, float))
    size = abs(t)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        z = -ndtri(stdtr(dof, -size))
        # Beyond what a double holds of the probability: Wallace's approximation, good to a percent there.
        far = (8 * dof + 1) / (8 * dof + 3) * np.sqrt(dof * np.log1p(size**2 / dof))
    return np.copysign(np.where(np.isfinite(z) | np.isnan(t), z, far), t)


def common_z(z: np.ndarray) -> float:
    """One z for all of (points, entries): whether together they lie above or below; NaN where there is none.

    Points are independent, entries of a point need not be: their mean counts as one, which is on the safe side.
    """
    counted = np.isfinite(z)
    points = counted.any(1)
    if not points.any():
        return np.nan
    means = np.where(counted, z, 0.0).sum(1)[points] / counted.sum(1)[points]
    return float(means.sum() / np.sqrt(len(means)))


def chance_bound(entries: int) -> float:
    """The |z| above which one of this many entries differs, by chance alone in one comparison of a hundred.

    >>> round(chance_bound(1), 2), round(chance_bound(20), 2)
    (2.58, 3.48)
    """
    return float(-ndtri(CHANCE / (2 * max(entries, 1))))
