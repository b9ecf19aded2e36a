"""The hardmax channel of two tokens: each row shows only which of its two logits is larger.

In visible coordinates z = (s, t) the logit differences of the rows are u_1 = s + sqrt2 t and u_2 = -s + sqrt2 t, with
variance 3 per unit variance of z and correlation 1/3. Given a field z and spread v = Q_0' - q, the probability of two
signs is a bivariate normal distribution function, and the score f is the gradient of its logarithm:

    P(y | z) = Phi_2(k_1, k_2; rho),  k_i = y_i u_i / sqrt(3 v),  rho = y_1 y_2 / 3,
    d Phi_2 / d k_1 = phi(k_1) Phi((k_2 - rho k_1)/sqrt(1 - rho^2)).

The data are those of Boncoraglio et al., arXiv:2509.24914, eqs. (4), (5), at infinite target_beta; this channel is not
in the paper.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy.special import ndtr, owens_t

_PANELS = np.array([0.0, 1.0, 3.0, 6.0, 10.0])


def hardmax_score_square(q: float, spread: float) -> float:
    """Return E|f|^2 of the score f, over fields z ~ N(0, q) and outputs, at v = ``spread``."""
    reach = np.sqrt(q / spread)
    x, weight = _nodes(9.0 * max(reach, 1e-12))
    k1, k2 = np.meshgrid(x, x, indexing="ij")
    # k = u / sqrt(3 v) has variance q/v and correlation 1/3.
    density = np.exp(-(k1**2 + k2**2 - 2 * k1 * k2 / 3) / (2 * reach**2 * (8 / 9)))
    mass = np.outer(weight, weight) * density
    total = 0.0
    for y1, y2 in ((1, 1), (1, -1)):  # the other two outputs are their mirror images
        total += 2 * float((mass * probability_and_score_square(y1 * k1, y2 * k2, y1 * y2 / 3)).sum())
    return total / (float(mass.sum()) * 3 * spread)


def probability_and_score_square(k1: np.ndarray, k2: np.ndarray, rho: float) -> np.ndarray:
    """Return P |grad log P|^2, P = Phi_2(k1, k2; rho), entry by entry; the gradient in z has unit 1/sqrt(3 v)."""
    first, second = slopes(k1, k2, rho)
    probability = bivariate_normal(k1, k2, rho)
    # |grad u_i|^2 = 3 and grad u_1 . grad u_2 = 1, with the signs of the outputs in rho
    square = 3 * (first**2 + second**2) + 2 * np.sign(rho) * first * second
    # The probability has rounding errors of 1e-16 from Owen's function; outputs rarer than 1e-11 contribute nothing.
    return np.where(probability > 1e-11, square / np.maximum(probability, 1e-11), 0.0)


def slopes(k1: np.ndarray, k2: np.ndarray, rho: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the derivatives of Phi_2(k1, k2; rho) in k1 and in k2, entry by entry."""
    root = np.sqrt(1 - rho**2)

    def slope(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.exp(-0.5 * a * a) / np.sqrt(2 * np.pi) * ndtr((b - rho * a) / root)

    return slope(k1, k2), slope(k2, k1)


def bivariate_normal(h: np.ndarray, k: np.ndarray, rho: float) -> np.ndarray:
    """Return the bivariate normal distribution function Phi_2(h, k; rho) entry by entry, by Owen's function."""
    root = np.sqrt(1 - rho**2)
    tiny = 1e-14
    h, k = (np.where(abs(x) < tiny, tiny, x) for x in (h, k))
    opposite = np.where(h * k < 0, 0.5, 0.0)
    return 0.5 * (ndtr(h) + ndtr(k)) - owens_t(h, (k / h - rho) / root) - owens_t(k, (h / k - rho) / root) - opposite


def _nodes(reach: float, order: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Legendre nodes and weights on [-reach, reach], on panels that are fine around zero."""
    ends = [*_PANELS[reach > _PANELS], reach]
    x, w = np.polynomial.legendre.leggauss(order)
    points = [0.5 * (a + b) + 0.5 * (b - a) * x for a, b in itertools.pairwise(ends)]
    weights = [0.5 * (b - a) * w for a, b in itertools.pairwise(ends)]
    half, mass = np.concatenate(points), np.concatenate(weights)
    return np.concatenate([-half[::-1], half]), np.concatenate([mass[::-1], mass])
