"""Laws of the eigenvalues of the target matrix S_0."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.specification import Specification
from ...numerics import checks

if TYPE_CHECKING:
    from .convolution import Convolution

NEGLIGIBLE = 1e-12
"""Eigenvalues below this fraction of the largest are the rounding errors of a zero."""


class Target(Specification, abc.ABC):
    """Law mu_0 of the eigenvalues of the positive semi-definite target S_0, an atom at zero included."""

    @property
    @abc.abstractmethod
    def mean(self) -> float:
        """Integral of x mu_0(dx)."""

    @property
    @abc.abstractmethod
    def mean_square(self) -> float:
        """Q_0 = int x^2 mu_0(dx)."""

    @property
    @abc.abstractmethod
    def zero_mass(self) -> float:
        """Weight of the atom at zero."""

    @property
    def atom_weights(self) -> np.ndarray:
        """Weights of all atoms."""
        return np.array([self.zero_mass] if self.zero_mass > 0 else [])

    @property
    @abc.abstractmethod
    def smallest(self) -> float:
        """Left end of the support; 0 where there is an atom at zero."""

    @property
    @abc.abstractmethod
    def largest(self) -> float:
        """Right end of the support."""

    @abc.abstractmethod
    def convolution(self, delta: float) -> Convolution:
        """mu_delta, the free convolution of mu_0 with a semicircle of radius 2 delta."""

    @abc.abstractmethod
    def _positive_quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Quantiles of the law conditioned on x > 0."""

    def eigenvalues(self, dim: int) -> np.ndarray:
        """Deterministic spectrum of a matrix of size ``dim``, ascending.

        round(zero_mass dim) entries are zero; the other r are the quantiles (i + 1/2)/r of the positive part, rescaled
        by a common factor so that the mean square is exactly Q_0 at every size. The factor is 1 + O(1/dim) for a
        bounded density; it is larger where a heavy tail carries Q_0 (1.05 for PowerLaw(3.5) at dim = 400).
        """
        dim = checks.integer("dim", dim, 1)
        zeros = round(self.zero_mass * dim)
        rank = dim - zeros
        if rank == 0:
            least = int(0.5 / (1 - self.zero_mass)) + 1
            share = 1 - self.zero_mass
            raise ValueError(f"dim must be at least {least} where a share {share:g} is positive, got {dim}")
        positive = self._positive_quantiles((np.arange(rank) + 0.5) / rank)
        positive *= np.sqrt(self.mean_square * dim / np.sum(positive**2))
        return np.concatenate([np.zeros(zeros), positive])


@dataclass(frozen=True)
class MarchenkoPastur(Target):
    """Spectrum of S_0 = W_0 W_0^T / sqrt(m_0 d), W_0 a d x m_0 matrix of independent entries of unit variance.

    With s = sqrt(kappa0), an atom 1 - kappa0 at zero if kappa0 < 1 and the density

        s sqrt((x - a)(b - x)) / (2 pi x)   on [a, b],    a, b = (1 -/+ s)^2 / s.

    Parameters
    ----------
    kappa0 : float
        Rank ratio m_0 / d > 0, above one too. The mean is sqrt(kappa0), the mean square 1 + kappa0.
    """

    kappa0: float = 0.5

    def __post_init__(self) -> None:
        kappa0 = float(checks.positive("kappa0", self.kappa0))
        if not np.isfinite(kappa0):
            raise ValueError(f"kappa0 must be finite, got {kappa0}")
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

    def convolution(self, delta: float) -> Convolution:
        from .cubic import CubicConvolution

        return CubicConvolution(self.kappa0, delta)

    def _positive_quantiles(self, levels: np.ndarray) -> np.ndarray:
        low, high = self.bulk
        mid, half = 0.5 * (low + high), 0.5 * (high - low)
        above = min(self.kappa0, 1.0) * (1 - levels)
        left, right = np.zeros_like(levels), np.full_like(levels, np.pi)  # theta, x = mid - half cos(theta)
        for _ in range(60):
            theta = 0.5 * (left + right)
            too_low = self._mass_above(mid - half * np.cos(theta)) > above
            left, right = np.where(too_low, theta, left), np.where(too_low, right, theta)
        return mid - half * np.cos(0.5 * (left + right))

    def _mass_above(self, x: np.ndarray) -> np.ndarray:
        """(1/pi) Im int g dx with x(g) = 1/g + kappa0/(s - g), the inverse of the Stieltjes transform g."""
        s, linear = np.sqrt(self.kappa0), 1 - self.kappa0 + x * np.sqrt(self.kappa0)
        g = (linear - 1j * np.sqrt(np.maximum(4 * x * s - linear**2, 0))) / (2 * x)
        return np.imag(g * x - np.log(g) + self.kappa0 * np.log(s - g)) / np.pi


