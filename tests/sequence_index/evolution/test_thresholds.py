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
from asymptotix.sequence_index.evolution import nodes
from asymptotix.sequence_index.evolution.fixed_points import StateEvolution
from asymptotix.sequence_index.evolution.refinement import refined
from asymptotix.sequence_index.evolution.thresholds import all_thresholds, expected_time
from asymptotix.sequence_index.evolution.thresholds import staircase as staircase_module
from asymptotix.sequence_index.evolution.thresholds.all_thresholds import find_thresholds
from asymptotix.sequence_index.evolution.thresholds.exact_recovery import _FullOverlap, exact_recovery
from asymptotix.sequence_index.evolution.thresholds.one_index import next_index
from asymptotix.sequence_index.evolution.thresholds.staircase import staircase
from asymptotix.sequence_index.evolution.thresholds.threshold import NEVER, StaircaseStep, Threshold, not_below
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
    found = thresholds(BayesOptimal(DeepAttention(layers=1, tokens=tokens, activation=activation)), progress=False)
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
    steps, branch = staircase(evolution, tolerance=0.05)
    assert branch is None
    assert steps[-1].threshold.how is Status.AT_BOUND
    assert 0.7 < float(steps[-1].threshold.words.removeprefix("not below ")) < 0.7 * 1.25


# ------------------------------------------------------------------------- only what is asked for


