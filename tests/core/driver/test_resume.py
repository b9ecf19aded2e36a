"""An interrupted call goes on where it stopped, and gives what an uninterrupted one gives."""

import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.core.problem import Algorithm, Outcome, Problem
from asymptotix.core.result import load
from asymptotix.core.verbs import simulate, solve
from toy import ToyLearning, ToyRegression, ToyRun


@dataclass(frozen=True)
class Slow(Problem):
    """x = 10 alpha; is interrupted after as many points as `patience` says."""

    shift: float = 0.0
    controls = ("alpha",)
    patience: ClassVar[list[int]] = [100]
    worked: ClassVar[list[float]] = []

    def solve_points(self, points, *, start, tolerance, progress) -> Iterator[tuple[int, Outcome]]:
        for i, point in enumerate(points):
            spend(point["alpha"])
            yield i, Outcome({"x": 10 * point["alpha"] + self.shift})


def spend(what: float) -> None:
    if Slow.patience[0] == 0:
        raise KeyboardInterrupt
    Slow.patience[0] -= 1
    Slow.worked.append(what)


@dataclass(frozen=True)
class Walk(Algorithm):
    """A random walk of `steps` steps, the parts of which can be handed over."""

    steps: int = 4
    needs_dim = False

    def dimensions(self, problem):
        return {"walk": ("step",)}

    def run_points(self, problem, points, *, dim, seeds, progress):
        yield from self.resume_points(problem, points, dim=dim, seeds=seeds, earlier={}, progress=progress)

    def resume_points(self, problem, points, *, dim, seeds, earlier, progress):
        for i in range(len(points)):
            for j, seed in enumerate(seeds):
                before = np.asarray(earlier.get((i, j), {}).get("walk", []), float)
                walk = list(before[~np.isnan(before)])
                try:
                    while len(walk) < self.steps:
                        spend(seed)
                        walk.append(100.0 * seed + len(walk))
                except KeyboardInterrupt:
                    status = f"interrupted after {len(walk)} of {self.steps} steps"
                    if walk:
                        yield i, j, Outcome({"walk": walk}, status, converged=False)
                    raise
                yield i, j, Outcome({"walk": walk, "end": walk[-1]})


@dataclass(frozen=True)
class Whole(Walk):
    """The same for an algorithm that only knows whole runs."""

    def resume_points(self, problem, points, *, dim, seeds, earlier, progress):
        yield from super().resume_points(problem, points, dim=dim, seeds=seeds, earlier={}, progress=progress)


@pytest.fixture(autouse=True)
def endless_patience():
    Slow.patience[0] = 10**6
    Slow.worked.clear()


def interrupted_after(count, verb, *args, **options):
    Slow.patience[0] = count
    with pytest.warns(RuntimeWarning, match="interrupted"):
        part = verb(*args, progress=False, **options)
    Slow.patience[0] = 10**6
    Slow.worked.clear()
    return part


def test_solved_points_are_not_solved_again():
    part = interrupted_after(2, solve, Slow(), alpha=[1.0, 2.0, 3.0])
    assert part.converged.values.tolist() == [True, True, False]
    whole = solve(Slow(), alpha=[1.0, 2.0, 3.0], resume=part, progress=False)
    assert Slow.worked == [3.0]
    np.testing.assert_array_equal(whole.x, [10, 20, 30])
    assert whole.ok


def test_a_run_goes_on_in_the_middle(tmp_path):
    part = interrupted_after(6, simulate, Slow(), Walk(), alpha=[1.0], seeds=3)
    assert part.status.values[0].tolist() == [
        "converged",
        "interrupted after 2 of 4 steps",
        "interrupted before this point",
    ]
    part.save(tmp_path / "part.nc")
    whole = simulate(Slow(), Walk(), alpha=[1.0], seeds=3, resume=tmp_path / "part.nc", progress=False)
    assert Slow.worked == [1, 1, 2, 2, 2, 2]
    np.testing.assert_array_equal(whole.walk, simulate(Slow(), Walk(), alpha=[1.0], seeds=3, progress=False).walk)
    assert whole.ok
    assert load(tmp_path / "part.nc").ds.sizes["step"] == 4


