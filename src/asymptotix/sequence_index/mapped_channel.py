"""Channels whose posterior is a program for one sample, mapped over the samples.

The indices of a sample are a vector z of n = P M entries (the token varies fastest) with the prior N(omega, V (x) I_M).
Samples are taken in chunks of a fixed shape, so that few programs are compiled. Where posteriors come from weighted
draws, samples for which the weights leave too few of them are done again with longer lists.
"""

from __future__ import annotations

import abc
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..core.precision import double_precision
from .channel import Channel, Posterior

#: Least median of the effective number of draws of a batch; below it the weights are not to be trusted.
LEAST_EFFECTIVE_SAMPLES = 30.0
#: A sample with fewer effective draws is done again with lists longer by the factors below. Few effective draws pull
#: the posterior covariance down, the more the rarer the sample, and rare samples carry E|G|^2: with nothing done again,
#: that of the first of three layers is 17 % too small where the last layer is almost known; with this bound, 1 %.
ENOUGH_EFFECTIVE_SAMPLES = 64.0
LONGER_LISTS = (8, 64)
_LARGEST_CHUNK = 4096
_CHUNK_BYTES = 2**28


class Moments(NamedTuple):
    """log Z_out, E[z|y] - omega (n,), Cov[z|y] (n, n) and the effective number of draws of one sample."""

    log_evidence: Any
    shift: Any
    covariance: Any
    effective_samples: Any


class MappedChannel(Channel):
    """The posterior of the indices, one sample at a time.

    Attributes
    ----------
    description : str
        How the posterior is computed, and why this way.
    """

    description: str
    #: Draws per sample, where the posterior comes from draws.
    draws: int = 0

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
        self, observation: Any, omega: Any, V: Any, *, seed: int = 0, draws: int | None = None, **accuracy: Any
    ) -> Posterior:
        """Posterior of Z, see :class:`Channel`; computed in float64.

        Parameters
        ----------
        seed : int
            Which of the independent lists of draws to use, where there are any.
        draws : int, optional
            Length of the list, for all samples alike. By default the channel's own, and longer ones for samples with
            few effective draws.
        """
        n, P, M = len(omega), self.indices, self.tokens
        y = np.asarray(observation, float).reshape(n, -1)
        mean = np.asarray(omega, float).reshape(n, self.size)
        samples = (y, mean, np.broadcast_to(np.asarray(V, float), (n, P, P)))
        found = self._in_chunks(samples, np.arange(n), seed, self.draws if draws is None else int(draws), 1)
        if self.stochastic and draws is None:
            self._do_again(found, samples, seed)
        self._refuse_few_samples(found[3])
        log_evidence, shift, covariance, effective = found
        fields = [log_evidence, shift.reshape(n, P, M), covariance.reshape(n, P, M, P, M)]
        if isinstance(omega, jax.Array):
            fields = [jnp.asarray(x, omega.dtype) for x in fields]
        return Posterior(fields[0], fields[1], fields[2], effective if self.stochastic else None)

    def _do_again(self, found: list[np.ndarray], samples: tuple[np.ndarray, ...], seed: int) -> None:
        for factor in LONGER_LISTS:
            few = np.flatnonzero(~(found[3] >= ENOUGH_EFFECTIVE_SAMPLES))
            if len(few) == 0:
                return
            better = self._in_chunks(samples, few, seed, factor * self.draws, factor)
            for field, new in zip(found, better, strict=True):
                field[few] = new

    @double_precision()
    def _in_chunks(
        self, samples: tuple[np.ndarray, ...], rows: np.ndarray, seed: int, draws: int, factor: int
    ) -> list[np.ndarray]:
        y, mean, V = samples
        keys = self.keys(len(y), seed)
        chunk = self._chunk(len(y), draws, factor)
        parts = []
        for start in range(0, len(rows), chunk):
            # The last chunk is filled up with its own last sample: one compiled program serves all.
            some = rows[np.minimum(np.arange(start, start + chunk), len(rows) - 1)]
            prior = np.kron(V[some], np.eye(self.tokens))
            own = jax.tree.map(lambda x, some=some: x[some], keys)
            part = self.program(draws, seed)(y[some], mean[some], prior, own)
            parts.append([np.array(x)[: len(rows) - start] for x in part])
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _chunk(self, n: int, draws: int, factor: int) -> int:
        """Samples per chunk; fewer for longer lists, of which few are needed."""
        room = max(1, _CHUNK_BYTES // (8 * self.footprint(draws)))
        fitting = min(_LARGEST_CHUNK // factor, 1 << max(0, room.bit_length() - 1))
        return max(1, min(fitting // (8 if factor > 1 else 1), 1 << max(0, (n - 1).bit_length())))

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
