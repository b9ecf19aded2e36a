import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from asymptotix.core.problem import Algorithm, Outcome, Problem
from asymptotix.core.result import ConvergenceWarning
from asymptotix.core.verbs import simulate, solve, thresholds
from toy import ToyLearning, ToyRegression, ToyRun

PROBLEM = ToyLearning(ToyRegression(indices=2))


@dataclass(frozen=True)
class Scripted(Problem):
    """Does at every alpha what a table says: an exception to raise, or an outcome."""

    script: tuple = ()
    controls = ("alpha",)

    def dimensions(self):
        return {"curve": ("step",)}

    def solve_points(self, points, *, start, tolerance, progress) -> Iterator[tuple[int, Outcome]]:
        for i, point in enumerate(points):
            action = self.script[int(point["alpha"])]
            if isinstance(action, BaseException):
                raise action
            if action is not None:
                yield i, action


def value(number: float, **options) -> Outcome:
    return Outcome({"x": number}, **options)


def test_grids_multiply_in_the_order_given():
    alpha, noise = [0.2, 0.5, 1.5], [0.0, 0.25]
    result = solve(PROBLEM, noise=noise, alpha=alpha)
    assert result.overlap.dims == ("noise", "alpha", "index", "index_other")
    expected = np.minimum(alpha, 1.0)[None, :] / (1 + np.array(noise)[:, None])
    np.testing.assert_allclose(result.overlap[..., 0, 0], expected, rtol=1e-15)  # the same formula
    assert result.status.sel(noise=0, alpha=1.5).item() == "exact recovery"
    assert result.ok


def test_scalar_is_a_coordinate_without_dimension():
    result = solve(PROBLEM, alpha=0.5, noise=0.25)
    assert result.overlap.dims == ("index", "index_other")
    assert result.alpha.item() == 0.5
    assert result.problem == ToyLearning(ToyRegression(noise=0.25))
    assert solve(PROBLEM, alpha=[0.5]).overlap.sizes["alpha"] == 1


def test_integer_field_with_ragged_dimensions_is_padded():
    result = solve(PROBLEM, alpha=0.5, indices=[1, 3])
    assert result.indices.dtype.kind == "i"
    assert result.overlap.shape == (2, 3, 3)
    assert np.isnan(result.overlap.sel(indices=1).values).sum() == 8
    assert not np.isnan(result.overlap.sel(indices=3)).any()


@pytest.mark.parametrize(
    ("controls", "error", "message"),
    [
        ({}, TypeError, "ToyLearning needs alpha"),
        ({"alpha": 1.0, "nois": 1.0}, TypeError, r"did you mean 'noise'\?.*accepted are alpha, weight_decay"),
        ({"alpha": -0.3}, ValueError, r"alpha must be positive, got -0\.3"),
        ({"alpha": [1.0, np.nan]}, ValueError, "alpha must not contain nan"),
        (
            {"alpha": [[1.0]]},
            ValueError,
            r"alpha must be a number or a non-empty 1-D sequence, got shape \(1, 1\)",
        ),
        ({"alpha": []}, ValueError, "alpha must be a number or a non-empty"),
        ({"alpha": [1.0, 1.0]}, ValueError, "alpha must not repeat"),
        ({"alpha": True}, TypeError, "alpha must be real numbers"),
        ({"alpha": 1.0, "noise": [0.1, -1.0]}, ValueError, r"noise must be non-negative, got -1\.0"),
        ({"alpha": 1.0, "indices": 1.5}, ValueError, "indices must be an integer"),
        ({"alpha": 1.0, "tolerance": 0}, ValueError, "tolerance must be positive"),
    ],
)
def test_bad_controls(controls, error, message):
    with pytest.raises(error, match=message):
        solve(PROBLEM, **controls)


def test_model_in_place_of_problem():
    with pytest.raises(TypeError, match=r"problem must be a Problem .*got ToyRegression"):
        solve(ToyRegression(), alpha=1.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="got the class ToyLearning, not an instance"):
        solve(ToyLearning, alpha=1.0)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("error", [FloatingPointError("overflow"), np.linalg.LinAlgError("overflow")])
def test_numerical_failure_keeps_its_place_and_spares_the_others(error):
    problem = Scripted((value(0.0), error, value(2.0)))
    with pytest.warns(ConvergenceWarning, match=r"1 of 3 points did not converge.*failed: overflow"):
        result = solve(problem, alpha=[0, 1, 2])
    np.testing.assert_array_equal(result.x, [0.0, np.nan, 2.0])
    assert result.status.values.tolist() == ["converged", "failed: overflow", "converged"]
    assert result.converged.values.tolist() == [True, False, True]
    assert not result.ok


