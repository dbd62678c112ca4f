"""Task: what one task of Spark does with the rows of its partition: make them ready for the driver, or write them."""

import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import trio
from pyspark import TaskContext
from pyspark.sql import types

from conduit_py import sdk
from conduit_py.errors import RecordRefused
from conduit_py.record import Record
from conduit_py.spark.format.border import on_executor
from conduit_py.spark.format.columns import Columns, refused_row, rows_of
from conduit_py.spark.format.outlet import RowRefused, opened
from conduit_py.spark.format.parcel import ROWS, Parcel, packed
from conduit_py.spark.format.settings import write_settings

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


class Task:
    """Made on the driver, which checks the options and the columns, and sent to executors, which call it."""

    def __init__(self, options: Mapping[str, str], schema: types.StructType, job: str) -> None:
        self._options = dict(options)
        # A connector is made anew on each machine, of its options.
        settings, destination = write_settings(options)
        self._columns = Columns(schema, settings.key_columns)
        self._folder = os.getcwd()
        self._job = job
        self.publishes = settings.delivery != "at_least_once" and isinstance(destination, sdk.StagedDestination)
        """Whether the driver publishes what tasks make ready."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Parcel:
        with on_executor(self._folder):
            settings, destination = write_settings(self._options)
            context = TaskContext.get()
            assert context is not None
            partition, query = context.partitionId(), context.getLocalProperty(QUERY_ID) or ""
            records = self._records(rows_of(batches), partition)
            if not self.publishes:
                return trio.run(_write, destination, settings.name, partition, records)
            folder = None
            if settings.stage is not None:
                folder = stage_of(settings.stage, query, context.getLocalProperty(BATCH_ID) or "", self._job)
            return packed(records, partition, query, folder)

    def _records(self, rows: Iterator[dict[str, Any]], partition: int) -> Iterator[Record]:
        for number, row in enumerate(rows):
            try:
                yield self._columns.record(row)
            except RecordRefused as reason:
                raise RowRefused(refused_row(number, partition, reason, row)) from reason


def stage_of(stage: Path, query: str, batch: str, job: str) -> Path:
    """The folder for the parcels of a job, or of a batch of a stream."""
    return stage / query / batch if query else stage / job


async def _write(destination: sdk.Destination[Any], owner: str, partition: int, records: Iterator[Record]) -> Parcel:
    rows = 0
    async with opened(destination, owner) as outlet:
        while chunk := await trio.to_thread.run_sync(_next, records):
            await outlet.deliver(partition, chunk)
            rows += len(chunk)
    return Parcel(partition, rows, 0)


def _next(records: Iterator[Record]) -> list[Record]:
    """In a thread, for the rows may have to be waited for."""
    return list(itertools.islice(records, ROWS))
