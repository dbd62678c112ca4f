"""OrderedJobs run a few at a time and are taken in the order they began; one that has failed is not got past."""

import gc
import threading
import weakref
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest
from conduit_connectors.spark.buffered_destination import OrderedJobs
from conduit_connectors.spark.row_buffer import Load

from conduit_py.sdk import TransientError

LOAD = Load(pa.RecordBatch.from_pydict({"n": [1]}), [])
SECONDS = 300.0


def nothing() -> None:
    """What nobody waits for."""


def held(started: threading.Event, released: threading.Event, result: str) -> Callable[[], str]:
    def call() -> str:
        started.set()
        assert released.wait(SECONDS)
        return result

    return call


def test_a_second_job_runs_beside_the_first_and_is_taken_after_it() -> None:
    ended = threading.Semaphore(0)
    jobs = OrderedJobs(2, ended.release)
    started, released = [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]
    for place, name in enumerate(("first", "second")):
        assert not jobs.full
        jobs.begin(LOAD, held(started[place], released[place], name))
    assert all(each.wait(SECONDS) for each in started)
    assert (jobs.full, len(jobs), jobs.oldest_has_ended) == (True, 2, False)

    released[1].set()
    assert ended.acquire(timeout=SECONDS)
    assert not jobs.oldest_has_ended

    released[0].set()
    assert ended.acquire(timeout=SECONDS)
    assert jobs.oldest_has_ended
    assert [jobs.take()[1].result() for _ in range(2)] == ["first", "second"]
    assert (jobs.full, len(jobs)) == (False, 0)
    jobs.close()


def test_a_job_that_failed_stays_the_oldest_so_that_nothing_after_it_counts() -> None:
    def failing() -> None:
        raise RuntimeError("no")

    jobs = OrderedJobs(2, nothing)
    jobs.begin(LOAD, lambda: "before")
    jobs.begin(LOAD, failing)
    assert jobs.await_oldest() == "before"
    jobs.begin(LOAD, lambda: "after")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="no"):
            jobs.await_oldest()
    assert len(jobs) == 2
    jobs.close()


def test_a_job_that_begins_too_late_fails_so_that_nobody_waits_for_it() -> None:
    jobs = OrderedJobs(2, nothing)
    jobs.begin(LOAD, nothing)
    jobs.await_oldest()
    jobs.close()
    jobs.begin(LOAD, nothing)

    with pytest.raises(TransientError, match="closed before its job started"):
        jobs.await_oldest()


def test_a_thread_that_waits_keeps_nothing_of_its_last_job() -> None:
    class Large:
        """Something one can see the end of."""

    ended = threading.Event()
    jobs, large = OrderedJobs(1, ended.set), Large()
    kept = weakref.ref(large)
    jobs.begin(LOAD, partial(id, large))
    jobs.await_oldest()
    assert ended.wait(SECONDS)
    del large
    gc.collect()

    assert kept() is None
    jobs.close()


def test_threads_end_when_they_are_not_needed_any_more() -> None:
    threads: set[threading.Thread] = set()
    jobs = OrderedJobs(2, nothing)
    for _ in range(6):
        jobs.begin(LOAD, lambda: threads.add(threading.current_thread()))
        jobs.await_oldest()
    jobs.close()
    for thread in threads:
        thread.join(SECONDS)

    assert 0 < len(threads) <= 2
    assert not any(thread.is_alive() for thread in threads)
