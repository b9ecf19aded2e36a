"""What can happen to a file of results, done to it: kills, flipped bits, truncation, full disks, several writers.

Run by hand with counts of your own; it prints a table and fails if anything wrong was loaded, anything finished was
lost or a process ended:

    python tests/faults/file_faults.py --kills 50 --bits 1000 --truncations 100 --seconds 10 --seed 0
"""

from __future__ import annotations

import argparse
import errno
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it finds the toy theory, as pytest does

import numpy as np

from asymptotix.core.result import Result, load
from asymptotix.core.verbs import solve
from toy import ToyLearning, ToyRegression

#: At most this long may a file be looked at; a healthy one takes 0.1 s.
PATIENCE = 30.0
FORK: Any = multiprocessing.get_context("fork")


def example(version: int = 0) -> Result:
    """A small result with all that a file holds: numbers, words, flags, coordinates, an array in its description."""
    problem = ToyLearning(ToyRegression(indices=2, noise=0.125 * version))
    return solve(problem, alpha=[0.5, 1.5], start=np.eye(2) + version, progress=False)


def same(first: Result, second: Result) -> bool:
    """Whether two results are one, as far as a file can tell."""
    return (
        first.ds.identical(second.ds)
        and (first.kind, first.problem, first.algorithm) == (second.kind, second.problem, second.algorithm)
        and first.provenance == second.provenance
        and first.settings.keys() == second.settings.keys()
        and all(np.array_equal(first.settings[name], second.settings[name]) for name in first.settings)
    )


def judged(path: Path, written: Sequence[Result]) -> str:
    """What loading a file came to: "identical" to one that was written, "refused" by name, or what must not be."""
    try:
        found = load(path)
    except ValueError as error:
        return "refused" if str(path) in str(error) else f"WRONG: {error}"
    except Exception as error:
        return f"WRONG: {type(error).__name__}: {error}"
    return "identical" if any(same(found, one) for one in written) else "WRONG: other numbers"


# ---------------------------------------------------------------------------------------------- damage


