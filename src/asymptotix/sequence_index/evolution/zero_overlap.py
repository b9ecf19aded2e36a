"""The instability of zero overlap, which gives the first threshold.

At zero overlap the field is omega = 0 and V = I for every sample, so that the score g = E[z|y] and its Jacobian
G = E[z z^T|y] - g g^T - I depend on the output y alone. If y is one number with few values, one posterior per value
suffices. If it is one number with many values, :mod:`.sorting.sorted_outputs` needs no posteriors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import expit, ndtri

from ...core.progress import Say, quietly
from ...numerics.linear_algebra import symmetric_basis
from ...numerics.quadrature import Estimate, error_of_mean, sobol_uniforms
from .. import streams
from ..channels.protocol import HALF_WRONG, Averager, Channel, Posterior
from ..channels.row_symmetry import probes, same_outputs
from ..channels.sign_changes import refuse_seen_signs
from .averages import QuasiRandomAverager, squares_and_operators
from .instability import NO_MOMENT, Instability, analysed, instability, largest_rates
from .nodes import Judged, with_blocks
from .sorting.sorted_outputs import FEW_VALUES, instability_from_sorted_outputs, unseen_symmetry

#: Nodes per randomisation of a sampled curvature, and number of randomisations: more reduce its error.
_COUNT, _RANDOMISATIONS = 2**11, 8
#: Number of outputs drawn per randomisation to find which values occur.
_OUTPUTS = 2**14
#: Number of quantiles of the output at which g = E[z|y] is computed, and median |g|^2 above which g is certain.
_QUANTILES, _SEEN = 128, 1e-6
#: Number of halvings of the shares of outer quantiles, down to 1e-7 of the data; and standard deviation of the wider
#: half of the draws, without which extreme outputs would be missed.
_SMALLEST, _WIDER = 16, 2.0
#: Largest distance from one at which a sum of probabilities counts as one; otherwise frequencies replace them.
_WHOLE = 1e-6


def sampled_instability_at_zero(
    channel: Channel, block: Callable[[int], Averager], tolerance: float, most: int = 8, say: Say = quietly
) -> Instability:
    """Return the instability of zero overlap, with its growth rate to a relative ``tolerance``.

    ``block`` gives the averages over the block of nodes with a given number; at most ``most`` blocks are used, and none
    if the observation is one number.
    """
    P, floor = channel.indices, least_moment(channel)
    if channel.exact_averager() is not None:
        say(f"block 1 of at most {most}")
        exact = block(0)
        found = instability([exact], np.eye(P), np.eye(P), floor)
        return found._replace(error=exact.accuracy * found.rate)
    two = channel.observe(np.ones((2, P, channel.tokens)), np.zeros((2, channel.noises)))
    if channel.groups is None and two.shape == (2, 1):
        say("from draws sorted by their output")
        return _of_one_number(channel, tolerance)

    def on(average: Averager) -> tuple[np.ndarray, np.ndarray]:
        return average.moments_and_operators(np.eye(P), np.eye(P), symmetric_basis(P))

    say(f"block 1 of at most {most}")
    first = block(0)
    blocks = [on(first)]
    bias = _bias_at_zero(first, P, blocks[0][1])

    def judged(blocks: list[tuple[np.ndarray, np.ndarray]]) -> Judged[Instability]:
        moments, operators = (np.mean(part, axis=0) for part in zip(*blocks, strict=True))
        found = analysed(moments, operators, np.eye(P), floor, noisy=True)
        # If directions are learned at any alpha, the rate of the rest is computed later, with these learned.
        enough = found.error <= max(tolerance, bias) * found.rate or found.starts_by_itself or found.rate == 0
        return Judged(found, found.error / max(found.rate, NO_MOMENT), enough)

    found = with_blocks(blocks, judged, lambda _, number: [on(block(number))], most, tolerance, say).found
    return found._replace(error=float(np.hypot(found.error, bias * found.rate)))


def _bias_at_zero(block: Averager, P: int, operators: np.ndarray) -> float:
    """Return the relative systematic error of the growth rate at zero overlap of P indices, from one block of nodes.

    It is half the change of the rate by the correction of the block's ``operators`` (R, b, b).
    """
    if block.uncorrected is None:
        return block.accuracy
    _, before = block.uncorrected.moments_and_operators(np.eye(P), np.eye(P), symmetric_basis(P))
    rate, rate_before = (largest_rates(rows).mean() for rows in (operators, before))
    return float(HALF_WRONG * abs(rate - rate_before) / max(rate, NO_MOMENT))


@lru_cache(maxsize=64)
def _of_one_number(channel: Channel, tolerance: float) -> Instability:
    """Return the instability of zero overlap for observations of one number, without nodes of state evolution.

    ``tolerance`` is the relative error of its growth rate.
    """
    exactly = None if channel.stochastic or channel.noises else _from_few_outputs(channel)
    if exactly is not None:
        return exactly
    if _is_even(channel):
        return instability_from_sorted_outputs(channel, tolerance, np.zeros((channel.indices, channel.indices)))
    found = instability_from_sorted_outputs(channel, tolerance)
    # Posteriors take long to compile. They are not needed if all directions with a mean stand out of the noise.
    if channel.stochastic or np.linalg.matrix_rank(found.moment) == _directions_with_a_mean(channel):
        return found
    moment = _moment_of_one_number(channel)
    return found if moment is None else instability_from_sorted_outputs(channel, tolerance, moment)


def _directions_with_a_mean(channel: Channel) -> int:
    """Return the dimension of the index vectors that every row symmetry of the outputs leaves unchanged.

    All E[z|y] at zero overlap are such vectors.
    """
    return int(np.linalg.matrix_rank(unseen_symmetry(channel).fixed))


@lru_cache(maxsize=64)
def least_moment(channel: Channel) -> float:
    """Return the value of E|g|^2 (g: score) at zero overlap below which it counts as zero; inf for even outputs."""
    return np.inf if _is_even(channel) else NO_MOMENT


def _is_even(channel: Channel) -> bool:
    """Whether outputs stay the same when all indices change their signs, so that E[z|y] = 0."""
    Z = probes(channel.indices, channel.tokens, streams.EVEN_LINK)
    silent = np.zeros((len(Z), channel.noises))
    there, back = (np.asarray(channel.observe(sign * Z, silent), float) for sign in (1, -1))
    return same_outputs(back, there)


def _from_few_outputs(channel: Channel) -> Instability | None:
    """Return the instability of zero overlap from one posterior per value of the observation; None: many values."""
    P, M = channel.indices, channel.tokens
    uniforms = [sobol_uniforms(_OUTPUTS, P * M, (streams.INSTABILITY_OUTPUTS, r)) for r in range(_RANDOMISATIONS)]
    Z = ndtri(np.concatenate(uniforms)).reshape(-1, P, M)
    values, which = np.unique(np.asarray(channel.observe(Z, channel.own_noise(Z)), float)[:, 0], return_inverse=True)
    if len(values) > FEW_VALUES:
        return None
    posterior = channel.posterior(values[:, None], np.zeros((len(values), P, M)), np.eye(P))
    found = Posterior(*(np.asarray(x, float) for x in posterior[:3]))
    lost = ~np.isfinite(found.log_evidence)
    if lost.any():
        raise FloatingPointError(f"the channel lost {lost.sum()} outputs at zero overlap")
    tables = squares_and_operators([(found, found)], np.eye(P), np.eye(P), symmetric_basis(P))
    # Probabilities of the values are Z_out; if these do not sum to one, the frequencies of the draws are used.
    share = np.exp(found.log_evidence)[None]
    if abs(share.sum() - 1) > _WHOLE:
        share = np.stack([np.bincount(rows, minlength=len(values)) for rows in which.reshape(_RANDOMISATIONS, -1)])
    share = share / share.sum(1, keepdims=True)
    moments, operators = (np.tensordot(share, table, 1) for table in tables)
    return analysed(moments, operators, np.eye(P), NO_MOMENT, False)


@lru_cache(maxsize=64)
def _moment_of_one_number(channel: Channel) -> np.ndarray | None:
    """Return E[g g^T] (P, P) at zero overlap (g: score), small values included, from posteriors at output quantiles.

    None if g is negligible at most outputs, but not at all: posteriors of extreme outputs may be wrong.
    """
    P, M = channel.indices, channel.tokens
    nodes, shares = _outputs_with_shares(channel)
    found = channel.posterior(nodes[:, None], np.zeros((len(nodes), P, M)), np.eye(P))
    finite = np.isfinite(np.asarray(found.log_evidence))
    g, shares = np.asarray(found.shift, float)[finite], shares[finite] / shares[finite].sum()
    squares = (g**2).sum((1, 2))
    certain = np.median(squares) > _SEEN or squares.max() < NO_MOMENT
    return np.einsum("n,npm,nqm->pq", shares, g, g) if certain else None


def _outputs_with_shares(channel: Channel) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs (n,) and the shares (n,) of the data that they represent: equal in the bulk, small at both ends.

    An index may affect only outputs that are larger than nearly all others.
    """
    size = channel.indices * channel.tokens
    normals = ndtri(sobol_uniforms(2 * _OUTPUTS, size + channel.noises, (streams.INSTABILITY_OUTPUTS, 0)))
    z, noise = normals[:, :size], normals[:, size:]
    z[_OUTPUTS:] *= _WIDER  # this half is a net by itself; every second point covers half of the first axis
    log_ratio = 0.5 * (1 - _WIDER**-2) * (z**2).sum(1) - size * np.log(_WIDER)
    y = np.asarray(channel.observe(z.reshape(-1, channel.indices, channel.tokens), noise), float)[:, 0]
    order = np.argsort(y)
    below = np.cumsum(expit(-log_ratio)[order])
    below /= below[-1]
    ends = 2.0 ** -np.arange(_SMALLEST, 0, -1) / _QUANTILES
    edges = np.concatenate([[0.0], ends, np.arange(1, _QUANTILES) / _QUANTILES, 1 - ends[::-1], [1.0]])
    middle = 0.5 * (edges[1:] + edges[:-1])
    return y[order][np.searchsorted(below, middle)], np.diff(edges)


def curvature_at_zero(channel: Channel) -> Estimate:
    """Return f_l = E|dg_l/domega_l|^2 (g: score) of every index (P,) at zero overlap, exact or sampled, with errors."""
    return channel.curvature_at_zero() or sampled_curvature_at_zero(channel)


@lru_cache(maxsize=64)
def sampled_curvature_at_zero(channel: Channel) -> Estimate:
    """Return f_l = E|dg_l/domega_l|^2 (g: score) of every index (P,) at zero overlap by sampling, with errors.

    Raises ValueError if the posterior depends on the sign of an index although the channel says the contrary.
    """
    refuse_seen_signs(channel)
    f = QuasiRandomAverager(channel, _COUNT, _RANDOMISATIONS)(np.eye(channel.indices)).curvature
    return Estimate(f.mean(0), error_of_mean(f))
