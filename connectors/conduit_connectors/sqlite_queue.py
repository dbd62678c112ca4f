"""A leased queue in a SQLite file: for one machine, with any number of processes."""

import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Required, TypedDict, TypeVar, Unpack

import msgspec
from pydantic import Field

from conduit_connectors.objects import ObjectArguments, ObjectQueueOptions, ObjectReader
from conduit_connectors.sqlite import keep_log, probe_file
from conduit_py import sdk
from conduit_py.sdk import Batch, Data, Options, RecordRefused, encode_json
from conduit_py.sdk.queue import LeasedQueue, QueueArguments, QueueDelivery, QueueSource

_SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    body BLOB NOT NULL,
    attributes BLOB NOT NULL,
    visible_at REAL NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    holder TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS messages_by_time ON messages (visible_at, number);
"""
_VERSION = 1
_LOOK_SECONDS = 0.05
_BUSY_SECONDS = 30.0

T = TypeVar("T")

_ATTRIBUTES = msgspec.json.Decoder(dict[str, str])


class SqliteQueue(LeasedQueue):
    """`send` returns when its messages are on the disk. They are delivered in order, and again when a lease ends.

    Leases go by the wall clock, so the processes that share a queue must share a machine.
    """

    receive_max = 1000

    def __init__(self, path: str | Path, *, wait_seconds: float = 1.0) -> None:
        self._path = path
        self._wait_seconds = wait_seconds
        self._connection: sqlite3.Connection | None = None
        # Several threads call the methods, and a connection can serve one at a time.
        self._lock = threading.Lock()

    def open(self) -> None:
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            keep_log(connection)
            connection.execute("PRAGMA synchronous = FULL")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _VERSION):
                raise ValueError(f"{self._path} is a queue of version {version}; known is {_VERSION}")
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def send(self, bodies: Sequence[bytes], attributes: Mapping[str, str] | None = None) -> list[str]:
        """Add messages, all of them or none; return their ids."""
        ids = [uuid.uuid4().hex for _ in bodies]
        rows = zip(ids, bodies, [msgspec.json.encode(attributes or {})] * len(ids), strict=True)
        self._write(
            lambda connection: connection.executemany(
                "INSERT INTO messages (id, body, attributes, visible_at) VALUES (?, ?, ?, 0)", rows
            )
        )
        return ids

    def receive(self, count: int, lease_seconds: float) -> list[QueueDelivery]:
        give_up_at = time.monotonic() + self._wait_seconds
        while not (taken := self._take(count, lease_seconds)) and time.monotonic() < give_up_at:
            time.sleep(_LOOK_SECONDS)
        return taken

    def extend(self, delivery: QueueDelivery, lease_seconds: float) -> None:
        number, holder = _parts(delivery)
        now = time.time()
        changed = self._write(
            lambda connection: (
                connection.execute(
                    "UPDATE messages SET visible_at = ? WHERE number = ? AND holder = ? AND visible_at > ?",
                    (now + lease_seconds, number, holder, now),
                ).rowcount
            )
        )
        if not changed:
            raise LookupError(f"message {delivery.id} is not held any more")

    def ack(self, deliveries: Sequence[QueueDelivery]) -> None:
        self._write(
            lambda connection: connection.executemany(
                "DELETE FROM messages WHERE number = ? AND holder = ?", map(_parts, deliveries)
            )
        )

    def __len__(self) -> int:
        """The number of messages, leased or not."""
        with self._lock:
            (count,) = self._open.execute("SELECT count(*) FROM messages").fetchone()
        return int(count)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _take(self, count: int, lease_seconds: float) -> list[QueueDelivery]:
        now, holder = time.time(), uuid.uuid4().hex
        # Polling an empty queue must not take the write lock: it would block the senders.
        with self._lock:
            if not self._open.execute("SELECT 1 FROM messages WHERE visible_at <= ? LIMIT 1", (now,)).fetchone():
                return []
        rows = self._write(
            lambda connection: connection.execute(
                "UPDATE messages SET visible_at = ?, holder = ?, attempt = attempt + 1 WHERE number IN"
                " (SELECT number FROM messages WHERE visible_at <= ? ORDER BY number LIMIT ?)"
                " RETURNING number, id, body, attempt, attributes",
                (now + lease_seconds, holder, now, count),
            ).fetchall()
        )
        return [
            QueueDelivery(id, f"{number}/{holder}", body, attempt, _ATTRIBUTES.decode(attributes))
            for number, id, body, attempt, attributes in sorted(rows)
        ]

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None, "the queue is not open"
        return self._connection

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            connection = self._open
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            return result


def _parts(delivery: QueueDelivery) -> tuple[int, str]:
    number, _, holder = delivery.handle.partition("/")
    return int(number), holder


class SourceOptions(ObjectQueueOptions):
    """Where the queue is, and what its messages are."""

    path: Path = Field(description="the SQLite file")


class SourceArguments(QueueArguments, ObjectArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    path: Required[str | Path]


class Source(QueueSource[SourceOptions]):
    """Messages of a queue in a SQLite file, or the records of the objects that they announce.

    At-least-once; exactly-once in an exactly-once pipeline. In order within an announced object.
    """

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[sdk.Dataset]:
        return [sdk.Dataset.at(str(self.options.path))]

    def probe(self) -> str:
        return probe_file(self.options.path)

    def queue(self) -> LeasedQueue:
        return SqliteQueue(self.options.path)

    def objects(self) -> ObjectReader:
        return ObjectReader(self.options)


class DestinationOptions(Options):
    """Where the queue is."""

    path: Path = Field(description="the SQLite file")


class DestinationArguments(TypedDict, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    path: Required[str | Path]


class Destination(sdk.DestinationConnector[DestinationOptions]):
    """Sends each record as a message: raw bytes unchanged, structured data as JSON. At-least-once."""

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[sdk.Dataset]:
        return [sdk.Dataset.at(str(self.options.path))]

    def probe(self) -> str:
        return probe_file(self.options.path)

    def open(self) -> None:
        self._queue = SqliteQueue(self.options.path)
        self._queue.open()

    def write(self, batch: Batch) -> Mapping[int, str]:
        refused: dict[int, str] = {}
        bodies: list[bytes] = []
        for index, record in enumerate(batch):
            try:
                bodies.append(_body(record.payload.after))
            except RecordRefused as error:
                refused[index] = error.message
        self._queue.send(bodies)
        return refused

    def teardown(self) -> None:
        self._queue.close()


def _body(data: Data) -> bytes:
    if data is None:
        raise RecordRefused("has no payload.after, so there is nothing to send")
    return data if isinstance(data, bytes) else encode_json(data)
