"""Fields that change the indices: every number lies under its own label, and has the bias of its own problem."""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from asymptotix.core.compare import compare
from asymptotix.core.dataset.rows import common_rows, row_key
from asymptotix.core.problem import Algorithm, Outcome, Problem, index_name
from asymptotix.core.result import load
from asymptotix.core.verbs import simulate, solve, thresholds
from toy import ToyLearning, ToyRegression


@dataclass(frozen=True)
class Layered(Problem):
    """The overlap of row p of layer l is alpha (l + p/10), both from 1, so that a number says where it belongs."""

    layers: int = 1
    rank: int = 1
    controls = ("alpha",)
    solved: ClassVar[list[tuple[int, int]]] = []
    patience: ClassVar[list[int]] = [100]

    def dimensions(self) -> Mapping[str, tuple[str, ...]]:
        return {"overlap": ("index", "index_other"), "weak_recovery": ("index",)}

    def index_labels(self) -> list[str]:
        layers, rows = range(1, self.layers + 1), range(1, self.rank + 1)
        return [f"layer {n}" + (f" row {p}" if self.rank > 1 else "") for n in layers for p in rows]

    def values(self) -> np.ndarray:
        return np.array([n + p / 10 for n in range(1, self.layers + 1) for p in range(1, self.rank + 1)])

    def solve_points(self, points: Any, **options: Any) -> Iterator[tuple[int, Outcome]]:
        for i, point in enumerate(points):
            if self.patience[0] == 0:
                raise KeyboardInterrupt
            self.patience[0] -= 1
            self.solved.append((self.layers, self.rank))
            yield i, Outcome({"overlap": np.diag(point["alpha"] * self.values())})

    def threshold_values(self, **options: Any) -> Outcome:
        return Outcome({"weak_recovery": 1 / self.values()})

    def trace(self, *, iterations: int, damping: float, **controls: float) -> Mapping[str, np.ndarray]:
        return {"overlap": np.array([np.diag(controls["alpha"] * self.values())] * iterations)}

    def comparable(self, experiment: Any) -> Any:
        """Rows of one layer see each other."""
        names = [name for name in ("overlap", "overlap_trace") if name in experiment]
        return experiment.assign({name: experiment[name] - self.rank / experiment["dim"] for name in names})


@dataclass(frozen=True)
class Biased(Algorithm):
    """Theory plus the bias rank/dim."""

    def run_points(self, problem: Any, points: Any, *, dim: Any, seeds: Any, progress: Any) -> Iterator:
        for i, point in enumerate(points):
            for j in range(len(seeds)):
                overlap = np.diag(point["alpha"] * problem.values()) + problem.rank / dim
                yield i, j, Outcome({"overlap": overlap, "overlap_trace": np.array([overlap] * 3)})

    def trace_options(self, problem: Problem) -> Mapping[str, Any]:
        return {"iterations": 3, "damping": 1.0}


PROBLEM = Layered()
#: Values of the rows (layer 1 row 1), (layer 1 row 2), (layer 2 row 1), (layer 2 row 2) where rank is 1 and 2.
ROWS = np.array([[1.1, np.nan, 2.1, np.nan], [1.1, 1.2, 2.1, 2.2]])
LABELS = ["layer 1 row 1", "layer 1 row 2", "layer 2 row 1", "layer 2 row 2"]


@pytest.fixture(autouse=True)
def fresh() -> None:
    Layered.solved.clear()
    Layered.patience[0] = 100


def diagonal(values: Any) -> np.ndarray:
    return np.einsum("...pp->...p", np.asarray(values))


def test_numbers_lie_under_their_own_labels():
    result = solve(PROBLEM, alpha=1.0, layers=2, rank=[1, 2])
    assert result.index_label.values.tolist() == result.index_other_label.values.tolist() == LABELS
    np.testing.assert_array_equal(diagonal(result.overlap), ROWS)
    # A row that is not there has no number in any column, and the others have all of theirs.
    assert np.isnan(result.overlap.sel(rank=1).values).sum() == 16 - 4
    runs = simulate(PROBLEM, Biased(), alpha=1.0, layers=2, rank=[2, 1], dim=[10, 20], seeds=3)
    assert runs.index_label.values.tolist() == LABELS
    expected = ROWS[::-1, None, :] + np.array([2, 1])[:, None, None] / np.array([10, 20])[None, :, None]
    np.testing.assert_allclose(diagonal(runs.overlap.isel(seed=2)), expected, rtol=1e-12)  # rounding
    limits = thresholds(PROBLEM, layers=2, rank=[1, 2])
    np.testing.assert_allclose(limits.weak_recovery, 1 / ROWS, rtol=1e-12)


