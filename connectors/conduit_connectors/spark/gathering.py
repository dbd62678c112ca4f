"""Gathering: what the spark destinations have in common: rows are gathered, and a thread hands them to Spark."""

import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from conduit_connectors.spark.failures import blames_data, blames_definition, cancelled, explain
from conduit_connectors.spark.gather import Gathered, GatherOptions, Piece, joined
from conduit_connectors.spark.jobs import Cancelled, Jobs
from conduit_connectors.spark.rows import Envelopes, Fields, RowMaker
from conduit_connectors.spark.schema import declared
from conduit_connectors.spark.session import shared
from conduit_py import sdk
from conduit_py.sdk import AckMode, Answer, Batch, MessageId, RecordRefused, TransientError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OptionsT = TypeVar("OptionsT", bound=GatherOptions)


class GatheringDestination(sdk.Destination[OptionsT]):
    """Rows gather until there are enough of them, or they are old enough, and become one Spark job.

    Records that do not fit the schema are refused at once, those that the sink does not take when the job
    has shown which they are. All others are acked when the job that wrote them is committed. What
    waits is bounded by the windows of the sources.
    """

    acks = AckMode.LATER

    _session: "SparkSession | None" = None
    _jobs: Jobs | None = None

    def open(self) -> None:
        self._changed = threading.Condition()
        self._closing = False
        self._gathered = Gathered(self.options)
        self._handled: list[MessageId] = []
        self._session = shared.acquire(self.options)
        self._jobs = Jobs(self._session)
        with self._jobs.running():
            self._maker = self._row_maker(self._session)
            self._prepare(self._session)

    def write(self, batch: Batch) -> dict[int, str] | None:
        """Rows are made here, so that what does not fit is refused while the batch is at hand."""
        repeated = self._repeated(batch)
        fresh = [index for index in range(len(batch)) if index not in repeated] if repeated else range(len(batch))
        rows, kept, refused = self._maker.rows([batch.records[index] for index in fresh], batch.source)
        kept = [fresh[index] for index in kept]
        piece = Piece(rows, [batch.id(index) for index in kept], self._keys(batch, kept))
        with self._changed:
            if kept:
                self._gathered.add(piece, time.monotonic())
            self._handled += [batch.id(index) for index in sorted(repeated)]
            self._changed.notify_all()
        return {fresh[index]: reason for index, reason in refused.items()} or None

    def answers(self) -> Sequence[Answer]:
        """This thread, which is the destination's own, is the one that runs the jobs."""
        handled, pieces = self._wait()
        answers = [Answer(message) for message in handled]
        if pieces:
            answers += self._committed(joined(pieces))
        return answers

    def teardown(self) -> None:
        if self._session is None:
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._jobs is not None:
            self._jobs.cancel()
        self._session = self._jobs = None
        shared.release()

    def _row_maker(self, session: "SparkSession") -> RowMaker:
        if self.options.payload == "envelope":
            return Envelopes()
        columns = self.options.columns
        return Fields(declared(columns) if columns is not None else None, self.options.drift)

    def _prepare(self, session: "SparkSession") -> None:
        """Look at what is there already. Called by `open`, when rows can be made."""

    @abstractmethod
    def _commit(self, session: "SparkSession", piece: Piece) -> None:
        """Write the rows; on return they are durable. An error that blames the data means that none was kept."""

    def _repeated(self, batch: Batch) -> set[int]:
        """The records of the batch that an earlier run has written, by index."""
        return set()

    def _keys(self, batch: Batch, indices: Sequence[int]) -> list[bytes]:
        """What is kept to recognise these records if they come again."""
        return []

    def _wait(self) -> tuple[list[MessageId], list[Piece]]:
        with self._changed:
            while not self._closing and not self._handled:
                due_at = self._gathered.due_at()
                if due_at is not None and due_at <= time.monotonic():
                    return [], self._gathered.take()
                self._changed.wait(None if due_at is None else due_at - time.monotonic())
            handled, self._handled = self._handled, []
            return handled, []

    def _committed(self, piece: Piece) -> list[Answer]:
        """Write the rows; if some of them are to blame for a failure, all but those."""
        assert self._session is not None
        try:
            self._run(piece)
        except BadRows as bad:
            if len(piece.messages) == 1:
                return [Answer(piece.messages[0], refused=str(bad))]
            half = len(piece.messages) // 2
            return [
                answer
                for start, stop in ((0, half), (half, len(piece.messages)))
                for answer in self._committed(_part(piece, start, stop))
            ]
        return [Answer(message) for message in piece.messages]

    def _run(self, piece: Piece) -> None:
        assert self._session is not None
        with self._spark(len(piece.messages)):
            self._commit(self._session, piece)

    @contextmanager
    def _spark(self, count: int) -> Iterator[None]:
        """Run jobs over `count` records, and say of a failure whose fault it is: BadRows, fatal or transient."""
        assert self._jobs is not None
        try:
            with self._jobs.running():
                yield
        except (sdk.FatalError, TransientError):
            raise
        except RecordRefused as error:
            raise BadRows(error.message) from error
        except Exception as error:  # a border: Spark, its sink, or the user's function
            raise run_error(error, f"a Spark job over {count} records failed") from error


class BadRows(Exception):
    """Some of the rows made a job fail, and it would succeed without them."""


def run_error(error: Exception, what: str) -> Exception:
    """What an error of Spark's means for a run."""
    if isinstance(error, Cancelled) or cancelled(error):
        return TransientError("the Spark job was cancelled")
    if blames_data(error):
        return BadRows(explain(error))
    if blames_definition(error):
        return sdk.FatalError(f"{what}: {explain(error)}", suggestion="correct the options of the connector")
    return TransientError(f"{what}: {explain(error)}")


def _part(piece: Piece, start: int, stop: int) -> Piece:
    rows: pa.RecordBatch = piece.rows.slice(start, stop - start)
    return Piece(rows, piece.messages[start:stop], piece.keys[start:stop])
