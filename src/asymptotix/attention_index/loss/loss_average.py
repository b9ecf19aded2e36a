"""Averages of a loss and of its proximal map over the target's and the learner's pre-activations.

The loss side of state evolution is a function of the three numbers (m, q, Sigma). It averages the proximal map p of
:mod:`.proximal` over N independent Gaussian pairs of coordinates (z0, z), with covariance [[Q0', m], [m, q]]:

    z = (m/Q0') z0 + c_1 xi,    c_1^2 = q - m^2/Q0',    f = (p - z)/Sigma.

Boncoraglio et al., arXiv:2509.24914, eqs. (8), (9), (11), (12). In the general form, eqs. (45), (48), (49), (54), the
paper has Q0 instead of Q0' = Q0 + noise/2, and a sum over components of a loss that already contains this sum.
"""

from __future__ import annotations

import abc
import math
from typing import NamedTuple

import numpy as np

from ...numerics import checks
from .proximal import ProximalMap, ProximalPoints, softmax_map
from .quadrature_nodes import sobol_nodes, two_token_nodes


class LossAverages(NamedTuple):
    """Averages over (z0, z), with p the proximal point and f = (p - z)/Sigma."""

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
    """Share of the samples whose descents from several starts ended in different minima; nan for a single start."""


class Pull(NamedTuple):
    """The first three of :class:`LossAverages`, which determine the field that the data exert on S."""

    f_square: float
    f_noise: float
    f_target: float
    points: np.ndarray | None
    """The proximal points (n, N): descents at nearby order parameters are several times faster from there."""
    several: np.ndarray | bool
    """Samples at which descents from different starts ended in different minima (n,), or False for none."""


class LossAverage(abc.ABC):
    """A loss whose averages are functions of ``signal`` = Q0' (noise included), m, q and Sigma.

    Calls do not influence later results: equal arguments give equal bits, in any order and from any thread.
    """

    visible_directions: int
    """Number N of coordinates."""
    least_response: float = 1e-9
    """Smallest Sigma, used instead of zero: below it, differences of points divided by Sigma lose their digits."""
    grain: float = 0.0
    """Weight of a sample if all weights are equal, else 0: the averages change by about this where one sample jumps."""

    @abc.abstractmethod
    def pull(
        self,
        signal: float,
        m: float,
        q: float,
        Sigma: float,
        near: np.ndarray | None = None,
        multi_start: bool | np.ndarray = False,
        spread: float | None = None,
    ) -> Pull:
        """Return the averages of :class:`Pull`, by one descent of the proximal map per sample.

        Descents start from ``near`` (n, N), if given. With ``multi_start`` the lowest of several minima is searched, at
        all samples (True) or at those of a mask (n,). ``spread`` is c_1, the standard deviation of z given z0, if it is
        known better than from the difference q - m^2/Q0'.
        """

    @abc.abstractmethod
    def evaluate(
        self,
        signal: float,
        m: float,
        q: float,
        Sigma: float,
        *,
        multi_start: bool | np.ndarray,
        near: np.ndarray | None = None,
        spread: float | None = None,
    ) -> tuple[LossAverages, Pull]:
        """Return all averages, and the result of :meth:`pull` with the same arguments."""

    @abc.abstractmethod
    def test(self, signal: float, m: float, q: float, spread: float | None = None) -> float:
        """Return the test error E loss(y, z) alone, which needs no proximal map."""

    def __call__(self, signal: float, m: float, q: float, Sigma: float, *, multi_start: bool) -> LossAverages:
        """Return all averages; the arguments are those of :meth:`pull`."""
        return self.evaluate(signal, m, q, Sigma, multi_start=multi_start)[0]


