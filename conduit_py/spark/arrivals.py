"""Arrivals: processors of the driver that turn outcomes back into records, one for each way they can go on."""

from collections.abc import Callable

from conduit_py.batch import Batch
from conduit_py.dead_letter import RefusedElsewhere
from conduit_py.pipeline import Processor
from conduit_py.record import Record
from conduit_py.sdk.processor import FunctionProcessor, Result
from conduit_py.spark import outcome
from conduit_py.store.packing import unpack


def arrivals(prefix: str) -> list[Processor]:
    """What every outcome meets first: filtered records end here, and so do refused ones, each by its own letter."""
    return [_by_batch(prefix, _sort), _by_batch(f"{prefix}-letters", _refuse)]


def receipt(prefix: str, place: int) -> Processor:
    """What gives a destination the records that are for it, by its place in the pipeline."""

    def take(batch: Batch) -> list[Result]:
        return [_for_destination(place, record) for record in batch]

    return _by_batch(prefix, take)


def _by_batch(id: str, function: Callable[[Batch], list[Result]]) -> Processor:
    return Processor(id, FunctionProcessor(function, batch=True))


def _sort(batch: Batch) -> list[Result]:
    return [_sorted(record) for record in batch]


def _sorted(record: Record) -> Result:
    encoded = _encoded(record)
    if encoded == outcome.FILTERED:
        return None
    if not encoded.startswith(outcome.MIXED):
        return record
    return [Record.of(piece, position=record.position) for piece in outcome.pieces_of(encoded)]


def _refuse(batch: Batch) -> list[Result]:
    return [_refused(record) or record for record in batch]


def _refused(record: Record) -> RefusedElsewhere | None:
    if not _encoded(record).startswith(outcome.REFUSED):
        return None
    refusal = outcome.refusal_of(_encoded(record))
    return RefusedElsewhere(outcome.records_of(refusal), refusal.failures)


def _for_destination(place: int, record: Record) -> Result:
    mine = [
        unpack(delivery.record)
        for delivery in outcome.deliveries_of(_encoded(record))
        if place in delivery.destinations
    ]
    return mine[0] if len(mine) == 1 else mine


def _encoded(record: Record) -> bytes:
    encoded = record.payload.after
    assert isinstance(encoded, bytes)
    return encoded
