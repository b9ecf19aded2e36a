from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from asymptotix.core.compare import compare
from asymptotix.core.comparison.size_trend import SizeTrend
from asymptotix.core.problem import Outcome
from asymptotix.core.verbs import simulate, solve, thresholds
from toy import ToyLearning, ToyRegression, ToyRun

mpl.use("agg")
PROBLEM = ToyLearning(ToyRegression(indices=2))
THEORY = solve(PROBLEM, alpha=[0.2, 0.5, 1.5])


@dataclass(frozen=True)
class Counting(ToyLearning):
    """Remembers at which points it was solved."""

    def solve_points(self, points, **options):
        SOLVED.extend((point["alpha"], self.model.noise) for point in points)
        yield from super().solve_points(points, **options)


SOLVED: list[tuple[float, float]] = []


def test_scores_are_mean_sem_difference_and_t():
    runs = simulate(PROBLEM, ToyRun(), alpha=[0.2, 1.5], dim=400, seeds=8)
    comparison = compare(THEORY, runs)
    assert comparison.names == ("overlap", "test_error")
    samples = runs.test_error.values
    mean, sem = samples.mean(1), samples.std(1, ddof=1) / np.sqrt(8)
    np.testing.assert_allclose(comparison.ds.test_error_mean, mean, rtol=1e-12)  # rounding only
    np.testing.assert_allclose(comparison.ds.test_error_sem, sem, rtol=1e-12)
    np.testing.assert_allclose(comparison.ds.test_error_difference, mean - [0.8, 0.0], rtol=1e-12)
    np.testing.assert_allclose(comparison.ds.test_error_relative, [mean[0] / 0.8 - 1, np.nan], rtol=1e-12)
    t = (mean - [0.8, 0.0]) / sem  # the floor of rounding, 1e-7, is 1e-5 of the noise at most and enters squared
    np.testing.assert_allclose(comparison.ds.test_error_t, t, rtol=1e-9)
    np.testing.assert_allclose(comparison.ds.test_error_dof, 7)
    np.testing.assert_allclose(comparison.ds.test_error_z, norm.isf(student.sf(t, 7)), rtol=1e-8)
    assert comparison.ds.overlap_runs.values.max() == 8
    assert comparison.ds.theory_converged.all()


def test_theory_error_is_a_floor_and_bias_is_removed():
    runs = simulate(PROBLEM, ToyRun(), alpha=[0.2], dim=50, seeds=8)
    ds = compare(THEORY, runs).ds
    unbiased = runs.overlap.values[0, :, 0, 0] - 1 / 50
    sem = unbiased.std(ddof=1) / np.sqrt(8)
    expected = (unbiased.mean() - 0.2) / np.sqrt(sem**2 + 1e-12)  # the toy states an error of 1e-6
    np.testing.assert_allclose(ds.overlap_t[0, 0, 0], expected, rtol=1e-9)
    # rounding of single precision beside it
    np.testing.assert_allclose(ds.overlap_floor[0, 0, 0], np.hypot(1e-6, 2**-23 * max(0.2, unbiased.mean())))


def test_agreement_and_disagreement_are_told_apart():
    options = {"alpha": [0.2, 0.5], "dim": 1000, "seeds": 32}
    # 10 z-scores: one above 4 has probability below 0.1 %; seeds are fixed
    alike, different = (compare(THEORY, simulate(PROBLEM, ToyRun(shift=s), **options)) for s in (0.0, 0.1))
    assert alike.max_abs_z < 4
    assert different.max_abs_z > 8  # t = 0.1 sqrt(32 * 1000) = 18, which 31 degrees of freedom give with z = 8.6
    assert "overlap" in str(alike)
    assert "beyond noise" not in str(alike)
    assert "beyond noise" in str(different)
    assert "one size only: whether finite size explains it is seen from several dim" in str(different)