def test_labels_are_those_of_the_largest_model_not_of_the_base():
    result = solve(PROBLEM, alpha=1.0, layers=[1, 3, 2])
    assert result.index_label.values.tolist() == ["layer 1", "layer 2", "layer 3"]
    np.testing.assert_array_equal(result.overlap.isel(layers=2).isnull().sum("index_other"), [1, 1, 3])
    assert solve(Layered(layers=3), alpha=1.0, layers=1).index_label.values.tolist() == ["layer 1"]
    assert solve(ToyLearning(ToyRegression(2)), alpha=0.5).index_label.values.tolist() == ["index 1", "index 2"]


def test_lines_of_a_plot_have_the_labels_of_the_largest_model():
    result = solve(PROBLEM, alpha=[0.5, 1.0], layers=2, rank=[1, 2])
    legend = result.sel(rank=2).plot("overlap").get_legend()
    assert legend is not None
    words = [text.get_text() for text in legend.get_texts()]
    assert all(any(label in text for text in words) for label in LABELS)


def test_rows_that_a_point_does_not_have_are_neither_drawn_nor_listed():
    theory = solve(PROBLEM, alpha=[0.5, 1.0], layers=2, rank=[1, 2])
    both, one = (theory.sel(rank=rank).plot("overlap") for rank in (2, 1))
    assert one.get_legend_handles_labels()[1] == [f"layer {n} row 1, theory" for n in (1, 2)]
    # A row has the same colour whether or not others are there.
    assert [line.get_color() for line in one.lines] == [both.lines[k].get_color() for k in (0, 2)]
    runs = simulate(PROBLEM, Biased(), alpha=[0.5, 1.0], layers=2, rank=[1, 2], dim=10, seeds=1)
    found = compare(theory, runs)
    drawn = found.sel(rank=1).plot("overlap").get_legend_handles_labels()[1]
    assert drawn == [f"layer {n} row 1, {what}" for what in ("theory", "experiment") for n in (1, 2)]
    entries = {rank: found.sel(rank=rank).table(every=True).count("overlap[") for rank in (1, 2)}
    assert entries == {1: 2 * 4, 2: 2 * 16}


def test_point_without_any_number_is_drawn_and_listed_as_missing():
    theory = solve(PROBLEM, alpha=[0.5, 1.0], rank=2)
    runs = simulate(PROBLEM, Biased(), alpha=[0.5, 1.0], rank=2, dim=10, seeds=2)
    theory.overlap[0], runs.overlap[0] = np.nan, np.nan
    assert compare(theory, runs).table(every=True).count("overlap[") == 2 * 4
    assert compare(theory, runs).table().count("overlap[") == 2 * 2  # without what is zero by symmetry
    theory.overlap[:] = np.nan
    assert len(theory.plot("overlap").lines) == 1


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("layer 2", "layer 2 head 1 block 1 row 1", True),
        ("layer 2 row 2", "layer 2 head 1 block 1 row 2", True),
        ("last layer", "last layer row 1", True),
        ("layer 1 key", "layer 1 query", False),
        ("layer 2", "layer 1 row 2", False),
        ("layer 1", "layer 11", False),
        ("layer 1 head 1 block 2", "layer 1 head 2 block 1", False),
    ],
)
def test_what_a_label_leaves_out_is_the_first(first, second, same):
    assert (row_key(first) == row_key(second)) == same


def test_entries_that_no_label_tells_apart_are_refused_with_the_field():
    with pytest.raises(ValueError, match=r"rank cannot be swept: .* labels signal, signal do not tell them apart"):
        common_rows([["signal"], ["signal", "signal"]], ["rank"])
    assert [index_name(("layer 1",), i) for i in range(2)] == ["layer 1", "index 2"]


