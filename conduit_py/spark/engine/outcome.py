"""Outcome: what became of one record on an executor, as the bytes that take its place on the driver.

Executors encode outcomes. On the driver, processors decode them into records and dead letters again, and
PreparedWrites writes what executors prepared.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from conduit_py.batch import Batch, MessageId, NamedPieces, Piece
from conduit_py.dead_letter import DeadLetter, RefusedWithLetter
from conduit_py.errors import RecordRefused
from conduit_py.graph.compile import DEAD_LETTERS
from conduit_py.pipeline import Processor, WriteAdapter
from conduit_py.record import Payload, Record, RecordGroup
from conduit_py.record_codec import decode_record
from conduit_py.sdk.destination import PieceRefused
from conduit_py.sdk.processor import FunctionProcessor, Result
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
    """Encode the outcome of a record with these deliveries and letters."""
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


def outcome_decoders(prefix: str, *, stops: bool) -> list[Processor]:
    """The first processors of the driver: they drop filtered records and turn refused ones into dead letters.

    With `stops` a refused record ends the run, and all records before it must be delivered. A group with a refused
    record is then an error, and the run continues record by record.
    """

    def sort(batch: Batch) -> list[Result]:
        return [(_stop_error(record) if stops else None) or _decode(record) for record in batch]

    return [_by_batch(prefix, sort), _by_batch(f"{prefix}-letters", _refuse)]


def boundary_decoder(prefix: str, place: int) -> Processor:
    """The processor that gives the boundary with this index the records that are for it."""

    def take(batch: Batch) -> list[Result]:
        return [_for_destination(place, record, batch.piece(index)) for index, record in enumerate(batch)]

    return _by_batch(prefix, take)


class PreparedWrites(WriteAdapter):
    """The WriteAdapter of the driver: what executors have prepared goes to `take`, single records to `write`.

    With `when_asked` the destination's `when` was asked on executors, about all but dead letters that are replayed.
    """

    def __init__(self, *, when_asked: bool) -> None:
        self._when_asked = when_asked
        self.whole = False
        self.call: Callable[..., Awaitable[Any]] | None = None
        """Calls the connector of the run under way."""

    def asks_when(self, batch: Batch) -> bool:
        # Letters that are replayed come from the store and have passed no executor.
        return not self._when_asked or batch.span.source == DEAD_LETTERS

    def bind(self, call: Callable[..., Awaitable[Any]]) -> Callable[[Batch], Awaitable[Any]]:
        self.call = call
        return partial(self._write, call)

    async def _write(self, call: Callable[..., Awaitable[Any]], batch: Batch) -> Any:
        if not isinstance(batch[0], RecordGroup):
            return await call("write", batch)
        try:
            return await call("take", [record.payload.after for record in batch])
        except RecordRefused as error:
            # Only writing one by one can tell which of its records it is.
            raise PieceRefused(error.message, suggestion=error.suggestion) from error


def group(encoded: bytes, position: bytes, size: int) -> RecordGroup:
    """An outcome that is about `size` records."""
    return RecordGroup(position=position, payload=Payload(after=encoded), size=size)


def _by_batch(id: str, function: Callable[[Batch], list[Result]]) -> Processor:
    return Processor(id, FunctionProcessor(function, batch=True))


def _stop_error(record: Record) -> PieceRefused | None:
    if not isinstance(record, RecordGroup) or not _bytes_of(record).startswith(PREPARED):
        return None
    letters = decode_task_outcome(_bytes_of(record)).letters
    return PieceRefused(f"a record is refused: {decode_dead_letter(letters[0]).error}") if letters else None


def _decode(record: Record) -> Result:
    encoded = _bytes_of(record)
    if encoded == FILTERED:
        return None
    if encoded.startswith(MIXED):
        return [Record.of(piece, position=record.position) for piece in split_kinds(encoded)]
    if encoded.startswith(PREPARED) and isinstance(record, RecordGroup):
        return [group(part, record.position, record.size) for part in split_refusals(encoded)]
    return record


def _refuse(batch: Batch) -> list[Result]:
    return [_refusal(batch, index) or record for index, record in enumerate(batch)]


def _refusal(batch: Batch, index: int) -> RefusedWithLetter | None:
    """A refusal on an executor as the dead letter that one machine would have made."""
    record = batch[index]
    if not _bytes_of(record).startswith(REFUSED):
        return None
    written = decode_refusal(_bytes_of(record))
    message = MessageId(batch.span.source, batch.sequences[index], written.message.piece)
    letter = DeadLetter(batch.span.pipeline, message, written.position, written.record, written.failures)
    letter.elsewhere = written.elsewhere
    # So that the nack window counts records, not groups.
    letter.record_index = written.message.sequence if isinstance(record, RecordGroup) else 0
    return RefusedWithLetter(letter)


def _for_destination(place: int, record: Record, name: Piece) -> Result:
    """The records of this outcome for a boundary. A piece keeps the name that its split on the executor gave it."""
    if isinstance(record, RecordGroup):
        piece = decode_task_outcome(_bytes_of(record)).batches.get(place)
        return None if piece is None else group(piece.data, record.position, piece.size)
    mine = [each for each in decode_deliveries(_bytes_of(record)) if place in each.destinations]
    # The common case, a record that was not split: its identity on the driver is right already.
    if len(mine) == 1 and mine[0].piece == name:
        return decode_record(mine[0].record)
    # Pieces keep the names of their split on the executor: their delivery keys are made of those.
    return NamedPieces([decode_record(each.record) for each in mine], [each.piece for each in mine])


def _bytes_of(record: Record) -> bytes:
    encoded = record.payload.after
    assert isinstance(encoded, bytes)
    return encoded
