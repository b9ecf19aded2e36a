"""Training where no average over samples is needed: two equations for the numbers delta and eps.

They hold for a linear channel at any weight decay, and for any channel at vanishing decay below interpolation. The
learned matrix S has the eigenvalues (x - eps)_+, where x follows mu_delta, the target's law freely convolved with a
semicircle of variance delta^2. With a = 2N alpha and N visible directions the equations are

    a delta^2 = noise/2 + R(delta, eps),        2 eps (a - DIV(delta, eps)) = decay,

where R = |S - S_0|_F^2/d is a sum of positive terms, DIV the divergence of the estimate, and decay the strength of the
penalty on S. The left side of the second equation increases with eps. This gives a bracket for eps(delta), and then one
for delta. As the decay vanishes, the second equation becomes DIV = a, the interpolator of
least trace. Where DIV = a has no solution eps > 0, eps is zero. The interpolator of least norm, with a full S, is
explicit,

    E (1 - a) = Q_0 (1 - a)^2 + noise/2,   E = Q_0' - 2m + q,   m = a Q_0.

If the temperatures differ, 1/beta for the learner and 1/beta_0 for the target, an interpolator is beta_0/beta times
this one.

Boncoraglio et al., arXiv:2509.24914, eqs. (57), (63), (64) and, for linear attention, (65). There lambda-tilde in front
of the derivative of J in eps is a misprint for one, and Q_0 in the last line a misprint for Q_0'. The full case
corrects eq. (68): its 1 - 2 alpha should be 1 - 2 N alpha.

Equation ai-ridgeless of docs/theory/attention_index.md.
Equation sc-two of docs/theory/scaling.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ...numerics import interrupts
from ..penalties.spectral_estimate import narrow_cut, overlaps
from ..spectra.convolution import Convolution
from ..targets.target import Target

#: Step of log delta, and relative step of eps, at which the iteration has converged.
_SETTLED, _CUT_SETTLED = 1e-11, 1e-8
#: Error of the logarithm of the first equation by rounding and quadrature.
_ROUNDING = 2e-14
_TINY = 1e-300
#: Largest step of log delta, largest number of steps, and fall of log delta from its start beyond which delta is zero.
_MOVE, _STEPS, _LOWEST = 2.0, 80, 60.0


class LearnedLaw(NamedTuple):
    """Order parameters of a learned matrix S, and delta, eps and scale of its eigenvalues scale (x - eps)_+."""

    m: float
    q: float
    delta: float
    eps: float
    scale: float
    apart: float
    """q - m^2/Q_0, computed from positive terms."""
    divergence: float
    """DIV: Sigma times Sigmahat."""
    rank: float
    left_out: float = 0.0
    """Share of the eigenvalues above eps that a narrow W has no column for."""

    def error(self, signal: float) -> float:
        """Return |S - S_0|_F^2/d, the squared distance from a target of mean square ``signal`` = Q_0."""
        return squared_distance(signal, self.m, self.apart)


def squared_distance(signal: float, m: float, apart: float) -> float:
    """Return |S - S_0|_F^2/d = Q_0 - 2m + q as a sum of positive terms; ``apart`` is q - m^2/Q_0."""
    return apart + (signal - m) ** 2 / signal if signal > 0 else apart


def two_equations(target: Target, noise: float, samples: float, decay: float, width: float = np.inf) -> LearnedLaw:
    """Return the order parameters and eigenvalues of the learned S, from the two equations for delta and eps.

    FloatingPointError is raised where delta vanishes: at exact recovery, without noise and decay.

    Parameters
    ----------
    target : Target
    noise : float
        Variance of the noise on the diagonal.
    samples : float
        2N alpha, N the number of visible directions.
    decay : float
        Strength of the penalty on S, sqrt(width_ratio) weight_decay.
    width : float
        Columns of W over the dimension. If there are more eigenvalues above eps, only the largest are kept.
    """
    Q0, ratio = target.mean_square, 2.0

    def at(log_delta: float) -> LearnedLaw:
        nonlocal ratio
        convolution = target.convolution(float(np.exp(log_delta)))
        eps = _cut(convolution, samples, decay, width, near=ratio * convolution.delta)
        ratio = eps / convolution.delta
        return _law(convolution, Q0, eps, width)

    def surplus(log_delta: float) -> float:
        return float(np.log(samples) + 2 * log_delta - np.log(0.5 * noise + at(log_delta).error(Q0)))

    return at(_increasing_root(surplus, 0.5 * float(np.log((0.5 * noise + Q0) / samples))))


def _law(convolution: Convolution, signal: float, eps: float, width: float) -> LearnedLaw:
    low, left_out = narrow_cut(convolution, eps, width)
    x, weight, _ = nodes = convolution.nodes_cut_at(low)
    m, q, response, apart = overlaps(signal, convolution.delta, nodes, np.where(x > low, x - eps, 0.0))
    rank = float(weight[x > low].sum())
    return LearnedLaw(m, q, convolution.delta, eps, 1.0, apart, 2 * response, rank, left_out)


def _cut(convolution: Convolution, samples: float, decay: float, width: float, near: float) -> float:
    """Return the root eps of the second equation at this delta, by Newton's method from ``near`` and by bisection."""
    fits, _ = narrow_cut(convolution, 0.0, width)  # x_m, which does not depend on eps as long as x_m > eps

    def surplus(eps: float) -> tuple[float, float]:
        low = max(eps, fits)
        x, weight, g = convolution.nodes_cut_at(low)
        pull = np.where(x > low, weight * g.real, 0.0)
        pressure = 0.5 * decay / eps if decay > 0 else 0.0
        return samples - 2 * float(pull @ (x - eps)) - pressure, 2 * float(pull.sum()) + pressure / max(eps, _TINY)

    low = 0.5 * decay / samples  # the root if DIV were 0, as if nothing were learned
    high = max(float(convolution.edges[-1, 1]), 0.0) + low
    if surplus(high)[0] <= 0:
        return high
    if decay == 0 and surplus(0.0)[0] >= 0:
        return 0.0
    eps = near if low < near < high else 0.5 * (low + high)
    for _ in range(_STEPS):
        value, slope = surplus(eps)
        low, high = (eps, high) if value < 0 else (low, eps)
        after = eps - value / slope if slope > 0 else np.nan
        if abs(after - eps) <= _CUT_SETTLED * eps:
            return after
        eps = after if low < after < high else 0.5 * (low + high)
    return eps


