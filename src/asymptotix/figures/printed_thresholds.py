"""Thresholds of arXiv:2509.24914v1 as they were printed, each evaluated from its own formula by quadrature."""

from __future__ import annotations

import numpy as np
from scipy.optimize import root_scalar

import asymptotix as asx


def interpolation(rank: float, noise: float, tokens: int = 2) -> float:
    """Eq. (16): J and its derivative of the Marchenko-Pastur target by the library's convolution, else as printed."""
    target = asx.MarchenkoPastur(rank)
    goal = target.mean_square + noise / 2

    def excess(delta: float) -> float:
        found = target.convolution(delta).moments(0.0)
        return found.J - 0.5 * delta * found.J_delta - goal

    delta = float(root_scalar(excess, bracket=(1e-6, 10.0)).root)
    return target.convolution(delta).moments(0.0).J_delta / (2 * delta * (tokens**2 + tokens - 2))


def factorized_recovery(rank: float, tokens: int = 2) -> float:
    """Eqs. (17) and (18), 0 < rank < 1, with incomplete moments of the semicircle."""

    def condition(c: float) -> float:
        return _semicircle(1, c) - c * _semicircle(0, c) + c / (1 - rank)

    root = float(root_scalar(condition, bracket=(1e-12, 2.0), xtol=1e-14).root)
    bracket = 1 - (1 - rank) ** 2 * (_semicircle(2, root) - root * _semicircle(1, root))
    return bracket / (tokens**2 + tokens - 2)


def bayes_recovery(rank: float, tokens: int = 2) -> float:
    """Boncoraglio et al., arXiv:2506.01582: kappa_0 (2 - kappa_0)/(T^2 + T - 2), ranks up to one."""
    return rank * (2 - rank) / (tokens**2 + tokens - 2)


def _semicircle(power: int, x: float) -> float:
    """Integral of t^power over the semicircle on [-2, x]; t = 2 sin(theta) makes it smooth."""
    angle = np.arcsin(min(x, 2.0) / 2)
    at, weight = np.polynomial.legendre.leggauss(60)
    a = 0.5 * (angle - np.pi / 2) + 0.5 * (angle + np.pi / 2) * at
    return float(0.5 * (angle + np.pi / 2) * (weight @ ((2 * np.sin(a)) ** power * 2 * np.cos(a) ** 2)) / np.pi)