def test_wrong_number_of_labels_is_refused(monkeypatch):
    monkeypatch.setattr(Layered, "index_labels", lambda self: ["layer 1", "layer 2"][: self.rank])
    with pytest.raises(ValueError, match="'overlap' has 2 entries along 'index', its problem has labels for 1"):
        solve(PROBLEM, alpha=1.0, layers=2, rank=[1, 2])


def test_interrupted_sweep_is_resumed_with_every_number_in_its_place(tmp_path):
    Layered.patience[0] = 1
    with pytest.warns(RuntimeWarning, match="interrupted"):
        part = solve(PROBLEM, alpha=1.0, layers=2, rank=[1, 2])
    Layered.patience[0] = 100
    np.testing.assert_array_equal(diagonal(part.overlap), [ROWS[0], 4 * [np.nan]])
    part.save(tmp_path / "part.nc")
    assert load(tmp_path / "part.nc").index_label.values.tolist() == LABELS
    Layered.solved.clear()
    whole = solve(PROBLEM, alpha=1.0, layers=2, rank=[1, 2], resume=tmp_path / "part.nc")
    assert Layered.solved == [(2, 2)]
    np.testing.assert_array_equal(diagonal(whole.overlap), ROWS)


@pytest.mark.parametrize("patience", [1, 100])
def test_numbers_without_labels_are_not_taken_for_those_of_other_rows(patience):
    Layered.patience[0] = patience
    swept: dict[str, Any] = {"alpha": 1.0, "layers": 2, "rank": [1, 2]}
    with warnings.catch_warnings(action="ignore"):  # that it was interrupted
        earlier = solve(PROBLEM, **swept)
    Layered.patience[0] = 100
    earlier.ds = earlier.ds.drop_vars(["index_label", "index_other_label"])
    with pytest.raises(ValueError, match=r"labels along index and index_other.*earlier version.*computed anew"):
        solve(PROBLEM, **swept, resume=earlier)
    # Where all points have the same rows the position tells them.
    plain = solve(PROBLEM, alpha=1.0, rank=2)
    plain.ds = plain.ds.drop_vars(["index_label", "index_other_label"])
    Layered.solved.clear()
    assert solve(PROBLEM, alpha=1.0, rank=2, resume=plain).index_label.values.tolist() == LABELS[:2]
    assert Layered.solved == []


def test_bias_is_that_of_every_point_and_theory_is_put_into_the_rows_of_the_experiment():
    theory = solve(PROBLEM, alpha=[1.0, 2.0], layers=2, rank=[1, 2])
    runs = simulate(PROBLEM, Biased(), alpha=[2.0, 1.0], layers=2, rank=[1, 2], dim=10, seeds=2)
    found = compare(theory, runs)
    np.testing.assert_allclose(diagonal(found.ds.overlap_theory), [2 * ROWS, ROWS], rtol=1e-12)
    np.testing.assert_allclose(found.ds.overlap_mean, found.ds.overlap_theory, rtol=1e-12)
    assert runs.overlap.dims == found.ds.overlap_mean.expand_dims("seed", 2).dims
    assert "index_label" not in found.table()
    Layered.solved.clear()
    for rank in (1, 2):
        small = simulate(Layered(2, rank), Biased(), alpha=1.0, dim=10, seeds=2)
        found = compare(theory, small).ds
        own = Layered(2, rank)
        assert found.index_label.values.tolist() == own.index_labels()
        np.testing.assert_allclose(diagonal(found.overlap_theory), own.values(), rtol=1e-12)
        np.testing.assert_allclose(found.overlap_mean, found.overlap_theory, rtol=1e-12)
    assert Layered.solved == []


def test_only_the_other_ranks_are_solved_anew():
    theory = solve(PROBLEM, alpha=1.0, layers=2, rank=[1])
    runs = simulate(PROBLEM, Biased(), alpha=1.0, layers=2, rank=[1, 2], dim=10, seeds=2)
    Layered.solved.clear()
    found = compare(theory, runs).ds
    assert Layered.solved == [(2, 2)]
    np.testing.assert_allclose(diagonal(found.overlap_theory), ROWS, rtol=1e-12)


