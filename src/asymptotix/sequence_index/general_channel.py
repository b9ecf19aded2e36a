"""Which channel a link gets, and why."""

from __future__ import annotations

import functools

from .curve_channel import CurveChannel
from .discrete_channel import LineChannel, PlaneChannel
from .fibre_channel import FibreChannel
from .linear_channel import LinearChannel
from .link_channel import LinkChannel
from .link_kind import LARGEST_ALPHABET, LinkKind, link_kind
from .link_model import MultiIndex, SequenceIndex
from .noise_channel import CubatureChannel, NoisyFibreChannel
from .root_channel import RootChannel
from .scalar_channel import ScalarChannel


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


def _discrete(model: SequenceIndex | MultiIndex, kind: LinkKind) -> LinkChannel:
    if kind.alphabet > LARGEST_ALPHABET:
        raise NotImplementedError(
            f"link {model.link!r} without noise: its derivative vanishes, but it took {kind.alphabet} values in 4096"
            f" draws, more than {LARGEST_ALPHABET}; choose noise > 0 (a variance), for example noise=0.01"
        )
    return PlaneChannel(model) if model.indices * model.tokens == 2 else LineChannel(model)
