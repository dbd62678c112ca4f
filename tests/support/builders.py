"""Builders: the values that tests of connectors pass around, made in one place."""

from typing import Any

from conduit_py.batch import Batch, Span
from conduit_py.record import Record


def batch_of(*payloads: Any, first: int = 0, pipeline: str = "p", source: str = "s") -> Batch:
    """A batch as a source would have read it; its positions count from `first`. Records are taken as they are."""
    positions = [b"%d" % number for number in range(first, first + len(payloads))]
    records = [
        each if isinstance(each, Record) else Record.of(each, position=position)
        for each, position in zip(payloads, positions, strict=True)
    ]
    return Batch.whole(Span(pipeline, source, first, positions), records)
