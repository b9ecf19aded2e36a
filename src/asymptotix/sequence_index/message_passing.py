"""Data of one size and one iteration of generalised approximate message passing, batched over seeds.

    omega = X W / sqrt(D) - C g_old,    g = g_out(y, omega, V),    A = -(alpha/N) sum (d g_out)_mm,
    b = X^T g / sqrt(D) + A W,          C = (I/(1-l) + A)^{-1},    W = C (b + sqrt(l)/(1-l) S).

The reaction term takes g of the step before and C of the present one; the side information S = sqrt(l) W* +
sqrt(1-l) noise enters exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..core.linalg import psd_project
from .channel import Channel, Posterior
from .schedule import SMALLEST_VARIANCE


class Data(NamedTuple):
    """Data sets of several seeds: tokens X (S, M, N, D), teachers (S, P, D), side information, observations."""

    X: Any
    teacher: Any
    side: Any
    observation: Any

    @property
    def alpha(self) -> float:
        """Samples per dimension."""
        return self.X.shape[2] / self.X.shape[3]


def draw_data(channel: Channel, samples: int, dim: int, seeds: Any, side_information: float) -> Data:
    """Draw the data of every seed; what a seed gives depends on (seed, samples, dim) only."""
    parts = [_draw_one(channel, samples, dim, seed, side_information) for seed in seeds]
    return Data(*(jnp.stack(column) for column in zip(*parts, strict=True)))


def _draw_one(channel: Channel, samples: int, dim: int, seed: int, side_information: float) -> tuple[Any, ...]:
    X, W, S, z = _gaussians(seed, side_information, (channel.tokens, samples, dim, channel.indices))
    return X, W, S, channel.observe(np.asarray(z))


@partial(jax.jit, static_argnums=2)
def _gaussians(seed: Any, side_information: Any, shape: tuple[int, int, int, int]) -> tuple[Any, Any, Any, Any]:
    """Tokens, teacher, side information, and the teacher's fields."""
    M, samples, dim, P = shape
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), samples), dim)
    tokens, teacher, noise = jax.random.split(key, 3)
    X = jax.random.normal(tokens, (M, samples, dim), jnp.float32)
    W = jax.random.normal(teacher, (P, dim), jnp.float32)
    extra = jax.random.normal(noise, W.shape, jnp.float32)
    S = jnp.sqrt(side_information) * W + jnp.sqrt(1 - side_information) * extra
    return X, W, S, fields(X[None], W[None])[0]


def fields(X: Any, W: Any) -> Any:
    """X W / sqrt(D) as (S, N, P, M)."""
    return jnp.einsum("smnd,spd->snpm", X, W, precision="highest") / jnp.sqrt(jnp.float32(X.shape[-1]))


@jax.jit
def _corrected_fields(X: Any, W: Any, reaction: Any, g: Any, active: Any) -> Any:
    """Fields omega of all samples of all seeds, (S N, P, M)."""
    omega = (fields(X, W) - jnp.einsum("spq,snqm->snpm", reaction, g)) * active[:, None]
    return omega.reshape(-1, *omega.shape[2:])


def compile_ahead(data: Data, state: State) -> None:
    """Compile what an iteration needs besides the channel; to be called in a thread of its own."""
    P = data.teacher.shape[1]
    square, mask = np.zeros((len(data.X), P, P), np.float32), np.zeros(P, np.float32)
    share = np.zeros((len(data.X), 1, 1), np.float32)
    _corrected_fields(data.X, state.W, square, state.g, mask)
    _moved(data, state.W, state.g, square, square, np.float32(0), share, mask)


@dataclass
class State:
    """Estimate W (S, P, D), last scores g (S, N, P, M), V and the reaction coefficient C (S, P, P)."""

    W: Any
    g: Any
    V: np.ndarray
    reaction: np.ndarray


def posterior_at(channel: Channel, data: Data, state: State, active: np.ndarray, jitter: float = 0.0) -> Posterior:
    """Posterior of all samples of all seeds at the present fields; ``jitter`` is added to V."""
    reaction, mask = np.asarray(state.reaction, np.float32), np.asarray(active, np.float32)
    omega = _corrected_fields(data.X, state.W, reaction, state.g, mask)
    seeds, samples = state.g.shape[:2]
    V = np.repeat(np.float32(state.V + jitter * np.eye(len(active))), samples, axis=0)
    found = channel.posterior(data.observation.reshape(seeds * samples, -1), omega, V)
    return Posterior(*(x.reshape(seeds, samples, *x.shape[1:]) for x in found))