def test_runs_that_are_finished_go_to_the_algorithm_with_the_others_of_their_point():
    """What a chain says may rest on the others, so that a point is worked on as a whole; none of it is repeated."""
    part = interrupted_after(13, simulate, Slow(), Walk(), alpha=[1.0, 2.0], seeds=2)
    given = []

    @dataclass(frozen=True)
    class Watched(Walk):
        runs_together = True

        def resume_points(self, problem, points, *, earlier, **options):
            given.append((len(points), sorted(earlier)))
            yield from super().resume_points(problem, points, earlier=earlier, **options)

    part.algorithm = Watched()
    assert simulate(Slow(), Watched(), alpha=[1.0, 2.0], seeds=2, resume=part, progress=False).ok
    assert given == [(1, [(0, 0), (0, 1)])]  # the second point only: its first run is finished, the other is not
    assert Slow.worked == [1, 1, 1]


def test_interrupted_twice():
    part = interrupted_after(2, simulate, Slow(), Walk(), alpha=[1.0, 2.0], seeds=2)
    again = interrupted_after(3, simulate, Slow(), Walk(), alpha=[1.0, 2.0], seeds=2, resume=part)
    assert again.walk.notnull().sum() == 5
    third = interrupted_after(0, simulate, Slow(), Walk(), alpha=[1.0, 2.0], seeds=2, resume=again)
    assert third.walk.notnull().sum() == 5  # nothing that was there is lost
    whole = simulate(Slow(), Walk(), alpha=[1.0, 2.0], seeds=2, resume=third, progress=False)
    assert len(Slow.worked) == 11
    assert whole.ok


def test_algorithm_of_whole_runs_repeats_the_points_that_are_not_complete():
    part = interrupted_after(5, simulate, Slow(), Whole(), alpha=[1.0, 2.0], seeds=1)
    whole = simulate(Slow(), Whole(), alpha=[1.0, 2.0], seeds=1, resume=part, progress=False)
    assert len(Slow.worked) == 4
    assert whole.ok


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"problem": Slow(shift=1.0)}, "same problem, got one that differs in shift"),
        ({"algorithm": Walk(5)}, "same algorithm, got one that differs in steps"),
        ({"alpha": [2.0, 3.0]}, r"points in common with this call: alpha is \[1.\] there and \[2. 3.\] here"),
        ({"seeds": [7, 8]}, r"points in common with this call: seed is \[0 1\] there and \[7 8\] here"),
    ],
)
def test_other_work_is_refused(options, message):
    part = interrupted_after(2, simulate, Slow(), Walk(), alpha=[1.0], seeds=2)
    now = {"problem": Slow(), "algorithm": Walk(), "alpha": [1.0], "seeds": 2} | options
    with pytest.raises(ValueError, match=message):
        simulate(**now, resume=part, progress=False)


@pytest.mark.parametrize("saved", [False, True])
def test_a_grid_is_widened_and_only_the_rest_is_run(saved, tmp_path):
    before = solve(Slow(), alpha=[1.0, 3.0], progress=False)
    if saved:
        before.save(tmp_path / "before.nc")
    Slow.worked.clear()
    now = solve(Slow(), alpha=[0.5, 1.0, 2.0, 3.0], resume=tmp_path / "before.nc" if saved else before, progress=False)
    assert Slow.worked == [0.5, 2.0]
    np.testing.assert_array_equal(now.x, [5, 10, 20, 30])
    assert now.ok


@pytest.mark.parametrize("saved", [False, True])
def test_a_number_becomes_a_grid(saved, tmp_path):
    """A control, and a field that the first call did not even name."""
    before = solve(Slow(shift=2.0), alpha=1.0, progress=False)
    if saved:
        before.save(tmp_path / "before.nc")
    Slow.worked.clear()
    resume = tmp_path / "before.nc" if saved else before
    now = solve(Slow(), alpha=[1.0, 2.0], shift=[0.0, 2.0], resume=resume, progress=False)
    assert sorted(Slow.worked) == [1.0, 2.0, 2.0]
    np.testing.assert_array_equal(now.x, [[10, 12], [20, 22]])
    one = solve(Slow(shift=2.0), alpha=2.0, resume=now, progress=False)  # and a grid a number again
    assert len(Slow.worked) == 3
    assert one.x.item() == 22


def test_seeds_and_sizes_are_added():
    toy = ToyLearning(ToyRegression(indices=2))
    few = simulate(toy, ToyRun(), alpha=[0.5], dim=100, seeds=2, progress=False)
    more = simulate(toy, ToyRun(), alpha=[0.5, 0.7], dim=[100, 200], seeds=[1, 0, 5], resume=few, progress=False)
    whole = simulate(toy, ToyRun(), alpha=[0.5, 0.7], dim=[100, 200], seeds=[1, 0, 5], progress=False)
    for name in ("overlap", "test_error", "status_code"):
        np.testing.assert_array_equal(more[name], whole[name])


