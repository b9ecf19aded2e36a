"""The channel of one rank-one layer: the output fixes the index row up to its sign; the posterior has a closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import gammaln

from ....numerics.arrays import Array
from ....numerics.quadrature import Estimate
from ...models import rank_one
from ..protocol import DEFAULT_ACCURACY, Accuracy, Averager, Averages, Channel, Posterior


class SignChannel(Channel):
    """Channel of one rank-one layer: y fixes z up to its sign (M >= 2 tokens; M >= 1 with linear activation).

    The posterior consists of two points, and E[Z|y] = z tanh(z.omega/V).
    """

    indices = 1
    diagonal = True
    curvature_is_control = True

    def __init__(self, tokens: int, activation: str) -> None:
        self.tokens, self.outputs, self._activation = tokens, tokens, activation

    def observe(self, Z: Array, noise: Array | None = None) -> Any:
        return rank_one.canonical_sign(Z[:, 0])

    def model_output(self, Z: Array) -> Any:
        return rank_one.output(Z, 0.0, self._activation)

    def posterior(self, observation: Array, omega: Array, V: Array, accuracy: Accuracy = DEFAULT_ACCURACY) -> Posterior:
        xp = rank_one.array_namespace(omega)
        z, w = observation, omega[:, 0]
        v = V[..., 0, 0]
        t = (z * w).sum(-1) / v
        mean = z * xp.tanh(t)[:, None]
        covariance = z[:, :, None] * z[:, None, :] * (1 - xp.tanh(t) ** 2)[:, None, None]
        energy = ((z**2).sum(-1) + (w**2).sum(-1)) / (2 * v)
        log_evidence = xp.logaddexp(t, -t) - energy - 0.5 * self.tokens * xp.log(2 * np.pi * v)
        return Posterior(log_evidence, (mean - w)[:, None], covariance[:, None, :, None, :])

    def curvature_at_zero(self) -> Estimate:
        """Return E|z z^T - I|^2 = M(M+1): y reveals z z^T."""
        exact = np.array([self.tokens * (self.tokens + 1.0)])
        return Estimate(exact, 0 * exact)

    def exact_averager(self) -> Averager:
        return SignAverager(self)


class SignAverager(Averager):
    """Averages of :class:`SignChannel` by two-dimensional Gauss-Legendre quadrature, with an error of about 1e-10.

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
        softplus = np.logaddexp(0.0, -2 * w * x) + 0  # contribution of the opposite sign
        both = np.exp(-0.5 * (x - w) ** 2) * softplus
        both = both + np.exp(-0.5 * (x + w) ** 2) * np.logaddexp(0.0, 2 * w * x)
        missing = (mass * both).sum() / np.sqrt(2 * np.pi)
        return Averages(moment, self._log_evidence(v, missing), np.full((1, 1), np.nan))

    def _field_mass(self, q: float, v: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return quadrature weights (order, order), w (order, 1) and x (1, order); |omega|^2/q is chi-squared."""
        M = self._tokens
        # The density of w cuts it off at small q, the bump at small V: the grid is scaled to the smaller range.
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
        """Return E log[N(z; omega, v) + N(-z; omega, v)], (1,); ``missing`` is the part that N(-z; omega, v) adds."""
        if v >= 1:
            missing = np.log(2.0)
        return np.array([-0.5 * self._tokens * (np.log(2 * np.pi * v) + 1) + missing])
