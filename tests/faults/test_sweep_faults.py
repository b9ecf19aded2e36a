"""Processes of a sweep that are killed or told to end: nothing is lost or wrong, and the next goes on."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import asymptotix as asx
from asymptotix.sweeps.sweep_store import SweepStore

if os.name != "posix":
    pytest.skip("signals and process groups are those of POSIX", allow_module_level=True)

TESTS = Path(__file__).parents[1]
#: A loaded machine takes its time to start a process; a healthy one is done in a tenth of it.
PATIENCE = 60.0

#: A theory of its own package, slow enough to be caught at work. Every begun chunk leaves a line.
SLOW_THEORY = """
import os, time
from dataclasses import dataclass
from toy import ToyLearning, ToyRegression

@dataclass(frozen=True)
class SlowLearning(ToyLearning):
    def solve_points(self, points, **told):
        for point in points:
            with open(os.environ["SLOW_BEGUN"], "a") as file:
                file.write(f"{os.getpid()} {point['alpha']}\\n")
            time.sleep(float(os.environ["SLOW_SECONDS"]))
            if point["alpha"] == float(os.environ.get("SLOW_DEADLY", "nan")):
                os._exit(3)
        yield from super().solve_points(points, **told)

PROBLEM = SlowLearning(ToyRegression(indices=2, noise=0.125))
"""

DRIVER = """
import json, signal, sys, warnings
signal.signal(signal.SIGINT, signal.default_int_handler)  # one that a shell's background ignores would be ignored here
import asymptotix as asx
from slow_theory import PROBLEM

if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    found = asx.sweep(PROBLEM, over={"alpha": told["alphas"]}, store=told["store"], chunk=1, executor=told["executor"])
    print("finished" if found.finished else "unfinished", flush=True)
"""


class Laboratory:
    """A folder with a slow theory and its driver, and the processes that run it."""

    def __init__(self, folder: Path, seconds: float, points: int) -> None:
        self.folder, self.store, self.begun = folder, folder / "store", folder / "begun.txt"
        self.alphas = [round(0.05 * k, 2) for k in range(1, points + 1)]
        (folder / "slow_theory.py").write_text(textwrap.dedent(SLOW_THEORY))
        (folder / "driver.py").write_text(textwrap.dedent(DRIVER))
        source = str(Path(asx.__file__).parents[1])
        self.environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join([source, str(TESTS), str(folder)]),
            "SLOW_SECONDS": str(seconds), "SLOW_BEGUN": str(self.begun), "PYTHONWARNINGS": "always::RuntimeWarning",
        }  # fmt: skip

    @contextmanager
    def driver(self, executor: Any = None, *, reverse: bool = False, held: bool = False) -> Iterator[subprocess.Popen]:
        """A driver in a group of its own, after its imports; whatever of the group is left at the end is killed.

        One that is ``held`` begins when it is let :func:`go`.
        """
        alphas = self.alphas[::-1] if reverse else self.alphas
        told = {"store": str(self.store), "executor": executor, "alphas": alphas}
        command = [sys.executable, str(self.folder / "driver.py"), json.dumps(told)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=self.environment, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n", process.communicate(timeout=PATIENCE)
                if not held:
                    go(process)
                yield process
            finally:
                for left in living(process.pid):
                    os.kill(left, signal.SIGKILL)

    def finish(self, executor: Any = None) -> str:
        """Run a driver to its end; what it said on standard error."""
        with self.driver(executor) as process:
            said, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, said) == (0, "finished\n"), errors
        return errors

    def computed(self) -> list[str]:
        return [line["chunk"] for line in SweepStore(self.store).log() if line.get("ended") == "computed"]

    def chunks(self) -> int:
        return len(list((self.store / "chunks").glob("*.nc"))) if self.store.exists() else 0

    def begun_by(self) -> list[int]:
        """Processes that began a chunk, in that order."""
        return [int(line.split()[0]) for line in self.begun.read_text().splitlines()] if self.begun.exists() else []

    def begun_at(self) -> list[float]:
        """Points that were begun, in that order."""
        return [float(line.split()[1]) for line in self.begun.read_text().splitlines()]

    def check_identical(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """To a sweep that nothing happened to, and no file is damaged."""
        monkeypatch.syspath_prepend(self.folder)
        monkeypatch.delitem(sys.modules, "slow_theory", raising=False)
        monkeypatch.setenv("SLOW_SECONDS", "0")
        monkeypatch.setenv("SLOW_BEGUN", os.devnull)
        from slow_theory import PROBLEM  # pyright: ignore[reportMissingImports]

        asx.sweep(PROBLEM, over={"alpha": self.alphas}, store=self.folder / "undisturbed", chunk=1)
        xr.testing.assert_identical(asx.collect(self.store).ds, asx.collect(self.folder / "undisturbed").ds)
        assert not list((self.store / "damaged").iterdir())
        assert sorted(path.name for path in (self.store / "chunks").glob("[!.]*")) == sorted(
            path.name for path in (self.folder / "undisturbed" / "chunks").iterdir()
        )


@pytest.fixture
def laboratory(tmp_path) -> Callable[..., Laboratory]:
    return lambda seconds=0.1, points=12: Laboratory(tmp_path, seconds, points)


def go(process: subprocess.Popen) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def living(group: int) -> list[int]:
    """Processes of a group that live: a zombie, which only waits to be counted, does not."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            told = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(told[2]) == group and told[0] not in "ZX":
            found.append(int(place.parent.name))
    return found


