"""The base class of laws of the eigenvalues of the target matrix S_0."""

from __future__ import annotations

import abc

import numpy as np
from numpy.typing import ArrayLike

from ...core.specification import Specification
from ...numerics import checks
from ..spectra.biane import BianeConvolution
from ..spectra.convolution import Convolution
from ..spectra.measures import Measure, off_support


class Target(Specification, abc.ABC):
    """Law mu_0 of the eigenvalues of the positive semi-definite target S_0, an atom at zero included.

    Examples
    --------
    >>> import asymptotix as asx
    >>> asx.MarchenkoPastur(0.5).eigenvalues(4).round(3)      # a matrix of dimension 4 with this spectrum
    array([0.   , 0.   , 0.634, 2.366])
    """

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
        """Weights of all atoms of the law, in no fixed order; empty if there are none."""
        return np.array([self.zero_mass] if self.zero_mass > 0 else [])

    @property
    @abc.abstractmethod
    def smallest(self) -> float:
        """Left end of the support; 0 where there is an atom at zero."""

    @property
    @abc.abstractmethod
    def largest(self) -> float:
        """Right end of the support."""

    @property
    def spikes(self) -> np.ndarray | tuple[float, ...]:
        """Single eigenvalues that may become outliers, descending and with multiplicity; empty for most laws."""
        return np.zeros(0)

    @property
    def spike_weight(self) -> float:
        """Weight of one spike in the law: 1/d for a matrix of size d, 0 in the limit of infinite d."""
        return 0.0

    def parts(self) -> list[Measure]:
        """Return the measures whose sum is mu_0; not needed by a law that overrides convolution and off_support."""
        raise NotImplementedError(f"{type(self).__name__} must say the parts() of its law, or its convolution()")

    def convolution(self, delta: float) -> Convolution:
        """Return mu_delta, the free convolution of mu_0 with a semicircle of radius 2 delta."""
        return BianeConvolution(self.parts(), delta)

    def off_support(self, z: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Return G(z) = int mu_0(ds)/(z - s) and F(z) = int mu_0(ds)/(z - s)^2 at real z off the support.

        An atom at z itself, which a spike may have, is left out: a spike does not act on itself.
        """
        return off_support(self.parts(), z)

    @abc.abstractmethod
    def _positive_quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Return the quantiles, at ``levels`` (n,) between 0 and 1, of the law conditioned on x > 0."""

    def eigenvalues(self, dim: int) -> np.ndarray:
        """Return a deterministic spectrum of a matrix of size ``dim``, ascending.

        round(zero_mass dim) entries are zero; the other r are the quantiles (i + 1/2)/r of the positive part. A common
        factor rescales all, so that the mean square is exactly Q_0 at every size. The factor is 1 + O(1/dim) for a
        bounded density, and larger if a heavy tail carries Q_0 (1.05 for PowerLaw(3.5) at dim = 400).
        """
        dim = checks.integer("dim", dim, 1)
        values = self.quantiles(dim)
        if not values.any():
            least = int(0.5 / (1 - self.zero_mass)) + 1
            share = 1 - self.zero_mass
            raise ValueError(f"dim must be at least {least} where a share {share:g} is positive, got {dim}")
        return values * np.sqrt(self.mean_square * dim / np.sum(values**2))

    def quantiles(self, dim: int) -> np.ndarray:
        """Return the ascending spectrum (dim,) of :meth:`eigenvalues` before it is rescaled to the mean square Q_0."""
        zeros = round(self.zero_mass * dim)
        rank = dim - zeros
        positive = self._positive_quantiles((np.arange(rank) + 0.5) / rank) if rank else np.zeros(0)
        return np.concatenate([np.zeros(zeros), positive])