def test_dynamics_are_put_into_the_rows_of_the_experiment():
    runs = simulate(PROBLEM, Biased(), alpha=1.0, layers=2, rank=[1, 2], dim=10, seeds=2)
    theory = solve(PROBLEM, alpha=1.0, layers=2, rank=[1, 2])
    for chosen, expected in ((runs, ROWS), (runs.sel(rank=[1]), ROWS[:1])):
        found = compare(theory, chosen, by="iteration").ds
        np.testing.assert_allclose(diagonal(found.overlap_theory.isel(iteration=1)), expected, rtol=1e-12)
        np.testing.assert_allclose(found.overlap_mean, found.overlap_theory, rtol=1e-12)


@dataclass(frozen=True)
class Joint(Layered):
    """Needs as many layers as rows, so that fields can be changed only together."""

    def __post_init__(self) -> None:
        if self.layers < self.rank:
            raise ValueError(f"layers must be at least rank, got {self.layers} and {self.rank}")


def test_fields_of_a_point_are_set_together():
    theory = solve(Joint(), alpha=1.0, rank=[2, 1], layers=[2, 3])
    runs = simulate(Joint(), Biased(), alpha=1.0, rank=[2, 1], layers=[2, 3], dim=10, seeds=2)
    found = compare(theory, runs).ds
    assert found.overlap_mean.dims == theory.overlap.dims
    np.testing.assert_allclose(found.overlap_mean, found.overlap_theory, rtol=1e-12)


def test_a_field_that_fits_together_with_a_grid_only_loses_no_result():
    result = solve(Joint(), alpha=1.0, rank=2, layers=[2, 3])
    assert np.isfinite(diagonal(result.overlap.sel(layers=3))).all()
    assert solve(Joint(), alpha=1.0, rank=[1, 2], layers=[2, 3]).sel(rank=2).overlap.sizes["layers"] == 2


@dataclass(frozen=True)
class Forgetful(Layered):
    """Follows the overlap only at rank one, and its trace always."""

    def trace(self, **options: Any) -> Mapping[str, np.ndarray]:
        overlap = super().trace(**options)["overlap"]
        total = {"total": overlap.sum((1, 2))}
        return total | ({"overlap": overlap} if self.rank == 1 else {})


@dataclass(frozen=True)
class Summed(Biased):
    """Records the sum of all overlaps too."""

    def run_points(self, *args: Any, **options: Any) -> Iterator:
        for i, j, outcome in super().run_points(*args, **options):
            total = outcome.values["overlap_trace"].sum((1, 2))
            yield i, j, Outcome({**outcome.values, "total_trace": total})


@pytest.mark.parametrize("ranks", [[1, 2], [2, 1]])
def test_dynamics_are_compared_in_what_all_points_follow(ranks):
    problem = Forgetful(layers=2)
    runs = simulate(problem, Summed(), alpha=1.0, rank=ranks, dim=10, seeds=2)
    found = compare(solve(problem, alpha=1.0, rank=ranks), runs, by="iteration")
    assert found.names == ("total",)
    np.testing.assert_allclose(found.ds.total_theory.isel(iteration=0).sel(rank=[1, 2]), [3.2, 6.6], rtol=1e-12)


@dataclass(frozen=True)
class HighRankOnly(Biased):
    """Runs only at a rank above one, and is followed only there."""

    def check(self, problem: Any) -> None:
        if problem.rank == 1:
            raise ValueError("rank must be above one, got 1")

    def trace_options(self, problem: Any) -> Mapping[str, Any]:
        self.check(problem)
        return super().trace_options(problem)


def test_algorithm_is_asked_about_what_it_runs_on_and_not_about_the_base():
    options: dict[str, Any] = {"alpha": 1.0, "dim": 10, "seeds": 2}
    assert simulate(PROBLEM, HighRankOnly(), rank=2, **options).ok
    runs = simulate(PROBLEM, HighRankOnly(), rank=[2, 3], **options)
    found = compare(solve(PROBLEM, alpha=1.0, rank=[2, 3]), runs, by="iteration")
    assert found.ds.overlap_theory.sizes["rank"] == 2
    for refused in ({}, {"rank": 1}, {"rank": [2, 1]}, {"layers": [1, 2]}):
        with pytest.raises(ValueError, match="rank must be above one"):
            simulate(PROBLEM, HighRankOnly(), **refused, **options)
