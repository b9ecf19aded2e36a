"""A target with finitely many single eigenvalues outside its bulk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...numerics import checks
from ..spectra.convolution import Convolution
from ..spectra.measures import SAME, Atomic, Measure, Thinned, zeros
from .target import Target

LARGEST = 1e6
"""Largest spike. Beyond it, rounding errors of the spike exceed the bulk."""


@dataclass(frozen=True)
class Spiked(Target):
    """A bulk and finitely many spikes: eigenvalues outside its support, which may be learned as outliers.

    Parameters
    ----------
    bulk : Target or None
        Law of all other eigenvalues; with None they are zero.
    spikes : tuple of float
        Eigenvalues, positive and outside the support of the bulk: to the right of it or in a gap, such as the gap
        between the zeros and the positive eigenvalues of a Marchenko-Pastur law. Equal spikes are one degenerate
        eigenvalue. They are kept in descending order.
    dim : int, optional
        Dimension d of the matrices: each spike has the weight 1/d and the bulk the rest, as in experiments of this
        size. By default d is infinite and spikes have no weight: mean, mean square and all learning curves depend on
        the bulk alone. Spikes of order one carry O(1/d) of Q_0, which at d = 100 may be a third.

    Examples
    --------
    >>> import asymptotix as asx
    >>> target = asx.Spiked(asx.MarchenkoPastur(0.5), spikes=(6.0, 9.0))
    >>> target.mean_square, target.eigenvalues(8)[-2:]
    (1.5, array([6., 9.]))
    >>> round(asx.Spiked(asx.MarchenkoPastur(0.5), (6.0, 9.0), dim=100).mean_square, 3)
    2.64
    """

    bulk: Target | None
    spikes: tuple[float, ...] = ()  # pyright: ignore[reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]
    dim: int | None = None

    def __post_init__(self) -> None:
        if not (self.bulk is None or isinstance(self.bulk, Target)):
            named = checks.named(self.bulk)
            raise TypeError(f"bulk must be a Target such as MarchenkoPastur(0.5), or None, got {named}")
        if self.bulk is not None and len(self.bulk.spikes):
            raise ValueError(f"bulk must have no spikes of its own: give all of them here, got {self.bulk!r}")
        spikes = np.sort(checks.finite_grid("spikes", self.spikes))[::-1]
        if not 0 < spikes[-1] <= spikes[0] <= LARGEST:
            raise ValueError(f"spikes must be positive and at most {LARGEST:g}, got {self.spikes!r}")
        object.__setattr__(self, "spikes", tuple(spikes.tolist()))
        self._refuse_inside()
        if self.dim is not None:
            object.__setattr__(self, "dim", checks.integer("dim", self.dim, len(spikes)))

    def _refuse_inside(self) -> None:
        islands = np.concatenate([part.islands for part in self._bulk_parts()])
        islands = islands + SAME * np.array([-1.0, 1.0]) * np.abs(islands)
        for theta in self.spikes:
            for low, high in islands[(islands[:, 0] <= theta) & (theta <= islands[:, 1])]:
                place = f"[{low:.4g}, {high:.4g}]" if high - low > 4 * SAME * high else f"its eigenvalue {high:.4g}"
                raise ValueError(f"spikes must lie outside the support of the bulk, got {theta:g}, inside {place}")

    @property
    def spike_weight(self) -> float:
        return 0.0 if self.dim is None else 1 / self.dim

    @property
    def _bulk_share(self) -> float:
        return 1.0 if self.dim is None else (self.dim - len(self.spikes)) / self.dim

    @property
    def _alone(self) -> bool:
        """Whether the matrix has no eigenvalues except its spikes."""
        return len(self.spikes) == self.dim

    def _bulk_parts(self) -> list[Measure]:
        return zeros(1.0) if self.bulk is None else self.bulk.parts()

    @property
    def mean(self) -> float:
        bulk = 0.0 if self.bulk is None else self.bulk.mean
        return self._bulk_share * bulk + self.spike_weight * float(np.sum(self.spikes))

    @property
    def mean_square(self) -> float:
        bulk = 0.0 if self.bulk is None else self.bulk.mean_square
        return self._bulk_share * bulk + self.spike_weight * float(np.sum(np.square(self.spikes)))

    @property
    def zero_mass(self) -> float:
        return self._bulk_share * (1.0 if self.bulk is None else self.bulk.zero_mass)

    @property
    def atom_weights(self) -> np.ndarray:
        bulk = self._bulk_share * (np.ones(1) if self.bulk is None else self.bulk.atom_weights)
        counts = np.unique(self.spikes, return_counts=True)[1]
        return np.concatenate([bulk, self.spike_weight * counts]) if self.dim else bulk

    @property
    def smallest(self) -> float:
        bulk = self.spikes[-1] if self._alone else 0.0 if self.bulk is None else self.bulk.smallest
        return min(bulk, self.spikes[-1]) if self.dim else bulk

    @property
    def largest(self) -> float:
        bulk = 0.0 if self.bulk is None or self._alone else self.bulk.largest
        return max(bulk, self.spikes[0]) if self.dim else bulk

    def parts(self) -> list[Measure]:
        if self.dim is None:
            return self._bulk_parts()
        values, counts = np.unique(self.spikes, return_counts=True)
        atoms = Atomic(values, self.spike_weight * counts)
        if self._alone:
            return [atoms]
        return [*(Thinned(part, self._bulk_share) for part in self._bulk_parts()), atoms]

    def convolution(self, delta: float) -> Convolution:
        if self.dim is None and self.bulk is not None:
            return self.bulk.convolution(delta)
        return super().convolution(delta)

    def eigenvalues(self, dim: int) -> np.ndarray:
        """Return a deterministic spectrum of a matrix of size ``dim``, ascending: the spikes and quantiles of the bulk.

        Nothing is rescaled: the spikes keep their values. A target with a ``dim`` has a spectrum at this size only.
        """
        count = len(self.spikes)
        dim = checks.integer("dim", dim, count)
        if self.dim not in (None, dim):
            raise ValueError(f"dim must be {self.dim}, for which the target gives its spikes their weight, got {dim}")
        bulk = np.zeros(dim - count) if self.bulk is None else self.bulk.quantiles(dim - count)
        return np.sort(np.concatenate([bulk, self.spikes]))

    def _positive_quantiles(self, levels: np.ndarray) -> np.ndarray:
        raise NotImplementedError("the quantiles are those of the bulk, and the spikes")
