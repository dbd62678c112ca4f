"""How the driver publishes what tasks have prepared: all of it or nothing, and each batch of a stream once.

TaskOutput takes the records of a task to the driver, in the task's answer or in a file that both can see.
"""

import os
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql.datasource import WriterCommitMessage

from conduit_py import sdk
from conduit_py.batch import Batch, Span
from conduit_py.crash_point import reach
from conduit_py.errors import FatalError, RecordRefused
from conduit_py.record import Record
from conduit_py.record_codec import decode_record, encode_record
from conduit_py.sdk.destination import AckMode, TransactionalDestination, refusal_text
from conduit_py.spark.datasource.rows import refused_row
from conduit_py.store.claim import Changes
from conduit_py.store.store import open_store
from conduit_py.stream.ack_reader import answers_about
from conduit_py.stream.plugin_calls import PluginCaller, PluginErrors, check_refusals

ROWS = 1024
"""Records that are packed together."""
INLINE_MAX = 64 * 1024 * 1024
"""The most bytes in the answer of a task: Spark's driver holds the answers of all tasks in memory."""


@dataclass(frozen=True)
class TaskOutput(WriterCommitMessage):
    """What a task has prepared. `query` is the id of its stream, or empty."""

    partition: int
    rows: int
    size: int
    query: str = ""
    inline: bytes = b""
    file: str = ""

    def records(self) -> Iterator[list[Record]]:
        if not self.file:
            yield from _unpack(self.inline)
            return
        try:
            content = Path(self.file).read_bytes()
        except FileNotFoundError:
            content = b""
        # A folder that is not shared, or not synced between machines yet, would lose rows in silence.
        if len(content) != self.size:
            raise FatalError(
                f"of the {self.size} bytes that a task left in {self.file}, {len(content)} are there",
                suggestion="set `stage` to a folder that the driver and all executors share",
            )
        yield from _unpack(content)


def pack_output(records: Iterable[Record], partition: int, query: str, folder: Path | None) -> TaskOutput:
    """Pack the records, into a file in `folder` if there is one; without it at most INLINE_MAX bytes."""
    if folder is None:
        return _inline(records, partition, query)
    folder.mkdir(parents=True, exist_ok=True)
    # A new name for every attempt: an attempt that Spark gave up may still be writing to its file.
    file = folder / f"{partition}-{uuid.uuid4().hex}"
    rows = 0
    # Not synced: until the driver has published the rows, a crash makes Spark run the tasks again.
    with file.open("wb") as stream:
        for count, chunk in _chunks(records):
            stream.write(chunk)
            rows += count
        size = stream.tell()
    return TaskOutput(partition, rows, size, query, file=os.fspath(file))


def _inline(records: Iterable[Record], partition: int, query: str) -> TaskOutput:
    rows, content = 0, bytearray()
    for count, chunk in _chunks(records):
        content += chunk
        rows += count
        if len(content) > INLINE_MAX:
            raise FatalError(
                f"partition {partition} has more than {INLINE_MAX} bytes, too much to go through Spark's driver",
                suggestion="set the option `stage` to a shared folder, use more partitions, or let tasks write by "
                'themselves with delivery="at_least_once"',
            )
    return TaskOutput(partition, rows, len(content), query, inline=bytes(content))


def _chunks(records: Iterable[Record]) -> Iterator[tuple[int, bytes]]:
    waiting: list[bytes] = []
    for record in records:
        waiting.append(encode_record(record))
        if len(waiting) == ROWS:
            yield len(waiting), _frame(waiting)
            waiting = []
    if waiting:
        yield len(waiting), _frame(waiting)


def _frame(records: list[bytes]) -> bytes:
    chunk = msgspec.msgpack.encode(records)
    return len(chunk).to_bytes(8, "big") + chunk


def _unpack(content: bytes) -> Iterator[list[Record]]:
    view, start = memoryview(content), 0
    while start < len(view):
        stop = start + 8 + int.from_bytes(view[start : start + 8], "big")
        yield [decode_record(record) for record in msgspec.msgpack.decode(view[start + 8 : stop], type=list[bytes])]
        start = stop


NODE = "destination"


class RowRefused(FatalError):
    """A row cannot be written. Spark has no dead letters, so the job fails."""

    code = "row.refused"


