"""Schemas of a MySQL source: announced once, for rows of a snapshot and for changes, until the table changes."""

import trio
from conduit_connectors import mysql as connector
from mariadb_changes import database_of, open_reader, replica_of, run_sql
from postgres_changes import PATIENCE_SECONDS

from conduit_py.sdk import Operation, Reading, SchemaField, metadata

COLUMNS = """
    id bigint unsigned PRIMARY KEY, small tinyint, price decimal(12,2) NOT NULL, ratio double, part float unsigned,
    name varchar(20), fixed char(7) CHARACTER SET latin1, wide varchar(300) CHARACTER SET utf8mb3, body longtext,
    note tinytext, raw varbinary(9), hash binary(16), data mediumblob, mood enum('a,b', 'it''s'), tags set('x', 'y'),
    day date, at datetime(3), seen timestamp(6) NULL, took time(2), plain datetime, since year, flags bit(12),
    ref uuid, host inet6, spot point
"""
FIELDS = (
    ("id", "integer", "bigint unsigned"),
    ("small", "integer", "tinyint"),
    ("price", "decimal", "decimal(12,2)"),
    ("ratio", "float", "double"),
    ("part", "float", "float unsigned"),
    ("name", "string", "varchar(20)"),
    ("fixed", "string", "char(7)"),
    ("wide", "string", "varchar(300)"),
    ("body", "string", "longtext"),
    ("note", "string", "tinytext"),
    ("raw", "bytes", "varbinary(9)"),
    ("hash", "bytes", "binary(16)"),
    ("data", "bytes", "mediumblob"),
    ("mood", "string", "enum"),
    ("tags", "string", "set"),
    ("day", "date", "date"),
    ("at", "timestamp", "datetime(3)"),
    ("seen", "timestamptz", "timestamp(6)"),
    ("took", "time", "time(2)"),
    ("plain", "timestamp", "datetime"),
    ("since", "integer", "year"),
    ("flags", "integer", "bit(12)"),
    ("ref", "uuid", "uuid"),
    ("host", "unknown", "inet6"),
    ("spot", "bytes", "geometry"),
)


async def test_a_schema_is_announced_once_for_rows_and_changes_until_the_table_changes(mariadb: str) -> None:
    run_sql(mariadb, f"CREATE TABLE t ({COLUMNS})", "INSERT INTO t (id, price) VALUES (1, 1.5)")
    source = connector.Source(url=mariadb, server_id=replica_of(mariadb), tables=["t"])
    async with open_reader(source) as reader:
        readings = [await read_one(reader.source)]
        run_sql(
            mariadb,
            "UPDATE t SET price = 2 WHERE id = 1",
            "INSERT INTO t (id, price) VALUES (2, 1)",
            "ALTER TABLE t ADD more int, DROP body",
            "INSERT INTO t (id, price, more) VALUES (3, 1, 5)",
            "TRUNCATE t",
        )
        readings += [await read_one(reader.source) for _ in range(4)]

    announced = [each.schemas for each in readings]
    [schema] = announced[0]
    assert schema.collection == f"{database_of(mariadb)}.t"
    assert schema.fields == tuple(
        SchemaField(name, kind, name != "id", name == "id", native)  # type: ignore[arg-type]
        for name, kind, native in FIELDS
    )
    assert announced[1:3] == [(), ()]
    [changed] = announced[3]
    assert [field.name for field in changed.fields] == [name for name, _, _ in FIELDS if name != "body"] + ["more"]
    versions = [each.records[0].metadata.get(metadata.PAYLOAD_SCHEMA_VERSION) for each in readings]
    assert versions == [schema.version] * 3 + [changed.version, None]
    assert [each.records[0].operation for each in readings][:2] == [Operation.SNAPSHOT, Operation.UPDATE]


async def read_one(source: connector.Source) -> Reading:
    """Read until there is a record."""
    with trio.fail_after(PATIENCE_SECONDS):
        while not (reading := await source.read(1)).records:
            pass
    return reading
