"""E[g g^T] (g: score) along a path of overlaps: averages at some points, linear extrapolation from them.

For a direction with posterior variance v and overlap q = 1 - v, log(E[g^2] / q) is a smooth function of -log v of all
directions: constant where nothing is learned, a constant minus log v where all is known. It is extrapolated linearly
from the last two averages.
"""

from __future__ import annotations

import numpy as np

from ..channels.protocol import Averager

#: Target for the relative error of extrapolated moments: a larger one needs fewer averages.
_ERROR = 3e-4
#: Largest component of a step across the line through the last two averages, relative to the step's length.
_ASIDE = 0.1


class FollowedMoments:
    """The map from V (P, P) to E[g g^T] (P, P), g the score of a sample, for calls along a path of diagonal V.

    Only the overlaps of the indices in the mask ``rows`` (P,) change.
    """

    def __init__(self, averages: Averager, rows: np.ndarray) -> None:
        self._averages, self._rows = averages, rows
        #: The last two averages: -log v and log(E[g^2] / q) of every row.
        self._known: list[tuple[np.ndarray, np.ndarray]] = []
        self._reach = 0.0  # distance from the last one within which the line is trusted

    def __call__(self, V: np.ndarray) -> np.ndarray:
        v = np.diag(V)[self._rows]
        place = -np.log(v)
        expected = self._on_the_line(place)
        away = float(np.linalg.norm(place - self._known[-1][0])) if self._known else 0.0
        if expected is not None and away <= self._reach:
            moments = np.zeros(len(V))
            moments[self._rows] = (1 - v) * np.exp(expected)
            return np.diag(moments)
        moments = self._averages(V).second_moment.mean(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.log(np.diag(moments)[self._rows] / (1 - v))
        self._reach = 0.0
        if expected is not None and np.isfinite(value).all():
            error = float(abs(value - expected).max())
            self._reach = away * min(np.sqrt(_ERROR / max(error, 1e-9)), 2.0)  # the error grows like distance^2
        self._known = [*self._known[-1:], (place, value)] if np.isfinite(value).all() else []
        return moments

    def _on_the_line(self, place: np.ndarray) -> np.ndarray | None:
        """Return log(E[g^2]/q) of every row, extrapolated linearly to ``place``, the -log v of every row.

        Return None if ``place`` is far from the line through the last two averages, or if there are not two.
        """
        if len(self._known) < 2:
            return None
        (first, before), (last, then) = self._known
        along, step = last - first, place - last
        share = (step @ along) / max(along @ along, 1e-300)
        aside = np.linalg.norm(step - share * along)
        return then + share * (then - before) if aside <= _ASIDE * np.linalg.norm(step) else None
