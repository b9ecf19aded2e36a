import os
import pty
import subprocess
import sys
import threading

import pytest

from asymptotix.core import progress as progress_module
from asymptotix.core.progress import Progress, as_progress


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress_module, "monotonic", clock)
    return clock


@pytest.fixture
def log(capsys):
    lines = []

    def all_lines_so_far():
        lines.extend(capsys.readouterr().err.splitlines())
        return lines

    return all_lines_so_far


def work(clock, *, steps, seconds_each, **options):
    with Progress(steps, "solving", **options) as progress:
        for k in range(steps):
            clock.now += seconds_each
            progress.advance(message=f"alpha={k}")


def test_short_work_leaves_nothing_in_a_log(clock, log):
    work(clock, steps=4, seconds_each=1.2)
    assert log() == []


def test_short_work_leaves_one_line_when_asked_for(clock, log):
    work(clock, steps=4, seconds_each=1.2, enabled=True)
    assert log() == ["solving: 4/4 done in 0:00:05"]


def test_log_has_a_line_every_ten_seconds_and_one_at_the_end(clock, log):
    work(clock, steps=8, seconds_each=3.0)
    assert log() == [
        "solving: 4/8, 0:00:12 elapsed, about 0:00:12 left, alpha=3",
        "solving: 8/8, 0:00:24 elapsed, alpha=7",
        "solving: 8/8 done in 0:00:24",
    ]


def test_silent_when_disabled(clock, log):
    work(clock, steps=8, seconds_each=100.0, enabled=False)
    assert log() == []


def test_unknown_total_is_counted(clock, log):
    with Progress(None, "sampling") as progress:
        clock.now += 11
        progress.advance(5)
    assert log() == ["sampling: 5, 0:00:11 elapsed", "sampling: 5 done in 0:00:11"]


def test_message_counts_no_step(clock, log):
    with Progress(2, "solving") as progress:
        clock.now += 11
        progress.message("layer 1 [of 2]")
    assert progress.done == 0
    assert log()[0] == "solving: 0/2, 0:00:11 elapsed, layer 1 [of 2]"


def test_nested_work_keeps_the_rhythm_and_closes_once(clock, log):
    with Progress(2, "outer") as outer:
        for _ in range(2):
            with Progress(3, "inner") as inner:
                for _ in range(3):
                    clock.now += 6
                    inner.advance()
            outer.advance()
    inner_lines = ["inner: 2/3", "inner: 1/3", "inner: 3/3"]  # 12, 24 and 36 s after the start
    assert [line.split(",")[0] for line in log()] == [*inner_lines, "outer: 2/2 done in 0:00:36"]


def test_an_announcement_is_in_the_log_at_once_and_silent_where_nothing_is_said(clock, log):
    with Progress(12, "solving") as progress:
        clock.now += 3
        progress.announce("at most about 0:00:40 for 12 runs")
        assert log() == ["solving: 0/12, 0:00:03 elapsed, at most about 0:00:40 for 12 runs"]
    with Progress(12, "solving", enabled=False) as progress:
        progress.announce("at most about 0:00:40 for 12 runs")
    assert len(log()) == 1


def test_interrupt_is_passed_on_and_reported_as_a_stop(clock, log):
    def interrupted_work():
        with Progress(4, "solving") as progress:
            clock.now += 6
            progress.advance()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_work()
    assert log() == ["solving: 1/4 when stopped after 0:00:06"]
    work(clock, steps=1, seconds_each=6)  # the next one is an outermost one again
    assert log()[-1] == "solving: 1/1 done in 0:00:06"


def test_entering_again_does_not_close_the_outer_use(clock, log):
    with Progress(4, "all") as shared:
        for _ in range(2):
            with as_progress(shared, 2, "ignored") as inside:
                clock.now += 3
                inside.advance(2)
        assert log() == []
    assert log() == ["all: 4/4 done in 0:00:06"]


@pytest.mark.parametrize("switch", [None, True, False])
def test_as_progress_makes_one_from_a_switch(switch):
    made = as_progress(switch, 7, "solving")
    assert (made.total, made.description, made.enabled) == (7, "solving", switch)


def test_as_progress_gives_an_open_total_a_value_and_keeps_a_given_one():
    assert as_progress(Progress(None, "mine"), 7, "solving").total == 7
    assert as_progress(Progress(3, "mine"), 7, "solving").total == 3


def test_as_progress_refuses_anything_else():
    with pytest.raises(TypeError, match=r"progress must be None, True, False or a Progress, got 'yes'"):
        as_progress("yes", 7, "solving")  # type: ignore[arg-type]


def test_steps_from_several_threads_are_all_counted():
    with Progress(4000, "solving", enabled=False) as progress:
        threads = [threading.Thread(target=lambda: [progress.advance() for _ in range(1000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert progress.done == 4000


TERMINAL_PROGRAM = """
from asymptotix.core.progress import Progress
with Progress(2, "outer work") as outer:
    with Progress(5, "inner work") as inner:
        inner.advance(3, message="Q[0, 1]")
        inner._display.display.refresh()
    outer.advance(2)
try:
    with Progress(2, "interrupted work") as progress:
        raise KeyboardInterrupt
except KeyboardInterrupt:
    print("interrupt arrived")
"""


def test_bars_on_a_terminal_nest_and_survive_an_interrupt():
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160"}
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL_PROGRAM], stdout=subprocess.PIPE, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    assert process.stdout is not None
    assert process.stdout.read() == b"interrupt arrived\n"
    process.stdout.close()
    assert process.wait() == 0
    for text in (b"outer work", b"inner work", b"3/5", b"Q[0, 1]", b"interrupted work"):
        assert text in shown
    assert b"Traceback" not in shown
