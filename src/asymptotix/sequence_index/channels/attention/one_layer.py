"""One layer of attention beyond rank one: closed-form fibres.

The output determines the indices up to one number (an angle or a scale), on one or two branches, and a Gaussian part.
Given that number the posterior is Gaussian, so that one adaptive quadrature computes its moments.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import helmert

from ....numerics.arrays import Array
from ...models import attention_map
from ...models.deep_attention import DeepAttention
from ...models.rank_one import array_namespace
from ..mapped import MappedChannel
from ..tools.line_integral import NODES, line_nodes
from ..tools.sample_moments import SampleMoments, weighted_moments
from ..tools.small_matrices import half_log_det, solve_positive

_LOG_2PI = float(np.log(2 * np.pi))
#: Standard deviations beyond which the mass of the prior is neglected.
_REACH = 12.0
#: Lower bound of lengths in denominators: equal tokens have no direction.
_TINY = 1e-30


class OneLayerChannel(MappedChannel):
    """Base class of the channels of one layer of attention, for observations without noise.

    A subclass chooses numbers that describe what the output tells about the indices; they are the observation.
    ``log_evidence`` is their log density.
    """

    def __init__(self, attention: DeepAttention, outputs: int) -> None:
        super().__init__(attention.indices, attention.tokens, outputs)
        self.attention = attention
        self.groups = attention.groups if attention.heads > 1 else None

    def __str__(self) -> str:
        return str(self.attention)

    def model_output(self, Z: Array) -> Any:
        return attention_map.output(Z, self.attention)


class Fibre(NamedTuple):
    """The indices that are compatible with one output, as a family of Gaussians along lines.

    Attributes
    ----------
    at : callable
        Takes the coordinate x and the number of the branch. Returns the log-density along the line and, at x, the mean
        of the indices (P, M) and a vector d (P M,) or None: their covariance is ``rest`` - d d^T.
    low, high : numbers
        Ends of the coordinate.
    rest : array (P M, P M)
        Covariance of the indices at fixed x, before d d^T is subtracted.
    """

    at: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array | None]]
    low: jax.Array | float
    high: jax.Array | float
    rest: jax.Array


class LineFibreChannel(OneLayerChannel):
    """Base class of channels whose posterior is a quadrature along the lines of a :class:`Fibre`."""

    branches = 2

    @abc.abstractmethod
    def fibre(self, y: jax.Array, omega: jax.Array, V: jax.Array) -> Fibre:
        """Return the fibre of one observation ``y`` (flat), with its prior N(omega (P, M), V (P, P))."""

    def footprint(self, draws: int) -> int:
        return NODES * (self.size + 2)

    def moments(self, y: jax.Array, omega: jax.Array, prior: jax.Array, key: jax.Array, draws: int) -> SampleMoments:
        M, n = self.tokens, self.size
        fibre = self.fibre(y, omega.reshape(-1, M), prior[::M, ::M])
        x, branch, log_weights = line_nodes(lambda x, b: fibre.at(x, b)[0], fibre.low, fibre.high, self.branches)
        _, means, dents = jax.vmap(fibre.at)(x, branch)
        found = weighted_moments(log_weights, means.reshape(-1, n) - omega)
        covariance = found.covariance + fibre.rest
        if dents is not None:
            share = jnp.exp(log_weights - found.log_evidence)
            covariance = covariance - (share[:, None] * dents).T @ dents
        return found._replace(covariance=covariance)


class RotationChannel(LineFibreChannel):
    """Tied layer of rank two whose output fixes Z up to O(2): softmax with M >= 3 tokens, or linear activation.

    The observation U is Z turned so that the first token lies on the positive first axis and the second token above
    that axis: Z = R(theta) diag(1, +-1) U with theta uniform.
    """

    description = "quadrature over the rotations and reflections of two index rows"

    def __init__(self, attention: DeepAttention) -> None:
        M = attention.tokens
        super().__init__(attention, 2 * M - 1)
        self.branches = 1 if M == 1 else 2

    def observe(self, Z: Array, noise: Array | None = None) -> Any:
        xp = array_namespace(Z)
        first, second = Z[:, 0], Z[:, 1]
        radius = xp.maximum(xp.hypot(first[:, :1], second[:, :1]), _TINY)
        cos, sin = first[:, :1] / radius, second[:, :1] / radius
        along, across = cos * first + sin * second, cos * second - sin * first
        if self.tokens > 1:
            across = across * xp.where(across[:, 1:2] < 0, -1.0, 1.0)
        return xp.stack([along, across], 1)

    def fibre(self, y: jax.Array, omega: jax.Array, V: jax.Array) -> Fibre:
        n, U, precision = self.size, y.reshape(2, self.tokens), _inverse(V)
        constant = jnp.log(U[0, 0]) - self.tokens * (_LOG_2PI + 0.5 * jnp.log(_determinant(V)))

        def at(angle: jax.Array, branch: jax.Array) -> tuple[jax.Array, jax.Array, None]:
            cos, sin = jnp.cos(angle), jnp.sin(angle)
            across = U[1] * (1.0 - 2.0 * branch)
            Z = jnp.stack([cos * U[0] - sin * across, sin * U[0] + cos * across])
            return constant - 0.5 * _energy(precision, Z - omega), Z, None

        return Fibre(at, 0.0, 2 * np.pi, jnp.zeros((n, n)))


class DirectionChannel(LineFibreChannel):
    """Tied layer of rank two, softmax of two tokens.

    With u_1, u_2 the columns of Z, d = (u_1 - u_2)/sqrt2 = rho e and s = (u_1 + u_2)/sqrt2, the output fixes rho > 0
    and sigma = s.e. The integral over the unit vector e is numerical; the component of s orthogonal to e is Gaussian.
    """

    description = "quadrature over the direction in which two tokens differ, two index rows"
    branches = 1

    def __init__(self, attention: DeepAttention) -> None:
        super().__init__(attention, 2)

    def observe(self, Z: Array, noise: Array | None = None) -> Any:
        xp = array_namespace(Z)
        d, s = (Z[:, :, 0] - Z[:, :, 1]) / np.sqrt(2), (Z[:, :, 0] + Z[:, :, 1]) / np.sqrt(2)
        rho = xp.maximum(xp.hypot(d[:, 0], d[:, 1]), _TINY)
        return xp.stack([rho, (s * d).sum(1) / rho], 1)

    def fibre(self, y: jax.Array, omega: jax.Array, V: jax.Array) -> Fibre:
        rho, sigma = y
        precision = _inverse(V)
        turn = np.array([[1.0, 1.0], [-1.0, 1.0]]) / np.sqrt(2)  # columns (u_1, u_2) = (d, s) turn^T
        d0, s0 = (omega @ turn).T
        constant = jnp.log(rho) - 1.5 * _LOG_2PI - 0.5 * jnp.log(_determinant(V))

        def at(angle: jax.Array, branch: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            e = jnp.stack([jnp.cos(angle), jnp.sin(angle)])
            along = V @ e
            variance, miss = e @ along, sigma - e @ s0
            energy = _energy(precision, (rho * e - d0)[:, None]) + miss**2 / variance + jnp.log(variance)
            Z = jnp.stack([rho * e, s0 + along * miss / variance], 1) @ turn.T
            return constant - 0.5 * energy, Z, jnp.kron(along / jnp.sqrt(variance), turn[:, 1])

        return Fibre(at, 0.0, 2 * np.pi, jnp.kron(V, np.outer(turn[:, 1], turn[:, 1])))


class ScaleChannel(LineFibreChannel):
    """Untied layer of rank one; its rows are the keys k and the queries q.

    Softmax: y fixes q_i (k_j - k_i). In a token basis whose last vector is uniform, k = (kappa e, t) with a unit vector
    e, and q = a/kappa. The output shows e and a up to a common sign; kappa is any number, and t is Gaussian given q.
    Linear: y fixes q_i k_j, and there is no t. The integral is over log |kappa|; the sign of kappa is the branch.
    """

    description = "quadrature over the scale that keys and queries share, one index row each"

    def __init__(self, attention: DeepAttention) -> None:
        M, softmax = attention.tokens, attention.activation == "softmax"
        super().__init__(attention, 2 * M - 2 if softmax else 2 * M - 1)
        self._seen = M - 1 if softmax else M
        self._basis = np.roll(helmert(M, full=True), -1, axis=0) if softmax else np.eye(M)

    def observe(self, Z: Array, noise: Array | None = None) -> Any:
        xp = array_namespace(Z)
        k, q = Z[:, 0] @ self._basis.T, Z[:, 1] @ self._basis.T
        difference = k[:, : self._seen]
        size = xp.maximum(xp.sqrt((difference**2).sum(1, keepdims=True)), _TINY)
        size = size * xp.where(difference[:, :1] < 0, -1.0, 1.0)
        return xp.concatenate([difference / size, q * size], 1)

    def fibre(self, y: jax.Array, omega: jax.Array, V: jax.Array) -> Fibre:
        seen, M, basis = self._seen, self.tokens, self._basis
        e, a = y[:seen], y[seen:]
        k0, q0 = omega @ basis.T
        precision, uniform = _inverse(V), M - seen  # 1 with softmax, 0 with linear activation
        constant = -0.5 * (seen * (2 * _LOG_2PI + jnp.log(_determinant(V))) + uniform * (_LOG_2PI + jnp.log(V[1, 1])))

        def at(x: jax.Array, branch: jax.Array) -> tuple[jax.Array, jax.Array, None]:
            kappa = jnp.exp(x) * (1.0 - 2.0 * branch)
            k, q = kappa * e, a / kappa
            miss = q[seen:] - q0[seen:]
            energy = _energy(precision, jnp.stack([k - k0[:seen], q[:seen] - q0[:seen]])) + (miss**2).sum() / V[1, 1]
            k = jnp.concatenate([k, k0[seen:] + V[0, 1] / V[1, 1] * miss])
            return constant - 0.5 * energy - uniform * x, jnp.stack([k, q]) @ basis, None

        largest = _norm(k0[:seen]) + _REACH * jnp.sqrt(V[0, 0])
        smallest = _norm(a) / (_norm(q0) + _REACH * jnp.sqrt(V[1, 1]))
        # For an observation beyond the reach of the prior, smallest > largest: the ends are then exchanged.
        ends = jnp.log(jnp.stack([smallest, largest]))
        across = basis[seen:].T @ basis[seen:]
        rest = jnp.kron(np.diag([1.0, 0.0]) * (V[0, 0] - V[0, 1] ** 2 / V[1, 1]), across)
        return Fibre(at, ends.min() - 0.3, ends.max() + 0.3, rest)


class HeadsChannel(OneLayerChannel):
    """Tied, rank one, H heads: y fixes u_h = sum_g z^{hg} up to a sign for every head.

    Given the H signs the posterior is Gaussian, and the channel sums over the signs. Where V has no entries between
    heads, the heads are independent and the sum factorises.
    """

    description = "summation over the signs of the heads"

    def __init__(self, attention: DeepAttention) -> None:
        H = attention.heads
        super().__init__(attention, H * attention.tokens)
        self._sums = np.kron(np.eye(H), np.ones(H))
        self._signs = np.array(list(itertools.product((1.0, -1.0), repeat=H)))

    def footprint(self, draws: int) -> int:
        return len(self._signs) * 2 * self.attention.heads * self.tokens + self.size**2

    def observe(self, Z: Array, noise: Array | None = None) -> Any:
        u = self._sums @ Z
        return u * array_namespace(Z).where(u[:, :, :1] < 0, -1.0, 1.0)

    def moments(self, y: jax.Array, omega: jax.Array, prior: jax.Array, key: jax.Array, draws: int) -> SampleMoments:
        H, M = self.attention.heads, self.tokens
        V = prior[::M, ::M]
        S = self._sums @ V @ self._sums.T
        gain = solve_positive(S, self._sums @ V).T
        u = self._signs[:, :, None] * y.reshape(H, M)
        miss = u - self._sums @ omega.reshape(-1, M)
        energy = jax.vmap(lambda x: (x * solve_positive(S, x)).sum())(miss)
        constant = M * (0.5 * H * _LOG_2PI + half_log_det(S))
        found = weighted_moments(-0.5 * energy - constant, miss.reshape(-1, H * M))
        lift = jnp.kron(gain, np.eye(M))
        rest = jnp.kron(V - gain @ self._sums @ V, np.eye(M))
        return found._replace(shift=lift @ found.shift, covariance=lift @ found.covariance @ lift.T + rest)


def _determinant(V: jax.Array) -> jax.Array:
    return V[0, 0] * V[1, 1] - V[0, 1] * V[1, 0]


def _inverse(V: jax.Array) -> jax.Array:
    swapped = jnp.stack([jnp.stack([V[1, 1], -V[0, 1]]), jnp.stack([-V[1, 0], V[0, 0]])])
    return swapped / _determinant(V)


def _energy(precision: jax.Array, x: jax.Array) -> jax.Array:
    """Return the sum of x^T precision x over the columns of x (2, m)."""
    return (precision[0, 0] * x[0] ** 2 + 2 * precision[0, 1] * x[0] * x[1] + precision[1, 1] * x[1] ** 2).sum()


def _norm(x: jax.Array) -> jax.Array:
    return jnp.sqrt((x**2).sum())
