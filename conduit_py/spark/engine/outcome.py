"""Outcome: what became of one record on an executor, as the bytes that take its place on the driver."""

from collections.abc import Mapping, Sequence

import msgspec

from conduit_py import metadata
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.errors import RecordRefused, RunError
from conduit_py.record import Record
from conduit_py.record_codec import decode_record, encode_record

FILTERED = b"f"
DELIVERED = b"d"
REFUSED = b"r"
MIXED = b"m"
PREPARED = b"p"
"""The first byte of an outcome. A mixed one has pieces of both kinds; a prepared one is about a whole part."""


class DeliveredRecord(msgspec.Struct, frozen=True, array_like=True):
    """A packed record, the destinations it is for, by their place in the pipeline, and which piece it is."""

    destinations: list[int]
    record: bytes
    piece: tuple[int, ...] = ()


class RefusedRecord(msgspec.Struct, frozen=True, array_like=True):
    """A dead letter: the packed record as it stood at each node that refused it, the first one first, and why."""

    records: dict[str, bytes]
    failures: list[Failure]
    position: bytes
    piece: tuple[int, ...]
    offset: int
    """Which record of its part it was."""


class PreparedOutcome(msgspec.Struct, frozen=True, array_like=True):
    """What came of all records of a part together: pieces for destinations, by their place in the pipeline."""

    pieces: dict[int, "Piece"]
    refusals: list[RefusedRecord]


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """What a destination is to take in place of so many records."""

    size: int
    data: bytes


class TaskError(msgspec.Struct, frozen=True, array_like=True):
    """The error that ended a task."""

    code: str
    message: str
    suggestion: str | None
    node: str | None

    @classmethod
    def of(cls, error: RunError) -> "TaskError":
        return cls(error.code, error.message, error.suggestion, error.node)

    def error(self) -> RunError:
        """The same error on the driver, of the same kind, so that the same is done about it."""
        kind = _kinds().get(self.code, RunError)
        error = kind.__new__(kind)
        RunError.__init__(error, self.message, suggestion=self.suggestion)
        error.node = self.node
        return error


class TaskResult(msgspec.Struct, frozen=True, array_like=True):
    """What a task did: an outcome for each record it read, in order, and what its nodes counted.

    Where destinations take pieces there is one outcome for all, at the last position, which may be the only one.
    """

    positions: list[bytes]
    outcomes: list[bytes]
    counts: dict[str, list[int]]
    """By node, the counters of its meter, in the order of COUNTERS."""
    size: int = 0
    """How many records the one outcome is about; 0 if each has its own."""
    broken: TaskError | None = None


def outcome(deliveries: Sequence[DeliveredRecord], letters: Sequence[DeadLetter]) -> bytes:
    """The outcome of a record that led to these."""
    if not letters:
        return DELIVERED + _ENCODER.encode(deliveries) if deliveries else FILTERED
    refusals = [refusal(letter) for letter in letters]
    if not deliveries and len(refusals) == 1:
        return REFUSED + _ENCODER.encode(refusals[0])
    return MIXED + _ENCODER.encode((deliveries, refusals))


def prepared(pieces: Mapping[int, Piece], letters: Sequence[DeadLetter]) -> bytes:
    """The outcome of a part that led to these."""
    if not pieces and not letters:
        return FILTERED
    return PREPARED + _ENCODER.encode(PreparedOutcome(dict(pieces), [refusal(letter) for letter in letters]))


def refusal(letter: DeadLetter) -> RefusedRecord:
    records = {node: _packed(record) for node, record in letter.records.items()}
    message = letter.message
    return RefusedRecord(records, letter.failures, letter.position, message.piece, message.sequence)


def deliveries_of(encoded: bytes) -> list[DeliveredRecord]:
    """The deliveries in an outcome that has nothing else."""
    return _DELIVERIES.decode(memoryview(encoded)[1:])


def refusal_of(encoded: bytes) -> RefusedRecord:
    return _REFUSAL.decode(memoryview(encoded)[1:])


def pieces_of(encoded: bytes) -> list[bytes]:
    """The parts of a mixed outcome as outcomes of their own."""
    deliveries, refusals = _MIXED.decode(memoryview(encoded)[1:])
    delivered = [DELIVERED + _ENCODER.encode(deliveries)] if deliveries else []
    return delivered + [REFUSED + _ENCODER.encode(each) for each in refusals]


def prepared_of(encoded: bytes) -> PreparedOutcome:
    return _PREPARED.decode(memoryview(encoded)[1:])


def parts_of(encoded: bytes) -> list[bytes]:
    """A prepared outcome as one that has no refusals, if it has pieces, and the refusals as outcomes of their own."""
    whole = prepared_of(encoded)
    if not whole.refusals:
        return [encoded]
    taken = [PREPARED + _ENCODER.encode(PreparedOutcome(whole.pieces, []))] if whole.pieces else []
    return taken + [REFUSED + _ENCODER.encode(each) for each in whole.refusals]


def records_of(refusal: RefusedRecord) -> Mapping[str, Record]:
    return {node: decode_record(record) for node, record in refusal.records.items()}


def _packed(record: Record) -> bytes:
    """A refused record, which may well hold what cannot be carried: that becomes text."""
    try:
        return encode_record(record)
    except RecordRefused:
        shown = Record.of(repr(record.payload).encode(errors="replace"), position=record.position)
        shown.metadata[metadata.KEPT_AS_TEXT] = "true"
        return encode_record(shown)


def _kinds() -> dict[str, type[RunError]]:
    kinds: dict[str, type[RunError]] = {}
    pending = [RunError]
    while pending:
        kind = pending.pop()
        kinds[kind.code] = kind
        pending += kind.__subclasses__()
    return kinds


_ENCODER = msgspec.msgpack.Encoder()
_DELIVERIES = msgspec.msgpack.Decoder(list[DeliveredRecord])
_REFUSAL = msgspec.msgpack.Decoder(RefusedRecord)
_PREPARED = msgspec.msgpack.Decoder(PreparedOutcome)
_MIXED = msgspec.msgpack.Decoder(tuple[list[DeliveredRecord], list[RefusedRecord]])