def wait_until(condition: Callable[[], Any], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"waited in vain until {what}"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_drivers_killed_at_random_moments(laboratory, monkeypatch, seed):
    """Twenty in all, with other numbers of workers and the other way round: together they do it once."""
    lab, rng = laboratory(seconds=0.05, points=30), random.Random(seed)
    for turn in range(10):
        executor, begun = rng.choice([None, None, 1, 2]), len(lab.begun_by())
        with lab.driver(executor, reverse=bool(turn % 2)) as process:
            if turn % 3:  # at work, however long a loaded machine takes until then; else maybe before its first chunk
                wait_until(lambda n=begun: len(lab.begun_by()) > n or process.poll() is not None, "it begins or ends")
            time.sleep(rng.uniform(0.0, 0.15 if turn % 3 else 0.5))
            process.kill()
            process.wait()
            wait_until(lambda group=process.pid: not living(group), "the workers of a killed driver end")
    assert len(set(lab.begun_by())) >= 5  # at least so many processes were killed at work, not before or after it
    lab.finish(2)
    lab.check_identical(monkeypatch)
    # A driver that dies between keeping a chunk and its line in the log leaves no line; nothing is computed twice.
    assert max(Counter(lab.computed()).values()) == 1


@pytest.mark.slow
def test_a_worker_of_a_pool_killed_in_a_chunk(laboratory, monkeypatch):
    lab = laboratory(seconds=0.5, points=6)
    with lab.driver(2) as process:
        wait_until(lambda: len(set(lab.begun_by())) == 2, "both workers are at a chunk")
        os.kill(lab.begun_by()[-1], signal.SIGKILL)
        said, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, said) == (0, "finished\n"), errors
    assert "a worker of the pool died; the pool is started anew" in errors
    lab.check_identical(monkeypatch)
    assert len(lab.computed()) == len(set(lab.computed())) == 6
    assert len(lab.begun_by()) > 6  # the one that was lost was begun again


@pytest.mark.slow
def test_a_chunk_that_kills_its_worker_every_time(laboratory, monkeypatch):
    """It becomes a row that failed, and costs no other chunk its result or a second blame."""
    lab = laboratory(seconds=0.3, points=5)
    lab.environment["SLOW_DEADLY"] = str(lab.alphas[0])
    with lab.driver(2) as process:
        said, errors = process.communicate(timeout=2 * PATIENCE)
    assert (process.returncode, said) == (0, "finished\n"), errors
    assert "1 of 5 chunks failed (its worker died 3 times" in errors
    told = asx.sweep_status(lab.store)
    assert (len(told.done), len(told.failed), told.left, told.running) == (4, 1, [], [])
    assert Counter(lab.begun_at())[lab.alphas[0]] == 3
    del lab.environment["SLOW_DEADLY"]
    lab.finish(2)  # it stays so until it is asked for
    assert len(asx.sweep_status(lab.store).failed) == 1


@pytest.mark.slow
def test_workers_that_cannot_begin(laboratory):
    """Such as those of a script that has no guard: that is said, with what to do, and soon."""
    lab = laboratory(seconds=0.0, points=2)
    script = lab.folder / "driver.py"
    script.write_text(script.read_text().replace('if __name__ == "__main__":', "if True:"))
    with lab.driver(2) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert 'must call sweep(executor=...) below if __name__ == "__main__":' in errors
    assert lab.chunks() == 0


