"""`dedupe` drops records whose key was seen before, by keys that commit with the records."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Required, TypedDict, Unpack

from pydantic import Field

from conduit_processors.record_key import key_of
from conduit_py.sdk import Batch, Options, Processor, Record, RecordRefused, Result, State, Unchanged
from conduit_py.sdk.template import FieldPath

_SCOPE = "keys"


class DedupeOptions(Options):
    """Options of dedupe."""

    key: FieldPath = Field(description="the field that tells records apart: one with the same value is a repeat")
    ttl_seconds: float | None = Field(
        default=None, gt=0, description="for how long a key is remembered at least; without it, for ever"
    )


class DedupeArguments(TypedDict, total=False):
    """DedupeOptions as a caller writes them, for editors and type checkers."""

    key: Required[str | FieldPath]
    ttl_seconds: float | None


class Dedupe(Processor[DedupeOptions]):
    """Passes the first record with a key and drops its repeats, which count as handled. A record without it is refused.

    Keys are in the store and commit with their records: a record that is read again after a crash is no repeat, and a
    repeat is none before its first is committed. Keys older than `ttl_seconds` are forgotten, about once a minute.
    """

    blocking = False
    stateful = True
    gives = Unchanged

    def __init__(self, **options: Unpack[DedupeArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        if not hasattr(self, "state"):
            # Outside of a pipeline, in a test.
            self.state = State()
        if self.options.ttl_seconds is not None:
            self.state.retain(_SCOPE, self.options.ttl_seconds)

    async def process_batch(self, batch: Batch) -> Sequence[Result]:
        digests: dict[int, bytes] = {}
        results: list[Result] = list(batch)
        for index, record in enumerate(batch):
            try:
                digests[index] = _digest(record, self.options.key)
            except RecordRefused as refusal:
                results[index] = refusal
        # All keys of a batch in one question to the store.
        firsts = await self.state.once(_SCOPE, list(digests.values()))
        for index, first in zip(digests, firsts, strict=True):
            if not first:
                results[index] = None
        return results

    def state_keys(self, record: Record) -> Sequence[str]:
        # Keys that were seen are never in memory, and it keeps nothing else.
        return ()


def _digest(record: Record, field: FieldPath) -> bytes:
    # Of one size, whatever the key: the store has millions of them.
    return blake2b(key_of(record, field).encode("latin-1"), digest_size=16).digest()
