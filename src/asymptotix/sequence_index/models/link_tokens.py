"""Links whose outputs each show one token: a sample is several samples of a model with one token.

Tokens are independent under the prior and, given an overlap, under the posterior. Where outputs that show token t are
the same function of it for all tokens that are shown at all, M of them, n samples say what M n samples of that function
say: alpha there is M times as large.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.compiled import compiled
from ...numerics.precision import double_precision
from .. import streams
from .link import LinkModel, SequenceIndex
from .link_parts import changed_outputs

#: Indices at which links of several tokens are compared, every second one large, and what is rounding.
_PLACES, _ROUNDING = 2**12, 1e-12

class OneToken(NamedTuple):
    """A model with one token, and of how many of its samples one sample of another model is made."""

    model: SequenceIndex
    copies: int


def one_token(model: LinkModel) -> OneToken | None:
    """What a model with several tokens is made of; None where that is not several times the same, or it has one token.

    >>> one_token(SequenceIndex(lambda Z: jnp.tanh(Z[0, :2]), 1, 3)).copies
    2
    """
    if model.tokens == 1:
        return None
    shown, others = _shown_tokens(model)
    if (shown.sum(1) > 1).any() or not shown.any():
        return None
    used = np.flatnonzero(shown.any(0))
    links = [_alone(model, int(token), np.flatnonzero(shown[:, token]), others) for token in used]
    if not _same_functions(links, model):
        return None
    return OneToken(SequenceIndex(links[0], model.indices, 1, model.noise), len(used))


@double_precision()
def _shown_tokens(model: LinkModel) -> tuple[np.ndarray, np.ndarray]:
    """Which output depends on which token, (k, M), and an index matrix at which the link was seen."""
    return changed_outputs(model, streams.LINK_TOKENS, axis=2)


def _alone(model: LinkModel, token: int, outputs: np.ndarray, others: np.ndarray) -> Any:
    """The outputs that show a token, as a function of its indices (P, 1); the other tokens are anything."""

    def link(Z: Any) -> Any:
        whole = jnp.asarray(others, Z.dtype).at[:, token].set(Z[:, 0])
        return jnp.ravel(jnp.asarray(model.evaluate(whole)))[outputs]

    return link


@double_precision()
def _same_functions(links: list[Any], model: LinkModel) -> bool:
    """Whether links (P, 1) -> (k,) are one function, up to rounding, at thousands of places."""
    rng = np.random.default_rng(streams.LINK_TOKENS)
    Z = rng.standard_normal((_PLACES, model.indices, 1))
    Z[1::2] *= 2.0
    values = [np.asarray(compiled(jax.vmap(link))(jnp.asarray(Z)), float) for link in links]
    if len({one.shape for one in values}) > 1:
        return False
    unit = np.ptp(np.quantile(values[0], (0.25, 0.75), axis=0), axis=0)
    return all((abs(one - values[0]) <= _ROUNDING * (unit + abs(values[0]))).all() for one in values[1:])
