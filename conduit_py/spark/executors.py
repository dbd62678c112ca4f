"""Executors: the Spark on which the tasks of one source run, and what its failures mean."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import outcome
import trio

# The session is the connectors' own: one process has one Spark, whoever needs it.
from conduit_connectors.spark.failures import spark_errors
from conduit_connectors.spark.options import SparkOptions
from conduit_connectors.spark.work import Work

from conduit_py.spark.causes import explained
from conduit_py.spark.task import perform


class Executors:
    """Runs tasks, at most one job at a time for each that asks; `close` cancels what runs."""

    def __init__(self, options: SparkOptions) -> None:
        self._options = options
        self._work = Work()
        self.cores = 1

    def start(self) -> None:
        """Get hold of the session, which may take seconds. FatalError or TransientError when there is none."""
        self._work.start(self._options)
        with self._work.running() as session:
            self.cores = max(1, session.sparkContext.defaultParallelism)

    def run(self, plan: bytes, parts: Sequence[bytes]) -> "Job":
        """Begin a job with a task for each part."""
        return Job(partial(self._run, plan, parts))

    def close(self) -> None:
        self._work.close()

    def _run(self, plan: bytes, parts: Sequence[bytes]) -> list[bytes]:
        with explained(), spark_errors("a job of Spark"), self._work.running() as session:
            rows = session.sparkContext.parallelize(parts, len(parts))
            done: list[bytes] = rows.map(partial(perform, plan)).collect()
            return done


class Job:
    """A job in a thread of its own, so that the driver writes what the last one gave while the next one runs."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._ended = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._result: outcome.Outcome[Any] | None = None
        threading.Thread(target=self._work, name="conduit-spark-job", daemon=True).start()

    async def result(self) -> list[bytes]:
        """What the tasks returned, in the order of their parts."""
        await self._ended.wait()
        assert self._result is not None
        result: list[bytes] = self._result.unwrap()
        return result

    def _work(self) -> None:
        self._result = outcome.capture(self._call)
        try:
            self._token.run_sync_soon(self._ended.set)
        except trio.RunFinishedError:
            return  # Nobody waits any more.
