"""Channels whose posterior is a closed form, to test what is built on channels."""

from typing import Any

import numpy as np
from scipy.special import log_ndtr

from asymptotix.sequence_index.channels.protocol import DEFAULT_ACCURACY, Accuracy, Channel, Posterior


def own_generator(Z: np.ndarray) -> np.random.Generator:
    """Draws that belong to these indices: the same whenever they are observed."""
    return np.random.default_rng(np.frombuffer(np.ascontiguousarray(Z[:1]).tobytes(), np.uint32))


class LinearMap(Channel):
    """y = B z + sqrt(noise) n, one token: Gaussian."""

    tokens = 1

    def __init__(self, B: Any, noise: float = 0.0) -> None:
        self.B, self.noise = np.atleast_2d(np.asarray(B, float)), noise
        self.indices = self.B.shape[1]
        self.outputs = int(np.linalg.matrix_rank(self.B))
        self.noises = len(self.B) if noise > 0 else 0

    def observe(self, Z: Any, noise: Any = None) -> Any:
        y = self.output(Z)
        if self.noise == 0:
            return y
        return y + np.sqrt(self.noise) * (own_generator(Z).standard_normal(y.shape) if noise is None else noise)

    def model_output(self, Z: Any) -> Any:
        return Z[:, :, 0] @ self.B.T

    def posterior(self, observation: Any, omega: Any, V: Any, accuracy: Accuracy = DEFAULT_ACCURACY) -> Posterior:
        S = self.B @ V @ self.B.T + self.noise * np.eye(len(self.B))
        gain = V @ self.B.T @ np.linalg.inv(S)
        left = observation - self.output(omega)
        energy = np.einsum("ni,ij,nj->n", left, np.linalg.inv(S), left) + np.linalg.slogdet(2 * np.pi * S)[1]
        covariance = np.broadcast_to(V - gain @ self.B @ V, (len(omega), self.indices, self.indices))
        return Posterior(-0.5 * energy, (left @ gain.T)[:, :, None], covariance[:, :, None, :, None])


