"""State: what a processor of an exactly-once pipeline remembers. Defer: puts a record off to the next transaction."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from conduit_py.batch import Batch, delivery_key
from conduit_py.errors import DeferredFirst, FatalError, RecordRefused
from conduit_py.record import Record
from conduit_py.sdk.plugin import did_you_mean

Seen: TypeAlias = Callable[[str, Sequence[bytes]], Awaitable[set[bytes]]]
"""Which of the keys are durably recorded in a scope."""


class PublishedMessage(NamedTuple):
    """A record to be sent to a target of the outbox once the transaction is committed."""

    target: str
    key: bytes
    body: bytes


class StateChanges(NamedTuple):
    """What was done to a state since it was last drained."""

    puts: dict[str, bytes | None]
    once: list[tuple[str, bytes]]
    letters: list[PublishedMessage]


class State:
    """A mapping from text to plain values that belongs to one processor and commits with the transaction.

    Whatever is put, deleted, recorded with `once` or published while a record is processed becomes durable
    in the same step as the position of that record, or not at all; a record that is refused by this
    processor leaves no trace in it. Values are what MessagePack can carry, and are kept as they were when
    they were put. All of it is held in memory, so reading needs no waiting; it must fit there.

    `State()` works by itself, to test a processor with.
    """

    def __init__(self) -> None:
        self._seen: Seen = _nothing_seen
        self.retentions: dict[str, float] = {}
        """How long the keys of a scope are kept, in seconds."""
        self._values: dict[str, bytes] = {}
        self._changed: dict[str, bytes | None] = {}
        self._once: list[tuple[str, bytes]] = []
        self._known: set[tuple[str, bytes]] = set()
        self._committing: set[tuple[str, bytes]] = set()
        self._letters: list[PublishedMessage] = []
        self._batch: Batch | None = None
        self._index = 0
        self._unit = _Unit()
        self.targets: frozenset[str] | None = None
        """Where the pipeline forwards to what is published; None if that is left to somebody else."""
        self.first = True
        """Whether the record being processed is the first that the processor has in the running transaction.

        For a processor that takes batches, whether that is the first record of the batch.
        """

    def get(self, key: str, default: Any = None) -> Any:
        """The value last put under `key`."""
        value = self._unit.puts[key] if key in self._unit.puts else self._values.get(key)
        return default if value is None else _decode(value)

    def put(self, key: str, value: Any) -> None:
        """Remember `value`. One that MessagePack cannot carry raises RecordRefused naming it."""
        try:
            self._unit.puts[_text(key)] = _ENCODER.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise RecordRefused(f"the state {key!r} cannot be kept: {error}") from error

    def delete(self, key: str) -> None:
        """Forget `key`. To forget what is unknown does nothing."""
        self._unit.puts[_text(key)] = None

    def scan(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Every key that begins with `prefix`, sorted, with its value; as it stands now."""
        present = self._values | self._unit.puts
        for key in sorted(key for key in present if key.startswith(prefix)):
            value = present[key]
            if value is not None:
                yield key, _decode(value)

    @property
    def delivery_key(self) -> bytes:
        """128 bits that name the record being processed on every attempt and after every restart.

        For a processor that takes batches it names the first record: `batch.delivery_key(index)` has each.
        """
        if self._batch is None:
            raise RuntimeError("there is a delivery key only while a record is processed")
        return self._batch.delivery_key(self._index)

    async def once(self, scope: str, keys: Sequence[bytes]) -> list[bool]:
        """Record the keys as seen in `scope`, for good; True for each that was not seen before.

        A scope belongs to this processor, as the state does.
        """
        asked = [(scope, key) for key in keys]
        unknown = [key for scope_and_key, key in zip(asked, keys, strict=True) if not self._is_known(scope_and_key)]
        durable = await self._seen(scope, unknown) if unknown else set()
        first = []
        for each in asked:
            new = each[1] not in durable and not self._is_known(each)
            if new:
                self._unit.once[each] = None
            first.append(new)
        return first

    def retain(self, scope: str, seconds: float) -> None:
        """Have keys of `scope` forgotten some time after they are that old; without it they are kept for ever.

        Choose it longer than a message may be delivered again: by a queue, after an outage, or by hand.
        """
        self.retentions[scope] = seconds

    def publish(self, target: str, record: Record) -> None:
        """Have `record` sent to `target`, a target of the outbox, once the transaction is committed.

        In order per target, under a key made of the delivery key of the record being processed. A pipeline
        with an `outbox` has no other targets: one that it does not have ends the run.
        """
        if self.targets is not None and target not in self.targets:
            known = sorted(self.targets)
            hint = did_you_mean(target, known) or f"targets are {', '.join(known)}"
            what = f"there is no target {target!r} in the outbox of the pipeline"
            raise FatalError(what, suggestion=f"{hint}; others must be added to outbox={{…}}")
        number = len(self._unit.letters)
        key = delivery_key((self.delivery_key, target.encode(), number.to_bytes(8, "big")))
        self._unit.letters.append(PublishedMessage(target, key, record.to_json()))

    def _is_known(self, each: tuple[str, bytes]) -> bool:
        return each in self._unit.once or each in self._known or each in self._committing

    # What follows is for the runtime.

    def load(self, values: Mapping[str, bytes], seen: Seen) -> None:
        """Start from what is durable."""
        self._values = dict(values)
        self._seen = seen

    def enter(self, batch: Batch) -> None:
        """The records of this batch are processed next."""
        self._batch = batch
        self._index = -1

    def advance(self) -> None:
        """The next record of the batch is processed, or, by a processor that takes batches, all of it."""
        self._index += 1

    def keep(self) -> None:
        """What was done since `advance` is part of the transaction."""
        unit = self._unit
        if unit.puts:
            self._changed.update(unit.puts)
            for key, value in unit.puts.items():
                if value is None:
                    self._values.pop(key, None)
                else:
                    self._values[key] = value
        if unit.once:
            self._once.extend(unit.once)
            self._known.update(unit.once)
        self._letters += unit.letters
        self._leave()

    def undo(self) -> None:
        """What was done since `advance` did not happen."""
        self._leave()

    def defer(self) -> None:
        """What was done since `advance` did not happen, nor did the record come, in this transaction.

        Raises DeferredFirst when it was the first in it: it would be that in the next one too, for ever (GZ-T11).
        """
        if self.first:
            raise DeferredFirst(
                "the first record of a transaction was deferred: nothing is before it, so that would go on for ever",
                suggestion="raise Defer only if state.first is false",
            )
        self._leave()

    def _leave(self) -> None:
        self.first = False
        if self._unit.puts or self._unit.once or self._unit.letters:
            self._unit = _Unit()

    def drain(self) -> StateChanges:
        """What the transaction that ends now makes durable. The last one is committed by then."""
        drained = StateChanges(self._changed, self._once, self._letters)
        # Until they are durable, only this knows them.
        self._committing, self._known = self._known, set()
        self._changed, self._once, self._letters = {}, [], []
        self.first = True
        return drained


class _Unit:
    """What was done while one record, or one batch, was processed."""

    __slots__ = ("letters", "once", "puts")

    def __init__(self) -> None:
        self.puts: dict[str, bytes | None] = {}
        self.once: dict[tuple[str, bytes], None] = {}
        self.letters: list[PublishedMessage] = []


_ENCODER = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder().decode


def _text(key: str) -> str:
    if not isinstance(key, str):
        raise RecordRefused(f"the keys of a state are text, not {type(key).__name__}")
    return key


async def _nothing_seen(scope: str, keys: Sequence[bytes]) -> set[bytes]:
    return set()


class Defer(Exception):
    """Ends the transaction before this record: everything before it commits, and it is the first of the next one.

    For a processor of an exactly-once pipeline that is declared to do so, `@processor(state=True, defers=True)`.
    The record comes again as it came, and what was done to the state since is undone. The first record of a
    transaction (`state.first`) cannot be deferred: there is nothing to commit before it, so it would be deferred
    for ever. One that takes batches gives `Defer()` in place of the result for the record and all behind it.
    """

    def __init__(self, record: Record | None = None) -> None:
        """The runtime notes the record as it came."""
        super().__init__("deferred to the next transaction")
        self.record = record
