"""Averages over outputs at quantiles and indices of their fibres, against a quadrature of their own."""

import numpy as np
import pytest

import staircase_quadrature as by
from asymptotix import MultiIndex
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.channels.links.link_channel import LinkChannel
from asymptotix.sequence_index.evolution.nodes import Nodes
from asymptotix.sequence_index.evolution.thresholds import quantile_nodes
from asymptotix.sequence_index.evolution.thresholds.quantile_nodes import QuantileAverager, blocks_of


@pytest.mark.slow
def test_moments_and_growth_are_those_of_a_quadrature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantile_nodes, "_OUTPUTS", 2**7)
    channel = channel_of(MultiIndex(lambda z: z[0] + z[1] ** 2, 2))
    assert isinstance(channel, LinkChannel)
    average, q = QuantileAverager(channel, 0), np.array([0.3, 0.0])
    exact = by.summed([by.linear(), by.squares()], 0.0)(q)
    V, rest = np.diag(1 - q), np.eye(2)[:, 1:]
    learned = average(V).second_moment[:, 0, 0]
    growth = average.moments_and_operators(V, rest, np.ones((1, 1, 1)))[1][:, 0, 0]
    for rows, value in zip((learned, growth), exact, strict=True):
        error = rows.std(ddof=1) / np.sqrt(len(rows))
        # Of eight randomisations the error itself is known to a quarter: four of them, where one nominal is asked for.
        assert abs(rows.mean() - value) < 4 * error
        assert error < 0.03 * value  # 0.1 of as many outputs that are drawn


def test_levels_are_even_with_their_weights() -> None:
    even = (np.arange(2**12) + 0.5) / 2**12
    level, weight = quantile_nodes._dense_at_ends(even)
    # Midpoints: what is left is of the order of the square of their distance.
    for power in range(4):
        np.testing.assert_allclose(np.mean(weight * level**power), 1 / (power + 1), atol=1e-6)


def test_outputs_that_are_no_single_number_have_the_nodes_of_all_averages() -> None:
    nodes = Nodes(channel_of(MultiIndex(lambda z: z[:2] ** 2 + z[2], 3)))
    assert blocks_of(nodes, 1e-3).block == nodes.operator_block


def test_drawn_fibres_have_more_blocks_for_those_who_ask() -> None:
    drawn = Nodes(channel_of(MultiIndex(lambda z: z[0] + z[1] ** 2 + 0.5 * z[2] ** 2, 3)))
    assert blocks_of(drawn, 1e-3).most == 1
    assert blocks_of(drawn, 5e-4).most > 1
