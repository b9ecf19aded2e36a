"""Overlaps that are held: what the others do, against identities."""

import numpy as np
import pytest

from asymptotix import BayesOptimal, DeepAttention, MultiIndex, Status, load, solve
from asymptotix.sequence_index.channels.attention.sign import SignChannel
from asymptotix.sequence_index.evolution.coordinates import PRECISIONS, Coordinates
from asymptotix.sequence_index.evolution.fixed_points import StateEvolution
from small_channels import LinearMap, RotatedSquares, Sign, Square

TOLERANCE = 1e-3
LOOSE = 2e-2  # as for the shared results
FIRST = BayesOptimal(MultiIndex(lambda z: z[0], 2))


def held(channel, alpha, overlaps, side=0.0, tolerance=TOLERANCE):
    return StateEvolution(channel, side, held=overlaps).uninformed(alpha, tolerance=tolerance)


# -- the coordinates -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("diagonal", [True, False])
def test_what_is_held_has_no_coordinate(diagonal):
    Q = np.diag([0.2, 0.5, 0.0])
    if not diagonal:
        Q[0, 1] = Q[1, 0] = 0.1
    space, x = Coordinates.of_overlap(Q, np.eye(3) - Q, diagonal, {1: 0.97})
    assert (space.rank, space.learned, space.complement.shape) == (1, 1, (3, 1))
    found, V = space.overlap(x)
    np.testing.assert_allclose(found, np.diag([0.2, 0.97, 0.0]), atol=1e-15)
    np.testing.assert_allclose(found + V, np.eye(3), atol=1e-15)
    assert found[1, 1] == 0.97


def test_held_at_one_is_held_at_the_largest_precision():
    space = Coordinates.of_rows(np.ones(2, bool), True, {1: 1.0})
    Q, V = space.overlap(np.zeros(1))
    assert (Q[1, 1], V[1, 1]) == (1 - 1 / PRECISIONS[1], 1 / PRECISIONS[1])


# -- closed forms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_sum_of_two_is_one_with_more_noise(q, noise):
    # y = z_0 + z_1 with z_1 held: E g^2 = 1/(v_0 + n), n = 1 - q + noise, so that v (v + n + alpha) = v + n.
    alpha, n = 0.8, 1 - q + noise
    found = held(LinearMap([[1.0, 1.0]], noise), alpha, {1: q})
    half = 0.5 * (n + alpha - 1)
    expected = 1 - (-half + np.sqrt(half**2 + n))
    # Four standard errors, and rounding.
    np.testing.assert_allclose(found.Q, np.diag([expected, q]), atol=4 * found.error[0] + 1e-9)
    assert found.how is Status.CONVERGED


def test_three_indices_of_which_the_middle_one_is_held():
    # y = z_0 + 2 z_1 + z_2: the others are learned along (1, 0, 1) alone, as one index of twice the signal.
    alpha, q = 0.7, 0.6
    found = held(LinearMap([[1.0, 2.0, 1.0]]), alpha, {1: q})
    half = 0.5 * (2 * (1 - q) + alpha - 1)
    along = 1 - (-half + np.sqrt(half**2 + 2 * (1 - q)))
    expected = np.array([[along, 0, along], [0, 2 * q, 0], [along, 0, along]]) / 2
    np.testing.assert_allclose(found.Q, expected, atol=TOLERANCE)


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("q", [0.0, 0.4, 1.0])
def test_an_index_that_is_seen_on_its_own_does_not_know_the_other(diagonal, q):
    exact = StateEvolution(SignChannel(1, "linear")).uninformed(0.9, tolerance=1e-8).q.item()
    found = held(RotatedSquares(np.eye(2), diagonal=diagonal), 0.9, {0: q})
    np.testing.assert_allclose(found.Q, np.diag([min(q, 1 - 1e-6), exact]), atol=TOLERANCE)
    assert not found.Q_error[0].any()


@pytest.mark.parametrize(("alpha", "fixed", "expected"), [(0.4, {1: 0.3}, [0.4, 0.3]), (0.4, {0: 0.7}, [0.7, 0.0])])
def test_index_that_is_never_seen(alpha, fixed, expected):
    found = solve(FIRST, alpha=alpha, fixed=fixed, progress=False)
    np.testing.assert_allclose(found.overlap, np.diag(expected), atol=TOLERANCE)
    assert found.ok


