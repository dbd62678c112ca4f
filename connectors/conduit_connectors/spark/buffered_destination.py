"""BufferedDestination: what the spark destinations share. Rows are buffered, and threads hand them to Spark."""

import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from conduit_connectors.spark.row_buffer import BufferedRows, BufferOptions, Load, RowBuffer
from conduit_connectors.spark.rows import Envelopes, Fields, RowMaker, parse_schema
from conduit_py import sdk
from conduit_py.sdk import AckMode, Answer, Batch, FatalError, MessageId, TransientError
from conduit_py.sdk.spark import BadRows, SparkConnector, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


OptionsT = TypeVar("OptionsT", bound=BufferOptions)


class BufferedDestination(SparkConnector[OptionsT], sdk.DestinationConnector[OptionsT]):
    """Rows are buffered until there are enough of them, or they are old enough, and become one Spark job.

    A job stages a load, which is then published. Several loads may be staged at once; they are published in order.
    Records that do not fit the schema are refused at once; records that the sink refuses, when the job has shown
    which they are. All others are acked when their load is published. The windows of the sources bound what waits.
    """

    acks = AckMode.LATER
    jobs_at_once: ClassVar[int] = 2
    """While one is written, the next passes through Python and Spark's driver."""

    _changed: threading.Condition
    _closing: bool
    _finished: bool

    def fresh(self) -> Self:
        new = super().fresh()
        new._changed = threading.Condition()
        new._closing = new._finished = False
        return new

    def open(self) -> None:
        self._buffer = RowBuffer(self.options)
        self._handled: list[Batch] = []
        self._jobs = OrderedJobs(self.jobs_at_once, self._notify)
        self._numbers = count()
        self._collected: list[Any] = []
        with spark_errors("opening"):
            self._job_group.start(self.options)
            with self._job_group.running() as session:
                self._maker = self._row_maker(session)
                self._prepare(session)

    def write(self, batch: Batch) -> dict[int, str] | None:
        """Make rows of the records. Those that do not fit are refused at once."""
        repeated = self._find_repeats(batch)
        fresh = [index for index in range(len(batch)) if index not in repeated] if repeated else range(len(batch))
        records = [batch.records[index] for index in fresh] if repeated else batch.records
        rows, kept, refused = self._maker.rows(records, batch.source)
        if repeated:
            kept = [fresh[index] for index in kept]
        with self._changed:
            if kept:
                self._buffer.add(BufferedRows(rows, batch, kept, bool(repeated)), time.monotonic())
            elif repeated:
                self._handled.append(batch.select(sorted(repeated)))
            self._changed.notify_all()
        return {fresh[index]: reason for index, reason in refused.items()} or None

    def finish(self) -> None:
        self._finished = True
        self._notify()

    def answers(self) -> Sequence[Answer | Batch]:
        """Start jobs that are due and publish what they staged. It runs in a thread of the destination's own."""
        if not self._await_job():
            with self._changed:
                handled, self._handled = self._handled, []
            return handled
        # Order: loads are published as they came, whichever was staged first.
        load, staged = self._jobs.take()
        refused = self._publish_or_refuse(load, staged.result)
        messages = {answer.message for answer in refused}
        return [*refused, *(piece.batch for piece in load.pieces if _has_unrefused(piece, messages))]

    def _close(self) -> None:
        self._closing = True
        self._notify()
        super()._close()
        # After its jobs are cancelled. A destination that was never opened has none.
        if hasattr(self, "_jobs"):
            self._jobs.close()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _row_maker(self, session: "SparkSession") -> RowMaker:
        return self._declared_rows()

    def _declared_rows(self) -> RowMaker:
        if self.options.payload == "envelope":
            return Envelopes()
        columns = self.options.columns
        return Fields(parse_schema(columns) if columns is not None else None, self.options)

    def _prepare(self, session: "SparkSession") -> None:
        """Check what is there already. Called by `open`, when rows can be made."""

    @abstractmethod
    def _stage(self, session: "SparkSession", load: Load, number: int) -> Any:
        """Write the rows where no reader sees them yet. Loads are numbered from 0; several may be staged at once."""

    @abstractmethod
    def _publish(self, session: "SparkSession", load: Load, staged: Any) -> None:
        """Publish the rows, given what `_stage` returned; on return they are durable. Called for one load at a time.

        An error about the data, from either method, means that no row was kept.
        """

    def _find_repeats(self, batch: Batch) -> set[int]:
        """The indices of messages that were written before."""
        return set()

    def _await_job(self) -> bool:
        """Start jobs as they are due, until the oldest has ended (True) or there is another answer to give (False)."""
        with self._changed:
            while not self._closing and not self._handled:
                due_at = None if self._jobs.full else self._buffer.due_at()
                if due_at is not None and (self._finished or due_at <= time.monotonic()):
                    load = Load.of(self._buffer.take())
                    self._jobs.begin(load, self._staging(load))
                elif self._jobs.oldest_has_ended:
                    return True
                else:
                    self._changed.wait(None if due_at is None else due_at - time.monotonic())
            return False

    def _staging(self, load: Load) -> Callable[[], Any]:
        """The call that stages a load under the next number."""
        return partial(self._run_stage, load, next(self._numbers))

    def _run_stage(self, load: Load, number: int) -> Any:
        with spark_errors(_job_over(load)), self._job_group.running() as session:
            return self._stage(session, load, number)

    def _publish_or_refuse(self, load: Load, staged: Callable[[], Any]) -> list[Answer]:
        """Publish what is staged. If rows make it fail, publish the others and return refusals of those."""
        try:
            what = staged()
            with spark_errors(_job_over(load)), self._job_group.running() as session:
                self._publish(session, load, what)
        except BadRows as bad:
            if len(load) > 1:
                return [
                    answer for half in load.halves() for answer in self._publish_or_refuse(half, self._staging(half))
                ]
            [message] = load.messages
            return [Answer(message, refused=str(bad))]
        return []

    def _stage_buffer(self) -> None:
        """In an exactly-once pipeline: start to stage what is buffered, when there is room for one more job."""
        pieces = self._buffer.take()
        if not pieces:
            return
        while self._jobs.full:
            self._collect_oldest()
        load = Load.of(pieces)
        self._jobs.begin(load, self._staging(load))

    def _collect_stages(self) -> list[Any]:
        """In an exactly-once pipeline: what `_stage` returned for everything written since the last call, in order."""
        self._stage_buffer()
        while self._jobs:
            self._collect_oldest()
        collected, self._collected = self._collected, []
        return collected

    def _collect_oldest(self) -> None:
        try:
            self._collected.append(self._jobs.await_oldest())
        except BadRows as bad:
            raise FatalError(f"Spark does not write these records: {bad}") from bad


