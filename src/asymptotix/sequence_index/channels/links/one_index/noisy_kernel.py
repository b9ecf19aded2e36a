"""The sums over omega and z behind :mod:`.noisy_averager`, compiled with numba."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

#: Standard deviations beyond which a Gaussian is cut.
_CUT = 8.0


@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def sums(
    y: np.ndarray,
    z: np.ndarray,
    weights: np.ndarray,
    values: np.ndarray,
    noise: float,
    q: float,
    v: float,
    step: float,
    found: np.ndarray,
) -> None:
    """Sums over omega, for every output, of its density and of that times g^2, G^2 and log Z_out.

    Parameters
    ----------
    y : array (m,)
        Outputs.
    z, weights, values : arrays (J,)
        Nodes in ascending order, their weights and the link there.
    step : float
        That of omega, in standard deviations of omega given z.
    found : array (m, 4)
        Where the sums are written.
    """
    near, places, likelihoods = np.empty(len(z)), np.empty(len(z)), 1 / math.sqrt(2 * math.pi * noise)
    wide = _CUT * math.sqrt(noise)
    for row in range(len(y)):
        count = 0
        for j in range(len(z)):
            away = y[row] - values[j]
            if abs(away) < wide:
                places[count] = z[j]
                near[count] = weights[j] * likelihoods * math.exp(-0.5 * away * away / noise)
                count += 1
        if count > 0:
            _over_fields(places[:count], near[:count], q, v, step, found[row])


@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _over_fields(places, near, q, v, step, found) -> None:
    spread, window = math.sqrt(q * v), _CUT * math.sqrt(v)
    if q < 1e-14:
        _add(places, near, 0, 0.0, v, window, 1.0, found)
        return
    h, first = step * spread, 0
    reach = _CUT * math.sqrt(q)
    k = math.ceil(max(-reach, q * places[0] - _CUT * spread) / h)
    last = math.floor(min(reach, q * places[-1] + _CUT * spread) / h)
    scale = h / math.sqrt(2 * math.pi * q)
    while k <= last:
        omega = k * h
        while first < len(places) and places[first] < omega - window:
            first += 1
        if first == len(places):
            return
        if places[first] > omega + window:  # between two roots nothing is seen
            k = max(k + 1, math.ceil((places[first] - window) / h))
            continue
        _add(places, near, first, omega, v, window, scale * math.exp(-0.5 * omega * omega / q), found)
        k += 1


@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _add(places, near, first, omega, v, window, weight, found) -> None:
    """One omega, from the first place on that is seen from there."""
    mass = mean = square = 0.0
    for j in range(first, len(places)):
        away = places[j] - omega
        if away > window:
            break
        term = near[j] * math.exp(-0.5 * away * away / v)
        mass += term
        mean += term * away
        square += term * away * away
    if mass <= 0.0:
        return
    shift = mean / mass
    evidence = mass / math.sqrt(2 * math.pi * v)
    g, G = shift / v, (square / mass - shift * shift) / (v * v) - 1 / v
    weight *= evidence
    found[0] += weight
    found[1] += weight * g * g
    found[2] += weight * G * G
    found[3] += weight * math.log(evidence)
