"""Outcome: what became of one record on an executor, as the bytes that take its place on the driver."""

from collections.abc import Mapping, Sequence

import msgspec

from conduit_py.dead_letter import DeadLetter
from conduit_py.store.letter_codec import decode_dead_letter, encode_dead_letter
from conduit_py.wire_error import WireError

FILTERED = b"f"
DELIVERED = b"d"
REFUSED = b"r"
MIXED = b"m"
PREPARED = b"p"
"""The first byte of an outcome. A mixed one has pieces of both kinds; a prepared one is about a whole task."""


class DeliveredRecord(msgspec.Struct, frozen=True, array_like=True):
    """A packed record, the boundaries it is for, by index, and which piece it is."""

    destinations: list[int]
    record: bytes
    piece: tuple[int, ...] = ()


class PreparedOutcome(msgspec.Struct, frozen=True, array_like=True):
    """What came of all records of a task together: prepared batches, by the place of the destination."""

    batches: dict[int, "PreparedBatch"]
    letters: list[bytes]
    """The encoded dead letters of its records."""


class PreparedBatch(msgspec.Struct, frozen=True, array_like=True):
    """What a destination takes in place of `size` records."""

    size: int
    data: bytes


class TaskResult(msgspec.Struct, frozen=True, array_like=True):
    """What a task did: an outcome for each record it read, in order, and what its nodes counted.

    Where destinations take prepared batches there is one outcome for all, at the last position.
    """

    positions: list[bytes]
    outcomes: list[bytes]
    counts: dict[str, list[int]]
    """By node, the counters of its meter, in the order of COUNTERS."""
    size: int = 0
    """How many records the one outcome is about; 0 if each has its own."""
    error: WireError | None = None
    """The error that ended the task, if one did."""


def encode_outcome(deliveries: Sequence[DeliveredRecord], letters: Sequence[DeadLetter]) -> bytes:
    """The outcome of a record with these deliveries and letters."""
    if not letters:
        return DELIVERED + _ENCODER.encode(deliveries) if deliveries else FILTERED
    encoded = [encode_dead_letter(letter, as_text=True) for letter in letters]
    if not deliveries and len(encoded) == 1:
        return REFUSED + encoded[0]
    return MIXED + _ENCODER.encode((deliveries, encoded))


def encode_task_outcome(batches: Mapping[int, PreparedBatch], letters: Sequence[DeadLetter]) -> bytes:
    """The outcome of a task with these batches and letters."""
    if not batches and not letters:
        return FILTERED
    encoded = [encode_dead_letter(letter, as_text=True) for letter in letters]
    return PREPARED + _ENCODER.encode(PreparedOutcome(dict(batches), encoded))


def decode_deliveries(encoded: bytes) -> list[DeliveredRecord]:
    """The deliveries of an outcome that has nothing else."""
    return _DELIVERIES.decode(memoryview(encoded)[1:])


def decode_refusal(encoded: bytes) -> DeadLetter:
    """The letter as the task wrote it: its sequence counts the records of the task."""
    return decode_dead_letter(encoded[1:])


def split_kinds(encoded: bytes) -> list[bytes]:
    """A mixed outcome as outcomes of one kind each."""
    deliveries, letters = _MIXED.decode(memoryview(encoded)[1:])
    delivered = [DELIVERED + _ENCODER.encode(deliveries)] if deliveries else []
    return delivered + [REFUSED + letter for letter in letters]


def decode_task_outcome(encoded: bytes) -> PreparedOutcome:
    return _PREPARED.decode(memoryview(encoded)[1:])


def split_refusals(encoded: bytes) -> list[bytes]:
    """A prepared outcome as one without refusals, if it has batches, and each refusal as an outcome of its own."""
    whole = decode_task_outcome(encoded)
    if not whole.letters:
        return [encoded]
    taken = [PREPARED + _ENCODER.encode(PreparedOutcome(whole.batches, []))] if whole.batches else []
    return taken + [REFUSED + letter for letter in whole.letters]


_ENCODER = msgspec.msgpack.Encoder()
_DELIVERIES = msgspec.msgpack.Decoder(list[DeliveredRecord])
_PREPARED = msgspec.msgpack.Decoder(PreparedOutcome)
_MIXED = msgspec.msgpack.Decoder(tuple[list[DeliveredRecord], list[bytes]])
