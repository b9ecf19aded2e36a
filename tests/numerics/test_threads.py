"""Work on many items in threads."""

import threading
import time

import pytest

from asymptotix.numerics import interrupts
from asymptotix.numerics.threads import available_cores, each_in_parallel, in_threads, one_blas_thread


def test_no_more_cores_than_a_worker_was_given(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert available_cores() == 8
    for told, cores in (("3", 3), ("1", 1), ("64", 8), ("", 8), ("4,2", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", told)
        assert available_cores() == cores


@pytest.mark.parametrize("first_alone", [True, False])
@pytest.mark.parametrize("told", ["1", "4"])
def test_what_is_made_is_in_order_whatever_the_cores(monkeypatch, told, first_alone):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    workers = set()

    def square(x):
        workers.add(threading.current_thread())
        time.sleep(1e-3)  # as compiled work does, without holding the interpreter
        return x * x

    assert in_threads(square, range(100), first_alone=first_alone) == [x * x for x in range(100)]
    assert (workers == {threading.main_thread()}) == (told == "1")


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

    with pytest.raises(KeyboardInterrupt):  # what is unfinished is never taken for done
        each_in_parallel(work, range(1000), 2)
    assert len(done) <= 2


def test_a_signal_while_waiting_for_the_others_stops_them(monkeypatch):
    done: list[int] = []

    def interrupted(begun):
        raise KeyboardInterrupt

    def work(item: int) -> None:
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.02)  # the others have begun
            raise LookupError  # and this thread goes on to wait for them
        done.append(item)
        time.sleep(1e-3)

    monkeypatch.setattr("asymptotix.numerics.threads.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        each_in_parallel(work, range(10**9), 2)
    time.sleep(0.05)
    before = len(done)
    time.sleep(0.05)
    assert len(done) == before


def test_work_inside_of_work_has_no_more_threads_than_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(3)), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    busy, most, lock = 0, 0, threading.Lock()

    def leaf(item: int) -> int:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        time.sleep(1e-3)
        with lock:
            busy -= 1
        return item

    made = in_threads(lambda x: sum(in_threads(leaf, range(x, x + 20), first_alone=False)), range(6), first_alone=False)
    assert made == [sum(range(x, x + 20)) for x in range(6)]
    assert 1 < most <= 3


def test_an_obeyed_signal_ends_work_inside_of_work(monkeypatch):
    times, done = [0], []
    monkeypatch.setattr(interrupts, "times_obeyed", lambda: times[0])

    def work(item: int) -> None:
        done.append(item)
        times[0] = 1  # as if another thread had raised for it

    with pytest.raises(KeyboardInterrupt):
        each_in_parallel(work, range(1000), 1)
    assert done == [0]


def test_the_last_to_leave_lifts_the_limit_of_linear_algebra():
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def threads() -> list[int]:
        return [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]

    with threadpoolctl.threadpool_limits(2):
        before = threads()
        if max(before, default=1) == 1:
            pytest.skip("linear algebra has one thread here, or cannot be asked")
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert set(threads()) <= {1}
        second.__exit__(None, None, None)
        assert threads() == before


def test_threads_that_help_end_in_the_middle_of_an_item(monkeypatch):
    """An item may take long: the thread that raises need not wait until others have finished theirs."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(2)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    begun = threading.Event()

    def work(item):
        if threading.current_thread() is threading.main_thread():
            begun.wait(10)
            raise RuntimeError
        begun.set()
        while True:
            interrupts.check()
            time.sleep(1e-3)

    began = time.monotonic()
    with pytest.raises(RuntimeError):
        each_in_parallel(work, range(2), 2)
    assert time.monotonic() < began + 5
    interrupts.check()