class AlongOneDirection(Channel):
    """y = f(s), s = u.z, one token; a subclass knows the posterior of s ~ N(m, t) given y."""

    tokens = 1

    def __init__(self, u: Any) -> None:
        self.u = np.asarray(u, float) / np.linalg.norm(u)
        self.indices = len(self.u)

    def link(self, s: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def moments(self, y: np.ndarray, m: np.ndarray, t: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log Z_out, mean and variance of s."""
        raise NotImplementedError

    def observe(self, Z: Any, noise: Any = None) -> Any:
        return self.output(Z)

    def model_output(self, Z: Any) -> Any:
        return self.link(Z[:, :, 0] @ self.u)[:, None]

    def posterior(self, observation: Any, omega: Any, V: Any, accuracy: Accuracy = DEFAULT_ACCURACY) -> Posterior:
        t = self.u @ V @ self.u
        m, along = omega[:, :, 0] @ self.u, V @ self.u / t
        log_evidence, mean, variance = self.moments(observation[:, 0], m, t)
        shift = (mean - m)[:, None] * along
        covariance = V + (variance - t)[:, None, None] * np.outer(along, along)
        return Posterior(log_evidence, shift[:, :, None], covariance[:, :, None, :, None])


class Square(AlongOneDirection):
    """y = s^2: phase retrieval."""

    outputs = 1

    def link(self, s: np.ndarray) -> np.ndarray:
        return s**2

    def moments(self, y, m, t):
        s = np.sqrt(y)
        a = s * m / t
        log_evidence = np.logaddexp(a, -a) - (y + m**2) / (2 * t) - 0.5 * np.log(2 * np.pi * t) - np.log(2 * s)
        return log_evidence, s * np.tanh(a), y * (1 - np.tanh(a) ** 2)


class Sign(AlongOneDirection):
    """y = sign(s): a perceptron."""

    outputs = 0

    def link(self, s: np.ndarray) -> np.ndarray:
        return np.sign(s)

    def moments(self, y, m, t):
        c = y * m / np.sqrt(t)
        log_evidence = log_ndtr(c)
        ratio = np.exp(-0.5 * c**2 - 0.5 * np.log(2 * np.pi) - log_evidence)
        return log_evidence, m + y * np.sqrt(t) * ratio, t * (1 - ratio * (c + ratio))


class RotatedSquares(Channel):
    """Each s_a = (R z)_a up to its own sign, one token.

    With ``signed`` its sign is told too; it is seen with probability ``seen``, otherwise nothing is said of it.
    """

    tokens = 1

    def __init__(self, R: Any, seen: Any = 1.0, signed: Any = False, diagonal: bool = False) -> None:
        self.R = np.asarray(R, float)
        self.signed = np.broadcast_to(signed, (len(self.R),))
        self.indices, self.diagonal = len(self.R), diagonal
        self.seen = np.broadcast_to(np.asarray(seen, float), (self.indices,))
        self.outputs = float(self.seen.sum())

    def observe(self, Z: Any, noise: Any = None) -> Any:
        shown = own_generator(Z).random((len(Z), self.indices)) < self.seen
        s = Z[:, :, 0] @ self.R.T
        return np.where(shown, np.where(self.signed, s, abs(s)), np.nan)

    def model_output(self, Z: Any) -> Any:
        return (Z[:, :, 0] @ self.R.T) ** 2

    def posterior(self, observation: Any, omega: Any, V: Any, accuracy: Accuracy = DEFAULT_ACCURACY) -> Posterior:
        n, P = observation.shape
        found = (np.empty(n), np.empty((n, P)), np.empty((n, P, P)))
        pattern = ~np.isnan(observation)
        for shown in np.unique(pattern, axis=0):
            rows = np.flatnonzero((pattern == shown).all(1))
            parts = self._pattern(shown, observation[rows], omega[rows, :, 0], V)
            for whole, part in zip(found, parts, strict=True):
                whole[rows] = part
        return Posterior(found[0], found[1][:, :, None], found[2][:, :, None, :, None])

    def _pattern(self, shown, observation, omega, V):
        R, k = self.R[shown], int(shown.sum())
        if k == 0:
            return np.zeros(len(omega)), 0 * omega, np.broadcast_to(V, (len(omega), *V.shape))
        S = R @ V @ R.T
        gain = V @ R.T @ np.linalg.inv(S)
        choices = [[1.0] if signed else [-1.0, 1.0] for signed in self.signed[shown]]
        signs = np.array(np.meshgrid(*choices)).reshape(k, -1).T
        left = signs[None] * observation[:, None, shown] - (omega @ R.T)[:, None]
        energy = -0.5 * np.einsum("nsi,ij,nsj->ns", left, np.linalg.inv(S), left)
        top = energy.max(1, keepdims=True)
        weights = np.exp(energy - top)
        log_evidence = np.log(weights.sum(1)) + top[:, 0] - 0.5 * np.linalg.slogdet(2 * np.pi * S)[1]
        weights /= weights.sum(1, keepdims=True)
        mean = np.einsum("ns,nsi->ni", weights, left)
        spread = np.einsum("ns,nsi,nsj->nij", weights, left, left) - mean[:, :, None] * mean[:, None, :]
        return log_evidence, mean @ gain.T, V - gain @ R @ V + gain @ spread @ gain.T


class SignOfProduct(Channel):
    """y = sign(z1 z2) at zero overlap: E[z1 z2 | y] = 2 y / pi."""

    indices, tokens, outputs = 2, 1, 0

    def observe(self, Z: Any, noise: Any = None) -> Any:
        return np.sign(Z[:, 0] * Z[:, 1])

    def model_output(self, Z: Any) -> Any:
        return self.observe(Z)

    def posterior(self, observation: Any, omega: Any, V: Any, accuracy: Accuracy = DEFAULT_ACCURACY) -> Posterior:
        covariance = np.eye(2) + 2 / np.pi * observation[:, :, None] * np.array([[0.0, 1.0], [1.0, 0.0]])
        return Posterior(np.full(len(omega), -np.log(2)), 0 * omega, covariance[:, :, None, :, None])


class Drawn(Channel):
    """Another channel's posterior with independent errors for every seed, as one that comes from draws has."""

    stochastic = True

    def __init__(self, exact: Channel, error: float) -> None:
        self.exact, self.error = exact, error
        self.indices, self.tokens, self.outputs = exact.indices, exact.tokens, exact.outputs

    def observe(self, Z: Any, noise: Any = None) -> Any:
        return self.exact.observe(Z, noise)

    def model_output(self, Z: Any) -> Any:
        return self.exact.output(Z)

    def posterior(self, observation: Any, omega: Any, V: Any, accuracy: Accuracy = DEFAULT_ACCURACY) -> Posterior:
        found = self.exact.posterior(observation, omega, V)
        rng = np.random.default_rng([accuracy.seed, *np.frombuffer(np.float64(omega[0, 0, 0]).tobytes(), np.uint32)])
        noise = self.error * rng.standard_normal(found.covariance.shape)
        shift = found.shift + self.error * rng.standard_normal(found.shift.shape)
        return Posterior(found.log_evidence, shift, found.covariance + noise + noise.transpose(0, 3, 4, 1, 2))
