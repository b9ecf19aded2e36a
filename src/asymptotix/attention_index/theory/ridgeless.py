"""Vanishing weight decay below interpolation: no sampling is left, two equations remain.

The proximal map tends to the closest point of zero loss, so that the loss side is known in closed form, and the
estimate is the interpolator of least trace (factorised) or of least norm (full). For matched temperatures

    DIV(delta, eps) = 2 N alpha,       J - eps J_eps - (delta/2) J_delta = Q_0',                 (factorised)
    E (1 - a) = Q_0 (1 - a)^2 + noise/2,   E = Q_0' - 2m + q,   m = a Q_0,   a = 2 N alpha.      (full)

With the learner's temperature 1/beta and the target's 1/beta_0 the estimate is beta_0/beta times that.

Boncoraglio et al., arXiv:2509.24914, eqs. (57), (63), (64) and, for linear attention, (65). There lambda-tilde in front
of the derivative of J in eps is a misprint for one, and Q_0 in the last line for Q_0'. The full case corrects eq. (68),
whose 1 - 2 alpha is 1 - 2 N alpha.

Equation ai-ridgeless of docs/theory/attention_index.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..targets.target import Target
from .interpolation_and_recovery import MOST_DOUBLINGS, bracketed_root, interpolation_width, recovery_ratio


class Interpolator(NamedTuple):
    """Order parameters m and q, and the law of the eigenvalues: scale (x - eps)_+ with x ~ mu_delta."""

    m: float
    q: float
    delta: float
    eps: float
    scale: float


def least_trace(target: Target, noisy_signal: float, samples: float) -> Interpolator:
    """The factorised case at ``samples`` = 2 N alpha below interpolation (without noise: below exact recovery)."""

    def width(ratio: float) -> float:
        """Delta at which the second equation holds, at eps = ratio delta."""

        def excess(log_delta: float) -> float:
            delta = np.exp(log_delta)
            found = target.convolution(delta).moments(ratio * delta)
            return found.J - ratio * delta * found.J_eps - 0.5 * delta * found.J_delta - noisy_signal

        low, high = float(np.log(1e-5)), float(np.log(largest))
        for _ in range(MOST_DOUBLINGS):
            if excess(high) >= 0:
                break
            high += 1.0
        return float(np.exp(bracketed_root(excess, low, high, "the equation of the noise in the field")))

    def surplus(ratio: float) -> float:
        delta = width(ratio)
        return target.convolution(delta).moments(ratio * delta).divergence - samples

    noiseless = noisy_signal <= target.mean_square * (1 + 1e-12)
    largest = np.sqrt(noisy_signal) if noiseless else interpolation_width(target, noisy_signal)
    # Without noise the second equation has a root delta > 0 only above the ratio at which recovery becomes exact.
    low, high = max(recovery_ratio(target), 1e-6) * (1 + 1e-6) if noiseless else 0.0, 1.0
    for _ in range(MOST_DOUBLINGS):
        if surplus(high) <= 0:
            break
        high = 1 + 0.5 * high  # towards 2, the edge of the semicircle, where nothing is learned
    ratio = bracketed_root(surplus, low, high, "the equation of the number of samples")
    delta = width(ratio)
    eps = ratio * delta
    found = target.convolution(delta).moments(eps)
    return Interpolator(found.J - 0.5 * eps * found.J_eps - 0.5 * delta * found.J_delta, found.J, delta, eps, 1.0)


def least_norm(target: Target, noise: float, samples: float) -> Interpolator:
    """The full case at ``samples`` = 2 N alpha < 1."""
    Q0, left = target.mean_square, 1 - samples
    m = samples * Q0
    q = Q0 * left + 0.5 * noise / left - Q0 - 0.5 * noise + 2 * m
    return Interpolator(m, q, float(np.sqrt(max(q / samples**2 - Q0, 0.0))), 0.0, samples)