class RowDestination:
    """An open destination that must take every row. Rows are numbered by partition: their delivery keys need that."""

    def __init__(self, calls: PluginCaller, owner: str) -> None:
        self._calls = calls
        self._owner = owner
        self._rows: dict[int, int] = {}

    async def call(self, name: str, *args: Any) -> Any:
        with PluginErrors(NODE, name):
            return await self._calls(name, *args)

    async def write(self, partition: int, records: list[Record]) -> Batch:
        """Write the next rows of the partition. Raises RowRefused for the first that is refused."""
        first = self._rows.get(partition, 0)
        # By partition and row, so that a task that Spark repeats gives its rows the same delivery keys.
        positions = [b"%d:%d" % (partition, first + index) for index in range(len(records))]
        batch = Batch.whole(Span(self._owner, "spark", first, positions), records)
        self._rows[partition] = first + len(records)
        with PluginErrors(NODE, "write"):
            refused = check_refusals(NODE, await self._write(batch), len(batch))
        for index, reason in refused.items():
            raise RowRefused(refused_row(first + index, partition, RecordRefused(reason), records[index]))
        return batch

    async def _write(self, batch: Batch) -> Any:
        try:
            return await self._calls("write", batch)
        except RecordRefused as error:
            return dict.fromkeys(range(len(batch)), refusal_text(error))

    async def deliver(self, partition: int, records: list[Record]) -> None:
        """Write these rows and wait until the destination has handled them."""
        batch = await self.write(partition, records)
        plugin = self._calls.plugin
        assert isinstance(plugin, sdk.DestinationConnector)
        if plugin.acks is not AckMode.WRITE:
            await self.call("flush")
        if plugin.acks is not AckMode.LATER:
            return
        for index, reason in (await answers_about(NODE, self._calls, batch, {})).items():
            number = batch.sequences[index]
            raise RowRefused(refused_row(number, partition, RecordRefused(reason), records[index]))


@asynccontextmanager
async def open_destination(destination: sdk.DestinationConnector[Any], owner: str) -> AsyncIterator[RowDestination]:
    """Open the destination for one job. Tear it down afterwards, also after a failed open."""
    calls = PluginCaller(NODE, destination.fresh())
    rows = RowDestination(calls, owner)
    try:
        await rows.call("open")
        yield rows
    finally:
        try:
            await calls("teardown")
        finally:
            calls.close()


class PublishedBatch(msgspec.Struct, frozen=True, array_like=True):
    """The last committed batch of a stream, and its intent if that may not be applied yet."""

    batch: int
    intent: bytes | None = None

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, encoded: bytes | None) -> "PublishedBatch":
        return cls(-1) if encoded is None else msgspec.msgpack.decode(encoded, type=cls)


async def publish_once(destination: sdk.StagedDestination[Any], owner: str, outputs: Iterable[TaskOutput]) -> None:
    """Publish the rows of a job. A crash before that leaves nothing of them.

    Another writer with the same owner and place at the same time fences this one: then nothing is published.
    """
    async with open_destination(destination, owner) as rows:
        if isinstance(destination, TransactionalDestination):
            await rows.call("claim", owner, _fence())
            await _write_outputs(rows, outputs)
            await rows.call("commit", PublishedBatch(0).encode())
            return
        await rows.call("begin", owner, _fence(), [])
        await _write_outputs(rows, outputs)
        intent = await rows.call("stage")
        if intent is not None:
            await rows.call("apply", intent)


async def publish_batch(
    destination: sdk.StagedDestination[Any], owner: str, batch: int, state: str, outputs: Iterable[TaskOutput]
) -> None:
    """Publish the rows of one batch of a stream, unless it or a later one was published before.

    A database keeps the number of the batch with its rows, in one transaction. For any other destination the store
    at `state` keeps it with the intent, between staging and applying.
    """
    async with open_destination(destination, owner) as rows:
        if isinstance(destination, TransactionalDestination):
            last = PublishedBatch.decode(await rows.call("claim", owner, _fence()))
            # A batch that Spark runs again after a crash is in the database already.
            if batch > last.batch:
                await _write_outputs(rows, outputs)
                await rows.call("commit", PublishedBatch(batch).encode())
            return
        async with await open_store(state) as store:
            claim = await store.claim(owner)
            last = PublishedBatch.decode(claim.checkpoint)
            await rows.call("begin", owner, claim.fence, [] if last.intent is None else [last.intent])
            # Spark runs a batch again whose end it has not noted.
            if batch <= last.batch:
                return
            await _write_outputs(rows, outputs)
            intent = await rows.call("stage")
            reach("spark.format.before_commit")
            # With the intent: after a crash from here on it is applied again; a crash before this leaves nothing.
            await claim.commit(Changes(claim.committed + 1, PublishedBatch(batch, intent).encode()))
            reach("spark.format.before_apply")
            if intent is not None:
                await rows.call("apply", intent)


async def _write_outputs(rows: RowDestination, outputs: Iterable[TaskOutput]) -> None:
    for output in outputs:
        for records in output.records():
            await rows.write(output.partition, records)


def _fence() -> int:
    """Higher than that of any earlier claim. Only the clock can provide that: nothing counts the claims."""
    return time.time_ns()
