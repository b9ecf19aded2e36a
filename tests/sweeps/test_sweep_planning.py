"""Grids of very many chunks: planned a part at a time, with progress, and heard when it is interrupted."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.core.progress import Progress
from asymptotix.numerics import interrupts
from asymptotix.sweeps import planning, sweeping
from asymptotix.sweeps.sweep_store import SweepStore
from sweeps.sweep_toys import ALPHAS, PROBLEM, log_of

NOISES = (0.1, 0.2, 0.3, 0.4, 0.5)


@pytest.fixture(autouse=True)
def quiet():
    interrupts.forget()
    yield
    interrupts.forget()


def sweep(store, **options):
    return asx.sweep(PROBLEM, over={"noise": NOISES, "alpha": ALPHAS}, store=store, chunk=1, **options)


def test_a_plan_in_several_parts_gives_the_same_result(tmp_path, monkeypatch):
    whole = sweep(tmp_path / "whole")
    monkeypatch.setattr(planning, "SECONDS_OF_PLANNING", 0.0)  # every chunk is worked on before the next is planned
    with Progress(None, "sweep", enabled=False) as bar:
        parts = sweep(tmp_path / "parts", progress=bar)
    assert bar.total == bar.done == len(NOISES) * len(ALPHAS)
    assert parts.ds.equals(whole.ds)
    assert {chunk.name for chunk in SweepStore(tmp_path / "parts").plan()} == set(log_of(tmp_path / "whole"))
    assert len(log_of(tmp_path / "parts")) == len(log_of(tmp_path / "whole"))  # nothing twice


def test_failures_are_tried_again_once(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "SECONDS_OF_PLANNING", 0.0)
    sweep(tmp_path / "store")
    forgotten = []
    monkeypatch.setattr(SweepStore, "forget_failures", lambda _, names: forgotten.extend(names))
    sweep(tmp_path / "store", retry_failed=True)
    assert len(forgotten) == len(set(forgotten)) == len(NOISES) * len(ALPHAS)


def test_an_interrupt_while_planning_keeps_what_was_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "CHUNKS_BETWEEN_LOOKS", 1)
    monkeypatch.setattr(planning, "MOST_NOTED_TOGETHER", 2)
    said, message = [], Progress.message

    def interrupted(self, text):
        said.append(text)
        if text == "6 chunks planned":
            os.kill(os.getpid(), signal.SIGINT)
        message(self, text)

    monkeypatch.setattr(Progress, "message", interrupted)
    monkeypatch.setattr(sweeping, "MOST_COLLECTED_AT_AN_INTERRUPT", 10)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    try:
        with pytest.raises(KeyboardInterrupt, match=r"finished chunks are in .*store"):
            sweep(tmp_path / "store")
    finally:
        signal.signal(signal.SIGINT, before)
    assert said[-1] == "6 chunks planned"
    assert len(SweepStore(tmp_path / "store").plan()) == 6
    monkeypatch.undo()
    assert sweep(tmp_path / "store").finished


def test_of_many_problems_those_at_the_corners_are_built_before_anything_is_written(tmp_path):
    many = np.linspace(0.1, 1.0, 200)
    with pytest.raises(ValueError, match="noise must be non-negative"):
        asx.sweep(PROBLEM, over={"noise": [*many, -1.0], "alpha": ALPHAS}, store=tmp_path / "store")
    with pytest.raises(ValueError, match="at most 1000000 points, got 1001000"):
        asx.sweep(PROBLEM, over={"noise": np.arange(1.0, 1002.0), "alpha": np.arange(1.0, 1001.0)}, store=tmp_path)
    assert not any(tmp_path.iterdir())


MILLION = """
import numpy as np, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import asymptotix as asx
from sweeps.sweep_toys import PROBLEM
over = {"noise": np.linspace(0.1, 1.0, 1000), "alpha": np.linspace(0.1, 3.0, 1000)}
print("begins", flush=True)
asx.sweep(PROBLEM, over=over, store=sys.argv[1], chunk=1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [2, 20])
def test_a_million_chunks_are_interrupted(tmp_path, seconds):
    command = [sys.executable, "-c", MILLION, tmp_path / "store"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < 10  # a second on an idle machine
    assert "KeyboardInterrupt" in errors
