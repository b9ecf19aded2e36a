"""Averages over data at a given overlap: all that state evolution knows of a channel.

At overlap Q the student's field and the true index are jointly Gaussian per token, and V = I - Q:

    Z ~ N(0, I),     omega | Z ~ N(Q Z, Q V),     y = g(Z).
"""

from __future__ import annotations

import abc
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from ..core.average import sobol_uniforms
from ..core.linalg import psd_sqrt
from .channel import Channel, Posterior, SignChannel, score, score_jacobian
from .unlearned import curvature_at_zero

#: Accuracy of the posterior inside an average. Its errors of about 1e-3 per sample have random signs: the averages
#: move by less than 1e-4 against four times finer cells.
POSTERIOR_ACCURACY = {"fineness": 2.0, "cut": 9.0}
_SMALL_OVERLAP = 0.25


class Averages(NamedTuple):
    """Averages at one overlap, one row per independent randomisation of the nodes.

    Attributes
    ----------
    second_moment : array (randomisations, P, P)
        E[g_out g_out^T], summed over tokens.
    log_evidence : array (randomisations,)
        E log Z_out, as a density of the output y.
    curvature : array (randomisations, P)
        f_l = E |G_ll|_F^2, G = d g_out / d omega: an unlearned index l is unstable where alpha f_l > 1.
    """

    second_moment: np.ndarray
    log_evidence: np.ndarray
    curvature: np.ndarray


class Averager(abc.ABC):
    """Callable V -> Averages."""

    @abc.abstractmethod
    def __call__(self, V: np.ndarray) -> Averages: ...


