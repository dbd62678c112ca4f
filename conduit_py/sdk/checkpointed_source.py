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
from conduit_py.record import Record
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


Fetched: TypeAlias = Sequence[Record | UnreadableRecord | SourceCheckpoint]
"""Records and checkpoints, in order. Records have no position yet."""


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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # The runtime asks whether a method is async before it calls it.
        if inspect.iscoroutinefunction(cls.fetch):
            if cls.open is CheckpointedSource.open:
                cls.open = cls._open_async  # type: ignore[method-assign]
            if cls.read is CheckpointedSource.read:
                cls.read = cls._read_async  # type: ignore[method-assign]

    @abstractmethod
    def resume(self, checkpoint: Any) -> Awaitable[None] | None:
        """Get ready to fetch what follows this checkpoint; None is from the beginning.

        It is called again, in a `read`, if the records that were delivered before a restart do not come again.
        """

    @abstractmethod
    def fetch(self, n: int) -> Awaitable[Fetched] | Fetched:
        """Wait for records and checkpoints and return them in order, at most `n` records.

        Raise EndOfSource when there will never be more, NothingYet when there is none now. A `fetch` that is cancelled
        (async) or ended by `stop` must not lose a record for the next one.
        """

    def fingerprint(self, record: Record) -> bytes:
        """Return bytes that are the same for the same record after a restart: of its content, not of its metadata."""
        collection = record.metadata.get(metadata.COLLECTION)
        content = (record.operation.value, collection, record.key, record.payload.before, record.payload.after)
        return _ENCODER.encode(content)

    def open(self, position: bytes | None) -> Awaitable[None] | None:
        self.resume(self._restore(position))
        return None

    def read(self, n: int) -> Awaitable[Reading] | Reading:
        while (reading := self._take(n)) is None:
            try:
                fetched: Any = self.fetch(n)
            except (EndOfSource, NothingYet):
                if not self._came or not self._delivered:
                    raise
                fetched = None
            if fetched is None or not self._add(fetched):
                self.resume(self._give_all_again())
        return reading

    async def _open_async(self, position: bytes | None) -> None:
        await self.resume(self._restore(position))  # type: ignore[misc]

    async def _read_async(self, n: int) -> Reading:
        while (reading := self._take(n)) is None:
            try:
                fetched: Fetched | None = await self.fetch(n)  # type: ignore[misc]
            except (EndOfSource, NothingYet):
                if not self._came or not self._delivered:
                    raise
                fetched = None
            if fetched is None or not self._add(fetched):
                await self.resume(self._give_all_again())  # type: ignore[misc]
        return reading

    def check_position(self, position: bytes) -> None:
        _decode(position)

    def _restore(self, position: bytes | None) -> Any:
        self._start = _Position(None) if position is None else _decode(position)
        self._delivered = self._start.count
        """How many of the next records were delivered before the restart."""
        return self._rewind()

    def _give_all_again(self) -> Any:
        """Return the checkpoint to resume from, if what was delivered does not come again as it was.

        That is so for fewer records too: those that came must not wait for more, which may come much later.
        """
        self._delivered = 0
        return self._rewind()

    def _rewind(self) -> Any:
        recent = self._start.recent
        self._recent = deque(recent, maxlen=RECENT_MAX)
        """Hashes of the last records, in order."""
        self._known = Counter(recent)
        """Hashes of records before the checkpoint that may be given again."""
        self._delivered_hash, self._came = "", False
        self._ready: deque[Record | bytes] = deque()
        """Records with their positions; bytes are progress."""
        self._unreadable: dict[bytes, str] = {}
        """Why a record of those could not be parsed, by its position."""
        self._begin(self._start.checkpoint, recent)
        return self._start.checkpoint

    def _begin(self, checkpoint: Any, recent: Sequence[str]) -> None:
        self._checkpoint, self._count, self._hash = checkpoint, 0, ""
        # All positions up to the next checkpoint begin with this, and it is longer than the rest.
        content = {"checkpoint": checkpoint, "recent": recent if self.inclusive else ()}
        self._beginning = _ENCODER.encode(content).removesuffix(b"}")

    def _position(self) -> bytes:
        return b'%s,"count":%d,"hash":"%s"}' % (self._beginning, self._count, self._hash.encode())

    def _add(self, fetched: Fetched) -> bool:
        """Give what was fetched its positions. Returns False if the first records are not those that were delivered."""
        for item in fetched:
            self._came = True
            each = item.record if isinstance(item, UnreadableRecord) else item
            if isinstance(each, Record) and self._known:
                name = self._name(each)
                if self._known[name]:
                    self._known[name] -= 1
                    continue
                self._known.clear()
            self._append(each)
            if isinstance(item, UnreadableRecord):
                self._unreadable[item.record.position] = item.reason
            if not self._delivered:
                continue
            # Not kept: there may be millions. If they prove to be others, they are fetched once more.
            self._ready.clear()
            self._unreadable.clear()
            if isinstance(each, Record):
                self._delivered -= 1
                self._delivered_hash = _chain(self._delivered_hash, self._name(each))
                if not self._delivered and self._delivered_hash != self._start.hash:
                    return False
        return True

    def _append(self, each: Record | SourceCheckpoint) -> None:
        if isinstance(each, Record):
            name = self._name(each)
            self._recent.append(name)
            self._count, self._hash = self._count + 1, _chain(self._hash, name)
            each.position = self._position()
            self._ready.append(each)
        elif each.value != self._checkpoint:
            self._begin(each.value, tuple(self._recent))
            self._ready.append(self._position())

    def _take(self, n: int) -> Reading | None:
        records: list[Record] = []
        refused: dict[int, str] = {}
        position: bytes | None = None
        while self._ready and (isinstance(self._ready[0], bytes) or len(records) < n):
            each = self._ready.popleft()
            if isinstance(each, bytes):
                position = each
            else:
                if each.position in self._unreadable:
                    refused[len(records)] = self._unreadable.pop(each.position)
                records.append(each)
                position = None
        return Reading(records, refused, position) if records or position is not None else None

    def _name(self, record: Record) -> str:
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