def test_an_index_that_is_not_seen_is_held_for_nothing():
    found = solve(FIRST, alpha=1.5, fixed={1: 0.3}, progress=False)
    np.testing.assert_allclose(found.overlap, np.diag([1.0, 0.3]), atol=1e-12)
    assert found.status.item() == solve(FIRST, alpha=1.5, progress=False).status.item()


def test_exact_recovery_is_not_concluded():
    both = BayesOptimal(MultiIndex(lambda z: z, 2))
    found = solve(both, alpha=1.5, fixed={1: 0.3}, progress=False)
    np.testing.assert_allclose(found.overlap, np.diag([1 - 1e-6, 0.3]), atol=1e-12)
    assert found.status_code.item() != Status.EXACT_RECOVERY.code
    assert "1-q is below 1e-06 in 1 of 1 directions" in found.status.item()


@pytest.mark.parametrize("channel", [LinearMap([[1.0, 1.0]], 0.1), Sign([1.0, 1.0]), Square([1.0, 1.0])])
def test_free_entropy_is_stationary_in_what_is_free(channel):
    # d Phi/dQ = (alpha E[g g^T] - Qhat)/2 vanishes along the free index, and along the held one does not.
    evolution = StateEvolution(channel, held={1: 0.8})
    end = evolution.from_overlap(1.5, np.array([0.5, 0.0]), tolerance=TOLERANCE)
    assert end.averages is not None
    hat = 1.5 * end.averages.second_moment.mean(0)
    assert abs(hat[0, 0] / (1 + hat[0, 0]) - end.Q[0, 0]) < TOLERANCE
    assert abs(hat[1, 1] - 0.8 / 0.2) > 0.1


# -- starts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["uninformed", "informed", [0.5, 0.9], [[0.5, 0.3], [0.3, 0.6]]])
def test_every_start_leaves_what_is_held(start):
    problem = BayesOptimal(MultiIndex(lambda z: z[0] + z[1], 2, noise=0.3))
    found = solve(problem, alpha=0.8, fixed={1: 0.5}, start=start, progress=False)
    half = 0.5 * (0.8 + 0.8 - 1)
    np.testing.assert_allclose(found.overlap, np.diag([1 + half - np.sqrt(half**2 + 0.8), 0.5]), atol=TOLERANCE)


def test_side_information_of_what_is_free_only():
    # The noise of the other index, and side information l: v (1/(1-l) + alpha/(v + n)) = 1.
    alpha, q, side = 0.8, 0.5, 0.2
    found = held(LinearMap([[1.0, 1.0]]), alpha, {1: q}, side)
    v = found.V[0, 0]
    assert abs(v * (1 / (1 - side) + alpha / (v + 1 - q)) - 1) < 1e-3
    assert found.Q[1, 1] == q


def test_trace_keeps_what_is_held():
    rows = StateEvolution(LinearMap([[1.0, 1.0]]), held={1: 0.5}).trace(0.8, 3)
    assert (rows[:, 1, 1] == 0.5).all()
    assert not rows[:, 0, 1].any()
    assert abs(rows[1, 0, 0] - 0.8 / (1.5 + 0.8)) < 1e-2  # h/(1+h), h = alpha/(v_0 + v_1), on 2^13 nodes


# -- two layers ----------------------------------------------------------------------------------------------


def test_first_layer_held_at_zero_below_its_threshold(two_layers, curve):
    found = solve(two_layers, alpha=[0.1, 0.6], fixed={0: 0.0}, tolerance=LOOSE, progress=False)
    for name in ("overlap", "test_error", "plugin_error", "free_entropy"):
        np.testing.assert_array_equal(found[name], curve[name])  # the same nodes and steps
    assert found.ok


def test_held_at_its_own_overlap_gives_the_rest_back(two_layers, curve):
    q = curve.overlap.values[1, 1, 1]
    found = solve(two_layers, alpha=0.6, fixed={1: q}, tolerance=LOOSE, progress=False)
    np.testing.assert_array_equal(found.overlap, curve.overlap[1])
    assert found.status.item() == "converged: nothing else is learned"


