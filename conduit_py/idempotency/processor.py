"""Idempotency: a processor that passes each message once, and filters or marks repeats."""

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Literal, Protocol

import trio
from pydantic import Field, field_validator

from conduit_py.batch import Batch, Fate, MessageId
from conduit_py.errors import RecordRefused
from conduit_py.idempotency.tracker import REPEATED, Repeat
from conduit_py.record import Record, encode_json
from conduit_py.sdk.plugin import Options
from conduit_py.sdk.processor import Processor, Result


class SeenKeys(Protocol):
    """Holds the keys of delivered messages. `Store.seen` is one."""

    async def known(self, scope: str, keys: Sequence[bytes]) -> set[bytes]: ...

    async def remember(self, scope: str, keys: Collection[bytes]) -> set[bytes]: ...


class RecentKeys:
    """The last `count_max` keys, in memory."""

    def __init__(self, count_max: int = 1_000_000) -> None:
        self._count_max = count_max
        self._keys: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    async def known(self, scope: str, keys: Sequence[bytes]) -> set[bytes]:
        await trio.lowlevel.checkpoint()
        return {key for key in keys if (scope, key) in self._keys}

    async def remember(self, scope: str, keys: Collection[bytes]) -> set[bytes]:
        repeated = await self.known(scope, list(keys))
        self._keys.update(dict.fromkeys((scope, key) for key in keys))
        while len(self._keys) > self._count_max:
            self._keys.popitem(last=False)
        return repeated


class IdempotencyOptions(Options):
    """The key that identifies a message, and what to do with a repeat."""

    scope: str = Field(default="messages", description="keys of different scopes are independent")
    key: str | Callable[[Record], bytes] = Field(
        default="metadata.message_id",
        description="identifies a message: `key`, `delivery`, `metadata.NAME`, `payload.NAME`, or a function in Python",
    )
    repeat: Repeat = Field(
        default="skip",
        description=f"`skip` filters a repeated message, `mark` adds the metadata {REPEATED} to it",
    )
    remember: Literal["transaction", "after-ack"] = Field(
        default="transaction",
        description="`transaction`: keys commit with the transaction of an exactly-once pipeline; `after-ack`: in any "
        "pipeline, after a message is delivered, which leaves some repeats",
    )
    retention_seconds: float | None = Field(
        default=None,
        gt=0,
        description="with `transaction`: when a key may be deleted; must be longer than the time in which a message "
        "may be delivered again",
    )
    # In the options, which all runs share: made in `open`, the keys of the last run would be lost.
    seen: Any = Field(
        default_factory=RecentKeys, description="with `after-ack`: where keys are kept; by default in memory"
    )

    @field_validator("key")
    @classmethod
    def _names_something(cls, key: str | Callable[[Record], bytes]) -> str | Callable[[Record], bytes]:
        if isinstance(key, str) and not _NAMED.fullmatch(key):
            raise ValueError("write key, delivery, metadata.NAME or payload.NAME")
        return key


_NAMED = re.compile(r"key|delivery|(metadata|payload)\.\S+")


class Idempotency(Processor[IdempotencyOptions]):
    """Passes each message once.

    With remember="transaction", in an exactly-once pipeline, a message is recorded in the transaction of its
    effects: exactly once, however often it is sent. With remember="after-ack", in any pipeline, it is recorded
    after all destinations have it: a crash in between passes a repeat, but no message is lost.
    """

    @property
    def stateful(self) -> bool:  # type: ignore[override]
        # `options` would raise for a processor with problems, and the checks read this before they report them.
        return self._options is not None and self.options.remember == "transaction"

    def open(self) -> None:
        self._under_way: set[bytes] = set()
        self._delivered: set[bytes] = set()
        if self.stateful and self.options.retention_seconds is not None:
            self.state.retain(self.options.scope, self.options.retention_seconds)

    async def process_batch(self, batch: Batch) -> list[Result]:
        results: list[Result] = []
        keys: dict[int, bytes] = {}
        for index, record in enumerate(batch.records):
            try:
                keys[index] = self._key(batch, index)
                results.append(record)
            except RecordRefused as refusal:
                results.append(refusal)
        repeated = await self._find_repeats(batch, keys)
        for index in keys:
            results[index] = self._filter_or_mark(batch.records[index], index in repeated)
        return results

    def state_keys(self, record: Record) -> list[str]:
        # Keys that were seen are never in memory, and it keeps nothing else.
        return []

    def _filter_or_mark(self, record: Record, repeated: bool) -> Record | None:
        record.metadata.pop(REPEATED, None)
        if not repeated:
            return record
        record.metadata[REPEATED] = "true"
        return record if self.options.repeat == "mark" else None

    async def _find_repeats(self, batch: Batch, keys: dict[int, bytes]) -> set[int]:
        """Return the indices of the messages that were seen before, in this batch or earlier."""
        if self.stateful:
            first = await self.state.once(self.options.scope, list(keys.values()))
            return {index for index, new in zip(keys, first, strict=True) if not new}
        await self._remember()
        known = await self.options.seen.known(self.options.scope, list(keys.values()))
        repeated = set()
        for index, key in keys.items():
            # All three: a message may have been delivered while `known` waited, after the store was read.
            if key in known or key in self._under_way or key in self._delivered:
                repeated.add(index)
            else:
                self._under_way.add(key)
                batch.on_fate(index, partial(self._end_key, key))
        return repeated

    def _end_key(self, key: bytes, message: MessageId, fate: Fate) -> None:
        self._under_way.discard(key)
        if fate is Fate.ACKED:
            self._delivered.add(key)

    async def _remember(self) -> None:
        delivered, self._delivered = self._delivered, set()
        if delivered:
            await self.options.seen.remember(self.options.scope, delivered)

    async def close(self) -> None:
        await self._remember()

    def _key(self, batch: Batch, index: int) -> bytes:
        how, record = self.options.key, batch.records[index]
        if callable(how):
            return how(record)
        if how == "delivery":
            return batch.delivery_key(index)
        part, _, name = how.partition(".")
        value = _part(record, part, name)
        if value is None:
            raise RecordRefused(f"the record has no {how}, which identifies it")
        return value if isinstance(value, bytes) else encode_json(value)


def _part(record: Record, part: str, name: str) -> Any:
    if part == "metadata":
        return record.metadata.get(name)
    return record.payload.get(name) if part == "payload" else record.key
