"""Channels whose posterior is a program for one sample, mapped over the samples.

The indices of a sample are a vector z of n = P M entries (the token varies fastest) with the prior N(omega, V (x) I_M).
Samples are computed in chunks of one shape, so that one compiled program serves all. With posteriors from weighted
draws, samples with too few effective draws are computed again with more lists.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics import interrupts
from ...numerics.arrays import Array
from ...numerics.precision import double_precision
from ...numerics.programs.compiled import compiled
from .protocol import DEFAULT_ACCURACY, LEAST_EFFECTIVE_SAMPLES, Accuracy, Channel, Posterior
from .tools.sample_moments import SampleMoments, merged

#: Factor by which the first and the second repetition multiply the draws of samples with few effective draws.
MORE_LISTS = (8, 64)
#: Largest number of samples in a chunk (on a CPU, on an accelerator); memory of a chunk in bytes; an accelerator's
#: memory divided by that of a chunk. Larger chunks do not fit into the caches of a CPU; smaller ones need more calls.
_CHUNK, _CHUNK_BYTES, _CHUNK_SHARE = (256, 4096), 2**28, 16
#: Difference of the seeds of lists that must be independent.
_OTHER_SEED = 1000


class NumberedSamples(NamedTuple):
    """Observations (n, k), omega (n, P M) and V (n, P, P) of samples, and the numbers (n,) that seed their draws."""

    observation: np.ndarray
    omega: np.ndarray
    V: np.ndarray
    numbers: np.ndarray


class MappedChannel(Channel):
    """A channel whose posterior is a compiled program for one sample, mapped over samples.

    Attributes
    ----------
    description : str
        How the posterior is computed, and why this method was chosen.
    """

    description: str
    #: Number of independent lists into which the draws of a sample are divided.
    lists: int = 1

    def __init__(self, indices: int, tokens: int, outputs: float) -> None:
        self.indices, self.tokens, self.outputs = indices, tokens, outputs
        self.size = indices * tokens
        self._programs: dict[int, Callable[..., SampleMoments]] = {}

    @abc.abstractmethod
    def moments(self, y: jax.Array, omega: jax.Array, prior: jax.Array, key: jax.Array, draws: int) -> SampleMoments:
        """Return the posterior of one sample with output y (k,) and prior N(omega, prior), shapes (n,) and (n, n).

        ``key`` is the sample's random key from :meth:`keys`, and ``draws`` the number of weighted draws.
        """

    @abc.abstractmethod
    def footprint(self, draws: int) -> int:
        """Return about how many float64 numbers the program holds in memory per sample, with this number of draws."""

    def keys(self, numbers: np.ndarray, seed: int) -> np.ndarray:
        """Return the random keys of samples from their numbers (n,): arrays with an axis of samples first."""
        return np.asarray(jax.vmap(lambda i: jax.random.fold_in(jax.random.PRNGKey(seed), i))(jnp.asarray(numbers)))

    def program(self, draws: int, seed: int) -> Callable[..., SampleMoments]:
        """Return a compiled function (y, omega, prior, keys) -> moments, :meth:`moments` mapped over samples.

        Only channels whose samples share one list of draws use ``seed``.
        """
        if draws not in self._programs:
            self._programs[draws] = compiled(jax.vmap(functools.partial(self.moments, draws=draws)))
        return self._programs[draws]

    def posterior(self, observation: Array, omega: Array, V: Array, accuracy: Accuracy = DEFAULT_ACCURACY) -> Posterior:
        """Return the posterior of Z, see :meth:`Channel.posterior`, in the precision of the channel's program."""
        found = self.unjudged(observation, omega, V, accuracy)
        if found.effective_samples is not None:
            self.refuse_few_samples(found.effective_samples)
        return found if self.stochastic else found._replace(effective_samples=None)

    def unjudged(self, observation: Array, omega: Array, V: Array, accuracy: Accuracy) -> Posterior:
        """Return the posterior like :meth:`posterior`, but raise no error if the effective draws are few."""
        n, P, M = len(omega), self.indices, self.tokens
        y = np.asarray(observation, float).reshape(n, -1)
        mean = np.asarray(omega, float).reshape(n, self.size)
        numbers = np.arange(n) if accuracy.numbers is None else np.asarray(accuracy.numbers, int)
        samples = NumberedSamples(y, mean, np.broadcast_to(np.asarray(V, float), (n, P, P)), numbers)
        count = self.draws if accuracy.draws is None else int(accuracy.draws)
        found = self.in_chunks(samples, np.arange(n), accuracy.seed, count, 1)
        if self.stochastic and accuracy.draws is None:
            self._do_again(found, samples, accuracy)
        log_evidence, shift, covariance, effective = found
        fields = [log_evidence, shift.reshape(n, P, M), covariance.reshape(n, P, M, P, M)]
        if isinstance(omega, jax.Array):
            fields = [jnp.asarray(x, omega.dtype) for x in fields]
        return Posterior(fields[0], fields[1], fields[2], effective)

    def _do_again(self, found: list[np.ndarray], samples: NumberedSamples, accuracy: Accuracy) -> None:
        """Replace the moments ``found`` (fields of SampleMoments) of samples with few effective draws, in place.

        The new moments come from more lists of draws.
        """
        for level, repeats in enumerate(MORE_LISTS, 1):
            few = np.flatnonzero(~(found[3] >= accuracy.enough))
            if len(few) == 0:
                return
            better = self.in_chunks(samples, few, accuracy.seed + _OTHER_SEED * level, self.draws, repeats)
            for field, new in zip(found, better, strict=True):
                field[few] = new

    @double_precision()
    def in_chunks(
        self, samples: NumberedSamples, rows: np.ndarray, seed: int, draws: int, repeats: int
    ) -> list[np.ndarray]:
        """Return moments of some samples, computed in chunks of one shape; a channel may repair failed samples here.

        Parameters
        ----------
        samples : NumberedSamples
            All samples.
        rows : array of int
            Places of the samples to compute.
        seed, draws : int
            Number of the list of draws, and its length.
        repeats : int
            Number of independent runs of the program per sample, whose moments are merged.

        Returns
        -------
        list of arrays
            The fields of :class:`SampleMoments`, one row per entry of ``rows``.
        """
        y, mean, V, numbers = samples
        each = np.repeat(rows, repeats)
        keys = self.keys((numbers[rows][:, None] * repeats + np.arange(repeats)).ravel(), seed)
        chunk = self._chunk(len(y), draws)
        parts: list[Iterable[Array]] = []
        for start in range(0, len(each), chunk):
            interrupts.check()
            # The last chunk repeats its last sample to keep the shape: one compiled program serves all.
            places = np.minimum(np.arange(start, start + chunk), len(each) - 1)
            some = each[places]
            own = jax.tree.map(lambda x, places=places: x[places], keys)
            parts.append(self.program(draws, seed)(y[some], mean[some], np.kron(V[some], np.eye(self.tokens)), own))
            if len(parts) > 1:  # one is computed while the next is prepared
                parts[-2] = [np.array(x) for x in parts[-2]]
        columns = (np.concatenate(column)[: len(each)] for column in zip(*parts, strict=True))
        first = 2 if self.lists > 1 else 1  # axis of the first moments
        lists = [x.reshape(len(rows), repeats * self.lists, *x.shape[first:]) for x in columns]
        return [np.array(x) for x in merged(SampleMoments(*lists))]

    def _chunk(self, n: int, draws: int) -> int:
        """Return the number of samples per chunk; for stochastic channels it does not depend on the n samples."""
        room = max(1, _room_for_a_chunk() // (8 * self.footprint(draws)))
        most = _CHUNK[jax.default_backend() != "cpu"] if self.stochastic else max(_CHUNK)
        fitting = min(most, 1 << max(0, room.bit_length() - 1))
        return fitting if self.stochastic else min(fitting, 1 << max(0, (n - 1).bit_length()))

    def refuse_few_samples(self, effective: np.ndarray) -> None:
        """Raise FloatingPointError if the median effective number of draws (n,) is too small to trust the posteriors.

        A channel without draws refuses nothing, unless it overrides this method.
        """
        if not self.stochastic:
            return
        median = float(np.nanmedian(np.where(np.isfinite(effective), effective, 0.0)))
        if median < LEAST_EFFECTIVE_SAMPLES:
            raise FloatingPointError(
                f"the median effective number of draws is {median:.3g}, below {LEAST_EFFECTIVE_SAMPLES:g}: the"
                f" posterior of {self} by {self.description} is not to be trusted; take more draws (default"
                f" {self.draws}) or more noise"
            )


def _room_for_a_chunk() -> int:
    """Return the memory of a chunk in bytes: 2^28 on a CPU, at least that or a share of the memory elsewhere."""
    if jax.default_backend() == "cpu":
        return _CHUNK_BYTES
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 0)  # some devices do not report it
    return max(_CHUNK_BYTES, limit // _CHUNK_SHARE)