class QuasiRandomAverager(Averager):
    """Scrambled Sobol nodes, the same at every overlap (common random numbers), several independent scramblings.

    E[g g^T] has two unbiased estimators, the square itself and V^{-1}(M V - E tr Cov)V^{-1} (Nishimori). The first
    vanishes exactly where the overlap does, the second has much less variance near full overlap: they are blended
    with weights 1-q and q. The curvature at zero overlap, whose mean is known from deterministic quadrature, serves
    as a control variate while all overlaps are small: near the first threshold it removes most of the error. It costs
    as much as an evaluation, once per set of nodes, and is of no use far from zero overlap.
    """

    def __init__(self, channel: Channel, count: int, randomisations: int, seed: int = 0, block: int = 0) -> None:
        self._channel, self._count, self._randomisations = channel, count, randomisations
        self._seed, self._block = seed, block

    @cached_property
    def _nodes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        size = self._channel.indices * self._channel.tokens
        uniforms = np.concatenate(
            [
                sobol_uniforms(self._count, 2 * size, (self._seed, r), block=self._block)
                for r in range(self._randomisations)
            ]
        )
        return self._channel.draw_nodes(uniforms)

    @cached_property
    def _control(self) -> np.ndarray:
        """Per node, |G_ll|_F^2 and |G_ll xi_l|^2 at zero overlap minus their exact mean f_l; weights included.

        xi is the part of omega that does not depend on y: near zero overlap g_out is sqrt(q) G xi.
        """
        Z, noise, weights = self._nodes
        observation = self._channel.observe(Z)
        posterior = self._posterior(observation, np.zeros_like(Z), np.eye(self._channel.indices))
        own = np.einsum("npmpk->npmk", score_jacobian(posterior, np.eye(self._channel.indices)))
        along = (np.einsum("npmk,npk->npm", own, noise) ** 2).sum(-1)
        exact = curvature_at_zero(self._channel).value
        return np.concatenate([weights[:, None] * x - exact for x in ((own**2).sum((-1, -2)), along)], 1)

    def _posterior(self, observation: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        found = self._channel.posterior(observation, omega, V, **POSTERIOR_ACCURACY)
        posterior = Posterior(*(np.asarray(x, dtype=float) for x in found))
        lost = ~np.isfinite(posterior.log_evidence)
        if lost.any():
            raise FloatingPointError(f"the channel lost {lost.sum()} samples at V={V.tolist()}")
        return posterior

    def samples(self, V: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, Posterior]:
        """The nodes at overlap I - V: true indices Z, importance weights, observations, posteriors."""
        channel, (Z, noise, weights) = self._channel, self._nodes
        Q = np.eye(channel.indices) - V
        omega = np.einsum("pq,nqm->npm", Q, Z) + np.einsum("pq,nqm->npm", psd_sqrt(Q @ V), noise)
        observation = channel.observe(Z)
        return Z, weights, observation, self._posterior(observation, omega, V)

    def __call__(self, V: np.ndarray) -> Averages:
        channel, Q = self._channel, np.eye(self._channel.indices) - V
        _, weights, observation, posterior = self.samples(V)
        g, G = score(posterior, V), score_jacobian(posterior, V)
        own = np.einsum("npmpk->npmk", G)
        square = np.einsum("npm,nqm->npq", g, g)
        nishimori = -np.einsum("npmqm->npq", G)
        learned = np.sqrt(np.outer(np.diag(Q).clip(0), np.diag(Q).clip(0)))
        values = (
            square + learned * (nishimori - square),
            posterior.log_evidence - np.asarray(channel.log_output_volume(observation)),
            (own**2).sum((-1, -2)),
        )
        small = bool(np.diag(Q).max() < _SMALL_OVERLAP)
        second_moment, *rest = (self._mean(value, weights, small) for value in values)
        # Each row of the weights may change its sign on its own, so the true off-diagonal average is zero.
        return Averages(second_moment * np.eye(channel.indices), *rest)

    def _mean(self, values: np.ndarray, weights: np.ndarray, controlled: bool) -> np.ndarray:
        """Mean of every randomisation, with the regression on the control variates taken out where that pays."""
        weighted = (values * weights.reshape(-1, *[1] * (values.ndim - 1))).reshape(len(values), -1)
        if controlled:
            control = self._control - self._control.mean(0)
            slope = np.linalg.lstsq(control, weighted - weighted.mean(0), rcond=1e-10)[0]
            weighted = weighted - self._control @ slope
        return weighted.reshape(self._randomisations, self._count, *values.shape[1:]).mean(1)


class SignAverager(Averager):
    """The one-layer channel by two-dimensional Gauss-Legendre quadrature: deterministic, about 1e-10.

    With w = |omega|/sqrt(V) and x the component of z/sqrt(V) along omega, folding x -> -x turns the Gaussian around
    w times sech^2(w x) into exp(-(x^2+w^2)/2)/cosh(w x), smooth for every V.
    """

    def __init__(self, channel: SignChannel, order: int = 80) -> None:
        self._tokens = channel.tokens
        x, weights = np.polynomial.legendre.leggauss(order)
        self._x, self._weights = 5.5 * (x + 1), 5.5 * weights

    def __call__(self, V: np.ndarray) -> Averages:
        M, v = self._tokens, float(V[0, 0])
        q = 1 - v
        if q <= 0:
            exact = np.array([[M * (M + 1.0)]])
            return Averages(np.zeros((1, 1, 1)), self._log_evidence(v, 0.0), exact)
        mass, w, x = self._field_mass(q, v)
        bump = np.sqrt(2 / np.pi) * np.exp(-0.5 * (x**2 + w**2)) / np.cosh(w * x)
        left = (mass * bump * (x**2 + M - 1)).sum()
        moment = np.array([[[(M - left) / v]]])
        softplus = np.logaddexp(0.0, -2 * w * x) + 0  # the sign that was not drawn
        both = np.exp(-0.5 * (x - w) ** 2) * softplus
        both = both + np.exp(-0.5 * (x + w) ** 2) * np.logaddexp(0.0, 2 * w * x)
        missing = (mass * both).sum() / np.sqrt(2 * np.pi)
        return Averages(moment, self._log_evidence(v, missing), np.full((1, 1), np.nan))

    def _field_mass(self, q: float, v: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Quadrature weights on the grid (w, x); |omega|^2/q is chi-squared with M degrees of freedom."""
        M = self._tokens
        # w is cut off by its own density at small q and by the bump at small V; scale the grid to the smaller.
        scale = min(1.0, np.sqrt(q / v) * (1.0 + 0.1 * M))
        w = scale * self._x
        log_density = (
            np.log(2.0) + (M - 1) * np.log(w) + 0.5 * M * np.log(v / (2 * q)) - gammaln(M / 2) - w**2 * v / (2 * q)
        )
        return (
            (np.exp(log_density) * scale * self._weights)[:, None] * self._weights[None, :],
            w[:, None],
            self._x[None, :],
        )

    def _log_evidence(self, v: float, missing: float) -> np.ndarray:
        """E log[N(z; omega, v) + N(-z; omega, v)], as a density of z up to its sign."""
        if v >= 1:
            missing = np.log(2.0)
        return np.array([-0.5 * self._tokens * (np.log(2 * np.pi * v) + 1) + missing])


def averager(channel: Channel, count: int, randomisations: int, seed: int = 0, block: int = 0) -> Averager:
    """The best averager of a channel; ``block`` says which part of a long sequence of nodes it takes."""
    if isinstance(channel, SignChannel):
        return SignAverager(channel)
    return QuasiRandomAverager(channel, count, randomisations, seed, block)
