"""Deep attention as a link: the forward map from index rows to the output, and coordinates of the output.

A softmax saturates, so that its rounded output does not determine the indices. The coordinates log y_ij - log y_ii,
computed from the logits, carry the same information and do not saturate. All functions take NumPy or JAX arrays with
leading batch axes.

Equation si-attention of docs/theory/sequence_index.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.arrays import Array
from ...numerics.precision import double_precision
from .deep_attention import DeepAttention
from .link import SequenceIndex
from .rank_one import activate, array_namespace


def last_layer(Z: Array, model: DeepAttention) -> tuple[Any, Array]:
    """Return the last layer's logits and B_{L-1} of every head, both (..., H, M, M), for index rows Z (..., P, M).

    The logits are U_L^T U_L / H (queries times keys if untied), see :class:`DeepAttention`.
    """
    xp, H, M = array_namespace(Z), model.heads, model.tokens
    B = xp.broadcast_to(xp.eye(M, dtype=Z.dtype), (*Z.shape[:-2], H, M, M))
    logits = None
    for layer in range(model.layers):
        if logits is not None:
            B = model.skip * B + activate(logits, model.function("activation")) @ B
        keys, queries = (xp.einsum("...hgpm,...gim->...hpi", rows, B) for rows in _rows_of_layer(Z, model, layer))
        logits = xp.einsum("...hpi,...hpj->...hij", queries, keys) / H
    return logits, B


def _rows_of_layer(Z: Array, model: DeepAttention, layer: int) -> tuple[Array, Array]:
    """Return keys and queries (the keys again if tied) of a layer (from 0), each (..., heads, blocks, P_l, M)."""
    H, rank = model.heads, model.ranks[layer]
    start, half = H**2 * sum(model.ranks[:layer]), model.indices // 2
    shape = (*Z.shape[:-2], H, H, rank, model.tokens)
    keys = Z[..., start : start + H**2 * rank, :].reshape(shape)
    if model.tied:
        return keys, keys
    return keys, Z[..., half + start : half + start + H**2 * rank, :].reshape(shape)


def output(Z: Array, model: DeepAttention) -> Array:
    """Return the output y (..., M, M) of index rows Z (..., P, M); (..., H, M, M) with several heads.

    The output is the last attention matrix, or B_L if the model's output is the sequence.
    """
    logits, B = last_layer(Z, model)
    y = activate(logits, model.function("activation"))
    if model.output == "sequence":
        y = y @ B + (model.skip * B if model.last_skip else 0.0)
    return y[..., 0, :, :] if model.heads == 1 else y


def coordinates(Z: Array, model: DeepAttention) -> Array:
    """Return numbers (..., k) that carry the information of the output of index rows Z (..., P, M).

    Constant and repeated entries are left out. The numbers do not saturate, except for the output sequence of several
    layers and for a user's activation.
    """
    M, softmax = model.tokens, model.activation == "softmax"
    everything = np.ones((M, M), bool)
    logits, B = last_layer(Z, model)
    if model.output == "sequence" and model.layers > 1:
        # With softmax every row of B_L has the same known sum.
        kept = everything & (np.arange(M) < M - 1) if softmax else everything
        y = output(Z, model).reshape(B.shape)
    elif softmax:
        kept = ~np.eye(M, dtype=bool)
        y = logits - array_namespace(Z).einsum("...ii->...i", logits)[..., :, None]
    elif model.activation == "linear":
        kept, y = np.triu(everything) if model.tied else everything, logits
    else:
        kept, y = everything, activate(logits, model.function("activation"))
    return y[..., kept].reshape(*Z.shape[:-2], -1)


@dataclass(frozen=True)
class AttentionLink:
    """The coordinates of a deep attention as a link of its index matrix (P, M)."""

    model: DeepAttention

    def __call__(self, Z: Array) -> Array:
        return coordinates(Z, self.model)

    def sequence_index(self) -> SequenceIndex:
        """Return the model whose outputs are these coordinates."""
        return SequenceIndex(self, self.model.indices, self.model.tokens)


def try_activation(activation: Callable[..., Any], tokens: int) -> None:
    """Trace the user's activation; raise ValueError if JAX cannot trace it or if it returns another shape."""
    accepted = "a function that JAX can trace, of logits (..., M, M), returning an array of the same shape"
    shape = (2, tokens, tokens)
    with double_precision():
        try:
            # The lambda is needed: JAX cannot hold references to some functions not written in Python, such as NumPy's.
            found = jax.eval_shape(lambda logits: activation(logits), jnp.zeros(shape)).shape
        except Exception as error:
            raise ValueError(
                f"activation must be {accepted}; got {activation!r}, which raised {type(error).__name__}: {error}"
            ) from error
    if found != shape:
        raise ValueError(f"activation must be {accepted}; got {activation!r}, which returns the shape {found}")
