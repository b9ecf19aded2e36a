"""The driver: signals, failures of single points, checkpoints."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.core.driver.run import Interrupted
from asymptotix.core.problem import Outcome, Problem
from asymptotix.numerics import interrupts
from toy import ToyLearning, ToyRegression, ToyRun

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@dataclass(frozen=True)
class Eventful(Problem):
    """x = 10 alpha, and at some alphas an event: a function that is called there."""

    looks: bool = True  # between the steps of a point
    controls = ("alpha",)
    events: ClassVar[dict] = {}

    def solve_points(self, points, *, start, tolerance, progress) -> Iterator[tuple[int, Outcome]]:
        for i, point in enumerate(points):
            self.events.get(point["alpha"], lambda: None)()
            if self.looks:
                interrupts.check()
            yield i, Outcome({"x": 10 * point["alpha"]})


@pytest.fixture(autouse=True)
def quiet():
    Eventful.events.clear()
    interrupts.forget()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    interrupts.forget()
    assert {number: signal.getsignal(number) for number in SIGNALS} == before  # handlers are put back


def sent(*numbers: int, seconds: float = 0.0):
    def send() -> None:
        for number in numbers:
            os.kill(os.getpid(), number)
        time.sleep(seconds)

    return send


def solve(alphas, looks=True, **options):
    return asx.solve(Eventful(looks), alpha=alphas, progress=False, **options)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_gives_what_is_finished(number):
    Eventful.events[2.0] = sent(number)
    with pytest.warns(RuntimeWarning, match="interrupted: 1 of 3 points"):
        part = solve([1.0, 2.0, 3.0])
    assert part.status_code.values.tolist() == ["converged", "not_reached", "not_reached"]
    assert interrupts.last_signal() == number
    assert not part.finished


def test_a_theory_that_does_not_look_is_stopped_between_points():
    Eventful.events[2.0] = sent(signal.SIGINT, seconds=0.6)
    with pytest.warns(RuntimeWarning, match="interrupted: 2 of 3 points"):
        solve([1.0, 2.0, 3.0], looks=False)


def test_what_is_ready_is_taken():
    """Runs that ended together are handed over one by one: a signal in between loses none."""
    Eventful.events[2.0] = sent(signal.SIGINT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert solve([1.0, 2.0, 3.0], looks=False).ok


def test_a_second_signal_raises_and_carries_the_result():
    Eventful.events[2.0] = sent(signal.SIGINT, signal.SIGINT)
    with pytest.raises(Interrupted) as caught:
        solve([1.0, 2.0, 3.0])
    assert caught.value.result.status_code.values.tolist() == ["converged", "not_reached", "not_reached"]


def test_a_loop_can_be_left():
    """The first Ctrl-C ends one call; a second, soon after, in the next call, leaves the loop."""
    Eventful.events[2.0] = sent(signal.SIGINT)
    calls = []

    def loop() -> None:
        for _ in range(5):
            calls.append(solve([1.0, 2.0]))

    with pytest.warns(RuntimeWarning, match="interrupted"), pytest.raises(KeyboardInterrupt):
        loop()
    assert len(calls) == 1


def test_a_signal_long_after_another_is_a_first_one(monkeypatch):
    monkeypatch.setattr(interrupts, "SECONDS_TO_LEAVE", 0.0)
    Eventful.events[2.0] = sent(signal.SIGINT)
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="interrupted: 1 of 2"):
            solve([1.0, 2.0])


def test_after_sigterm_the_next_verb_ends_the_process():
    Eventful.events[2.0] = sent(signal.SIGTERM)
    with pytest.warns(RuntimeWarning, match="interrupted"):
        solve([1.0, 2.0])
    with pytest.raises(SystemExit) as caught:
        solve([1.0])
    assert caught.value.code == 143
    interrupts.forget()
    assert solve([1.0]).ok


def test_handlers_of_the_user_stay():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append("term"))
    try:
        Eventful.events[2.0] = sent(signal.SIGTERM)
        assert solve([1.0, 2.0]).ok
        assert seen == ["term"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_a_thread_nothing_is_changed():
    results = []
    thread = threading.Thread(target=lambda: results.append(solve([1.0, 2.0])))
    thread.start()
    thread.join()
    assert results[0].ok


def test_compiled_code_that_swallows_a_second_signal():
    """numba turns an exception raised inside its dispatcher into a SystemError."""

    def swallowed() -> None:
        try:
            sent(signal.SIGINT, signal.SIGINT)()
        except KeyboardInterrupt:
            raise SystemError("returned a result with an exception set") from None

    Eventful.events[2.0] = swallowed
    with pytest.raises(KeyboardInterrupt):
        solve([1.0, 2.0, 3.0])


def raising(error: Exception):
    def throw() -> None:
        raise error

    return throw


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("delta must be positive, got -66"), "failed: ValueError: delta must be positive, got -66"),
        (ZeroDivisionError("no weight left"), "failed: no weight left"),
        (MemoryError(), "failed: MemoryError"),
    ],
)
def test_one_bad_point_spares_the_others(error, words):
    Eventful.events[2.0] = raising(error)
    with pytest.warns(asx.ConvergenceWarning, match="1 of 3 points"):
        result = solve([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(result.x, [10, np.nan, 30])
    assert result.status.values[1] == words
    assert result.status_code.values.tolist() == ["converged", "failed", "converged"]


def test_an_error_that_no_point_survives_is_raised():
    Eventful.events |= {1.0: raising(ValueError("start is wrong")), 2.0: raising(ValueError("start is wrong"))}
    with pytest.raises(ValueError, match="start is wrong"):
        solve([1.0, 2.0])


def test_seeds_are_checked_before_the_work():
    for seeds, message in (([2**32], "at most 4294967295"), (10**7, "at most 1000000"), ([10**400], "of 1329 bits")):
        with pytest.raises(ValueError, match=message):
            asx.simulate(ToyLearning(ToyRegression(indices=1)), ToyRun(), alpha=1.0, dim=10, seeds=seeds)


def test_a_checkpoint_is_written_while_points_finish(tmp_path):
    path, seen = tmp_path / "part.nc", []
    Eventful.events[2.0] = lambda: seen.append(asx.load(path))
    whole = solve([1.0, 2.0, 3.0], checkpoint=path)
    assert seen[0].status_code.values.tolist() == ["converged", "not_reached", "not_reached"]
    assert asx.load(path).ds.identical(whole.ds)
    assert solve([1.0, 2.0, 3.0], resume=seen[0]).ds.identical(whole.ds)


@pytest.mark.parametrize("error", [OSError("no space left"), TypeError("no space left")])
def test_a_checkpoint_that_cannot_be_written_does_not_end_the_work(error, tmp_path, monkeypatch):
    """Nor is it the fault of the next point."""
    monkeypatch.setattr(asx.Result, "save", lambda self, path: raising(error)())
    with pytest.warns(RuntimeWarning, match="could not be written: no space left"):
        assert solve([1.0, 2.0], checkpoint=tmp_path / "part.nc").ok


def test_a_call_that_reached_nothing_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "part.nc"
    Eventful.events[2.0] = sent(signal.SIGINT)

    def interrupted(alphas, **options):
        interrupts.forget()  # not the second signal in a row
        with pytest.warns(RuntimeWarning, match="interrupted"):
            return solve(alphas, checkpoint=path, **options)

    assert not interrupted([2.0]).begun
    assert not path.exists()
    part = interrupted([1.0, 2.0])
    assert part.begun
    assert not interrupted([2.0, 3.0]).begun
    assert asx.load(path).ds.identical(part.ds)
    path.unlink()
    interrupted([1.0, 2.0], resume=part)  # what an earlier call reached is something too
    assert asx.load(path).ds.identical(part.ds)


@pytest.mark.parametrize(("path", "error"), [("no/such/folder/x.nc", ValueError), (".", ValueError), (3, TypeError)])
def test_a_checkpoint_must_be_a_file(path, error):
    with pytest.raises(error, match="checkpoint must be"):
        solve([1.0], checkpoint=path)
