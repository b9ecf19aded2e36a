"""Trainable weights, in the scaling in which gradient descent updates them.

The size of Adam's steps does not depend on the size of a weight, so the scaling is part of the experiment. It is the
usual one, also of the published training: w = W/sqrt(fan-in), with

    q_t = w_Q x_t,  k_s = w_K x_s,  Om_{st} = softmax over s of k_s . q_t / sqrt(G),
    z^1_t = w_0 x_t,  z^{l+1}_t = (1/sqrt(H_l)) sum_h sum_s w^{l,h} z^l_s Om^{l,h}_{st},  f = w_a . z^{L+1}_*,

and no biases. The w are the queries w_Q, keys w_K (both of length G), projection w_0, values w^{l,h} and readout w_a;
z_* is the token read, or the mean over tokens. Every w starts uniform on (-1, 1)/sqrt(fan-in), as linear layers
commonly do. Its variance 1/(3 fan-in) is a third of the theory's prior variance. For weights W of order one, the same
learning rate would give steps that are smaller by the factor sqrt(fan-in), some 14 to 23.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...numerics.arrays import Array
from .. import streams
from ..network.path_network import AttentionPaths
from ..network.weights import Weights


class Trainable(NamedTuple):
    """All weights of a network, scaled as w = W/sqrt(fan-in): keys of length G, N0 features, width N.

    Attributes
    ----------
    queries, keys : tuples of arrays (H_l, G, N0)
    projection : array (N, N0)
    values : tuple of arrays (H_l, N, N)
        Rows are outputs.
    readout : array (N,)
    """

    queries: tuple[Array, ...]
    keys: tuple[Array, ...]
    projection: Array
    values: tuple[Array, ...]
    readout: Array


def drawn_start(seed: int, heads: Sequence[int], *, features: int, width: int, key_size: int) -> Trainable:
    """Return the weights before the first step, float32, uniform on (-1, 1)/sqrt(fan-in), with ``heads`` H_1..H_L."""
    rng = np.random.default_rng(streams.training_start(seed))

    def uniform(*shape: int) -> np.ndarray:
        return (rng.uniform(-1, 1, shape) / math.sqrt(shape[-1])).astype(np.float32)

    return Trainable(
        queries=tuple(uniform(H, key_size, features) for H in heads),
        keys=tuple(uniform(H, key_size, features) for H in heads),
        projection=uniform(width, features),
        values=tuple(uniform(H, width, width) for H in heads),
        readout=uniform(width),
    )


def of_order_one(trained: Trainable) -> Weights:
    """Return values, projection and readout as weights of order one, float64."""

    def scaled(w: Array) -> np.ndarray:
        return np.asarray(w, float) * math.sqrt(w.shape[-1])

    return Weights(scaled(trained.projection), tuple(map(scaled, trained.values)), scaled(trained.readout))


def with_attention(trained: Trainable, readout: int | str) -> AttentionPaths:
    """Return the network with the trained attention, W^{l,h} = w_K^T w_Q / sqrt(G)."""

    def matrices(q: Array, k: Array) -> Array:
        return k.swapaxes(-1, -2).astype(float) @ q / math.sqrt(q.shape[1])

    return AttentionPaths(query_key=list(map(matrices, trained.queries, trained.keys)), readout=readout)