@dataclass(frozen=True)
class Holding(ToyLearning):
    """Halves the overlap of what is held, so that one sees it."""

    def check_fixed(self, fixed):
        return dict(fixed)

    def solve_points(self, points, *, fixed=None, **options):
        for i, outcome in super().solve_points(points, **options):
            overlap = outcome.values["overlap"].copy()
            for index in fixed or ():
                overlap[int(index), int(index)] /= 2
            yield i, Outcome({**outcome.values, "overlap": overlap}, outcome.how)


def test_what_is_solved_anew_holds_the_same_overlaps():
    problem = Holding(ToyRegression(indices=2))
    theory = solve(problem, alpha=0.2, fixed={1: 0.1}, progress=False)
    runs = simulate(problem, ToyRun(), alpha=[0.2, 0.5], dim=50, seeds=2)
    found = compare(theory, runs).ds.overlap_theory
    np.testing.assert_allclose(np.einsum("aii->ai", found), [[0.2, 0.1], [0.5, 0.25]], rtol=1e-12)
    with pytest.raises(ValueError, match="theory must hold no overlap with by='iteration', got fixed="):
        compare(theory, runs, by="iteration")  # the dynamics it would be compared with hold nothing


def test_only_what_is_not_on_the_grid_is_solved_anew():
    problem = Counting(ToyRegression())
    theory = solve(problem, alpha=[0.2, 0.3, 1.5], noise=[0.0, 0.1])
    SOLVED.clear()
    runs = simulate(problem, ToyRun(), alpha=[0.7, 0.1 + 0.2, 0.2], noise=[0.1], dim=100, seeds=2)
    comparison = compare(theory, runs)
    assert SOLVED == [(0.7, 0.1)]
    assert comparison.ds.alpha.values.tolist() == [0.7, 0.1 + 0.2, 0.2]
    np.testing.assert_allclose(comparison.ds.test_error_theory[:, 0], 1.1 - np.array([0.7, 0.3, 0.2]) / 1.1)
    SOLVED.clear()
    compare(theory, runs.sel(alpha=[0.2]))
    compare(theory, runs.sel(alpha=0.2).isel(noise=0))
    assert SOLVED == []


def test_new_start_is_the_old_one(monkeypatch):
    starts = []
    original = ToyLearning.solve_points

    def spy(self, points, *, start, **options):
        starts.append(start)
        return original(self, points, start=start, **options)

    monkeypatch.setattr(ToyLearning, "solve_points", spy)
    theory = solve(PROBLEM, alpha=[0.2], start="informed")
    compare(theory, simulate(PROBLEM, ToyRun(), alpha=[0.9], dim=100, seeds=2))
    assert starts == ["informed", "informed"]


def test_field_grids_of_either_side():
    runs = simulate(PROBLEM, ToyRun(), alpha=0.5, noise=[0.0, 0.25], dim=100, seeds=2)
    ds = compare(THEORY, runs).ds
    np.testing.assert_allclose(ds.test_error_theory, [0.5, 1.25 - 0.5 / 1.25])
    theory = solve(PROBLEM, alpha=[0.5], noise=[0.0, 0.25])
    noisy = ToyLearning(ToyRegression(noise=0.25))
    ds = compare(theory, simulate(noisy, ToyRun(), alpha=[0.5], dim=100, seeds=2)).ds
    assert ds.test_error_theory.dims == ("alpha",)
    np.testing.assert_allclose(ds.test_error_theory, [1.25 - 0.5 / 1.25])


def test_different_problems_are_refused():
    runs = simulate(ToyLearning(ToyRegression(noise=0.1)), ToyRun(), alpha=0.5, dim=100, seeds=2)
    with pytest.raises(ValueError, match=r"model\.noise is 0\.0 in the theory and 0\.1 in the experiment"):
        compare(THEORY, runs)
    with pytest.raises(TypeError, match=r"theory must be a result of kind 'theory', got .* 'experiment'"):
        compare(runs, THEORY)
    with pytest.raises(TypeError, match="experiment must be a result of kind 'experiment', got a result of kind"):
        compare(THEORY, thresholds(PROBLEM))
    with pytest.raises(ValueError, match="by must be None or 'iteration', got 'step'"):
        compare(THEORY, simulate(PROBLEM, ToyRun(), alpha=0.5, dim=100, seeds=2), by="step")


