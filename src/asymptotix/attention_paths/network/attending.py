"""Attention matrices of the bare tokens, and the attended inputs of every path.

    Om^{l,h}_{st} = softmax over s of x_s^T W^{l,h} x_t      (s key, t query; columns sum to one)
    xi^pi = sum_{t_1..t_L} x_{t_1} Om^{1,h_1}_{t_1 t_2} Om^{2,h_2}_{t_2 t_3} ... Om^{L,h_L}_{t_L t*}

Tiberi et al., arXiv:2405.15926, eqs. (16) and (7) or (23). Sequences of tokens t_1..t_L are not enumerated. Weights v_s
of the tokens are computed from the last layer to the first: v^{h_L}_s = Om^{L,h_L}_{s t*}, then v^{(h_l, ..., h_L)} =
Om^{l,h_l} v^{(h_{l+1}, ..., h_L)}; in the end xi^pi = sum_s x_s v^pi_s. The cost is T^2 + N0 T per example and path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

# Bytes of projected queries and scores of one chunk of examples: large enough for BLAS, small compared with the data.
_CHUNK_BYTES = 2**26

QueryKey = Sequence[np.ndarray]


def attention_matrices(x: np.ndarray, query_key: QueryKey) -> tuple[np.ndarray, ...]:
    """Return Om of every layer, (examples, H_l, T, T), from tokens (examples, T, N0) and W^{l,h}, (H_l, N0, N0)."""
    examples, length, _ = x.shape
    found = tuple(np.empty((examples, len(W), length, length)) for W in query_key)
    for part in _chunks(x, query_key):
        for layer, W in enumerate(query_key):
            found[layer][part] = _softmax_attention(x[part], x[part], W)
    return found


def attend(x: np.ndarray, attention: Sequence[np.ndarray], read: slice) -> np.ndarray:
    """Return attended inputs xi, (examples, paths, N0), of tokens x (examples, T, N0) with given attention.

    ``attention`` has (examples, H_l, T, T) per layer; the readout averages over the tokens ``read``.
    """
    *below, last = attention
    pooled = last[..., read].mean(axis=-1)
    return _along_paths(pooled, below) @ x


def attend_bare(x: np.ndarray, query_key: QueryKey, read: slice) -> np.ndarray:
    """Return attended inputs xi like `attend`, with attention computed from x and W^{l,h}, (H_l, N0, N0) per layer."""
    paths = int(np.prod([len(W) for W in query_key]))
    xi = np.empty((len(x), paths, x.shape[-1]))
    for part in _chunks(x, query_key):
        chunk = x[part]
        # The last layer needs only the queries of the tokens that the readout averages over.
        pooled = _softmax_attention(chunk, chunk[:, read], query_key[-1]).mean(axis=-1)
        below = [_softmax_attention(chunk, chunk, W) for W in query_key[:-1]]
        xi[part] = _along_paths(pooled, below) @ chunk
    return xi


def _chunks(x: np.ndarray, query_key: QueryKey) -> Iterator[slice]:
    examples, length, features = x.shape
    each = 8 * max(len(W) for W in query_key) * length * (features + length)
    step = max(1, _CHUNK_BYTES // each)
    for start in range(0, examples, step):
        yield slice(start, start + step)


def _softmax_attention(keys: np.ndarray, queries: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Return the softmax over s of x_s^T W^h x_t, (examples, H, keys s, queries t), from tokens (examples, ., N0)."""
    examples, count, features = queries.shape
    # One matrix product for all heads, then one per example and head; einsum over the three factors is far slower.
    projected = queries.reshape(-1, features) @ W.reshape(-1, features).T
    projected = projected.reshape(examples, count, len(W), features).transpose(0, 2, 3, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        scores = keys[:, None] @ projected
        if not np.isfinite(scores).all():
            raise ValueError("inputs must give finite scores x_s^T W x_t, got an overflow: their scale is too large")
        scores -= scores.max(axis=-2, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-2, keepdims=True)
    return scores


def _along_paths(pooled: np.ndarray, below: Sequence[np.ndarray]) -> np.ndarray:
    """Return the weights v^pi_s of all tokens in every path, (examples, paths, T).

    ``pooled`` (examples, H_L, T) is v of the last layer; ``below`` has the attention (examples, H_l, T, T) of the
    layers before.
    """
    v = pooled
    for A in reversed(below):
        v = v[:, None] @ A.swapaxes(-1, -2)
        v = v.reshape(len(v), -1, v.shape[-1])
    return v
