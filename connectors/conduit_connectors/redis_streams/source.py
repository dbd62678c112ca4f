"""The Redis source: work from a stream, shared by the consumers of a group."""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Required, Unpack

import msgspec
from pydantic import Field, SecretStr

from conduit_connectors.objects import ObjectArguments, ObjectQueueOptions, ObjectReader
from conduit_connectors.redis_streams.connection import RedisConnection
from conduit_py.sdk import Dataset, FatalError, TransientError
from conduit_py.sdk.queue import LeasedQueue, QueueArguments, QueueDelivery, QueueSource

_GROUP = "conduit-py"
_FORGOTTEN_SECONDS = 3600

# Scripts, because the check and the change must be one step: another consumer may take the entry in between.
_OURS = """
local function ours(id, consumer, attempt)
    local pending = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)[1]
    return pending and pending[2] == consumer and pending[4] == tonumber(attempt) and pending
end
"""
_EXTEND = f"""{_OURS}
local pending = ours(ARGV[2], ARGV[3], ARGV[4])
if not pending or pending[3] >= tonumber(ARGV[5]) then return 0 end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, ARGV[2], 'IDLE', ARGV[6], 'JUSTID')
return 1
"""
_ACK = f"""{_OURS}
for index = 3, #ARGV, 3 do
    if ours(ARGV[index], ARGV[index + 1], ARGV[index + 2]) then
        redis.call('XACK', KEYS[1], ARGV[1], ARGV[index])
        if ARGV[2] == '1' then redis.call('XDEL', KEYS[1], ARGV[index]) end
    end
end
"""
# Deleting a consumer loses the entries that it holds, so only consumers that hold none are deleted.
_FORGET = """
for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
    local consumer = {}
    for index = 1, #flat, 2 do consumer[flat[index]] = flat[index + 1] end
    local over = consumer['name'] == ARGV[2] or consumer['idle'] >= tonumber(ARGV[3])
    if over and consumer['pending'] == 0 then
        redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer['name'])
    end
end
"""


class SourceOptions(ObjectQueueOptions):
    """Which stream, and what its entries are. `group` names the consumer group too."""

    url: SecretStr = Field(description="the server, as redis://user:password@host:port/database; rediss: with TLS")
    stream: str = Field(min_length=1, description="the key of the stream; it is created when missing")
    field: str = Field(default="body", min_length=1, description="the field of an entry that is the message")
    delete: bool = Field(default=False, description="remove an entry from the stream when it is done")
    wait_seconds: float = Field(default=1.0, gt=0, description="how long one request waits for entries")


class SourceArguments(QueueArguments, ObjectArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]
    stream: Required[str]
    field: str
    delete: bool
    wait_seconds: float


class Source(QueueSource[SourceOptions]):
    """Entries of a Redis stream, or the records of the objects that they announce.

    At-least-once; exactly-once in an exactly-once pipeline. In order within an announced object. An entry
    without the field is a message of all its fields as JSON. Workers of a group must have the same
    `commit_seconds`: it decides when an entry of another worker may be taken over.
    """

    requires: ClassVar = {"redis": "conduit-dataflow[redis]"}

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[Dataset]:
        return [Dataset.at_server(self.options.url.get_secret_value(), self.options.stream, port=6379)]

    def probe(self) -> str:
        return RedisQueue(self.options, 1.0).probe()

    def queue(self) -> LeasedQueue:
        return RedisQueue(self.options, self.options.terms.longest_seconds)

    def objects(self) -> ObjectReader:
        return ObjectReader(self.options)