@dataclass(frozen=True)
class Other(ToyRun):
    def run_points(self, problem, points, *, dim, seeds, progress):
        yield from ((i, j, Outcome({"overlap": np.eye(2)})) for i in range(len(points)) for j in range(len(seeds)))

    def trace_options(self, problem):
        raise ValueError("it has no iterations")


def test_one_run_has_no_z_and_equal_runs_without_spread_agree():
    one = compare(THEORY, simulate(PROBLEM, ToyRun(), alpha=[0.5], dim=100, seeds=1))
    assert np.isnan(one.ds.overlap_sem).all()
    assert np.isnan(one.max_abs_z)
    assert one.table().splitlines()[1].split()[-3:] == ["-", "-", "-"]
    assert "the error is not known: one run" in repr(one)
    picked = simulate(PROBLEM, ToyRun(), alpha=[0.5], dim=100, seeds=3).isel(seed=1)
    assert np.isnan(compare(THEORY, picked).max_abs_z)


def test_by_iteration_follows_the_dynamics():
    runs = simulate(PROBLEM, ToyRun(iterations=6), alpha=[0.2, 0.9], noise=[0.0, 0.25], dim=[100, 400], seeds=8)
    ds = compare(THEORY, runs, by="iteration").ds
    assert ds.overlap_theory.dims == ("alpha", "noise", "iteration", "index", "index_other")
    expected = 0.9 / 1.25 * (1 - 0.5 ** np.arange(1, 7))
    np.testing.assert_allclose(ds.overlap_theory.sel(alpha=0.9, noise=0.25)[:, 0, 0], expected, rtol=1e-12)
    assert ds.overlap_runs.values.min() == 8  # runs that stopped early count with their last value
    stopped = runs.overlap_trace.sel(alpha=0.9, noise=0.25, dim=400)
    last = np.where(np.isnan(stopped[:, -1, 0, 0]), stopped[:, -2, 0, 0], stopped[:, -1, 0, 0])
    got = ds.overlap_mean.sel(alpha=0.9, noise=0.25, dim=400)[-1, 0, 0]
    np.testing.assert_allclose(got, last.mean(), rtol=1e-12)


def test_by_iteration_gives_the_reason_where_it_cannot():
    runs = simulate(PROBLEM, Other(), alpha=[0.2], dim=100, seeds=2)
    with pytest.raises(ValueError, match="it has no iterations"):
        compare(THEORY, runs, by="iteration")


def test_table():
    comparison = compare(THEORY, simulate(PROBLEM, ToyRun(), alpha=[0.2, 0.5], dim=100, seeds=4))
    *lines, left_out = comparison.table().splitlines()
    columns = ["theory", "experiment", "runs", "difference", "relative", "t", "dof", "z"]
    assert lines[0].split() == ["alpha", "dim", "observable", *columns]
    assert len(lines) == 1 + 2 * (2 + 1)
    assert lines[1].split()[:5] == ["0.2", "100", "overlap[index", "1]", "0.2"]
    assert left_out == "not listed, because equal or zero by symmetry: 4; table(every=True) does"
    assert len(comparison.table(every=True).splitlines()) == 1 + 2 * (4 + 1)
    assert "overlap[index 1, index 2]" in comparison.table(every=True)
    shown = comparison._repr_html_()
    assert shown.count("<tr>") == len(lines)
    assert "largest difference" in shown


