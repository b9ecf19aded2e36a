"""Two-layer attention against independent calculations: thresholds, overlaps, errors, a trajectory."""

import numpy as np
import pytest

from asymptotix import BayesOptimal, DeepAttention, Result, solve, thresholds
from asymptotix.core.progress import Progress
from asymptotix.sequence_index.channels.attention.two_layers import TwoLayerChannel
from asymptotix.sequence_index.evolution.fixed_points import StateEvolution
from asymptotix.sequence_index.evolution.thresholds.all_thresholds import find_thresholds
from asymptotix.sequence_index.evolution.thresholds.one_index import next_index
from asymptotix.sequence_index.evolution.thresholds.threshold import Threshold
from asymptotix.sequence_index.evolution.zero_overlap import curvature_at_zero
from asymptotix.sequence_index.observables import prediction_errors
from reference_numbers import allowance, reference

pytestmark = pytest.mark.slow

REFERENCE = reference("sequence_index")
PROBLEM = BayesOptimal(DeepAttention(layers=2, tokens=2))
LAYER_1, LAYER_2 = 0, 1


# -- thresholds ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def all_thresholds() -> Result:
    return thresholds(PROBLEM, tolerance=1e-3, progress=False)


def test_thresholds_at_skip_one(all_thresholds):
    first, second = (REFERENCE[name] for name in ("first_threshold", "second_threshold"))
    first, second = (next(row for row in rows if row["skip"] == 1.0) for rows in (first, second))
    found, err = all_thresholds.weak_recovery.values, all_thresholds.weak_recovery_err.values
    assert abs(found[LAYER_2] - first["layer 2"]) < 1e-5 * first["layer 2"]  # deterministic quadrature
    assert abs(found[LAYER_1] - second["value"]) < allowance(second["value"], np.hypot(err[LAYER_1], second["err"]))
    other = REFERENCE["second_threshold_other_nodes"]
    assert abs(found[LAYER_1] - other["value"]) < allowance(other["value"], np.hypot(err[LAYER_1], other["err"]))
    assert err[LAYER_1] < 1e-3 * found[LAYER_1]  # the tolerance asked for
    np.testing.assert_array_equal(all_thresholds.staircase, found[::-1])
    np.testing.assert_array_equal(all_thresholds.direction, [np.diag([0, 1]), np.diag([1, 0])])


def test_exact_recovery_at_skip_one(all_thresholds):
    assert all_thresholds.exact_recovery_informed.item() == 1  # two indices, two outputs
    assert abs(all_thresholds.exact_recovery.item() - 1) <= all_thresholds.exact_recovery_err.item() <= 0.01


@pytest.mark.parametrize(
    "row",
    [row for row in REFERENCE["second_threshold"] if row["skip"] != 1.0],
    ids=lambda row: f"skip {row['skip']}",
)
def test_second_threshold(row):
    # Alone, without the exact recovery that the verb goes on to find.
    evolution = StateEvolution(TwoLayerChannel(row["skip"], "softmax"))
    found = next_index(evolution, LAYER_2, 2e-3).threshold
    assert found.error < 2e-3 * found.alpha  # the tolerance asked for
    assert abs(found.alpha - row["value"]) < allowance(row["value"], np.hypot(found.error, row["err"]))


def test_second_threshold_between_reference_points():
    # 0.7258 at skip 0.1, 0.7184 at 0.5, each known to 1e-3.
    found = next_index(StateEvolution(TwoLayerChannel(0.25, "softmax")), LAYER_2, 2e-3).threshold
    assert 0.7184 - 0.004 < found.alpha < 0.7258 + 0.004


def test_linear_activation_learns_layer_one_first_at_small_skip(monkeypatch):
    # Which layer comes first changes between skip 1 (0.397 against 0.417) and 2 (0.575 against 0.296).
    monkeypatch.setattr(
        "asymptotix.sequence_index.evolution.thresholds.all_thresholds.exact_recovery",
        lambda *branch, **options: Threshold(1.0, 0.0),
    )
    evolution = StateEvolution(TwoLayerChannel(1.0, "linear"))
    found = find_thresholds(evolution, tolerance=1e-2, progress=Progress(None, "thresholds", enabled=False)).values
    row = next(row for row in REFERENCE["first_threshold_linear"] if row["skip"] == 1.0)
    assert found["staircase"][0] == found["weak_recovery"][LAYER_1]
    # The accuracy promised
    assert abs(found["weak_recovery"][LAYER_1] - row["layer 1"]) < 1e-4 * row["layer 1"]
    # Knowing something of layer 1 can only add to what y says of layer 2 (Jensen: f_2 grows), so it comes
    # earlier than it would on its own. The crossing is at q = 0.012, close to zero.
    err = 3 * found["weak_recovery_err"][LAYER_2]
    assert row["layer 1"] < found["weak_recovery"][LAYER_2] < row["layer 2"] + err
    assert abs(found["weak_recovery"][LAYER_2] - 0.417) < 0.004  # 1/f_2 there, f_2 = 2.397(3), within one per cent