@pytest.mark.slow
def test_a_worker_told_to_end(laboratory, monkeypatch):
    """By whoever watches the memory, say: that is no signal to the driver, whose sweep goes on."""
    lab = laboratory(seconds=0.5, points=4)
    with lab.driver(2) as process:
        wait_until(lambda: len(set(lab.begun_by())) == 2, "both workers are at a chunk")
        os.kill(lab.begun_by()[-1], signal.SIGTERM)
        said, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said) == (0, "finished\n"), errors
    lab.check_identical(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("executor", [None, 2])
def test_two_drivers_at_once(laboratory, monkeypatch, executor):
    lab = laboratory(seconds=0.1, points=12)
    with lab.driver(held=True) as second, lab.driver(executor, reverse=True) as first:
        wait_until(lab.begun_by, "the first is at work")
        go(second)
        for process in (first, second):
            said, errors = process.communicate(timeout=PATIENCE)
            assert (process.returncode, said) == (0, "finished\n"), errors
    lab.check_identical(monkeypatch)
    assert len(lab.begun_by()) == len(lab.computed()) == len(set(lab.computed())) == 12
    assert second.pid in lab.begun_by()  # both worked
    assert set(lab.begun_by()) > {second.pid}


@pytest.mark.slow
def test_drivers_that_make_the_store_at_the_same_time(laboratory, monkeypatch):
    lab = laboratory(seconds=0.0, points=3)
    with lab.driver(held=True) as first, lab.driver(held=True) as second, lab.driver(held=True) as third:
        for process in (first, second, third):
            go(process)
        for process in (first, second, third):
            said, errors = process.communicate(timeout=PATIENCE)
            assert (process.returncode, said) == (0, "finished\n"), errors
    lab.check_identical(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("executor", [None, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("whole_group", [False, True])
def test_a_driver_told_to_end(laboratory, monkeypatch, executor, number, whole_group):
    """It returns what is there, in the middle of a grid, leaves nobody behind, and the next goes on."""
    lab = laboratory(seconds=0.2, points=10)
    with lab.driver(executor) as process:
        wait_until(lambda: lab.chunks() >= 2, "two chunks are done")
        (os.killpg if whole_group else os.kill)(process.pid, number)
        told = time.monotonic()
        said, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, said) == (0, "unfinished\n"), errors
        # The chunks that run now are brought to their end, and those that a pool has taken in advance.
        assert time.monotonic() - told < 10
        wait_until(lambda: not living(process.pid), "all processes of the driver end")
    done = lab.chunks()
    assert 2 <= done < 10
    if not whole_group:  # workers of a group that is told to end leave what they hold, for whom comes next
        assert not list((lab.store / "claims").glob("[!.]*"))
    lab.finish()
    assert lab.chunks() == 10
    assert len(set(lab.computed())) == len(lab.computed())
    # A worker that ends at once between keeping a chunk and its line in the log leaves no line.
    assert len(lab.computed()) == 10 or (whole_group and executor)
    lab.check_identical(monkeypatch)


class TestDask:
    """A scheduler and two workers of one thread each, on this machine."""

    @staticmethod
    @contextmanager
    def cluster(lab: Laboratory) -> Iterator[tuple[str, subprocess.Popen]]:
        """Its scheduler's address and process; whatever of it is left at the end is killed."""
        pytest.importorskip("distributed", reason="dask.distributed is an extra")
        quiet = {**lab.environment, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s"}
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
        place = lab.folder / "scheduler.json"
        begun: dict[str, Any] = {"env": quiet, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        scheduler = subprocess.Popen([*command, "--no-dashboard", "--scheduler-file", str(place)], **begun)
        worker = [
            sys.executable,
            "-m",
            "distributed.cli.dask_worker",
            "--scheduler-file",
            str(place),
            "--nthreads",
            "1",
        ]
        options = ["--memory-limit", "0", "--no-dashboard", "--no-nanny", "--death-timeout", "10"]
        processes = [scheduler]
        try:
            wait_until(place.exists, "the scheduler says its address")
            processes += [subprocess.Popen([*worker, *options], **begun, cwd=lab.folder) for _ in range(2)]
            yield json.loads(place.read_text())["address"], scheduler
        finally:
            for process in processes:
                process.kill()
                process.wait()

    @pytest.mark.slow
    def test_computes_the_same(self, laboratory, monkeypatch):
        lab = laboratory(seconds=0.1, points=8)
        with self.cluster(lab) as (address, _):
            lab.finish(address)
        assert len(set(lab.begun_by())) == 2
        assert len(lab.computed()) == len(set(lab.computed())) == 8
        lab.check_identical(monkeypatch)

    @pytest.mark.slow
    def test_a_scheduler_that_dies_is_named_and_the_next_call_needs_none(self, laboratory, monkeypatch):
        lab = laboratory(seconds=0.3, points=12)
        with self.cluster(lab) as (address, scheduler), lab.driver(address) as process:
            wait_until(lambda: lab.chunks() >= 2, "two chunks are done")
            scheduler.kill()
            said, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1, (said, errors)
        assert f"RuntimeError: the Dask scheduler {address} was lost" in errors, errors
        assert lab.chunks() < 12
        lab.finish()
        lab.check_identical(monkeypatch)