@dataclass(frozen=True)
class Given(ToyRun):
    """Runs that are what they are said to be: a number per seed for the first overlap, and for all that are off."""

    first: tuple[float, ...] = ()
    off: tuple[float, ...] = (0.0,)

    def run_points(self, problem, points, *, dim, seeds, progress):
        assert dim is not None
        for i, point in enumerate(points):
            for j, seed in enumerate(seeds):
                overlap = problem.expected(point["alpha"]) * np.eye(2) + 1 / dim
                overlap[0, 0] = self.first[seed] + 1 / dim
                overlap[~np.eye(2, dtype=bool)] += self.off[seed % len(self.off)]
                yield i, j, Outcome({"overlap": overlap})


def said(*first, alpha=1.5, off=(0.0,)):
    runs = simulate(PROBLEM, Given(first=first, off=off), alpha=alpha, dim=100, seeds=len(first), progress=False)
    return compare(THEORY, runs)


def test_difference_comes_first_and_agreement_to_five_digits_is_no_alarm():
    comparison = said(*(1 - 4e-5 + 1.6e-5 * np.array([-1, -1, -1, -1, 1, 1, 1, 1])))
    assert abs(comparison.max_abs_z) > 3  # noise does not explain it
    _, first, second = repr(comparison).splitlines()
    assert first.startswith("  overlap: largest difference -4e-05 (-0.004 %) at alpha = 1.5, dim = 100, [index 1], t")
    assert second == "    1 of 2 entries beyond noise; all of that is within the theory's tolerance of 0.001>"


def test_two_seeds_do_not_scream():
    comparison = said(0.298, 0.302, alpha=0.2)
    assert float(comparison.ds.overlap_t[0, 0]) == pytest.approx(50, rel=1e-3)  # 0.1 over a standard error of 0.002
    assert comparison.ds.overlap_dof[0, 0] == 1
    assert 2.4 < comparison.max_abs_z < 2.6  # chance brings two runs as close as that in one case of 80
    assert repr(comparison).endswith("2 entries within noise, of which 2 runs tell little>")


def test_without_scatter_there_is_no_z_but_a_difference():
    comparison = said(0.512, 0.512, 0.512, alpha=0.5)
    assert np.isnan(comparison.ds.overlap_z[0, 0])
    assert comparison.ds.overlap_z[1, 1] == 0  # equal to the theory
    row = next(line for line in comparison.table().splitlines() if "[index 1]" in line).split()
    assert row[5:] == ["0.512", "±", "0", "3", "0.012", "+2.4", "%", "-", "-", "-"]
    assert "largest difference 0.012 (+2.4 %)" in repr(comparison)
    assert "nan" not in repr(comparison) + comparison.table()


def test_zeros_of_symmetry_are_listed_where_the_runs_contradict_them():
    hidden = said(*[0.5, 0.51, 0.49] * 3, alpha=0.5, off=(0.01, -0.01, 0.002))
    shown = said(*[0.5, 0.51, 0.49] * 3, alpha=0.5, off=(0.101, 0.099, 0.1))
    assert "index 1, index 2" not in hidden.table()
    assert shown.table().count("overlap[index 1, index 2]") == 1
    assert "overlap[index 2, index 1]" not in shown.table()  # the same number again
    assert shown.table().splitlines()[2].endswith("*")
    assert shown.table(every=True).count("[index 2, index 1]") == 1


@pytest.mark.parametrize(
    ("distances", "errors", "falls"),
    [
        ((0.2, 0.1), (0.01, 0.01), True),
        ((0.1, 0.1), (0.01, 0.01), False),
        ((0.026, 0.011), (0.008, 0.003), None),  # within errors it may stay, or fall as 1/dim
        ((0.0, 0.02), (0.026, 0.005), None),  # nothing is known of the smaller size
    ],
)
def test_a_distance_that_may_fall_or_not_is_not_blamed(distances, errors, falls):
    trend = SizeTrend((20, 40), distances, errors, (distances[0] > 2 * errors[0], True))
    assert trend.falls is falls
    assert ("finite size alone does not explain it" in repr(trend)) == (falls is False)