class _Discrete(Target):
    """A law of finitely many eigenvalues: what Atoms and Empirical have in common."""

    @cached_property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """Distinct values, ascending, and their weights."""
        values, weights = self._values_and_weights()
        values = np.where(values <= NEGLIGIBLE * values.max(), 0.0, values)
        distinct, index = np.unique(values, return_inverse=True)
        return distinct, np.bincount(index, weights / weights.sum())

    @abc.abstractmethod
    def _values_and_weights(self) -> tuple[np.ndarray, np.ndarray]: ...

    @property
    def mean(self) -> float:
        values, weights = self.points
        return float(weights @ values)

    @property
    def mean_square(self) -> float:
        values, weights = self.points
        return float(weights @ values**2)

    @property
    def zero_mass(self) -> float:
        values, weights = self.points
        return float(weights[0]) if values[0] == 0 else 0.0

    @property
    def atom_weights(self) -> np.ndarray:
        return self.points[1]

    @property
    def smallest(self) -> float:
        return float(self.points[0][0])

    @property
    def largest(self) -> float:
        return float(self.points[0][-1])

    def convolution(self, delta: float) -> Convolution:
        from .biane import BianeConvolution
        from .measures import Atomic

        return BianeConvolution([Atomic(*self.points)], delta)

    def _positive_quantiles(self, levels: np.ndarray) -> np.ndarray:
        values, weights = self.points
        values, weights = values[values > 0], weights[values > 0]
        steps = np.cumsum(weights) / weights.sum()
        return values[np.searchsorted(steps[:-1], levels)]


@dataclass(frozen=True)
class Atoms(_Discrete):
    """A target with few distinct eigenvalues.

    Parameters
    ----------
    values : tuple of float
        Eigenvalues, non-negative and not all zero.
    weights : tuple of float, optional
        Fraction of the eigenvalues at each value, positive and summing to one; by default equal.
    """

    values: tuple[float, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        values = _spectrum("values", self.values)
        object.__setattr__(self, "values", values)
        if self.weights is None:
            return
        weights = checks.array_of_shape("weights", self.weights, (len(values),))
        if not (weights > 0).all():
            raise ValueError(f"weights must be positive, got {self.weights!r}")
        if abs(weights.sum() - 1) > 1e-9:
            raise ValueError(f"weights must sum to one, got {self.weights!r} with sum {weights.sum():.12g}")
        object.__setattr__(self, "weights", tuple(weights.tolist()))

    def _values_and_weights(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.values), np.ones(len(self.values)) if self.weights is None else np.array(self.weights)


@dataclass(frozen=True)
class Empirical(_Discrete):
    """The spectrum of a given matrix, each eigenvalue an atom of weight 1/d.

    Eigenvalues below 1e-12 of the largest, negative ones too, count as zero.

    Parameters
    ----------
    spectrum : tuple of float or array
        Eigenvalues of a positive semi-definite matrix, not all zero; kept as a tuple.
    """

    spectrum: tuple[float, ...] | np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "spectrum", _spectrum("spectrum", self.spectrum, rounding=NEGLIGIBLE))

    def _values_and_weights(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.spectrum), np.ones(len(self.spectrum))


