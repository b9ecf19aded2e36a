"""The fibre of an observation as weighted points, computed once for all priors.

The fibre, the set of z with g(z) = y, does not depend on omega and V. Points z_j of the fibre and weights w_j with

    int f(z) delta(g(z) - y) dz = sum_j w_j f(z_j)

give every posterior as a sum over the points, with weights w_j N(z_j; omega, V). State evolution asks for the
posteriors of the same observations at tens to hundreds of overlaps. At each overlap omega is within a few sqrt(V) of
the true indices: points concentrated around the true indices, at all scales down to ``finest``, serve all overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.arrays import Array
from ...numerics.precision import double_precision
from ...numerics.threads import in_threads
from .protocol import Accuracy, Posterior
from .tools.sample_moments import SampleMoments

#: Least effective number of random points of a sample. The bias of twelve points is of second order, and smaller than
#: the first-order bias of thirty draws. With six points E[g g^T] of z_1 z_2 + z_3 z_4 at v = 0.01 is off by 0.6(2) %.
ENOUGH_POINTS = 12.0
#: Factor by which lists are longer for samples with fewer effective points.
_LONGER = 8
#: If the share of samples with still too few points is below this, they need only this smaller effective number.
_RARE, _LEAST_POINTS = 5e-3, 2.0
#: An effective number that is never refused.
_CERTAIN = 1e9
#: Difference of the seeds of lists that must be independent.
_OTHER_SEED = 1000
#: Number of points times fields in one call; number of observations whose fibres are computed in one call; multiples
#: to which the numbers of points on ordinary and on longer lists are rounded up. Smaller multiples: more compilations.
_POINTS, _FOUND, _ROUND, _ROUND_LONGER = 2**17, 16, 128, 1024
#: Number of fields on longer lists in one call. Larger: wasted work, because every call is filled up to this number.
_LONGER_AT_ONCE = 8


class Support(NamedTuple):
    """Points (samples, lists, n, J) of fibres minus the true indices, and their log-weights (samples, lists, J)."""

    points: np.ndarray
    log_weights: np.ndarray


class Supporting(Protocol):
    """Interface of a channel that can compute the fibres of its observations."""

    finest: float | None
    stochastic: bool

    @property
    def support_program(self) -> Any:  # channels with draws also take ``longer``, a factor of the length of lists
        ...

    def keys(self, numbers: np.ndarray, seed: int) -> np.ndarray: ...

    def unjudged(self, observation: Array, omega: Array, V: Array, accuracy: Accuracy) -> Posterior: ...

    def refuse_few_samples(self, effective: np.ndarray) -> None: ...


class SupportedPosterior:
    """Posterior of n fixed observations as a function of omega (f n, P, M) and V (P, P); see :meth:`Channel.prepared`.

    Where the smallest standard deviation of V is below ``channel.finest``, or too few points have weight, the channel's
    own posterior is used. Z (n, P, M) are the true indices of the observations.
    """

    def __init__(self, channel: Supporting, observation: Array, Z: Array, accuracy: Accuracy) -> None:
        self._channel, self._accuracy = channel, accuracy
        self._y = np.asarray(observation, float).reshape(len(Z), -1)
        numbers = np.arange(len(Z)) if accuracy.numbers is None else np.asarray(accuracy.numbers, int)
        self._numbers = numbers
        self._truth = np.asarray(Z, float).reshape(len(Z), -1)
        self._support = _found(channel, self._y, self._truth, numbers, accuracy.seed)
        self._longer: dict[int, Support] = {}

    def __call__(self, omega: Array, V: Array) -> Posterior:
        channel, omega, V = self._channel, np.asarray(omega, float), np.asarray(V, float)
        n, P, M = omega.shape
        assert channel.finest is not None
        if np.sqrt(np.linalg.eigvalsh(V)[0]) < channel.finest:
            found = self._channel_own(np.arange(n), omega, V)
            channel.refuse_few_samples(np.asarray(found.effective_samples))
            return found
        fields, precision = omega.reshape(n, -1), np.kron(np.linalg.inv(V), np.eye(M))
        found = _moments(self._support, fields.reshape(len(self._y), -1, P * M) - self._truth[:, None], precision)
        self._do_again(found, fields, precision)
        log_evidence = found[0] - 0.5 * M * np.linalg.slogdet(2 * np.pi * V)[1]
        posterior = Posterior(log_evidence, found[1].reshape(n, P, M), found[2].reshape(n, P, M, P, M), found[3])
        kept = np.isfinite(log_evidence) & self._enough(found[3])
        few = np.flatnonzero(~kept)
        if len(few):
            for old, new in zip(posterior, self._channel_own(few, omega, V), strict=True):
                old[few] = new
        # Fields with enough points are never refused; the channel judges its own posteriors of the others.
        channel.refuse_few_samples(np.where(kept, _CERTAIN, np.asarray(posterior.effective_samples)))
        return posterior

    def _do_again(self, found: list[np.ndarray], omega: np.ndarray, precision: np.ndarray) -> None:
        """Replace the moments ``found`` (arrays of one row per field) of fields with few effective points, in place.

        The new moments come from longer lists of points. ``omega`` (f n, P M) are the fields, ``precision`` (P M, P M)
        is the inverse prior covariance. Longer lists are kept, because the same samples need them at many priors.
        """
        few = np.flatnonzero(np.isfinite(found[0]) & ~(found[3] > ENOUGH_POINTS))
        if not self._channel.stochastic or len(few) == 0:
            return
        source = few // (len(omega) // len(self._y))
        fields = (omega[few] - self._truth[source])[:, None]
        for old, new in zip(found, _moments(self._longer_support(source), fields, precision), strict=True):
            old[few] = new

    def _longer_support(self, source: np.ndarray) -> Support:
        """Return the longer lists of samples, one row per position in ``source``; compute those not known yet."""
        if new := [i for i in np.unique(source).tolist() if i not in self._longer]:
            seed = self._accuracy.seed + _OTHER_SEED
            found = _found(self._channel, self._y[new], self._truth[new], self._numbers[new], seed, longer=_LONGER)
            # Each list is cut to its own length: sums must not depend on the samples that were computed with it.
            ends = [_rounded_up(int(np.isfinite(weights).sum(-1).max()), _ROUND) for weights in found.log_weights]
            trimmed = (Support(*(x[..., :end] for x in one)) for *one, end in zip(*found, ends, strict=True))
            self._longer.update(zip(new, trimmed, strict=True))
        most = _rounded_up(max(self._longer[i].log_weights.shape[-1] for i in source.tolist()), _ROUND_LONGER)
        return _stacked([self._longer[i] for i in source.tolist()], most)

    def _enough(self, effective: np.ndarray) -> np.ndarray:
        """Return a mask (f n,) of the fields with enough points, from their ``effective`` numbers of points (f n,)."""
        if not self._channel.stochastic:
            return effective > 0
        enough = effective > ENOUGH_POINTS
        # A small share of poor fields does not matter in an average, unless one point carries a whole posterior.
        return effective > _LEAST_POINTS if np.mean(~enough) < _RARE else enough

    def _channel_own(self, rows: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the channel's own posterior of the fields with positions ``rows`` among omega (f n, P, M)."""
        source = rows // (len(omega) // len(self._y))
        own = replace(self._accuracy, numbers=self._numbers[source] * len(omega) + rows)
        return self._channel.unjudged(self._y[source], omega[rows], V, own)


