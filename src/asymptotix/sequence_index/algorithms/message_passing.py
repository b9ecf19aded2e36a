"""Data of one size and one iteration of generalised approximate message passing, batched over seeds.

    omega = X W / sqrt(D) - C g_old,    g = g_out(y, omega, V),    A = -(alpha/N) sum (d g_out)_mm,
    b = X^T g / sqrt(D) + A W,          C = (I/(1-l) + A)^{-1},    W = C (b + sqrt(l)/(1-l) S).

The reaction term takes g of the step before and C of the present one; the side information S = sqrt(l) W* +
sqrt(1-l) noise enters exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.linear_algebra import psd_project
from ..channels.links.link_channel import LinkChannel
from ..channels.protocol import Channel
from .schedule import SMALLEST_VARIANCE
from .tokens import DrawnTokens, Tokens, joined


class Data(NamedTuple):
    """Data sets of several seeds: tokens, teachers (S, P, D), side information, observations (S, N, ...)."""

    tokens: Tokens
    teacher: Any
    side: Any
    observation: Any

    @property
    def samples(self) -> int:
        """Samples N of a data set."""
        return self.tokens.shape[1]

    @property
    def alpha(self) -> float:
        """Samples per dimension."""
        return self.samples / self.tokens.shape[3]


def draw_data(
    channel: Channel, samples: int, dim: int, seeds: Any, side_information: float, *, stream: bool = False
) -> Data:
    """Draw the data of every seed; what a seed gives depends on (seed, samples, dim) only.

    With ``stream`` the tokens are not kept but drawn anew in every pass.
    """
    keys, teacher, side = draw_weights(seeds, samples, channel.indices, dim, side_information)
    tokens: Tokens = drawn_tokens(channel, keys, samples, dim)
    tokens = tokens if stream else tokens.kept()
    Z = np.asarray(tokens.fields(teacher))
    flat, noise = Z.reshape(-1, *Z.shape[2:]), {}
    if isinstance(channel, LinkChannel) and channel.noises:
        sources = [np.random.default_rng([seed, samples, dim, 2]) for seed in seeds]
        noise = {"noise": np.concatenate([source.normal(size=(samples, channel.noises)) for source in sources])}
    observation = jnp.asarray(channel.observe(flat, **noise))
    return Data(tokens, teacher, side, observation.reshape(*Z.shape[:2], *observation.shape[1:]))


def drawn_tokens(channel: Channel, keys: Any, samples: int, dim: int) -> DrawnTokens:
    """The tokens of data sets with the given keys (S,)."""
    groups = None if channel.groups is None else tuple(int(group) for group in channel.groups)
    parts = 1 if groups is None else max(groups) + 1
    return DrawnTokens(keys, (len(keys), samples, parts * channel.tokens, dim), groups)


def draw_weights(seeds: Any, samples: int, indices: int, dim: int, side_information: float) -> tuple[Any, Any, Any]:
    """Keys (S,) of the tokens, teachers (S, P, D) and side information (S, P, D) of every seed."""
    key_data, teachers, sides = [], [], []
    for seed in seeds:
        source = np.random.SeedSequence([seed, samples, dim])
        key_data.append(source.generate_state(2, np.uint32))
        W, extra = np.random.default_rng(source).standard_normal((2, indices, dim))
        teachers.append(W)
        sides.append(np.sqrt(side_information) * W + np.sqrt(1 - side_information) * extra)
    keys = jax.random.wrap_key_data(jnp.asarray(np.array(key_data)), impl="threefry2x32")
    return keys, jnp.asarray(np.array(teachers), jnp.float32), jnp.asarray(np.array(sides), jnp.float32)


def compile_ahead(data: Data, state: State) -> None:
    """Compile what an iteration needs besides the channel; to be called in a thread of its own."""
    seeds, P = data.teacher.shape[:2]
    square, active = np.zeros((seeds, P, P), np.float32), np.zeros((P, P), np.float32)
    share = np.zeros((seeds, 1, 1), np.float32)
    rows, X = next(data.tokens.blocks())
    omega = _corrected(data.tokens.fields_of(X, state.W), square, state.g[:, rows], active)
    data.tokens.gathered_of(X, omega)
    _moved(state.W, state.W, data.side, square, square, np.float32(0), share, active)


@dataclass
class State:
    """Estimate W (S, P, D), last scores g (S, N, P, M), V and the reaction coefficient C (S, P, P)."""

    W: Any
    g: Any
    V: np.ndarray
    reaction: np.ndarray


class Moments(NamedTuple):
    """Posterior of the samples of a block: shift (S, n, P, M) and covariance (S, n, P, M, P, M)."""

    shift: Any
    covariance: Any


def posterior_at(
    channel: Channel, data: Data, state: State, rows: slice, raw: Any, active: np.ndarray, jitter: float = 0.0
) -> Moments:
    """Posterior of some samples of all seeds at fields ``raw`` = X W / sqrt(D) less the reaction term.

    ``active`` (P, P) projects on the directions that are iterated; ``jitter`` is added to V.
    """
    omega = _corrected(raw, np.float32(state.reaction), state.g[:, rows], np.float32(active))
    seeds, samples, *each = omega.shape
    V = np.repeat(np.float32(state.V + jitter * np.eye(len(active))), samples, axis=0)
    observation = data.observation[:, rows]
    found = channel.posterior(observation.reshape(seeds * samples, *observation.shape[2:]), omega.reshape(-1, *each), V)
    shape = (seeds, samples, *each)
    return Moments(found.shift.reshape(shape), found.covariance.reshape(*shape, *each))


def covariance_along(channel: Channel, data: Data, state: State, frame: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Posterior covariance (S, N, k, M, k, M) of frame^T Z, frame (P, k), at the fields of the active directions."""
    parts = []
    for rows, X in data.tokens.blocks():
        found = posterior_at(channel, data, state, rows, data.tokens.fields_of(X, state.W), active)
        inside = np.einsum("pi,snpmqk,qj->snimjk", frame, np.asarray(found.covariance, float), frame, optimize=True)
        parts.append(inside)
        del X  # or it would be alive while the next block is drawn
    return np.concatenate(parts, axis=1)


