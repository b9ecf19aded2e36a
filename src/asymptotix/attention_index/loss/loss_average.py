"""Averages of a loss and of its proximal map over the target's and the learner's pre-activations.

The loss side of the state evolution is a function of three numbers (m, q, Sigma) through the proximal map p of
:mod:`.proximal`, averaged over coordinates (z0, z), independent for different ones, with covariance [[Q0', m], [m, q]]:

    z = (m/Q0') z0 + c_1 xi,    c_1^2 = q - m^2/Q0',    f = (p - z)/Sigma.

Boncoraglio et al., arXiv:2509.24914, eqs. (8), (9), (11), (12). In the general form, eqs. (45), (48), (49), (54), the
paper has Q0 for Q0' = Q0 + noise/2 and a sum over components in front of a loss that is the sum already.
"""

from __future__ import annotations

import abc
import math
from typing import NamedTuple

import numpy as np

from ...numerics import checks
from .proximal import ProximalMap, softmax_map
from .quadrature_nodes import sobol_nodes, two_token_nodes


class LossAverages(NamedTuple):
    """Averages over (z0, z)."""

    f_square: float
    """E|f|^2."""
    f_noise: float
    """E tr df/dz as E[f.xi]/c_1, jumps of p included."""
    f_target: float
    """E[f.z0]."""
    test: float
    """E loss(y, z)."""
    train: float
    """E loss(y, p)."""
    moreau: float
    """E min_h {|h - z|^2/(2 Sigma) + loss(y, h)}."""
    response: float
    """E ||(dp/dz - 1)/Sigma||_F^2, jumps of p left out."""
    trace: float
    """E tr dp/dz, jumps of p left out."""
    jump_weight: float
    """Share of the samples at which descents from different starts ended in different minima; nan if one was made."""


class LossAverage(abc.ABC):
    """A loss, its averages a function of ``signal`` = Q0' (noise included), m, q and Sigma."""

    visible_directions: int
    """Number N of coordinates."""

    @abc.abstractmethod
    def __call__(self, signal: float, m: float, q: float, Sigma: float, *, multi_start: bool) -> LossAverages:
        """Averages at one point; with ``multi_start`` the lowest of several minima is looked for."""


class NodeAverage(LossAverage):
    """Averages as sums over fixed nodes of the 2N standard normals behind (z0, z).

    The proximal points of one call are where the next one starts, which is then several times faster. The sums run
    in a fixed order, so equal arguments with equal starts give equal bits.
    """

    def __init__(self, proximal: ProximalMap, nodes: np.ndarray, weights: np.ndarray) -> None:
        self.proximal, self.visible_directions = proximal, proximal.visible_directions
        N = self.visible_directions
        self.weights = weights
        self._target = np.ascontiguousarray(nodes[:, :N])
        self._noise = np.ascontiguousarray(nodes[:, N:])
        self._previous: np.ndarray | None = None

    def __call__(self, signal: float, m: float, q: float, Sigma: float, *, multi_start: bool) -> LossAverages:
        spread = _spread(signal, m, q, Sigma)
        z0 = math.sqrt(signal) * self._target
        z = (m / signal) * z0 + spread * self._noise
        points = self.proximal.solve(z0, z, Sigma, self._previous, multi_start)
        self._previous = points.p
        trace, response = self.proximal.derivative(points.y, points.p, Sigma)
        f = (points.p - z) / Sigma
        mean_trace = self._mean(trace)
        return LossAverages(
            f_square=self._mean(_dot(f, f)),
            # E[f.xi]/c_1 is 0/0 without noise, where nothing can jump either
            f_noise=self._mean(_dot(f, self._noise)) / spread if spread > 0 else (mean_trace - z.shape[1]) / Sigma,
            f_target=self._mean(_dot(f, z0)),
            test=self._mean(self.proximal.loss(points.y, z)),
            train=self._mean(self.proximal.loss(points.y, points.p)),
            moreau=self._mean(points.value),
            response=self._mean(response),
            trace=mean_trace,
            jump_weight=self._mean(points.disagree) if multi_start else math.nan,
        )

    def _mean(self, values: np.ndarray) -> float:
        return float(np.sum(self.weights * values))


class SquaredSoftmax(NodeAverage):
    """Squared error between the softmax attention matrices of target and learner.

    Parameters
    ----------
    tokens : int
        T >= 2.
    beta, target_beta : float
        Inverse temperatures of the learner and of the target.
    order : int, optional
        Gauss-Hermite nodes per axis, for two tokens only; the default there, 24, leaves some 23,000 nodes.
    count : int, optional
        Scrambled Sobol nodes, a power of two, in place of Gauss-Hermite: the default, 2**14, for more than two tokens.
        Preferable for two tokens as well where p jumps on more than a thousandth of the samples.
    seed : int
        Randomisation of the Sobol nodes.
    """

    def __init__(
        self,
        tokens: int,
        beta: float,
        target_beta: float,
        *,
        order: int | None = None,
        count: int | None = None,
        seed: int = 0,
    ) -> None:
        tokens = checks.integer("tokens", tokens, 2)
        beta, target_beta = checks.positive("beta", beta), checks.positive("target_beta", target_beta)
        if order is not None and (tokens > 2 or count is not None):
            raise ValueError(f"order is for two tokens and no count, got order={order}, tokens={tokens}, count={count}")
        proximal = softmax_map(tokens, float(beta), float(target_beta))
        if tokens == 2 and count is None:
            super().__init__(proximal, *two_token_nodes(24 if order is None else order))
        else:
            count = 2**14 if count is None else count
            super().__init__(proximal, *sobol_nodes(count, proximal.visible_directions, seed))


class QuadraticLinear(LossAverage):
    """Linear attention: the squared error ||R - h||_F^2 between the pre-activations themselves, in closed form.

    The diagonal entries are sqrt2 z_aa and the others stand twice in the sum, so it is 2 |z0 - z|^2 in all L
    coordinates, and p = (z + 4 Sigma z0)/(1 + 4 Sigma).
    """

    def __init__(self, tokens: int) -> None:
        tokens = checks.integer("tokens", tokens, 1)
        self.visible_directions = tokens * (tokens + 1) // 2

    def __call__(self, signal: float, m: float, q: float, Sigma: float, *, multi_start: bool) -> LossAverages:
        _spread(signal, m, q, Sigma)
        L, shrink = self.visible_directions, 1 / (1 + 4 * Sigma)
        error = 2 * L * (signal - 2 * m + q)
        return LossAverages(
            f_square=8 * error * shrink**2,
            f_noise=-4 * L * shrink,
            f_target=4 * L * (signal - m) * shrink,
            test=error,
            train=error * shrink**2,
            moreau=error * shrink,
            response=16 * L * shrink**2,
            trace=L * shrink,
            jump_weight=0.0,
        )


def _spread(signal: float, m: float, q: float, Sigma: float) -> float:
    """c_1, the standard deviation of z given z0."""
    checks.positive("signal", signal)
    checks.positive("Sigma", Sigma)
    checks.number("m", m)
    variance = checks.non_negative("q", q) - m * m / signal
    if variance < -1e-9 * q:
        raise ValueError(f"m must be at most sqrt(q * signal) = {math.sqrt(q * signal)} in absolute value, got {m}")
    return math.sqrt(max(variance, 0.0))


def _dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.einsum("ik,ik->i", x, y)
