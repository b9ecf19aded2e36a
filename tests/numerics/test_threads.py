"""Work on many items in threads."""

import threading

import pytest

from asymptotix.numerics import interrupts
from asymptotix.numerics.threads import each_in_parallel


@pytest.mark.parametrize("threads", [1, 3])
def test_every_item_is_worked_on_once(threads):
    done: list[int] = []
    each_in_parallel(done.append, range(100), threads)
    assert sorted(done) == list(range(100))


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_stops_the_work_and_is_raised(threads):
    done: list[int] = []

    def work(item: int) -> None:
        if item == 5:
            raise ValueError("five")
        done.append(item)

    with pytest.raises(ValueError, match="five"):
        each_in_parallel(work, range(5, 10**9), threads)  # would take hours if the others went on


def test_threads_leave_when_a_signal_waits(monkeypatch):
    waits = threading.Event()
    monkeypatch.setattr(interrupts, "waiting", waits.is_set)
    done: list[int] = []

    def work(item: int) -> None:
        done.append(item)
        waits.set()

    each_in_parallel(work, range(1000), 2)
    assert len(done) <= 2
