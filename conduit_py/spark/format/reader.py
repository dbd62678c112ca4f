"""Reader: a source read as a batch, from its beginning to its end."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import trio
from pyspark.sql import datasource, types

from conduit_py.sdk.source import EndOfSource, NothingYet
from conduit_py.sdk.splittable import SplittableSource
from conduit_py.spark.format.border import explained, on_executor
from conduit_py.spark.format.columns import check_schema
from conduit_py.spark.format.envelope import Row, row_of
from conduit_py.spark.format.feed import drawn
from conduit_py.spark.format.settings import read_settings
from conduit_py.stream.plugin_calls import PluginCaller

PART_SIZE = 32 * 1024 * 1024


class Reader(datasource.DataSourceReader):
    """Made on the driver, which splits the source, and sent to the executors, which read it."""

    def __init__(self, options: Mapping[str, str], schema: types.StructType) -> None:
        read_settings(options)
        check_schema(schema)
        self._options = dict(options)
        self._folder = os.getcwd()

    def partitions(self) -> Sequence[datasource.InputPartition]:
        with explained():
            _, source = read_settings(self._options)
            if not isinstance(source, SplittableSource) or not source.splits():
                return [datasource.InputPartition(None)]
            return [datasource.InputPartition(part) for part in trio.run(_parts, source)]

    def read(self, partition: datasource.InputPartition) -> Iterator[Row]:
        with on_executor(self._folder):
            _, source = read_settings(self._options)
            for each in drawn(source, cast("bytes | None", partition.value)):
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
