"""One iteration of generalised approximate message passing, batched over seeds.

    omega = X W / sqrt(D) - C g_old,    g = g_out(y, omega, V),    A = -(alpha/N) sum (d g_out)_mm,
    b = X^T g / sqrt(D) + A W,          C = (I/(1-l) + A)^{-1},    W = C (b + sqrt(l)/(1-l) S).

This is Algorithm 1 of Troiani et al., arXiv:2502.00901 (their eq. (103)), with V = C in every step and the side
information S = sqrt(l) W* + sqrt(1-l) noise. The reaction term has g of the previous step and C of the current step, as
in Algorithm 1; eq. (99) there prints C of the previous step. The side information enters exactly, by the prior of eq.
(105) there; eq. (108), derived for small l, multiplies S by a factor A that does not belong there.

Equations si-gamp, si-gamp-weights of docs/theory/sequence_index.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...numerics.arrays import Array
from ...numerics.linear_algebra import psd_project
from ..channels.protocol import Channel, Posterior
from ..evolution.averages import POSTERIOR_ACCURACY
from ..models.rank_one import array_namespace
from .data_sets import DataSets
from .placed_arrays import compiled_for_jax, placed
from .schedule import SMALLEST_VARIANCE
from .tokens import joined, may_stop

if TYPE_CHECKING:
    import jax


@dataclass
class MessageState:
    """Estimates W (S, P, D), last scores g (S, N, P, M), covariances V and reaction coefficients C, both (S, P, P)."""

    W: Array
    g: Array
    V: np.ndarray
    reaction: np.ndarray

    @classmethod
    def at_prior(cls, channel: Channel, data: DataSets) -> MessageState:
        """Return the state with W = 0, g = 0 and the covariances of the prior, V = C = I."""
        S, P = data.teacher.shape[:2]
        return cls(
            W=placed(np.zeros(data.teacher.shape)),
            g=placed(np.zeros((S, data.samples, P, channel.tokens))),
            V=np.broadcast_to(np.eye(P), (S, P, P)).copy(),
            reaction=np.broadcast_to(np.eye(P), (S, P, P)).copy(),
        )


def compile_ahead(data: DataSets, state: MessageState) -> None:
    """Compile the programs of an iteration except the channel; meant to run in a separate thread."""
    seeds, P = data.teacher.shape[:2]
    square, active = np.zeros((seeds, P, P), np.float32), np.zeros((P, P), np.float32)
    share = np.zeros((seeds, 1, 1), np.float32)
    rows, X = next(data.tokens.blocks())
    omega = _corrected(data.tokens.fields_of(X, state.W), square, state.g[:, rows], active)
    data.tokens.gathered_of(X, omega)
    _moved(state.W, state.W, data.side, square, square, np.float32(0), share, active)


class BlockPosterior(NamedTuple):
    """Posterior of the samples of a block: shift (S, n, P, M) and covariance (S, n, P, M, P, M)."""

    shift: Array
    covariance: Array


def posterior_in_runs(
    channel: Channel, observation: Array, omega: Array, V: Array, numbers: np.ndarray | None = None
) -> Posterior:
    """Return the posteriors of n samples, see :meth:`Channel.posterior`; their errors change overlaps by 1e-3 at most.

    The random draws of a posterior depend on the sample's number in ``numbers`` (n,), not on other samples.
    """
    accuracy = POSTERIOR_ACCURACY if numbers is None else replace(POSTERIOR_ACCURACY, numbers=numbers)
    V = np.asarray(V, np.float32)
    return channel.quick_posterior(observation, omega, V, accuracy)


def posterior_at(
    channel: Channel,
    data: DataSets,
    state: MessageState,
    rows: slice,
    raw: Array,
    active: np.ndarray,
    jitter: float = 0.0,
) -> BlockPosterior:
    """Return the posterior of the samples ``rows`` of all seeds.

    The fields are ``raw`` = X W / sqrt(D), (S, n, P, M), minus the reaction term, projected by ``active`` (P, P) on the
    directions that are iterated. ``jitter`` is added to the diagonal of V.
    """
    omega = _corrected(raw, np.float32(state.reaction), state.g[:, rows], np.float32(active))
    seeds, samples, *each = omega.shape
    V = np.repeat(state.V + jitter * np.eye(len(active)), samples, axis=0)
    observation = data.observation[:, rows].reshape(seeds * samples, *data.observation.shape[2:])
    numbers = np.tile(np.arange(rows.start, rows.start + samples), seeds)
    found = posterior_in_runs(channel, observation, omega.reshape(-1, *each), V, numbers)
    shape = (seeds, samples, *each)
    return BlockPosterior(found.shift.reshape(shape), found.covariance.reshape(*shape, *each))


def covariance_along(
    channel: Channel, data: DataSets, state: MessageState, frame: np.ndarray, active: np.ndarray
) -> np.ndarray:
    """Return the posterior covariance (S, N, k, M, k, M) of frame^T Z, for orthonormal columns ``frame`` (P, k).

    ``active`` (P, P) projects the fields on the directions that are iterated.
    """
    parts = []
    for rows, X in data.tokens.blocks():
        may_stop()
        found = posterior_at(channel, data, state, rows, data.tokens.fields_of(X, state.W), active)
        inside = np.einsum("pi,snpmqk,qj->snimjk", frame, np.asarray(found.covariance, float), frame, optimize=True)
        parts.append(inside)
        del X  # otherwise it would stay in memory while the next block is drawn
    return np.concatenate(parts, axis=1)


def _times(matrices: Array, fields: Array) -> Array:
    """Return the products (S, n, P, M) of matrices (S, P, P) with fields (S, n, P, M)."""
    return array_namespace(fields).einsum("spq,snqm->snpm", matrices, fields)


@compiled_for_jax
def _corrected(raw: Array, reaction: Array, g: Array, active: Array) -> Array:
    """Return omega = active (raw - C g), (S, n, P, M), for fields ``raw``, scores g and C = ``reaction`` (S, P, P)."""
    return array_namespace(raw).einsum("pq,snqm->snpm", active, raw - _times(reaction, g))


@compiled_for_jax
def _scores(shift: Array, covariance: Array, V: Array, gain: Array) -> tuple[Array, Array, Array, Array]:
    """Return scores g (S, n, P, M) and sums over samples: sum_m Cov_mm (S, P, P), |g|^2 (S, P), lost samples (S,).

    g is ``gain`` (S, P, P) times the posterior's shift. A sample without a finite posterior is lost: it gets the
    prior's values, so that the other runs of a batch can continue; its own run has failed.
    """
    xp = array_namespace(shift)
    lost = ~(xp.isfinite(shift).all((2, 3)) & xp.isfinite(covariance).all((2, 3, 4, 5)))
    shift = xp.where(lost[..., None, None], 0.0, shift)
    traced = xp.einsum("snpmqm->snpq", covariance)
    traced = xp.where(lost[..., None, None], shift.shape[-1] * V[:, None], traced)
    g = _times(gain, shift)
    return g, traced.sum(1), (g**2).sum((1, 3)), lost.sum(1)


@compiled_for_jax
def _moved(
    W: Array, b: Array, S: Array, A: Array, C: Array, side: np.float32 | jax.Array, share: Array, active: Array
) -> Array:
    """Return (1 - share) W + share C (b + A W + side S) with b = X^T g / sqrt(D), in the active directions."""
    new = active @ C @ (b + A @ W + side * S)
    return share * new + (1 - share) * W


def empirical_precision(alpha: float, V: np.ndarray, traced: np.ndarray, tokens: int) -> np.ndarray:
    """Return A = -alpha E sum_m (d g_out)_mm, (..., P, P), with d g_out = V^{-1} Cov V^{-1} - V^{-1} for every token m.

    ``traced`` (..., P, P) is the mean over samples of sum_m Cov_mm; ``tokens`` is their number M.
    """
    inverse = np.linalg.inv(V)
    A = alpha * (tokens * inverse - inverse @ traced @ inverse)
    return 0.5 * (A + A.swapaxes(-1, -2))


def weight_covariance(A: np.ndarray, side_information: float) -> np.ndarray:
    """Return C = (I/(1-l) + A)^{-1}, (..., P, P), with l the overlap of the side information.

    If A is measured on data, it may have negative eigenvalues. They are limited so that C is at most twice the prior's.
    """
    prior = np.eye(A.shape[-1]) / (1 - side_information)
    return np.linalg.inv(prior + psd_project(A + 0.5 * prior) - 0.5 * prior)


class IterationReport(NamedTuple):
    """Measurements of an iteration on the data of every seed.

    Attributes
    ----------
    empirical_variance : array (S, P)
        Diagonal of (I/(1-l) + A)^{-1} with the data's own A.
    second_moment : array (S, P)
        alpha times the mean of |g|^2; it equals A as long as V is the true error (Nishimori condition).
    lost : array (S,)
        Number of samples without a posterior.
    """

    empirical_variance: np.ndarray
    second_moment: np.ndarray
    lost: np.ndarray


def iterate(
    channel: Channel,
    data: DataSets,
    state: MessageState,
    *,
    active: np.ndarray,
    precision: np.ndarray,
    own_precision: np.ndarray,
    damping: np.ndarray,
    side_information: float,
    jitter: float = 0.0,
) -> IterationReport:
    """Do one iteration of message passing on all data sets; ``state`` is changed in place.

    Parameters
    ----------
    active : array (P, P)
        Projector on the directions that are iterated.
    precision : array (P, P) or (S, P, P)
        Prescribed A.
    own_precision : array of bool (S,)
        Mask of the data sets that use A measured on themselves instead.
    damping : array (S,)
        Share of the new iterate.
    side_information : float
        Overlap l of the side information with the teacher.
    jitter : float
        Number that is added to the diagonal of V inside g_out.
    """
    V = np.asarray(state.V, float)
    V_seen = V + jitter * np.eye(len(active))
    gain = np.float32(active @ np.linalg.inv(V_seen))  # in double precision, because variances may be 1e-6
    scores, sums = [], []

    def score(rows: slice, raw: Array) -> Array:
        posterior = posterior_at(channel, data, state, rows, raw, active, jitter)
        g, *parts = _scores(*map(placed, posterior), np.float32(V_seen), gain)
        scores.append(g)
        sums.append([np.asarray(x, float) for x in parts])
        return g

    b = data.tokens.sweep(state.W, score)
    traced, squares, lost = (np.sum(column, axis=0) for column in zip(*sums, strict=True))
    data_precision = empirical_precision(data.alpha, V_seen, traced / data.samples, channel.tokens)
    data_precision = active @ (data_precision * channel.overlap_mask) @ active
    A = np.where(own_precision[:, None, None], data_precision, precision)
    C = weight_covariance(A, side_information)
    side, share = np.sqrt(side_information) / (1 - side_information), damping[:, None, None]
    state.W = _moved(state.W, b, data.side, *map(np.float32, (A, C, side, share)), np.float32(active))
    state.V = psd_project(share * C + (1 - share) * V, SMALLEST_VARIANCE)
    state.reaction, state.g = state.V, joined(scores)
    data_variance = np.einsum("spp->sp", weight_covariance(data_precision, side_information))
    return IterationReport(data_variance, squares / data.tokens.shape[3], lost.astype(int))
