"""Which channel a link gets, and why."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ...numerics.precision import double_precision
from ..models import attention_map
from ..models.deep_attention import DeepAttention
from ..models.link import MultiIndex, SequenceIndex
from .links.affine import LinearChannel
from .links.curve import CurveChannel
from .links.discrete import LineChannel, PlaneChannel
from .links.fibre import FibreChannel
from .links.link_channel import LinkChannel
from .links.link_kind import LARGEST_ALPHABET, LinkKind, link_kind
from .links.noise import CubatureChannel, NoisyFibreChannel
from .links.roots import RootChannel
from .links.scalar import ScalarChannel
from .protocol import with_output


@functools.lru_cache(maxsize=64)
def channel_of_link(model: SequenceIndex | MultiIndex) -> LinkChannel:
    """The channel of a link; its ``description`` says in words what was chosen and why.

    ==========================  =====================================================================
    link                        posterior
    ==========================  =====================================================================
    affine                      closed form (LinearChannel)
    noise, n <= 2               adaptive cubature (CubatureChannel)
    noise, n > 2                weighted draws on the fibre of (indices, noise) (NoisyFibreChannel)
    no noise, n = 1             sum over the monotone and constant pieces (ScalarChannel)
    discrete outputs, n = 2     quadrature over lines (PlaneChannel)
    discrete outputs, n > 2     random lines (LineChannel)
    rank n                      sum over roots (RootChannel)
    rank 1, n = 2               quadrature along the level curve (CurveChannel)
    any other constant rank     weighted draws on the fibre (FibreChannel)
    ==========================  =====================================================================

    with n = P M the number of indices and the rank that of the differential of the link.
    """
    n, kind = model.indices * model.tokens, link_kind(model)
    if kind.matrix is not None and kind.offset is not None:
        return LinearChannel(model, kind.matrix, kind.offset)
    if model.noise > 0:
        return CubatureChannel(model, kind) if n <= 2 else NoisyFibreChannel(model, kind)
    if n == 1:
        return ScalarChannel(model)
    if kind.ranks == {0}:
        return _discrete(model, kind)
    if len(kind.ranks) > 1:
        raise NotImplementedError(
            f"link {model.link!r} without noise: its differential has rank {' or '.join(map(str, sorted(kind.ranks)))},"
            " depending on the point, so that its outputs are neither discrete nor continuous, and no exact channel"
            " covers that with more than one index; choose noise > 0 (a variance), for example noise=0.01"
        )
    rank = int(kind.rank)
    if rank == n:
        return RootChannel(model)
    if n == 2 and kind.outputs == 1:
        return CurveChannel(model, kind)
    return FibreChannel(model, rank)


def channel_of_attention(model: DeepAttention) -> LinkChannel:
    """The channel of any deep attention, as that of the link to coordinates of its output that do not saturate.

    Where they may (the output sequence of several layers, a saturating activation of one's own), what is rounded away
    is lost to the posterior too; NotImplementedError where too much is.
    """
    if callable(model.activation):
        _try_activation(model.activation, model.tokens)
    try:
        channel = channel_of_link(attention_map.AttentionLink(model).sequence_index())
    except NotImplementedError as error:
        raise NotImplementedError(
            f"no channel for {model}: the rank of the differential of its output is not the same everywhere, or its"
            " outputs are discrete with too many values; choose another activation or output, or last_skip=False"
        ) from error
    if isinstance(channel, RootChannel) and model.output == "sequence" and model.layers > 1:
        raise NotImplementedError(
            f"no channel for {model}: with output='sequence' it shows all {model.indices * model.tokens} indices of a"
            " sample, but saturates, and Newton's method misses too many of them; covered are the output sequences of"
            " one layer, and of several layers with two tokens and softmax; or choose output='attention'"
        )
    seen = with_output(channel, functools.partial(attention_map.output, model=model))
    seen.groups = model.groups if model.heads > 1 else None
    return seen


def _try_activation(activation: Callable, tokens: int) -> None:
    accepted = "a function that JAX can trace, of logits (..., M, M), returning an array of the same shape"
    shape = (2, tokens, tokens)
    with double_precision():
        try:
            # In a function of its own: JAX cannot hold on to some that are not written in Python, as those of NumPy.
            found = jax.eval_shape(lambda logits: activation(logits), jnp.zeros(shape)).shape
        except Exception as error:
            raise ValueError(
                f"activation must be {accepted}; got {activation!r}, which raised {type(error).__name__}: {error}"
            ) from error
    if found != shape:
        raise ValueError(f"activation must be {accepted}; got {activation!r}, which returns the shape {found}")


def _discrete(model: SequenceIndex | MultiIndex, kind: LinkKind) -> LinkChannel:
    if kind.alphabet > LARGEST_ALPHABET:
        raise NotImplementedError(
            f"link {model.link!r} without noise: its derivative vanishes, but it took {kind.alphabet} values in 4096"
            f" draws, more than {LARGEST_ALPHABET}; choose noise > 0 (a variance), for example noise=0.01"
        )
    return PlaneChannel(model) if model.indices * model.tokens == 2 else LineChannel(model)
