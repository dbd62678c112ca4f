"""State: what a processor of an exactly-once pipeline remembers. Defer: moves a record to the next transaction."""

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from conduit_py.batch import Batch, delivery_key
from conduit_py.errors import DeferredFirst, FatalError, RecordRefused
from conduit_py.record import Record
from conduit_py.sdk.plugin import did_you_mean
from conduit_py.sdk.state_values import KEY_BYTES, AllChanges, EvictedKeys, StoredValues, decode_value, encode_value
from conduit_py.store.claim import PublishedMessage

Seen: TypeAlias = Callable[[str, Sequence[bytes]], Awaitable[set[bytes]]]
"""Which of the keys are durably recorded in a scope."""


class StateChanges(NamedTuple):
    """The changes of a state since it was last drained."""

    puts: dict[str, bytes | None]
    once: list[tuple[str, bytes]]
    messages: list[PublishedMessage]


class State:
    """A mapping from text to plain values that belongs to one processor and commits with the transaction.

    What is put, deleted, recorded with `once` or published while a record is processed becomes durable with its
    position, or not at all. A record that this processor refuses changes nothing. Values are what records can have:
    numbers, text, bytes, decimals, dates, sets, lists and dicts. They come back as they were, but a tuple as a list; a
    later change of the object does not change the state.

    Of a state larger than `state_cache_bytes` of its processor, the keys used last are in memory. The others are read
    from the store on request. An async processor cannot wait for them: it names them in `state_keys`, or its state is
    whole in memory.

    `State()` works without a pipeline, to test a processor.
    """

    def __init__(self) -> None:
        self._seen: Seen = _nothing_seen
        self.retentions: dict[str, float] = {}
        """How long the keys of a scope are kept, in seconds."""
        self._values: dict[str, bytes] = {}
        self._changed: dict[str, bytes | None] = {}
        self._sealed: dict[str, bytes | None] = {}
        """What the last transaction changed: the store may not have it yet."""
        self._stored: StoredValues | None = None
        self.evicted: EvictedKeys | None = None
        """The keys that only the store has; None as long as it was never larger than its cache."""
        self.waits = False
        """True if a read may wait for the store, which must not happen in the thread of trio."""
        self.cache_bytes: float = math.inf
        """About how many bytes of it may be in memory."""
        self.ahead_only = False
        """True if the processor is async: of keys that only the store has, it gets those that it named before."""
        self._once: list[tuple[str, bytes]] = []
        self._known: set[tuple[str, bytes]] = set()
        self._committing: set[tuple[str, bytes]] = set()
        self._messages: list[PublishedMessage] = []
        self._batch: Batch | None = None
        self._index = 0
        self._unit = _Unit()
        self.size = 0
        """The bytes of all keys and values, for metrics."""
        self.watermark: float | None = None
        """Up to when, by the time of its records, a processor with windows has everything; it sets this for metrics."""
        self.sources: frozenset[str] = frozenset()
        """The ids of the sources whose records reach this processor. Empty without a pipeline."""
        self.targets: frozenset[str] | None = None
        """The targets of the pipeline's outbox; None if another process forwards what is published."""
        self.first = True
        """True if the current record is the first of this processor in the running transaction.

        For a processor that takes batches: True if the first record of the batch is.
        """

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value last put under `key`."""
        value = self._unit.puts[key] if key in self._unit.puts else self._values.get(key)
        if value is None and self.evicted is not None and key not in self._unit.puts:
            self.fetch((key,))
            value = self._values.get(key)
        return default if value is None else decode_value(value)

    def fetch(self, keys: Iterable[str]) -> None:
        """Read the keys that are not in memory, in one step. Then `get` need not wait for each of them.

        For a state that is larger than its cache, in a processor that takes batches, or that needs several keys at
        once. It has no effect otherwise. A processor that takes records has `state_keys` for it.
        """
        if self.evicted is not None:
            self.evicted.fetch(keys)

    def put(self, key: str, value: Any) -> None:
        """Store `value`. Raises RecordRefused if it cannot be encoded."""
        # Encoded now, not at the commit: the caller may change the object, and an error must refuse this record.
        if self.evicted is not None:
            self.evicted.before_change(_text(key))
        try:
            self._unit.puts[_text(key)] = encode_value(value)
        except (TypeError, ValueError, OverflowError, RecursionError, RecordRefused) as error:
            raise RecordRefused(f"the value of the state {key!r} cannot be stored: {error}") from error

    def delete(self, key: str) -> None:
        """Delete `key`, if it is there."""
        if self.evicted is not None:
            self.evicted.before_change(_text(key))
        self._unit.puts[_text(key)] = None

    def scan(self, prefix: str = "", start: str = "") -> Iterator[tuple[str, Any]]:
        """Yield every key that begins with `prefix`, sorted, from `start` on, with its current value.

        A state that is larger than its cache is read in parts. Then a key that is changed meanwhile may be given as
        it was or as it is.
        """
        if self.evicted is not None:
            for key, stored in self.evicted.scan(prefix, start):
                yield key, decode_value(stored)
            return
        present = self._values | self._unit.puts
        for key in sorted(key for key in present if key.startswith(prefix) and key >= start):
            value = present[key]
            if value is not None:
                yield key, decode_value(value)

    def __len__(self) -> int:
        """How many keys it has."""
        return len(self._values) + (0 if self.evicted is None else self.evicted.count)

    @property
    def source(self) -> str:
        """The id of the source of the current record; empty without a pipeline."""
        return "" if self._batch is None else self._batch.source

    @property
    def delivery_key(self) -> bytes:
        """128 bits that identify the current record, the same on every attempt and after every restart.

        For a processor that takes batches it identifies the first record; see `batch.delivery_key(index)`.
        """
        if self._batch is None:
            raise RuntimeError("there is a delivery key only while a record is processed")
        return self._batch.delivery_key(self._index)

    async def once(self, scope: str, keys: Sequence[bytes]) -> list[bool]:
        """Record the keys as seen in `scope`; return True for each that was not seen before.

        Scopes belong to this processor, as the state does.
        """
        asked = [(scope, key) for key in keys]
        unknown = [key for scope_and_key, key in zip(asked, keys, strict=True) if not self._is_known(scope_and_key)]
        durable = await self._seen(scope, unknown) if unknown else set()
        # Checked again after the await, and key by key: another worker, or an earlier key of the same call, may have
        # recorded the key meanwhile.
        first = []
        for each in asked:
            new = each[1] not in durable and not self._is_known(each)
            if new:
                self._unit.once[each] = None
            first.append(new)
        return first

    def retain(self, scope: str, seconds: float) -> None:
        """Let keys of `scope` be deleted once they are older than `seconds`; without it they are kept for ever.

        Choose more than the longest time after which a message may be delivered again, also by hand.
        """
        self.retentions[scope] = seconds

    def publish(self, target: str, record: Record) -> None:
        """Send `record` to `target`, a target of the outbox, after the transaction is committed.

        Records of one target are sent in order. Their key is made from the delivery key of the current record.
        A target that the `outbox` of the pipeline does not have ends the run.
        """
        if self.targets is not None and target not in self.targets:
            known = sorted(self.targets)
            hint = did_you_mean(target, known) or f"targets are {', '.join(known)}"
            what = f"there is no target {target!r} in the outbox of the pipeline"
            raise FatalError(what, suggestion=f"{hint}; others must be added to outbox={{…}}")
        # Numbered within the record, so that a retry of the record publishes under the same keys.
        number = len(self._unit.messages)
        key = delivery_key((self.delivery_key, target.encode(), number.to_bytes(8, "big")))
        self._unit.messages.append(PublishedMessage(target, key, record.to_json()))

    def _is_known(self, each: tuple[str, bytes]) -> bool:
        return each in self._unit.once or each in self._known or each in self._committing

    # What follows is for the runtime.

    def load(self, values: Mapping[str, bytes], seen: Seen, stored: StoredValues | None = None) -> None:
        """Start from the durable values. With `stored`, keys may be evicted, and are read from there."""
        self._values = dict(values)
        self.size = sum(len(key) + len(value) for key, value in values.items())
        self._seen, self._stored = seen, stored

    def load_evicted(self, count: int, size: int, seen: Seen, stored: StoredValues) -> None:
        """Start with nothing in memory: the store has so many keys, of so many bytes."""
        self.load({}, seen, stored)
        self.size = size
        self._begin_to_evict(stored, count, size)

    def _begin_to_evict(self, stored: StoredValues, count: int, size: int) -> None:
        changes, ahead_only = lambda: self._changes, self.ahead_only
        self.evicted = EvictedKeys(stored, self._values, changes, count, size, ahead_only=ahead_only)
        self.waits = stored.waits

    @property
    def cached(self) -> int:
        """How many keys are in memory."""
        return len(self._values)

    @property
    def _changes(self) -> AllChanges:
        return self._sealed, self._changed, self._unit.puts

    def enter(self, batch: Batch) -> None:
        """Called before the records of this batch are processed."""
        self._batch = batch
        self._index = -1
        if self.evicted is not None or self.size + KEY_BYTES * len(self._values) > self.cache_bytes:
            self._enter_evicted()

    def _enter_evicted(self) -> None:
        if self.evicted is None and self._stored is not None:
            self._begin_to_evict(self._stored, 0, 0)
        if not self.waits and not self.ahead_only:
            self.read_ahead(())

    def read_ahead(self, keys: Iterable[str]) -> None:
        """Make room in memory, then read the keys that a batch needs. Called before it is processed."""
        if self.evicted is not None:
            self.evicted.make_room(self.size, self.cache_bytes)
            self.evicted.fetch(keys)

    def count_replaced(self) -> None:
        """Called when a batch is processed, where it may wait, to keep the counts of keys and bytes right."""
        if self.evicted is not None:
            self.size -= self.evicted.count_replaced()

    def advance(self) -> None:
        """Move to the next record of the batch, or to the whole batch if the processor takes batches."""
        self._index += 1

    def keep(self) -> None:
        """Add the changes since `advance` to the transaction."""
        unit = self._unit
        if unit.puts:
            self._changed.update(unit.puts)
            # Written out: this runs for every record, and calls would cost a third of it.
            values, size = self._values, self.size
            for key, value in unit.puts.items():
                old = values.get(key)
                if old is not None:
                    size -= len(key) + len(old)
                if value is not None:
                    values[key] = value
                    size += len(key) + len(value)
                elif old is not None:
                    del values[key]
            self.size = size
        if unit.once:
            self._once.extend(unit.once)
            self._known.update(unit.once)
        self._messages += unit.messages
        self._leave()

    def undo(self) -> None:
        """Discard the changes since `advance`."""
        self._leave()

    def defer(self) -> None:
        """Discard the changes since `advance`; the record belongs to the next transaction.

        Raises DeferredFirst for the first record of a transaction: it would be deferred for ever (GZ-T11).
        """
        if self.first:
            raise DeferredFirst(
                "the first record of a transaction was deferred, and would be in every later transaction",
                suggestion="raise Defer only if state.first is false",
            )
        self._leave()

    def _leave(self) -> None:
        self.first = False
        # Only after a change: most records make none, and most changes are puts.
        unit = self._unit
        if unit.puts:
            unit.puts = {}
        if unit.once or unit.messages:
            self._unit = _Unit()

    def drain(self) -> StateChanges:
        """Return the changes of the transaction that ends now. The transaction before it is committed by then."""
        drained = StateChanges(self._changed, self._once, self._messages)
        # The store does not have these keys until the commit. Forgotten here, a repeat in the next transaction
        # would pass as new.
        self._committing, self._known = self._known, set()
        self._sealed = self._changed
        self._changed, self._once, self._messages = {}, [], []
        self.first = True
        return drained


class _Unit:
    """The changes made while one record, or one batch, is processed."""

    __slots__ = ("messages", "once", "puts")

    def __init__(self) -> None:
        self.puts: dict[str, bytes | None] = {}
        self.once: dict[tuple[str, bytes], None] = {}
        self.messages: list[PublishedMessage] = []


def _text(key: str) -> str:
    if not isinstance(key, str):
        raise RecordRefused(f"a key of a state must be text, not {type(key).__name__}")
    return key


async def _nothing_seen(scope: str, keys: Sequence[bytes]) -> set[bytes]:
    return set()


class Defer(Exception):
    """Ends the transaction before this record, which becomes the first of the next transaction.

    For a processor of an exactly-once pipeline, declared with `@processor(state=True, defers=True)`. The record
    arrives again unchanged, and its changes to the state are discarded. The first record of a transaction
    (`state.first`) cannot be deferred: it would be deferred for ever. A processor that takes batches returns
    `Defer()` as the result of the record and of all records after it.
    """

    def __init__(self, record: Record | None = None) -> None:
        """The runtime sets `record`: the record as it arrived."""
        super().__init__("deferred to the next transaction")
        self.record = record
