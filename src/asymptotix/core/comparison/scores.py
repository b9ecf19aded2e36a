"""Scores of an observable: the difference of the runs from theory, and the significance t and z of this difference.

The standard error of few runs is itself uncertain, so (mean - theory)/error follows Student's t and not a Gaussian:
with two runs it exceeds 12 in one case of twenty. The numerical error of the theory and the rounding of the arithmetic
are added in quadrature to the error of the runs, as a floor. The degrees of freedom are those of the runs alone. The
formula of Welch and Satterthwaite would increase them, because the floor is known better than the scatter of the runs;
but where the floor is a fifth of their standard deviation, it calls one pair of runs in thirteen significant at a level
of one in a hundred.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtr

#: Relative rounding of single precision, in which most experiments run. Smaller: rounding counts as a difference.
ROUNDING = 2.0**-23
#: Probability that a whole comparison has a significant entry by chance alone. Larger: more false alarms. Smaller: real
#: differences are missed.
CHANCE = 0.01
#: Ending of a variable ``<observable>_<ending>`` of a comparison -> (template of its long name, whether it has the
#: units of the observable).
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
    """Return the arrays of a comparison, one for each name in :data:`PARTS`.

    ``exact`` is the theory, ``error`` its numerical error, ``runs`` the numbers of the runs along the dimension
    ``seed``. t, dof and z are NaN where the error of the runs is not known: for one run, or where all runs gave the
    same number, as counts may. In the second case z is zero if that number equals the theory's.
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
    """Return the z that a standard Gaussian exceeds with the same probability as Student's t exceeds ``t``.

    ``dof`` is its number of degrees of freedom.

    >>> gaussian_equivalent([51.0, 51.0], [1, 7]).round(1)
    array([2.5, 6.3])
    """
    t, dof = np.broadcast_arrays(np.asarray(t, float), np.asarray(dof, float))
    size = abs(t)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        z = -ndtri(stdtr(dof, -size))
        # Where the probability underflows: Wallace's approximation, accurate to one percent there.
        far = (8 * dof + 1) / (8 * dof + 3) * np.sqrt(dof * np.log1p(size**2 / dof))
    return np.copysign(np.where(np.isfinite(z) | np.isnan(t), z, far), t)


def common_z(z: np.ndarray) -> float:
    """Return one z for an array of them (points, entries): positive if together they lie above theory; NaN if all are.

    Points are independent, but entries of a point need not be. The mean over the entries of a point is therefore
    treated as a single z, which is conservative.
    """
    counted = np.isfinite(z)
    points = counted.any(1)
    if not points.any():
        return np.nan
    means = np.where(counted, z, 0.0).sum(1)[points] / counted.sum(1)[points]
    return float(means.sum() / np.sqrt(len(means)))


def chance_bound(entries: int) -> float:
    """Return the bound that the largest of this many absolute z exceeds by chance in 1 % of comparisons.

    >>> round(chance_bound(1), 2), round(chance_bound(20), 2)
    (2.58, 3.48)
    """
    return float(-ndtri(CHANCE / (2 * max(entries, 1))))
