"""Signals at random moments, in short: the long form is the script beside it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import asymptotix as asx
from faults.interrupt_faults import WORK, campaign

CURVE = """
[problem]
type = "RiskMinimization"
weight_decay = 0.01

[problem.model]
type = "AttentionIndex"
noise = 0.5

[solve]
alpha = { start = 0.1, stop = 10.0, num = 400, spacing = "log" }
"""

#: The command line. A test that runs in the background of a shell ignores Ctrl-C, and so would what it starts.
COMMAND_LINE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from asymptotix.cli import main
main()
"""


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "paths" else pytest.mark.slow) for n in WORK])
def test_nothing_finished_is_lost(name):
    """It returns soon: a step of these sizes takes a fraction of a second on an idle machine."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    try:
        shots = campaign([name], 1, seed=7, report=print)
    finally:
        signal.signal(signal.SIGINT, before)
    assert max(shot.seconds for shot in shots) < 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "times", "code"), [(signal.SIGINT, 1, 130), (signal.SIGTERM, 1, 143), (signal.SIGTERM, 2, 143)]
)
def test_the_command_line_writes_what_is_finished_and_says_how_it_ended(number, times, code, tmp_path):
    problem, out = tmp_path / "curve.toml", tmp_path / "curve.nc"
    problem.write_text(CURVE)
    command = [sys.executable, "-c", COMMAND_LINE, "solve", str(problem), "--out", str(out)]
    wide = {**os.environ, "COLUMNS": "1000"}  # one table: a row for every point
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=wide) as process:
        wait_for(out)
        for _ in range(times):
            process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    assert "interrupted" in stderr
    part = asx.load(out)
    finished = int(part.converged.sum())
    assert 0 < finished < 400
    if times == 1:
        assert stdout.count("converged") == finished


@pytest.mark.slow
def test_killed_it_leaves_a_file_to_go_on_from(tmp_path):
    problem, out = tmp_path / "curve.toml", tmp_path / "curve.nc"
    problem.write_text(CURVE)
    command = [sys.executable, "-m", "asymptotix", "solve", str(problem), "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(out)
        process.kill()
    part = asx.load(out)
    assert part.converged.any()
    assert not part.finished
    few = part.alpha.values[part.converged.values.argmax() :][:2]
    assert asx.solve(part.problem, alpha=few, resume=out, progress=False).ok


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name} after two minutes"
        time.sleep(0.05)
    assert os.path.getsize(path) > 0