class RedisQueue(LeasedQueue):
    """Delivers in the order of the stream, and again when an entry was idle for `lease_seconds_max`.

    Redis stores only how long an entry has been idle. So a lease that is shorter than the longest begins with
    the difference as its idle time.
    """

    receive_max = 1000

    def __init__(self, options: SourceOptions, lease_seconds_max: float) -> None:
        self._options = options
        self._group = options.group or _GROUP
        self._consumer = uuid.uuid4().hex
        self._lease_max = lease_seconds_max
        self._connection: RedisConnection | None = None

    def probe(self) -> str:
        """Return what is there, without creating anything."""
        self._connect()
        try:
            return f"the stream has {self._request('xlen', self._options.stream)} entries"
        finally:
            self._opened.close()

    def _connect(self) -> None:
        self._connection = RedisConnection(self._options.url, self._options.stream)

    def open(self) -> None:
        self._connect()
        try:
            self._request("xgroup_create", self._options.stream, self._group, id="0", mkstream=True)
        except FatalError as error:
            if "BUSYGROUP" not in error.message:
                raise
        self._forget("")

    def receive(self, count: int, lease_seconds: float) -> list[QueueDelivery]:
        taken = self._claim(count, lease_seconds)
        if len(taken) < count:
            taken += self._read(count - len(taken), lease_seconds, wait=not taken)
        return taken

    def extend(self, delivery: QueueDelivery, lease_seconds: float) -> None:
        arguments = (*_parts(delivery), _ms(self._lease_max), self._idle(lease_seconds))
        if not self._request("eval", _EXTEND, 1, self._options.stream, self._group, *arguments):
            raise LookupError(f"entry {delivery.id} of {self._options.stream} is not held any more")

    def ack(self, deliveries: Sequence[QueueDelivery]) -> None:
        parts = [part for delivery in deliveries for part in _parts(delivery)]
        self._request("eval", _ACK, 1, self._options.stream, self._group, int(self._options.delete), *parts)

    def close(self) -> None:
        if self._connection is not None:
            # If this fails, the next consumer that opens the queue deletes this one.
            with suppress(TransientError, FatalError):
                self._forget(self._consumer)
            self._connection.close()

    def _claim(self, count: int, lease_seconds: float) -> list[QueueDelivery]:
        """Take entries whose lease is over, of any consumer, oldest first."""
        stream, group, idle = self._options.stream, self._group, _ms(self._lease_max)
        claimed = self._request("xautoclaim", stream, group, self._consumer, idle, count=count)[1]
        deliveries = []
        for id, fields in claimed:
            [pending] = self._request("xpending_range", stream, group, id, id, 1) or [{"times_delivered": 1}]
            deliveries.append(self._delivery(id, fields, pending["times_delivered"]))
        self._shorten(deliveries, lease_seconds)
        return deliveries

    def _read(self, count: int, lease_seconds: float, *, wait: bool) -> list[QueueDelivery]:
        """Read entries that were never delivered."""
        block = _ms(self._options.wait_seconds) if wait else None
        stream = self._options.stream
        answer = self._request("xreadgroup", self._group, self._consumer, {stream: ">"}, count=count, block=block)
        entries = [entry for _, chunk in _pairs(answer) for entry in _flat(chunk)]
        deliveries = [self._delivery(id, fields, 1) for id, fields in entries]
        self._shorten(deliveries, lease_seconds)
        return deliveries

    def _shorten(self, deliveries: Sequence[QueueDelivery], lease_seconds: float) -> None:
        if deliveries and lease_seconds < self._lease_max:
            ids = [delivery.id for delivery in deliveries]
            stream, idle = self._options.stream, self._idle(lease_seconds)
            self._request("xclaim", stream, self._group, self._consumer, 0, ids, idle=idle, justid=True)

    def _delivery(self, id: bytes, fields: Mapping[bytes, bytes], attempt: int) -> QueueDelivery:
        name = id.decode()
        attributes = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in fields.items()}
        body = fields.get(self._options.field.encode())
        if body is None:
            body = msgspec.json.encode(attributes)
        attributes.pop(self._options.field, None)
        return QueueDelivery(name, f"{name}/{self._consumer}/{attempt}", body, attempt, attributes)

    def _idle(self, lease_seconds: float) -> int:
        return max(0, _ms(self._lease_max) - _ms(lease_seconds))

    def _forget(self, consumer: str) -> None:
        """Delete this consumer, and those that have been idle for long, if they hold nothing."""
        self._request("eval", _FORGET, 1, self._options.stream, self._group, consumer, _ms(_FORGOTTEN_SECONDS))

    def _request(self, command: str, *arguments: Any, **more: Any) -> Any:
        return self._opened.request(command, *arguments, **more)

    @property
    def _opened(self) -> RedisConnection:
        assert self._connection is not None, "the queue is not open"
        return self._connection


def _pairs(answer: Any) -> list[tuple[bytes, Any]]:
    """Return streams and their entries: RESP2 has pairs, RESP3 a mapping."""
    return list(answer.items()) if isinstance(answer, Mapping) else [tuple(each) for each in answer or []]


def _flat(chunk: Any) -> list[tuple[bytes, Mapping[bytes, bytes]]]:
    return [entry for part in chunk for entry in part] if chunk and isinstance(chunk[0], list) else chunk


def _parts(delivery: QueueDelivery) -> tuple[str, str, str]:
    id, consumer, attempt = delivery.handle.split("/")
    return id, consumer, attempt


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000)) if seconds > 0 else 0
