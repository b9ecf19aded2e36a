"""The classifying network: embeddings, attention with tied queries and keys, an average, a linear readout.

With x_0 (M, D) the embeddings of a sequence,

    h_l = x_{l-1} w_l^T + b_l,      x_l = softmax(score_scale h_l h_l^T) x_{l-1},      logits = A mean_m x_L + a,

with the softmax over the keys and w_l (P, D). Nothing is masked: padding attends, is attended to and is averaged over.

Troiani et al., arXiv:2502.00901, appendix F. As in their code, w_l here is the transpose of the printed one.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.arrays import Array


class ClassifierParameters(NamedTuple):
    """Learned parameters.

    Attributes
    ----------
    embedding : array (vocabulary, D)
    keys : array (layers, P, D)
        w_l.
    offsets : array (layers, P)
        b_l; zero and without a gradient if the keys have no bias.
    readout, bias : arrays (classes, D) and (classes,)
        A and a.
    """

    embedding: Array
    keys: Array
    offsets: Array
    readout: Array
    bias: Array


def random_start(
    rng: np.random.Generator, *, vocabulary: int, features: int, layers: int, rank: int, classes: int, key_sd: float
) -> ClassifierParameters:
    """Draw embeddings N(0, 1), keys N(0, key_sd^2) with zero offset, readout and bias uniform in +-1/sqrt(D).

    ``features`` is D, ``rank`` P.
    """
    bound = 1 / np.sqrt(features)
    embedding = rng.standard_normal((vocabulary, features), dtype=np.float32)
    keys = key_sd * rng.standard_normal((layers, rank, features), dtype=np.float32)
    readout, bias = (rng.uniform(-bound, bound, shape) for shape in ((classes, features), (classes,)))
    drawn = (embedding, keys, np.zeros((layers, rank)), readout, bias)
    return ClassifierParameters(*(np.asarray(x, np.float32) for x in drawn))


def logits(parameters: ClassifierParameters, tokens: Array, *, score_scale: float, key_bias: bool) -> Array:
    """Return logits (examples, classes) for sequences (examples, M) of row numbers of the embedding."""
    x = parameters.embedding[tokens]
    last = len(parameters.keys) - 1
    for layer, (w, offset) in enumerate(zip(parameters.keys, parameters.offsets, strict=True)):
        h = x @ w.T + offset if key_bias else x @ w.T
        attention = jax.nn.softmax(score_scale * jnp.einsum("nqp,nkp->nqk", h, h), axis=-1)
        # Only the average over positions is read out, so that the last layer needs one averaged query, not M.
        x = attention @ x if layer < last else (attention.mean(axis=1, keepdims=True) @ x)[:, 0]
    return x @ parameters.readout.T + parameters.bias


def cross_entropy(given: Array, labels: Array, weight: Array) -> jax.Array:
    """Return the mean of -log p(label) over examples, with weights (examples,), given logits (examples, classes)."""
    found = jnp.take_along_axis(jax.nn.log_softmax(given, axis=-1), labels[:, None], axis=-1)[:, 0]
    return -(weight * found).sum() / weight.sum()
