"""Where training data can no longer be interpolated, and where the target is recovered exactly.

All are counts: 2N alpha samples, N the number of visible directions of an output (T^2 + T - 2 = 2N for a softmax),
against the dimension of what fits. kappa0 is the share of non-zero eigenvalues of the target.

Boncoraglio et al., arXiv:2509.24914, Corollary 1, eqs. (16)-(18), where a bare c is the root. The paper's eq. (16) is
0/0 without noise, its eq. (17) divides by zero at full rank, and its threshold 1/2 for a symmetric matrix, eq. (68),
counts one visible direction in the place of N.

Equations ai-interpolation, ai-recovery, ai-bayes of docs/theory/attention_index.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from ..targets.target import Target

#: How often a bracket is widened before an equation counts as one that numbers do not resolve.
MOST_DOUBLINGS = 100
#: Width of a field, in units of the noise, that stands for infinity; one plus its inverse square rounds to one.
_DIVERGED = 1e8


def bracketed_root(
    function: Callable[[float], float], low: float, high: float, what: str, *, xtol: float = 1e-13
) -> float:
    """Root between two points; FloatingPointError where there is none, or none that numbers resolve."""
    try:
        return float(brentq(function, low, high, xtol=xtol))  # type: ignore[arg-type]
    except (ValueError, RuntimeError) as error:
        words = f"{what} has no root that numbers resolve between {low:.3g} and {high:.3g}"
        raise FloatingPointError(words) from error


def interpolation(target: Target, noise: float, directions: int) -> float:
    """Largest alpha at which a positive semi-definite S fits noisy outputs exactly.

    DIV(delta, 0)/(2N) at the root of J(delta, 0) - (delta/2) J_delta = Q_0 + noise/2, eq. (16). Without noise S_0
    itself fits at every alpha, and the limit noise -> 0, which depends on kappa0 alone, marks where it becomes the only
    one. A target of zeros has no scale beside the noise, and the same limit.
    """
    if noise == 0 or target.mean_square == 0:
        return (1 - 0.5 * target.zero_mass**2) / (2 * directions)
    delta = interpolation_width(target, target.mean_square + 0.5 * noise)
    return target.convolution(delta).moments(0.0).divergence / (2 * directions)


def interpolation_width(target: Target, noisy_signal: float) -> float:
    """Return the delta of :func:`interpolation`; the left side of its equation increases with delta.

    For a target of zeros delta diverges. The function returns _DIVERGED then, because the end of a search would depend
    on rounding.
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
    """Alpha above which the interpolator of least trace is S_0, without noise; 1/(2N) for a target of full rank.

    [1 - (1-kappa0)^2 (M_2(c) - c M_1(c))]/(2N), M_k the k-th moment of a semicircle up to c and c the root of
    M_1(c) - c M_0(c) + c/(1-kappa0) = 0, eqs. (17), (18). It tends to 6 kappa0/(2N) for low rank, slowly.
    """
    zero, c = target.zero_mass, _recovery_cut(target)
    return (1 - zero**2 * (_semicircle_moment(2, c) - c * _semicircle_moment(1, c))) / (2 * directions)


def recovery_ratio(target: Target) -> float:
    """The ratio eps/delta at which both vanish, where recovery becomes exact; 0 for a target of full rank.

    Zeros of the target spread into a semicircle of radius 2 delta sqrt(1-kappa0).
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
    """Alpha above which the outputs determine a symmetric matrix: 1/(2N)."""
    return 1 / (2 * directions)


def exact_recovery_bayes(target: Target, directions: int) -> float:
    """Alpha above which the outputs determine a matrix whose spectrum is known, without noise.

    Matrices with eigenvalues of multiplicities w_i d have dimension (1 - sum w_i^2) d^2/2. Where only zero is
    repeated this is kappa0 (2 - kappa0)/(2N).
    """
    return (1 - float(np.sum(np.square(target.atom_weights)))) / (2 * directions)


def _semicircle_moment(order: int, c: float) -> float:
    """Moment of order 0, 1 or 2 of the semicircle law of radius two, over [-2, c]."""
    root = np.sqrt(max(4 - c * c, 0.0))
    arc = 0.5 + np.arcsin(np.clip(0.5 * c, -1, 1)) / np.pi
    closed = (arc + c * root / (4 * np.pi), -(root**3) / (6 * np.pi), arc + c * (c * c - 2) * root / (8 * np.pi))
    return float(closed[order])
