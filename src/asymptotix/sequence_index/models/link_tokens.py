"""Reduction of links whose every output depends on one token only to a model with one token.

Tokens are independent under the prior and, given an overlap, under the posterior. If the outputs of M tokens are the
same function of their token, and other tokens have no outputs, then n samples carry the information of M n samples of
the model with one token: its alpha is M times as large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.precision import double_precision
from ...numerics.programs.compiled import compiled
from .. import streams
from .link import LinkModel, SequenceIndex
from .link_parts import changed_outputs

#: Number of indices at which the functions of different tokens are compared, and the relative difference that counts
#: as rounding.
_PLACES, _ROUNDING = 2**12, 1e-12


class OneToken(NamedTuple):
    """A model with one token, and the number of its samples that correspond to one sample of the original model."""

    model: SequenceIndex
    copies: int


def one_token(model: LinkModel) -> OneToken | None:
    """Return the equivalent model with one token; None if there is none, or if the model has one token already.

    >>> one_token(SequenceIndex(lambda Z: jnp.tanh(Z[0, :2]), 1, 3)).copies
    2
    """
    if model.tokens == 1:
        return None
    shown, others = _shown_tokens(model)
    if (shown.sum(1) > 1).any() or not shown.any():
        return None
    if model.noise > 0 and not shown.any(1).all():  # an output of noise alone counts in the free entropy
        return None
    used = np.flatnonzero(shown.any(0))
    links = [_alone(model, int(token), np.flatnonzero(shown[:, token]), others) for token in used]
    if not _same_functions(links, model):
        return None
    return OneToken(SequenceIndex(links[0], model.indices, 1, model.noise), len(used))


@double_precision()
def _shown_tokens(model: LinkModel) -> tuple[np.ndarray, np.ndarray]:
    """Return a mask (k, M), which output depends on which token, and an index matrix (P, M) used for the test."""
    return changed_outputs(model, streams.LINK_TOKENS, axis=2)


def _alone(model: LinkModel, token: int, outputs: np.ndarray, others: np.ndarray) -> Callable[[jax.Array], jax.Array]:
    """Return the function from a token's indices (P, 1) to its outputs, whose positions are ``outputs``.

    The other tokens have the values of the index matrix ``others`` (P, M), which do not matter.
    """

    def link(Z: jax.Array) -> jax.Array:
        whole = jnp.asarray(others, Z.dtype).at[:, token].set(Z[:, 0])
        y = jnp.ravel(jnp.asarray(model.evaluate(whole)))
        # A selection of all numbers would hide reversible operations before it.
        return y if len(outputs) == y.size else y[outputs]

    return link


@double_precision()
def _same_functions(links: list[Callable[[jax.Array], jax.Array]], model: LinkModel) -> bool:
    """Return whether all links (P, 1) -> (k,) agree up to rounding at _PLACES index matrices."""
    rng = np.random.default_rng(streams.LINK_TOKENS)
    Z = rng.standard_normal((_PLACES, model.indices, 1))
    Z[1::2] *= 2.0
    values = [np.asarray(compiled(jax.vmap(link))(jnp.asarray(Z)), float) for link in links]
    if len({one.shape for one in values}) > 1:
        return False
    unit = np.ptp(np.quantile(values[0], (0.25, 0.75), axis=0), axis=0)
    return all((abs(one - values[0]) <= _ROUNDING * (unit + abs(values[0]))).all() for one in values[1:])
