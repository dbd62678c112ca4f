"""Gathering: what the spark destinations have in common: rows are gathered, and threads hand them to Spark."""

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from conduit_connectors.spark.failures import BadRows, spark_errors
from conduit_connectors.spark.gather import Gathered, GatherOptions, Load, Piece
from conduit_connectors.spark.jobs import Jobs
from conduit_connectors.spark.rows import Envelopes, Fields, RowMaker
from conduit_connectors.spark.schema import declared
from conduit_connectors.spark.work import OnSpark
from conduit_py import sdk
from conduit_py.sdk import AckMode, Answer, Batch, FatalError, MessageId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OptionsT = TypeVar("OptionsT", bound=GatherOptions)


class GatheringDestination(OnSpark[OptionsT], sdk.Destination[OptionsT]):
    """Rows gather until there are enough of them, or they are old enough, and become one Spark job.

    A load is staged by a job of Spark's and then shown. Several may be staged at once; they are shown in the order
    in which they came. Records that do not fit the schema are refused at once, those that the sink does not take
    when the job has shown which they are. All others are acked when their load is shown. What waits is bounded
    by the windows of the sources.
    """

    acks = AckMode.LATER
    jobs_at_once: ClassVar[int] = 2
    """While one is written, the next is on its way through Python and Spark's driver."""

    _changed: threading.Condition
    _closing: bool
    _finished: bool

    def fresh(self) -> Self:
        new = super().fresh()
        new._changed = threading.Condition()
        new._closing = new._finished = False
        return new

    def open(self) -> None:
        self._gathered = Gathered(self.options)
        self._handled: list[Batch] = []
        self._jobs = Jobs(self.jobs_at_once, self._notify)
        self._numbers = count()
        self._collected: list[Any] = []
        with spark_errors("opening"):
            self._work.start(self.options)
            with self._work.running() as session:
                self._maker = self._row_maker(session)
                self._prepare(session)

    def write(self, batch: Batch) -> dict[int, str] | None:
        """Rows are made here, so that what does not fit is refused while the batch is at hand."""
        repeated = self._repeated(batch)
        fresh = [index for index in range(len(batch)) if index not in repeated] if repeated else range(len(batch))
        records = [batch.records[index] for index in fresh] if repeated else batch.records
        rows, kept, refused = self._maker.rows(records, batch.source)
        if repeated:
            kept = [fresh[index] for index in kept]
        with self._changed:
            if kept:
                self._gathered.add(Piece(rows, batch, kept, bool(repeated)), time.monotonic())
            elif repeated:
                self._handled.append(batch.select(sorted(repeated)))
            self._changed.notify_all()
        return {fresh[index]: reason for index, reason in refused.items()} or None

    def finish(self) -> None:
        self._finished = True
        self._notify()

    def answers(self) -> Sequence[Answer | Batch]:
        """This thread, which is the destination's own, begins jobs, and shows what they staged."""
        if not self._await_job():
            with self._changed:
                handled, self._handled = self._handled, []
            return handled
        load, staged = self._jobs.take()
        refused = self._committed(load, staged.result)
        messages = {answer.message for answer in refused}
        return [*refused, *(piece.batch for piece in load.pieces if _some_left(piece, messages))]

    def _close(self) -> None:
        self._closing = True
        self._notify()
        super()._close()
        # Not before its jobs are cancelled. One that was never opened has none.
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
        return Fields(declared(columns) if columns is not None else None, self.options.drift)

    def _prepare(self, session: "SparkSession") -> None:
        """Look at what is there already. Called by `open`, when rows can be made."""

    @abstractmethod
    def _stage(self, session: "SparkSession", load: Load, number: int) -> Any:
        """Write the rows where nobody sees them yet. Loads are numbered from 0, and others may be staged beside it."""

    @abstractmethod
    def _show(self, session: "SparkSession", load: Load, staged: Any) -> None:
        """Show the rows, given what `_stage` returned; on return they are durable. One load after the other.

        An error that blames the data, from either, means that none was kept.
        """

    def _repeated(self, batch: Batch) -> set[int]:
        """Which of these are known to be written already, by index."""
        return set()

    def _await_job(self) -> bool:
        """Begin jobs as they are due, and return when the oldest has ended; False if there is something else to say."""
        with self._changed:
            while not self._closing and not self._handled:
                due_at = None if self._jobs.full else self._gathered.due_at()
                if due_at is not None and (self._finished or due_at <= time.monotonic()):
                    load = Load.of(self._gathered.take())
                    self._jobs.begin(load, self._staging(load))
                elif self._jobs.oldest_has_ended:
                    return True
                else:
                    self._changed.wait(None if due_at is None else due_at - time.monotonic())
            return False

    def _staging(self, load: Load) -> Callable[[], Any]:
        """What stages a load, as the next in number."""
        return partial(self._staged, load, next(self._numbers))

    def _staged(self, load: Load, number: int) -> Any:
        with spark_errors(_job_over(load)), self._work.running() as session:
            return self._stage(session, load, number)

    def _committed(self, load: Load, staged: Callable[[], Any]) -> list[Answer]:
        """Show what is staged; if some rows are to blame for a failure, all but those, which are returned."""
        try:
            what = staged()
            with spark_errors(_job_over(load)), self._work.running() as session:
                self._show(session, load, what)
        except BadRows as bad:
            if len(load) > 1:
                return [answer for half in load.halves() for answer in self._committed(half, self._staging(half))]
            [message] = load.messages
            return [Answer(message, refused=str(bad))]
        return []

    def _stage_gathered(self) -> None:
        """In an exactly-once pipeline: begin to stage what is gathered, when there is room for one more job."""
        pieces = self._gathered.take()
        if not pieces:
            return
        while self._jobs.full:
            self._collect_oldest()
        load = Load.of(pieces)
        self._jobs.begin(load, self._staging(load))

    def _collect_staged(self) -> list[Any]:
        """In an exactly-once pipeline: what `_stage` returned for everything written since the last call, in order."""
        self._stage_gathered()
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


def _some_left(piece: Piece, refused: set[MessageId]) -> bool:
    """Whether anything of its batch was not refused."""
    return not refused or piece.repeated or any(piece.batch.id(index) not in refused for index in piece.kept)
