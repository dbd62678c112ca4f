"""The values of a state as bytes, and EvictedKeys: those of a state larger than its cache that only the store has."""

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from conduit_py.batch import Batch
from conduit_py.errors import FatalError, RecordRefused
from conduit_py.payloads import to_plain
from conduit_py.record import Record
from conduit_py.record_codec import decode_payload, encode_payload

if TYPE_CHECKING:
    from conduit_py.sdk.processor import Processor
    from conduit_py.sdk.state import State

T = TypeVar("T")

KEY_BYTES = 200
"""About what a key and its value take in memory beside their bytes."""
PAGE_KEYS = 1000
"""How many keys a scan reads from the store at once."""
ROOM = 0.9
"""How full the cache is after room was made: room for one key at a time would be made for every batch."""

Changes: TypeAlias = Mapping[str, bytes | None]
"""Values by key that the store may not have yet; None for a deleted one."""
AllChanges: TypeAlias = tuple[Changes, Changes, Changes]
"""Of the transaction that is being committed, of the open one, and of the current record: the later ones count."""


class StoredValues(Protocol):
    """The committed state of one processor, for a caller that is not async, or one that is."""

    waits: bool
    """True if a call must be made in another thread than that of trio."""

    def read(self, keys: Sequence[str]) -> list[tuple[str, bytes]]:
        """Return those keys that are there, with their values."""

    async def read_async(self, keys: Sequence[str]) -> list[tuple[str, bytes]]:
        """Return the same to a task of trio."""

    def page(self, prefix: str, start: str, limit: int) -> list[tuple[str, bytes]]:
        """Return the first keys with this prefix from `start` on, sorted, with their values."""

    def check(self) -> None:
        """Raise the error of an earlier call again: a processor may have caught it, and must not commit without it."""


class EvictedKeys:
    """Counts the keys that are not in memory, reads them again, and evicts others.

    A key that the running transaction, or the one that is being committed, has changed is never evicted. Those changes
    count before what the store has. So it does not matter when the store commits.
    """

    def __init__(
        self,
        stored: StoredValues,
        values: dict[str, bytes],
        changes: Callable[[], AllChanges],
        count: int,
        size: int,
        *,
        ahead_only: bool = False,
    ) -> None:
        """`values` are those in memory, `changes` what the store may not have.

        With `ahead_only` the processor is async: it cannot wait for a key when it asks for it, and gets those that were
        read before.
        """
        self._stored = stored
        self._values = values
        self._changes = changes
        self._ahead_only = ahead_only
        self._missed: FatalError | None = None
        self.count = count
        self.size = size
        """The bytes of these keys and their values."""
        self.reads = 0
        """How many keys were asked of the store."""
        self._absent: set[str] = set()
        self._unread: set[str] = set()

    def make_room(self, size: int, bytes_max: float) -> None:
        """Evict the keys used least recently, if those in memory take more than `bytes_max`; `size` is of all keys."""
        # A key that was absent may since be in the store: it was changed, and committed.
        self._absent.clear()
        values, changes = self._values, self._changes()
        taken = KEY_BYTES * len(values) + size - self.size
        if taken <= bytes_max:
            return
        for key in list(values):
            if taken <= bytes_max * ROOM:
                break
            if not any(key in each for each in changes):
                freed = len(key) + len(values.pop(key))
                self.count += 1
                self.size += freed
                taken -= KEY_BYTES + freed

    def fetch(self, keys: Iterable[str]) -> None:
        """Read the keys that are not in memory, in one step; the others count as used."""
        if wanted := self._missing(keys):
            self._refuse_if_async("the keys " + ", ".join(map(repr, wanted[:3])))
            self._add(wanted, self._stored.read(wanted))

    async def fetch_ahead(self, keys: Iterable[str]) -> None:
        """As `fetch`, before an async processor gets the records."""
        if wanted := self._missing(keys):
            self._add(wanted, await self._stored.read_async(wanted))

    def _missing(self, keys: Iterable[str]) -> list[str]:
        values, changes = self._values, self._changes()
        wanted: dict[str, None] = {}
        for key in keys:
            if key in values:
                values[key] = values.pop(key)
            elif key not in self._absent and not any(key in each for each in changes):
                wanted[key] = None
        return list(wanted)

    def _add(self, wanted: list[str], found: Sequence[tuple[str, bytes]]) -> None:
        self.reads += len(wanted)
        for key, value in found:
            self._values[key] = value
            self.count -= 1
            self.size -= len(key) + len(value)
        self._absent.update(wanted)
        self._absent.difference_update(key for key, _ in found)
        self._unread.difference_update(wanted)

    def before_change(self, key: str) -> None:
        """Called before a key is put or deleted. Whether the store has it must be known to count keys and bytes."""
        if key in self._values or key in self._absent or any(key in each for each in self._changes()):
            return
        if self._stored.waits or self._ahead_only:
            # One read for all of them, when the batch is processed: an index is written without being read.
            self._unread.add(key)
        else:
            self.fetch((key,))

    def count_replaced(self) -> int:
        """Count the keys that were changed without being read; return how many bytes they had in the store."""
        self._stored.check()
        replaced = self._changed_unread()
        return self._replace(self._stored.read(replaced)) if replaced else 0

    async def count_replaced_async(self) -> int:
        """As `count_replaced`, behind an async processor. Raises if it asked for a key that was not read before."""
        if self._missed is not None:
            # It may have caught the error, and must not commit without the value.
            raise self._missed
        replaced = self._changed_unread()
        return self._replace(await self._stored.read_async(replaced)) if replaced else 0

    def _changed_unread(self) -> list[str]:
        _, changed, _ = self._changes()
        replaced, self._unread = [key for key in self._unread if key in changed], set()
        return replaced

    def _replace(self, found: Sequence[tuple[str, bytes]]) -> int:
        size = sum(len(key) + len(value) for key, value in found)
        self.count -= len(found)
        self.size -= size
        return size

    def _refuse_if_async(self, what: str) -> None:
        if self._ahead_only:
            self._missed = FatalError(
                f"{what} of a state larger than its cache cannot be read by an async processor",
                suggestion="name every key in state_keys, raise state_cache_bytes, or make the processor sync",
            )
            raise self._missed

    def scan(self, prefix: str, start: str) -> Iterator[tuple[str, bytes]]:
        """Yield every key with this prefix from `start` on, sorted, in the store or changed, with its value."""
        self._refuse_if_async("a scan")
        changes = self._changes()
        while True:
            page = self._stored.page(prefix, start, PAGE_KEYS)
            last = page[-1][0] if len(page) == PAGE_KEYS else None
            present: dict[str, bytes | None] = dict(page)
            for each in changes:
                present.update(
                    (key, value)
                    for key, value in each.items()
                    if key.startswith(prefix) and key >= start and (last is None or key <= last)
                )
            for key in sorted(present):
                value = present[key]
                if value is not None:
                    yield key, value
            if last is None:
                return
            start = last + "\0"