@pytest.mark.parametrize("error", [ValueError, TypeError, NotImplementedError])
def test_other_errors_propagate(error):
    with pytest.raises(error, match="this is a bug"):
        solve(Scripted((error("this is a bug"),)), alpha=0)


def test_interrupt_returns_what_is_finished():
    problem = Scripted((value(0.0), KeyboardInterrupt(), value(2.0)))
    with pytest.warns(RuntimeWarning, match="1 of 3 points are finished") as caught:
        result = solve(problem, alpha=[0, 1, 2])
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(result.x, [0.0, np.nan, np.nan])
    assert result.status.values.tolist() == ["converged"] + 2 * ["interrupted before this point"]


def test_unconverged_number_is_kept_and_warned_of_once():
    problem = Scripted((value(1.0), value(2.0, status="still moving", converged=False), None))
    with pytest.warns(ConvergenceWarning, match=r"2 of 3 .*still moving") as caught:
        result = solve(problem, alpha=[0, 1, 2])
    assert len(caught) == 1
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(result.x, [1.0, 2.0, np.nan])
    assert "nothing" in result.status.values[2]


def test_observable_of_wrong_shape_or_name_is_refused():
    with pytest.raises(ValueError, match=r"'curve' has shape \(\), its dimensions are \('step',\)"):
        solve(Scripted((Outcome({"curve": 1.0}),)), alpha=0)
    with pytest.raises(ValueError, match="cannot be called 'alpha'"):
        solve(Scripted((Outcome({"alpha": 1.0}),)), alpha=0)


def test_errors_and_traces_have_the_dimensions_of_their_observable():
    outcome = Outcome({"curve": [1.0, 2.0], "curve_err": [0.1, 0.2], "curve_trace": [[1.0, 2.0]] * 3})
    result = solve(Scripted((outcome,)), alpha=0)
    assert result.curve_err.dims == ("step",)
    assert result.curve_trace.dims == ("iteration", "step")


def test_integers_booleans_and_words_keep_their_type():
    rows = Scripted((Outcome({"n": 1, "flag": True, "word": "yes"}), Outcome({"n": 2, "flag": False, "word": "no"})))
    result = solve(rows, alpha=[0, 1])
    assert (result.n.dtype.kind, result.flag.dtype.kind, result.word.dtype.kind) == ("i", "b", "U")


def test_simulate_dimensions_and_seeds():
    runs = simulate(PROBLEM, ToyRun(), alpha=[0.2, 0.7], noise=[0.0, 0.1], dim=[100, 400], seeds=3)
    assert runs.overlap.dims == ("alpha", "noise", "dim", "seed", "index", "index_other")
    assert runs.overlap_trace.dims[-3:] == ("iteration", "index", "index_other")
    assert runs.seed.values.tolist() == [0, 1, 2]
    assert np.isnan(runs.overlap_trace.sel(seed=1)).any()  # the toy stops its odd runs one iteration early
    one = simulate(PROBLEM, ToyRun(), alpha=0.7, noise=0.1, dim=400, seeds=[2])
    np.testing.assert_array_equal(one.overlap[0], runs.overlap.sel(alpha=0.7, noise=0.1, dim=400, seed=2))
    assert one.dim.item() == 400


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dim": 0, "seeds": 1}, ValueError, "dim must be an integer of at least 1, got 0"),
        ({"dim": 10.5, "seeds": 1}, ValueError, "dim must be an integer"),
        ({"dim": True, "seeds": 1}, TypeError, "dim must be an integer"),
        ({"seeds": 1}, TypeError, "ToyRun needs dim"),
        ({"dim": 10, "seeds": 0}, ValueError, "seeds must be an integer of at least 1"),
        ({"dim": 10, "seeds": [1, 1]}, ValueError, "seeds must be distinct"),
        ({"dim": [10, 10], "seeds": 1}, ValueError, "dim must be distinct"),
    ],
)
def test_bad_simulate_options(options, error, message):
    with pytest.raises(error, match=message):
        simulate(PROBLEM, ToyRun(), alpha=1.0, **options)