@pytest.mark.slow
def test_first_layer_held_at_zero_above_its_threshold(two_layers):
    # On this branch alpha(q) = q/((1-q) h(q)), h = E|g_2|^2, here on other nodes; free, both layers would be recovered.
    alpha = 1.2
    found = solve(two_layers, alpha=alpha, fixed={0: 0.0}, tolerance=LOOSE, progress=False)
    q = found.overlap.values[1, 1]
    assert not found.overlap.values[0].any()
    assert found.ok
    assert np.isfinite(found.free_entropy)
    assert found.test_error < found.plugin_error
    evolution = StateEvolution(two_layers.theory.channel, seed=50)
    h = evolution.nodes.block(0)(np.diag([1.0, 1 - q])).second_moment[:, 1, 1].mean()
    # One block tells h to about one per cent.
    assert abs(q / ((1 - q) * h) / alpha - 1) < 0.03


# -- the result ----------------------------------------------------------------------------------------------


def test_settings_say_what_is_held(tmp_path):
    found = solve(FIRST, alpha=[0.2, 0.4], fixed={1: 0.3}, progress=False)
    assert found.settings["fixed"] == {"1": 0.3}
    found.save(tmp_path / "held.nc")
    loaded = load(tmp_path / "held.nc", problem=FIRST)
    assert loaded.settings == found.settings
    more = solve(FIRST, alpha=[0.2, 0.4, 0.6], fixed=loaded.settings["fixed"], resume=loaded, progress=False)
    np.testing.assert_array_equal(more.overlap[:2], found.overlap)
    for other in ({1: 0.4}, {0: 0.3}, None, {}):
        with pytest.raises(ValueError, match=r"resume must be made with the same settings.*fixed"):
            solve(FIRST, alpha=0.2, fixed=other, resume=loaded, progress=False)
    named = solve(FIRST, alpha=[0.2, 0.4], fixed={"index 2": 0.3}, resume=loaded, progress=False)
    assert named.settings["fixed"] == {"1": 0.3}
    assert "fixed" not in solve(FIRST, alpha=0.2, fixed={}, progress=False).settings


# -- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fixed", "error", "message"),
    [
        ([0.0], TypeError, "fixed must be a mapping"),
        (0.0, TypeError, "fixed must be a mapping"),
        ({2: 0.0}, ValueError, "'layer 1', 'layer 2' must be an integer of at least 0 and at most 1, got 2"),
        ({-1: 0.0}, ValueError, "every index of fixed"),
        ({0.5: 0.0}, ValueError, "every index of fixed"),
        ({"layer 3": 0.0}, ValueError, "from 0 to 1, or one of the labels 'layer 1', 'layer 2', got 'layer 3'"),
        ({"layer 1": 0.0, 0: 0.2}, ValueError, "fixed must name every index once"),
        ({True: 0.0}, TypeError, "every index of fixed"),
        ({0: 1.1}, ValueError, r"fixed\[0\] must be in \[0, 1\], got 1.1"),
        ({0: -0.1}, ValueError, r"fixed\[0\]"),
        ({0: float("nan")}, ValueError, r"fixed\[0\]"),
        ({0: "half"}, TypeError, r"fixed\[0\]"),
        ({0: [0.1, 0.2]}, TypeError, r"fixed\[0\]"),
        ({0: 0.1, "0": 0.2}, ValueError, "fixed must name every index once"),
        ({0: 0.0, 1: 0.5}, ValueError, "fixed must leave at least one of the 2 indices free"),
    ],
    ids=str,
)
def test_bad_input(fixed, error, message):
    with pytest.raises(error, match=message):
        solve(BayesOptimal(DeepAttention(layers=2, tokens=2)), alpha=0.5, fixed=fixed, progress=False)


def test_indices_that_change_cannot_be_held():
    with pytest.raises(ValueError, match="fixed must be None where a swept field changes the indices"):
        solve(BayesOptimal(DeepAttention(layers=2, tokens=2)), alpha=0.5, layers=[2, 3], fixed={0: 0.0})


@pytest.mark.slow
def test_a_known_second_layer_makes_two_layers_one():
    """In the limit the first is learned as one layer alone, from below: what is not quite known hides something."""
    two = BayesOptimal(DeepAttention(layers=2, tokens=2))
    less, more = (solve(two, alpha=0.2, fixed={1: q}, progress=False) for q in (0.99999, 1.0))
    alone = solve(BayesOptimal(DeepAttention(layers=1, tokens=2)), alpha=0.2, progress=False)
    assert less.converged.all()
    assert more.converged.all()
    # 0.012, 0.028 and 0.045, the first two with errors of 8e-4.
    first, second = (float(one.overlap.values[0, 0]) for one in (less, more))
    margin = 4 * float(less.overlap_err.values[0, 0] + more.overlap_err.values[0, 0])
    assert first + margin < second < alone.overlap.item() - margin