def test_first_threshold_without_skip():
    # Continuous in the skip: 0.27609 at 1e-4, by another calculation; it rises as the skip falls.
    found = 1 / curvature_at_zero(TwoLayerChannel(0.0, "softmax")).value
    assert 0.2761 < found[LAYER_2] < 0.2770
    assert found[LAYER_2] < found[LAYER_1]


# -- overlaps and errors -------------------------------------------------------------------------------------

ROWS = REFERENCE["state_evolution"]


@pytest.fixture(scope="module")
def curve() -> Result:
    return solve(PROBLEM, alpha=[row["alpha"] for row in ROWS], tolerance=5e-3, progress=False)


def reference_overlap_error(row: dict) -> np.ndarray:
    """Of both layers; where alpha is known to one per cent at an overlap, that times the branch's slope."""
    if "overlap_err" in row:
        return 3 * np.array(row["overlap_err"])
    branch = [other for other in ROWS if "alpha_relative_err" in other]
    alphas = np.array([other["alpha"] for other in branch])
    slopes = np.gradient([other["overlap"][LAYER_2] for other in branch], alphas)
    place = branch.index(row)
    return np.array([0.0, abs(slopes[place]) * row["alpha_relative_err"] * row["alpha"]])


@pytest.mark.parametrize("position", range(len(ROWS)), ids=[f"alpha {row['alpha']:.3g}" for row in ROWS])
def test_overlap(curve, position):
    row, point = ROWS[position], curve.isel(alpha=position)
    assert point.ok, point.status.item()
    known, q = np.array(row["overlap"]), np.diag(point.overlap.values)
    own = 3 * np.diag(point.overlap_err.values)
    assert (abs(q - known) <= np.maximum(reference_overlap_error(row), 1e-3 * known) + own).all()
    assert ((q == 0) == (known == 0)).all()
    assert point.status.item().startswith("exact recovery") == (row["alpha"] > 1)


@pytest.mark.parametrize("row", ROWS[:-1], ids=lambda row: f"alpha {row['alpha']:.3g}")
def test_errors_at_the_overlaps_of_the_reference(row):
    # At its overlaps, not ours: so that what its error does to them is out of the way.
    found = prediction_errors(TwoLayerChannel(1.0, "softmax"), np.diag(1 - np.array(row["overlap"])))
    for place, name in enumerate(("test_error", "plugin_error")):
        err = np.hypot(found.error[place], row[f"{name}_err"])
        assert abs(found.value[place] - row[name]) < allowance(row[name], err), name


def test_errors_on_the_curve_are_those_at_its_overlaps(curve):
    assert (np.diff(curve.test_error.values) < 0).all()
    assert (np.diff(curve.plugin_error.values) < 0).all()
    assert (curve.test_error.values[:-1] < curve.plugin_error.values[:-1]).all()
    assert curve.test_error.values[-1] == curve.plugin_error.values[-1] == 0


# -- dynamics ------------------------------------------------------------------------------------------------


def test_stated_errors_are_those_of_the_scatter_over_nodes():
    channel = TwoLayerChannel(1.0, "softmax")
    found = [
        StateEvolution(channel, seed=10 * k).from_overlap(0.95, np.array([0.81, 0.998]), tolerance=3e-3)
        for k in range(6)
    ]
    q, error = (np.array([getattr(state, name)[LAYER_1] for state in found]) for name in ("q", "error"))
    chi_square = (((q - q.mean()) / error) ** 2).sum()
    assert chi_square < 15.1  # five degrees of freedom: beyond it once in a hundred times


def test_trajectory_with_side_information():
    row = REFERENCE["trajectory"]
    problem = BayesOptimal(DeepAttention(layers=2, tokens=2), side_information=row["side_information"])
    known = np.array(row["overlap"])
    found = np.einsum("tpp->tp", problem.trace(iterations=len(known), damping=1.0, alpha=row["alpha"])["overlap"])
    # 2048 Sobol nodes in the reference and 8192 here: about 0.01 where layer 1 rises, which amplifies what
    # came before; three times that there, one for layer 2.
    np.testing.assert_allclose(found[:, LAYER_1], known[:, LAYER_1], rtol=0, atol=3 * row["err"])
    np.testing.assert_allclose(found[:, LAYER_2], known[:, LAYER_2], rtol=0, atol=row["err"])
    assert (np.diff(found, axis=0) > 0).all()


def test_index_without_overlap_stays_without():
    # At alpha = 0.9 layer 1 can be learned, but not from exactly nothing.
    found = solve(PROBLEM, alpha=0.9, start=[0.0, 0.9], tolerance=1e-2, progress=False)
    q = np.diag(found.overlap.values)
    assert q[LAYER_1] == 0
    assert 0.97 < q[LAYER_2] < 0.9947  # above what it is at 0.70, below what layer 1 would lend it
