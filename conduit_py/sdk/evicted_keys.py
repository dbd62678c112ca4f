"""EvictedKeys: the keys of a state that only the store has, because the state is larger than its cache."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from conduit_py.batch import Batch
from conduit_py.record import Record

if TYPE_CHECKING:
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


class StoredValues(Protocol):
    """The committed state of one processor, for a caller that is not async."""

    waits: bool
    """True if a call must be made in another thread than that of trio."""

    def read(self, keys: Sequence[str]) -> list[tuple[str, bytes]]:
        """Return those keys that are there, with their values."""

    def page(self, prefix: str, start: str, limit: int) -> list[tuple[str, bytes]]:
        """Return the first keys with this prefix from `start` on, sorted, with their values."""

    def check(self) -> None:
        """Raise the error of an earlier call again: a processor may have caught it, and must not commit without it."""


class EvictedKeys:
    """Counts the keys that are not in memory, reads them again, and evicts others.

    A key that the running transaction or the one that is being committed has changed is never evicted, and what they
    changed always counts before what the store has. So it does not matter when the store commits.
    """

    def __init__(self, stored: StoredValues, count: int, size: int) -> None:
        self._stored = stored
        self.count = count
        self.size = size
        """The bytes of these keys and their values."""
        self.reads = 0
        """How many keys were asked of the store."""
        self._absent: set[str] = set()
        self._unread: set[str] = set()

    def make_room(self, values: dict[str, bytes], changes: Sequence[Changes], size: int, bytes_max: float) -> None:
        """Evict the keys used least recently, if `values` takes more than `bytes_max`; `size` is that of the state."""
        # A key that was absent may since be in the store: it was changed, and committed.
        self._absent.clear()
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

    def fetch(self, values: dict[str, bytes], changes: Sequence[Changes], keys: Iterable[str]) -> None:
        """Read the keys that are not in memory into `values`, in one step; the others count as used."""
        wanted: dict[str, None] = {}
        for key in keys:
            if key in values:
                values[key] = values.pop(key)
            elif key not in self._absent and not any(key in each for each in changes):
                wanted[key] = None
        if not wanted:
            return
        self.reads += len(wanted)
        found = dict(self._stored.read(list(wanted)))
        for key, value in found.items():
            values[key] = value
            self.count -= 1
            self.size -= len(key) + len(value)
        self._absent |= wanted.keys() - found.keys()
        self._unread -= wanted.keys()

    def before_change(self, values: dict[str, bytes], changes: Sequence[Changes], key: str) -> None:
        """Called before a key is put or deleted. Whether the store has it must be known to count keys and bytes."""
        if key in values or key in self._absent or any(key in each for each in changes):
            return
        if self._stored.waits:
            # One read for all of them, when the batch is processed: an index is written without being read.
            self._unread.add(key)
        else:
            self.fetch(values, changes, (key,))

    def count_replaced(self, changed: Changes) -> int:
        """Count the keys that were changed without being read; return how many bytes they had in the store."""
        self._stored.check()
        replaced, self._unread = [key for key in self._unread if key in changed], set()
        if not replaced:
            return 0
        found = self._stored.read(replaced)
        size = sum(len(key) + len(value) for key, value in found)
        self.count -= len(found)
        self.size -= size
        return size

    def scan(self, prefix: str, start: str, changes: Sequence[Changes]) -> Iterator[tuple[str, bytes]]:
        """Yield every key with this prefix from `start` on, sorted, in the store or changed, with its value."""
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


def _wanted(state_keys: Callable[[Record], Iterable[str]], records: Iterable[Record]) -> list[str]:
    keys: list[str] = []
    for record in records:
        try:
            keys += state_keys(record)
        except Exception:  # plugin boundary: `process` gets the same record, and refuses it with its reason
            continue
    return keys
