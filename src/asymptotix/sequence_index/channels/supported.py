"""The fibre of an observation as weighted points, found once for all priors.

What z may be where g(z) = y does not depend on omega and V: points z_j of the fibre and weights w_j with

    int f(z) delta(g(z) - y) dz = sum_j w_j f(z_j)

give every posterior as a sum over them, of weights w_j N(z_j; omega, V). State evolution asks for the posteriors of the
same observations at tens to hundreds of overlaps, and at each of them omega is within a few sqrt(V) of the true
indices: points that crowd around those, at all scales down to ``finest``, serve them all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.precision import double_precision
from ...numerics.threads import in_threads
from .protocol import Accuracy, Posterior
from .tools.sample_moments import SampleMoments

#: Effective number of random points of a sample that is enough: their bias is of second order, less than that of thirty
#: draws whose bias is of first order.
ENOUGH_POINTS = 6.0
#: Share of samples with fewer of which each may be as wrong as its prior is wide.
_RARE = 5e-3
#: An effective number that no one refuses.
_CERTAIN = 1e9
#: Fields at a time, observations whose fibre is found at a time, and the multiple to which the number of points is
#: rounded up, for few compiled programs.
_CHUNK, _FOUND, _ROUND = 256, 16, 64


class Supporting(Protocol):
    """What is asked of a channel that knows the fibres of its observations."""

    finest: float | None
    stochastic: bool

    @property
    def support_program(self) -> Any: ...

    def keys(self, numbers: np.ndarray, seed: int) -> Any: ...

    def unjudged(self, observation: Any, omega: Any, V: Any, accuracy: Accuracy) -> Posterior: ...

    def refuse_few_samples(self, effective: np.ndarray) -> None: ...


class SupportedPosterior:
    """Posterior of fixed observations as a function of omega and V; see :meth:`Channel.prepared`.

    Where V is finer than the points, or too few of them count, it is that of the channel itself.
    """

    def __init__(self, channel: Supporting, observation: Any, Z: Any, accuracy: Accuracy) -> None:
        self._channel, self._accuracy = channel, accuracy
        self._y = np.asarray(observation, float).reshape(len(Z), -1)
        numbers = np.arange(len(Z)) if accuracy.numbers is None else np.asarray(accuracy.numbers, int)
        self._numbers = numbers
        self._truth = np.asarray(Z, float).reshape(len(Z), -1)
        self._support = _found(channel, self._y, self._truth, numbers, accuracy.seed)

    def __call__(self, omega: Any, V: Any) -> Posterior:
        channel, omega, V = self._channel, np.asarray(omega, float), np.asarray(V, float)
        n, P, M = omega.shape
        assert channel.finest is not None
        if np.sqrt(np.linalg.eigvalsh(V)[0]) < channel.finest:
            found = self._channel_own(np.arange(n), omega, V)
            channel.refuse_few_samples(np.asarray(found.effective_samples))
            return found
        found = self._moments(omega.reshape(n, -1), np.kron(np.linalg.inv(V), np.eye(M)))
        log_evidence = found[0] - 0.5 * M * np.linalg.slogdet(2 * np.pi * V)[1]
        posterior = Posterior(
            log_evidence, found[1].reshape(n, P, M), found[2].reshape(n, P, M, P, M), found[3]
        )
        exists, enough = np.isfinite(log_evidence), found[3] > (ENOUGH_POINTS if channel.stochastic else 0.0)
        if np.mean(exists & ~enough) < _RARE:  # in an average they do not count
            enough = exists
        few = np.flatnonzero(~(exists & enough))
        if len(few):
            for old, new in zip(posterior, self._channel_own(few, omega, V), strict=True):
                old[few] = new
        # What the points give is enough; draws anew are judged by their own measure.
        channel.refuse_few_samples(np.where(exists & enough, _CERTAIN, np.asarray(posterior.effective_samples)))
        return posterior

    def _channel_own(self, rows: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """The channel's own posterior of some of the fields."""
        source = rows // (len(omega) // len(self._y))
        own = replace(self._accuracy, numbers=self._numbers[source] * len(omega) + rows)
        return self._channel.unjudged(self._y[source], omega[rows], V, own)

    def _moments(self, omega: np.ndarray, precision: np.ndarray) -> list[np.ndarray]:
        (points, log_weights), n = self._support, len(omega)
        fields = (omega.reshape(len(points), -1, omega.shape[1]) - self._truth[:, None]).astype(points.dtype)
        precision = precision.astype(points.dtype)

        @double_precision()  # a scope of its own in every thread
        def part(start: int) -> list[np.ndarray]:
            places = np.minimum(np.arange(start, start + chunk), len(points) - 1)
            found = _program(points[places], log_weights[places], fields[places], precision)
            return [np.array(x, float)[: len(points) - start] for x in found]

        chunk = max(1, _CHUNK // fields.shape[1])
        parts = in_threads(part, range(0, len(points), chunk))
        columns = (np.concatenate(column) for column in zip(*parts, strict=True))
        return [x.reshape(n, *x.shape[2:]) for x in columns]


@double_precision()
def _found(
    channel: Supporting, y: np.ndarray, z: np.ndarray, numbers: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Points less the true indices, (samples, lists, n, J), and log-weights, (samples, lists, J).

    In single precision: less the truth, those that count at the finest prior are small.
    """
    keys = channel.keys(numbers, seed)

    @double_precision()
    def part(start: int) -> tuple[np.ndarray, np.ndarray]:
        places = np.minimum(np.arange(start, start + _FOUND), len(z) - 1)
        points, log_weights = channel.support_program(y[places], z[places], keys[places])
        found = points - z[places][:, None, None], log_weights
        return _condensed(*(np.array(x)[: len(z) - start] for x in found))

    parts = in_threads(part, range(0, len(z), _FOUND))
    most = max(part[1].shape[-1] for part in parts)
    points, log_weights = zip(*(_padded(*part, most) for part in parts), strict=True)
    return np.concatenate(points), np.concatenate(log_weights)


def _condensed(points: np.ndarray, log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Without most of the places that hold no point: (samples, lists, J, n) and (samples, lists, J) with fewer J."""
    exists = np.isfinite(log_weights)
    most = -(-max(int(exists.sum(-1).max()), 1) // _ROUND) * _ROUND
    first = np.argsort(~exists, axis=-1, kind="stable")[..., :most]
    log_weights = np.take_along_axis(np.where(exists, log_weights, -np.inf), first, -1)
    points = np.take_along_axis(np.where(exists[..., None], points, 0.0), first[..., None], -2)
    return points, log_weights


def _padded(points: np.ndarray, log_weights: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """With ``most`` places, coordinates before places."""
    missing = most - log_weights.shape[-1]
    points = np.pad(points, ((0, 0), (0, 0), (0, missing), (0, 0)))
    log_weights = np.pad(log_weights, ((0, 0), (0, 0), (0, missing)), constant_values=-np.inf)
    return np.ascontiguousarray(np.swapaxes(points, -1, -2), np.float32), log_weights.astype(np.float32)


def support_moments(points: Any, log_weights: Any, omega: Any, precision: Any) -> SampleMoments:
    """Posterior of one sample on points (lists, n, J), without the normalisation of the prior.

    With several lists the bias of ratios, of the order of one over the number of points that count, is taken off by
    leaving out one list after the other (jackknife); what remains is of second order.
    """
    n = points.shape[1]
    away = [points[:, i] - omega[i] for i in range(n)]
    log_terms = log_weights
    for i in range(n):
        log_terms = log_terms - 0.5 * precision[i, i] * away[i] ** 2
        for j in range(i):
            log_terms = log_terms - precision[i, j] * away[i] * away[j]
    top = jnp.max(log_terms)
    terms = jnp.exp(log_terms - jnp.where(jnp.isfinite(top), top, 0.0))
    mass = terms.sum(1)
    first = jnp.stack([(terms * x).sum(1) for x in away], 1)
    second = [[(terms * away[i] * away[j]).sum(1) for j in range(i + 1)] for i in range(n)]
    second = jnp.stack([jnp.stack([second[max(i, j)][min(i, j)] for j in range(n)], 1) for i in range(n)], 1)
    effective = mass.sum() ** 2 / (terms**2).sum()
    log_mass, mean, covariance = _without_bias(mass, first, second)
    return SampleMoments(top + log_mass, mean, covariance, effective)


def _without_bias(mass: Any, first: Any, second: Any) -> tuple[Any, Any, Any]:
    """Log mass, mean and covariance from sums of K lists: (K,), (K, n) and (K, n, n)."""
    K = len(mass)

    def ratios(lists: int, mass: Any, first: Any, second: Any) -> tuple[Any, Any, Any]:
        mean = first / mass
        return jnp.log(mass / lists), mean, second / mass - mean[:, None] * mean

    whole = ratios(K, mass.sum(), first.sum(0), second.sum(0))
    if K == 1:
        return whole
    left_out = jax.vmap(lambda *one: ratios(K - 1, *one))(
        mass.sum() - mass, first.sum(0) - first, second.sum(0) - second
    )
    safe = (mass < 0.9 * mass.sum()).all()  # one list alone says nothing of the bias
    return jax.tree.map(lambda a, b: jnp.where(safe, K * a - (K - 1) * b.mean(0), a), whole, left_out)


_program = jax.jit(jax.vmap(jax.vmap(support_moments, (None, None, 0, None)), (0, 0, 0, None)))
