"""Claims hold while their owner lives, whatever clocks say, and one of several gets a dead one."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import asymptotix as asx
from asymptotix.sweeps import leases
from asymptotix.sweeps.leases import Lease, Watch, read_claim, this_machine
from asymptotix.sweeps.sweep_store import SweepStore
from sweeps.sweep_toys import ALPHAS, PROBLEM, log_of

LEASE = 60.0


class Clock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(leases.time, "monotonic", clock)
    return clock


@pytest.fixture
def path(tmp_path):
    return tmp_path / "claim"


def foreign(path: Path, beat: int = 0, token: str = "theirs") -> None:
    """A claim as another machine writes it."""
    told = {"token": token, "beat": beat, "machine": "elsewhere", "process": 1, "begun": "1", "seconds": LEASE}
    path.write_text(json.dumps(told))


def claimed(path: Path, seconds: float = LEASE) -> Lease:
    lease = Watch().claim(path, seconds)
    assert lease is not None
    return lease


def of_dead_process(path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    told = {
        "token": "dead",
        "beat": 3,
        "machine": this_machine(),
        "process": process.pid,
        "begun": "1",
        "seconds": LEASE,
    }
    path.write_text(json.dumps(told))


class TestOnThisMachine:
    def test_a_living_claim_is_respected(self, path, clock):
        with claimed(path) as lease:
            assert lease.is_held()
            assert Watch().claim(path) is None
            assert not Watch().frees(path)
            assert lease.is_held()
        assert not path.exists()
        with claimed(path):
            pass

    def test_that_of_a_dead_process_is_taken_at_once(self, path, clock):
        of_dead_process(path)
        with claimed(path) as lease:
            assert lease.is_held()

    def test_that_of_a_zombie_too(self, path, clock):
        """Killed, and not waited for: its number is still there."""
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            told = {"machine": this_machine(), "process": process.pid, "begun": leases._begun(process.pid)}
            path.write_text(json.dumps({"token": "its", "beat": 0, "seconds": LEASE, **told}))
            assert Watch().claim(path) is None
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still a zombie
            assert Watch().claim(path) is not None
        finally:
            process.kill()
            process.communicate()

    def test_a_number_that_was_given_to_another_process(self, path, clock):
        told = {"token": "old", "beat": 0, "machine": this_machine(), "process": os.getpid(), "begun": "1"}
        path.write_text(json.dumps({**told, "seconds": LEASE}))
        assert Watch().claim(path) is not None

    def test_a_lost_claim_is_not_removed_by_its_former_owner(self, path, clock):
        with claimed(path):
            foreign(path)
        assert (read_claim(path) or {})["token"] == "theirs"


class TestOfAnotherMachine:
    def test_it_is_dead_when_it_did_not_change_for_a_lease(self, path, clock):
        foreign(path)
        watch = Watch()
        assert watch.claim(path) is None  # first seen
        clock.now += LEASE
        assert watch.claim(path) is None  # not longer than it
        clock.now += 0.1
        assert Watch().claim(path) is None  # who sees it for the first time knows nothing
        assert watch.claim(path) is not None

    def test_heartbeats_keep_it(self, path, clock):
        watch = Watch()
        for beat in range(20):
            foreign(path, beat)
            assert watch.claim(path) is None
            clock.now += 0.9 * LEASE
        clock.now += 0.2 * LEASE
        assert watch.claim(path) is not None

    def test_a_new_owner_keeps_it(self, path, clock):
        foreign(path)
        watch = Watch()
        assert watch.claim(path) is None
        clock.now += 2 * LEASE
        foreign(path, token="another")
        assert watch.claim(path) is None

    @pytest.mark.parametrize("jump", [-3600.0, 1e9])
    def test_no_wall_clock_makes_a_difference(self, path, clock, monkeypatch, jump):
        foreign(path)
        watch, real = Watch(), time.time
        assert watch.claim(path) is None
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        stamp = max(real() + jump, 1.0)
        os.utime(path, (stamp, stamp))
        clock.now += LEASE
        assert watch.claim(path) is None
        os.utime(path, (stamp + 50, stamp + 50))
        clock.now += 0.1
        assert watch.claim(path) is not None

    @pytest.mark.parametrize("text", ["", "{", "[1, 2]"])
    def test_a_file_that_is_no_claim(self, path, clock, text):
        path.write_text(text)
        watch = Watch()
        assert watch.claim(path) is None
        clock.now += leases.LEASE_SECONDS + 0.1
        assert watch.claim(path) is not None


class TestOneWins:
    def test_two_watches_of_a_dead_claim(self, path, clock):
        foreign(path)
        watches = [Watch(), Watch()]
        assert [watch.claim(path) for watch in watches] == [None, None]
        clock.now += LEASE + 1
        won = [watch.claim(path) for watch in watches]
        assert won[0] is not None
        assert won[1] is None
        assert won[0].is_held()

    def test_who_decided_too_late_gives_back_what_is_not_dead(self, path, clock, monkeypatch):
        """Between his look at a dead claim and its removal another removed it and holds one of his own."""
        of_dead_process(path)
        late, winner = Watch(), Lease(path)
        removed = leases._removed

        def slowly(*arguments):
            path.unlink()
            assert winner.create()
            return removed(*arguments)

        monkeypatch.setattr(leases, "_removed", slowly)
        assert late.claim(path) is None
        assert winner.is_held()

    def test_many_at_the_same_time(self, path):
        """Of a dead claim, by threads that start together: one at most, every time."""
        for _ in range(30):
            of_nobody = {"token": "dead", "beat": 0, "machine": this_machine(), "process": 2**22 + 1, "seconds": LEASE}
            path.write_text(json.dumps(of_nobody))
            barrier, won = threading.Barrier(4), []

            def contend(barrier=barrier, won=won):
                watch = Watch()
                barrier.wait()
                won.append(watch.claim(path))

            threads = [threading.Thread(target=contend) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sum(lease is not None and lease.is_held() for lease in won) <= 1
            path.unlink(missing_ok=True)


def without_links(monkeypatch, number=errno.EPERM):
    """A file system that has no hard links."""

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)


class TestWithoutHardLinks:
    """exFAT, SMB and many FUSE mounts."""

    @pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
    def test_a_claim_is_held_and_let_go(self, path, clock, monkeypatch, number):
        without_links(monkeypatch, number)
        with claimed(path) as lease:
            assert lease.is_held()
            assert Watch().claim(path) is None
        assert not path.exists()

    def test_one_of_many_gets_a_claim(self, path, monkeypatch):
        without_links(monkeypatch)
        for _ in range(30):
            barrier, won = threading.Barrier(4), []

            def contend(barrier=barrier, won=won):
                barrier.wait()
                won.append(Watch().claim(path))

            threads = [threading.Thread(target=contend) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            (lease,) = [one for one in won if one is not None]
            assert lease.is_held()
            lease.release()

    def test_who_decided_too_late_gives_it_back(self, path, clock, monkeypatch):
        without_links(monkeypatch)
        foreign(path)
        assert not leases._removed(path, {"token": "dead"})
        assert (read_claim(path) or {})["token"] == "theirs"

    def test_a_full_disk_leaves_no_empty_claim(self, path, monkeypatch):
        without_links(monkeypatch)

        def full(_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Path, "read_bytes", full)
        with pytest.raises(OSError, match="cannot be claimed: No space left"):
            Lease(path).create()
        assert not path.exists()

    def test_a_sweep(self, tmp_path, monkeypatch):
        without_links(monkeypatch)
        assert asx.sweep(PROBLEM, over={"alpha": ALPHAS}, store=tmp_path / "store", chunk=2).finished


class TestSignsOfLife:
    def test_a_lease_renews_itself(self, path):
        with claimed(path, seconds=0.08):
            watch, until, seen = Watch(), time.monotonic() + 0.6, set()
            while time.monotonic() < until:
                seen.add((read_claim(path) or {}).get("beat"))
                time.sleep(0.01)
        assert len(seen - {None}) >= 3  # a loaded machine may skip some of 30
        assert watch.claim(path) is not None

    def test_a_disk_that_is_full_costs_a_beat(self, path, monkeypatch):
        lease, failures = claimed(path, seconds=0.04), []
        text = lease._text

        def full():
            if len(failures) < 3:
                failures.append(1)
                raise OSError("full")
            return text()

        monkeypatch.setattr(lease, "_text", full)
        with lease:
            until = time.monotonic() + 10
            while (read_claim(path) or {}).get("beat", 0) == 0 and time.monotonic() < until:
                time.sleep(0.01)
            assert (read_claim(path) or {})["beat"] > len(failures) == 3


class TestLettingGo:
    def test_who_is_told_to_end_leaves_no_claim(self, path, clock):
        with claimed(path):
            leases.let_go()
            assert not path.exists()
            foreign(path)
            leases.let_go()
        assert (read_claim(path) or {})["token"] == "theirs"

    def test_files_of_killed_writers_are_removed_by_the_next_driver(self, tmp_path, monkeypatch):
        """By the clock of the file system, and none that may belong to a living one."""
        store = tmp_path / "store"
        asx.sweep(PROBLEM, over={"alpha": ALPHAS}, store=store, chunk=9)
        left = [store / "claims" / name for name in (".0123.claim", ".4567.dead")]
        for path in left:
            path.write_text("{")
        os.utime(left[0], (1.0, 1.0))  # a move leaves the age of its contents, and says when it was made
        asx.sweep(PROBLEM, over={"alpha": ALPHAS}, store=store, chunk=9)
        assert sorted((store / "claims").iterdir()) == left
        monkeypatch.setattr(leases, "LEASE_SECONDS", -1.0)
        asx.sweep(PROBLEM, over={"alpha": ALPHAS}, store=store, chunk=9)
        assert not list((store / "claims").iterdir())


class TestInASweep:
    def test_what_another_holds_is_waited_for_and_taken_when_it_dies(self, tmp_path, monkeypatch):
        """Also by a pool, whose workers are too young to have seen the claim before."""
        store = tmp_path / "store"
        monkeypatch.setattr("asymptotix.sweeps.sweeping.SECONDS_BETWEEN_LOOKS", 0.01)
        asx.sweep(PROBLEM, over={"alpha": ALPHAS}, store=store, chunk=1)
        victim = log_of(store)[1]
        kept = SweepStore(store)
        kept.chunk_path(victim).unlink()
        executor, beats = YoungWorkers(), iter(range(5))

        def beat(*_):
            """A sign of life whenever the sweep says that it waits; after five there are no more."""
            told = {"machine": "elsewhere", "token": "theirs", "beat": next(beats, 4), "seconds": 0.1}
            kept.claim_path(victim).write_text(json.dumps(told))

        beat()
        monkeypatch.setattr("asymptotix.core.progress.Progress.message", beat)
        assert asx.sweep_status(store).running == [victim]
        found = asx.sweep(PROBLEM, over={"alpha": ALPHAS}, store=store, chunk=1, executor=executor)
        assert found.finished
        assert executor.submitted == [victim]  # not before the claim was dead
        assert len(log_of(store)) == 4


class YoungWorkers:
    """An executor whose workers have just been born whenever they get work."""

    def __init__(self) -> None:
        self.submitted: list[str] = []

    def submit(self, function, store, line, given):
        from concurrent.futures import Future

        from asymptotix.sweeps import chunk_work

        self.submitted.append(line["name"])
        chunk_work._watch = Watch()
        future = Future()
        future.set_result(function(store, line, given))
        return future
