"""Turns outcomes of executors back into records and dead letters on the driver, and writes what they prepared."""

from collections.abc import Awaitable, Callable
from typing import Any

from conduit_py.batch import Batch, MessageId, NamedPieces, Piece
from conduit_py.dead_letter import DeadLetter, RefusedWithLetter
from conduit_py.errors import RecordRefused
from conduit_py.graph.compile import DEAD_LETTERS
from conduit_py.pipeline import Processor
from conduit_py.record import Payload, Record, RecordGroup
from conduit_py.record_codec import decode_record
from conduit_py.sdk.destination import PieceRefused
from conduit_py.sdk.processor import FunctionProcessor, Result
from conduit_py.spark.engine import outcome
from conduit_py.store.letter_codec import decode_dead_letter
from conduit_py.write_adapter import WriteAdapter


def outcome_decoders(prefix: str, *, stops: bool) -> list[Processor]:
    """The processors that every outcome meets first: here filtered records end, and refused ones become dead letters.

    With `stops` a refused record ends the run, and all records before it must be delivered. A group that has one is
    an error then, and the run goes on record by record.
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

    def asks_when(self, batch: Batch) -> bool:
        return not self._when_asked or batch.span.source == DEAD_LETTERS

    async def write(self, call: Callable[..., Awaitable[Any]], batch: Batch) -> Any:
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
    if not isinstance(record, RecordGroup) or not _bytes_of(record).startswith(outcome.PREPARED):
        return None
    letters = outcome.decode_task_outcome(_bytes_of(record)).letters
    return PieceRefused(f"a record is refused: {decode_dead_letter(letters[0]).error}") if letters else None


def _decode(record: Record) -> Result:
    encoded = _bytes_of(record)
    if encoded == outcome.FILTERED:
        return None
    if encoded.startswith(outcome.MIXED):
        return [Record.of(piece, position=record.position) for piece in outcome.split_kinds(encoded)]
    if encoded.startswith(outcome.PREPARED) and isinstance(record, RecordGroup):
        return [group(part, record.position, record.size) for part in outcome.split_refusals(encoded)]
    return record


def _refuse(batch: Batch) -> list[Result]:
    return [_refusal(batch, index) or record for index, record in enumerate(batch)]


def _refusal(batch: Batch, index: int) -> RefusedWithLetter | None:
    """A refusal on an executor as the dead letter that one machine would have made."""
    record = batch[index]
    if not _bytes_of(record).startswith(outcome.REFUSED):
        return None
    written = outcome.decode_refusal(_bytes_of(record))
    message = MessageId(batch.span.source, batch.sequences[index], written.message.piece)
    letter = DeadLetter(batch.span.pipeline, message, written.position, written.record, written.failures)
    letter.elsewhere = written.elsewhere
    # So that the nack window counts records, not groups.
    letter.record_index = written.message.sequence if isinstance(record, RecordGroup) else 0
    return RefusedWithLetter(letter)


def _for_destination(place: int, record: Record, name: Piece) -> Result:
    """The records of this outcome for a boundary. A piece keeps the name that its split on the executor gave it."""
    if isinstance(record, RecordGroup):
        piece = outcome.decode_task_outcome(_bytes_of(record)).batches.get(place)
        return None if piece is None else group(piece.data, record.position, piece.size)
    mine = [each for each in outcome.decode_deliveries(_bytes_of(record)) if place in each.destinations]
    # The common case, a record that was not split: its identity on the driver is right already.
    if len(mine) == 1 and mine[0].piece == name:
        return decode_record(mine[0].record)
    # Pieces keep the names of their split on the executor: their delivery keys are made of those.
    return NamedPieces([decode_record(each.record) for each in mine], [each.piece for each in mine])


def _bytes_of(record: Record) -> bytes:
    encoded = record.payload.after
    assert isinstance(encoded, bytes)
    return encoded
