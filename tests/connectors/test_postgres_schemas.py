"""Schemas of a PostgreSQL source: announced with the first record of a table and with the first one after a change."""

from conduit_connectors import postgres as connector
from conduit_connectors.change_queue import ChangeOrigin, ChangeQueue
from conduit_connectors.postgres.position import SourcePosition
from postgres_changes import ChangeReader, open_reader, run_sql, run_transaction, slot_of

from conduit_py.sdk import CollectionSchema, Operation, Reading, SchemaField, metadata

COLUMNS = """
    id int PRIMARY KEY, price numeric(12,2) NOT NULL, name varchar(20), at timestamptz(3), tags text[], raw bytea,
    mood mood, span int4range, took interval, body jsonb, size short, spot spot, ok boolean, day date
"""
FIELDS = (
    SchemaField("id", "integer", False, True, "integer"),
    SchemaField("price", "decimal", True, False, "numeric(12,2)"),
    SchemaField("name", "string", True, False, "character varying(20)"),
    SchemaField("at", "timestamptz", True, False, "timestamp(3) with time zone"),
    SchemaField("tags", "list", True, False, "text[]"),
    SchemaField("raw", "bytes", True, False, "bytea"),
    SchemaField("mood", "string", True, False, "mood"),
    SchemaField("span", "unknown", True, False, "int4range"),
    SchemaField("took", "interval", True, False, "interval"),
    SchemaField("body", "json", True, False, "jsonb"),
    SchemaField("size", "decimal", True, False, "numeric(5,1)"),
    SchemaField("spot", "record", True, False, "spot"),
    SchemaField("ok", "boolean", True, False, "boolean"),
    SchemaField("day", "date", True, False, "date"),
)


async def read_until(reader: ChangeReader, count: int) -> list[Reading]:
    """Read until there are this many records; return the readings that have any."""
    readings: list[Reading] = []
    while sum(len(each.records) for each in readings) < count:
        reading = await reader.source.read(100)
        readings += [reading] if reading.records else []
    return readings


def versions(readings: list[Reading]) -> list[str]:
    return [record.metadata[metadata.PAYLOAD_SCHEMA_VERSION] for each in readings for record in each.records]


async def test_a_schema_is_announced_once_for_rows_and_changes_until_the_table_changes(postgres: str) -> None:
    run_sql(postgres, "CREATE TYPE mood AS ENUM ('calm')", "CREATE DOMAIN short AS numeric(5,1)")
    run_sql(postgres, "CREATE TYPE spot AS (x int, y int)", f"CREATE TABLE t ({COLUMNS})")
    run_sql(postgres, "INSERT INTO t (id, price) VALUES (1, 1), (2, 2), (3, 3)")
    source = connector.Source(url=postgres, slot=slot_of(postgres), tables=["t"], chunk_size=2)

    async with open_reader(source) as reader:
        before = await read_until(reader, 3)
        run_sql(postgres, "UPDATE t SET price = 5 WHERE id = 2", "DELETE FROM t WHERE id = 3")
        before += await read_until(reader, 2)
        run_transaction(
            postgres,
            "INSERT INTO t (id, price) VALUES (4, 4)",
            "ALTER TABLE t ALTER name TYPE varchar(30)",
            "INSERT INTO t (id, price) VALUES (5, 5)",
            "INSERT INTO t (id, price) VALUES (6, 6)",
        )
        after = await read_until(reader, 3)
    async with open_reader(source, before[0].records[0].position) as reader:
        again = await read_until(reader, 1)

    [schema] = [schema for each in before for schema in each.schemas]
    assert before[0].schemas == (schema,)
    assert schema == CollectionSchema("public.t", schema.version, FIELDS)
    assert versions(before) == [schema.version] * 5
    # The change is in the middle of a transaction: a reading has no records of before it.
    assert [(len(each.records), each.continues) for each in after] == [(1, True), (2, False)]
    assert after[0].schemas == ()
    [changed] = after[1].schemas
    assert [field.native for field in changed.fields if field.name == "name"] == ["character varying(30)"]
    assert versions(after) == [schema.version, changed.version, changed.version]
    assert changed.version != schema.version
    # The rest of the snapshot is read with the columns of now.
    assert [each.version for each in again[0].schemas] == versions(again[:1])[:1]


def give(ready: ChangeQueue[SourcePosition], collection: str, version: str, *, ends: bool = True) -> None:
    origin = ChangeOrigin({}, CollectionSchema(collection, version, ()))
    ready.hold(Operation.CREATE, origin, SourcePosition.within("1", "0/1", 1, 0, ()), None, None, None)
    if ends:
        ready.release(SourcePosition.at("1", 1, ()))


def taken(ready: ChangeQueue[SourcePosition], n: int) -> tuple[int, bool, list[str]]:
    reading, _ = ready.take(n)
    return len(reading.records), reading.continues, [f"{each.collection}{each.version}" for each in reading.schemas]


def test_a_reading_has_one_schema_of_each_table_and_whole_transactions() -> None:
    ready = ChangeQueue[SourcePosition]()
    for collection, version in ("a1", "b1", "a1", "b2", "a1"):
        give(ready, collection, version)
    several = [taken(ready, 100), taken(ready, 100)]
    # A transaction of three, in whose middle the table changes, behind a whole one.
    give(ready, "a", "1")
    for version, ends in (("1", False), ("2", False), ("2", True)):
        give(ready, "a", version, ends=ends)
    inside = [taken(ready, 100) for _ in range(3)]
    # What is put back is announced with the reading that has it.
    give(ready, "b", "2")
    give(ready, "c", "1", ends=False)
    give(ready, "c", "1")
    put_back = [taken(ready, 2), taken(ready, 100)]

    assert several == [(3, False, ["a1", "b1"]), (2, False, ["b2"])]
    assert inside == [(1, False, []), (1, True, []), (2, False, ["a2"])]
    assert put_back == [(1, False, []), (2, False, ["c1"])]
