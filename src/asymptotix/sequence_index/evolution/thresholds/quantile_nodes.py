"""Averages over data where the observation is one number whose fibre is known as weighted points.

Outputs are the expensive nodes: points of their fibres take a hundred times as long to find as one posterior on them.
In one dimension few are enough, if they are even and dense at both ends, where G is large. Given the output, the true
indices are distributed as the points of its fibre are, weighted by the prior: many of them, and a field around each,
are what an output is averaged over. All nodes stay the same at every overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from ....numerics.quadrature import sobol_uniforms
from ... import streams
from ...channels.links.link_channel import LinkChannel
from ...channels.protocol import OperatorAverager, Posterior
from ...channels.supported import Support, SupportedPosterior
from ..averages import QuasiRandomAverager
from ..nodes import Nodes
from .threshold import MOST_BLOCKS_DRAWN

#: Outputs per randomisation in a block over the cost of one, randomisations, and indices with their fields per output.
_OUTPUTS, _RANDOMISATIONS, _FIELDS = 2**9, 8, 64
#: Blocks at most, and of the nodes of all averages where posteriors do not come from draws.
_MOST_BLOCKS, _MOST_PLAIN_BLOCKS = 8, 16
#: Where points of fibres are drawn a block takes half a minute: there is one, but for tolerances below this.
_PATIENT = 1e-3
#: Draws that tell the quantiles of the output, per randomisation and block. Half of them are wider, by this much in the
#: square of all of them: of the far ends the others would show too little.
_POOL, _WIDER = 2**15, 3.0
#: Quantile levels of both ends are this power of even ones.
_DENSE = 3
#: The list of points from which indices are chosen.
_OWN_LIST = 7


class Blocks(NamedTuple):
    """Nodes for a growth rate, by the number of the block, and how many blocks there are at most."""

    block: Callable[[int], OperatorAverager]
    most: int


def blocks_of(nodes: Nodes, tolerance: float) -> Blocks:
    """At quantiles where the channel is of that kind, else those of all averages; how many depends on what is asked."""
    channel = nodes.channel
    if isinstance(channel, LinkChannel) and _is_one_number(channel):
        most = 1 if channel.stochastic and tolerance >= _PATIENT else _MOST_BLOCKS
        return Blocks(lambda number: QuantileAverager(channel, number), most)
    return Blocks(nodes.operator_block, MOST_BLOCKS_DRAWN if channel.stochastic else _MOST_PLAIN_BLOCKS)


def _is_one_number(channel: LinkChannel) -> bool:
    if channel.finest is None or channel.groups is not None or channel.diagonal:
        return False
    return channel.observe(np.ones((2, channel.indices, channel.tokens))).shape == (2, 1)


class QuantileAverager(QuasiRandomAverager):
    """Averages over outputs at quantiles, and over indices of their fibres with fields.

    Parameters
    ----------
    channel : LinkChannel
        With points on the fibres of its observations, which are one number each.
    block : int
        Which part of a long sequence of outputs.
    seed : int
    """

    def __init__(self, channel: LinkChannel, block: int, seed: int = streams.QUANTILE_NODES) -> None:
        self._count_of_outputs = max(1, _OUTPUTS // channel.cost)
        super().__init__(channel, self._count_of_outputs * _FIELDS, _RANDOMISATIONS, seed, block, fields=_FIELDS)
        self._kept: tuple[bytes, list[Posterior]] = b"", []

    @cached_property
    def _outputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """True indices (n, P, M) that have the outputs, the outputs (n, 1) and their weights (n,)."""
        parts = []
        for r in range(self._randomisations):
            Z, y, mass = self._pool(r)
            even = sobol_uniforms(self._count_of_outputs, 1, (self._seed, r, 1), block=self._block)[:, 0]
            level, weight = _dense_at_ends(even)
            order = np.argsort(y[:, 0])
            total = np.cumsum(mass[order])
            chosen = order[np.searchsorted(total, level * total[-1]).clip(max=_POOL - 1)]
            parts.append((Z[chosen], y[chosen], weight))
        Z, y, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Z, y, weights

    def _pool(self, r: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draws of indices (n, P, M), their outputs (n, 1) and masses (n,): those of both halves as one mixture."""
        P, M = self.channel.indices, self.channel.tokens
        size = P * M
        normals = ndtri(sobol_uniforms(_POOL, size + self.channel.noises, (self._seed, r, 0), block=self._block))
        variance = 1 + _WIDER / size
        normals[_POOL // 2 :, :size] *= np.sqrt(variance)
        Z = normals[:, :size].reshape(-1, P, M)
        log_ratio = 0.5 * (1 - 1 / variance) * (Z**2).sum((1, 2)) - 0.5 * size * np.log(variance)
        return Z, np.asarray(self.channel.observe(Z, normals[:, size:]), float), 2 / (1 + np.exp(log_ratio))

    @cached_property
    def _posteriors(self) -> list[Any]:
        lists = streams.POSTERIOR_LISTS if self.channel.stochastic else streams.POSTERIOR_LISTS[:1]
        return [self._on_fibres(seed) for seed in lists]

    def _on_fibres(self, seed: int) -> SupportedPosterior:
        """Posteriors of the outputs from one list of points; outputs of other blocks have other lists."""
        Z, y, _ = self._outputs
        numbers = self._block * len(Z) + np.arange(len(Z))
        found = self.channel.prepared(y, Z, replace(self._accuracy, seed=seed, numbers=numbers))
        assert isinstance(found, SupportedPosterior)  # blocks_of asks for such channels only
        return found

    @cached_property
    def _nodes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        truth, _, weights = self._outputs
        (n, P, M), each = truth.shape, self._fields
        uniforms = sobol_uniforms(each, 1 + P * M, (self._seed, self._block, 2))
        shifts = np.random.default_rng((self._seed, self._block, 3)).random((n, 1, 1 + P * M))
        uniforms = (uniforms + shifts) % 1.0
        # Where points are drawn, those that indices come from are independent of those that posteriors come from.
        fibres = self._on_fibres(_OWN_LIST) if self.channel.stochastic else self._posteriors[0]
        Z = _chosen(fibres.support, truth.reshape(n, -1), uniforms[:, :, 0])
        noise = ndtri(uniforms[:, :, 1:].clip(1e-12, 1 - 1e-12))
        return Z.reshape(-1, P, M), noise.reshape(-1, P, M), np.repeat(weights, each)

    @cached_property
    def _observation(self) -> np.ndarray:
        return np.repeat(self._outputs[1], self._fields, axis=0)

    def _controls_at(self, Q: np.ndarray) -> None:
        """None: even quantiles leave nothing to them."""

    def _all_posteriors(self, V: np.ndarray) -> list[Posterior]:
        # Moments and operators are asked for at the same overlap.
        where, kept = self._kept
        if where != V.tobytes():
            where, kept = self._kept = V.tobytes(), super()._all_posteriors(V)
        return kept


def _dense_at_ends(even: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantile levels from even ones, both in (0, 1), and their weights, of mean one."""
    distance = 2 * np.minimum(even, 1 - even)
    level = 0.5 * distance**_DENSE
    return np.where(even < 0.5, level, 1 - level).clip(0, 1 - 1e-16), _DENSE * distance ** (_DENSE - 1)


def _chosen(support: Support, truth: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Of the fibre of every sample the points at levels (samples, f) of its cumulative weight, (samples, f, n)."""
    samples, lists, n, J = support.points.shape
    points = np.swapaxes(support.points, 1, 2).reshape(samples, n, lists * J).astype(float) + truth[:, :, None]
    log_weights = support.log_weights.reshape(samples, -1).astype(float) - 0.5 * (points**2).sum(1)
    weights = np.exp(log_weights - log_weights.max(1, keepdims=True))
    result = np.empty((*levels.shape, n))
    for sample in range(samples):
        order = np.argsort(points[sample, 0])  # neighbours have nearby levels
        total = np.cumsum(weights[sample, order])
        places = np.searchsorted(total, levels[sample] * total[-1])
        result[sample] = points[sample][:, order[places.clip(max=len(order) - 1)]].T
    return result