def call_reading(
    call: Callable[[Batch], T], state: "State | None", state_keys: Callable[[Record], Iterable[str]]
) -> Callable[[Batch], T]:
    """Wrap a call with a batch that may wait for the store: `state_keys` tells which keys it needs for a record."""
    if state is None or not state.waits:
        return call

    def call_with_keys(batch: Batch) -> T:
        state.read_ahead(_wanted(state_keys, batch.records))
        result = call(batch)
        state.count_replaced()
        return result

    return call_with_keys


def await_reading(
    call: Callable[[Batch], Awaitable[T]], state: "State | None", processor: "Processor[Any]"
) -> Callable[[Batch], Awaitable[T]]:
    """Wrap the call of an async processor with a batch. It gets the keys that it names, or has its state in memory."""
    if state is None:
        return call
    # Its `get` runs in the thread of trio, which cannot wait for the store.
    if not processor.names_state_keys:
        state.cache_bytes = math.inf
        return call
    state.ahead_only = True

    async def await_with_keys(batch: Batch) -> T:
        if (evicted := state.evicted) is None:
            return await call(batch)
        evicted.make_room(state.size, state.cache_bytes)
        await evicted.fetch_ahead(_wanted(processor.state_keys, batch.records))
        result = await call(batch)
        state.size -= await evicted.count_replaced_async()
        return result

    return await_with_keys


def _wanted(state_keys: Callable[[Record], Iterable[str]], records: Iterable[Record]) -> list[str]:
    keys: list[str] = []
    for record in records:
        try:
            keys += state_keys(record)
        except Exception:  # plugin boundary: `process` gets the same record, and refuses it with its reason
            continue
    return keys


def encode_value(value: Any) -> bytes:
    """A value of a state, as bytes. One that they cannot carry raises RecordRefused, TypeError or ValueError.

    The same value comes back, but a tuple as a list, and an object of the user's own type as the dict of its fields.
    """
    try:
        if _is_kept(value):
            return _ENCODER.encode(value)
    except (OverflowError, UnicodeEncodeError):
        # A large integer, or text with a lone surrogate.
        pass
    try:
        exact = encode_payload(_with_lists(value))
    except RecordRefused:
        exact = encode_payload(to_plain(value))
    return _ENCODER.encode(msgspec.msgpack.Ext(_EXACT, exact))


def _is_kept(value: Any) -> bool:
    """Whether MessagePack gives back everything in a value as it is, but tuples as lists."""
    kind = type(value)
    if kind in _KEPT:
        return True
    if kind is dict:
        # A key of another type would come back as text, or not at all.
        return all(type(key) is str for key in value) and all(map(_is_kept, value.values()))
    if kind is not list and not issubclass(kind, tuple):
        return False
    for item in value:  # noqa: SIM110 - this runs for every record, and a generator costs more than the rest.
        if type(item) not in _KEPT and not _is_kept(item):
            return False
    return True


def _with_lists(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_with_lists(item) for item in value]
    return {key: _with_lists(item) for key, item in value.items()} if type(value) is dict else value


def _decode_extension(code: int, data: memoryview) -> Any:
    return decode_payload(bytes(data)) if code == _EXACT else msgspec.msgpack.Ext(code, bytes(data))


_KEPT: Final = frozenset({str, int, float, bool, NoneType, bytes, msgspec.msgpack.Ext})
_EXACT: Final = 113
"""On disks: what has this code is encoded as payloads are. Earlier versions made text of decimals and dates."""
_ENCODER: Final = msgspec.msgpack.Encoder()
decode_value: Final = msgspec.msgpack.Decoder(ext_hook=_decode_extension).decode
"""The value that `encode_value` encoded. Those that earlier versions have put come back as they did then."""
