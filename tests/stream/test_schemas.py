"""Schemas: what a source announces is what destinations see with the records that follow, in order."""

from typing import Any

import trio
from trio.testing import MockClock

from conduit_py import Destination, Pipeline, Record, Source, metadata, processor
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import (
    Batch,
    CollectionSchema,
    DestinationConnector,
    EndOfSource,
    Options,
    Reading,
    SchemaField,
    SourceConnector,
)
from conduit_py.store.memory import MemoryStore

ONE = CollectionSchema("orders", "1", (SchemaField("id", "integer", nullable=False, key=True),))
TWO = CollectionSchema("orders", "2", (*ONE.fields, SchemaField("note", "string", native="varchar(20)")))
OTHER = CollectionSchema("people", "1", (SchemaField("name", "string"),))


class Played(SourceConnector[Options]):
    """Returns these readings, then ends."""

    def of(self, *readings: Reading) -> "Played":
        self.readings = list(readings)
        return self

    def fresh(self) -> "Played":
        return self

    def read(self, n: int) -> Reading:
        if not self.readings:
            raise EndOfSource
        return self.readings.pop(0)


class Schemas(DestinationConnector[Options]):
    """Notes the schema version of every record, and how many records came in each batch."""

    def noting(self) -> "Schemas":
        self.seen: list[tuple[int, str | None]] = []
        return self

    def fresh(self) -> "Schemas":
        return self

    async def write(self, batch: Batch) -> None:
        await trio.sleep(1)
        for index, record in enumerate(batch):
            schema = batch.schema(index)
            self.seen.append(
                (record.payload["n"], f"{schema.collection} {schema.version}" if schema is not None else None)
            )


def reading(*numbers: int, collection: str = "orders", schemas: Any = ()) -> Reading:
    records = [Record.of({"n": number}, position=b"%d" % number) for number in numbers]
    for record in records:
        record.metadata[metadata.COLLECTION] = collection
    return Reading(records, schemas=schemas)


async def run(*readings: Reading, processors: Any = ()) -> list[tuple[int, str | None]]:
    sink = Schemas().noting()
    pipeline = Pipeline(
        "p",
        sources=[Source("s", Played().of(*readings))],
        destinations=[Destination("d", sink)],
        processors=processors,
    )
    await Supervisor(pipeline, MemoryStore()).run()
    return sink.seen


async def test_each_record_has_the_schema_that_was_announced_before_it(autojump_clock: MockClock) -> None:
    seen = await run(
        reading(1, 2, schemas=[ONE]),
        reading(3),
        reading(4, 5, collection="people", schemas=[OTHER]),
        reading(6, schemas=[TWO]),
        reading(7, collection="people"),
        reading(8),
    )

    assert seen == [
        (1, "orders 1"), (2, "orders 1"), (3, "orders 1"), (4, "people 1"), (5, "people 1"),
        (6, "orders 2"), (7, "people 1"), (8, "orders 2"),
    ]  # fmt: skip


async def test_a_record_of_an_unknown_collection_has_none(autojump_clock: MockClock) -> None:
    assert await run(reading(1, schemas=[ONE]), reading(2, collection="else")) == [(1, "orders 1"), (2, None)]


async def test_a_source_without_schemas_gives_none(autojump_clock: MockClock) -> None:
    assert await run(reading(1)) == [(1, None)]


async def test_schemas_pass_processors(autojump_clock: MockClock) -> None:
    @processor
    def twice(record: Record) -> list[Record]:
        return [record, record.copy()]

    assert await run(reading(1, schemas=[ONE]), processors=[twice]) == [(1, "orders 1"), (1, "orders 1")]
