"""What goes wrong with a store or in a chunk is said, costs that chunk, and leaves no trace once it is mended."""

import contextlib
import errno
import json
import os
import random
import shutil
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import xarray as xr

import asymptotix as asx
from asymptotix.core.status import Status
from asymptotix.sweeps.chunk_work import work_on
from asymptotix.sweeps.executors.submitting import Submitting
from asymptotix.sweeps.leases import Lease
from asymptotix.sweeps.sweep_store import FOLDERS, SweepStore, is_whole
from faults.file_faults import with_flipped_bit
from sweeps.sweep_toys import ALPHAS, OVER, PROBLEM, TROUBLED, log_of, troubles
from toy import ToyLearning

assert_identical = xr.testing.assert_identical
CURVE = {"alpha": ALPHAS}
FAILED = r"{} of {} chunks failed \(TypeError: no such thing\); retry_failed=True tries them again"


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A store to which nothing happened, and what it collects."""
    folder = tmp_path_factory.mktemp("finished") / "store"
    return folder, asx.sweep(PROBLEM, over=OVER, store=folder, chunk=1).ds


@pytest.fixture
def trouble():
    """Where the theory raises, to be healed by emptying it."""
    yield troubles
    troubles.clear()


class TestFailures:
    def test_a_chunk_that_raises_costs_itself(self, store, tmp_path, trouble):
        whole = asx.sweep(TROUBLED, over=CURVE, store=tmp_path / "healthy", chunk=1).ds
        trouble[0.5] = TypeError("no such thing")
        with pytest.warns(RuntimeWarning, match=FAILED.format(1, 3)):
            ds = asx.sweep(TROUBLED, over=CURVE, store=store, chunk=1).ds
        assert list(ds["status_code"].values == Status.FAILED.code) == [False, True, False]
        assert str(ds["status"].sel(alpha=0.5).values) == "failed: TypeError: no such thing"
        assert_identical(ds.sel(alpha=[0.25, 1.5]), whole.sel(alpha=[0.25, 1.5]))
        standing = asx.sweep_status(store)
        assert (len(standing.done), len(standing.failed)) == (2, 1)
        assert standing.messages == {standing.failed[0]: "TypeError: no such thing"}
        assert "TypeError: no such thing" in str(standing)

        trouble.clear()
        with pytest.warns(RuntimeWarning, match=FAILED.format(1, 3)):
            again = asx.sweep(TROUBLED, over=CURVE, store=store, chunk=1).ds
        assert_identical(again, ds)  # what failed stays so until it is asked for
        healed = asx.sweep(TROUBLED, over=CURVE, store=store, chunk=1, retry_failed=True).ds
        assert_identical(healed, whole)
        assert len(log_of(store)) == 3
        assert not asx.sweep_status(store).failed

    def test_an_error_of_the_system_in_a_chunk_is_of_the_chunk(self, store, trouble):
        """A theory that reads a file which is not there ends its chunk, not the sweep."""
        trouble[0.5] = FileNotFoundError(errno.ENOENT, "no such table", "table.txt")
        with pytest.warns(RuntimeWarning, match="1 of 3 chunks failed"):
            ds = asx.sweep(TROUBLED, over=CURVE, store=store, chunk=1).ds
        assert "no such table" in str(ds["status"].sel(alpha=0.5).values)
        assert len(log_of(store)) == 2

    def test_a_retry_leaves_the_failures_of_other_parts(self, store, trouble):
        trouble[0.5] = TypeError("no such thing")
        with pytest.warns(RuntimeWarning, match=FAILED.format(1, 3)):
            asx.sweep(TROUBLED, over=CURVE, store=store, chunk=1, part="first")
        with pytest.warns(RuntimeWarning, match=FAILED.format(1, 1)):
            asx.sweep(TROUBLED, over={"noise": [0.5], "alpha": [0.5]}, store=store, chunk=1, part="second")
        assert len(asx.sweep_status(store).failed) == 2
        trouble.clear()
        asx.sweep(TROUBLED, over=CURVE, store=store, chunk=1, part="first", retry_failed=True)
        assert len(asx.sweep_status(store).failed) == 1

    def test_what_failed_elsewhere_is_not_tried_here(self, store, trouble):
        """Between the plan of a driver and its turn another had the chunk, and it failed."""
        trouble[0.5] = TypeError("no such thing")
        with pytest.warns(RuntimeWarning, match=FAILED.format(1, 3)):
            asx.sweep(TROUBLED, over=CURVE, store=store, chunk=1)
        failed = next(chunk for chunk in SweepStore(store).plan() if chunk.values == (0.5,))
        assert work_on(str(store), failed.to_json()) == (failed.name, "failed")
        assert len(log_of(store, "failed")) == 1

    def test_a_point_that_fails_is_no_measure_of_the_others(self, store, trouble):
        """It took no time; a chunk of ten thousand such points would be all of the sweep."""
        trouble |= dict.fromkeys(ALPHAS[:2], TypeError("no such thing"))
        with pytest.warns(RuntimeWarning, match=FAILED.format(2, 4)):
            asx.sweep(TROUBLED, over={"alpha": [*ALPHAS, 2.0]}, store=store)
        assert [len(chunk.values) for chunk in SweepStore(store).plan()] == [1, 1, 1, 1]

    def test_a_chunk_that_killed_every_worker(self, store):
        """As an executor says it of one of its futures: a row that failed, and the others stand."""

        class Killed(Exception):
            pass

        def submit(function, path, line, given):
            future = Future()
            if line["values"] == [0.5]:
                future.set_exception(Killed("three workers"))
            else:
                future.set_result(function(path, line, given))
            return future

        asx.sweep(PROBLEM, over=CURVE, store=store, chunk=1)
        for path in (store / "chunks").iterdir():
            path.unlink()
        lines = [chunk.to_json() for chunk in SweepStore(store).plan()]
        ended = dict(Submitting(submit, 2, killing=(Killed,)).run(str(store), lines, {"theory": (PROBLEM, None)}))
        assert sorted(ended.values()) == ["computed", "computed", "failed"]
        assert list(asx.sweep_status(store).messages.values()) == ["Killed: three workers"]

    def test_threads_that_raise(self, store, trouble):
        trouble[0.5] = TypeError("no such thing")
        with ThreadPoolExecutor(2) as executor, pytest.warns(RuntimeWarning, match=FAILED.format(1, 3)):
            ds = asx.sweep(TROUBLED, over=CURVE, store=store, chunk=1, executor=executor).ds
        assert list(ds["status_code"].values == Status.FAILED.code) == [False, True, False]


def truncated(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def flipped(data: bytes, rng: random.Random) -> bytes:
    return with_flipped_bit(data, rng.randrange(8 * len(data)))


def lengthened(data: bytes, rng: random.Random) -> bytes:
    return data + b"\0" * 30


class TestDamage:
    @pytest.mark.parametrize("damage", [truncated, flipped, lengthened])
    def test_of_a_chunk(self, store, finished, damage):
        """Told on collecting, with no number of it shown; reported and computed anew by the next sweep."""
        shutil.copytree(finished[0], store)
        victim = store / "chunks" / f"{log_of(store)[2]}.nc"
        victim.write_bytes(damage(victim.read_bytes(), random.Random(5)))
        self._check_mended(store, finished[1], victim)

    def test_a_chunk_of_another_problem_in_its_place(self, store, tmp_path, finished):
        shutil.copytree(finished[0], store)
        asx.sweep(TROUBLED, over=OVER, store=tmp_path / "other", chunk=1)
        victim = store / "chunks" / f"{log_of(store)[2]}.nc"
        shutil.copy(next((tmp_path / "other" / "chunks").iterdir()), victim)
        self._check_mended(store, finished[1], victim)

    def test_another_chunk_of_the_same_sweep_in_its_place(self, store, finished):
        shutil.copytree(finished[0], store)
        names = log_of(store)
        victim = store / "chunks" / f"{names[2]}.nc"
        shutil.copy(store / "chunks" / f"{names[3]}.nc", victim)
        self._check_mended(store, finished[1], victim)

    def test_every_flipped_byte_is_found(self, finished):
        name = log_of(finished[0])[0]
        data = (finished[0] / "chunks" / f"{name}.nc").read_bytes()
        assert is_whole(data, name)
        rng = random.Random(1)
        places = [*range(len(data) - 150, len(data)), *(rng.randrange(len(data)) for _ in range(200))]
        assert [at for at in places if is_whole(with_flipped_bit(data, 8 * at + rng.randrange(8)), name)] == []
        assert [cut for cut in range(1, 200) if is_whole(data[:-cut], name)] == []

    @staticmethod
    def _check_mended(store: Path, whole: xr.Dataset, victim: Path) -> None:
        codes = asx.collect(store).ds["status_code"].values
        assert (codes == Status.FAILED.code).sum() == 1
        with pytest.warns(RuntimeWarning, match=f"1 chunks of .*{victim.stem}.* computed anew"):
            found = asx.sweep(PROBLEM, over=OVER, store=store, chunk=1)
        assert_identical(found.ds, whole)
        assert_identical(asx.collect(store).ds, whole)
        assert len(log_of(store)) == 7
        assert [path.name for path in (store / "damaged").iterdir()] == [victim.name]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            asx.sweep(PROBLEM, over=OVER, store=store, chunk=1)
        assert len(log_of(store)) == 7

    def test_of_the_plan(self, store, finished):
        shutil.copytree(finished[0], store)
        plan = next((store / "plan").iterdir())
        plan.write_bytes(plan.read_bytes()[:-30])
        for call in (asx.collect, asx.sweep_status):
            with pytest.raises(ValueError, match=f"{plan.name} is damaged: remove it"):
                call(store)
        plan.unlink()
        assert_identical(asx.sweep(PROBLEM, over=OVER, store=store, chunk=1).ds, finished[1])
        assert len(log_of(store)) == 6  # the same chunks, all of them there

    def test_of_the_log(self, store, finished):
        """A line that was cut off by a kill costs itself only."""
        shutil.copytree(finished[0], store)
        log = store / "log.jsonl"
        lines = log.read_bytes().splitlines(keepends=True)[:6]
        log.write_bytes(b"".join(lines)[:-20] + b"\n\xff\xfe{]\n[1]\n")
        assert len(log_of(store)) == 5
        assert len(asx.sweep_status(store).done) == 6
        assert_identical(asx.collect(store).ds, finished[1])


class TestPlaces:
    def test_a_file_in_the_way(self, store):
        store.write_text("mine")
        with pytest.raises(ValueError, match=f"new or empty folder or one of a sweep, got {store}"):
            asx.sweep(PROBLEM, over=OVER, store=store)
        assert store.read_text() == "mine"
        with pytest.raises(OSError, match=f"store {store / 'below'} cannot be made"):
            asx.sweep(PROBLEM, over=OVER, store=store / "below")

    def test_a_folder_of_something_else(self, store):
        store.mkdir()
        (store / "thesis.tex").write_text("mine")
        with pytest.raises(ValueError, match="new or empty folder"):
            asx.sweep(PROBLEM, over=OVER, store=store)
        assert [path.name for path in store.iterdir()] == ["thesis.tex"]

    def test_a_link_to_a_folder(self, store, tmp_path, finished):
        (tmp_path / "far").mkdir()
        store.symlink_to(tmp_path / "far")
        assert_identical(asx.sweep(PROBLEM, over=OVER, store=store, chunk=1).ds, finished[1])
        assert store.is_symlink()
        assert_identical(asx.collect(tmp_path / "far").ds, finished[1])

    def test_a_link_to_nothing(self, store, tmp_path):
        store.symlink_to(tmp_path / "nowhere")
        with pytest.raises(
            OSError, match=f"store {store} cannot be made: it is a link to a folder that does not exist"
        ):
            asx.sweep(PROBLEM, over=OVER, store=store)
        assert os.listdir(tmp_path) == [store.name]

    def test_one_that_is_removed_while_it_is_worked_on(self, store, monkeypatch):
        solve_points = ToyLearning.solve_points

        def removing(*args, **options):
            shutil.rmtree(store)
            return solve_points(*args, **options)

        monkeypatch.setattr(ToyLearning, "solve_points", removing)
        with pytest.raises(FileNotFoundError, match=f"{store}.* cannot be written: there is no folder {store}"):
            asx.sweep(PROBLEM, over=OVER, store=store, chunk=1)
        assert not store.exists()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_folder_that_is_read_only(self, tmp_path):
        tmp_path.chmod(0o500)
        with pytest.raises(OSError, match="cannot be made"):
            asx.sweep(PROBLEM, over=OVER, store=tmp_path / "store")

    @pytest.mark.parametrize("made", [0, 3, len(FOLDERS)])
    def test_a_store_that_was_only_begun(self, store, made):
        """Its maker was killed, or is a second driver that is at it now."""
        store.mkdir()
        for name in FOLDERS[:made]:
            (store / name).mkdir()
        (store / ".sweep.json.0123456789abcdef.partial").write_text("{")
        found = asx.sweep(PROBLEM, over={"alpha": 0.5}, store=store, chunk=1)
        assert_identical(found.ds, asx.solve(PROBLEM, alpha=0.5, progress=False).ds)

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "new"}'])
    def test_a_marker_that_says_nothing(self, store, finished, text):
        shutil.copytree(finished[0], store)
        (store / "sweep.json").write_text(text)
        with pytest.raises(ValueError, match=r"sweep\.json is damaged"):
            asx.collect(store)

    def test_a_newer_format(self, store, finished):
        shutil.copytree(finished[0], store)
        (store / "sweep.json").write_text(json.dumps({"format": 7, "asymptotix": "9.9"}))
        for call in (asx.collect, asx.sweep_status, lambda path: asx.sweep(PROBLEM, over=OVER, store=path)):
            with pytest.raises(ValueError, match=r"format 7, written by asymptotix 9\.9.* up to 1: upgrade"):
                call(store)


@contextlib.contextmanager
def full_disk(monkeypatch, number: int):
    """The system refuses one write: the one of this number."""
    write, count = os.write, iter(range(10**6))

    def writing(file, data):
        if next(count) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", writing)
        yield


class TestFullDisks:
    @pytest.mark.parametrize("number", range(6))
    def test_at_any_write(self, store, finished, monkeypatch, number):
        """Marker, part, order, plan, a chunk, its line in the log: it is said where, and the next call goes on."""
        with full_disk(monkeypatch, number), pytest.raises(OSError, match=f"{store}.*cannot be written") as caught:
            asx.sweep(PROBLEM, over=OVER, store=store, chunk=3)
        assert caught.value.errno == errno.ENOSPC
        assert not [path for folder in FOLDERS for path in (store / folder).glob(".*")]  # nothing half-written is left
        assert not list((store / "claims").iterdir())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = asx.sweep(PROBLEM, over=OVER, store=store, chunk=3)
        assert_identical(found.ds, finished[1])
        assert len(list((store / "chunks").iterdir())) == 2

    def test_no_room_for_a_claim(self, store, finished, monkeypatch):
        def full(self):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(Lease, "_text", full)
            with pytest.raises(OSError, match=f"{store / 'claims'}.* cannot be claimed: No space left") as caught:
                asx.sweep(PROBLEM, over=OVER, store=store, chunk=3)
        assert caught.value.errno == errno.ENOSPC
        assert_identical(asx.sweep(PROBLEM, over=OVER, store=store, chunk=3).ds, finished[1])
