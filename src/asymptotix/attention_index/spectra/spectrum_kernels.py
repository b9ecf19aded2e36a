"""Integrals over a target spectrum, compiled with numba."""

from __future__ import annotations

import numpy as np
from numba import njit

Array = np.ndarray


@njit(cache=True, fastmath=True, error_model="numpy")
def atom_sums(u: Array, height: Array, values: Array, weights: Array) -> Array:  # pragma: no cover (compiled)
    """Return the rows F, H, A, B of :class:`measures.Sums`, (4, n), at n points u + i sqrt(height).

    The measure consists of atoms at ``values`` with masses ``weights``.
    """
    sums = np.empty((4, len(u)))
    for i in range(len(u)):
        f = h = a = b = 0.0
        for j in range(len(values)):
            distance = u[i] - values[j]
            inverse = 1.0 / (distance * distance + height[i])
            term = weights[j] * inverse
            f += term
            h += term * distance
            a += term * inverse
            b += term * inverse * distance
        sums[0, i], sums[1, i], sums[2, i], sums[3, i] = f, h, a, b
    return sums


@njit(cache=True, error_model="numpy")
def piecewise_transform(
    w: Array, mid: Array, half: Array, nodes: Array, masses: Array, coefficients: Array, far: float
) -> Array:  # pragma: no cover (compiled)
    """Return the rows G_0(w) and G_0'(w), (2, n), of a :class:`measures.PiecewiseDensity` at n complex points w.

    ``mid`` and ``half`` (pieces,) are middles and half lengths of the pieces, ``nodes`` and ``masses`` (pieces, 24) the
    density's Gauss rule, ``coefficients`` (pieces, 24) its Legendre coefficients; ``far`` is :data:`measures.FAR`.
    """
    sums = np.zeros((2, len(w)), dtype=np.complex128)
    for i in range(len(w)):
        for j in range(len(mid)):
            zeta = (w[i] - mid[j]) / half[j]
            if abs(zeta - 1) + abs(zeta + 1) < far:
                value, slope = _second_kind(zeta, coefficients[j])
                slope /= half[j]
            else:
                value, slope = _gauss(w[i], nodes[j], masses[j])
            sums[0, i] += value
            sums[1, i] += slope
    return sums


@njit(cache=True, error_model="numpy")
def _second_kind(zeta: complex, coefficients: Array) -> tuple[complex, complex]:  # pragma: no cover (compiled)
    before, q = 0.5 * np.log((zeta + 1) / (zeta - 1)), 0j
    value, slope = coefficients[0] * before, -coefficients[0] + 0j
    q = zeta * before - 1
    for k in range(1, len(coefficients)):
        value += coefficients[k] * q
        slope += coefficients[k] * k * (zeta * q - before)
        before, q = q, (2 * k + 1) / (k + 1) * zeta * q - k / (k + 1) * before
    return 2 * value, 2 * slope / ((zeta - 1) * (zeta + 1))


@njit(cache=True, fastmath=True, error_model="numpy")
def _gauss(w: complex, nodes: Array, masses: Array) -> tuple[complex, complex]:  # pragma: no cover (compiled)
    u, v = w.real, w.imag
    h = f = a = b = 0.0
    for k in range(len(nodes)):
        distance = u - nodes[k]
        inverse = 1.0 / (distance * distance + v * v)
        term = masses[k] * inverse
        h += term * distance
        f += term
        a += term * inverse
        b += term * inverse * distance
    return complex(h, -v * f), complex(2 * v * v * a - f, 2 * v * b)