def test_algorithm_must_fit():
    with pytest.raises(TypeError, match="ToyRun runs on ToyLearning, got Scripted"):
        simulate(Scripted(), ToyRun(), alpha=1.0, dim=10, seeds=1)
    with pytest.raises(TypeError, match="got the class ToyRun"):
        simulate(PROBLEM, ToyRun, alpha=1.0, dim=10, seeds=1)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Fragile(Algorithm):
    """Fails at one seed of one point, whatever else runs in the same call; the problem fixes the size."""

    needs_dim = False

    def run_points(self, problem, points, *, dim, seeds, progress):
        assert dim is None
        for i, point in enumerate(points):
            for j, seed in enumerate(seeds):
                if (point["alpha"], seed) == (1.0, 5):
                    raise ZeroDivisionError("no weight left")
                yield i, j, Outcome({"x": 10 * point["alpha"] + seed})


def test_failed_run_spares_the_others():
    with pytest.warns(ConvergenceWarning, match="1 of 4"):
        runs = simulate(PROBLEM, Fragile(), alpha=[1.0, 2.0], seeds=[5, 7])
    np.testing.assert_array_equal(runs.x, [[np.nan, 17.0], [25.0, 27.0]])
    assert runs.status.values[0, 0] == "failed: no weight left"
    with pytest.raises(TypeError, match="Fragile takes no dim"):
        simulate(PROBLEM, Fragile(), alpha=1.0, seeds=1, dim=3)


def test_thresholds():
    limits = thresholds(PROBLEM)
    assert limits.kind == "thresholds"
    assert limits.weak_recovery.values.tolist() == [0.1, 0.2]
    many = thresholds(PROBLEM, noise=[0.0, 1.0])
    assert many.weak_recovery.dims == ("noise", "index")
    assert many.exact_recovery.values.tolist() == [1.0, np.inf]
    with pytest.raises(TypeError, match="'alpha' is no control"):
        thresholds(PROBLEM, alpha=1.0)
    with pytest.raises(NotImplementedError, match="Scripted has no thresholds"):
        thresholds(Scripted())


@dataclass(frozen=True)
class ToyChoice(ToyLearning):
    """Computes only what is asked for."""

    def threshold_names(self):
        return ("weak_recovery", "exact_recovery")

    def threshold_values(self, *, tolerance, progress, which=None) -> Outcome:
        return super().threshold_values(tolerance=tolerance, progress=progress).only(which)


CHOICE = ToyChoice(ToyRegression(indices=2))


@pytest.mark.parametrize(
    ("which", "held"),
    [
        (None, {"weak_recovery", "exact_recovery"}),
        ("weak_recovery", {"weak_recovery"}),
        (("exact_recovery",), {"exact_recovery"}),
        (["exact_recovery", "weak_recovery", "exact_recovery"], {"weak_recovery", "exact_recovery"}),
    ],
)
def test_only_thresholds_that_are_asked_for_are_in_the_result(which, held):
    found = thresholds(CHOICE, which=which)
    assert set(found.ds.data_vars) - {"status", "status_code", "converged"} == held
    # In the order of the problem: what was asked for in another order is the same work. None is not noted, so that
    # results from before one could choose can be resumed.
    assert found.settings.get("which") == (which and tuple(name for name in CHOICE.threshold_names() if name in held))


@pytest.mark.parametrize("which", ["weak", ("weak_recovery", "spinodal"), ("weak_recovery", 3), 3])
def test_unknown_threshold_is_refused(which):
    with pytest.raises(ValueError, match=r"which must be one of 'weak_recovery', 'exact_recovery', got"):
        thresholds(CHOICE, which=which)


def test_at_least_one_threshold_is_asked_for():
    with pytest.raises(ValueError, match=r"which must name at least one of 'weak_recovery', .*, got \(\)"):
        thresholds(CHOICE, which=())


def test_theory_without_names_gives_all_thresholds_or_refuses():
    # Its threshold_values takes no which.
    assert "exact_recovery" in thresholds(PROBLEM, which=None).ds
    with pytest.raises(ValueError, match=r"which must be None: all thresholds of ToyLearning .* got 'weak_recovery'"):
        thresholds(PROBLEM, which="weak_recovery")


def test_thresholds_are_resumed_with_the_same_choice_only(tmp_path):
    part = thresholds(CHOICE, which=["exact_recovery"], noise=[0.0], checkpoint=tmp_path / "part.nc")
    more = thresholds(CHOICE, which="exact_recovery", noise=[0.0, 1.0], resume=tmp_path / "part.nc")
    assert more.exact_recovery.values.tolist() == [1.0, np.inf]
    for other in (None, "weak_recovery", ("weak_recovery", "exact_recovery")):
        with pytest.raises(ValueError, match="same settings, got one that differs in which"):
            thresholds(CHOICE, which=other, noise=[0.0, 1.0], resume=part)


def test_converged_work_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(PROBLEM, alpha=[0.5, 1.5])