class Listening(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(None, "thresholds", enabled=False)
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


#: Learned one after the other, at 1/2 and at 1: cheap, and no direction along a single index.
ROTATED = np.array([[0.6, 0.8], [-0.8, 0.6]])
EXACT = {"exact_recovery", "exact_recovery_err", "exact_recovery_informed", "exact_recovery_informed_err"}


@pytest.mark.parametrize(
    ("which", "held"),
    [
        ("weak_recovery", {"weak_recovery", "weak_recovery_err"}),
        ("staircase", {"staircase", "staircase_err", "direction"}),
        ("exact_recovery", {*EXACT, "exact_recovery_gap"}),
        ("exact_recovery_informed", {"exact_recovery_informed", "exact_recovery_informed_err"}),
    ],
)
def test_what_is_not_asked_for_is_neither_computed_nor_given(monkeypatch, which, held):
    called = []
    for name in ("staircase", "exact_recovery"):
        monkeypatch.setattr(all_thresholds, name, counted(called, name, getattr(all_thresholds, name)))
    found = one_token(which=(which,))
    assert set(found.values) == held
    assert called == {"weak_recovery": ["staircase"], "exact_recovery_informed": []}.get(which, [which])
    everything = one_token()
    assert set(everything.values) >= held
    for name in held:
        np.testing.assert_allclose(found.values[name], everything.values[name], rtol=2e-3)  # twice the tolerance


def counted(called, name, function):
    def call(*args, **options):
        called.append(name)
        return function(*args, **options)

    return call


def test_weak_recovery_ends_where_every_row_is_learned(monkeypatch):
    def evolution():
        return StateEvolution(RotatedSquares(ROTATED, seen=[1.0, 0.5]))

    followed, inner = [], staircase_module._next_direction
    monkeypatch.setattr(staircase_module, "_next_direction", counted(followed, "followed", inner))
    rows = find_thresholds(evolution(), tolerance=0.05, progress=QUIET, which=("weak_recovery",))
    assert followed == []
    # The first direction has a part along both rows.
    np.testing.assert_allclose(rows.values["weak_recovery"], [0.5, 0.5], rtol=0.05)  # the tolerance
    steps, _ = staircase(evolution(), tolerance=0.05)
    assert followed == ["followed"]
    assert len(steps) == 2


def test_a_step_that_no_index_speaks_for_is_in_the_status(monkeypatch):
    """Both rows have a part in the first direction: the second one is the weak recovery of none."""
    frame = np.einsum("si,sj->sij", ROTATED, ROTATED)
    steps = [StaircaseStep(Threshold(0.5, 1e-4), frame[0]), StaircaseStep(Threshold(1.0, 0.1).checked(1e-3), frame[1])]
    monkeypatch.setattr(all_thresholds, "staircase", lambda *args, **options: (steps, None))
    evolution = StateEvolution(RotatedSquares(ROTATED))
    found = find_thresholds(evolution, tolerance=1e-3, progress=QUIET, which=("staircase",))
    assert found.how is Status.INACCURATE
    assert found.words.startswith("step 2 of the staircase: the relative error 1.0e-01")


# ------------------------------------------------------------------------- exact recovery from where it can be


def exact_recovery_after(last: Threshold, monkeypatch) -> tuple[Threshold, list[float]]:
    """Exact recovery with p/r = 1 whose dynamics recovers from 1.3 on, and the alphas that were tried."""
    tried = []

    def recovers(self, alpha):
        tried.append(alpha)
        return alpha > 1.3

    monkeypatch.setattr(_FullOverlap, "__call__", recovers)
    return exact_recovery(StateEvolution(SignChannel(1, "linear")), last=last, tolerance=1e-3), tried


def test_exact_recovery_is_not_tried_where_a_direction_is_not_learned(monkeypatch):
    found, tried = exact_recovery_after(Threshold(1.2, 0.01), monkeypatch)
    assert abs(found.alpha - 1.3) < 1e-3 * 1.3
    assert min(tried) > 1.2 - 3 * 0.01
    found, tried = exact_recovery_after(Threshold(0.5, 0.01), monkeypatch)
    assert abs(found.alpha - 1.3) < 1e-3 * 1.3
    assert min(tried) < 1.01
    found, tried = exact_recovery_after(Threshold(1.2, 0.01, Status.NOT_CONVERGED), monkeypatch)
    assert min(tried) < 1.01  # what did not settle tells nothing


def test_exact_recovery_comes_with_the_last_direction(monkeypatch):
    found, tried = exact_recovery_after(Threshold(1.31, 1e-4), monkeypatch)
    assert tried[0] < 1.32  # just above it
    assert abs(found.alpha - 1.31) < 3 * found.error
    assert found.error < 5e-3  # bisected between the two


def test_what_is_never_learned_is_never_recovered(monkeypatch):
    assert exact_recovery_after(NEVER, monkeypatch) == (NEVER, [])


@pytest.mark.slow
def test_late_direction_is_recovered_with_the_dynamics_itself():
    # Seen with probability 0.4 a direction is recovered after 1/0.4 = 2.5, far above 1.6 and p/r = 2/1.4: where the
    # search begins must not matter.
    evolution = StateEvolution(RotatedSquares(np.eye(2), seen=[1.0, 0.4], diagonal=True))
    late = exact_recovery(evolution, last=Threshold(1.6, 0.01))
    usual = exact_recovery(evolution)
    assert abs(late.alpha - usual.alpha) < 3 * np.hypot(late.error, usual.error)


# ------------------------------------------------------------------------- where the work is


def said(evolution: StateEvolution, **options) -> list[str]:
    listening = Listening()
    find_thresholds(evolution, tolerance=0.05, progress=listening, **options)
    return listening.texts


def test_progress_names_the_step_and_moves_on(monkeypatch):
    monkeypatch.setattr(nodes, "BLOCK", 2**9)
    monkeypatch.setattr(nodes, "FEW", 2**9)
    texts = said(StateEvolution(RotatedSquares(np.eye(2), seen=[1.0, 0.5])))
    for part in (
        "first weak-recovery threshold: block 1 of at most 16",
        "after 1 of 2 directions: following the branch: alpha = ",
        "1 directions learned, iteration 2",
        "after 1 of 2 directions: towards the crossing",
        "exact recovery between 0 and inf: trying alpha = ",
    ):
        assert any(part in text for text in texts), part
    assert len(set(texts)) > 0.5 * len(texts)  # most of them say something new


@pytest.mark.slow
def test_progress_names_blocks_and_error():
    texts: list[str] = []
    next_index(StateEvolution(RotatedSquares(np.eye(2), seen=[1.0, 0.9], diagonal=True)), 0, 1e-3, texts.append)
    assert any(text.startswith("along the branch with one direction learned, alpha up to 0.5") for text in texts)
    assert "block 1 of at most 32" in texts
    texts.clear()
    evolution = StateEvolution(RotatedSquares(np.eye(1)))
    refined(evolution, evolution.grown(evolution.nothing(0.8)).point, 1e-6, texts.append)
    assert any(text.startswith("block 2 of at most 32, error ") and "tolerance 1.0e-06" in text for text in texts)


def test_long_search_says_how_long():
    evolution = StateEvolution(SignChannel(1, "linear"))
    assert not any("all of it" in text for text in said(evolution))
    evolution.nodes.__dict__["seconds"] = 0.9  # of one average
    assert any(text.endswith("(all of it about 2 min)") for text in said(evolution))
    assert [expected_time._rounded(s) for s in (47, 70, 5000)] == ["50 s", "1 min", "1 h"]
