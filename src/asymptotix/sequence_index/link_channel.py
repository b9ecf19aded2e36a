"""What the channels of all links share: the link as a function of a vector, noise, batches in memory.

A channel of this family works on one sample at a time, written in JAX and mapped over the samples: the indices are a
vector z of n = P M entries (the token varies fastest) with the prior N(omega, V (x) I_M).
"""

from __future__ import annotations

import abc
import contextlib
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..core.precision import double_precision
from .channel import Channel, Posterior
from .link_model import MultiIndex, SequenceIndex

#: Least median of the effective number of draws of a batch; below it the weights are not to be trusted.
LEAST_EFFECTIVE_SAMPLES = 30.0
_LARGEST_CHUNK = 4096
_CHUNK_BYTES = 2**28


class Moments(NamedTuple):
    """log Z_out, E[z|y] - omega (n,), Cov[z|y] (n, n) and the effective number of draws of one sample."""

    log_evidence: Any
    shift: Any
    covariance: Any
    effective_samples: Any


class LinkChannel(Channel):
    """The posterior of the indices under a link g, one sample at a time.

    Attributes
    ----------
    description : str
        How the posterior is computed, and why this way.
    """

    description: str
    #: Draws per sample, where the posterior comes from draws.
    draws: int = 0

    def __init__(self, model: SequenceIndex | MultiIndex, outputs: float) -> None:
        self.model = model
        self.indices, self.tokens, self.outputs = model.indices, model.tokens, outputs
        self.size = model.indices * model.tokens
        self._programs: dict[int, Any] = {}

    def link(self, z: Any) -> Any:
        """The link as a function R^n -> R^k, float outputs."""
        return flat_link(self.model, z)

    @abc.abstractmethod
    def moments(self, y: Any, omega: Any, prior: Any, key: Any, draws: int) -> Moments:
        """Posterior of one sample: ``y`` (k,), ``omega`` (n,), ``prior`` (n, n), ``key`` its own random key."""

    @abc.abstractmethod
    def footprint(self, draws: int) -> int:
        """Float64 numbers that one sample holds at once, roughly."""

    def observe(self, Z: Any, noise: Any = None) -> Any:
        """The outputs (n, k), with the noise of the model.

        Parameters
        ----------
        Z : array (n, P, M)
        noise : array (n, k), optional
            Standard normals. By default the noise of a sample is a hash of its own index matrix: it does not depend
            on the other samples, and equal indices give equal observations.
        """
        xp = jnp if isinstance(Z, jax.Array) else np
        with double_precision() if xp is np else contextlib.nullcontext():
            z = jnp.asarray(Z).reshape(len(Z), self.size)
            y = jax.vmap(self.link)(z)
            if self.noises:
                normals = jax.vmap(self._hashed_noise)(z) if noise is None else jnp.asarray(noise)
                y = y + np.sqrt(self.model.noise) * normals.astype(y.dtype)
            return y if xp is jnp else np.array(y)

    def _hashed_noise(self, z: Any) -> Any:
        bits = jax.lax.bitcast_convert_type(z, jnp.uint32).ravel()
        key = jax.random.PRNGKey(0x6E6F6973)
        for i in range(bits.size):
            key = jax.random.fold_in(key, bits[i])
        return jax.random.normal(key, (self.noises,), z.dtype)

    def output(self, Z: Any) -> Any:
        """The output without noise, (n, k)."""
        xp = jnp if isinstance(Z, jax.Array) else np
        with double_precision() if xp is np else contextlib.nullcontext():
            y = jax.vmap(self.link)(jnp.asarray(Z).reshape(len(Z), self.size))
            return y if xp is jnp else np.array(y)

    def posterior(
        self, observation: Any, omega: Any, V: Any, *, seed: int = 0, draws: int | None = None, **accuracy: Any
    ) -> Posterior:
        """Posterior of Z, see :class:`Channel`; computed in float64.

        Parameters
        ----------
        seed : int
            Which of the independent lists of draws to use, where there are any.
        draws : int, optional
            Length of the list; by default the channel's own.
        """
        count = self.draws if draws is None else int(draws)
        found = self._in_chunks(observation, omega, V, seed, count)
        self._refuse_few_samples(found[3])
        n, P, M = len(omega), self.indices, self.tokens
        log_evidence, shift, covariance, effective = found
        fields = [log_evidence, shift.reshape(n, P, M), covariance.reshape(n, P, M, P, M)]
        if isinstance(omega, jax.Array):
            fields = [jnp.asarray(x, omega.dtype) for x in fields]
        return Posterior(fields[0], fields[1], fields[2], effective if self.stochastic else None)

    @double_precision()
    def _in_chunks(self, observation: Any, omega: Any, V: Any, seed: int, draws: int) -> list[np.ndarray]:
        n, P = len(omega), self.indices
        y = np.asarray(observation, float).reshape(n, -1)
        mean = np.asarray(omega, float).reshape(n, self.size)
        V = np.broadcast_to(np.asarray(V, float), (n, P, P))
        keys = np.asarray(jax.vmap(lambda i: jax.random.fold_in(jax.random.PRNGKey(seed), i))(jnp.arange(n)))
        chunk = self._chunk(n, draws)
        parts = []
        for start in range(0, n, chunk):
            # The last chunk is filled up with its own first sample: one compiled program serves all.
            rows = np.minimum(np.arange(start, start + chunk), n - 1)
            prior = np.kron(V[rows], np.eye(self.tokens))
            part = self._program(draws)(y[rows], mean[rows], prior, keys[rows])
            parts.append([np.asarray(x)[: n - start] for x in part])
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _program(self, draws: int) -> Any:
        if draws not in self._programs:
            one = functools.partial(self.moments, draws=draws)
            self._programs[draws] = jax.jit(jax.vmap(one))
        return self._programs[draws]

    def _chunk(self, n: int, draws: int) -> int:
        room = max(1, _CHUNK_BYTES // (8 * self.footprint(draws)))
        return min(_LARGEST_CHUNK, 1 << max(0, room.bit_length() - 1), 1 << max(0, (n - 1).bit_length()))

    def _refuse_few_samples(self, effective: np.ndarray) -> None:
        if not self.stochastic:
            return
        median = float(np.nanmedian(np.where(np.isfinite(effective), effective, 0.0)))
        if median < LEAST_EFFECTIVE_SAMPLES:
            raise FloatingPointError(
                f"the median effective number of draws is {median:.3g}, below {LEAST_EFFECTIVE_SAMPLES:g}: the"
                f" posterior of {self.model} by {self.description} is not to be trusted; take more draws (default"
                f" {self.draws}) or more noise"
            )


def flat_link(model: SequenceIndex | MultiIndex, z: Any) -> Any:
    """The link as a function R^n -> R^k of the vector of all indices, outputs in the precision of z."""
    y = model.evaluate(z.reshape(model.indices, model.tokens))
    return jnp.ravel(jnp.asarray(y)).astype(z.dtype)


def weighted_moments(log_weights: Any, x: Any, extra: Any = None) -> Moments:
    """Moments of weighted points x (m, n), infinite log-weights allowed; ``extra`` (m, n): own variances of points."""
    top = jnp.max(log_weights)
    weights = jnp.exp(log_weights - jnp.where(jnp.isfinite(top), top, 0.0))
    total = weights.sum()
    share = weights / total
    mean = share @ x
    centred = x - mean
    covariance = (share[:, None] * centred).T @ centred
    if extra is not None:
        covariance = covariance + jnp.diag(share @ extra)
    effective = 1 / (share**2).sum()
    return Moments(jnp.where(total > 0, top + jnp.log(total), jnp.nan), mean, covariance, effective)


def coloured(found: Moments, root: Any) -> Moments:
    """Moments of root @ x from those of x."""
    covariance = root @ found.covariance @ root.T
    return found._replace(shift=root @ found.shift, covariance=covariance)
