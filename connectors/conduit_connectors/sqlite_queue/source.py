"""The source over a queue in a SQLite file."""

from pathlib import Path

from pydantic import Field

from conduit_connectors.objects import ObjectOptions, ObjectReader
from conduit_connectors.sqlite_queue.queue import SqliteQueue
from conduit_py.lease.options import QueueOptions
from conduit_py.lease.queue import LeasedQueue
from conduit_py.lease.source import QueueSource


class SourceOptions(QueueOptions, ObjectOptions):
    """Where the queue is, and what its messages are."""

    path: Path = Field(description="the SQLite file")


class Source(QueueSource[SourceOptions]):
    """Messages of a queue in a SQLite file, or the records of the objects that they announce.

    At least once; exactly once in a pipeline that says so. In order within an announced object.
    """

    def queue(self) -> LeasedQueue:
        return SqliteQueue(self.options.path)

    def objects(self) -> ObjectReader:
        return ObjectReader(self.options)