def with_flipped_bit(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def flipped_bits(folder: Path, count: int, rng: random.Random) -> Counter[str]:
    """Single flipped bits: refused, or without effect."""
    result, path, data = _saved(folder)
    bits = [rng.randrange(8 * len(data)) for _ in range(count)]

    def flip(bit: int) -> str:
        path.write_bytes(with_flipped_bit(data, bit))
        return judged(path, [result])

    return Counter(_in_children(flip, bits))


def truncations(folder: Path, count: int, rng: random.Random) -> Counter[str]:
    """Files that end too early: refused, unless only the seal is cut, which stands behind all the rest."""
    result, path, data = _saved(folder)
    lengths = [rng.randrange(len(data)) for _ in range(count)]

    def cut(length: int) -> str:
        path.write_bytes(data[:length])
        return judged(path, [result])

    return Counter(_in_children(cut, lengths))


def _saved(folder: Path) -> tuple[Result, Path, bytes]:
    result, path = example(), folder / "result.nc"
    result.save(path)
    return result, path, path.read_bytes()


def _in_children(work: Callable[[int], str], items: Iterable[int]) -> Iterator[str]:
    """The outcome of every item, worked on in a child: one that ends or hangs is an outcome too."""
    waiting = list(items)
    while waiting:
        here, there = FORK.Pipe(duplex=False)
        child = FORK.Process(target=lambda: [there.send(work(item)) for item in waiting], daemon=True)  # noqa: B023
        child.start()
        there.close()
        done = 0
        try:
            while done < len(waiting) and here.poll(PATIENCE):
                yield here.recv()
                done += 1
            if done < len(waiting):
                yield f"WRONG: hung at {waiting[done]}"
                done += 1
        except EOFError:
            child.join()
            yield f"WRONG: the process ended with {child.exitcode} at {waiting[done]}"
            done += 1
        child.kill()
        child.join()
        waiting = waiting[done:]


# ---------------------------------------------------------------------------------------------- kills


def kills(folder: Path, count: int, rng: random.Random) -> Counter[str]:
    """SIGKILL while a child saves over and over: the file stays one of those that were written."""
    path, versions = folder / "killed.nc", [example(0), example(1)]
    begun = time.perf_counter()
    with _slow_disk():
        versions[0].save(path)
    one_save = time.perf_counter() - begun
    outcomes = Counter()
    for _ in range(count):
        child = FORK.Process(target=_save_for_ever, args=(path, versions))
        child.start()
        time.sleep(rng.uniform(0.0, 2 * one_save))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        outcomes[judged(path, versions)] += 1
    left = [file for file in folder.iterdir() if file != path]
    outcomes[f"({len(left)} of them left a temporary file)"] += 0
    for file in left:
        os.utime(file, (time.time() - 7200, time.time() - 7200))
    versions[0].save(path)
    if remaining := [file.name for file in folder.iterdir() if file != path]:
        outcomes[f"WRONG: not swept up: {remaining}"] += 1
    return outcomes


def _save_for_ever(path: Path, versions: Sequence[Result]) -> None:
    """Most of a save is spent in memory; on a slow disk the moments of writing take as long."""
    with _slow_disk():
        for turn in range(10**6):
            versions[turn % 2].save(path)


@contextmanager
def _slow_disk() -> Iterator[None]:
    write, fsync, replace = os.write, os.fsync, os.replace

    def slowly(action: Callable, *arguments: object) -> object:
        time.sleep(0.02)
        return action(*arguments)

    with (
        mock.patch("os.write", lambda file, data: slowly(write, file, data[:1024])),
        mock.patch("os.fsync", lambda file: slowly(fsync, file)),
        mock.patch("os.replace", lambda *names: slowly(replace, *names)),
    ):
        yield


# ---------------------------------------------------------------------------------------------- full disks

MOMENTS = ("create", "first write", "middle", "sync", "rename")


@contextmanager
def disk_full_at(moment: str) -> Iterator[None]:
    """The system says that the disk is full when a save comes to a moment."""
    open_file, write, written = os.open, os.write, []

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def opening(name: Any, flags: int, *mode: int) -> int:
        return full() if flags & os.O_CREAT else open_file(name, flags, *mode)

    def writing(file: int, data: memoryview) -> int:
        if moment == "first write" or written:
            full()
        written.append(write(file, data[: len(data) // 2]))
        return written[-1]

    patches = {"create": ("os.open", opening), "sync": ("os.fsync", full), "rename": ("os.replace", full)}
    with mock.patch(*patches.get(moment, ("os.write", writing))):
        yield


def full_disk_outcome(folder: Path, moment: str) -> str:
    """Save over an older file with a disk that is full at a moment: "kept", or what must not be."""
    path, old, new = folder / "full.nc", example(0), example(1)
    old.save(path)
    try:
        with disk_full_at(moment):
            new.save(path)
        return f"WRONG: nothing said at {moment}"
    except OSError as error:
        if str(path) not in str(error) or error.errno != errno.ENOSPC:
            return f"WRONG: {error}"
    return _kept(path, old, new)


def _kept(path: Path, old: Result, new: Result) -> str:
    if judged(path, [old]) != "identical":
        return "WRONG: the old file is lost"
    if left := [file.name for file in path.parent.iterdir() if file != path]:
        return f"WRONG: left {left}"
    new.save(path)
    return "kept" if judged(path, [new]) == "identical" else "WRONG: cannot be saved again"


def full_disks(folder: Path) -> Counter[str]:
    """Full disks: injected at every moment, a limit of the system, and where it can be mounted a real small disk."""
    outcomes = Counter(full_disk_outcome(folder, moment) for moment in MOMENTS)
    outcomes.update(_in_children(lambda limit: _limited_outcome(folder / "full.nc", limit), [0, 1000, 10000]))
    small = folder / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        return outcomes + Counter({"(no small disk could be mounted)": 1})
    try:
        outcomes.update(_in_children(lambda _: _small_disk_outcome(small), [0]))
    finally:
        subprocess.run(["umount", str(small)], check=True)
    return outcomes


def _limited_outcome(path: Path, limit: int) -> str:
    """Files may not grow beyond a limit: the system refuses the write in the middle."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    old, new = example(0), example(1)
    old.save(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        new.save(path)
        return "WRONG: nothing said"
    except OSError as error:
        if str(path) not in str(error):
            return f"WRONG: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return _kept(path, old, new)


def _small_disk_outcome(folder: Path) -> str:
    path, filler, old, new = folder / "result.nc", folder / "filler", example(0), example(1)
    old.save(path)
    pages = 65536 // 4096 - -(-path.stat().st_size // 4096)
    filler.write_bytes(bytes(4096 * (pages - 1)))  # one page is left
    try:
        new.save(path)
        return "WRONG: nothing said"
    except OSError as error:
        if str(path) not in str(error) or error.errno != errno.ENOSPC:
            return f"WRONG: {error}"
    filler.unlink()
    return _kept(path, old, new)


# ---------------------------------------------------------------------------------------------- several writers


def several_writers(folder: Path, seconds: float) -> Counter[str]:
    """Two processes of two saving threads each, and a reader: what is there is always a whole file of one of them."""
    path, versions = folder / "shared.nc", [example(k) for k in range(4)]
    versions[0].save(path)
    end = time.time() + seconds
    here, there = FORK.Pipe(duplex=False)
    children = [FORK.Process(target=_two_threads, args=(path, versions[k : k + 2], end, there)) for k in (0, 2)]
    for child in children:
        child.start()
    outcomes, saves = Counter(), 0
    while time.time() < end:
        outcomes[judged(path, versions)] += 1
    for child in children:
        child.join(PATIENCE)
        if child.exitcode != 0:
            outcomes[f"WRONG: a writer ended with {child.exitcode}"] += 1
    while here.poll():
        count, errors = here.recv()
        saves += count
        outcomes.update(f"WRONG: {error}" for error in errors)
    if left := [file.name for file in folder.iterdir() if file != path]:
        outcomes[f"WRONG: left {left}"] += 1
    outcomes[f"({saves} saves meanwhile)"] += 0
    return outcomes


def _two_threads(path: Path, versions: Sequence[Result], end: float, pipe: Connection) -> None:
    def save(result: Result) -> None:
        count, errors = 0, []
        while time.time() < end:
            try:
                result.save(path)
                count += 1
            except Exception as error:
                errors.append(repr(error))
        pipe.send((count, errors))

    threads = [threading.Thread(target=save, args=(result,)) for result in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# ---------------------------------------------------------------------------------------------- the table


def main(arguments: Sequence[str] | None = None) -> int:
    """Do all of it, print a table, and return how many kinds of wrong there were."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("kills", 50), ("bits", 1000), ("truncations", 100), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=10.0, help="of two processes and two threads on one file")
    asked = parser.parse_args(arguments)
    faults: dict[str, Callable[[Path], Counter[str]]] = {
        f"SIGKILL during save, {asked.kills}": lambda at: kills(at, asked.kills, random.Random(asked.seed)),
        f"flipped bits, {asked.bits}": lambda at: flipped_bits(at, asked.bits, random.Random(asked.seed)),
        f"truncations, {asked.truncations}": lambda at: truncations(at, asked.truncations, random.Random(asked.seed)),
        "full disk": full_disks,
        f"two processes, two threads, {asked.seconds:g} s": lambda at: several_writers(at, asked.seconds),
    }
    wrong = 0
    for fault, do in faults.items():
        with tempfile.TemporaryDirectory() as folder:
            outcomes = do(Path(folder))
        wrong += sum(outcome.startswith("WRONG") for outcome in outcomes)
        shown = [outcome if outcome.startswith("(") else f"{outcome} {n}" for outcome, n in outcomes.most_common()]
        print(f"{fault:42} {', '.join(shown)}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 1))
