"""Merging is solving at once: the same numbers at the same places, and nothing that no part has."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.core.driver.merge import LACKING
from asymptotix.core.problem import Outcome
from toy import ToyLearning, ToyRegression, ToyRun

PROBLEM = ToyLearning(ToyRegression(indices=2))


@dataclass(frozen=True)
class Shaky(asx.Problem):
    """value = shift, known to an error of 0.1; negative alpha fails, alpha above 10 does not converge."""

    size: int = 1
    controls = ("alpha",)
    shift = 0.0

    def dimensions(self):
        return {"rows": ("index",)}

    def index_labels(self):
        return [f"layer {n + 1}" for n in range(self.size)]

    def solve_points(self, points, *, start, tolerance, progress):
        for i, point in enumerate(points):
            if point["alpha"] < 0:
                raise ArithmeticError("negative")
            values = {"value": Shaky.shift, "value_err": 0.1, "rows": point["alpha"] * np.arange(1, self.size + 1)}
            yield i, Outcome(values, asx.Status.NOT_CONVERGED if point["alpha"] > 10 else asx.Status.CONVERGED)


def solve(alpha, shift=0.0, **options) -> asx.Result:
    Shaky.shift = shift
    return asx.solve(Shaky(), alpha=alpha, **options)


def test_parts_of_a_grid_give_the_whole(tmp_path):
    whole = asx.solve(PROBLEM, alpha=[0.2, 0.5, 1.5], noise=[0.0, 0.5])
    parts = [asx.solve(PROBLEM, alpha=[1.5, 0.2], noise=[0.0, 0.5]), asx.solve(PROBLEM, alpha=0.5, noise=[0.5, 0.0])]
    merged = asx.merge(parts)
    assert merged.ds.identical(whole.ds)
    assert (merged.problem, merged.settings) == (whole.problem, whole.settings)
    merged.save(tmp_path / "m.nc")
    assert asx.load(tmp_path / "m.nc").ds.identical(merged.ds)


def test_thresholds_become_points_of_the_curve():
    limits = asx.thresholds(PROBLEM)
    merged = asx.merge([asx.solve(PROBLEM, alpha=[0.05, 0.15]), asx.solve(PROBLEM, alpha=limits.weak_recovery)])
    assert merged.alpha.values.tolist() == [0.05, 0.1, 0.15, 0.2]


def test_seeds_and_sizes_are_merged():
    whole = asx.simulate(PROBLEM, ToyRun(), alpha=[0.2, 0.5], dim=[10, 20], seeds=4)
    sizes = [asx.simulate(PROBLEM, ToyRun(), alpha=[0.2, 0.5], dim=dim, seeds=[2, 3, 0, 1]) for dim in (20, 10)]
    assert asx.merge(sizes).overlap.identical(whole.overlap)
    seeds = [asx.simulate(PROBLEM, ToyRun(), alpha=[0.2, 0.5], dim=[10, 20], seeds=s) for s in ([0, 2], [1, 3])]
    assert asx.merge(seeds).overlap.identical(whole.overlap)


def test_fields_of_the_problem_become_dimensions():
    parts = [asx.solve(ToyLearning(ToyRegression(noise=noise)), alpha=[0.2, 0.5]) for noise in (0.5, 0.0)]
    whole = asx.solve(PROBLEM, alpha=[0.2, 0.5], noise=[0.0, 0.5])
    merged = asx.merge(parts)
    assert merged.overlap.dims == ("alpha", "noise", "index", "index_other")
    assert merged.overlap.identical(whole.overlap)
    assert asx.merge([asx.thresholds(part.problem) for part in parts]).weak_recovery.dims == ("noise", "index")


def test_rows_are_told_by_their_labels():
    parts = [asx.solve(Shaky(size=size), alpha=[1.0, 2.0]) for size in (1, 3)]
    merged = asx.merge(parts)
    assert merged.rows.sel(size=3, index="layer 3").values.tolist() == [3.0, 6.0]
    assert np.isnan(merged.rows.sel(size=1, index="layer 3")).all()
    assert merged.rows.sel(size=1, index="layer 1").values.tolist() == [1.0, 2.0]


def test_a_point_of_no_part_says_so_and_can_be_computed():
    merged = asx.merge([asx.solve(PROBLEM, alpha=0.2, noise=0.0), asx.solve(PROBLEM, alpha=0.5, noise=0.5)])
    assert (merged.status == LACKING).sum() == 2
    assert not merged.finished
    assert np.isnan(merged.test_error.values[merged.status.values == LACKING]).all()
    done = asx.solve(PROBLEM, alpha=[0.2, 0.5], noise=[0.0, 0.5], resume=merged)
    assert done.ds.identical(asx.solve(PROBLEM, alpha=[0.2, 0.5], noise=[0.0, 0.5]).ds)


def test_failed_points_stay_and_give_way_to_converged_ones():
    with pytest.warns(asx.ConvergenceWarning):
        failed = solve([-1.0, 1.0])
    with pytest.warns(asx.ConvergenceWarning):
        merged = asx.merge([solve([20.0], shift=5.0), failed, solve([1.0])])
    assert merged.status_code.values.tolist() == ["failed", "converged", "not_converged"]
    assert "negative" in merged.status.values[0]


def test_points_that_disagree_are_refused_and_those_within_errors_are_not():
    assert asx.merge([solve([1.0, 2.0]), solve([2.0], shift=0.19)]).value.values.tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"must agree .* at alpha = 2 for value 0\.0 and 0\.21"):
        asx.merge([solve([1.0, 2.0]), solve([2.0], shift=0.21)])


def test_what_differs_is_named():
    first = asx.solve(PROBLEM, alpha=[0.2])
    with pytest.raises(ValueError, match=r"results\[1\] must be of the same problem, ToyLearning, got Shaky"):
        asx.merge([first, solve([1.0])])
    with pytest.raises(ValueError, match=r"results\[1\] must be made with the same settings .* another tolerance"):
        asx.merge([first, asx.solve(PROBLEM, alpha=[0.5], tolerance=1e-2)])
    with pytest.raises(ValueError, match="same kind as results"):
        asx.merge([first, asx.thresholds(PROBLEM)])
    runs = [asx.simulate(PROBLEM, ToyRun(shift=shift), alpha=0.2, dim=10, seeds=1) for shift in (0.0, 1.0)]
    with pytest.raises(ValueError, match=r"same algorithm .* differs in shift"):
        asx.merge(runs)
    for wrong, words in ((first, "several results"), ([first, 3], r"results\[1\] must be a Result"), (3, "several")):
        with pytest.raises(TypeError, match=words):
            asx.merge(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one"):
        asx.merge([])


def test_provenance_lists_the_parts_of_parts():
    parts = [asx.solve(PROBLEM, alpha=alpha) for alpha in (0.2, 0.5, 1.5)]
    merged = asx.merge([asx.merge(parts[:2]), parts[2]])
    assert merged.provenance["parts"] == [part.provenance for part in parts]
    assert merged.provenance["numpy"] == np.__version__
    json.dumps(merged.provenance)
