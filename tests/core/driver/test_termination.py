"""SIGTERM ends what it was sent to: a worker of a pool at once, other processes after a bounded time."""

import os
import signal
import subprocess
import sys
import time

import pytest

from asymptotix.numerics import interrupts

#: A worker is at work in a verb, or has been, when its pool is terminated. The theory looks for signals, or never does.
POOL = """
import multiprocessing, sys, time
from dataclasses import dataclass
import asymptotix as asx
from asymptotix.numerics import interrupts

@dataclass(frozen=True)
class Slow(asx.Problem):
    looks: bool = True
    controls = ("alpha",)
    def solve_points(self, points, *, start, tolerance, progress):
        for i, point in enumerate(points):
            until = time.monotonic() + point["alpha"]
            while time.monotonic() < until:
                time.sleep(0.01)
                if self.looks:
                    interrupts.check()
            yield i, asx.Outcome({"x": 1.0})

def work(seconds, looks, begun):
    begun.set()
    return float(asx.solve(Slow(looks), alpha=seconds, progress=False).x)

if __name__ == "__main__":
    seconds, looks = float(sys.argv[1]), sys.argv[2] == "looks"
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        pool, begun = context.Pool(1), manager.Event()
        task = pool.apply_async(work, (seconds, looks, begun))
        begun.wait()
        time.sleep(0.3)
        if seconds < 1:
            assert task.get() == 1.0
        began = time.monotonic()
        pool.terminate()
        pool.join()
        print(time.monotonic() - began)
"""


@pytest.mark.parametrize(("seconds", "looks"), [(0.01, "looks"), (300, "looks"), (300, "never")])
def test_a_pool_can_be_terminated(tmp_path, seconds, looks):
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    ended = subprocess.run(
        [sys.executable, script, str(seconds), looks], capture_output=True, text=True, timeout=100, check=True
    )
    assert float(ended.stdout) < 5  # a fraction of a second on an idle machine


def terminated(work):
    """Send SIGTERM to this process, and then do the work, in one scope."""
    with interrupts.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        work()


def test_what_never_looks_is_stopped_after_a_bounded_time(monkeypatch):
    monkeypatch.setattr(interrupts, "SECONDS_TO_END", 0.2)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            terminated(lambda: [time.sleep(0.01) for _ in range(3000)])
        assert time.monotonic() < began + 10
    finally:
        signal.signal(signal.SIGTERM, before)
        interrupts.forget()


def test_what_looks_is_not_signalled_again(monkeypatch):
    monkeypatch.setattr(interrupts, "SECONDS_TO_END", 0.2)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt):
            terminated(interrupts.check)
        seen = []
        signal.signal(signal.SIGTERM, lambda *_: seen.append("again"))
        time.sleep(0.4)
        assert not seen
    finally:
        signal.signal(signal.SIGTERM, before)
        interrupts.forget()
