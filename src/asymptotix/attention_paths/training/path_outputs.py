"""Outputs of the network in training, with products in the order that costs least.

The values are linear, so the readout w_a, the value matrices w^{l,h} and the projection w_0 are multiplied once for a
whole batch. This gives one row of N0 numbers per path,

    w^pi = w_a w^{L,h_L} ... w^{1,h_1} w_0 / sqrt(H_1 ... H_L),

and every token x_s is multiplied with these rows, not with the matrices: u^pi_s = w^pi . x_s. Then the attention of
each layer sums over its heads and tokens, u^{(h_2..h_L)}_t = sum_{h_1, s} Om^{1,h_1}_{st} u^{(h_1..h_L)}_s, and the
readout uses the last sum. This is f = sum_pi w^pi . xi^pi, Tiberi et al., arXiv:2405.15926, eq. (5), with the sums in
another order. For L = 2, H = 4, N = 512 and 48 tokens it takes a seventh of the products of a computation layer by
layer; the remaining products are those of the scores.

Attention depends on the bare input in every layer, so the scores of all layers are computed at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ...numerics.arrays import Array
from .trainable import Trainable


def outputs(trained: Trainable, x: jax.Array, readout: int | str) -> jax.Array:
    """Return the outputs f, (examples,), for tokens x (examples, T, N0); ``readout`` is "mean" or a token's index."""
    counts = [len(V) for V in trained.values]
    attention = _attention(trained, x)
    u = x @ _path_rows(trained).T
    first = 0
    for H in counts[:-1]:
        u = u.reshape(*u.shape[:2], H, -1)
        u = jnp.einsum("bths,bshr->btr", attention[:, :, first : first + H], u)
        first += H
    last = attention[:, :, first:]
    pooled = last.mean(axis=1) if isinstance(readout, str) else last[:, readout]
    return jnp.einsum("bhs,bsh->b", pooled, u)


def products_per_example(
    heads: Sequence[int], *, tokens: int, features: int, width: int, key_size: int, batch: int
) -> int:
    """Return the number of multiplications per example; those done once per batch are divided by ``batch``."""
    paths, total = math.prod(heads), sum(heads)
    if _is_merged(tokens, features, key_size):
        scores = total * tokens * features * (features + tokens)
        shared = total * key_size * features**2
    else:
        scores, shared = total * tokens * key_size * (2 * features + tokens), 0
    left = [math.prod(heads[layer:]) for layer in range(len(heads))]
    shared += width**2 * sum(left) + paths * width * features
    return scores + tokens * features * paths + tokens**2 * sum(left[:-1]) + tokens * left[-1] + shared // batch


def _path_rows(trained: Trainable) -> Array:
    """Return w^pi, (paths, N0), with f = sum_pi w^pi . xi^pi; the first layer's head varies slowest."""
    rows = trained.readout[None]
    for V in reversed(trained.values):
        rows = jnp.einsum("rn,hnm->hrm", rows, V).reshape(-1, V.shape[-1]) / math.sqrt(len(V))
    return rows @ trained.projection


def _attention(trained: Trainable, x: jax.Array) -> jax.Array:
    """Return the attention matrices of all layers, (examples, queries t, heads of all layers, keys s)."""
    q, k = jnp.concatenate(trained.queries), jnp.concatenate(trained.keys)
    key_size = q.shape[1]
    q = q / math.sqrt(key_size)
    if _is_merged(x.shape[1], x.shape[2], key_size):
        W = jnp.einsum("hgi,hgj->hij", k, q)
        scores = jnp.einsum("bthi,bsi->bths", jnp.einsum("btj,hij->bthi", x, W), x)
    else:
        # Heads come before tokens, so that the matrices of each head are contiguous in memory.
        scores = jnp.einsum("bhtg,bhsg->bhts", jnp.einsum("btj,hgj->bhtg", x, q), jnp.einsum("bsj,hgj->bhsg", x, k))
        scores = scores.swapaxes(1, 2)
    return jax.nn.softmax(scores, axis=-1)


def _is_merged(tokens: int, features: int, key_size: int) -> bool:
    """Return whether scores take fewer products with one matrix w_K^T w_Q per head than with queries and keys."""
    return features * (features + tokens) < key_size * (2 * features + tokens)
