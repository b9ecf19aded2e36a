"""Stability of zero overlap for two linear layers, any number M of tokens, by quadrature.

The output is u = B z_2 with B = c I + z_1 z_1^T, and the model is invariant under rotations of the tokens. With
z_1 = s n and n.u = |u| cos t,

    |B^{-1} u|^2 = |u|^2 (sin^2 t / c^2 + cos^2 t / (c + s^2)^2),         det B = c^{M-1} (c + s^2),

and E[z_l z_l^T | u] = a_l P + b_l (I - P) with P the projector on u. Then f_l = E[(a_l - 1)^2 + (M-1)(b_l - 1)^2] is an
integral over |u| of squares of integrals over s and t.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import gammaln

from ....numerics import interrupts
from ....numerics.quadrature import Estimate


@lru_cache(maxsize=64)
def linear_curvature_at_zero(tokens: int, skip: float) -> Estimate:
    """Return f_1 and f_2 (module docstring) as an array (2,), with the difference of two resolutions as error."""
    coarse, fine = (_curvatures(tokens, skip, resolution) for resolution in (0.75, 1.0))
    return Estimate(fine, abs(fine - coarse) + 1e-9 * fine)


def _curvatures(M: int, c: float, resolution: float) -> np.ndarray:
    longest = 8.0 + np.sqrt(M)
    (s, of_s), (t, of_t) = _lengths(M, longest, resolution), _angles(M, resolution)
    s, along = s[:, None], np.cos(t) ** 2
    prior = of_s[:, None] * of_t / (c ** (M - 1) * (c + s**2))
    first, total_first = s**2 * along, np.broadcast_to(s**2, prior.shape)
    second, total_second = ((1 - s**2 * along / (c + s**2)) / c) ** 2, np.sin(t) ** 2 / c**2 + along / (c + s**2) ** 2
    step = 0.04 / resolution
    mass, f = 0.0, np.zeros(2)
    for r in np.exp(np.arange(-9.0, np.log(longest * (c + longest**2)), step)):
        interrupts.check()
        density = prior * np.exp(-0.5 * r**2 * total_second)
        evidence = density.sum().clip(1e-290)
        a, total = (
            np.array([(density * x).sum() for x in pair]) / evidence * np.array([1, r**2])
            for pair in ((first, second), (total_first, total_second))
        )
        share = r**M * step * evidence
        mass += share
        f += share * ((a - 1) ** 2 + (M - 1) * ((total - a) / (M - 1) - 1) ** 2)
    # Division by the mass removes constant factors, and most of the error from tails beyond the grid.
    return f / mass


def _lengths(M: int, longest: float, resolution: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights up to ``longest`` for s = |z_1|, which is chi-distributed with M degrees of freedom."""
    x, weights = np.polynomial.legendre.leggauss(int(200 * resolution))
    s = 0.5 * longest * (x + 1)
    return s, 0.5 * longest * weights * np.exp((M - 1) * np.log(s) - 0.5 * s**2 - gammaln(M / 2))


def _angles(M: int, resolution: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes t and weights on (0, pi/2) for the angle t of z_1 and u, dense at zero: a large u is near z_1."""
    x, weights = np.polynomial.legendre.leggauss(int(160 * resolution))
    x = 0.5 * (x + 1)
    t = 0.5 * np.pi * x**2
    return t, weights * x * np.sin(t) ** (M - 2)
