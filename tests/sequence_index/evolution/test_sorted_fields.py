"""Averages over draws that are sorted by their output, against closed forms and quadratures."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import staircase_quadrature as by
from asymptotix import BayesOptimal, MultiIndex, SequenceIndex, solve
from asymptotix.numerics.linear_algebra import symmetric_basis
from asymptotix.sequence_index.channels.choose import channel_of_link as channel_of
from asymptotix.sequence_index.channels.links.link_channel import LinkChannel
from asymptotix.sequence_index.evolution.choose_nodes import nodes_for_thresholds
from asymptotix.sequence_index.evolution.nodes import Nodes
from asymptotix.sequence_index.evolution.sorting import cell_kernel, output_trees, sorted_kernel
from asymptotix.sequence_index.evolution.sorting.by_output import labelled_draws
from asymptotix.sequence_index.evolution.sorting.sorted_fields import SortedAverager, SortedNodes, output_axes
from asymptotix.sequence_index.evolution.sorting.sorted_outputs import window_edges


def paraboloid(z):
    return z[0] + z[1] ** 2 + 0.5 * z[2] ** 2


def averager(channel: LinkChannel) -> SortedAverager:
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


def test_leaves_of_a_list_hold_draws_of_all_lists_with_like_outputs() -> None:
    rng = np.random.default_rng(0)
    y = rng.standard_normal((2, 3, 2, 2**10))
    cells = output_trees.leaves(y, rng.random((2, 3, 31, 2)))
    counts = np.stack([np.bincount(cells[f, t, t], minlength=32) for f in range(2) for t in range(3)])
    assert counts.min() >= 5  # the smallest share five times over, 0.35^5 of 1024
    # The variance of outputs within leaves is a small part of all of it, one, for draws of other lists too: along each
    # of two outputs a normal is cut two or three times.
    for own, other in ((0, 0), (0, 1), (2, 1)):
        labels = cells[0, own, other]
        means = np.stack([np.bincount(labels, row) / np.maximum(np.bincount(labels), 1) for row in y[0, other]])
        assert (y[0, other] - means[:, labels]).var() < 0.2


def test_products_of_what_is_linear_in_a_cell_are_right() -> None:
    rng = np.random.default_rng(1)
    y = rng.uniform(-1, 1, (1, 3, 2, 2**10))
    cells = output_trees.leaves(y, rng.random((1, 3, 31, 2)))
    columns = np.stack([np.ones((1, 3, 2**10)), y[:, :, 0] - 2 * y[:, :, 1]], -1)
    found = cell_kernel.products(y, cells, 32, columns, np.ones((1, 3, 2**10)))
    exact = np.einsum("flnp,flnq->pq", columns, columns) / columns[..., 0].size
    # Slopes are those of variances larger by a thousandth, and leaves end where their own draws do.
    np.testing.assert_allclose(0.5 * (found + found.T), exact, atol=2e-3)


def test_labels_give_the_products_of_the_means_of_labels() -> None:
    rng = np.random.default_rng(2)
    y = rng.integers(0, 2, (4, 3, 2, 2**12)).astype(float)
    c = y[:, :, 0] + 2 * y[:, :, 1] + rng.standard_normal((4, 3, 2**12))
    found = labelled_draws(y, np.ones(c.shape)).products(c[..., None]).item() / 4
    assert found == pytest.approx(1.5**2 + 1.25, abs=0.05)  # five errors: 12288 nodes each, of standard deviation 2


def test_values_that_differ_by_rounding_are_one() -> None:
    """0.1 + 0.2 is not 0.3: of two outputs that are zero both or one would be told."""

    def summed(z):
        return 0.1 * jnp.sign(z[0]) + 0.2 * jnp.sign(z[1]) - 0.3 * jnp.sign(z[2])

    V, links = 0.5 * np.eye(3), (summed, lambda z: jnp.round(10 * summed(z)))
    found = [averager(channel_of(MultiIndex(link, 3)))(V).second_moment for link in links]
    np.testing.assert_allclose(*found, rtol=1e-9)


def test_many_values_are_corrected_for_those_that_are_not_drawn() -> None:
    def rounded(z):
        return jnp.round(12 * (z[0] + z[1] ** 2 + z[2] ** 2)).clip(-60, 180)

    V, channel = 0.5 * np.eye(3), channel_of(MultiIndex(rounded, 3))
    few, many = (SortedAverager(channel, fields=16, draws=2**n, randomisations=4) for n in (10, 13))
    assert few.uncorrected is not None
    short, corrected, long = (np.trace(one(V).second_moment.mean(0)) for one in (few.uncorrected, few, many))
    assert short < corrected < long  # by 2.5 and 1.3 % of it; 0.05 % is left on many draws
    assert abs(corrected - long) < 0.6 * abs(short - long)


@pytest.mark.parametrize("small", [1e-5, 1e-2])
def test_outputs_that_are_nearly_alike_tell_their_difference(small: float) -> None:
    def alike(z):
        return jnp.stack([z[0] ** 2, z[0] ** 2 + small * z[1] * z[2]])

    V, links = 0.5 * np.eye(3), (alike, lambda z: jnp.stack([z[0] ** 2, z[1] * z[2]]))
    found = [averager(channel_of(MultiIndex(link, 3)))(V).second_moment.mean(0) for link in links]
    np.testing.assert_allclose(np.diag(found[0]), np.diag(found[1]), rtol=0.02)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_several_outputs_are_as_good_as_each_alone(noise: float) -> None:
    """Their sum and their difference tell of two parabolas what these do."""

    def link(z):
        first, second = z[0] + z[1] ** 2, z[2] + 0.5 * z[3] ** 2
        return jnp.stack([first + second, first - second]) / np.sqrt(2)

    average, q = averager(channel_of(MultiIndex(link, 4, noise))), np.array([0.6, 0.3, 0.5, 0.0])
    first, second = (by.summed([by.linear(), by.squares(a)], noise) for a in (1.0, 0.5))
    V, rest = np.diag(1 - q), np.eye(4)[:, 3:]
    learned = average(V).second_moment
    growth = average.moments_and_operators(V, rest, np.ones((1, 1, 1)))[1]
    rows = (learned[:, 0, 0], learned[:, 1, 1], learned[:, 2, 2], growth[:, 0, 0])
    exact = (*first(q[:2]), *second(q[2:]))
    assert all(near(row, value, 4e-3) for row, value in zip(rows, exact, strict=True))  # 1024 draws
    assert average.uncorrected is not None
    assert average.accuracy < 4e-3


def test_outputs_that_depend_on_others_are_left_out() -> None:
    def told_twice(z):
        """Three outputs of rank two; that the last one is a sum of the others does not show in the program."""
        return jnp.stack([z[0] * z[1], z[2], (z[0] - 1) * z[1] + z[1] - 2 * z[2]])

    channel = channel_of(MultiIndex(told_twice, 3))
    axes = output_axes(channel)
    assert axes.shape == (3, 2)
    y = channel.observe(np.random.default_rng(0).standard_normal((100, 3, 1)))
    assert np.linalg.cond(np.cov(y @ axes, rowvar=False)) < 10


def sorts(model) -> bool:
    return not nodes_for_thresholds(Nodes(channel_of(model))).posteriors


@pytest.mark.slow
def test_they_suit_few_outputs_that_are_hard() -> None:
    assert sorts(MultiIndex(paraboloid, 3))
    assert sorts(MultiIndex(paraboloid, 3, 0.1))
    assert sorts(MultiIndex(lambda z: z[:2] ** 2 + z[2], 3))
    assert sorts(MultiIndex(lambda z: jnp.sign(z).sum(), 3))
    assert sorts(MultiIndex(lambda z: z * jnp.roll(z, 1), 3))
    assert not sorts(MultiIndex(lambda z: z * z[::-1] + z, 2))  # roots of two are exact
    assert not sorts(MultiIndex(lambda z: z[:5] * z[5], 6))  # five outputs
    assert not sorts(MultiIndex(lambda z: jnp.stack([z.sum(), z @ z]), 9))  # nine indices


def test_nodes_are_kept_and_others_are_independent() -> None:
    nodes, V = SortedNodes(channel_of(MultiIndex(paraboloid, 3))), np.diag([0.4, 0.7, 1.0])
    assert nodes.block(0) is nodes.block(0)
    few, other, again = (one.few(V).second_moment for one in (nodes, nodes.others(1), SortedNodes(nodes.channel)))
    assert np.array_equal(few, again)
    assert not np.array_equal(few, other)


def two_squares(z):
    return z[0] ** 2 + 3 * z[1] ** 2


def second_moment_of_an_ellipse(q: float) -> float:
    """E[g^2] of the second index of y = z1^2 + 3 z2^2 at overlaps (0, q): y = r^2, and an angle is not seen."""
    (x, w), (t, wt) = np.polynomial.hermite_e.hermegauss(61), np.polynomial.legendre.leggauss(200)
    r, angle = 6.5 * (t + 1)[:, None], 2 * np.pi * np.arange(256) / 256
    z1, z2, total = r * np.cos(angle), r * np.sin(angle) / np.sqrt(3), 0.0
    for field, weight in zip(np.sqrt(q) * x, w / w.sum(), strict=True):
        density = np.exp(-0.5 * z1**2 - 0.5 * (z2 - field) ** 2 / (1 - q)) / (2 * np.pi * np.sqrt(1 - q))
        mean, seen = (density * (z2 - field) / (1 - q)).mean(1), density.mean(1) + 1e-300
        total += weight * float((6.5 * wt * r[:, 0] * 2 * np.pi / np.sqrt(3) * mean**2 / seen).sum())
    return total


def test_errors_of_blocks_are_independent_where_little_is_learned() -> None:
    """In the order of their sequences lists had errors whose products were the same in all blocks."""
    nodes, V = SortedNodes(channel_of(MultiIndex(two_squares, 2))), np.diag([1.0, 0.999])
    rows = np.array([nodes.block(number)(V).second_moment[:, 1, 1] for number in range(6)])
    assert near(rows.mean(0), second_moment_of_an_ellipse(0.001), 0.0)
    # 0.41 if they are independent, 1.0 before; each is known to 27 %.
    assert rows.mean(0).std(ddof=1) < 0.7 * np.sqrt(rows.var(1, ddof=1).mean())


@pytest.mark.slow
def test_small_overlaps_of_a_curve_are_those_of_a_quadrature() -> None:
    """Just above its threshold: at alpha = 0.605 it was 0.0007 with an error of 0.0003, and called converged."""
    alphas = [0.555, 0.58, 0.605]
    found = solve(BayesOptimal(MultiIndex(two_squares, 2)), alpha=alphas, progress=False)
    exact = [brentq(lambda q, a=a: q - (1 - q) * a * second_moment_of_an_ellipse(q), 1e-4, 0.5) for a in alphas]
    apart = abs(found.overlap.values[:, 1, 1] - exact)
    assert (apart <= 3 * found.overlap_err.values[:, 1, 1]).all()
    assert apart.max() < 3e-3
