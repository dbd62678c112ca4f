"""The Redis destination: entries of a stream, with the pipeline's checkpoint in the same server."""

from collections.abc import Sequence
from typing import Any, ClassVar, Required, Unpack

import msgspec
from pydantic import Field, SecretStr

from conduit_connectors.message_content import MessageArguments, MessageContent, MessageOptions, encode_messages
from conduit_connectors.redis_streams.connection import RedisConnection, load_redis
from conduit_py import sdk
from conduit_py.sdk import Batch, FatalError, Fenced

_ANSWER_SECONDS = 30.0

# Scripts, because the server runs each as a whole: entries and checkpoint are there together, or not at all.
_CLAIM = """
local fence = redis.call('HGET', KEYS[1], 'fence')
if fence and tonumber(fence) > tonumber(ARGV[1]) then return redis.error_reply('CONDUITFENCED ' .. fence) end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
return redis.call('HGET', KEYS[1], 'changes')
"""
# Stages and commits have numbers that only grow: one that arrives again, because its answer was lost, does nothing.
_APPEND = """
local how, fence, number = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if how == 'commit' and redis.call('HGET', KEYS[2], 'fence') ~= ARGV[2] then
    return redis.error_reply('CONDUITFENCED')
end
if how ~= 'write' then
    local done = redis.call('HMGET', KEYS[2], 'applied_fence', 'applied')
    local done_fence, done_number = tonumber(done[1] or '0'), tonumber(done[2] or '0')
    if fence < done_fence or (fence == done_fence and number <= done_number) then return 0 end
end
local at = 6
while at <= #ARGV do
    local count = tonumber(ARGV[at])
    if ARGV[5] == '' then
        redis.call('XADD', KEYS[1], '*', unpack(ARGV, at + 1, at + count))
    else
        redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[5], '*', unpack(ARGV, at + 1, at + count))
    end
    at = at + count + 1
end
if how ~= 'write' then redis.call('HSET', KEYS[2], 'applied_fence', ARGV[2], 'applied', ARGV[3]) end
if how == 'commit' then redis.call('HSET', KEYS[2], 'changes', ARGV[4]) end
return 1
"""


class DestinationOptions(MessageOptions):
    """Which stream, and what its entries are."""

    url: SecretStr = Field(description="the server, as redis://user:password@host:port/database; rediss: with TLS")
    stream: str = Field(min_length=1, description="the key of the stream; it is created when missing")
    field: str = Field(default="body", min_length=1, description="the field of an entry that is the message")
    key_field: str | None = Field(default=None, min_length=1, description="the field for the record's key; None: none")
    length_max: int | None = Field(default=None, ge=1, description="about how many entries the stream keeps; None: all")


class DestinationArguments(MessageArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]
    stream: Required[str]
    field: str
    key_field: str | None
    length_max: int | None


class StagedEntries(msgspec.Struct, frozen=True, array_like=True):
    """An intent: entries to append, identified by the fence and number under which they were staged."""

    fence: int
    number: int
    entries: list[list[bytes]]


