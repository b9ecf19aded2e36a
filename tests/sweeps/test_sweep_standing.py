"""How far a sweep has come: what is said while it runs, in the log of its store, and of what its dead left."""

import json
import re
from pathlib import Path

import pytest

import asymptotix as asx
from asymptotix.core.progress import Progress
from asymptotix.sweeps import standing
from asymptotix.sweeps.leases import this_machine
from asymptotix.sweeps.standing import Standing
from asymptotix.sweeps.sweep_store import SweepStore
from sweeps.sweep_toys import ALPHAS, PROBLEM, TROUBLED, troubles

CURVE = {"alpha": ALPHAS}


class Listening(Progress):
    """A progress that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(None, "sweep", enabled=False)
        self.heard: list[str] = []

    def advance(self, n: int = 1, message: str | None = None) -> None:
        super().advance(n, message)
        self.heard += [] if message is None else [message]


def notes(store: Path) -> list[dict]:
    return [line for line in SweepStore(store).log() if "standing" in line]


def test_a_report_has_all_but_what_the_bar_shows():
    found = Standing(["a", "b"], ["c"], ["d"], ["e"], {"d": "no"}, 120.0, 60.0, 31.4, 812.3)
    told = "2 of 5 chunks done, 1 failed, 120 chunks an hour, slowest chunk 31.4 s, memory 812 MB at most"
    assert found.line == told
    assert "120 chunks an hour, about 0:01:00 left" in str(found)
    unknown = Standing(["a"], [], [], ["e"], {}, float("nan"), float("nan"), 0.0, 0.0)
    assert unknown.line == "1 of 2 chunks done, 0 failed"


def test_a_sweep_reports_to_its_progress_and_at_the_end_to_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(standing, "SECONDS_BETWEEN_REPORTS", 0.0)
    monkeypatch.setattr(standing, "SHARE_OF_REPORTS", 1e9)
    monkeypatch.setitem(troubles, 0.5, TypeError("no such thing"))
    bar = Listening()
    with pytest.warns(RuntimeWarning, match="1 of 3 chunks failed"):
        asx.sweep(TROUBLED, over=CURVE, store=tmp_path / "store", chunk=1, progress=bar)
    said = [text for text in bar.heard if "chunks done" in text]
    assert [text.partition(",")[0] for text in said] == [f"{done} of 3 chunks done" for done in (1, 1, 2)]
    assert re.search(r", 1 failed, .* chunks an hour, slowest chunk .* s, memory \d+ MB at most", said[-1])
    assert (bar.done, bar.total) == (3, 3)
    (last,) = notes(tmp_path / "store")
    assert last["standing"].startswith("2 of 3 chunks done, 1 failed")
    assert last["remaining_seconds"] == 0


def test_reports_are_seldom(tmp_path):
    bar = Listening()
    asx.sweep(PROBLEM, over=CURVE, store=tmp_path / "store", chunk=1, progress=bar)
    assert len([text for text in bar.heard if "chunks done" in text]) == 1  # all of it takes less than their distance


def test_what_was_there_is_not_counted_into_the_rate(tmp_path):
    asx.sweep(PROBLEM, over=CURVE, store=tmp_path / "store", chunk=1)
    bar = Listening()
    asx.sweep(PROBLEM, over={"alpha": [*ALPHAS, 2.0]}, store=tmp_path / "store", chunk=1, progress=bar)
    assert (bar.done, bar.total) == (1, 1)
    asx.sweep(PROBLEM, over=CURVE, store=tmp_path / "store", chunk=1)
    assert len(notes(tmp_path / "store")) == 2  # who did nothing has nothing to say


def test_what_a_dead_process_held_is_not_running(tmp_path):
    asx.sweep(PROBLEM, over=CURVE, store=tmp_path / "store", chunk=1)
    store = SweepStore(tmp_path / "store")
    first, second, _ = (chunk.name for chunk in store.plan())
    for name, machine in ((first, this_machine()), (second, "elsewhere")):
        store.chunk_path(name).unlink()
        store.claim_path(name).write_text(json.dumps({"machine": machine, "process": 2**22 + 1, "token": "its"}))
    told = asx.sweep_status(store.path)
    assert (told.left, told.running) == ([first], [second])
