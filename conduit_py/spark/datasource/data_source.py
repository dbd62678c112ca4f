"""DataSource: the connectors of conduit-py as a data source of Spark, `format("conduit")`.

Register it with `spark.dataSource.register(DataSource)`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import trio
from pyspark.sql import datasource, types

from conduit_py.sdk.source import EndOfSource, NothingYet, SplittableSource
from conduit_py.spark.datasource.open_source import read_all
from conduit_py.spark.datasource.rows import READ, Row, check_schema, row_of
from conduit_py.spark.datasource.settings import note_suggestions, on_executor, read_settings
from conduit_py.spark.datasource.stream_reader import StreamReader
from conduit_py.spark.datasource.writer import BatchWriter, StreamWriter
from conduit_py.stream.plugin_calls import PluginCaller

PART_SIZE = 32 * 1024 * 1024


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


class DataSource(datasource.DataSource):
    """A row for each record of a source, or a record for each row into a destination; as a batch or as a stream.

    The option `connector` names the connector as in YAML; those of `datasource.settings` are the format's;
    all others are the connector's own, as text, or as JSON where they are lists or objects. Structured data comes
    as JSON. A record that its source cannot parse is a row too: `refused` has the reason, and `after` what was read.

    Rows are written as they were read, or any others, whose columns are then the fields of the payload. A
    destination that stages or keeps a checkpoint with its data (file, journal, sqlite, postgres) gets all rows of a
    job or none, and each batch of a stream once; any other at least once.
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