class Destination(sdk.TransactionalDestination[DestinationOptions]):
    """Appends each record to a stream, in order. Transactional.

    Exactly-once in an exactly-once pipeline: a script appends the entries of a transaction and stores the pipeline's
    checkpoint, in the key `<stream>:conduit:<pipeline>`, in one step. If another destination carries the commit, it
    stages: the intent holds the entries, and a script appends them once. At-least-once in any other pipeline, where a
    batch is appended as a whole or not at all.

    A record is as durable as the server makes it: a server that loses what it has confirmed loses acked records. Let it
    run with `appendonly yes` and `appendfsync always`. Clusters are not supported.
    """

    requires: ClassVar = {"redis": "conduit-dataflow[redis]"}
    _connection: RedisConnection | None = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[sdk.Dataset]:
        return [sdk.Dataset.at_server(self.options.url.get_secret_value(), self.options.stream, port=6379)]

    @property
    def claims(self) -> str:
        server = self.options.url.get_secret_value().rpartition("@")[2].partition("?")[0]
        return (
            f"the stream {self.options.stream} of Redis at {server.removeprefix('redis://').removeprefix('rediss://')}"
        )

    def probe(self) -> str:
        connection = self._connect()
        try:
            return f"the stream has {connection.request('xlen', self.options.stream)} entries"
        finally:
            connection.close()

    def open(self) -> None:
        self._connection = self._connect()
        # Now, not with the first record: a key that is no stream, a wrong password.
        self._connection.request("xlen", self.options.stream)
        self._checkpoint: str | None = None
        self._fence = 0
        self._number = 0
        self._entries: list[list[bytes]] = []
        """What is written and not yet committed or staged."""

    def claim(self, owner: str, fence: int) -> bytes | None:
        self._checkpoint, self._fence = self._key_of(owner), fence
        try:
            changes: bytes | None = self._opened.request("eval", _CLAIM, 1, self._checkpoint, fence)
        except FatalError as error:
            raise self._fenced(error) from error
        return changes

    def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> None:
        for intent in intents:
            self.apply(intent)

    def write(self, batch: Batch) -> dict[int, str]:
        messages, refused = encode_messages(batch, self.options)
        entries = [self._fields(message) for message in messages.values()]
        if self._checkpoint is not None:
            self._entries += entries
        elif entries:
            self._append(self._opened, "write", self.options.stream, 0, 0, entries)
        return refused

    def commit(self, changes: bytes) -> None:
        assert self._checkpoint is not None, "claimed"
        self._number += 1
        try:
            self._append(self._opened, "commit", self._checkpoint, self._fence, self._number, self._entries, changes)
        except FatalError as error:
            raise self._fenced(error) from error
        self._entries = []

    def stage(self) -> bytes | None:
        if not self._entries:
            return None
        self._number += 1
        stage = StagedEntries(self._fence, self._number, self._entries)
        self._entries = []
        return msgspec.msgpack.encode(stage)

    def apply(self, intent: bytes) -> None:
        assert self._checkpoint is not None, "claimed"
        self._apply(self._opened, self._checkpoint, intent)

    def apply_for(self, owner: str, intent: bytes) -> bool:
        # With a connection of its own: it is called beside other calls.
        connection = self._connect()
        try:
            checkpoint = self._key_of(owner)
            if not connection.request("exists", checkpoint):
                return False
            self._apply(connection, checkpoint, intent)
        finally:
            connection.close()
        return True

    def teardown(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> RedisConnection:
        # The library would send a script again whose answer was lost, and records would be there twice.
        never = load_redis().retry.Retry(load_redis().backoff.NoBackoff(), 0)
        return RedisConnection(self.options.url, self.options.stream, retry=never, socket_timeout=_ANSWER_SECONDS)

    def _apply(self, connection: RedisConnection, checkpoint: str, intent: bytes) -> None:
        stage = msgspec.msgpack.decode(intent, type=StagedEntries)
        self._append(connection, "apply", checkpoint, stage.fence, stage.number, stage.entries)

    def _append(
        self,
        connection: RedisConnection,
        how: str,
        checkpoint: str,
        fence: int,
        number: int,
        entries: Sequence[Sequence[bytes]],
        changes: bytes = b"",
    ) -> None:
        length_max = self.options.length_max
        flat: list[Any] = [how, fence, number, changes, "" if length_max is None else length_max]
        for fields in entries:
            flat += (len(fields), *fields)
        connection.request("eval", _APPEND, 2, self.options.stream, checkpoint, *flat)

    def _fields(self, message: MessageContent) -> list[bytes]:
        options = self.options
        fields = {name: value.encode() for name, value in message.attributes.items()}
        if options.key_field is not None and message.key is not None:
            fields[options.key_field] = message.key
        fields[options.field] = message.body
        return [part for name, value in fields.items() for part in (name.encode(), value)]

    def _key_of(self, owner: str) -> str:
        return f"{self.options.stream}:conduit:{owner}"

    def _fenced(self, error: FatalError) -> FatalError:
        if "CONDUITFENCED" not in error.message:
            return error
        return Fenced(
            f"{self._checkpoint} in Redis has a newer run of the pipeline than this one of fence {self._fence}: "
            "another process runs it, or the state directory is not the one that was used before",
            suggestion="run a pipeline in one place at a time, always with the same state directory",
        )

    @property
    def _opened(self) -> RedisConnection:
        assert self._connection is not None, "opened"
        return self._connection