def _times(matrices: Any, fields: Any) -> Any:
    """Matrices (S, P, P) times fields (S, n, P, M), in full single precision on any device."""
    return jnp.einsum("spq,snqm->snpm", matrices, fields, precision="highest")


@jax.jit
def _corrected(raw: Any, reaction: Any, g: Any, active: Any) -> Any:
    """Fields omega (S, n, P, M)."""
    return jnp.einsum("pq,snqm->snpm", active, raw - _times(reaction, g), precision="highest")


@jax.jit
def _scores(shift: Any, covariance: Any, V: Any, gain: Any) -> tuple[Any, Any, Any, Any]:
    """g, the sums over samples of sum_m Cov_mm (S, P, P) and |g|^2 (S, P), and the number of lost samples."""
    lost = ~(jnp.isfinite(shift).all((2, 3)) & jnp.isfinite(covariance).all((2, 3, 4, 5)))
    shift = jnp.where(lost[..., None, None], 0.0, shift)
    traced = jnp.einsum("snpmqm->snpq", covariance)
    traced = jnp.where(lost[..., None, None], shift.shape[-1] * V[:, None], traced)
    g = _times(gain, shift)
    return g, traced.sum(1), (g**2).sum((1, 3)), lost.sum(1)


@jax.jit
def _moved(W: Any, b: Any, S: Any, A: Any, C: Any, side: Any, share: Any, active: Any) -> Any:
    """(1 - share) W + share C (b + A W + side S), b = X^T g / sqrt(D), in the active directions."""

    def times(matrix: Any, vectors: Any) -> Any:
        return jnp.einsum("spq,sqd->spd", matrix, vectors, precision="highest")

    new = times(active @ C, b + times(A, W) + side * S)
    return share * new + (1 - share) * W


def data_precision(alpha: float, V: np.ndarray, traced: np.ndarray, tokens: int) -> np.ndarray:
    """A = -alpha E sum_m (d g_out)_mm, (..., P, P), from the mean ``traced`` of sum_m Cov_mm."""
    inverse = np.linalg.inv(V)
    A = alpha * (tokens * inverse - inverse @ traced @ inverse)
    return 0.5 * (A + A.swapaxes(-1, -2))


def weight_covariance(A: np.ndarray, side_information: float) -> np.ndarray:
    """C = (I/(1-l) + A)^{-1}, (..., P, P).

    A sampled A may have negative eigenvalues; the variance then exceeds the prior's, here by at most two.
    """
    prior = np.eye(A.shape[-1]) / (1 - side_information)
    return np.linalg.inv(prior + psd_project(A + 0.5 * prior) - 0.5 * prior)


class Step(NamedTuple):
    """What an iteration measured on the data of every seed.

    Attributes
    ----------
    empirical_variance : array (S, P)
        Diagonal of (I/(1-l) + A)^{-1} with the data's own A.
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
    """One iteration, in place.

    ``active`` (P, P) projects on the directions that are iterated. ``precision`` (S, P, P) prescribes A; where it is
    nan the data's own is taken.
    """
    V = np.asarray(state.V, float)
    seen = V + jitter * np.eye(len(active))
    gain = np.float32(active @ np.linalg.inv(seen))  # in double precision: directions may be known to 1e-6
    scores, sums = [], []

    def score(rows: slice, raw: Any) -> Any:
        moments = posterior_at(channel, data, state, rows, raw, active, jitter)
        g, *parts = _scores(*moments, np.float32(seen), gain)
        scores.append(g)
        sums.append([np.asarray(x, float) for x in parts])
        return g

    b = data.tokens.sweep(state.W, score)
    traced, squares, lost = (np.sum(column, axis=0) for column in zip(*sums, strict=True))
    measured = data_precision(data.alpha, seen, traced / data.samples, channel.tokens)
    measured = active @ (measured * channel.overlap_mask) @ active
    own = np.isnan(precision).any(axis=(1, 2), keepdims=True)
    A = np.where(own, measured, np.nan_to_num(precision))
    C = weight_covariance(A, side_information)
    side, share = np.sqrt(side_information) / (1 - side_information), damping[:, None, None]
    state.W = _moved(state.W, b, data.side, *map(np.float32, (A, C, side, share)), np.float32(active))
    state.V = psd_project(share * C + (1 - share) * V, SMALLEST_VARIANCE)
    state.reaction, state.g = state.V, joined(scores)
    own_variance = np.einsum("spp->sp", weight_covariance(measured, side_information))
    return Step(own_variance, squares / data.tokens.shape[3], lost.astype(int))