def _increasing_root(function: Callable[[float], float], start: float) -> float:
    """Return the root of an increasing function of unknown scale, by secants from ``start`` within enclosing points.

    Each value costs a convolution. Brent's method, once the root is enclosed, needs 1.4 times as many values.
    """
    low, high = -np.inf, np.inf
    x, value, slope = start, function(start), 1.0
    for _ in range(_STEPS):
        interrupts.check()
        low, high = (x, high) if value < 0 else (low, x)
        step = float(np.clip(-value / slope, -_MOVE, _MOVE))
        if abs(step) < _SETTLED or high - low < _SETTLED or abs(value) < _ROUNDING:
            return x
        after = x + step
        if not low < after < high:
            after = 0.5 * (low + high)
        if after < start - _LOWEST:
            break
        before, last, x, value = x, value, after, function(after)
        slope = (value - last) / (x - before)
        if slope <= 0:  # the function is flat far from its root: take the longest step
            slope = abs(value) / _MOVE
    raise FloatingPointError(f"the noise in the field vanishes or is not resolved: log delta = {x:.3g}")


def least_norm(target: Target, noise: float, samples: float) -> LearnedLaw:
    """Return the full S of least norm that fits all data, at ``samples`` = 2 N alpha < 1."""
    Q0, left = target.mean_square, 1 - samples
    m = samples * Q0
    apart = samples * (Q0 * left + 0.5 * noise / left)  # q - m^2/Q_0
    delta = float(np.sqrt(apart)) / samples
    return LearnedLaw(m, apart + samples * m, delta, 0.0, samples, apart, samples, 1.0)
