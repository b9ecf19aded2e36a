"""The choice between averages over samples and their posteriors, and averages over draws sorted by their output."""

from __future__ import annotations

from ..channels.links.cubature import CubatureChannel
from ..channels.links.link_channel import LinkChannel
from ..channels.links.roots import RootChannel
from ..channels.protocol import Channel
from .nodes import Nodes
from .sorting.sorted_fields import SortedNodes, is_discrete, output_axes

#: Largest number of outputs for sorted draws: with more of them, neighbouring draws are too far from each other.
_MOST_OUTPUTS = 4
#: Largest number of indices of all tokens (P M) for sorted draws, unless the channel has ``finest``: the cost grows
#: with the fourth power of this number.
_MOST_INDICES = 8


def nodes_of(channel: Channel) -> Nodes:
    """Return the nodes for computing overlaps: sorted draws, unless posteriors are fast or sums over few roots."""
    return Nodes(channel) if isinstance(channel, RootChannel) else nodes_for_thresholds(Nodes(channel))


def nodes_for_thresholds(nodes: Nodes) -> Nodes:
    """Return the nodes for computing thresholds: sorted draws where they suit the channel, else the given nodes.

    Unlike for overlaps, sorted draws also replace posteriors that are sums over several roots.
    """
    channel = nodes.channel
    if not nodes.posteriors or not isinstance(channel, LinkChannel) or not _suits(channel):
        return nodes
    return SortedNodes(channel)


def _suits(channel: LinkChannel) -> bool:
    """Whether sorted draws suit a channel: its output is a few numbers, and its posteriors are slow.

    Slow posteriors are those from draws, fibres, several cells or roots in more than two dimensions P M.
    """
    if channel.diagonal or channel.groups is not None:
        return False
    roots = isinstance(channel, RootChannel) and channel.size > 2
    cells = isinstance(channel, CubatureChannel) and channel.size > 1
    slow = roots or cells or channel.stochastic
    slow = channel.finest is not None or (slow and channel.size <= _MOST_INDICES)
    return slow and (is_discrete(channel) or output_axes(channel).shape[1] <= _MOST_OUTPUTS)
