"""The choice of the channel for a model, with its reasons; no other file knows all channels.

A new model is a new file in ``models`` and one line in the table at the end.

Channels compute equations si-evidence, si-gout, si-jacobian of docs/theory/sequence_index.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...core.specification import Specification
from ..models import attention_map
from ..models.deep_attention import DeepAttention
from ..models.infinite_depth import InfiniteDepthAttention
from ..models.link import LinkModel, MultiIndex, SequenceIndex
from ..models.observed_link import ObservedLink
from .attention.many_layers import DeepChannel
from .attention.one_layer import DirectionChannel, HeadsChannel, OneLayerChannel, RotationChannel, ScaleChannel
from .attention.sign import SignChannel
from .attention.two_layers import TwoLayerChannel, cubature_backend
from .links.affine import LinearChannel
from .links.cubature import CubatureChannel
from .links.curve import CurveChannel
from .links.fibre import FibreChannel, NoisyFibreChannel
from .links.lines import LineChannel
from .links.link_channel import LinkChannel
from .links.link_kind import LARGEST_ALPHABET, VALUES, LinkKind, link_kind
from .links.one_index.scalar import ScalarChannel
from .links.plane import PlaneChannel
from .links.roots import RootChannel
from .protocol import Channel


class SequenceModel(Specification):
    """Base class of models with a channel written by the user; a subclass can be the model of BayesOptimal.

    A subclass is a frozen dataclass. Its numeric fields become controls of :func:`asymptotix.solve`.
    """

    def channel(self) -> Channel:
        """Return the channel of this model: its output as a function of indices, and the posterior given an output."""
        raise NotImplementedError(f"{type(self).__name__} must have a method channel() that returns a Channel")


def channel_of(model: object, backend: str = "auto") -> Channel:
    """Return the channel of a model: the closed form where there is one, else the channel of a general link.

    ========================================================  =========================================================
    deep attention                                            channel
    ========================================================  =========================================================
    one layer, tied, rank one, one head                       SignChannel
    one layer, tied, rank two                                 RotationChannel; DirectionChannel (softmax of two tokens)
    one layer, tied, several heads of rank one                HeadsChannel
    one layer, untied, rank one                               ScaleChannel
    two layers, two tokens, tied, rank one, one head          TwoLayerChannel (without skip: with numba only)
    other depths and numbers of tokens of the same            DeepChannel
    all others                                                channel of the link to coordinates of the output
    attention of infinite depth                               channel of one layer, with another output
    ========================================================  =========================================================

    ==========================  =====================================================================
    link                        channel
    ==========================  =====================================================================
    affine                      closed form (LinearChannel)
    noise, n <= 2               adaptive cubature (CubatureChannel)
    noise, n > 2                weighted draws on the fibre of (indices, noise) (NoisyFibreChannel)
    no noise, n = 1             sum over the monotone and constant pieces (ScalarChannel)
    discrete outputs, n = 2     quadrature over lines (PlaneChannel) if outputs change at few places
    discrete outputs            random lines (LineChannel)
    rank n                      sum over roots (RootChannel)
    rank 1, n = 2               quadrature along the level curve (CurveChannel)
    any other constant rank     weighted draws on the fibre (FibreChannel)
    ==========================  =====================================================================

    Here n = P M is the number of indices, and the rank is that of the link's differential. Averages for one index and
    one output are quadratures, unless the link is too steep for its noise or overflows. A link that no channel covers
    raises NotImplementedError, and the message names alternatives.

    Parameters
    ----------
    model : DeepAttention, InfiniteDepthAttention, SequenceIndex, MultiIndex or a :class:`SequenceModel`
    backend : str
        Backend of :class:`TwoLayerChannel`: "numba", "jax" or "auto".
    """
    if isinstance(model, SequenceModel):
        channel = model.channel()
        missing = [name for name in ("indices", "tokens", "outputs") if not hasattr(channel, name)]
        if not isinstance(channel, Channel) or missing:
            lacks = f" without {', '.join(missing)}" if isinstance(channel, Channel) else ""
            raise TypeError(f"channel() of {model!r} must return a Channel, got {channel!r}{lacks}")
        return channel
    for kind, made in _CHANNELS.items():
        if isinstance(model, kind):
            return made(model, backend)
    *others, last = (kind.__name__ for kind in _CHANNELS)
    raise TypeError(f"model must be one of {', '.join(others)} or {last}, got {model!r}")


def covers(model: object) -> bool:
    """Return whether the model belongs to a class that has channels."""
    return isinstance(model, (SequenceModel, *_CHANNELS))


@functools.lru_cache(maxsize=64)
def channel_of_link(model: LinkModel) -> LinkChannel:
    """Return the channel of a link; its ``description`` names the method and the reason for its choice.

    The channel observes the link in standard units, see :class:`ObservedLink`.
    """
    observed = ObservedLink(model)
    n, kind = model.indices * model.tokens, link_kind(observed)
    if kind.matrix is not None and (n > 1 or kind.doubt == 0):
        return LinearChannel(observed, kind)
    if model.noise > 0:
        return CubatureChannel(observed, kind) if n <= 2 else NoisyFibreChannel(observed, kind)
    if n == 1:
        return ScalarChannel(observed)
    if kind.ranks == {0}:
        return _discrete(observed, kind)
    if len(kind.ranks) > 1:
        raise NotImplementedError(
            f"link {model.link!r} without noise: its differential has rank {' or '.join(map(str, sorted(kind.ranks)))},"
            " depending on the point, so that its outputs are neither discrete nor continuous, and no exact channel"
            " covers that with more than one index; choose noise > 0 (a variance), for example noise=0.01"
        )
    rank = int(kind.rank)
    if rank == n:
        return RootChannel(observed)
    if n == 2 and kind.outputs == 1:
        return CurveChannel(observed, kind)
    return FibreChannel(observed, rank, kind.affine if kind.outputs == 1 else ())


def _discrete(model: ObservedLink, kind: LinkKind) -> LinkChannel:
    if kind.alphabet > LARGEST_ALPHABET:
        raise NotImplementedError(
            f"link {model.link!r} without noise: its derivative vanishes, but it took {kind.alphabet} values in"
            f" {VALUES} draws, more than {LARGEST_ALPHABET}; choose noise > 0 (a variance), for example noise=0.01"
        )
    two = model.indices * model.tokens == 2
    return (PlaneChannel.of(model) if two else None) or LineChannel(model)


def channel_of_attention(model: DeepAttention, backend: str = "auto") -> Channel:
    """Return the channel of deep attention: for rank one, for one layer, or, in other cases, for a general link.

    ``backend`` ("numba", "jax" or "auto") is that of two layers of two tokens.
    """
    if model.tokens == 1 and model.activation == "softmax":
        raise ValueError("tokens must be at least 2 with softmax activation: one token attends to itself only, got 1")
    activation = model.activation
    plain = model.tied and model.heads == 1 and set(model.ranks) == {1} and isinstance(activation, str)
    if plain and model.layers == 1:
        # The output sequence of one layer shows its attention matrix plus a constant.
        return SignChannel(model.tokens, str(activation))
    # Linear layers without skip connection keep one direction of the tokens: last-layer indices cannot be solved for.
    solvable = model.tokens > 1 and (model.skip > 0 or activation == "softmax")
    if plain and model.output == "attention" and solvable:
        # The fixed grid on JAX divides by the skip strength.
        if model.layers == model.tokens == 2 and (model.skip > 0 or cubature_backend(backend) == "numba"):
            return TwoLayerChannel(model.skip, str(activation), backend)
        return DeepChannel(model.layers, model.tokens, model.skip, str(activation))
    return one_layer_channel(model) or _attention_as_link(model)


def one_layer_channel(model: DeepAttention) -> OneLayerChannel | None:
    """Return the closed-form channel of one layer, None where there is none.

    The output sequence of one layer has the channel of the attention matrix: the skip connection adds a constant.
    """
    if model.layers > 1 or callable(model.activation):
        return None
    rank, tied, heads = model.ranks[0], model.tied, model.heads
    if heads > 1:
        return HeadsChannel(model) if tied and rank == 1 else None
    if not tied:
        return ScaleChannel(model) if rank == 1 else None
    if rank == 2:
        several = model.tokens > 2 or model.activation == "linear"
        return RotationChannel(model) if several else DirectionChannel(model)
    return None


def _attention_as_link(model: DeepAttention) -> LinkChannel:
    """Return the channel of any deep attention, as a link to coordinates of its output that do not saturate.

    The coordinates do saturate for the output sequence of several layers and for a user's saturating activation. The
    posterior then lacks the information lost to rounding; NotImplementedError if it loses too much.
    """
    if callable(model.activation):
        attention_map.try_activation(model.activation, model.tokens)
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
    seen = channel.with_output(functools.partial(attention_map.output, model=model))
    seen.groups = model.groups if model.heads > 1 else None
    return seen


def infinite_depth_channel(model: InfiniteDepthAttention, backend: str = "auto") -> Channel:
    """Return the channel of one layer, with the output of the last of infinitely many layers."""
    one = DeepAttention(1, model.tokens, rank=model.rank, activation=model.activation)
    return channel_of_attention(one, backend).with_output(model.evaluate)


def _channel_of_link(model: LinkModel, backend: str) -> Channel:
    return channel_of_link(model)


#: Class of model -> function (model, backend) that chooses its channel.
_CHANNELS: dict[type, Callable[[Any, str], Channel]] = {
    DeepAttention: channel_of_attention,
    InfiniteDepthAttention: infinite_depth_channel,
    SequenceIndex: _channel_of_link,
    MultiIndex: _channel_of_link,
}