@dataclass(frozen=True)
class PowerLaw(Target):
    """Eigenvalues with a power-law density, kappa0 of them positive,

        mu_0 = (1 - kappa0) delta_0 + kappa0 C x^{-exponent} dx    on [l, cutoff l],

    where l follows from ``mean_square``. In terms of ranks, the eigenvalue at quantile 1 - u falls off as
    u^{-1/(exponent - 1)}. The cutoff makes every exponent admissible, also those below 3 whose mean square would
    otherwise be infinite, and it is there in every finite matrix.

    A learned spectrum inherits the tail. Beyond the semicircle, s >> 2 scale delta, the local exponent
    -d log density / d log s of the learned eigenvalues s = scale (x - eps) is

        s/(s + scale eps) (exponent + 2 (exponent + 1) delta^2/x^2 + ...).

    For exponent 3, delta = 0.5 and eps = 0.2 it is 3.08, 2.96, 2.98 at a tenth, three tenths and six tenths of the
    largest eigenvalue; below about 2 delta nothing of the power law is left. The singular values of W have the exponent
    2 exponent - 1.

    Parameters
    ----------
    exponent : float
        Of the density, at least 0; fits to trained networks are mostly between 2 and 4.
    cutoff : float
        Largest eigenvalue divided by the smallest positive one, above 1.
    kappa0 : float
        Fraction of positive eigenvalues, in (0, 1].
    mean_square : float
        Q_0.
    """

    exponent: float
    cutoff: float = 100.0
    kappa0: float = 1.0
    mean_square: float = 1.0  # pyright: ignore[reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        def clean(name: str, value: Any) -> None:
            object.__setattr__(self, name, float(value))

        clean("exponent", checks.non_negative("exponent", self.exponent))
        clean("cutoff", checks.positive("cutoff", self.cutoff))
        clean("kappa0", checks.positive("kappa0", self.kappa0))
        clean("mean_square", checks.positive("mean_square", self.mean_square))
        if not 1 < self.cutoff < np.inf:
            raise ValueError(f"cutoff must be finite and above 1, got {self.cutoff}")
        if not self.kappa0 <= 1:
            raise ValueError(f"kappa0 must be in (0, 1], got {self.kappa0}")
        if not np.isfinite([self.exponent, self.mean_square]).all():
            raise ValueError(f"exponent and mean_square must be finite, got {self.exponent} and {self.mean_square}")

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

    def density(self, x: Any) -> np.ndarray:
        """Density of the continuous part, of mass kappa0."""
        y = np.asarray(x, dtype=float) / self.lower_edge
        inside = (y >= 1) & (y <= self.cutoff)
        scale = self.kappa0 / (self.lower_edge * self._integral(1 - self.exponent))
        return np.where(inside, scale * np.where(inside, y, 1.0) ** -self.exponent, 0.0)

    def convolution(self, delta: float) -> Convolution:
        from .biane import BianeConvolution
        from .measures import Atomic, Measure, PiecewiseDensity

        parts: list[Measure] = [PiecewiseDensity(self.density, self._breaks())]
        if self.zero_mass > 0:
            parts.append(Atomic(np.zeros(1), np.array([self.zero_mass])))
        return BianeConvolution(parts, delta)

    def _breaks(self) -> np.ndarray:
        """Ends of intervals no longer than a factor of two, on which the density is a polynomial to rounding error."""
        pieces = int(np.ceil(np.log2(self.cutoff)))
        return self.lower_edge * self.cutoff ** (np.arange(pieces + 1) / pieces)

    def _integral(self, power: float) -> float:
        """int_1^cutoff y^(power - 1) dy."""
        log = np.log(self.cutoff)
        return float(log if power == 0 else np.expm1(power * log) / power)

    def _positive_quantiles(self, levels: np.ndarray) -> np.ndarray:
        power, log = 1 - self.exponent, np.log(self.cutoff)
        if power == 0:
            return self.lower_edge * np.exp(levels * log)
        return self.lower_edge * np.exp(np.log1p(levels * np.expm1(power * log)) / power)


def _spectrum(name: str, given: Any, *, rounding: float = 0.0) -> tuple[float, ...]:
    values = checks.finite_grid(name, given)
    if values.max() <= 0:
        raise ValueError(f"{name} must contain a positive eigenvalue, got a largest one of {values.max():g}")
    if values.min() < -rounding * values.max():
        raise ValueError(f"{name} must be non-negative, as the eigenvalues of W_0 W_0^T are, got {values.min():g}")
    return tuple(np.maximum(values, 0.0).tolist())