class NodeAverage(LossAverage):
    """Averages over fixed nodes (K, 2N), N standard normals for z0 and N for the noise, with weights (K,)."""

    def __init__(self, proximal: ProximalMap, nodes: np.ndarray, weights: np.ndarray) -> None:
        self.proximal, self.visible_directions = proximal, proximal.visible_directions
        N = self.visible_directions
        self.weights, self.grain = weights, float(weights[0]) if np.ptp(weights) == 0 else 0.0
        self._target = np.ascontiguousarray(nodes[:, :N])
        self._noise = np.ascontiguousarray(nodes[:, N:])
        self._outputs = math.nan, np.empty(0)

    def pull(
        self,
        signal: float,
        m: float,
        q: float,
        Sigma: float,
        near: np.ndarray | None = None,
        multi_start: bool | np.ndarray = False,
        spread: float | None = None,
    ) -> Pull:
        spread = _spread(signal, m, q, Sigma, spread)
        z0, z = self._fields(signal, m, spread)
        points = self._points(signal, z0, z, Sigma, near, multi_start)
        return self._pull(points, z0, z, spread, Sigma)

    def evaluate(
        self,
        signal: float,
        m: float,
        q: float,
        Sigma: float,
        *,
        multi_start: bool | np.ndarray,
        near: np.ndarray | None = None,
        spread: float | None = None,
    ) -> tuple[LossAverages, Pull]:
        spread = _spread(signal, m, q, Sigma, spread)
        z0, z = self._fields(signal, m, spread)
        points = self._points(signal, z0, z, Sigma, near, multi_start)
        pull = self._pull(points, z0, z, spread, Sigma)
        trace, response = self.proximal.derivative(points.y, points.p, Sigma)
        moreau = self._mean(points.value)
        averages = LossAverages(
            f_square=pull.f_square,
            f_noise=pull.f_noise,
            f_target=pull.f_target,
            test=self._mean(self.proximal.loss(points.y, z)),
            train=moreau - 0.5 * Sigma * pull.f_square,  # without |p - z|^2/(2 Sigma)
            moreau=moreau,
            response=self._mean(response),
            trace=self._mean(trace),
            jump_weight=math.nan if multi_start is False else self._mean(points.disagree),
        )
        return averages, pull

    def test(self, signal: float, m: float, q: float, spread: float | None = None) -> float:
        z0, z = self._fields(signal, m, _spread(signal, m, q, known=spread))
        return self._mean(self.proximal.loss(self._output(signal, z0), z))

    def _fields(self, signal: float, m: float, spread: float) -> tuple[np.ndarray, np.ndarray]:
        z0 = math.sqrt(signal) * self._target
        return z0, (m / signal) * z0 + spread * self._noise

    def _points(
        self,
        signal: float,
        z0: np.ndarray,
        z: np.ndarray,
        Sigma: float,
        near: np.ndarray | None,
        multi_start: bool | np.ndarray,
    ) -> ProximalPoints:
        # minima that two starts miss are part of the noise of random nodes; a node of a rule may have a large weight
        thorough = self.grain == 0
        return self.proximal.solve(z0, z, Sigma, near, multi_start, self._output(signal, z0), thorough)

    def _output(self, signal: float, z0: np.ndarray) -> np.ndarray:
        """Return the target's outputs at z0. The last ones are cached: all calls of a theory have the same signal."""
        known, outputs = self._outputs
        if known != signal:
            outputs = self.proximal.output(z0)
            self._outputs = signal, outputs
        return outputs

    def _pull(self, points: ProximalPoints, z0: np.ndarray, z: np.ndarray, spread: float, Sigma: float) -> Pull:
        f = (points.p - z) / Sigma
        if spread > 0:
            f_noise = self._mean(_dot(f, self._noise)) / spread
        else:  # for c_1 = 0 the average E[f.xi]/c_1 is 0/0, and no sample can jump
            trace, _ = self.proximal.derivative(points.y, points.p, Sigma)
            f_noise = (self._mean(trace) - z.shape[1]) / Sigma
        return Pull(self._mean(_dot(f, f)), f_noise, self._mean(_dot(f, z0)), points.p, points.disagree)

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
        Gauss-Hermite nodes per axis, for two tokens only; the default, 24, gives some 23,000 nodes.
    count : int, optional
        Number of scrambled Sobol nodes, a power of two, instead of Gauss-Hermite nodes. More than two tokens need them
        (default 2**14). For two tokens they are better if p jumps on more than a thousandth of the samples.
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

    The diagonal entries are sqrt2 z_aa, and all other entries appear twice in the sum. The loss is therefore
    2 |z0 - z|^2 in all L coordinates, and p = (z + 4 Sigma z0)/(1 + 4 Sigma).
    """

    least_response = 1e-15

    def __init__(self, tokens: int) -> None:
        tokens = checks.integer("tokens", tokens, 1)
        self.visible_directions = tokens * (tokens + 1) // 2

    def pull(
        self,
        signal: float,
        m: float,
        q: float,
        Sigma: float,
        near: np.ndarray | None = None,
        multi_start: bool | np.ndarray = False,
        spread: float | None = None,
    ) -> Pull:
        return self.evaluate(signal, m, q, Sigma, multi_start=False, spread=spread)[1]

    def evaluate(
        self,
        signal: float,
        m: float,
        q: float,
        Sigma: float,
        *,
        multi_start: bool | np.ndarray,
        near: np.ndarray | None = None,
        spread: float | None = None,
    ) -> tuple[LossAverages, Pull]:
        L, shrink = self.visible_directions, 1 / (1 + 4 * Sigma)
        error = 2 * L * (_spread(signal, m, q, Sigma, spread) ** 2 + (signal - m) ** 2 / signal)  # signal - 2 m + q
        averages = LossAverages(
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
        return averages, Pull(averages.f_square, averages.f_noise, averages.f_target, None, False)

    def test(self, signal: float, m: float, q: float, spread: float | None = None) -> float:
        return 2 * self.visible_directions * (_spread(signal, m, q, known=spread) ** 2 + (signal - m) ** 2 / signal)


def _spread(signal: float, m: float, q: float, Sigma: float = 1.0, known: float | None = None) -> float:
    """Return c_1, the standard deviation of z given z0, or ``known`` if that is given."""
    checks.positive("signal", signal)
    checks.positive("Sigma", Sigma)
    checks.number("m", m)
    if known is not None:
        return known
    variance = checks.non_negative("q", q) - m * m / signal
    if variance < -1e-9 * q:
        raise ValueError(f"m must be at most sqrt(q * signal) = {math.sqrt(q * signal)} in absolute value, got {m}")
    return math.sqrt(max(variance, 0.0))


def _dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.einsum("ik,ik->i", x, y)
