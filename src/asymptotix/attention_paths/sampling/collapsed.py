"""Posterior of the order parameters, with all weights integrated out exactly at any width.

At large N this posterior is exp(-N S / 2) with the action of Tiberi et al., arXiv:2405.15926, eq. (32); the exact form
is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...numerics.arrays import Array
from ..theory.likelihood import PathKernels, log_likelihood, path_kernels
from .hierarchy import Hierarchy, LevelNumbers

if TYPE_CHECKING:
    import jax


class CollapsedData(NamedTuple):
    """Data of the posterior: kernels of the paths, labels (P, C), temperature, and the prior's `Hierarchy.numbers`."""

    kernels: PathKernels
    labels: Array
    temperature: float | jax.Array
    numbers: tuple[LevelNumbers, ...]


@dataclass(frozen=True)
class CollapsedPosterior:
    """Posterior p(U^(1..L+1) | Y) of the order parameters, in the coordinates z of :class:`Hierarchy`, the prior.

    It is proportional to the Wishart prior times N(Y; 0, K(U^(1)) + T I), with labels Y, kernel K and temperature T.
    Only the `shape` of the hierarchy is stored: the widths enter through the data.
    """

    hierarchy: Hierarchy

    def __post_init__(self) -> None:
        object.__setattr__(self, "hierarchy", self.hierarchy.shape)

    @property
    def size(self) -> int:
        return self.hierarchy.size

    def log_density(self, z: jax.Array, data: CollapsedData) -> jax.Array:
        factors, log_prior = self.hierarchy.factors(z, data.numbers)
        fit = log_likelihood(factors[0], data.kernels, data.labels, data.temperature, self.hierarchy.outputs)
        return log_prior + fit

    def observe(self, z: jax.Array, data: CollapsedData) -> dict[str, Array]:
        """Return {"order_parameter": U^(1)} at z, with U^(1) of shape (d C, d C), outputs fastest."""
        F = self.hierarchy.factors(z, data.numbers)[0][0]
        return {"order_parameter": F @ F.T}


def collapsed_data(
    hierarchy: Hierarchy, xi: np.ndarray, labels: np.ndarray, temperature: float, variances: tuple[float, ...]
) -> CollapsedData:
    """Return the data from attended inputs xi (P, d, N0), labels (P,) or (P, C), prior variances s_0, s_1..s_L, s_a."""
    kernels = path_kernels(xi, variances[0], hierarchy.outputs)
    columns = labels.reshape(len(xi), hierarchy.outputs)
    return CollapsedData(kernels, columns, np.float64(temperature), hierarchy.numbers(variances[1:]))
