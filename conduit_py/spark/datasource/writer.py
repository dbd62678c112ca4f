"""BatchWriter and StreamWriter: a DataFrame, or the batches of a stream, into a destination."""

import itertools
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import trio
from pyspark import TaskContext
from pyspark.sql import datasource, types

from conduit_py import sdk
from conduit_py.errors import Fenced, Problem, RecordRefused
from conduit_py.record import Record
from conduit_py.sdk.destination import TransactionalDestination
from conduit_py.spark.datasource.publish import (
    ROWS,
    RowRefused,
    TaskOutput,
    open_destination,
    pack_output,
    publish_batch,
    publish_once,
)
from conduit_py.spark.datasource.rows import RowDecoder, iterate_rows, refused_row
from conduit_py.spark.datasource.settings import WriteSettings, invalid, note_suggestions, on_executor, write_settings


class BatchWriter(datasource.DataSourceArrowWriter):
    """Writes all rows or none, where the destination can; otherwise every task writes its own rows."""

    def __init__(self, options: Mapping[str, str], schema: types.StructType, overwrite: bool) -> None:
        _append_only(overwrite, 'mode("append")')
        self._options = dict(options)
        self._job = uuid.uuid4().hex
        self._task = WriteTask(options, schema, self._job)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskOutput:
        return self._task(iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        with note_suggestions():
            settings, destination = write_settings(self._options)
            outputs = _sorted_outputs(messages)
            if self._task.publishes and any(output.rows for output in outputs):
                assert isinstance(destination, sdk.StagedDestination)
                try:
                    trio.run(publish_once, destination, settings.name, outputs)
                except Fenced as fenced:
                    fenced.suggestion = "write one after the other, or give each write a `name` of its own"
                    raise
        # Only now: until they are published, the rows of the job are nowhere but in these files.
        self._clear(settings)

    def abort(self, messages: Sequence[Any]) -> None:
        self._clear(write_settings(self._options)[0])

    def _clear(self, settings: WriteSettings) -> None:
        if settings.stage is not None:
            shutil.rmtree(stage_of(settings.stage, "", "", self._job), ignore_errors=True)


class StreamWriter(datasource.DataSourceStreamArrowWriter):
    """Writes each batch once, where the destination can; otherwise every task writes its own rows, at least once."""

    def __init__(self, options: Mapping[str, str], schema: types.StructType, overwrite: bool) -> None:
        _append_only(overwrite, 'outputMode("append")')
        self._options = dict(options)
        self._task = WriteTask(options, schema, "")
        settings, destination = write_settings(options)
        self._state = ""
        if self._task.publishes and not isinstance(destination, TransactionalDestination):
            self._state = _state(settings)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskOutput:
        return self._task(iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        outputs = _sorted_outputs(messages)
        if not self._task.publishes or not any(output.rows for output in outputs):
            return
        with note_suggestions():
            settings, destination = write_settings(self._options)
            assert isinstance(destination, sdk.StagedDestination)
            # Spark's id of the query outlives restarts, so the claims of a stream follow one another.
            owner = f"spark-{outputs[0].query}"
            trio.run(publish_batch, destination, owner, batchId, self._state, outputs)
        self._clear(settings, outputs, batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        self._clear(write_settings(self._options)[0], _sorted_outputs(messages), batchId)

    def _clear(self, settings: WriteSettings, outputs: Sequence[TaskOutput], batch: int) -> None:
        """Remove what was staged for this batch and, by attempts that failed, for earlier ones."""
        if settings.stage is None or not outputs:
            return
        for folder in (settings.stage / outputs[0].query).glob("*"):
            if folder.name.isdecimal() and int(folder.name) <= batch:
                shutil.rmtree(folder, ignore_errors=True)


def _append_only(overwrite: bool, instead: str) -> None:
    if overwrite:
        raise invalid(Problem("mode", "destinations can only be appended to, not overwritten", f"use {instead}"))


def _sorted_outputs(messages: Sequence[Any]) -> list[TaskOutput]:
    """The outputs in the order of the partitions. A task that failed has none."""
    return sorted((each for each in messages if isinstance(each, TaskOutput)), key=lambda output: output.partition)


def _state(settings: WriteSettings) -> str:
    """Where to remember what is published: the option `state`, or the folder of Spark's checkpoint."""
    if settings.state is not None:
        return settings.state
    location = settings.checkpointlocation or ""
    parts = urlsplit(location)
    folder = Path(parts.path if parts.scheme == "file" else location)
    # Spark has written this file by now, unless the same path means another file system to it.
    if location and (folder / "metadata").exists():
        return str(folder / "conduit")
    what = f"{settings.connector!r} needs a place to remember which batches are published"
    hint = 'a folder, with option("state", …), that is there when the query starts again'
    if not location:
        hint = f'give the query a checkpoint on this machine with option("checkpointLocation", …), or {hint}'
    raise invalid(Problem("state", what, hint))


QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


class WriteTask:
    """Created on the driver, which checks the options and the columns, and pickled for executors, which call it."""

    def __init__(self, options: Mapping[str, str], schema: types.StructType, job: str) -> None:
        self._options = dict(options)
        # Only the options are sent: each machine builds its own connector.
        settings, destination = write_settings(options)
        self._columns = RowDecoder(schema, settings.key_columns)
        self._folder = os.getcwd()
        self._job = job
        self.publishes = settings.delivery != "at_least_once" and isinstance(destination, sdk.StagedDestination)
        """Whether the driver publishes what tasks prepare."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> TaskOutput:
        with on_executor(self._folder):
            settings, destination = write_settings(self._options)
            context = TaskContext.get()
            assert context is not None
            partition, query = context.partitionId(), context.getLocalProperty(QUERY_ID) or ""
            records = self._records(iterate_rows(batches), partition)
            if not self.publishes:
                return trio.run(_write_partition, destination, settings.name, partition, records)
            folder = None
            if settings.stage is not None:
                folder = stage_of(settings.stage, query, context.getLocalProperty(BATCH_ID) or "", self._job)
            return pack_output(records, partition, query, folder)

    def _records(self, rows: Iterator[dict[str, Any]], partition: int) -> Iterator[Record]:
        for number, row in enumerate(rows):
            try:
                yield self._columns.record(row)
            except RecordRefused as reason:
                raise RowRefused(refused_row(number, partition, reason, row)) from reason


def stage_of(stage: Path, query: str, batch: str, job: str) -> Path:
    """The folder for the outputs of a job, or of a batch of a stream."""
    return stage / query / batch if query else stage / job


async def _write_partition(
    destination: sdk.DestinationConnector[Any], owner: str, partition: int, records: Iterator[Record]
) -> TaskOutput:
    rows = 0
    async with open_destination(destination, owner) as opened:
        while chunk := await trio.to_thread.run_sync(_next, records):
            await opened.deliver(partition, chunk)
            rows += len(chunk)
    return TaskOutput(partition, rows, 0)


def _next(records: Iterator[Record]) -> list[Record]:
    """The next rows. Called in a thread, because it may have to wait for them."""
    return list(itertools.islice(records, ROWS))
