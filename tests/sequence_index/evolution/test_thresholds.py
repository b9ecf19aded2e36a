import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asymptotix import BayesOptimal, DeepAttention, thresholds
from asymptotix.core.problem import Outcome
from asymptotix.core.progress import Progress
from asymptotix.core.status import Status
from asymptotix.sequence_index.channels.attention.linear_at_zero import linear_curvature_at_zero
from asymptotix.sequence_index.channels.attention.sign import SignChannel
from asymptotix.sequence_index.channels.attention.two_layers import TwoLayerChannel
from asymptotix.sequence_index.evolution.fixed_points import StateEvolution
from asymptotix.sequence_index.evolution.thresholds import staircase as staircase_module
from asymptotix.sequence_index.evolution.thresholds.all_thresholds import find_thresholds
from asymptotix.sequence_index.evolution.thresholds.exact_recovery import _FullOverlap
from asymptotix.sequence_index.evolution.thresholds.staircase import staircase
from asymptotix.sequence_index.evolution.thresholds.threshold import Threshold, not_below
from asymptotix.sequence_index.evolution.zero_overlap import curvature_at_zero
from reference_numbers import reference
from small_channels import RotatedSquares

QUIET = Progress(None, "thresholds", enabled=False)
REFERENCE = reference("sequence_index")


def at_zero_overlap(skip: float, activation: str = "softmax") -> tuple[np.ndarray, np.ndarray]:
    """Thresholds 1/f of both layers at zero overlap, and their errors."""
    found = curvature_at_zero(TwoLayerChannel(skip, activation))
    return 1 / found.value, found.error / found.value**2


@pytest.mark.parametrize("row", REFERENCE["first_threshold"], ids=lambda row: f"skip {row['skip']}")
def test_first_threshold(row):
    value, error = at_zero_overlap(row["skip"])
    # 1e-4 is the accuracy promised; where the grids are cut off costs 3e-6 at skip 0.1, 1e-6 and less above.
    assert abs(value[1] - row["layer 2"]) < 1e-5 * row["layer 2"]
    assert abs(value[0] - row["layer 1"]) < 1e-5 * row["layer 1"]
    assert (error < 1e-5 * value).all()


def test_first_threshold_between_reference_points():
    value, error = at_zero_overlap(0.25)
    assert error[1] < 1e-4 * value[1]  # the accuracy promised
    assert 0.2027 < value[1] < 0.2436  # it falls with the skip: between those of 0.5 and 0.1
    assert value[1] < value[0]


@pytest.mark.parametrize("row", REFERENCE["first_threshold_linear"], ids=lambda row: f"skip {row['skip']}")
def test_first_threshold_linear_activation(row):
    value, _ = at_zero_overlap(row["skip"], "linear")
    for layer in (0, 1):
        known = row[f"layer {layer + 1}"]
        # 1e-4: the accuracy promised
        assert abs(value[layer] - known) < max(3 * row["relative_err"], 1e-4) * known


@pytest.mark.slow
@settings(max_examples=5, deadline=None, derandomize=True)
@given(skip=st.integers(5, 800).map(lambda k: k / 100))
def test_no_row_is_learned_before_the_bound(skip):
    # A row of rank one cannot be learned before 1/(M(M+1)) = 1/6, where y would reveal z z^T. Skips are
    # rounded: among all floats most examples would be as good as zero, which is slow and tested elsewhere.
    value, error = at_zero_overlap(skip)
    assert (value > 1 / 6 - 3 * error).all()
    assert value[1] < value[0]
    assert value[1] < 0.2766  # 0.27655 without skip: the largest


def test_first_threshold_approaches_the_bound_with_the_skip():
    # Corrections to u = (c+1) z2 are of relative order 1/c in kappa, and squared in the threshold.
    value, _ = at_zero_overlap(30.0)
    assert 1 / 6 < value[1] < 1 / 6 + 1e-3


@pytest.mark.parametrize("tokens", [1, 2, 3, 5])
def test_one_layer_meets_the_bound(tokens):
    activation = "linear" if tokens == 1 else "softmax"
    found = thresholds(
        BayesOptimal(DeepAttention(layers=1, tokens=tokens, activation=activation)), progress=False
    )
    np.testing.assert_allclose(found.weak_recovery, [1 / (tokens * (tokens + 1))], rtol=1e-14)  # exact
    np.testing.assert_array_equal(found.staircase, found.weak_recovery)
    np.testing.assert_array_equal(found.direction, [[[1.0]]])
    np.testing.assert_allclose(found.exact_recovery_informed, 1 / tokens, rtol=1e-14)  # P/r
    assert found.exact_recovery >= found.exact_recovery_informed
    assert found.ok


