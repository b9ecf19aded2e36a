"""Averages over draws that are sorted by their output, against closed forms and quadratures."""

import jax.numpy as jnp
import numpy as np
import pytest

import staircase_quadrature as by
from asymptotix import MultiIndex, SequenceIndex
from asymptotix.numerics.linear_algebra import symmetric_basis
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.channels.protocol import Channel
from asymptotix.sequence_index.evolution.sorting import sorted_kernel
from asymptotix.sequence_index.evolution.sorting.sorted_fields import SortedAverager, SortedNodes
from asymptotix.sequence_index.evolution.sorting.sorted_outputs import window_edges


def paraboloid(z):
    return z[0] + z[1] ** 2 + 0.5 * z[2] ** 2


def averager(channel: Channel) -> SortedAverager:
    """A small one: half a second."""
    return SortedAverager(channel, fields=32, draws=2**10, randomisations=8)


def near(rows: np.ndarray, value: float, within: float) -> bool:
    """Whether a mean of randomisations is a value, up to four of its errors and a relative bias."""
    error = rows.std(ddof=1) / np.sqrt(len(rows))
    assert error < 0.03 * value  # that of nothing would cover anything
    return abs(rows.mean() - value) < 4 * error + within * value


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_moments_and_growth_are_those_of_a_quadrature(noise: float) -> None:
    average, q = averager(channel_of(MultiIndex(paraboloid, 3, noise))), np.array([0.6, 0.3, 0.0])
    exact = by.summed([by.linear(), by.squares(), by.squares(0.5)], noise)(q)
    V, rest = np.diag(1 - q), np.eye(3)[:, 2:]
    learned = average(V).second_moment
    growth = average.moments_and_operators(V, rest, np.ones((1, 1, 1)))[1]
    rows = (learned[:, 0, 0], learned[:, 1, 1], growth[:, 0, 0])
    assert all(near(row, value, average.accuracy) for row, value in zip(rows, exact, strict=True))
    off = learned[:, 0, 1]  # z_1 may change its sign
    assert abs(off.mean()) < 4 * off.std(ddof=1) / np.sqrt(len(off)) + 1e-12


def test_a_monotone_function_of_one_direction_tells_it_and_nothing_else() -> None:
    """E|g|^2 = 1/(1 - q) along it, whatever the function; nothing across it. The overlap is tilted to the axes."""
    direction = np.array([0.6, 0.8])
    model = MultiIndex(lambda z: jnp.tanh(jnp.asarray(direction) @ z), 2)
    across, q = np.array([-0.8, 0.6]), 0.4
    V = np.eye(2) - q * np.outer(direction, direction)
    average = averager(channel_of(model))
    moments = average(V).second_moment
    along = np.einsum("rpq,p,q->r", moments, direction, direction)
    assert near(along, 1 / (1 - q), average.accuracy)
    moments, operators = average.moments_and_operators(V, across[:, None], np.ones((1, 1, 1)))
    for rows in (moments[:, 0, 0], operators[:, 0, 0]):
        assert abs(rows.mean()) < 4 * rows.std(ddof=1) / np.sqrt(len(rows))
        assert abs(rows.mean()) < 2e-3  # of 1/(1 - q) and of a growth of one, where it is seen


def test_tokens_are_summed_over() -> None:
    model = SequenceIndex(lambda Z: Z[0].sum() + (Z[1] ** 2).sum(), 2, 2, 0.1)
    average, q = averager(channel_of(model)), np.array([0.5, 0.0])
    exact = by.summed([by.linear(2), by.squares(1.0, 2)], 0.1)(q)
    V, rest = np.diag(1 - q), np.eye(2)[:, 1:]
    assert near(average(V).second_moment[:, 0, 0], exact[0], average.accuracy)
    assert near(average.moments_and_operators(V, rest, np.ones((1, 1, 1)))[1][:, 0, 0], exact[1], average.accuracy)


def test_operators_are_those_of_every_frame() -> None:
    """Turned frames turn them: what grows does not depend on the axes."""
    average = averager(channel_of(MultiIndex(paraboloid, 3, 0.1)))
    V, frame, basis = np.diag([0.4, 1.0, 1.0]), np.eye(3)[:, 1:], symmetric_basis(2)
    turn = np.array([[0.8, -0.6], [0.6, 0.8]])
    plain, turned = (average.moments_and_operators(V, one, basis)[1].mean(0) for one in (frame, frame @ turn))
    change = np.einsum("aij,ki,lj,bkl->ab", basis, turn, turn, basis)
    # Draws are kept in single precision, and the tables see the same draws.
    np.testing.assert_allclose(turned, change @ plain @ change.T, atol=1e-5)


def test_what_is_known_of_the_output_is_averaged_as_it_is() -> None:
    """Tables of linear functions of the output are right between their first and their last window."""
    rng = np.random.default_rng(0)
    y = np.sort(rng.uniform(-1, 1, (1, 3, 2**10)), -1)
    columns = np.stack([np.ones_like(y), 2 * y], -1)
    order = np.argsort(y, axis=-1)
    found = sorted_kernel.products(y, order, columns, np.ones(y.shape), window_edges(2**10, 4, 32, 1))
    exact = np.einsum("flnp,flnq->pq", columns, columns) / y.size
    # Beyond the last window, of 4 of 1024 draws on each side, tables are constant.
    np.testing.assert_allclose(0.5 * (found + found.T), exact, atol=1e-4)


def test_they_suit_outputs_of_one_number_that_are_not_discrete() -> None:
    assert SortedNodes.suit(channel_of(MultiIndex(paraboloid, 3)))
    assert SortedNodes.suit(channel_of(MultiIndex(paraboloid, 3, 0.1)))
    assert not SortedNodes.suit(channel_of(MultiIndex(lambda z: z[:2] ** 2 + z[2], 3)))
    assert not SortedNodes.suit(channel_of(MultiIndex(lambda z: jnp.sign(z).sum(), 3)))


def test_nodes_are_kept_and_others_are_independent() -> None:
    nodes, V = SortedNodes(channel_of(MultiIndex(paraboloid, 3))), np.diag([0.4, 0.7, 1.0])
    assert nodes.block(0) is nodes.operator_block(0)
    few, other, again = (one.few(V).second_moment for one in (nodes, nodes.others(1), SortedNodes(nodes.channel)))
    assert np.array_equal(few, again)
    assert not np.array_equal(few, other)
