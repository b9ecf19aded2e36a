"""Data sets of finite size, batched over seeds: tokens, teachers, side information and observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...numerics.arrays import Array
from .. import streams
from ..channels.protocol import Channel
from .placed_arrays import placed
from .tokens import DrawnTokens, Tokens


class DataSets(NamedTuple):
    """S data sets of N samples: tokens, teachers (S, P, D), side information (S, P, D), observations (S, N, ...)."""

    tokens: Tokens
    teacher: Array
    side: Array
    observation: Array

    @property
    def samples(self) -> int:
        """Number of samples N of a data set."""
        return self.tokens.shape[1]

    @property
    def alpha(self) -> float:
        """Number of samples per dimension."""
        return self.samples / self.tokens.shape[3]


def draw_data(
    channel: Channel, samples: int, dim: int, seeds: Sequence[int], side_information: float, *, stream: bool = False
) -> DataSets:
    """Draw one data set per seed, with N = ``samples`` and D = ``dim``; it depends on (seed, samples, dim) only.

    ``side_information`` is the overlap of the side information with the teacher. With ``stream`` the tokens are not
    kept in memory but drawn again in every pass.
    """
    keys, teacher, side = draw_weights(seeds, samples, channel.indices, dim, side_information)
    tokens: Tokens = drawn_tokens(channel, keys, samples, dim)
    tokens = tokens if stream else tokens.kept()
    Z = np.asarray(tokens.fields(teacher))
    noise = _noise(channel, samples, dim, seeds)
    observation = placed(_observed(channel, Z.reshape(-1, *Z.shape[2:]), noise))
    return DataSets(tokens, teacher, side, observation.reshape(*Z.shape[:2], *observation.shape[1:]))


def _observed(channel: Channel, Z: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return the observations (n, ...) of index matrices Z (n, P, M) with observation noise (n, k).

    Samples are padded to a power of two, so that few programs are compiled.
    """
    more = (1 << (len(Z) - 1).bit_length()) - len(Z)
    rows = np.minimum(np.arange(len(Z) + more), len(Z) - 1)
    return np.asarray(channel.observe(Z[rows], noise[rows]))[: len(Z)]


def _noise(channel: Channel, samples: int, dim: int, seeds: Sequence[int]) -> np.ndarray:
    """Return standard normals (S N, k) for the observations, one seed after the other."""
    sources = [np.random.default_rng(streams.noise_of_run(seed, samples, dim)) for seed in seeds]
    return np.concatenate([source.normal(size=(samples, channel.noises)) for source in sources])


def drawn_tokens(channel: Channel, keys: np.ndarray, samples: int, dim: int) -> DrawnTokens:
    """Return the tokens of S data sets with random keys (S, 2); they are drawn again in every pass."""
    groups = None if channel.groups is None else tuple(int(group) for group in channel.groups)
    parts = 1 if groups is None else max(groups) + 1
    return DrawnTokens(keys, (len(keys), samples, parts * channel.tokens, dim), groups)


def draw_weights(
    seeds: Sequence[int], samples: int, indices: int, dim: int, side_information: float
) -> tuple[np.ndarray, Array, Array]:
    """Return keys (S, 2) of the tokens, teachers W* (S, P, D) and side information (S, P, D) of every seed.

    The side information is S = sqrt(l) W* + sqrt(1-l) noise, where l is its overlap with the teacher: Troiani et al.,
    arXiv:2502.00901, eq. (104). (Section 2.3 there prints l instead of sqrt(l).)
    """
    keys, teachers, sides = [], [], []
    for seed in seeds:
        source = np.random.SeedSequence(streams.data_of_run(seed, samples, dim))
        keys.append(source.generate_state(2, np.uint32))
        W, extra = np.random.default_rng(source).standard_normal((2, indices, dim))
        teachers.append(W)
        sides.append(np.sqrt(side_information) * W + np.sqrt(1 - side_information) * extra)
    return np.array(keys), placed(teachers), placed(sides)