@dataclass(frozen=True)
class BiasedBySize(ToyRun):
    """A bias of ``shift`` at dim 100 that goes as a power of the size."""

    power: float = 0.0

    def run_points(self, problem, points, *, dim, seeds, progress):
        assert dim is not None
        for i, j, outcome in super().run_points(problem, points, dim=dim, seeds=seeds, progress=progress):
            bias = self.shift * ((dim / 100) ** -self.power - 1)
            yield i, j, Outcome({name: x + bias for name, x in outcome.values.items() if name == "overlap"})


@pytest.mark.parametrize(
    ("shift", "power", "words"),
    [
        (0.0, 0.0, "12 entries within noise"),
        (1.0, 1.0, "it falls with dim, as dim^-"),
        (1.0, 0.0, "it does not visibly fall with dim"),
    ],
)
def test_bias_of_finite_size_is_named_apart_from_noise(shift, power, words):
    options = {"alpha": [0.2, 0.5], "dim": [400, 100, 1600], "seeds": 8, "progress": False}
    comparison = compare(THEORY, simulate(PROBLEM, BiasedBySize(shift=shift, power=power), **options))
    assert words in repr(comparison)
    assert repr(comparison).splitlines()[0].endswith("with theory: 2 values of alpha, 3 values of dim; 8 seeds")
    trend = comparison.size_trend("overlap")
    assert trend is not None
    assert trend.falls == {(1.0, 1.0): True, (1.0, 0.0): False, (0.0, 0.0): None}[shift, power]
    assert trend.sizes == (100, 400, 1600)
    assert repr(trend) == f"<asymptotix size trend: {trend.words}>"
    if shift == 1.0:
        exponent, error = trend.exponent
        assert 0 < error < 0.05
        assert abs(exponent - power) < 4 * error
        expected = np.array([100.0, 400.0, 1600.0]) ** -power * 100**power
        assert (abs(trend.distances - expected) < 4 * np.array(trend.errors)).all()
    assert comparison.sel(dim=100).size_trend("overlap") is None
    with pytest.raises(ValueError, match="name must be one of 'overlap'"):
        comparison.size_trend("status")


def test_plots():
    runs = simulate(PROBLEM, ToyRun(), alpha=[0.2, 0.5], dim=[100, 400], seeds=4)
    comparison = compare(THEORY, runs)
    labels = comparison.plot("overlap").get_legend_handles_labels()[1]
    assert labels[:3] == ["index 1, theory", "index 2, theory", "index 1, $D = 100$"]
    assert len(labels) == 6
    with pytest.raises(ValueError, match="name must be one of overlap, test_error, got 'status'"):
        comparison.plot("status")
    by_iteration = compare(THEORY, runs, by="iteration")
    with pytest.raises(ValueError, match="varies with alpha, iteration"):
        by_iteration.plot("overlap")
    ax = by_iteration.sel(alpha=0.5, dim=400).plot("overlap")
    assert np.asarray(ax.lines[0].get_xdata()).tolist() == [1, 2, 3, 4, 5, 6]
    ax = runs.sel(dim=400).plot("test_error")
    assert ax.get_legend_handles_labels()[1] == ["experiment"]


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (KeyboardInterrupt(), r"no run has finished \(0 of 6, interrupted\): nothing to compare. Continue with simul"),
        (ZeroDivisionError("division by zero"), r"no run has a number \(6 of 6 failed; the first: failed: division by"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_runs_without_numbers_are_said_to_have_none(monkeypatch, raised, said):
    """It said that theory and experiment share no observable, with an empty list of the experiment's."""
    theory = solve(PROBLEM, alpha=[0.5, 1.0], progress=False)

    def ended(*_, **__):
        raise raised
        yield

    monkeypatch.setattr(ToyRun, "run_points", ended)
    runs = simulate(PROBLEM, ToyRun(), alpha=[0.5, 1.0], dim=100, seeds=3, progress=False)
    with pytest.raises(ValueError, match=said):
        compare(theory, runs)
