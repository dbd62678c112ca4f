"""Executors: the Spark on which the tasks of one source run, and what the nodes on them counted."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

import outcome
import trio

from conduit_py.spark.engine.task import perform
from conduit_py.spark.session.errors import failure_advice, spark_errors
from conduit_py.spark.session.job_group import JobGroup
from conduit_py.spark.session.shared_session import SparkOptions
from conduit_py.stream.meter import COUNTERS, Meter, NodeKind


class Executors:
    """Runs tasks as jobs of Spark; `close` cancels those that run."""

    def __init__(self, options: SparkOptions) -> None:
        self._options = options
        self._work = JobGroup()
        self.cores = 1

    def start(self) -> None:
        """Acquire the session, which may take seconds. Raises FatalError or TransientError when there is none."""
        self._work.start(self._options)
        with self._work.running() as session:
            self.cores = max(1, session.sparkContext.defaultParallelism)

    def run(self, plan: bytes, parts: Sequence[bytes]) -> "SparkJob":
        """Start a job over these inputs, with a result for each, in order."""
        return SparkJob(partial(self._run, plan, parts))

    def close(self) -> None:
        self._work.close()

    def _run(self, plan: bytes, parts: Sequence[bytes]) -> list[bytes]:
        with failure_advice(), spark_errors("a job of Spark"), self._work.running() as session:
            rows = session.sparkContext.parallelize(parts, count_tasks(len(parts), self.cores))
            done: list[bytes] = rows.map(partial(perform, plan)).collect()
            return done


TASK_PARTS = 4
"""The most parts in a task. What Spark's driver does for a task is the same for any number of them."""


def count_tasks(parts: int, cores: int) -> int:
    """Return how many tasks a job with so many parts has: one for each core, and more where a task had too much."""
    return min(parts, max(cores, -(-parts // TASK_PARTS)))


class SparkJob:
    """A job in a thread of its own: the driver writes the results of one job while the next one runs."""

    # Not an OwnedThread: a job begins before anybody waits for it, and goes on when its waiter is cancelled.
    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.seconds = time.monotonic()
        """How long it took, once its results are there."""
        self._ended = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._result: outcome.Outcome[Any] | None = None
        # A daemon: a call into a Java that hangs must not keep the process alive.
        threading.Thread(target=self._work, name="conduit-spark-job", daemon=True).start()

    async def result(self) -> list[bytes]:
        """Wait for the results of the tasks, in the order of their inputs."""
        await self._ended.wait()
        assert self._result is not None
        result: list[bytes] = self._result.unwrap()
        return result

    def _work(self) -> None:
        self._result = outcome.capture(self._call)
        self.seconds = time.monotonic() - self.seconds
        try:
            self._token.run_sync_soon(self._ended.set)
        except trio.RunFinishedError:
            return  # The run that waited for it is over.


SMALL_PART = 4 * 1024 * 1024
"""Bytes of input for which a task of its own is worth the milliseconds that it costs."""


def even_size(most: int, left: int | None, cores: int) -> int:
    """How large parts are, at most `most`, of so many bytes that are left: all cores end at about the same time."""
    if left is None or left <= 0:
        return most
    # As many parts for each core as the largest size would make.
    rounds = -(-left // (most * cores))
    return min(most, max(SMALL_PART, -(-left // (rounds * cores))))


class JobPace:
    """How many parts for each core the next job has, where a part is a manifest to the driver.

    What the driver does for a job and for a task is the same for any number of parts. But a job is acked as a
    whole, so one that takes long gets fewer; and so does one that returns much, which are dead letters.
    """

    SECONDS = 5.0
    BYTES = 2**20
    ROUNDS_MAX = 16

    def __init__(self) -> None:
        self.rounds = 1

    def note(self, seconds: float, returned: int) -> None:
        """Note how long a job took, and how many bytes its tasks returned."""
        if seconds > 2 * self.SECONDS or returned > self.BYTES:
            self.rounds = max(1, self.rounds // 2)
        elif seconds < self.SECONDS:
            self.rounds = min(2 * self.rounds, self.ROUNDS_MAX)


SORTED_OUT = ("filtered", "refused")


class ExecutorCounts:
    """The sums of what tasks report. Each task counts once, however often Spark had to try it."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self.held: set[str] = set()
        """The sources that wait for acks before they give out more."""

    def add(self, counts: Mapping[str, Sequence[int]]) -> None:
        for node, more in counts.items():
            before = self._counts.get(node, [0] * len(COUNTERS))
            self._counts[node] = [each + another for each, another in zip(before, more, strict=True)]

    def seen_by(self, node: str, kind: NodeKind, driver: Meter | None, *, end: bool) -> Meter:
        """The total of a node. An end is on the driver too, so executors add only what they filter and refuse."""
        meter = Meter(node, kind) if driver is None else copy(driver)
        for name, count in zip(COUNTERS, self._counts.get(node, ()), strict=False):
            if driver is None or not end or name in SORTED_OUT:
                setattr(meter, name, getattr(meter, name) + count)
        return meter
