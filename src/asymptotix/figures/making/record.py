"""Findings of a figure: agreement between experiment and theory, and verdicts on published claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import gammaincc

if TYPE_CHECKING:
    from ...core.compare import Comparison

#: If a chi^2 as large as a curve's has a probability below this, its distances count as larger than the errors. A
#: larger limit would flag some of the about fifty curves by chance.
UNLIKELY = 1e-3


@dataclass(frozen=True)
class Agreement:
    """How far an experiment is from theory along one curve.

    Attributes
    ----------
    curve : str
        Name of the curve.
    points : int
        Number of points that have an error.
    chi2 : float
        Sum over these points of squared distances, in units of the error (of the experiment's mean and of theory).
    largest : float
        Largest distance, in units of the error.
    distances : mapping of int to (float, float)
        Size of the system -> mean over the curve of (experiment - theory) divided by the mean of theory, and the error
        of this mean.
    """

    curve: str
    points: int
    chi2: float
    largest: float
    distances: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether the errors explain the distances: chi2 is not too unlikely, and there are points."""
        return bool(self.points) and float(gammaincc(0.5 * self.points, 0.5 * self.chi2)) > UNLIKELY

    @property
    def words(self) -> str:
        if not self.points:
            return "no point has an error"
        if self.holds:
            return "within errors"
        sizes = sorted(self.distances)
        if len(sizes) < 2:
            return "beyond errors; one size only, so that its trend is not known"
        (first, first_error), (last, last_error) = (self.distances[size] for size in (sizes[0], sizes[-1]))
        if abs(last) + 2 * math.hypot(first_error, last_error) < abs(first):
            return "beyond errors, and closer the larger the system"
        return "beyond errors, without a clear trend in the size"


def agreement(curve: str, comparison: Comparison, name: str, **entry: int) -> Agreement:
    """Measure how far the observable ``name`` is from theory along a curve, whose name is ``curve``.

    ``entry`` selects an entry, e.g. ``index=0, index_other=0``. Means over seeds are compared; chi2 is that of the
    largest size. Points where theory is exact and all runs are equal have no error and do not count.
    """
    ds = comparison.ds
    *columns, z = (ds[f"{name}_{part}"].isel(entry) for part in ("theory", "mean", "sem", "z"))
    at_largest = z.isel(dim=-1, missing_dims="ignore").values
    z = at_largest[np.isfinite(at_largest)]
    distances = {}
    for k, size in enumerate(np.atleast_1d(ds["dim"].values) if "dim" in ds.coords else []):
        theory, mean, sem = (column.isel(dim=k, missing_dims="ignore").values for column in columns)
        scale = max(float(np.nanmean(abs(theory))), 1e-300)
        distance = float(np.nanmean(mean - theory)) / scale
        error = float(np.sqrt(np.nansum(sem**2))) / np.sum(np.isfinite(mean)) / scale
        distances[int(size)] = (distance, error)
    largest = float(abs(z).max()) if len(z) else math.nan
    return Agreement(curve, len(z), float((z**2).sum()), largest, distances)


@dataclass(frozen=True)
class Claim:
    """A published claim, and our finding.

    Attributes
    ----------
    what : str
    published : str
        As printed; if it was read off a figure, ``source`` says so.
    source : str
        Its place: a section, a caption, the released data.
    found : str
        Our finding, in words and numbers.
    holds : bool or None
        None if the numbers at this size do not decide.
    script : str
        For a claim that does not hold: a script in ``examples/`` that shows it.
    """

    what: str
    published: str
    source: str
    found: str
    holds: bool | None
    script: str = ""

    def __post_init__(self) -> None:
        if self.holds is not None:  # numpy's True is not Python's
            object.__setattr__(self, "holds", bool(self.holds))


@dataclass(frozen=True)
class Findings:
    """All findings of a figure.

    Attributes
    ----------
    agreements, claims : sequences
    remarks : sequence of str
        Complete sentences with what else a reader must know.
    """

    agreements: Sequence[Agreement] = ()
    claims: Sequence[Claim] = ()
    remarks: Sequence[str] = ()

    @property
    def verdict(self) -> str:
        """The verdict in a few words: how many of the published claims are confirmed."""
        if not self.claims:
            return "new: nothing was published"
        confirmed, wrong, undecided = (sum(c.holds is kind for c in self.claims) for kind in (True, False, None))
        words = f"{confirmed} of {len(self.claims)} published claims confirmed"
        words += f", {wrong} not confirmed" if wrong else ""
        return words + (f", {undecided} not decided" if undecided else "")

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "agreements": [
                {"curve": a.curve, "points": a.points, "chi2": a.chi2, "largest": a.largest, "words": a.words}
                for a in self.agreements
            ],
            "claims": [asdict(claim) for claim in self.claims],
            "remarks": list(self.remarks),
        }
