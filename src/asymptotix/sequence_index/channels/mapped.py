"""Channels whose posterior is a program for one sample, mapped over the samples.

The indices of a sample are a vector z of n = P M entries (the token varies fastest) with the prior N(omega, V (x) I_M).
Samples are taken in chunks of one shape, so that one program is compiled. Where posteriors come from weighted draws,
samples for which the weights leave too few of them are done again with more lists.
"""

from __future__ import annotations

import abc
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.precision import double_precision
from .protocol import Channel, Posterior

#: Least median of the effective number of draws of a batch; below it the weights are not to be trusted.
LEAST_EFFECTIVE_SAMPLES = 30.0
#: A sample with fewer effective draws is done again with so many lists. Few effective draws pull the posterior
#: covariance down, the more the rarer the sample, and rare samples carry E|G|^2: with nothing done again, that of the
#: first of three layers is 17 % too small where the last layer is almost known.
ENOUGH_EFFECTIVE_SAMPLES = 64.0
#: And where that bias counts, for channels with at least four times as many draws. It takes three times as long: E|G|^2
#: of the second of three layers, where the others are learned, is then low by 0.4(4) % instead of 2.7(8) %.
MANY_EFFECTIVE_SAMPLES = 256.0
MORE_LISTS = (8, 64)
#: Samples in a chunk on a CPU and on an accelerator, and the memory that it may take.
_CHUNK, _CHUNK_BYTES = (256, 4096), 2**28
#: Between the seeds of lists that must be independent.
_OTHER_SEED = 1000


class Moments(NamedTuple):
    """log Z_out, E[z|y] - omega (n,), Cov[z|y] (n, n) and the effective number of draws of one sample.

    With a leading axis where a program returns those of several independent lists of draws.
    """

    log_evidence: Any
    shift: Any
    covariance: Any
    effective_samples: Any


def merged(found: Moments) -> Moments:
    """Moments (rows, ...) from those of K independent lists each, (rows, K, ...).

    A covariance about the mean of the draws is too small by the variance of that mean, which the scatter of the lists
    tells: it is added. With one list it is not known.
    """
    log_evidence, mean, covariance, effective = (np.asarray(x) for x in found)
    K = log_evidence.shape[1]
    if K == 1:
        return Moments(*(x[:, 0] for x in (log_evidence, mean, covariance, effective)))
    empty = ~np.isfinite(log_evidence)
    mean = np.where(empty[:, :, None], 0.0, mean)
    covariance = np.where(empty[:, :, None, None], 0.0, covariance)
    top = np.where(empty, -np.inf, log_evidence).max(1, keepdims=True)
    weights = np.where(empty, 0.0, np.exp(log_evidence - np.where(np.isfinite(top), top, 0.0)))
    total = weights.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = weights / total[:, None]
        evidence = np.where(total > 0, top[:, 0] + np.log(total / K), np.nan)
        squares = np.where(empty, 0.0, weights**2 / effective).sum(1)
        together = np.where(total > 0, total**2 / squares, 0.0)
    centre = np.einsum("rk,rki->ri", share, mean)
    away = mean - centre[:, None]
    # Between the lists the scatter belongs to the covariance; as that of their mean it is missing from it.
    between = share + share**2 * K / (K - 1)
    spread = np.einsum("rk,rki,rkj->rij", between, away, away)
    return Moments(evidence, centre, np.einsum("rk,rkij->rij", share, covariance) + spread, together)


