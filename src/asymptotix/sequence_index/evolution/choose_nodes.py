"""The choice between two kinds of averages: over samples and their posteriors, or over draws sorted by their output."""

from __future__ import annotations

from ..channels.links.cubature import CubatureChannel
from ..channels.links.link_channel import LinkChannel
from ..channels.links.roots import RootChannel
from ..channels.protocol import Channel
from .nodes import Nodes
from .sorting.sorted_fields import SortedNodes, is_discrete, output_axes

#: Largest number of outputs for sorted draws: with more of them, neighbouring draws are too far from each other.
_MOST_OUTPUTS = 4
#: Largest number of indices of all tokens for sorted draws, unless the channel has ``finest``: the cost of all pairs of
#: indices grows with the fourth power of their number.
_MOST_INDICES = 8


def nodes_of(channel: Channel) -> Nodes:
    """Return the nodes for overlaps: sorted draws, unless posteriors are fast or sums over few roots."""
    return Nodes(channel) if isinstance(channel, RootChannel) else nodes_for_thresholds(Nodes(channel))


def nodes_for_thresholds(nodes: Nodes) -> Nodes:
    """Return sorted draws where they suit the channel, also if posteriors are sums over roots; else the given nodes.

    The growth of small overlaps takes longer on a block of posteriors.
    """
    channel = nodes.channel
    if not nodes.posteriors or not isinstance(channel, LinkChannel) or not _suits(channel):
        return nodes
    return SortedNodes(channel)


def _suits(channel: LinkChannel) -> bool:
    """Whether observations are few numbers and posteriors are slow: from draws, fibres, cells or several roots."""
    if channel.diagonal or channel.groups is not None:
        return False
    roots = isinstance(channel, RootChannel) and channel.size > 2
    cells = isinstance(channel, CubatureChannel) and channel.size > 1
    slow = roots or cells or channel.stochastic
    slow = channel.finest is not None or (slow and channel.size <= _MOST_INDICES)
    return slow and (is_discrete(channel) or output_axes(channel).shape[1] <= _MOST_OUTPUTS)