def test_seeds_that_are_there_are_not_run_again():
    few = simulate(Slow(), Walk(), alpha=[1.0, 2.0], seeds=[3], progress=False)
    Slow.worked.clear()
    more = simulate(Slow(), Walk(), alpha=[1.0, 2.0], seeds=[3, 4], resume=few, progress=False)
    assert Slow.worked == [4] * 8
    assert more.ok


@pytest.mark.parametrize("saved", [False, True])
def test_neighbouring_seeds_are_different_points(saved, tmp_path):
    """They differ in the tenth digit; of a fraction such a digit would be rounding."""
    last = 2**32 - 1
    few = simulate(Slow(), Walk(), alpha=[1.0], seeds=[last - 1], progress=False)
    if saved:
        few.save(tmp_path / "few.nc")
    Slow.worked.clear()
    resume = tmp_path / "few.nc" if saved else few
    more = simulate(Slow(), Walk(), alpha=[1.0], seeds=[last, last - 1], resume=resume, progress=False)
    assert Slow.worked == [last] * 4
    np.testing.assert_array_equal(more.end, [[100.0 * last + 3, 100.0 * (last - 1) + 3]])


@dataclass(frozen=True)
class SlowAndScaled(Slow):
    """With a number that need not be set."""

    scale: float | None = None


def test_a_field_that_is_not_set_has_no_point_in_common_with_a_grid_of_it():
    unset = solve(SlowAndScaled(), alpha=[1.0], progress=False)
    swept = solve(SlowAndScaled(), alpha=[1.0], scale=[2.0, 3.0], progress=False)
    with pytest.raises(ValueError, match=r"scale is nan there and \[2. 3.\] here"):
        solve(SlowAndScaled(), alpha=[1.0], scale=[2.0, 3.0], resume=unset, progress=False)
    with pytest.raises(ValueError, match=r"scale is \[2. 3.\] there and nan here"):
        solve(SlowAndScaled(), alpha=[1.0], resume=swept, progress=False)


def test_field_given_as_a_number(tmp_path):
    """The result's own problem has the field set; the one given to the verb has not."""
    part = interrupted_after(1, solve, Slow(), alpha=[1.0, 2.0], shift=5.0)
    part.save(tmp_path / "part.nc")
    for resume in (part, tmp_path / "part.nc"):
        whole = solve(Slow(), alpha=[1.0, 2.0], shift=5.0, resume=resume, progress=False)
        np.testing.assert_array_equal(whole.x, [15, 25])
    assert Slow.worked == [2.0, 2.0]
    toy = ToyLearning(ToyRegression(indices=2))
    first = solve(toy, alpha=[0.5], noise=0.3, progress=False)  # a field of the model inside
    assert solve(toy, alpha=[0.5], noise=0.3, resume=first, progress=False).ds.equals(first.ds)
    with pytest.raises(ValueError, match=r"differs in model\.noise"):
        solve(toy, alpha=[0.5], noise=0.4, resume=first, progress=False)


def test_other_settings_are_refused():
    part = interrupted_after(1, solve, Slow(), alpha=[1.0, 2.0])
    with pytest.raises(ValueError, match="same settings, got one that differs in tolerance"):
        solve(Slow(), alpha=[1.0, 2.0], tolerance=1e-6, resume=part, progress=False)


def test_resume_must_be_a_result():
    with pytest.raises(TypeError, match="resume must be a Result or the path"):
        solve(Slow(), alpha=1.0, resume=3, progress=False)  # type: ignore[arg-type]


def test_example_keeps_what_an_interrupt_leaves_and_stops(monkeypatch, tmp_path):
    main = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "depth_three.py"))["main"]
    interrupted, whole = [], solve(Slow(), alpha=[0.5])

    def verb(name: str):
        def call(*args, **options):
            if name not in interrupted:
                return whole
            return whole._with(whole.ds[["converged", "status"]].assign(status_code=("alpha", ["not_reached"])))

        return call

    for name in ("solve", "simulate", "thresholds"):
        monkeypatch.setattr(asx, name, verb(name))
    monkeypatch.chdir(tmp_path)
    for name, left in (("solve", ["theory"]), ("simulate", ["gamp", "theory"]), ("thresholds", ["gamp", "theory"])):
        interrupted[:] = [name]
        with pytest.raises(SystemExit, match="interrupted; called again"):
            main()
        assert sorted(path.stem.removeprefix("depth_three_") for path in tmp_path.iterdir()) == left