@jax.jit
def _scores(shift: Any, covariance: Any, V: Any, active: Any) -> tuple[Any, Any, Any, Any]:
    """g, the means over samples of sum_m Cov_mm (S, P, P) and |g|^2 (S, P), and the number of lost samples."""
    lost = ~(jnp.isfinite(shift).all((2, 3)) & jnp.isfinite(covariance).all((2, 3, 4, 5)))
    shift = jnp.where(lost[..., None, None], 0.0, shift)
    traced = jnp.einsum("snpmqm->snpq", covariance)
    traced = jnp.where(lost[..., None, None], shift.shape[-1] * V[:, None], traced)
    g = jnp.einsum("spq,snqm->snpm", jnp.linalg.inv(V), shift) * active[:, None]
    return g, traced.mean(1), (g**2).sum(-1).mean(1), lost.sum(1)


@jax.jit
def _moved(data: Data, W: Any, g: Any, A: Any, C: Any, side: Any, share: Any, active: Any) -> Any:
    """(1 - share) W + share C (X^T g / sqrt(D) + A W + side S), zero in the rows that are not active."""

    def times(matrix: Any, vectors: Any) -> Any:
        return jnp.einsum("spq,sqd->spd", matrix, vectors, precision="highest")

    gathered = jnp.einsum("smnd,snpm->spd", data.X, g, precision="highest") / jnp.sqrt(jnp.float32(W.shape[-1]))
    new = times(C, gathered + times(A, W) + side * data.side) * active[:, None]
    return share * new + (1 - share) * W


class Step(NamedTuple):
    """What an iteration measured on the data of every seed.

    Attributes
    ----------
    empirical_variance : array (S, P)
        1/(1/(1-l) + A) with the data's own A.
    second_moment : array (S, P)
        alpha times the mean of |g|^2; equals A as long as V is the true error (Nishimori).
    lost : array (S,)
        Samples whose posterior was not found.
    """

    empirical_variance: np.ndarray
    second_moment: np.ndarray
    lost: np.ndarray


def iterate(
    channel: Channel,
    data: Data,
    state: State,
    *,
    active: np.ndarray,
    precision: np.ndarray,
    damping: np.ndarray,
    side_information: float,
    jitter: float = 0.0,
) -> Step:
    """One iteration, in place. ``precision`` (S, P) prescribes A; where it is nan the data's own is taken."""
    posterior = posterior_at(channel, data, state, active, jitter)
    V = np.asarray(state.V, float)
    seen = V + jitter * np.eye(len(active))
    mask = np.asarray(active, np.float32)
    g, traced, squares, lost = _scores(posterior.shift, posterior.covariance, np.float32(seen), mask)
    inverse = np.linalg.inv(seen)
    measured = data.alpha * (channel.tokens * inverse - inverse @ np.asarray(traced, float) @ inverse)
    measured = 0.5 * (measured + measured.transpose(0, 2, 1)) * np.outer(active, active)
    prescribed = np.nan_to_num(precision)[:, :, None] * np.eye(len(active))
    own = np.isnan(precision).any(axis=1).reshape(-1, 1, 1)
    A = np.where(own, measured, prescribed)
    prior = np.eye(len(active)) / (1 - side_information)
    # A sampled A may have negative eigenvalues; the variance then exceeds the prior's, here by at most two.
    C = np.linalg.inv(prior + psd_project(A + 0.5 * prior) - 0.5 * prior)
    side = np.sqrt(side_information) / (1 - side_information)
    share = damping[:, None, None]
    state.W = _moved(data, state.W, g, *map(np.float32, (A, C, side, share)), mask)
    state.V = psd_project(share * C + (1 - share) * V, SMALLEST_VARIANCE)
    state.reaction, state.g = state.V, g
    own = np.einsum("spp->sp", measured)
    second_moment = data.alpha * np.asarray(squares, float)
    return Step(1 / (1 / (1 - side_information) + own), second_moment, np.asarray(lost))
