"""CheckpointedSource: the base of sources whose system has checkpoints that are coarser than a record."""

import hashlib
import inspect
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec

from conduit_py import metadata
from conduit_py.positions import foreign_position
from conduit_py.record import CollectionSchema, Record
from conduit_py.sdk.plugin import OptionsT
from conduit_py.sdk.source import EndOfSource, NothingYet, Reading, SourceConnector

RECENT_MAX = 50


class SourceCheckpoint(msgspec.Struct, frozen=True):
    """A value from which the system of a source continues: what comes after it follows all records before it.

    The value has a JSON form: text, numbers, lists, dicts. The same value as that of the last checkpoint is ignored.
    """

    value: Any


class UnreadableRecord(msgspec.Struct, frozen=True):
    """A record that could not be parsed: the raw bytes that came, and why. It becomes a dead letter."""

    record: Record
    reason: str


Fetched: TypeAlias = Sequence[Record | UnreadableRecord | SourceCheckpoint | CollectionSchema]
"""Records and checkpoints, in order, and schemas, each before the first of its records. No record has a position."""


class CheckpointedSource(SourceConnector[OptionsT]):
    """Gives each record a position of its own, though the system can continue only from checkpoints.

    A subclass implements `resume` and `fetch`, both sync or both async. The position of a record is the last checkpoint
    before it, the number of records since, and a hash of those. After a restart the system is read from the checkpoint
    and the records that were delivered are dropped. If they do not come again as they were, all are given again:
    records are repeated, and none is skipped. So a source whose system repeats its order is exact, and any other is
    at-least-once even in an exactly-once pipeline.
    """

    inclusive: ClassVar[bool] = False
    """True if the system gives records again that it gave before a checkpoint, as one that filters with `>=` does.

    Then a position also has hashes of the last 50 records before the checkpoint. Of the first records after a restart
    those with a known hash are dropped, each as often as it was there. Two different records must not have the same
    content then. Of more than 50 records given again, the older ones are repeated.
    """

    # Names with two underscores: a subclass that has a `_count` of its own must not change ours.
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # The runtime asks whether a method is async before it calls it.
        if inspect.iscoroutinefunction(cls.fetch):
            if cls.open is CheckpointedSource.open:
                cls.open = cls.__open_async  # type: ignore[method-assign]
            if cls.read is CheckpointedSource.read:
                cls.read = cls.__read_async  # type: ignore[method-assign]

    @abstractmethod
    def resume(self, checkpoint: Any) -> Awaitable[None] | None:
        """Get ready to fetch what follows this checkpoint; None is from the beginning.

        It is called again, in a `read`, if the records that were delivered before a restart do not come again.
        """

    @abstractmethod
    def fetch(self, n: int) -> Awaitable[Fetched] | Fetched:
        """Wait for records, checkpoints and schemas and return them in order, at most `n` records.

        Raise EndOfSource when there will never be more, NothingYet when there is none now. A `fetch` that is cancelled
        (async) or ended by `stop` must not lose a record for the next one.
        """

    def fingerprint(self, record: Record) -> bytes:
        """Return bytes that are the same for the same record after a restart: of its content, not of its metadata."""
        collection = record.metadata.get(metadata.COLLECTION)
        content = (record.operation.value, collection, record.key, record.payload.before, record.payload.after)
        return _ENCODER.encode(content)

    def open(self, position: bytes | None) -> Awaitable[None] | None:
        self.resume(self.__restore(position))
        return None

    def read(self, n: int) -> Awaitable[Reading] | Reading:
        while (reading := self.__take(n)) is None:
            try:
                fetched: Any = self.fetch(n)
            except (EndOfSource, NothingYet):
                if not self.__came or not self.__delivered:
                    raise
                fetched = None
            if fetched is None or not self.__add(fetched):
                self.resume(self.__give_all_again())
        return reading

    async def __open_async(self, position: bytes | None) -> None:
        await self.resume(self.__restore(position))  # type: ignore[misc]

    async def __read_async(self, n: int) -> Reading:
        while (reading := self.__take(n)) is None:
            try:
                fetched: Fetched | None = await self.fetch(n)  # type: ignore[misc]
            except (EndOfSource, NothingYet):
                if not self.__came or not self.__delivered:
                    raise
                fetched = None
            if fetched is None or not self.__add(fetched):
                await self.resume(self.__give_all_again())  # type: ignore[misc]
        return reading

    def check_position(self, position: bytes) -> None:
        _decode(position)

    def __restore(self, position: bytes | None) -> Any:
        self.__start = _Position(None) if position is None else _decode(position)
        self.__delivered = self.__start.count
        """How many of the next records were delivered before the restart."""
        return self.__rewind()

    def __give_all_again(self) -> Any:
        """Return the checkpoint to resume from, if what was delivered does not come again as it was.

        That is so for fewer records too: those that came must not wait for more, which may come much later.
        """
        self.__delivered = 0
        return self.__rewind()

    def __rewind(self) -> Any:
        recent = self.__start.recent
        self.__recent = deque(recent, maxlen=RECENT_MAX)
        """Hashes of the last records, in order."""
        self.__known = Counter(recent)
        """Hashes of records before the checkpoint that may be given again."""
        self.__delivered_hash, self.__came = "", False
        self.__ready: deque[Record | CollectionSchema | bytes] = deque()
        """Records with their positions; bytes are progress."""
        self.__schemas: dict[str, CollectionSchema] = {}
        """The schemas that the next reading announces, by collection."""
        self.__unreadable: dict[bytes, str] = {}
        """Why a record of those could not be parsed, by its position."""
        self.__begin(self.__start.checkpoint, recent)
        return self.__start.checkpoint

    def __begin(self, checkpoint: Any, recent: Sequence[str]) -> None:
        self.__checkpoint, self.__count, self.__hash = checkpoint, 0, ""
        # All positions up to the next checkpoint begin with this, and it is longer than the rest.
        content = {"checkpoint": checkpoint, "recent": recent if self.inclusive else ()}
        self.__beginning = _ENCODER.encode(content).removesuffix(b"}")

    def __position(self) -> bytes:
        return b'%s,"count":%d,"hash":"%s"}' % (self.__beginning, self.__count, self.__hash.encode())

    def __add(self, fetched: Fetched) -> bool:
        """Give what was fetched its positions. Returns False if the first records are not those that were delivered."""
        for item in fetched:
            if isinstance(item, CollectionSchema):
                self.__ready.append(item)
                continue
            self.__came = True
            each = item.record if isinstance(item, UnreadableRecord) else item
            if isinstance(each, Record) and self.__known:
                name = self.__name(each)
                if self.__known[name]:
                    self.__known[name] -= 1
                    continue
                self.__known.clear()
            self.__append(each)
            if isinstance(item, UnreadableRecord):
                self.__unreadable[item.record.position] = item.reason
            if not self.__delivered:
                continue
            # Not kept: there may be millions. If they prove to be others, they are fetched once more.
            self.__schemas |= {each.collection: each for each in self.__ready if isinstance(each, CollectionSchema)}
            self.__ready.clear()
            self.__unreadable.clear()
            if isinstance(each, Record):
                self.__delivered -= 1
                self.__delivered_hash = _chain(self.__delivered_hash, self.__name(each))
                if not self.__delivered and self.__delivered_hash != self.__start.hash:
                    return False
        return True

    def __append(self, each: Record | SourceCheckpoint) -> None:
        if isinstance(each, Record):
            name = self.__name(each)
            self.__recent.append(name)
            self.__count, self.__hash = self.__count + 1, _chain(self.__hash, name)
            each.position = self.__position()
            self.__ready.append(each)
        elif each.value != self.__checkpoint:
            self.__begin(each.value, tuple(self.__recent))
            self.__ready.append(self.__position())

    def __take(self, n: int) -> Reading | None:
        records: list[Record] = []
        refused: dict[int, str] = {}
        position: bytes | None = None
        while self.__ready and (not isinstance(self.__ready[0], Record) or len(records) < n):
            # A reading has no records of before a change.
            if records and isinstance(self.__ready[0], CollectionSchema):
                break
            each = self.__ready.popleft()
            if isinstance(each, bytes):
                position = each
            elif isinstance(each, CollectionSchema):
                self.__schemas[each.collection] = each
            else:
                if each.position in self.__unreadable:
                    refused[len(records)] = self.__unreadable.pop(each.position)
                records.append(each)
                position = None
        if not records and position is None:
            return None
        schemas = tuple(self.__schemas.values()) if records else ()
        if records:
            self.__schemas = {}
        return Reading(records, refused, position, schemas=schemas)

    def __name(self, record: Record) -> str:
        return hashlib.blake2b(self.fingerprint(record), digest_size=8).hexdigest()


class _Position(msgspec.Struct, frozen=True):
    checkpoint: Any
    recent: tuple[str, ...] = ()
    """Hashes of the last records before the checkpoint, the oldest first."""
    count: int = 0
    """The number of records since the checkpoint."""
    hash: str = ""
    """The hash of those."""


def _decode(position: bytes) -> _Position:
    try:
        return _DECODER.decode(position)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise foreign_position(position, "a source with checkpoints", error) from error


def _chain(before: str, name: str) -> str:
    return hashlib.blake2b((before + name).encode(), digest_size=8).hexdigest()


_ENCODER = msgspec.json.Encoder(order="sorted")
_DECODER = msgspec.json.Decoder(_Position)
