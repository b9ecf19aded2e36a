"""The target of Gaussian weights, S_0 = W_0 W_0^T / sqrt(m_0 d).

Boncoraglio et al., arXiv:2509.24914, Section 4, use it in all figures; their mu_MP is the law of W_0 W_0^T / d.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...numerics import checks
from ...numerics.iteration import increasing_root
from ..spectra.convolution import Convolution
from ..spectra.cubic import CubicConvolution
from ..spectra.marchenko_pastur_density import MarchenkoPasturDensity
from ..spectra.measures import Measure, zeros
from .target import Target


@dataclass(frozen=True)
class MarchenkoPastur(Target):
    """Spectrum of S_0 = W_0 W_0^T / sqrt(m_0 d), W_0 a d x m_0 matrix of independent entries of unit variance.

    With s = sqrt(kappa0), the law has an atom 1 - kappa0 at zero if kappa0 < 1, and the density

        s sqrt((x - a)(b - x)) / (2 pi x)   on [a, b],    a, b = (1 -/+ s)^2 / s.

    Parameters
    ----------
    kappa0 : float
        Rank ratio m_0 / d > 0; it may exceed one. The mean is sqrt(kappa0), the mean square 1 + kappa0.

    Examples
    --------
    >>> import asymptotix as asx
    >>> target = asx.MarchenkoPastur(0.25)          # rank d/4
    >>> target.zero_mass, target.mean, target.mean_square
    (0.75, 0.5, 1.25)
    """

    kappa0: float = 0.5

    def __post_init__(self) -> None:
        kappa0 = float(checks.positive("kappa0", self.kappa0))
        if not 1e-12 <= kappa0 <= 1e12:
            raise ValueError(f"kappa0 must be between 1e-12 and 1e12, where the law can be told, got {kappa0}")
        object.__setattr__(self, "kappa0", kappa0)

    @property
    def mean(self) -> float:
        return float(np.sqrt(self.kappa0))

    @property
    def mean_square(self) -> float:
        return 1.0 + self.kappa0

    @property
    def zero_mass(self) -> float:
        return max(0.0, 1.0 - self.kappa0)

    @property
    def bulk(self) -> tuple[float, float]:
        """Edges a < b of the continuous part."""
        s = np.sqrt(self.kappa0)
        return float((1 - s) ** 2 / s), float((1 + s) ** 2 / s)

    @property
    def smallest(self) -> float:
        return 0.0 if self.kappa0 < 1 else self.bulk[0]

    @property
    def largest(self) -> float:
        return self.bulk[1]

    def parts(self) -> list[Measure]:
        return [MarchenkoPasturDensity(self.kappa0), *zeros(self.zero_mass)]

    def convolution(self, delta: float) -> Convolution:
        return CubicConvolution(self.kappa0, delta)

    def _positive_quantiles(self, levels: np.ndarray) -> np.ndarray:
        low, high = self.bulk
        mid, half = 0.5 * (low + high), 0.5 * (high - low)
        density, above = MarchenkoPasturDensity(self.kappa0), min(self.kappa0, 1.0) * (1 - levels)

        def lacking(theta: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            x = mid - half * np.cos(theta)
            slope = np.sqrt(self.kappa0) * (half * np.sin(theta)) ** 2 / (2 * np.pi * x)
            return above[active] - density.argument(x, np.zeros_like(x)) / np.pi, slope

        theta = increasing_root(lacking, np.zeros_like(levels), np.full_like(levels, np.pi))
        return mid - half * np.cos(theta)
