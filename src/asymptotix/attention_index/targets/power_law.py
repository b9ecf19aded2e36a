"""A target whose eigenvalues have a power-law density, as the spectra of trained networks do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ...numerics import checks
from ..spectra.measures import Measure, PiecewiseDensity, zeros
from .target import Target


@dataclass(frozen=True)
class PowerLaw(Target):
    """A target with a power-law density of eigenvalues.

    A share kappa0 of the eigenvalues is positive:

        mu_0 = (1 - kappa0) delta_0 + kappa0 C x^{-exponent} dx    on [l, cutoff l],

    where ``mean_square`` fixes l, and C normalises the density. In terms of ranks, the eigenvalue at quantile 1 - u
    falls off as u^{-1/(exponent - 1)}. Every finite matrix has a cutoff. The cutoff makes every exponent admissible;
    without it, the mean square would be infinite for exponents up to 3.

    A learned spectrum inherits the tail. Beyond the semicircle, s >> 2 scale delta, the local exponent
    -d log density / d log s of the learned eigenvalues s = scale (x - eps) is

        s/(s + scale eps) (exponent + 2 (exponent + 1) delta^2/x^2 + ...).

    For exponent 3, delta = 0.5 and eps = 0.2 the local exponent is 3.08, 2.96, 2.98 at 0.1, 0.3 and 0.6 times the
    largest eigenvalue; below about 2 delta the power law is lost in the noise. The singular values of W have the
    exponent 2 exponent - 1.

    Parameters
    ----------
    exponent : float
        Exponent of the density, at least 0; fits to trained networks are mostly between 2 and 4.
    cutoff : float
        Largest eigenvalue divided by the smallest positive one, above 1.
    kappa0 : float
        Fraction of positive eigenvalues, in (0, 1].
    mean_square : float
        Q_0, the mean square of all eigenvalues.

    Examples
    --------
    >>> import asymptotix as asx
    >>> target = asx.PowerLaw(exponent=3.0, cutoff=100.0)
    >>> round(target.largest / target.smallest), round(target.mean_square, 6)
    (100, 1.0)
    """

    exponent: float
    cutoff: float = 100.0
    kappa0: float = 1.0
    mean_square: float = 1.0  # pyright: ignore[reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        def clean(name: str, value: float) -> None:
            object.__setattr__(self, name, float(value))

        clean("exponent", checks.non_negative("exponent", self.exponent))
        clean("cutoff", checks.positive("cutoff", self.cutoff))
        clean("kappa0", checks.positive("kappa0", self.kappa0))
        clean("mean_square", checks.positive("mean_square", self.mean_square))
        if not 1 < self.cutoff <= 1e12:
            raise ValueError(f"cutoff must be above 1 and at most 1e12, got {self.cutoff}")
        if not self.kappa0 <= 1:
            raise ValueError(f"kappa0 must be in (0, 1], got {self.kappa0}")
        if not self.exponent <= 20:
            raise ValueError(f"exponent must be at most 20, beyond which one eigenvalue is left, got {self.exponent}")
        if not 1e-24 <= self.mean_square <= 1e12:
            raise ValueError(f"mean_square must be between 1e-24 and 1e12, got {self.mean_square}")

    @property
    def lower_edge(self) -> float:
        """l, the smallest positive eigenvalue."""
        second = self._integral(3 - self.exponent) / self._integral(1 - self.exponent)
        return float(np.sqrt(self.mean_square / (self.kappa0 * second)))

    @property
    def mean(self) -> float:
        first = self._integral(2 - self.exponent) / self._integral(1 - self.exponent)
        return float(self.kappa0 * self.lower_edge * first)

    @property
    def zero_mass(self) -> float:
        return 1.0 - self.kappa0

    @property
    def smallest(self) -> float:
        return 0.0 if self.kappa0 < 1 else self.lower_edge

    @property
    def largest(self) -> float:
        return self.cutoff * self.lower_edge

    def density(self, x: ArrayLike) -> np.ndarray:
        """Return the density of the positive eigenvalues at x, of mass kappa0."""
        y = np.asarray(x, dtype=float) / self.lower_edge
        inside = (y >= 1) & (y <= self.cutoff)
        scale = self.kappa0 / (self.lower_edge * self._integral(1 - self.exponent))
        return np.where(inside, scale * np.where(inside, y, 1.0) ** -self.exponent, 0.0)

    def parts(self) -> list[Measure]:
        return [PiecewiseDensity(self.density, self._breaks()), *zeros(self.zero_mass)]

    def _breaks(self) -> np.ndarray:
        """Return the ends of intervals [a, b] with b <= 2 a; on each a polynomial fits the density to rounding."""
        pieces = int(np.ceil(np.log2(self.cutoff)))
        return self.lower_edge * self.cutoff ** (np.arange(pieces + 1) / pieces)

    def _integral(self, power: float) -> float:
        """Return int_1^cutoff y^(power - 1) dy."""
        log = np.log(self.cutoff)
        return float(log if power == 0 else np.expm1(power * log) / power)

    def _positive_quantiles(self, levels: np.ndarray) -> np.ndarray:
        power, log = 1 - self.exponent, np.log(self.cutoff)
        if power == 0:
            return self.lower_edge * np.exp(levels * log)
        return self.lower_edge * np.exp(np.log1p(levels * np.expm1(power * log)) / power)
