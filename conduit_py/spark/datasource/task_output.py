"""TaskOutput: the records of one task for the driver, in the task's answer or in a file that both can see."""

import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from pyspark.sql.datasource import WriterCommitMessage

from conduit_py.errors import FatalError
from conduit_py.record import Record
from conduit_py.record_codec import decode_record, encode_record

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
