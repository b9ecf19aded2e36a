"""A target whose eigenvalues fall off as a power of their rank: the target of scaling laws.

Equation sc-target of docs/theory/scaling.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...numerics import checks
from .discrete_targets import MOST_EIGENVALUES, _Discrete

MOST_EXACT = 1000
"""Number of ranks up to which every eigenvalue is an atom of its own."""

LEADING = 300
"""Number of leading ranks that stay single atoms if there are more than MOST_EXACT."""

GROWTH = 1 + 1 / 40
"""Ratio of the ranks at the two ends of a bin. With this ratio errors and spectra are right to about 1e-5."""

LARGEST_DIM = 10**9

MOST_SPIKES = 16
"""Number of leading directions whose outliers are computed."""


@dataclass(frozen=True)
class RankedPowerLaw(_Discrete):
    """Eigenvalues s_k = C sqrt(dim) k^{-gamma} of ranks k = 1 ... rank at a given dimension, and zeros beyond.

    ``mean_square`` fixes C. For gamma > 1/2 a few eigenvalues of order sqrt(dim) carry all of the mean square, and the
    limit at fixed alpha = n/dim^2 is trivial. At a fixed dimension the law describes all n >> dim, up to any power of
    dim: the first direction is learned at n of order dim, the last at n of order dim^(1 + 2 gamma), and errors fall as
    powers of n in between. For gamma < 1/2 the law has a limit, n = alpha dim^2, and there is no power law in n.

    Parameters
    ----------
    gamma : float
        Exponent, positive. ``PowerLaw(1 + 1/gamma)`` is the continuous law with the same tail.
    dim : int
        Dimension d, from 2 to 10^9. An experiment on this target has this dimension.
    rank : int, optional
        Number of positive eigenvalues, at most ``dim``; by default ``dim``.
    mean_square : float
        Q_0, the mean square of all ``dim`` eigenvalues.

    Notes
    -----
    Above 1000 ranks the first 300 are exact and the others are binned: the ranks at the ends of a bin have the ratio
    1 + 1/40, and a bin keeps the number and the mean square of its eigenvalues. Errors are right to about 1e-5.

    Examples
    --------
    >>> import asymptotix as asx
    >>> target = asx.RankedPowerLaw(gamma=1.0, dim=10**6)
    >>> target.ranks(3).round(2)
    array([779.7 , 389.85, 259.9 ])
    >>> round(target.mean_square, 12)
    1.0
    """

    gamma: float
    dim: int
    rank: int | None = None
    mean_square: float = 1.0  # pyright: ignore[reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        def clean(name: str, value: float) -> None:
            object.__setattr__(self, name, value)

        clean("gamma", float(checks.positive("gamma", self.gamma)))
        clean("dim", checks.integer("dim", self.dim, 2))
        clean("mean_square", float(checks.positive("mean_square", self.mean_square)))
        if self.rank is not None:
            clean("rank", checks.integer("rank", self.rank, 1))
        if not self.gamma <= 10:
            raise ValueError(f"gamma must be at most 10, beyond which one eigenvalue is left, got {self.gamma}")
        if self.dim > LARGEST_DIM:
            raise ValueError(f"dim must be at most {LARGEST_DIM:,}, got {self.dim:,}")
        if self.rank is not None and self.rank > self.dim:
            raise ValueError(f"rank must be at most dim = {self.dim}, got {self.rank}")
        if not 1e-24 <= self.mean_square <= 1e12:
            raise ValueError(f"mean_square must be between 1e-24 and 1e12, got {self.mean_square}")

    @property
    def positive_ranks(self) -> int:
        """Number of positive eigenvalues."""
        return self.dim if self.rank is None else self.rank

    @property
    def amplitude(self) -> float:
        """C, the first eigenvalue over sqrt(dim)."""
        return float(np.sqrt(self.mean_square / self._bins[1].sum()))

    @property
    def no_power_law(self) -> str:
        """Text on why errors are no power of the number of samples; empty if they are one (gamma > 1/2)."""
        if self.gamma > 0.5:
            return ""
        return (
            f"no power law in n at gamma = {self.gamma:g}: up to 1/2 the spectrum has a limit, u^-gamma over u = k/d, "
            "samples are alpha d^2, and slopes go on changing with alpha"
        )

    @property
    def spikes(self) -> np.ndarray:
        """The 16 largest eigenvalues (or all, if fewer), descending; their directions are learned first, one by one."""
        return self.ranks(min(MOST_SPIKES, self.rank or self.dim))

    @property
    def spike_weight(self) -> float:
        return 1 / self.dim

    def ranks(self, count: int) -> np.ndarray:
        """Return the ``count`` largest eigenvalues, exact, descending."""
        count = checks.integer("count", count, 1)
        if count > min(self.positive_ranks, MOST_EIGENVALUES):
            most = min(self.positive_ranks, MOST_EIGENVALUES)
            raise ValueError(f"count must be at most {most:,}, got {count:,}")
        return self.amplitude * np.sqrt(self.dim) * np.arange(1.0, count + 1) ** -self.gamma

    def eigenvalues(self, dim: int) -> np.ndarray:
        """Return all ``dim`` exact eigenvalues, ascending, zeros included; ``dim`` must be the target's dimension."""
        if checks.integer("dim", dim, 1) != self.dim:
            raise ValueError(
                f"dim must be that of the target, {self.dim}, whose eigenvalues are of order sqrt(dim); got {dim}"
            )
        if dim > MOST_EIGENVALUES:
            raise ValueError(f"dim must be at most {MOST_EIGENVALUES:,} for a list of all eigenvalues, got {dim:,}")
        positive = self.ranks(self.positive_ranks)[::-1]
        return np.concatenate([np.zeros(dim - len(positive)), positive])

    @cached_property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        # not rounded to zero: the last of 10^9 eigenvalues is a tiny share of the first, but counts
        return self._values_and_weights()

    def _values_and_weights(self) -> tuple[np.ndarray, np.ndarray]:
        counts, squares = self._bins
        values = self.amplitude * np.sqrt(self.dim * squares / counts)[::-1]
        weights = counts[::-1] / self.dim
        zeros = self.dim - self.positive_ranks
        return (values, weights) if zeros == 0 else (np.append(0.0, values), np.append(zeros / self.dim, weights))

    @cached_property
    def _bins(self) -> tuple[np.ndarray, np.ndarray]:
        """Number of ranks in every bin, and the sum of k^{-2 gamma} over these ranks k; each (bins,)."""
        ends = _bin_ends(self.positive_ranks)
        low, high = ends[:-1].astype(float), ends[1:].astype(float)
        counts, power = high - low, 2 * self.gamma
        # Euler-Maclaurin formula at half integers: beyond rank 300 the next term is below 1e-13
        left, right = low - 0.5, high - 0.5
        integral = np.log(right / left) if power == 1 else (left ** (1 - power) - right ** (1 - power)) / (power - 1)
        sums = integral + power / 24 * (right ** (-1 - power) - left ** (-1 - power))
        return counts, np.where(counts == 1, low**-power, sums)


def _bin_ends(last: int) -> np.ndarray:
    """Return the first rank of every bin of the ranks 1 to ``last``, and finally the rank last + 1."""
    if last <= MOST_EXACT:
        return np.arange(1, last + 2)
    ends = list(range(1, LEADING + 2))
    while ends[-1] <= last:
        ends.append(min(int(ends[-1] * GROWTH), last + 1))
    return np.array(ends)
