"""The sums over omega and z of :mod:`.noisy_averager`, compiled with numba."""

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
    """Write, for every output, the sums over omega of its density, and of the density times g^2, G^2 and log Z_out.

    Parameters
    ----------
    y : array (m,)
        Outputs.
    z, weights, values : arrays (J,)
        Nodes in ascending order, their weights in integrals over z, and the link there.
    q, v : float
        Variance of omega, and variance of z given omega.
    step : float
        Step of omega, in standard deviations of omega given z.
    found : array (m, 4)
        The sums; written.
    """
    places, near, terms, ratios = np.empty(len(z)), np.empty(len(z)), np.empty(len(z)), np.empty(len(z))
    wide, scale = _CUT * math.sqrt(noise), 1 / math.sqrt(2 * math.pi * noise)
    for row in range(len(y)):
        count = 0
        for j in range(len(z)):
            away = y[row] - values[j]
            if abs(away) < wide:
                places[count] = z[j]
                near[count] = scale * weights[j] * math.exp(-0.5 * away * away / noise)
                count += 1
        if count > 0:
            _over_fields(places[:count], near[:count], terms, ratios, q, v, step, found[row])


@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _over_fields(places, near, terms, ratios, q, v, step, found) -> None:
    """Add to ``found`` (4,) the terms of every omega on an even grid of ``step`` deviations, for one output y.

    ``places`` are the nodes z with g(z) near y, ``near`` their weights times the density of y given z; ``terms`` and
    ``ratios`` are memory. From one omega to the next the Gaussian of a place is multiplied by a ratio, and the ratio by
    a constant: an exponential is computed only when a place enters the window around omega.
    """
    spread, window = math.sqrt(q * v), _CUT * math.sqrt(v)
    if spread < 1e-7:  # at zero overlap omega is zero
        h, k, last, weight = 0.0, 0, 0, 1.0
    else:
        h, reach = step * spread, _CUT * math.sqrt(q)
        k = math.ceil(max(-reach, q * places[0] - _CUT * spread) / h)
        last = math.floor(min(reach, q * places[-1] + _CUT * spread) / h)
        weight = h / math.sqrt(2 * math.pi * q)
    first = beyond = 0
    bend = math.exp(-h * h / v)
    while k <= last:
        omega = k * h
        while first < len(places) and places[first] < omega - window:
            first += 1
        if first == len(places):
            return
        beyond = max(beyond, first)
        if places[first] > omega + window:  # no place in the window, between two roots
            k = max(k + 1, math.ceil((places[first] - window) / h))
            continue
        while beyond < len(places) and places[beyond] <= omega + window:
            away = places[beyond] - omega
            terms[beyond] = near[beyond] * math.exp(-0.5 * away * away / v)
            ratios[beyond] = math.exp((away - 0.5 * h) * h / v)
            beyond += 1
        mass = mean = square = 0.0
        for j in range(first, beyond):
            away, term = places[j] - omega, terms[j]
            mass += term
            mean += term * away
            square += term * away * away
            terms[j] = term * ratios[j]
            ratios[j] *= bend
        if mass > 0.0:
            prior = 1.0 if h == 0.0 else math.exp(-0.5 * omega * omega / q)
            _add(mass, mean / mass, square / mass, v, weight * prior, found)
        k += 1


@njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
def _add(mass, shift, square, v, weight, found) -> None:
    """Add to ``found`` the terms of one omega, from sqrt(2 pi v) Z_out and the mean and mean square of z - omega."""
    evidence = mass / math.sqrt(2 * math.pi * v)
    g, G = shift / v, (square - shift * shift) / (v * v) - 1 / v
    weight *= evidence
    found[0] += weight
    found[1] += weight * g * g
    found[2] += weight * G * G
    found[3] += weight * math.log(evidence)
