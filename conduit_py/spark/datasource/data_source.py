"""DataSource: the connectors of conduit-py as a data source of Spark, `format("conduit")`.

Register it with `spark.dataSource.register(DataSource)`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

import trio
from pyspark.sql import datasource, types
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from conduit_py.errors import Problem
from conduit_py.sdk.source import EndOfSource, NothingYet, SplittableSource
from conduit_py.spark.datasource.open_source import read_all
from conduit_py.spark.datasource.rows import READ, Row, check_schema, row_of
from conduit_py.spark.datasource.settings import ReadSettings, invalid, note_suggestions, on_executor, read_settings
from conduit_py.spark.datasource.streams import (
    BEGINNING,
    ROWS,
    WAIT_SECONDS,
    DriverStream,
    Json,
    Offset,
    SplitStream,
    decode_rows,
)
from conduit_py.spark.datasource.writer import BatchWriter, StreamWriter
from conduit_py.stream.plugin_calls import PluginCaller

PART_SIZE = 32 * 1024 * 1024
PATIENCE_SECONDS = 5.0
"""How long to wait, with the trigger availableNow, for a source that waits instead of raising NothingYet."""


class BatchReader(datasource.DataSourceReader):
    """Created on the driver, which splits the source, and pickled for executors, which read it."""

    def __init__(self, options: Mapping[str, str], schema: types.StructType) -> None:
        read_settings(options)
        check_schema(schema)
        self._options = dict(options)
        self._folder = os.getcwd()

    def partitions(self) -> Sequence[datasource.InputPartition]:
        with note_suggestions():
            _, source = read_settings(self._options)
            if not isinstance(source, SplittableSource) or not source.splits():
                return [datasource.InputPartition(None)]
            return [datasource.InputPartition(part) for part in trio.run(_parts, source)]

    def read(self, partition: datasource.InputPartition) -> Iterator[Row]:
        with on_executor(self._folder):
            _, source = read_settings(self._options)
            for each in read_all(source, cast("bytes | None", partition.value)):
                yield row_of(each.record, each.refused)


async def _parts(source: SplittableSource[Any]) -> list[bytes]:
    calls = PluginCaller("source", source)
    parts: list[bytes] = []
    try:
        await calls("open", None)
        while True:
            parts.append(await calls("split", PART_SIZE))
    except (EndOfSource, NothingYet):
        return parts
    finally:
        await calls("teardown")
        calls.close()


class StreamReader(datasource.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark uses two for a query: one in a process of the driver; the other is sent to executors and only reads.

    The constructor never fails, because Spark would hide why. The first call reports problems with the options.
    """

    def __init__(self, options: Mapping[str, str], schema: types.StructType) -> None:
        self._options = dict(options)
        self._schema = schema
        self._folder = os.getcwd()
        self._stream: DriverStream | SplitStream | None = None
        self._available_now = False
        self._finished = False

    def initialOffset(self) -> Json:  # noqa: N802
        with note_suggestions():
            self._open_stream()
            return BEGINNING.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        with note_suggestions():
            settings, _ = _check(self._options)
            if isinstance(self._open_stream(), DriverStream):
                return ReadMaxRows(settings.rows_per_batch or ROWS)
            return ReadMaxBytes(settings.bytes_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._available_now = True

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        with note_suggestions():
            at = Offset.parse(start)
            stream = self._open_stream()
            if self._finished:
                return start
            latest = (
                self._latest_of_driver(stream, at, limit)
                if isinstance(stream, DriverStream)
                else self._latest_of_split(stream, at, limit)
            )
            if latest != at:
                return latest.to_json()
            # With availableNow, what comes from now on is for the next query.
            self._finished = self._available_now
            return start

    def partitions(self, start: Json, end: Json) -> Sequence[datasource.InputPartition]:
        with note_suggestions():
            first, last = Offset.parse(start), Offset.parse(end)
            if first == last:
                return []
            # A batch that is run again has the same partitions, even if it would be read in another stream now.
            if last.parts:
                return [datasource.InputPartition((False, part)) for part in last.split]
            stream = self._open_stream()
            if isinstance(stream, DriverStream):
                return [datasource.InputPartition((True, stream.part(first, last)))]
            # The batch was read by the driver before the options changed: it is read that way once more.
            with closing(DriverStream(_check(self._options)[1])) as stream:
                return [datasource.InputPartition((True, stream.part(first, last)))]

    def read(self, partition: datasource.InputPartition) -> Iterator[Row]:
        carried, part = cast("tuple[bool, bytes]", partition.value)
        if carried:
            yield from decode_rows(part)
            return
        with on_executor(self._folder):
            _, source = read_settings(self._options)
            for each in read_all(source, part):
                yield row_of(each.record, each.refused)

    def commit(self, end: Json) -> None:
        with note_suggestions():
            if isinstance(self._stream, DriverStream):
                self._stream.commit(Offset.parse(end))

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _open_stream(self) -> DriverStream | SplitStream:
        if self._stream is None:
            check_schema(self._schema)
            settings, source = _check(self._options)
            # Acks need the position of each record, and only the process that reads has those.
            acked = not PluginCaller("source", source).inherits("ack")
            if isinstance(source, SplittableSource) and source.splits() and not settings.rows_per_batch and not acked:
                self._stream = SplitStream(source)
            else:
                self._stream = DriverStream(source)
        return self._stream

    def _latest_of_driver(self, stream: DriverStream, at: Offset, limit: ReadLimit) -> Offset:
        # Limited even without a limit of Spark: the rest is the next batch, and must not be held all at once.
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else ROWS
        size = _check(self._options)[0].bytes_per_batch
        return stream.latest(at, rows, size, PATIENCE_SECONDS if self._available_now else WAIT_SECONDS)

    def _latest_of_split(self, stream: SplitStream, at: Offset, limit: ReadLimit) -> Offset:
        settings, _ = _check(self._options)
        unlimited = isinstance(limit, ReadAllAvailable)
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else settings.bytes_per_batch
        return stream.latest(at, 2**63 if unlimited else size)


def _check(options: Mapping[str, str]) -> tuple[ReadSettings, Any]:
    settings, source = read_settings(options)
    if not source.resumable:
        what = f"{settings.connector!r} cannot go on from a checkpoint, so a stream of it would lose records"
        raise invalid(Problem("connector", what, "read it as a batch"))
    return settings, source


class DataSource(datasource.DataSource):
    """A row for each record of a source, or a record for each row into a destination; as a batch or as a stream.

    The option `connector` names the connector as in YAML; those of `datasource.settings` are the format's;
    all others are the connector's own, as text, or as JSON where they are lists or objects. Structured data comes
    as JSON. A record that its source cannot parse is a row too: `refused` has the reason, and `after` what was read.

    Rows are written as they were read, or any others, whose columns are then the fields of the payload. A destination
    that stages or keeps a checkpoint with its data (file, journal, sqlite, postgres) gets all rows of a job or none. It
    gets each batch of a stream once; any other at least once.
    """

    @classmethod
    def name(cls) -> str:
        return "conduit"

    def schema(self) -> types.StructType:
        # Spark calls this only for readers. It is the first call that can report problems with their options.
        with note_suggestions():
            read_settings(self.options)
        return READ

    def reader(self, schema: types.StructType) -> BatchReader:
        with note_suggestions():
            return BatchReader(self.options, schema)

    def streamReader(self, schema: types.StructType) -> StreamReader:  # noqa: N802
        return StreamReader(self.options, schema)

    def writer(self, schema: types.StructType, overwrite: bool) -> BatchWriter:
        with note_suggestions():
            return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: types.StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        with note_suggestions():
            return StreamWriter(self.options, schema, overwrite)