class MappedChannel(Channel):
    """The posterior of the indices, one sample at a time.

    Attributes
    ----------
    description : str
        How the posterior is computed, and why this way.
    """

    description: str
    #: Into how many independent lists the draws of a sample are divided.
    lists: int = 1

    def __init__(self, indices: int, tokens: int, outputs: float) -> None:
        self.indices, self.tokens, self.outputs = indices, tokens, outputs
        self.size = indices * tokens
        self._programs: dict[int, Any] = {}

    @abc.abstractmethod
    def moments(self, y: Any, omega: Any, prior: Any, key: Any, draws: int) -> Moments:
        """Posterior of one sample: ``y`` (k,), ``omega`` (n,), ``prior`` (n, n), ``key`` its own of :meth:`keys`."""

    @abc.abstractmethod
    def footprint(self, draws: int) -> int:
        """Float64 numbers that one sample holds at once, roughly."""

    def keys(self, n: int, seed: int) -> Any:
        """What makes the draws of n samples random: arrays whose first axis is that of the samples."""
        return np.asarray(jax.vmap(lambda i: jax.random.fold_in(jax.random.PRNGKey(seed), i))(jnp.arange(n)))

    def program(self, draws: int, seed: int) -> Any:
        """The compiled map of :meth:`moments` over samples; ``seed`` is for channels that share lists of draws."""
        if draws not in self._programs:
            self._programs[draws] = jax.jit(jax.vmap(functools.partial(self.moments, draws=draws)))
        return self._programs[draws]

    def posterior(
        self,
        observation: Any,
        omega: Any,
        V: Any,
        *,
        seed: int = 0,
        draws: int | None = None,
        enough: float = ENOUGH_EFFECTIVE_SAMPLES,
        **accuracy: Any,
    ) -> Posterior:
        """Posterior of Z, see :class:`Channel`; computed in float64.

        Parameters
        ----------
        seed : int
            Which of the independent lists of draws to use, where there are any.
        draws : int, optional
            Length of the list, for all samples alike. By default the channel's own, and longer ones for samples with
            few effective draws.
        enough : float
            Effective draws below which they are few.
        """
        n, P, M = len(omega), self.indices, self.tokens
        y = np.asarray(observation, float).reshape(n, -1)
        mean = np.asarray(omega, float).reshape(n, self.size)
        samples = (y, mean, np.broadcast_to(np.asarray(V, float), (n, P, P)))
        count = self.draws if draws is None else int(draws)
        found = self._in_chunks(samples, np.arange(n), seed, count, 1)
        if self.stochastic and draws is None:
            self._do_again(found, samples, seed, enough)
        self._refuse_few_samples(found[3])
        log_evidence, shift, covariance, effective = found
        fields = [log_evidence, shift.reshape(n, P, M), covariance.reshape(n, P, M, P, M)]
        if isinstance(omega, jax.Array):
            fields = [jnp.asarray(x, omega.dtype) for x in fields]
        return Posterior(fields[0], fields[1], fields[2], effective if self.stochastic else None)

    def _do_again(self, found: list[np.ndarray], samples: tuple[np.ndarray, ...], seed: int, enough: float) -> None:
        for level, repeats in enumerate(MORE_LISTS, 1):
            few = np.flatnonzero(~(found[3] >= enough))
            if len(few) == 0:
                return
            better = self._in_chunks(samples, few, seed + _OTHER_SEED * level, self.draws, repeats)
            for field, new in zip(found, better, strict=True):
                field[few] = new

    @double_precision()
    def _in_chunks(
        self, samples: tuple[np.ndarray, ...], rows: np.ndarray, seed: int, draws: int, repeats: int
    ) -> list[np.ndarray]:
        """Moments of some samples, each from so many independent runs of the program."""
        y, mean, V = samples
        each = np.repeat(rows, repeats)
        keys = self.keys(len(each), seed)
        chunk = self._chunk(len(y), draws)
        parts = []
        for start in range(0, len(each), chunk):
            # The last chunk is filled up with its own last sample: one compiled program serves all.
            places = np.minimum(np.arange(start, start + chunk), len(each) - 1)
            some = each[places]
            own = jax.tree.map(lambda x, places=places: x[places], keys)
            part = self.program(draws, seed)(y[some], mean[some], np.kron(V[some], np.eye(self.tokens)), own)
            parts.append([np.array(x)[: len(each) - start] for x in part])
        columns = (np.concatenate(column) for column in zip(*parts, strict=True))
        first = 2 if self.lists > 1 else 1  # axis of the first moments
        lists = [x.reshape(len(rows), repeats * self.lists, *x.shape[first:]) for x in columns]
        return [np.array(x) for x in merged(Moments(*lists))]

    def _chunk(self, n: int, draws: int) -> int:
        """Samples per chunk, whatever their number where programs take long to compile."""
        room = max(1, _CHUNK_BYTES // (8 * self.footprint(draws)))
        most = _CHUNK[jax.default_backend() != "cpu"] if self.stochastic else max(_CHUNK)
        fitting = min(most, 1 << max(0, room.bit_length() - 1))
        return fitting if self.stochastic else min(fitting, 1 << max(0, (n - 1).bit_length()))

    def _refuse_few_samples(self, effective: np.ndarray) -> None:
        if not self.stochastic:
            return
        median = float(np.nanmedian(np.where(np.isfinite(effective), effective, 0.0)))
        if median < LEAST_EFFECTIVE_SAMPLES:
            raise FloatingPointError(
                f"the median effective number of draws is {median:.3g}, below {LEAST_EFFECTIVE_SAMPLES:g}: the"
                f" posterior of {self} by {self.description} is not to be trusted; take more draws (default"
                f" {self.draws}) or more noise"
            )
