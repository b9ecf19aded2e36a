"""The linear map A from a matrix S to the visible coordinates of pre-activations, and its transpose.

Message passing uses both. The coordinates r = A S are normalised: each has variance Tr S^2 / d on a fresh sample.
Labels depend on the target only through its noisy coordinates z0 = A S_0 + sqrt(noise/2) N(0, 1).

Boncoraglio et al., arXiv:2509.24914, eqs. (31)-(35): Gaussian matrices Z_a replace products of tokens.
"""

from __future__ import annotations

import abc
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.memory import refuse_beyond_memory
from ...numerics.quadrature import sobol_normals
from .. import streams
from ..loss.visible_directions import logit_matrix, pair_weights, symmetric
from ..model import AttentionIndex
from . import training_data as data

#: Number of fresh samples on which test errors are measured. Smaller: noisier test errors.
FRESH_SAMPLES = 2**13


class Sensing(abc.ABC):
    """The linear map A of one seed, from S to N visible coordinates of each of n samples.

    Attributes
    ----------
    target : array (d,)
        Eigenvalues of S_0, which is diagonal.
    z0 : array (n, N)
        Noisy coordinates of the target.
    """

    target: np.ndarray
    z0: np.ndarray

    @staticmethod
    @abc.abstractmethod
    def check_memory(model: AttentionIndex, dim: int, samples: int) -> None:
        """Raise a MemoryError if the measurements of one seed exceed the memory."""

    @abc.abstractmethod
    def coordinates(self, S: np.ndarray) -> np.ndarray:
        """Return A S, (n, N), for a symmetric S (d, d)."""

    @abc.abstractmethod
    def gathered(self, f: np.ndarray) -> np.ndarray:
        """Return A^T f, symmetric (d, d), for f (n, N)."""

    @abc.abstractmethod
    def fresh(self, S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return z0 and A S, each (8192, N), of new samples, for a symmetric S (d, d)."""


class GaussianSensing(Sensing):
    """The map A = G / sqrt(d) on the d(d+1)/2 numbers (S_ii, sqrt2 S_ij), with G of independent N(0, 1) entries.

    Equivalently, r_a = Tr(S Z_a) / sqrt2 with Z_a from the Gaussian orthogonal ensemble. A rotation turns the
    independent matrices of all pairs of tokens into one per direction; only those of visible directions are drawn.
    """

    @staticmethod
    def check_memory(model: AttentionIndex, dim: int, samples: int) -> None:
        rows, entries = samples * model.visible_directions, dim * (dim + 1) // 2
        what = f"the Gaussian matrices of {samples:.4g} samples of dim={dim}"
        refuse_beyond_memory(8 * rows * entries, what, "a smaller dim or sensing='tokens'")

    def __init__(self, model: AttentionIndex, dim: int, samples: int, seed: int) -> None:
        rows, entries = samples * model.visible_directions, dim * (dim + 1) // 2
        self.target, self.model, self.seed = np.asarray(model.target.eigenvalues(dim), float), model, seed
        self.shape, self.upper = (samples, model.visible_directions), np.triu_indices(dim)
        self.stretch = np.where(self.upper[0] == self.upper[1], 1.0, np.sqrt(2.0))
        self.G = _normals(data.random_key(seed, dim, samples, streams.TRAINING), rows, entries)
        noise = np.random.default_rng(streams.sensing_noise(seed, dim, samples)).normal(size=self.shape)
        self.z0 = self.coordinates(np.diag(self.target)) + np.sqrt(model.noise / 2) * noise

    def coordinates(self, S: np.ndarray) -> np.ndarray:
        vector = S[self.upper] * self.stretch / np.sqrt(len(S))
        return np.asarray(_forward(self.G, vector.astype(np.float32)), float).reshape(self.shape)

    def gathered(self, f: np.ndarray) -> np.ndarray:
        dim = len(self.target)
        vector = np.asarray(_backward(self.G, f.ravel().astype(np.float32)), float)
        half = np.zeros((dim, dim))
        half[self.upper] = vector / self.stretch / np.sqrt(dim)
        return half + np.triu(half, 1).T

    def fresh(self, S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return z0 and A S of new samples, drawn directly: given S and S_0 they are jointly Gaussian."""
        dim, N = len(self.target), self.shape[1]
        m, q, signal = np.diag(S) @ self.target / dim, (S**2).sum() / dim, (self.target**2).mean()
        first, second, noise = np.split(
            sobol_normals(FRESH_SAMPLES, 3 * N, streams.fresh_coordinates(self.seed)), 3, axis=1
        )
        z0 = np.sqrt(signal) * first
        r = m / np.sqrt(signal) * first + np.sqrt(max(q - m**2 / signal, 0.0)) * second
        return z0 + np.sqrt(self.model.noise / 2) * noise, r


@partial(jax.jit, static_argnums=(1, 2))
def _normals(key: jax.Array, rows: int, columns: int) -> jax.Array:
    return jax.random.normal(key, (rows, columns), jnp.float32)


@jax.jit
def _forward(G: jax.Array, vector: jax.Array) -> jax.Array:
    return jnp.matmul(G, vector, precision="highest")


@jax.jit
def _backward(G: jax.Array, f: jax.Array) -> jax.Array:
    return jnp.matmul(f, G, precision="highest")


class TokenSensing(Sensing):
    """The map A of token data, from S to the visible coordinates of pre-activations on the data that Adam trains on."""

    @staticmethod
    def check_memory(model: AttentionIndex, dim: int, samples: int) -> None:
        needed = 4 * 4 * max(samples, FRESH_SAMPLES) * model.tokens * dim  # tokens, their images under S, results
        refuse_beyond_memory(needed, f"message passing on {samples:.4g} samples of dim={dim}", "a smaller dim or alpha")

    def __init__(
        self,
        model: AttentionIndex,
        dim: int,
        samples: int,
        seed: int,
        stream: int = streams.TRAINING,
        centre: jax.Array | None = None,
    ) -> None:
        drawn = data.draw_samples(model, dim, samples, seed, stream=stream, chunk=samples, stored=True)
        self.target, self.model, self.seed = np.asarray(model.target.eigenvalues(dim), float), model, seed
        self.F, self.centre = drawn.tokens[0][:, :samples], drawn.centre if centre is None else centre
        self.readout = readout(model.tokens, model.activation)
        T, K = self.centre.shape[:2]
        labels = np.asarray(drawn.labels[0, ..., :samples], float)
        h = labels if model.activation == "linear" else np.log(labels) / model.teacher_beta
        C = data.frame(T, K < T)
        P = np.einsum("ca,kb,abn->ckn", C, C[:K], h)
        self.z0 = np.einsum("ack,ckn->na", self.readout, P)

    def coordinates(self, S: np.ndarray) -> np.ndarray:
        return np.asarray(_token_coordinates(self.F, self.centre, self.readout, S.astype(np.float32)), float)

    def gathered(self, f: np.ndarray) -> np.ndarray:
        return np.asarray(_token_gathered(self.F, self.centre, self.readout, f.astype(np.float32)), float)

    def fresh(self, S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        new = TokenSensing(self.model, len(self.target), FRESH_SAMPLES, self.seed, streams.FRESH, self.centre)
        return new.z0, new.coordinates(S)


def readout(tokens: int, activation: str) -> np.ndarray:
    """Return the map (N, T, K) from P / sqrt(d) to the N visible coordinates r, the inverse of the linear map P(r).

    P_ck are the centred products of tokens of :mod:`.training_data`, where K is defined.
    """
    linear = activation == "linear"
    rows = symmetric(tokens, np.diag(pair_weights(tokens))) if linear else logit_matrix(tokens)
    C, K = data.frame(tokens, not linear), tokens if linear else tokens - 1
    P = np.einsum("ca,kb,abr->ckr", C, C[:K], rows.reshape(tokens, tokens, -1))
    return np.linalg.pinv(P.reshape(tokens * K, -1)).reshape(-1, tokens, K).astype(np.float32)


@jax.jit
def _token_coordinates(F: jax.Array, centre: jax.Array, readout: jax.Array, S: jax.Array) -> jax.Array:
    shift = jnp.einsum("ckde,de->ck", centre, S, precision="highest")
    P = (data.products(F, S, readout.shape[2]) - shift[..., None]) / jnp.sqrt(jnp.float32(len(S)))
    return jnp.einsum("ack,ckn->na", readout, P, precision="highest")


@jax.jit
def _token_gathered(F: jax.Array, centre: jax.Array, readout: jax.Array, f: jax.Array) -> jax.Array:
    G = jnp.einsum("ack,na->ckn", readout, f, precision="highest")
    total = data.gathered(G, F) - jnp.einsum("ck,ckde->de", G.sum(-1), centre, precision="highest")
    return 0.5 * (total + total.T) / jnp.sqrt(jnp.float32(F.shape[-1]))