def test_phase_retrieval_is_exact_only_after_the_jump():
    found = thresholds(BayesOptimal(DeepAttention(layers=1, tokens=1, activation="linear")), progress=False)
    # The reference has 0.691 at 1.10 and exact recovery at 1.13; the literature's value is 1.128.
    assert abs(found.exact_recovery - 1.128) < 3 * found.exact_recovery_err
    assert 1.10 < found.exact_recovery < 1.135


def test_curvature_of_one_layer_is_exact():
    found = curvature_at_zero(SignChannel(3, "softmax"))
    assert found.value.tolist() == [12.0]
    assert found.error.tolist() == [0.0]


def test_thresholds_over_a_grid_of_tokens():
    found = thresholds(BayesOptimal(DeepAttention(layers=1, tokens=2)), tokens=[2, 3, 4], progress=False)
    assert found.weak_recovery.dims == ("tokens", "index")
    # Exact
    np.testing.assert_allclose(found.weak_recovery.values.ravel(), [1 / 6, 1 / 12, 1 / 20], rtol=1e-14)


def test_thresholds_are_those_without_side_information():
    problem = BayesOptimal(DeepAttention(layers=1, tokens=2), side_information=0.1)
    with pytest.raises(ValueError, match=r"side_information=0\.1"):
        thresholds(problem, progress=False)


@pytest.mark.parametrize("tokens", [2, 3, 6])
def test_two_linear_layers_with_a_strong_skip_show_the_last_one(tokens):
    # u = (c + z_1 z_1^T) z_2 tends to c z_2, whose stability is M(M+1); the correction is of order M/c.
    f = linear_curvature_at_zero(tokens, 1e3).value
    np.testing.assert_allclose(f[1], tokens * (tokens + 1), rtol=10 * tokens / 1e3)
    assert f[0] < 0.01 * f[1]  # and the first layer is hidden


def one_token(**options) -> Outcome:
    return find_thresholds(StateEvolution(SignChannel(1, "linear")), progress=QUIET, **{"tolerance": 1e-3, **options})


def test_search_that_ends_at_its_bound_says_so(monkeypatch):
    monkeypatch.setattr(_FullOverlap, "__call__", lambda self, alpha: False)
    found = one_token()
    assert found.how is Status.AT_BOUND
    assert "exact recovery: not below 1" in found.sentence  # 16 times p/r = 1, in steps of 1.5
    assert found.values["exact_recovery"] == np.inf
    assert np.isnan(found.values["exact_recovery_err"])


def test_what_the_theory_says_is_never_recovered_is_infinite_without_an_error():
    class Noisy(SignChannel):
        noises = 1

    found = find_thresholds(StateEvolution(Noisy(1, "linear")), tolerance=1e-3, progress=QUIET)
    assert found.how is Status.CONVERGED
    assert (found.values["exact_recovery"], found.values["exact_recovery_err"]) == (np.inf, 0.0)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-3, 1e-4])
def test_tolerance_of_a_threshold_is_met(tolerance):
    # The jump of phase retrieval, on averages by deterministic quadrature: it is bisected as far as one asks for.
    found = one_token(tolerance=tolerance)
    assert found.how is Status.CONVERGED
    assert found.values["exact_recovery_err"] <= tolerance * found.values["exact_recovery"]


def test_tolerance_that_is_not_met_is_said_so():
    assert Threshold(2.0, 0.01).checked(1e-3).how is Status.INACCURATE
    assert Threshold(2.0, 0.01).checked(5e-3).how is Status.CONVERGED
    assert Threshold(np.nan, np.inf).checked(1e-3).how is Status.NOT_CONVERGED
    assert not_below(64.0).checked(1e-3).words == "not below 64"


def test_branch_that_is_followed_to_its_end_says_how_far(monkeypatch):
    monkeypatch.setattr(staircase_module, "_LAST", 0.7)
    evolution = StateEvolution(RotatedSquares(np.eye(2), seen=[1.0, 0.5]))
    steps, branch = staircase(evolution, tolerance=0.05, progress=QUIET)
    assert branch is None
    assert steps[-1].threshold.how is Status.AT_BOUND
    assert 0.7 < float(steps[-1].threshold.words.removeprefix("not below ")) < 0.7 * 1.25
