"""The matrix side of state evolution: a penalty on the spectrum turns the effective field into an estimate of S.

The estimate is a function of the field mhat S_0 + sqrt(qhat) GOE = mhat M, where the eigenvalues x of M follow
mu_delta, the law of S_0 freely convolved with a semicircle, delta = sqrt(qhat)/mhat. An eigenvalue x becomes

    t(x) = argmin_t [ r(t) + Sigmahat t^2/4 - mhat x t/2 ],

where d Tr r(S) is the penalty. With g the Stieltjes transform of mu_delta,

    q = E t^2,      m = E t (x - 2 delta^2 Re g),      Sigma = (2/mhat) E t Re g.

The second is E tr(S S_0)/d: what the noise contributes to E t x is delta^2 times the divergence of t, and that
divergence is a single integral, the double one being the Hilbert transform 2 Re g.

Of ``apart`` = q - m^2/Q_0 every term is positive, with rho = m/Q_0 and k = x - 2 delta^2 Re g the best estimate,

    q - m^2/Q_0 = E [ rho^2 delta^2 (1 - delta^2 |g|^2) + (t - rho k)^2 ],

so that an estimate which is nearly right is known as well as any other: the squared distance from the target is
``apart`` + (Q_0 - m)^2/Q_0.

Boncoraglio et al., arXiv:2509.24914, eqs. (39), (43), (44), with the penalty divided by d, where the paper prints d^2.

Equations ai-penalty, ai-denoiser, ai-matrix, ai-full of docs/theory/attention_index.md.
Equations sc-error, sc-narrow of docs/theory/scaling.md.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

from ..spectra.convolution import Array, ComplexArray, Convolution, posterior_variance
from ..targets.target import Target

Elementwise = Callable[[np.ndarray], np.ndarray]

#: Share of the width by which a bulk may exceed it and still count as fitting in.
_FITS = 1e-6
#: Entries of a table over pairs of eigenvalues that are held at a time.
_BLOCK = 2**21
#: Error of the cut of a narrow learner, relative to the largest eigenvalue.
_CLOSE = 1e-15


class MatrixEstimate(NamedTuple):
    """The order parameters of the estimate of S.

    Attributes
    ----------
    m, q : float
        Tr(S S_0)/d and Tr(S^2)/d.
    Sigma : float
        Response of the estimate to its field.
    penalty : float
        Tr r(S)/d, what the penalty adds to the loss L/d^2.
    envelope : float
        E min_t [r(t) + Sigmahat t^2/4 - mhat x t/2], the matrix part of the potential.
    rank : float
        Share of eigenvalues that are not zero.
    apart : float
        q - m^2/Q_0, what the estimate has beside its part along the target, from positive terms.
    left_out : float
        Share of eigenvalues that the penalty would keep but a narrow W has no column for.
    """

    m: float
    q: float
    Sigma: float
    penalty: float
    envelope: float
    rank: float
    apart: float
    left_out: float = 0.0


class Penalty(abc.ABC):
    """A rotation-invariant penalty d Tr r(S), possibly with a cone to which S belongs."""

    @abc.abstractmethod
    def estimate(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> MatrixEstimate:
        """Order parameters at a given field."""

    @abc.abstractmethod
    def cut_and_scale(self, mhat: float, Sigmahat: float) -> tuple[float, float]:
        """The numbers eps and scale of t(x) = scale (x - eps)_+, or scale x; nan for a t of another form."""

    @abc.abstractmethod
    def squared_response(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> float:
        """E [(t(x) - t(y))/(mhat (x - y))]^2 over two independent eigenvalues: the matrix part of the replicon."""


class Overlaps(NamedTuple):
    """Averages over mu_delta that every estimate t(x) has: m, q, E t Re g, and ``apart`` of :class:`MatrixEstimate`."""

    m: float
    q: float
    response: float
    apart: float


def overlaps(signal: float, delta: float, nodes: tuple[Array, Array, ComplexArray], t: Array) -> Overlaps:
    """The averages from the values t of an estimate at the nodes (x, weight, g) of mu_delta; ``signal`` is Q_0."""
    x, weight, g = nodes
    best, left = x - 2 * delta**2 * g.real, posterior_variance(delta, g)
    if signal == 0:  # zeros alone have nothing to be aligned with
        q = float(weight @ t**2)
        return Overlaps(0.0, q, float(weight @ (t * g.real)), q)
    m = float(weight @ (t * best))
    if m > 0.5 * signal:  # from what is missing, Q_0 - m, since weights of narrow bulks are known to a few digits only
        m = signal - float(weight @ (left + best * (best - t)))
    along = m / signal
    apart = float(weight @ (along**2 * left + (t - along * best) ** 2))
    return Overlaps(m, apart + m**2 / signal, float(weight @ (t * g.real)), apart)


class NuclearNorm(Penalty):
    """r(t) = strength t on positive semi-definite matrices: weight decay of a factor W of S = W W^T.

    t(x) = (mhat x - 2 strength)_+ / Sigmahat = scale (x - eps)_+: the first three lines of eq. (55), whose
    J(delta, eps) is int_eps (x - eps)^2 mu_delta.

    A factor with fewer columns than there are eigenvalues above eps keeps the largest ones, t(x) = scale (x - eps) for
    x above x_m with mu_delta((x_m, inf)) = width, and zero below. That is a heuristic: the constraint on the rank is
    not convex, and where x_m lies inside a bulk the replicon diverges.

    Parameters
    ----------
    strength : float
    width : float
        Columns of the factor over the dimension.
    """

    def __init__(self, strength: float, width: float = np.inf) -> None:
        self.strength, self.width = strength, width

    def estimate(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> MatrixEstimate:
        delta, (eps, scale) = np.sqrt(qhat) / mhat, self.cut_and_scale(mhat, Sigmahat)
        convolution = target.convolution(delta)
        low, left_out = narrow_cut(convolution, eps, self.width)
        x, weight, _ = nodes = convolution.nodes_cut_at(low)
        t = np.where(x > low, scale * (x - eps), 0.0)
        found = overlaps(target.mean_square, delta, nodes, t)
        penalty = self.strength * float(weight @ t)
        return MatrixEstimate(
            m=found.m,
            q=found.q,
            Sigma=2 / mhat * found.response,
            penalty=penalty,
            envelope=penalty + 0.25 * Sigmahat * found.q - 0.5 * mhat * float(weight @ (t * x)),
            rank=float(weight[x > low].sum()),
            apart=found.apart,
            left_out=left_out,
        )

    def cut_and_scale(self, mhat: float, Sigmahat: float) -> tuple[float, float]:
        return 2 * self.strength / mhat, mhat / Sigmahat

    def squared_response(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> float:
        convolution, eps = target.convolution(np.sqrt(qhat) / mhat), 2 * self.strength / mhat
        low, left_out = narrow_cut(convolution, eps, self.width)
        if left_out > 0 and ((convolution.edges[:, 0] < low) & (low < convolution.edges[:, 1])).any():
            return np.inf  # of a jump inside a bulk the squared quotient has no integral
        x, weight, _ = convolution.nodes_cut_at(low)
        above = x > low
        # Of (x - eps)_+ the quotient is 1 where both are above, 0 where both are below.
        y, below = x[~above], weight[~above]
        across = 0.0
        for part in np.array_split(np.flatnonzero(above), 1 + above.sum() * len(y) // _BLOCK):
            across += float(weight[part] @ ((x[part, None] - eps) / (x[part, None] - y)) ** 2 @ below)
        return float(weight[above].sum() ** 2 + 2 * across) / Sigmahat**2


def narrow_cut(convolution: Convolution, eps: float, width: float) -> tuple[float, float]:
    """x_m above which a factor keeps eigenvalues, and the share of them above eps for which it has no column.

    Where the eigenvalues above a gap just fit in, x_m is in the middle of the gap.
    """
    if width >= 1:
        return eps, 0.0
    wanted = float(convolution.mass_above(eps))
    if wanted <= width * (1 + _FITS):
        return eps, 0.0
    gaps = 0.5 * (convolution.edges[:-1, 1] + convolution.edges[1:, 0])
    gaps = gaps[gaps > eps]
    masses = convolution.mass_above(gaps) if len(gaps) else gaps
    fitting = np.flatnonzero(abs(masses - width) <= _FITS * width)
    if len(fitting):
        return float(gaps[fitting[0]]), wanted - width
    low = max([eps, *gaps[masses > width]])
    high = min([float(convolution.edges[-1, 1]), *gaps[masses < width]])
    found: Any = brentq(lambda x: float(convolution.mass_above(x)) - width, low, high, xtol=_CLOSE * high)
    return float(found), wanted - width


class SquaredNorm(Penalty):
    """r(t) = strength t^2 on symmetric matrices; of the target only Q_0 matters: the first three lines of eq. (66).

    The penalty of eq. (20) lacks the factor d without which it vanishes in the limit.
    """

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def estimate(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> MatrixEstimate:
        stiffness = Sigmahat + 4 * self.strength
        square = target.mean_square * mhat**2 + qhat
        q = square / stiffness**2
        m, envelope = target.mean_square * mhat / stiffness, -0.25 * square / stiffness
        return MatrixEstimate(m, q, 1 / stiffness, self.strength * q, envelope, rank=1.0, apart=qhat / stiffness**2)

    def cut_and_scale(self, mhat: float, Sigmahat: float) -> tuple[float, float]:
        return 0.0, mhat / (Sigmahat + 4 * self.strength)

    def squared_response(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> float:
        return 1 / (Sigmahat + 4 * self.strength) ** 2


class SpectralPenalty(Penalty):
    """A penalty given by its own r, convex, on all symmetric matrices or on the positive semi-definite ones.

    Parameters
    ----------
    function : callable
        r(t), elementwise on a NumPy array; away from t = 0 it should be smooth.
    derivative : callable
        r'(t), likewise.
    positive : bool
        Whether S is confined to the positive semi-definite cone.
    """

    def __init__(self, function: Elementwise, derivative: Elementwise, *, positive: bool = True) -> None:
        self.function, self.derivative, self.positive = function, derivative, positive

    def denoise(self, x: np.ndarray, mhat: float, Sigmahat: float) -> np.ndarray:
        """t(x), where r'(t) + Sigmahat t/2 = mhat x/2, by bisection: the left side increases."""
        pull = 0.5 * mhat * np.asarray(x, float)
        reach = 2 * (abs(pull) + abs(float(self.derivative(np.zeros(1))[0])) + 1e-12) / Sigmahat
        low, high = (np.zeros_like(pull) if self.positive else -reach), reach.copy()
        for _ in range(90):
            middle = 0.5 * (low + high)
            above = self.derivative(middle) + 0.5 * Sigmahat * middle > pull
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        found = 0.5 * (low + high)
        return np.where(found < 1e-15 * reach, 0.0, found) if self.positive else found

    def _cut(self, mhat: float) -> float:
        """Eigenvalue of the field below which the estimate is zero."""
        return 2 * float(self.derivative(np.zeros(1))[0]) / mhat if self.positive else -np.inf

    def estimate(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> MatrixEstimate:
        delta, cut = np.sqrt(qhat) / mhat, self._cut(mhat)
        x, weight, _ = nodes = target.convolution(delta).nodes_cut_at(cut)
        t = np.where(x > cut, self.denoise(x, mhat, Sigmahat), 0.0)
        found = overlaps(target.mean_square, delta, nodes, t)
        penalty = float(weight @ self.function(t))
        return MatrixEstimate(
            m=found.m,
            q=found.q,
            Sigma=2 / mhat * found.response,
            penalty=penalty,
            envelope=penalty + 0.25 * Sigmahat * found.q - 0.5 * mhat * float(weight @ (t * x)),
            rank=float(weight @ (abs(t) > 1e-12 * abs(t).max())),
            apart=found.apart,
        )

    def cut_and_scale(self, mhat: float, Sigmahat: float) -> tuple[float, float]:
        return np.nan, np.nan

    def squared_response(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> float:
        cut = self._cut(mhat)
        found = _squared_difference(
            target, np.sqrt(qhat) / mhat, cut, lambda x: self.denoise(x, mhat, Sigmahat) * (x > cut)
        )
        return found / mhat**2


def _squared_difference(target: Target, delta: float, cut: float, function: Elementwise) -> float:
    """E [(f(x) - f(y))/(x - y)]^2 over two independent draws from mu_delta; f has a kink at ``cut``."""
    x, w, _ = target.convolution(delta).nodes_cut_at(cut)
    f = function(x)
    difference = x[:, None] - x[None, :]
    close = abs(difference) < 1e-9 * max(1.0, float(np.ptp(x)))
    step = 1e-6 * max(1.0, float(np.ptp(x)))
    slope = (function(x + step * (x > cut)) - f) / step
    ratio = np.where(close, slope[:, None], (f[:, None] - f[None, :]) / np.where(close, 1.0, difference))
    return float(w @ ratio**2 @ w)