def _moments(support: Support, fields: np.ndarray, precision: np.ndarray) -> list[np.ndarray]:
    """Return [log mass, mean - omega, covariance, effective number of points], each with one row per field.

    ``fields`` (samples, f, n) are omega minus the true indices; ``precision`` (n, n) is the inverse prior covariance.
    The normalisation of the prior is missing in the log mass.
    """
    (points, log_weights), (samples, each, _) = support, fields.shape
    fields, precision = fields.astype(points.dtype), precision.astype(points.dtype)

    @double_precision()  # a scope of its own in every thread
    def part(start: int) -> list[np.ndarray]:
        places = np.minimum(np.arange(start, start + chunk), samples - 1)
        found = _program(points[places], log_weights[places], fields[places], precision)
        return [np.array(x, float)[: samples - start] for x in found]

    chunk = max(1, _POINTS // (each * log_weights.shape[-1]))
    chunk = min(chunk, _LONGER_AT_ONCE) if each == 1 else chunk  # a chunk is filled up
    parts = in_threads(part, range(0, samples, chunk))
    columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    return [x.reshape(samples * each, *x.shape[2:]) for x in columns]


@double_precision()
def _found(
    channel: Supporting, y: np.ndarray, z: np.ndarray, numbers: np.ndarray, seed: int, longer: int = 1
) -> Support:
    """Return the points on the fibres of observations y (m, k), minus their true indices z (m, n), and log-weights.

    ``numbers`` (m,) and ``seed`` choose the random draws; the lists are ``longer`` times as long as usual. Single
    precision suffices, because the points that count at the finest prior are close to the true indices.
    """
    keys, each, more = channel.keys(numbers, seed), _FOUND // longer, {} if longer == 1 else {"longer": longer}

    @double_precision()
    def part(start: int) -> tuple[np.ndarray, np.ndarray]:
        places = np.minimum(np.arange(start, start + each), len(z) - 1)
        points, log_weights = channel.support_program(y[places], z[places], keys[places], **more)
        found = points - z[places][:, None, None], log_weights
        return _condensed(*(np.array(x)[: len(z) - start] for x in found))

    parts = in_threads(part, range(0, len(z), each))
    most = _rounded_up(max(part[1].shape[-1] for part in parts), _ROUND)
    return _stacked([Support(*one) for part in parts for one in zip(*_in_single_precision(*part), strict=True)], most)


def _condensed(points: np.ndarray, log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shorten the axis J of points (samples, lists, J, n) and log-weights (samples, lists, J) to the longest list.

    Entries with log-weight -inf are no points and go to the end.
    """
    exists = np.isfinite(log_weights)
    most = _rounded_up(max(int(exists.sum(-1).max()), 1), _ROUND)
    first = np.argsort(~exists, axis=-1, kind="stable")[..., :most]
    log_weights = np.take_along_axis(np.where(exists, log_weights, -np.inf), first, -1)
    points = np.take_along_axis(np.where(exists[..., None], points, 0.0), first[..., None], -2)
    return points, log_weights


def _in_single_precision(points: np.ndarray, log_weights: np.ndarray) -> Support:
    """Return the support in float32, with points (samples, lists, n, J) from points (samples, lists, J, n)."""
    return Support(np.ascontiguousarray(np.swapaxes(points, -1, -2), np.float32), log_weights.astype(np.float32))


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _stacked(supports: Sequence[Support], most: int) -> Support:
    """Stack the supports of single samples, each filled up to ``most`` points by points of log-weight -inf."""
    points, log_weights = supports[0]
    both = Support(
        np.zeros((len(supports), *points.shape[:-1], most), points.dtype),
        np.full((len(supports), *log_weights.shape[:-1], most), -np.inf, log_weights.dtype),
    )
    for place, (points, log_weights) in enumerate(supports):
        both.points[place, ..., : points.shape[-1]] = points
        both.log_weights[place, ..., : log_weights.shape[-1]] = log_weights
    return both


def support_moments(points: jax.Array, log_weights: jax.Array, omega: jax.Array, precision: jax.Array) -> SampleMoments:
    """Return the posterior of one sample on points (lists, n, J) with log-weights (lists, J) and one prior.

    The prior has mean omega (n,) and inverse covariance ``precision`` (n, n); its normalisation is left out. Ratios of
    sums have a bias of the order of one over the number of points that count. With several lists the jackknife over
    lists removes it; the remaining bias is of second order.
    """
    n = points.shape[1]
    away = [points[:, i] - omega[i] for i in range(n)]
    log_terms = log_weights
    for i in range(n):
        log_terms = log_terms - 0.5 * precision[i, i] * away[i] ** 2
        for j in range(i):
            log_terms = log_terms - precision[i, j] * away[i] * away[j]
    # Without the barriers the compiler would recompute the exponentials for every sum. Powers of the points serve all
    # fields of a sample, and one matrix product gives all sums.
    log_terms = jax.lax.optimization_barrier(log_terms)
    top = jnp.max(log_terms)
    terms = jnp.exp(log_terms - jnp.where(jnp.isfinite(top), top, 0.0))
    i, j = np.tril_indices(n)
    powers = jnp.concatenate([jnp.ones_like(points[:, :1]), points, points[:, i] * points[:, j]], 1)
    terms, powers = jax.lax.optimization_barrier((terms, powers))
    sums = jnp.einsum("kj,kaj->ka", terms, powers)
    mass, first = sums[:, 0], sums[:, 1 : n + 1]
    second = jnp.zeros((len(points), n, n), sums.dtype)
    second = second.at[:, i, j].set(sums[:, n + 1 :]).at[:, j, i].set(sums[:, n + 1 :])
    effective = mass.sum() ** 2 / jnp.vdot(terms, terms)
    log_mass, mean, covariance = _without_bias(mass, first, second)
    return SampleMoments(top + log_mass, mean - omega, covariance, effective)


def _without_bias(mass: jax.Array, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return log of the mean mass, mean (n,) and covariance (n, n) of K lists, by the jackknife over lists.

    The arguments are sums over the weighted points z of each list: of 1 (K,), of z (K, n), of z z^T (K, n, n).
    """
    K = len(mass)

    def ratios(
        lists: int, mass: jax.Array, first: jax.Array, second: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        mean = first / mass
        return jnp.log(mass / lists), mean, second / mass - mean[:, None] * mean

    whole = ratios(K, mass.sum(), first.sum(0), second.sum(0))
    if K == 1:
        return whole
    left_out = jax.vmap(lambda *one: ratios(K - 1, *one))(
        mass.sum() - mass, first.sum(0) - first, second.sum(0) - second
    )
    safe = (mass < 0.9 * mass.sum()).all()  # the jackknife fails if one list dominates
    return jax.tree.map(lambda a, b: jnp.where(safe, K * a - (K - 1) * b.mean(0), a), whole, left_out)


_program = jax.jit(jax.vmap(jax.vmap(support_moments, (None, None, 0, None)), (0, 0, 0, None)))
