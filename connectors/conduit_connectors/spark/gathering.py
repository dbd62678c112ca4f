"""Gathering: what the spark destinations have in common: rows are gathered, and a thread hands them to Spark."""

import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from conduit_connectors.spark.failures import BadRows, spark_errors
from conduit_connectors.spark.gather import Gathered, GatherOptions, Load, Piece
from conduit_connectors.spark.rows import Envelopes, Fields, RowMaker
from conduit_connectors.spark.schema import declared
from conduit_connectors.spark.work import OnSpark
from conduit_py import sdk
from conduit_py.sdk import AckMode, Answer, Batch, MessageId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OptionsT = TypeVar("OptionsT", bound=GatherOptions)


class GatheringDestination(OnSpark[OptionsT], sdk.Destination[OptionsT]):
    """Rows gather until there are enough of them, or they are old enough, and become one Spark job.

    Records that do not fit the schema are refused at once, those that the sink does not take when the job
    has shown which they are. All others are acked when the job that wrote them is committed. What
    waits is bounded by the windows of the sources.
    """

    acks = AckMode.LATER

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
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def answers(self) -> Sequence[Answer | Batch]:
        """This thread, which is the destination's own, is the one that runs the jobs."""
        handled, pieces = self._wait()
        if not pieces:
            return handled
        refused = self._committed(Load.of(pieces))
        messages = {answer.message for answer in refused}
        return [*refused, *(piece.batch for piece in pieces if _some_left(piece, messages))]

    def _close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        super()._close()

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
    def _commit(self, session: "SparkSession", load: Load) -> None:
        """Write the rows; on return they are durable. An error that blames the data means that none was kept."""

    def _repeated(self, batch: Batch) -> set[int]:
        """Which of these are known to be written already, by index."""
        return set()

    def _wait(self) -> tuple[list[Batch], list[Piece]]:
        with self._changed:
            while not self._closing and not self._handled:
                due_at = self._gathered.due_at()
                if due_at is not None and (self._finished or due_at <= time.monotonic()):
                    return [], self._gathered.take()
                self._changed.wait(None if due_at is None else due_at - time.monotonic())
            handled, self._handled = self._handled, []
            return handled, []

    def _committed(self, load: Load) -> list[Answer]:
        """Write the rows; if some of them are to blame for a failure, all but those, which are returned."""
        try:
            with spark_errors(f"a Spark job over {len(load)} records"), self._work.running() as session:
                self._commit(session, load)
        except BadRows as bad:
            if len(load) > 1:
                return [answer for half in load.halves() for answer in self._committed(half)]
            [message] = load.messages
            return [Answer(message, refused=str(bad))]
        return []


def _some_left(piece: Piece, refused: set[MessageId]) -> bool:
    """Whether anything of its batch was not refused."""
    return not refused or piece.repeated or any(piece.batch.id(index) not in refused for index in piece.kept)
