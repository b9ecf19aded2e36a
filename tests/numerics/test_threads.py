"""Compiled work on many samples, on the cores that this process may use."""

import threading

import pytest

from asymptotix.numerics.threads import available_cores, in_threads


def test_no_more_cores_than_a_worker_was_given(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert available_cores() == 8
    for told, cores in (("3", 3), ("1", 1), ("64", 8), ("", 8), ("4,2", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", told)
        assert available_cores() == cores


@pytest.mark.parametrize("told", ["1", "4"])
def test_parts_are_in_order_whatever_the_cores(monkeypatch, told):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    workers = set()

    def square(x):
        workers.add(threading.current_thread())
        return x * x

    assert in_threads(square, range(100)) == [x * x for x in range(100)]
    assert (workers == {threading.main_thread()}) == (told == "1")
