"""Targets with finitely many eigenvalues: a few atoms, or the spectrum of a given matrix."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ...numerics import checks
from ..spectra.measures import Atomic, Measure
from .target import Target

NEGLIGIBLE = 1e-12
"""Eigenvalues below this fraction of the largest are the rounding errors of a zero."""

MOST_EIGENVALUES = 10**6
"""Largest number of eigenvalues. Every point of an integral sums over all of them."""

SMALLEST, LARGEST = 1e-12, 1e6
"""Range of the largest eigenvalue, which is of order one for Gaussian weights. Outside it digits are lost."""


class _Discrete(Target):
    """A law of finitely many eigenvalues: the base class of Atoms, Empirical and RankedPowerLaw."""

    @cached_property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """Distinct eigenvalues, ascending, and their weights, which sum to one."""
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

    def parts(self) -> list[Measure]:
        return [Atomic(*self.points)]

    def _positive_quantiles(self, levels: np.ndarray) -> np.ndarray:
        values, weights = self.points
        values, weights = values[values > 0], weights[values > 0]
        steps = np.cumsum(weights) / weights.sum()
        return values[np.searchsorted(steps[:-1], levels)]


@dataclass(frozen=True)
class Atoms(_Discrete):
    """A target with a small number of distinct eigenvalues.

    Parameters
    ----------
    values : tuple of float
        Eigenvalues, non-negative and not all zero.
    weights : tuple of float, optional
        Fraction of the eigenvalues at each value, positive and summing to one; by default equal.

    Examples
    --------
    >>> import asymptotix as asx
    >>> target = asx.Atoms((0.0, 1.0, 2.0), weights=(0.5, 0.25, 0.25))
    >>> target.zero_mass, target.mean, target.mean_square
    (0.5, 0.75, 1.25)
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

    Eigenvalues of absolute value below 1e-12 of the largest count as zero.

    Parameters
    ----------
    spectrum : tuple of float or array
        Eigenvalues of a positive semi-definite matrix, not all zero; kept as a tuple.

    Examples
    --------
    >>> import numpy as np
    >>> import asymptotix as asx
    >>> W = np.random.default_rng(0).standard_normal((40, 10))
    >>> target = asx.Empirical(np.linalg.eigvalsh(W @ W.T / 20).clip(0))
    >>> round(target.zero_mass, 3)
    0.75
    """

    spectrum: tuple[float, ...] | np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "spectrum", _spectrum("spectrum", self.spectrum, rounding=NEGLIGIBLE))

    def _values_and_weights(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.spectrum), np.ones(len(self.spectrum))


def _spectrum(name: str, given: ArrayLike, *, rounding: float = 0.0) -> tuple[float, ...]:
    values = checks.finite_grid(name, given)
    if values.size > MOST_EIGENVALUES:
        raise ValueError(f"{name} must be at most {MOST_EIGENVALUES:,} eigenvalues, got {values.size:,}")
    if values.max() > 0 and not SMALLEST <= abs(values).max() <= LARGEST:
        raise ValueError(
            f"{name} must have a largest eigenvalue between {SMALLEST:g} and {LARGEST:g}, got {abs(values).max():g}"
        )
    if values.max() <= 0:
        raise ValueError(f"{name} must contain a positive eigenvalue, got a largest one of {values.max():g}")
    if values.min() < -rounding * values.max():
        raise ValueError(f"{name} must be non-negative, as the eigenvalues of W_0 W_0^T are, got {values.min():g}")
    return tuple(np.maximum(values, 0.0).tolist())
