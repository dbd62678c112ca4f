"""spark.Source: the rows of a query, a table or files, as records."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from pydantic import Field, model_validator

from conduit_connectors.spark.ordered import OrderedRows
from conduit_connectors.spark.origin import OriginArguments, OriginOptions, frame_at, stream_at
from conduit_connectors.spark.positions import OrderedPosition, SnapshotPosition, decode
from conduit_connectors.spark.spool import QuerySnapshot
from conduit_connectors.spark.stream import MicroBatches
from conduit_py import sdk
from conduit_py.sdk import EndOfSource, FatalError, NothingYet, Operation, Payload, Record, TransientError
from conduit_py.sdk.spark import BadRows, SparkConnector, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SourceOptions(OriginOptions):
    """Options of the spark source."""

    mode: Literal["snapshot", "keyed", "incremental", "stream"] = Field(
        default="snapshot",
        description='"snapshot": the rows of one query, kept on disk while they are read. "keyed": those of a table '
        'in the order of its key. "incremental": the same, and what is added later. "stream": what a streaming '
        "query gives, batch by batch",
    )
    key: list[str] = Field(default=[], description="the columns that name a row; they become the key of the record")
    column: str | None = Field(default=None, description='"incremental": the column that grows with every new row')
    stage: Path | None = Field(
        default=None,
        description='"snapshot", "stream": the folder to keep rows and the checkpoint in; executors must see it too',
    )
    chunk_rows: int = Field(default=100_000, ge=1, description='"keyed", "incremental": how many rows one query gives')
    poll_seconds: float = Field(default=1.0, ge=0, description='"stream": how often Spark looks for more')
    available_now: bool = Field(default=False, description='"stream": end when what was there at the start is read')

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.mode in ("snapshot", "stream") and self.stage is None:
            raise ValueError(f'mode "{self.mode}" needs `stage`, a folder that this machine and all executors share')
        if self.mode == "stream" and self.remote is not None:
            raise ValueError('mode "stream" needs a Spark driver in this process: give `master` in place of `remote`')
        if self.mode != "stream" and self.available_now:
            raise ValueError('`available_now` goes with mode "stream"')
        if self.mode == "keyed" and not self.key:
            raise ValueError('mode "keyed" needs `key`, the columns that name a row')
        if (self.mode == "incremental") != (self.column is not None):
            raise ValueError('`column` and mode "incremental" go together')
        return self


class SourceArguments(OriginArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    mode: Literal["snapshot", "keyed", "incremental", "stream"]
    key: Sequence[str]
    column: str | None
    stage: str | Path | None
    chunk_rows: int
    poll_seconds: float
    available_now: bool


class Source(SparkConnector[SourceOptions], sdk.SourceConnector[SourceOptions]):
    """One record per row, with its columns as `payload.after`, in a stable order; resumes at any row.

    Modes "snapshot" and "keyed" end; "incremental" and "stream" go on for ever, unless `available_now`.
    At-least-once on its own, exactly-once with a destination that can be. A snapshot is taken once and read from
    disk, whatever happens to its tables meanwhile; so is each batch of a stream, and Spark commits it and goes on
    to the next when all its rows are acked. In the other modes a row that is added or changed behind the last
    one read is not seen: `column` must grow, also across transactions that commit out of order.
    """

    _snapshot: QuerySnapshot | None = None
    _stream: MicroBatches | None = None

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[sdk.Dataset]:
        return [] if self.options.path is None else [sdk.Dataset.at(self.options.path)]

    @property
    def endless(self) -> bool:
        return self.options.mode in ("incremental", "stream") and not self.options.available_now

    def open(self, position: bytes | None) -> None:
        at = self._decode(position) if position is not None else None
        self._stopping = threading.Event()
        if self.options.mode == "snapshot":
            assert at is None or isinstance(at, SnapshotPosition)
            self._open_snapshot(at)
        elif self.options.mode == "stream":
            assert at is None or isinstance(at, SnapshotPosition)
            self._open_stream(at)
        else:
            assert at is None or isinstance(at, OrderedPosition)
            self._open_ordered(at)

    def check_position(self, position: bytes) -> None:
        self._decode(position)

    def _decode(self, position: bytes) -> SnapshotPosition | OrderedPosition:
        at = decode(position)
        if isinstance(at, SnapshotPosition) != (self.options.mode in ("snapshot", "stream")):
            raise FatalError(
                f"the position is not one of mode {self.options.mode!r}",
                suggestion="give the source a new id to start from the beginning in another mode",
            )
        return at

    def read(self, n: int) -> list[Record]:
        if self._stopping.is_set():
            raise EndOfSource
        if self._snapshot is not None:
            rows, positions = self._snapshot.read(n)
        elif self._stream is not None:
            rows, positions = self._stream.read(n)
        else:
            rows, positions = self._read_ordered(n)
        if not rows:
            raise NothingYet if self.options.mode == "incremental" else EndOfSource
        return self._records(rows, positions)

    def ack(self, positions: Sequence[bytes]) -> None:
        staged = self._snapshot or self._stream
        if staged is not None:
            at = decode(positions[-1])
            assert isinstance(at, SnapshotPosition)
            staged.ack(at)

    def stop(self) -> None:
        self._stopping.set()
        if self._stream is not None:
            self._stream.stop()
        self._job_group.cancel()

    def on_deleted(self) -> None:
        if self.options.stage is not None:
            QuerySnapshot(self.options.stage, self._identity()).forget()

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        super()._close()

    def _open_snapshot(self, at: SnapshotPosition | None) -> None:
        assert self.options.stage is not None
        self._snapshot = snapshot = QuerySnapshot(self.options.stage.absolute(), self._identity())
        if at is not None:
            snapshot.continue_after(at)
        elif not snapshot.is_taken():
            # Only taking it needs Spark: what is on disk is read without.
            self._with_spark("taking a snapshot", lambda session: snapshot.take(frame_at(session, self.options)))

    def _open_stream(self, at: SnapshotPosition | None) -> None:
        options = self.options
        assert options.stage is not None
        self._stream = stream = MicroBatches(options.stage.absolute(), self._identity(), options.name, self._job_group)
        stream.begin(at)
        poll = f"{round(options.poll_seconds * 1000)} milliseconds"
        trigger: dict[str, Any] = {"availableNow": True} if options.available_now else {"processingTime": poll}
        self._with_spark("starting a stream", lambda session: stream.start(stream_at(session, options), trigger))

    def _open_ordered(self, at: OrderedPosition | None) -> None:
        options = self.options
        columns = list(dict.fromkeys([*([options.column] if options.column else []), *options.key]))

        def ordered(session: "SparkSession") -> OrderedRows:
            frame = frame_at(session, options)
            _refuse_text_order(options, dict(frame.dtypes), columns)
            return OrderedRows(frame, columns, options.chunk_rows, at)

        self._ordered: OrderedRows = self._with_spark("reading the schema", ordered)

    def _read_ordered(self, n: int) -> tuple[list[dict[str, Any]], list[bytes]]:
        found: tuple[list[dict[str, Any]], list[bytes]] = self._with_spark("a query", lambda _: self._ordered.read(n))
        return found

    def _with_spark(self, what: str, work: Any) -> Any:
        """Run jobs that `stop` can cancel, and translate their errors."""
        try:
            with spark_errors(f"{what} of {self.options.name}"):
                if not self._job_group.started:
                    self._job_group.start(self.options)
                with self._job_group.running() as session:
                    return work(session)
        except BadRows as bad:
            raise FatalError(f"{what} of {self.options.name} failed: {bad}") from bad
        except TransientError:
            if self._stopping.is_set():
                raise EndOfSource from None
            raise

    def _identity(self) -> str:
        """What a snapshot is taken of, as text: another query has another snapshot."""
        options = self.options
        function = f"{options.function.__module__}.{options.function.__qualname__}" if options.function else None
        origin = [options.query, options.table, options.format, options.path, options.options, function]
        return json.dumps(origin if options.mode == "snapshot" else [*origin, options.mode])

    def _records(self, rows: list[dict[str, Any]], positions: list[bytes]) -> list[Record]:
        columns, collection, name = self.options.key, sdk.metadata.COLLECTION, self.options.name
        operation = Operation.SNAPSHOT if self.options.mode in ("snapshot", "keyed") else Operation.CREATE
        keys = [{column: row[column] for column in columns} for row in rows] if columns else [None] * len(rows)
        # Positional arguments are a quarter cheaper: Record(position, operation, metadata, key, payload).
        return [
            Record(position, operation, {collection: name}, key, Payload(None, row))
            for row, position, key in zip(rows, positions, keys, strict=True)
        ]


def _refuse_text_order(options: SourceOptions, kinds: dict[str, str], columns: Sequence[str]) -> None:
    """Refuse text columns: a database compares text by its own collation, and would skip rows that Spark expects."""
    text = [name for name in columns if kinds.get(name) == "string"]
    if options.format == "jdbc" and text and options.options.get("pushDownPredicate") != "false":
        raise FatalError(
            f"rows cannot be ordered by the text column {text[0]!r} of a database, which may order text differently",
            suggestion='order by another column, or give the option "pushDownPredicate": "false"',
        )
