"""What a single eigenvalue of the target becomes in the field of the data, and in the learned matrix.

In direction u of an eigenvalue theta the resolvent of the field M = S_0 + delta GOE is 1/(z - theta - delta^2 g(z)).
Its pole is the outlier and its residue the squared overlap: with G(z) = int mu_0(ds)/(z - s) and F = -G',

    x = theta + delta^2 G(theta),      overlap = 1 - delta^2 F(theta),      apart from the bulk where delta^2 F < 1.

What is learned is t(x): scale (x - eps)_+ of a factorised S, scale x of a full one, and theta - delta^2 G(theta) by the
posterior mean. Spikes do not see themselves: G and F are over all other eigenvalues.

Derived here; not in Boncoraglio et al., arXiv:2509.24914, whose spectra have no outliers.

Equations out-detached, out-learned, out-leakage of docs/theory/outliers.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..targets.target import Target


class FieldOutliers(NamedTuple):
    """What the field M shows of the spikes; the last axis counts spikes, the others are those of delta.

    Attributes
    ----------
    theta : array
        The spikes, descending.
    location, location_slope : arrays
        Eigenvalue x of M and its derivative in delta; nan where the spike is not apart from the bulk.
    overlap, overlap_slope : arrays
        Squared overlap of the two directions and its derivative in delta; 0 where there is none.
    detached : array of bool
    """

    theta: np.ndarray
    location: np.ndarray
    location_slope: np.ndarray
    overlap: np.ndarray
    overlap_slope: np.ndarray
    detached: np.ndarray


def field_outliers(target: Target, delta: ArrayLike) -> FieldOutliers:
    """The outliers of S_0 + delta GOE, for any array of widths; delta = 0 is the target itself."""
    theta = np.asarray(target.spikes, dtype=float)
    G, F = target.off_support(theta)
    width = np.asarray(delta, dtype=float)[..., None]
    overlap = 1 - width**2 * F
    detached = overlap > 0
    return FieldOutliers(
        theta,
        location=np.where(detached, theta + width**2 * G, np.nan),
        location_slope=np.where(detached, 2 * width * G, np.nan),
        overlap=np.where(np.isnan(overlap) | detached, overlap, 0.0),
        overlap_slope=np.where(detached, -2 * width * F, 0.0),
        detached=detached,
    )


def critical_width(target: Target) -> np.ndarray:
    """Width delta_c = F(theta)^{-1/2} of the noise at which each spike merges with the bulk."""
    return 1 / np.sqrt(target.off_support(np.asarray(target.spikes, dtype=float))[1])


def leakage(theta: float, delta: float, others: ArrayLike, dim: int) -> np.ndarray:
    """Squared overlap of the outlier of theta with eigenvectors of S_0 of other eigenvalues; the sum is delta^2 F.

    Parameters
    ----------
    theta, delta : float
        The spike, and the width of the noise, at which it must be detached.
    others : array
        Eigenvalues of S_0.
    dim : int
        Size of the matrix.
    """
    return delta**2 / (dim * (theta - np.asarray(others, dtype=float)) ** 2)
