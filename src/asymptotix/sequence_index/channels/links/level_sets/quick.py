"""Fast posteriors for message passing, which computes the posteriors of all samples in every iteration.

Errors of single samples are a few hundredths of a standard deviation. Their signs are random, so that they change an
overlap by less than 1e-3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from .....numerics.arrays import Array
from ...protocol import Accuracy, Channel, Posterior
from ..cubature import CubatureChannel
from ..curve import CurveChannel
from ..fibre import FibreChannel
from ..link_channel import LinkChannel
from .level_sets import LARGEST_SIZE, LevelSets

#: Function of observations, omega, V and accuracy, like the ``posterior`` of a channel.
PosteriorOf = Callable[[Any, Any, Any, Accuracy], Posterior]


def quick_posterior(channel: Channel) -> PosteriorOf:
    """Return the fastest posterior of a channel that is accurate enough for message passing."""
    return _by_level_sets(channel) or channel.posterior


@lru_cache(maxsize=64)
def _by_level_sets(channel: Channel) -> PosteriorOf | None:
    """Return the posterior by level sets; None where the channel itself is fast or level sets do not apply."""
    slow = isinstance(channel, (CubatureChannel, CurveChannel, FibreChannel))
    if not slow or not 2 <= channel.size <= LARGEST_SIZE or not _one_output(channel):
        return None
    return _ByLevelSets(channel)


def _one_output(channel: LinkChannel) -> bool:
    one = np.zeros((1, channel.indices, channel.tokens))
    return np.shape(channel.observe(one, np.zeros((1, channel.noises)))) == (1, 1)


class _ByLevelSets:
    def __init__(self, channel: LinkChannel) -> None:
        self._channel = channel
        self._level_sets = LevelSets(channel.link, channel.size, channel.model.noise)

    def __call__(self, observation: Array, omega: Array, V: Array, accuracy: Accuracy) -> Posterior:
        n, P, M = np.shape(omega)
        y, mean = np.asarray(observation, float).reshape(n), np.asarray(omega, float).reshape(n, P * M)
        V = np.broadcast_to(np.asarray(V, float), (n, P, P))
        whole = V if M == 1 else np.einsum("nij,kl->nikjl", V, np.eye(M)).reshape(n, P * M, P * M)
        log_evidence, shift, covariance = self._level_sets(y, mean, whole)
        found = Posterior(log_evidence, shift.reshape(n, P, M), covariance.reshape(n, P, M, P, M))
        lost = np.flatnonzero(~np.isfinite(log_evidence))
        if len(lost):  # no mass inside the window: rare, and each such sample takes milliseconds
            own = self._channel.posterior(y[lost, None], np.asarray(omega, float)[lost], V[lost], accuracy)
            for field, new in zip(found[:3], own[:3], strict=True):
                field[lost] = np.asarray(new)
        return found
