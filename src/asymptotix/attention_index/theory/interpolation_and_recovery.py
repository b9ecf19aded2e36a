"""Thresholds in alpha: the end of interpolation of the training data, and the start of exact recovery of the target.

Each threshold compares two numbers in units of d^2/2: 2N alpha, the number of values that the samples fix, and the
dimension of the set of matrices that fit them. N is the number of visible directions of an output (T^2 + T - 2 = 2N for
a softmax). kappa0 is the share of non-zero eigenvalues of the target.

Boncoraglio et al., arXiv:2509.24914, Corollary 1, eqs. (16)-(18), where a bare c is the root. The paper's eq. (16) is
0/0 without noise. Its eq. (17) divides by zero at full rank. Its threshold 1/2 for a symmetric matrix, eq. (68), holds
for N = 1 only.

Equations ai-interpolation, ai-recovery, ai-bayes of docs/theory/attention_index.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from ..targets.target import Target

#: Most doublings of a search bracket. An equation that needs more is taken as not resolved by floating-point numbers.
MOST_DOUBLINGS = 100
#: Value of delta, in units of sqrt(Q_0'), that stands for infinity: one plus its inverse square rounds to one.
_DIVERGED = 1e8


def bracketed_root(
    function: Callable[[float], float], low: float, high: float, what: str, *, xtol: float = 1e-13
) -> float:
    """Return the root in [low, high] of the equation named ``what``; FloatingPointError if none is found."""
    try:
        return float(brentq(function, low, high, xtol=xtol))  # type: ignore[arg-type]
    except (ValueError, RuntimeError) as error:
        words = f"{what} has no root that numbers resolve between {low:.3g} and {high:.3g}"
        raise FloatingPointError(words) from error


def interpolation(target: Target, noise: float, directions: int) -> float:
    """Return the largest alpha at which a positive semi-definite S fits noisy outputs exactly.

    It is DIV(delta, 0)/(2N), N = ``directions``, at the root delta of J(delta, 0) - (delta/2) J_delta = Q_0 + noise/2,
    eq. (16). J(delta, 0) = int_0 x^2 mu_delta(dx) and DIV = J_delta/(2 delta), where J_delta = dJ/d delta and mu_delta
    is the target's law convolved with a semicircle of variance delta^2. Without noise S_0 itself fits the outputs at
    every alpha. The function then returns the limit noise -> 0, which depends on kappa0 alone: above this alpha S_0 is
    the only positive semi-definite matrix that fits. For a target of zeros the noise is the only scale, so the
    threshold equals this limit at any noise.
    """
    if noise == 0 or target.mean_square == 0:
        return (1 - 0.5 * target.zero_mass**2) / (2 * directions)
    delta = interpolation_width(target, target.mean_square + 0.5 * noise)
    return target.convolution(delta).moments(0.0).divergence / (2 * directions)


def interpolation_width(target: Target, noisy_signal: float) -> float:
    """Return the root delta of the equation in :func:`interpolation`, whose right side is ``noisy_signal`` = Q_0'.

    For a target of zeros delta diverges. The function then returns _DIVERGED times sqrt(Q_0'), because the end of a
    search would depend on rounding.
    """
    if target.mean_square == 0:
        return _DIVERGED * float(np.sqrt(noisy_signal))

    def excess(delta: float) -> float:
        moments = target.convolution(delta).moments(0.0)
        return moments.J - 0.5 * delta * moments.J_delta - noisy_signal

    high = float(np.sqrt(2 * noisy_signal))
    for _ in range(MOST_DOUBLINGS):
        if excess(high) >= 0:
            break
        high *= 2
    low = 0.5 * high
    while excess(low) > 0 and low > 1e-5 * np.sqrt(noisy_signal):
        low *= 0.5
    return bracketed_root(excess, low, high, "the equation of interpolation")


def exact_recovery(target: Target, directions: int) -> float:
    """Return the alpha above which, without noise, the interpolator of least trace is S_0.

    It is [1 - (1-kappa0)^2 (M_2(c) - c M_1(c))]/(2N), N = ``directions``, where M_k(c) is the k-th moment of the
    semicircle law up to c, and c is the root of M_1(c) - c M_0(c) + c/(1-kappa0) = 0, eqs. (17), (18). It is 1/(2N) for
    a target of full rank. As the rank falls, it tends slowly to 6 kappa0/(2N).
    """
    zero, c = target.zero_mass, _recovery_cut(target)
    return (1 - zero**2 * (_semicircle_moment(2, c) - c * _semicircle_moment(1, c))) / (2 * directions)


def recovery_ratio(target: Target) -> float:
    """Return the limit of eps/delta at exact recovery, where eps and delta vanish; 0 for a target of full rank.

    The zero eigenvalues of the target spread into a semicircle of radius 2 delta sqrt(1-kappa0).
    """
    return _recovery_cut(target) * float(np.sqrt(target.zero_mass))


def _recovery_cut(target: Target) -> float:
    zero = target.zero_mass
    if zero == 0:
        return 0.0

    def slope(c: float) -> float:
        return _semicircle_moment(1, c) - c * _semicircle_moment(0, c) + c / zero

    return bracketed_root(slope, 0.0, 2.0, "the equation of exact recovery", xtol=1e-15)


def exact_recovery_full(directions: int) -> float:
    """Return the alpha above which noiseless outputs determine a symmetric matrix: 1/(2N), N = ``directions``."""
    return 1 / (2 * directions)


def exact_recovery_bayes(target: Target, directions: int) -> float:
    """Return the alpha above which noiseless outputs determine a matrix whose spectrum is known.

    The matrices with eigenvalues of multiplicities w_i d form a manifold of dimension (1 - sum w_i^2) d^2/2. Where zero
    is the only repeated eigenvalue, the threshold is kappa0 (2 - kappa0)/(2N), N = ``directions``.
    """
    return (1 - float(np.sum(np.square(target.atom_weights)))) / (2 * directions)


def _semicircle_moment(order: int, c: float) -> float:
    """Return the moment of order 0, 1 or 2 of the semicircle law of radius two, over [-2, c]."""
    root = np.sqrt(max(4 - c * c, 0.0))
    arc = 0.5 + np.arcsin(np.clip(0.5 * c, -1, 1)) / np.pi
    closed = (arc + c * root / (4 * np.pi), -(root**3) / (6 * np.pi), arc + c * (c * c - 2) * root / (8 * np.pi))
    return float(closed[order])
