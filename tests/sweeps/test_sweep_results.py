"""A sweep gives what its verb gives, does what is missing and nothing else, and says what cannot be."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import asymptotix as asx
from asymptotix.core.status import Status
from asymptotix.sweeps import planning, sweep_store
from asymptotix.sweeps.sweep_store import SweepStore, merged_order
from asymptotix.sweeps.sweeping import _only_here
from sweeps.sweep_toys import ALPHAS, OVER, PROBLEM, RUN, ToyOfTwoControls, ToyWithFunction, log_of, undisturbed
from toy import ToyLearning, ToyRegression

SIZES: dict[str, Any] = {"dim": [100, 200], "seeds": 3}
assert_identical = xr.testing.assert_identical


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


class TestEqualsTheVerb:
    @pytest.mark.parametrize("chunk", [1, 2, None])
    def test_theory(self, store, chunk):
        found = asx.sweep(PROBLEM, over=OVER, store=store, chunk=chunk)
        verb = asx.solve(PROBLEM, progress=False, **OVER)
        assert_identical(found.ds, verb.ds)
        assert (found.kind, found.problem, found.settings) == (verb.kind, verb.problem, verb.settings)

    @pytest.mark.parametrize("chunk", [2, 3, None])
    def test_experiment(self, store, chunk):
        over: dict[str, Any] = {"noise": 0.25, "alpha": [0.5, 1.0]}
        found = asx.sweep(PROBLEM, over=over, algorithm=RUN, store=store, chunk=chunk, **SIZES)
        verb = asx.simulate(PROBLEM, RUN, progress=False, **SIZES, **over)
        # The toy's trace is shorter for every other seed of a call, so that it depends on blocks of seeds.
        drop = [] if chunk == 3 else ["overlap_trace"]
        assert_identical(found.ds.drop_vars(drop), verb.ds.drop_vars(drop))

    def test_thresholds(self, store):
        over: dict[str, Any] = {"noise": [0.0, 0.125, 0.5], "weight_decay": [0.0, 1.0]}
        found = asx.sweep(PROBLEM, over=over, store=store, thresholds=True, chunk=2)
        assert_identical(found.ds, asx.thresholds(PROBLEM, progress=False, **over).ds)

    def test_an_index_that_grows(self, store):
        over: dict[str, Any] = {"indices": [1, 2, 3], "alpha": [0.5, 1.0]}
        found = asx.sweep(PROBLEM, over=over, store=store, chunk=2)
        assert_identical(found.ds, asx.solve(PROBLEM, progress=False, **over).ds)

    def test_thresholds_of_the_problem_as_it_is(self, store):
        found = asx.sweep(PROBLEM, over={}, store=store, thresholds=True, chunk=1)
        assert_identical(found.ds, asx.thresholds(PROBLEM, progress=False).ds)

    @pytest.mark.parametrize("over", [{"noise": 0.25, "alpha": [0.5, 1.0]}, {"noise": [0.0, 0.25], "alpha": 0.5}])
    def test_a_number_is_no_dimension(self, store, over):
        found = asx.sweep(PROBLEM, over=over, store=store, chunk=1)
        assert_identical(found.ds, asx.solve(PROBLEM, progress=False, **over).ds)

    def test_a_number_after_the_grid_among_fields(self, store):
        over: dict[str, Any] = {"noise": [0.0, 0.25], "weight_decay": 0.5}
        found = asx.sweep(PROBLEM, over=over, store=store, thresholds=True, chunk=1)
        assert_identical(found.ds, asx.thresholds(PROBLEM, progress=False, **over).ds)

    @pytest.mark.parametrize("over", [{"alpha": ALPHAS, "ratio": 0.5}, {"alpha": 0.5, "ratio": ALPHAS}])
    def test_a_number_among_controls(self, store, over):
        problem = ToyOfTwoControls(ToyRegression())
        found = asx.sweep(problem, over=over, store=store, chunk=2)
        assert_identical(found.ds, asx.solve(problem, progress=False, **over).ds)

    def test_one_size_is_no_dimension(self, store):
        sizes: dict[str, Any] = {"dim": np.int64(100), "seeds": np.array([0, 1])}
        found = asx.sweep(PROBLEM, over={"alpha": 0.5}, algorithm=RUN, store=store, chunk=2, **sizes)
        assert_identical(found.ds, asx.simulate(PROBLEM, RUN, dim=100, seeds=2, alpha=0.5, progress=False).ds)

    def test_threads_of_an_executor(self, store):
        with ThreadPoolExecutor(2) as executor:
            found = asx.sweep(PROBLEM, over=OVER, store=store, chunk=2, executor=executor)
        assert_identical(found.ds, asx.solve(PROBLEM, progress=False, **OVER).ds)
        assert len(log_of(store)) == len(set(log_of(store))) == 4

    def test_threads_that_sweep_one_store(self, store, monkeypatch):
        monkeypatch.setattr(planning, "SECONDS_BETWEEN_LOOKS", 0.01)
        with ThreadPoolExecutor(3) as threads:
            for found in threads.map(lambda _: asx.sweep(PROBLEM, over=OVER, store=store, chunk=1), range(3)):
                assert_identical(found.ds, asx.solve(PROBLEM, progress=False, **OVER).ds)
        assert len(log_of(store)) == len(set(log_of(store))) == 6

    def test_a_store_that_another_finishes_just_now(self, store, monkeypatch):
        looked = sweep_store._is_begun

        def finished_after_the_first_look(folder):
            monkeypatch.setattr(sweep_store, "_is_begun", looked)
            asx.sweep(PROBLEM, over=OVER, store=store)
            return looked(folder)

        store.mkdir()
        monkeypatch.setattr(sweep_store, "_is_begun", finished_after_the_first_look)
        assert SweepStore(store, create=True).plan() == SweepStore(store).plan()

    @pytest.mark.parametrize("own", [True, False])
    def test_a_client_is_closed_by_whom_opened_it(self, store, monkeypatch, own):
        pytest.importorskip("distributed", reason="dask.distributed is an extra")
        client = OneThreadOfDask()
        monkeypatch.setattr("asymptotix.sweeps.executors.executor_choice.client_of", lambda _: client)
        executor = "tcp://127.0.0.1:8786" if own else client
        found = asx.sweep(PROBLEM, over={"alpha": ALPHAS}, store=store, chunk=9, executor=executor)
        assert found.finished
        assert client.closed == own
        assert client.asked == {"n_workers": -1}  # of all: some versions tell of five only

    def test_options_reach_the_verb(self, store):
        found = asx.sweep(PROBLEM, over={"alpha": ALPHAS}, store=store, chunk=2, start=np.eye(2), tolerance=1e-2)
        assert found.settings["tolerance"] == 1e-2
        np.testing.assert_array_equal(found.settings["start"], np.eye(2))


class TestGrowing:
    def test_second_call_does_nothing(self, store):
        first = asx.sweep(PROBLEM, over=OVER, store=store, chunk=2)
        log = (store / "log.jsonl").read_bytes()
        files = sorted(path.name for path in (store / "plan").iterdir())
        assert_identical(asx.sweep(PROBLEM, over=OVER, store=store, chunk=3).ds, first.ds)
        assert (store / "log.jsonl").read_bytes() == log
        assert sorted(path.name for path in (store / "plan").iterdir()) == files

    @pytest.mark.parametrize(
        ("wider", "more"),
        [
            ({"noise": [0.0, 0.125], "alpha": [*ALPHAS, 2.0]}, 2),
            ({"noise": [0.0, 0.0625, 0.125], "alpha": [0.125, *ALPHAS]}, 6),
        ],
    )
    def test_a_wider_grid_costs_what_is_new(self, store, wider, more):
        asx.sweep(PROBLEM, over=OVER, store=store, chunk=1)
        found = asx.sweep(PROBLEM, over=wider, store=store, chunk=1)
        assert len(log_of(store)) == 6 + more
        assert_identical(found.ds, asx.solve(PROBLEM, progress=False, **wider).ds)

    def test_more_seeds_and_sizes(self, store):
        over: dict[str, Any] = {"alpha": [0.5, 1.0]}
        asx.sweep(PROBLEM, over=over, algorithm=RUN, store=store, dim=[100], seeds=2, chunk=1)
        asx.sweep(PROBLEM, over=over, algorithm=RUN, store=store, dim=[100], seeds=3, chunk=1)
        assert len(log_of(store)) == 4 + 2
        found = asx.sweep(PROBLEM, over=over, algorithm=RUN, store=store, dim=[100, 50], seeds=3, chunk=1)
        assert len(log_of(store)) == 6 + 6
        verb = asx.simulate(PROBLEM, RUN, dim=[100, 50], seeds=3, alpha=[0.5, 1.0], progress=False)
        assert_identical(found.ds.drop_vars("overlap_trace"), verb.ds.drop_vars("overlap_trace"))

    def test_the_order_is_that_of_the_call(self, store):
        for alphas in ([1.5, 0.5], [1.5, 0.25, 0.5]):
            found = asx.sweep(PROBLEM, over={"alpha": alphas}, store=store, chunk=9)
            assert_identical(found.ds, asx.solve(PROBLEM, alpha=alphas, progress=False).ds)

    @pytest.mark.parametrize(
        ("known", "asked", "merged"),
        [
            ([], [3, 1, 2], [3, 1, 2]),
            ([1, 3], [3, 2, 1], [3, 2, 1]),  # who asks for all says the order
            ([3, 2, 1], [1, 2], [3, 2, 1]),  # who asks for less does not
            ([2, 4], [1, 3], [1, 2, 3, 4]),
            ([4, 2], [3, 1], [4, 3, 2, 1]),
            ([1, 3, 2], [5, 4], [1, 3, 2, 5, 4]),
        ],
    )
    def test_orders_of_several_calls(self, known, asked, merged):
        assert merged_order(known, asked) == merged

    def test_an_order_that_is_lost_costs_nothing_else(self, store):
        found = asx.sweep(PROBLEM, over={"noise": [0.125, 0.0], "alpha": ALPHAS}, store=store, chunk=9)
        for text in ("", "[1]", None):
            path = store / "parts" / "theory.order"
            path.unlink() if text is None else path.write_text(text)
            assert_identical(asx.collect(store).ds, found.ds.sortby("noise"))

    def test_a_number_that_becomes_a_grid(self, store):
        """The chunks of the first call go along alpha, those of the second along ratio."""
        problem = ToyOfTwoControls(ToyRegression())
        asx.sweep(problem, over={"alpha": ALPHAS, "ratio": 0.5}, store=store, chunk=2)
        wider: dict[str, Any] = {"alpha": ALPHAS, "ratio": [0.5, 1.0]}
        found = asx.sweep(problem, over=wider, store=store, chunk=2)
        assert_identical(found.ds, asx.solve(problem, progress=False, **wider).ds)
        assert sum(len(line["values"]) for line in planned_lines(store)) == 6  # nothing twice

    def test_a_narrower_grid_computes_nothing(self, store):
        whole = asx.sweep(PROBLEM, over=OVER, store=store, chunk=3)
        found = asx.sweep(PROBLEM, over={"noise": 0.0, "alpha": [0.5]}, store=store, chunk=1)
        assert len(log_of(store)) == 2
        assert_identical(found.ds, whole.ds)

    def test_chunks_have_their_size(self, store):
        asx.sweep(PROBLEM, over={"alpha": [0.1 * k for k in range(1, 12)]}, store=store, chunk=3)
        assert sorted(len(line["values"]) for line in planned_lines(store)) == [2, 3, 3, 3]

    def test_seeds_are_cut_where_they_are_more_than_a_chunk(self, store):
        asx.sweep(PROBLEM, over={"alpha": [0.5, 1.0]}, algorithm=RUN, store=store, dim=100, seeds=5, chunk=2)
        sizes = [(len(line["values"]), len(line["seeds"])) for line in planned_lines(store)]
        assert sorted(sizes) == [(1, 1), (1, 1), (1, 2), (1, 2), (1, 2), (1, 2)]


class TestParts:
    def test_several_in_one_store(self, store):
        theory = asx.sweep(PROBLEM, over=OVER, store=store, chunk=2)
        asx.sweep(PROBLEM, over={"alpha": 0.5}, algorithm=RUN, store=store, dim=100, seeds=2)
        asx.sweep(PROBLEM, over={"noise": [0.0, 0.25]}, store=store, thresholds=True)
        assert_identical(asx.collect(store, part="theory").ds, theory.ds)
        assert asx.collect(store, part="experiment").kind == "experiment"
        assert asx.collect(store, part="thresholds").kind == "thresholds"
        with pytest.raises(ValueError, match=r"part must name one of .*experiment, theory, thresholds"):
            asx.collect(store)
        with pytest.raises(ValueError, match="no part 'other'; it has experiment, theory, thresholds"):
            asx.collect(store, part="other")

    def test_parts_that_overlap_share_chunks(self, store):
        first = asx.sweep(PROBLEM, over=OVER, store=store, part="first", chunk=2)
        second = asx.sweep(PROBLEM, over=OVER, store=store, part="second", chunk=2)
        assert_identical(second.ds, first.ds)
        assert len(log_of(store)) == len(asx.sweep_status(store).done) == 4

    @pytest.mark.parametrize("part", ["../outside", "a/b", "", ".hidden", 3])
    def test_a_name_that_is_none(self, store, part):
        with pytest.raises(ValueError, match="part must be a name"):
            asx.sweep(PROBLEM, over=OVER, store=store, part=part)
        assert not store.exists()


class TestRefusals:
    def test_another_problem(self, store):
        asx.sweep(PROBLEM, over={"alpha": ALPHAS}, store=store, chunk=5)
        log = (store / "log.jsonl").read_bytes()
        other = replace(PROBLEM, weight_decay=0.5)
        with pytest.raises(ValueError, match=r"problem\.weight_decay \(0\.0 there, 0\.5 here\)"):
            asx.sweep(other, over={"alpha": ALPHAS}, store=store, chunk=5)
        with pytest.raises(ValueError, match=r"options\.mapping\.tolerance"):
            asx.sweep(PROBLEM, over={"alpha": ALPHAS}, store=store, chunk=5, tolerance=0.1)
        assert (store / "log.jsonl").read_bytes() == log

    def test_another_array(self, store):
        asx.sweep(PROBLEM, over={"alpha": ALPHAS}, store=store, chunk=5, start=np.eye(2))
        with pytest.raises(ValueError, match="differs in arrays"):
            asx.sweep(PROBLEM, over={"alpha": ALPHAS}, store=store, chunk=5, start=2 * np.eye(2))

    def test_a_swept_field_may_have_another_value_in_the_problem(self, store):
        first = asx.sweep(PROBLEM, over=OVER, store=store, chunk=9)
        again = asx.sweep(ToyLearning(ToyRegression(noise=0.75)), over=OVER, store=store, chunk=9)
        assert_identical(first.ds, again.ds)

    def test_a_removed_store_leaves_no_memory(self, store, tmp_path):
        """Another sweep under the name of one that was removed is computed with its own problem."""
        first = replace(PROBLEM, weight_decay=0.5)
        asx.sweep(first, over=OVER, store=store, chunk=5)
        store.rename(tmp_path / "away")
        found = asx.sweep(PROBLEM, over=OVER, store=store, chunk=5)
        assert_identical(found.ds, asx.solve(PROBLEM, progress=False, **OVER).ds)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (
                {"tolerence": 1e-3},
                "'tolerence' is no option of a sweep that would solve; accepted are start, tolerance",
            ),
            ({"seeds": 3}, "dim and seeds belong to an algorithm"),
            ({"algorithm": RUN, "dim": 10}, "an algorithm needs seeds"),
            ({"executor": 2.5}, "executor must be None"),
            ({"over": [1.0]}, "over must be a mapping"),
            ({"over": {"alpa": [1.0]}}, "alpa"),
            ({"chunk": 0}, "chunk"),
        ],
    )
    def test_what_cannot_be_is_said(self, store, wrong, message):
        with pytest.raises((TypeError, ValueError), match=message):
            asx.sweep(PROBLEM, **{"over": OVER, "store": store, **wrong})
        assert not store.exists()  # and nothing was begun

    def test_what_a_file_cannot_hold_is_handed_over(self):
        assert _only_here(PROBLEM)  # a class of another package
        assert _only_here((1.0, {"losses": [abs]}))
        assert not _only_here(asx.BayesOptimal(asx.AttentionIndex(noise=0.5)))
        assert not _only_here(None)

    def test_a_function_must_come_from_the_caller(self, store):
        problem = ToyWithFunction(ToyRegression(), transform=abs)
        found = asx.sweep(problem, over={"alpha": [0.5]}, store=store, chunk=1)
        assert_identical(asx.collect(store, problem=problem).ds, found.ds)
        with pytest.raises(ValueError, match=r"function 'builtins\.abs' cannot be rebuilt"):
            asx.collect(store)


class TestCollecting:
    def test_while_it_is_not_done(self, store, tmp_path):
        whole = undisturbed(tmp_path)
        asx.sweep(PROBLEM, over=OVER, store=store, chunk=1)
        gone = [store / "chunks" / f"{name}.nc" for name in log_of(store)[::2]]
        for path in gone:
            path.unlink()
        ds = asx.collect(store).ds
        lacking = ds["status_code"].values == Status.NOT_REACHED.code
        assert lacking.sum() == len(gone) == 3
        assert set(ds["status"].values[lacking]) == {"not computed yet"}
        assert np.isnan(ds["test_error"].values[lacking]).all()
        np.testing.assert_array_equal(ds["test_error"].values[~lacking], whole["test_error"].values[~lacking])
        assert not asx.collect(store).finished
        standing = asx.sweep_status(store)
        assert (len(standing.done), len(standing.left), standing.running, standing.failed) == (3, 3, [], [])
        asx.sweep(PROBLEM, over=OVER, store=store, chunk=1)
        assert_identical(asx.collect(store).ds, whole)

    def test_pictures_while_it_is_not_done(self, store):
        """A curve through the points that are there, which is not said to be poor, and a map with empty cells."""
        whole = asx.sweep(PROBLEM, over=OVER, store=store, chunk=1)
        missing = [(0.0, (0.5,)), (0.125, (0.25,)), (0.125, (1.5,))]
        for chunk in SweepStore(store).plan():
            if (chunk.fixed["noise"], chunk.values) in missing:
                (store / "chunks" / f"{chunk.name}.nc").unlink()
        found = asx.collect(store)
        axes = found.sel(noise=0.0).plot("test_error")
        assert len(axes.lines) == 1
        line = axes.lines[0].get_xydata()
        there = whole.ds["test_error"].sel(noise=0.0, alpha=[0.25, 1.5])
        np.testing.assert_array_equal(line, np.column_stack([there["alpha"], there]))
        plt.close()
        cells = np.ma.masked_invalid(found.test_error.plot().get_array())
        assert np.argwhere(cells.mask).tolist() == [[0, 1], [1, 0], [1, 2]]
        np.testing.assert_array_equal(cells.compressed(), whole.ds["test_error"].values[~cells.mask])
        plt.close()

    def test_before_anything_is_planned(self, store):
        asx.sweep(PROBLEM, over=OVER, store=store, chunk=9)
        for path in [*(store / "plan").iterdir(), *(store / "chunks").iterdir()]:
            path.unlink()
        with pytest.raises(ValueError, match="nothing is planned yet"):
            asx.collect(store)

    def test_of_no_store(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="no store of a sweep"):
            asx.collect(tmp_path)
        with pytest.raises(FileNotFoundError, match="no store of a sweep"):
            asx.sweep_status(tmp_path / "nothing")

    def test_a_saved_collection_is_a_result(self, store, tmp_path):
        found = asx.sweep(PROBLEM, over=OVER, store=store, chunk=2)
        found.save(tmp_path / "all.nc")
        assert_identical(asx.load(tmp_path / "all.nc").ds, found.ds)


class OneThreadOfDask:
    """What a sweep asks of a client of Dask."""

    scheduler = SimpleNamespace(address="tcp://127.0.0.1:8786")
    closed = False

    def scheduler_info(self, **asked):
        self.asked = asked
        return {"workers": {"tcp://127.0.0.1:1": {"nthreads": 1, "memory_limit": 0}}}

    def get_executor(self, **_):
        return ThreadPoolExecutor(1)

    def close(self):
        self.closed = True


def planned_lines(store):
    return [json.loads(line) for file in (store / "plan").iterdir() for line in file.read_text().splitlines()]
