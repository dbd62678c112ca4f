"""Builders: batches and pipelines that several tests use, made in one place."""

from typing import Any

from conduit_py import DeadLetters, Destination, Pipeline, Source
from conduit_py.batch import Batch, Span
from conduit_py.record import Record
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource


def batch_of(*payloads: Any, first: int = 0, pipeline: str = "p", source: str = "s") -> Batch:
    """A batch as a source would have read it; its positions count from `first`. Records are taken as they are."""
    positions = [b"%d" % number for number in range(first, first + len(payloads))]
    records = [
        each if isinstance(each, Record) else Record.of(each, position=position)
        for each, position in zip(payloads, positions, strict=True)
    ]
    return Batch.whole(Span(pipeline, source, first, positions), records)


def scripted_pipeline(
    log: EventLog, *, records: int = 6, source: dict[str, Any] | None = None, stop_seconds: float = 30, **lake: Any
) -> Pipeline:
    """A pipeline `p` from `source` to `lake`, in batches of two, that follows the scripts and drops dead letters."""
    return Pipeline(
        "p",
        sources=[Source("source", ScriptedSource(records=records, log=log, **(source or {})), batch_size=2, window=4)],
        destinations=[Destination("lake", ScriptedDestination(name="lake", log=log, **lake))],
        dead_letters=DeadLetters("drop"),
        stop_seconds=stop_seconds,
    )
