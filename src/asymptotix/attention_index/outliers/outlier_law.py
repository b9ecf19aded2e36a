"""The law of outliers: a single eigenvalue of the target in the field of the data and in the learned matrix.

The field is M = S_0 + delta GOE, with g the Stieltjes transform of its spectrum. In the direction of an eigenvalue
theta of S_0 the resolvent of M is 1/(z - theta - delta^2 g(z)). Its pole is the outlier x, its residue the squared
overlap of the eigenvectors of M and S_0. With G(z) = int mu_0(ds)/(z - s) and F = -G',

    x = theta + delta^2 G(theta),      overlap = 1 - delta^2 F(theta),      apart from the bulk where delta^2 F < 1.

The learned eigenvalue is scale (x - eps)_+ for a factorised S, scale x for a full S, and theta - delta^2 G(theta) for
the posterior mean. A spike does not act on itself: G and F are integrals over all other eigenvalues.

The equations are derived here; the spectra in Boncoraglio et al., arXiv:2509.24914, have no outliers.

Equations out-detached, out-learned of docs/theory/outliers.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..targets.target import Target


class FieldOutliers(NamedTuple):
    """Outliers of the field M; the last axis counts spikes, the other axes are those of delta.

    Attributes
    ----------
    theta : array
        The spikes, descending.
    location, location_slope : arrays
        Eigenvalue x of M and its derivative in delta; nan where the spike is not apart from the bulk.
    overlap, overlap_slope : arrays
        Squared overlap of the eigenvectors of M and S_0, and its derivative in delta; 0 where not detached.
    detached : array of bool
        Whether the outlier is apart from the bulk.
    """

    theta: np.ndarray
    location: np.ndarray
    location_slope: np.ndarray
    overlap: np.ndarray
    overlap_slope: np.ndarray
    detached: np.ndarray


def field_outliers(target: Target, delta: ArrayLike) -> FieldOutliers:
    """Return the outliers of S_0 + delta GOE for an array ``delta`` of any shape; delta = 0 is the target itself."""
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
    """Return the noise delta_c = F(theta)^{-1/2}, (spikes,), at which each spike theta merges with the bulk."""
    return 1 / np.sqrt(target.off_support(np.asarray(target.spikes, dtype=float))[1])