def _job_over(load: Load) -> str:
    return f"a Spark job over {len(load)} records"


def _has_unrefused(piece: BufferedRows, refused: set[MessageId]) -> bool:
    """Whether any message of the batch was not refused."""
    return not refused or piece.repeated or any(piece.batch.id(index) not in refused for index in piece.kept)


class OrderedJobs:
    """Calls that run a few at a time, each in a thread; their results are taken in the order they started.

    One thread at a time uses it, except for `close`. The thread of a job calls `on_ended` when the job has ended.
    """

    def __init__(self, at_once: int, on_ended: Callable[[], None]) -> None:
        self._at_once = at_once
        self._on_ended = on_ended
        self._begun: deque[tuple[Load, Future[Any]]] = deque()
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closing = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        return len(self._begun)

    @property
    def full(self) -> bool:
        """Whether no further job may start before one is taken."""
        return len(self._begun) >= self._at_once

    @property
    def oldest_has_ended(self) -> bool:
        return bool(self._begun) and self._begun[0][1].done()

    def begin(self, load: Load, call: Callable[[], Any]) -> None:
        assert not self.full
        future: Future[Any] = Future()
        self._begun.append((load, future))
        with self._closing:
            if self._closed:
                # No thread would run it, and waiting for it would never end.
                future.set_exception(TransientError("the destination was closed before its job started"))
                return
            if len(self._threads) < self._at_once:
                # Daemons: a call into a Java that hangs must not keep the process alive.
                self._threads.append(threading.Thread(target=self._run, name="conduit-spark", daemon=True))
                self._threads[-1].start()
            self._calls.put((future, call))

    def take(self) -> tuple[Load, Future[Any]]:
        """Remove and return the oldest."""
        return self._begun.popleft()

    def await_oldest(self) -> Any:
        """Wait for the result of the oldest and remove it. A failed one stays: every call raises its error."""
        result = self._begun[0][1].result()
        self._begun.popleft()
        return result

    def close(self) -> None:
        """Let the threads end after the calls that are queued."""
        with self._closing:
            self._closed = True
            for _ in self._threads:
                self._calls.put(None)

    def _run(self) -> None:
        while (begun := self._calls.get()) is not None:
            future, call = begun
            try:
                future.set_result(call())
            except BaseException as error:  # a boundary: `result` raises it
                future.set_exception(error)
            # Released now and not when the next one comes: a load and its records are large.
            del begun, future, call
            self._on_ended()
