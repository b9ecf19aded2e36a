"""The matrix side of state evolution: a penalty on the spectrum turns the effective field into an estimate of S.

The estimate is a function of the field mhat S_0 + sqrt(qhat) GOE = mhat M, where the eigenvalues x of M follow
mu_delta, the law of S_0 freely convolved with a semicircle, delta = sqrt(qhat)/mhat. An eigenvalue x becomes

    t(x) = argmin_t [ r(t) + Sigmahat t^2/4 - mhat x t/2 ],

where d Tr r(S) is the penalty. With g the Stieltjes transform of mu_delta,

    q = E t^2,      m = E t (x - 2 delta^2 Re g),      Sigma = (2/mhat) E t Re g.

The second is E tr(S S_0)/d: what the noise contributes to E t x is delta^2 times the divergence of t, and that
divergence is a single integral, the double one being the Hilbert transform 2 Re g.

Boncoraglio et al., arXiv:2509.24914, eqs. (39), (43), (44), with the penalty divided by d, where the paper prints d^2.

Equations ai-penalty, ai-denoiser, ai-matrix, ai-full of docs/theory/attention_index.md.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from ..spectra.convolution import Convolution
from ..targets.target import Target

Elementwise = Callable[[np.ndarray], np.ndarray]


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
    """

    m: float
    q: float
    Sigma: float
    penalty: float
    envelope: float
    rank: float


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


class NuclearNorm(Penalty):
    """r(t) = strength t on positive semi-definite matrices: weight decay of a factor W of S = W W^T.

    t(x) = (mhat x - 2 strength)_+ / Sigmahat, and with J(delta, eps) = int_eps (x - eps)^2 mu_delta, eps = 2 strength
    / mhat, all averages are derivatives of J: the first three lines of eq. (55).
    """

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def estimate(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> MatrixEstimate:
        delta, eps = np.sqrt(qhat) / mhat, 2 * self.strength / mhat
        J, J_delta, J_eps, mass, divergence = target.convolution(delta).moments(eps)
        scale = mhat / Sigmahat
        return MatrixEstimate(
            m=scale * (J - 0.5 * eps * J_eps - 0.5 * delta * J_delta),
            q=scale**2 * J,
            Sigma=divergence / Sigmahat,
            penalty=-0.5 * self.strength * scale * J_eps,
            envelope=-0.25 * mhat * scale * J,
            rank=mass,
        )

    def cut_and_scale(self, mhat: float, Sigmahat: float) -> tuple[float, float]:
        return 2 * self.strength / mhat, mhat / Sigmahat

    def squared_response(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> float:
        # Of (x - eps)_+ the quotient is 1 where both are above eps, 0 where both are below.
        convolution, eps = target.convolution(np.sqrt(qhat) / mhat), 2 * self.strength / mhat
        x, above, _ = convolution.nodes(eps)
        y, below = _nodes_below(convolution, eps)
        across = above @ ((x - eps)[:, None] / (x[:, None] - y)) ** 2 @ below
        return float(above.sum() ** 2 + 2 * across) / Sigmahat**2


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
        return MatrixEstimate(m, q, 1 / stiffness, self.strength * q, envelope, rank=1.0)

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
        delta = np.sqrt(qhat) / mhat
        x, weight, h = target.convolution(delta).nodes(self._cut(mhat))
        t = self.denoise(x, mhat, Sigmahat)
        at_zero = float(self.function(np.zeros(1))[0]) * (1 - weight.sum())
        penalty = float(weight @ self.function(t)) + at_zero
        q = float(weight @ t**2)
        return MatrixEstimate(
            m=float(weight @ (t * (x - 2 * delta**2 * h))),
            q=q,
            Sigma=2 / mhat * float(weight @ (t * h)),
            penalty=penalty,
            envelope=penalty + 0.25 * Sigmahat * q - 0.5 * mhat * float(weight @ (t * x)),
            rank=float(weight @ (abs(t) > 1e-12 * abs(t).max())),
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
    convolution = target.convolution(delta)
    x, w, _ = convolution.nodes(cut)
    low_x, low_w = _nodes_below(convolution, cut)
    x, w = np.concatenate([low_x, x]), np.concatenate([low_w, w])
    f = function(x)
    difference = x[:, None] - x[None, :]
    close = abs(difference) < 1e-9 * max(1.0, float(np.ptp(x)))
    step = 1e-6 * max(1.0, float(np.ptp(x)))
    slope = (function(x + step * (x > cut)) - f) / step
    ratio = np.where(close, slope[:, None], (f[:, None] - f[None, :]) / np.where(close, 1.0, difference))
    return float(w @ ratio**2 @ w)


def _nodes_below(convolution: Convolution, cut: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of mu_delta below the cut; x = middle + half cos(theta) is smooth at the edges."""
    theta, weight = _legendre()
    angle = 0.5 * np.pi * (theta + 1)
    parts = [(a, min(b, cut)) for a, b in convolution.edges if a < cut]
    x = np.concatenate([np.zeros(0), *(0.5 * (a + b) + 0.5 * (b - a) * np.cos(angle) for a, b in parts)])
    measure = [0.25 * np.pi * (b - a) * np.sin(angle) * weight for a, b in parts]
    return x, np.concatenate([np.zeros(0), *measure]) * convolution.density(x)


@cache
def _legendre() -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(120)
