"""Fast posteriors for message passing, which computes the posteriors of all samples in every iteration.

Errors of single samples are a few hundredths of a standard deviation. Their signs are random, so that they change an
overlap by less than 1e-3.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .....numerics.arrays import Array
from ...protocol import Accuracy, Channel, Posterior
from .level_sets import LARGEST_SIZE, LevelSets


def suited(channel: Channel) -> bool:
    """Return whether level sets apply to a channel: two or three indices over all tokens, one output."""
    if not 2 <= channel.indices * channel.tokens <= LARGEST_SIZE:
        return False
    one = np.zeros((1, channel.indices, channel.tokens))
    return np.shape(channel.observe(one, np.zeros((1, channel.noises)))) == (1, 1)


class PosteriorByLevelSets:
    """Function like :meth:`Channel.posterior` by ``level_sets``; ``own`` serves samples without mass in the window."""

    def __init__(self, level_sets: LevelSets, own: Callable[..., Posterior]) -> None:
        self._level_sets, self._own = level_sets, own

    def __call__(self, observation: Array, omega: Array, V: Array, accuracy: Accuracy) -> Posterior:
        n, P, M = np.shape(omega)
        y, mean = np.asarray(observation, float).reshape(n), np.asarray(omega, float).reshape(n, P * M)
        V = np.broadcast_to(np.asarray(V, float), (n, P, P))
        whole = V if M == 1 else np.einsum("nij,kl->nikjl", V, np.eye(M)).reshape(n, P * M, P * M)
        log_evidence, shift, covariance = self._level_sets(y, mean, whole)
        found = Posterior(log_evidence, shift.reshape(n, P, M), covariance.reshape(n, P, M, P, M))
        lost = np.flatnonzero(~np.isfinite(log_evidence))
        if len(lost):  # no mass inside the window: rare, and each such sample takes milliseconds
            own = self._own(y[lost, None], np.asarray(omega, float)[lost], V[lost], accuracy)
            for field, new in zip(found[:3], own[:3], strict=True):
                field[lost] = np.asarray(new)
        return found
