"""Intervals of alpha in which single eigenvalues of the target are visible in the learned matrix.

The noise in the field has the width delta(alpha), and some penalties cut the field at eps(alpha). A spike theta is
visible where both of

    -log(delta^2 F(theta)),        log(x/eps),        x = theta + delta^2 G(theta)

are positive, with G(z) = int mu_0(ds)/(z - s) and F = -G'. Neither need be monotone: as the weight decay
vanishes, delta has a peak where the data can just be interpolated, at which outliers may disappear and appear again.
The field is therefore followed on a grid of alpha, from a point where no spike is visible to a point where all are.
Every change in between is then enclosed.

Equation out-windows of docs/theory/outliers.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from ...core.problem import Outcome
from ...core.status import Status
from ...numerics import interrupts
from ..targets.target import Target

NAMES = ("outlier", "outlier_until", "outlier_again")
#: Bound of the two logarithms, which are infinite where delta is zero or infinite.
_LARGEST = 100.0
#: Step along a curve for finite-difference slopes.
_STEP = 1e-4
_ROUNDING = np.float64(1e-14)
_BETWEEN = "a change is known between two alphas only, the theory having no numbers in between"


class FieldAt(NamedTuple):
    """Noise delta and cut eps of the field at one alpha, with their errors; eps is 0 if there is no cut.

    If W has fewer columns than there are eigenvalues above eps, the larger cut that the columns set replaces eps.
    ``doubt`` is the reason why the numbers are unreliable, or empty.
    """

    alpha: float
    delta: float
    eps: float = 0.0
    delta_err: float = 0.0
    eps_err: float = 0.0
    doubt: str = ""


class FieldCurve(NamedTuple):
    """The field along an interval of alpha, as a function of a coordinate t such as log alpha.

    Attributes
    ----------
    at : callable
        Function that returns the field at t; None where the theory has no numbers.
    grid : sequence of float
        Points t in the order of ascending alpha.
    relative_error : float
        Relative error of alpha to which changes are enclosed.
    """

    at: Callable[[float], FieldAt | None]
    grid: Sequence[float]
    relative_error: float


class Change(NamedTuple):
    """An alpha at which a spike appears or disappears, and its error; ``doubt`` is why it may be wrong, or empty."""

    alpha: float
    error: float
    doubt: str = ""


class _NoNumbers(Exception):
    """Raised where a search reaches a point at which the theory has no numbers."""


class Visibility:
    """The margin by which each spike of a target is visible, and the alphas at which the margin changes sign.

    Parameters
    ----------
    target : Target
    never : float
        Spikes up to this value are visible at no alpha: a narrow learner has no column for them.
    """

    def __init__(self, target: Target, never: float = 0.0) -> None:
        self.theta = np.asarray(target.spikes, dtype=float)
        self.G, self.F = target.off_support(self.theta)
        self.never = never

    def margin(self, at: FieldAt) -> np.ndarray:
        """Return the smaller of -log(delta^2 F) and log(x/eps) for every spike, (spikes,): positive if visible."""
        return self._margin_and_error(at)[0]

    def _margin_and_error(self, at: FieldAt) -> tuple[np.ndarray, np.ndarray]:
        delta = np.float64(at.delta)  # whose zero, at exact recovery, raises no ZeroDivisionError
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            apart, error = -np.log(delta**2 * self.F), np.full(len(self.F), 2 * at.delta_err / delta)
            if at.eps > 0:
                x = self.theta + at.delta**2 * self.G
                kept = np.where(x > 0, np.log(np.maximum(x, 0.0) / at.eps), -np.inf)
                kept_err = at.eps_err / at.eps + 2 * at.delta * np.abs(self.G / x) * at.delta_err
                apart, error = np.minimum(apart, kept), np.where(apart <= kept, error, kept_err)
        return np.clip(apart, -_LARGEST, _LARGEST), np.nan_to_num(error, nan=0.0, posinf=0.0)

    def of_all(self, at: FieldAt) -> bool:
        """Return whether all spikes above ``never`` are visible."""
        return bool((self.margin(at) > 0)[self.theta > self.never].all())

    def of_none(self, at: FieldAt) -> bool:
        """Return whether no spike is visible."""
        return bool((self.margin(at) < 0).all())

    def changes(self, curves: Sequence[FieldCurve]) -> list[list[Change]]:
        """Return for every spike its changes in the order of consecutive curves: it appears, disappears, ..."""
        return [[change for curve in curves for change in self._along(curve, k)] for k in range(len(self.theta))]

    def _along(self, curve: FieldCurve, k: int) -> list[Change]:
        known = [(t, self.margin(at)[k]) for t in curve.grid if (at := curve.at(t)) is not None]
        return [
            self._enclosed(curve, k, first, last)
            for (first, before), (last, after) in itertools.pairwise(known)
            if (before > 0) != (after > 0)
        ]

    def _enclosed(self, curve: FieldCurve, k: int, first: float, last: float) -> Change:
        def at(t: float) -> FieldAt:
            if (found := curve.at(t)) is None:
                raise _NoNumbers
            return found

        ends = at(first).alpha, at(last).alpha
        try:
            found = brentq(lambda t: self.margin(at(t))[k], first, last, xtol=curve.relative_error, rtol=_ROUNDING)
            t = float(found)  # type: ignore[arg-type]
            here, beside = at(t), at(t + _STEP * float(np.sign(0.5 * (first + last) - t) or 1.0))
        except _NoNumbers:
            return Change(float(np.sqrt(ends[0] * ends[1])), 0.5 * abs(ends[1] - ends[0]), _BETWEEN)
        margin, error = self._margin_and_error(here)
        slope = abs(self.margin(beside)[k] - margin[k]) / _STEP
        pace = abs(beside.alpha - here.alpha) / _STEP
        alpha_err = float(pace * (curve.relative_error + error[k] / max(slope, 1e-9)))
        return Change(here.alpha, alpha_err, here.doubt)


def remembered(at: Callable[[float], FieldAt | None]) -> Callable[[float], FieldAt | None]:
    """Return a function with the same values that is evaluated once per point and checks for interrupts."""

    def checked(t: float) -> FieldAt | None:
        interrupts.check()
        return at(t)

    return lru_cache(maxsize=None)(checked)


def followed(
    at: Callable[[float], FieldAt | None], steps: Iterable[float], arrived: Callable[[FieldAt], bool]
) -> list[float]:
    """Return the points of ``steps`` up to the first at which ``arrived`` is true of the field."""
    points: list[float] = []
    for t in steps:
        points.append(float(t))
        if (found := at(t)) is not None and arrived(found):
            break
    return points


def windows_outcome(spikes: list[list[Change]]) -> Outcome:
    """Return the alphas of the first three changes of every spike, with their errors; inf stands for no change.

    ``spikes`` lists the changes of each spike. The status mentions doubts and later changes.
    """
    never = Change(np.inf, 0.0)
    table = [[*changes, never, never, never][: len(NAMES)] for changes in spikes]
    values: dict[str, np.ndarray] = {}
    for j, name in enumerate(NAMES):
        values[name] = np.array([changes[j].alpha for changes in table])
        values[f"{name}_err"] = np.array([changes[j].error for changes in table])
    if doubts := [change.doubt for changes in table for change in changes if change.doubt]:
        return Outcome(values, Status.INACCURATE, words=f"inaccurate: {doubts[0]}")
    more = [k for k, changes in enumerate(spikes) if len(changes) > len(NAMES)]
    words = f"converged: outlier {more[0]} goes again at {spikes[more[0]][len(NAMES)].alpha:.4g}" if more else ""
    return Outcome(values, Status.CONVERGED, words=words)
