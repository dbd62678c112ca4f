"""Processors of the driver that turn outcomes back into records, one for each way they can go on."""

from collections.abc import Callable

from conduit_py.batch import Batch, Piece
from conduit_py.bundle import Bundle
from conduit_py.dead_letter import RefusedElsewhere
from conduit_py.pieces import Pieces
from conduit_py.pipeline import Processor
from conduit_py.record import Payload, Record
from conduit_py.record_codec import decode_record
from conduit_py.sdk.destination import PieceRefused
from conduit_py.sdk.processor import FunctionProcessor, Result
from conduit_py.spark.engine import outcome


def outcome_decoders(prefix: str, *, stops: bool) -> list[Processor]:
    """What every outcome meets first: filtered records end here, and so do refused ones, each by its own letter.

    With `stops` a refused record ends the run, and all before it are to be delivered: bundles must not have any.
    """

    def sort(batch: Batch) -> list[Result]:
        return [(_stopped(record) if stops else None) or _sorted(record) for record in batch]

    return [_by_batch(prefix, sort), _by_batch(f"{prefix}-letters", _refuse)]


def boundary_decoder(prefix: str, place: int) -> Processor:
    """What gives a destination the records that are for it, by its place in the pipeline."""

    def take(batch: Batch) -> list[Result]:
        return [_for_destination(place, record, batch.piece(index)) for index, record in enumerate(batch)]

    return _by_batch(prefix, take)


def bundle(encoded: bytes, position: bytes, size: int) -> Bundle:
    """An outcome that is about so many records."""
    return Bundle(position=position, payload=Payload(after=encoded), size=size)


def _by_batch(id: str, function: Callable[[Batch], list[Result]]) -> Processor:
    return Processor(id, FunctionProcessor(function, batch=True))


def _stopped(record: Record) -> PieceRefused | None:
    if not isinstance(record, Bundle) or not _encoded(record).startswith(outcome.PREPARED):
        return None
    refusals = outcome.prepared_of(_encoded(record)).refusals
    return PieceRefused(f"a record is refused: {refusals[0].failures[0].error}") if refusals else None


def _sorted(record: Record) -> Result:
    encoded = _encoded(record)
    if encoded == outcome.FILTERED:
        return None
    if encoded.startswith(outcome.MIXED):
        return [Record.of(piece, position=record.position) for piece in outcome.pieces_of(encoded)]
    if encoded.startswith(outcome.PREPARED) and isinstance(record, Bundle):
        return [bundle(part, record.position, record.size) for part in outcome.parts_of(encoded)]
    return record


def _refuse(batch: Batch) -> list[Result]:
    return [_refused(record) or record for record in batch]


def _refused(record: Record) -> RefusedElsewhere | None:
    if not _encoded(record).startswith(outcome.REFUSED):
        return None
    refusal = outcome.refusal_of(_encoded(record))
    offset = refusal.offset if isinstance(record, Bundle) else 0
    records = outcome.records_of(refusal)
    return RefusedElsewhere(records, refusal.failures, refusal.position, refusal.piece, offset)


def _for_destination(place: int, record: Record, name: Piece) -> Result:
    """What a destination gets of this outcome: the records that are for it, known by what they were split from."""
    if isinstance(record, Bundle):
        piece = outcome.prepared_of(_encoded(record)).pieces.get(place)
        return None if piece is None else bundle(piece.data, record.position, piece.size)
    mine = [each for each in outcome.deliveries_of(_encoded(record)) if place in each.destinations]
    if len(mine) == 1 and mine[0].piece == name:
        return decode_record(mine[0].record)
    return Pieces([decode_record(each.record) for each in mine], [each.piece for each in mine])


def _encoded(record: Record) -> bytes:
    encoded = record.payload.after
    assert isinstance(encoded, bytes)
    return encoded
