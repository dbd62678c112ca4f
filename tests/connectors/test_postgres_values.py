"""Values of a PostgreSQL source are exact: those of the stream and those of a snapshot, for every common type."""

import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from conduit_connectors import postgres as connector
from conduit_connectors.postgres.column_values import (
    CatalogType,
    decode_array,
    decode_composite,
    type_of,
)
from conduit_connectors.postgres.row_decoder import ColumnDecoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_changes import open_reader, run_sql, slot_of

from conduit_py.sdk import FatalError

TYPES = """
    CREATE TYPE mood AS ENUM ('happy', 'so so', 'a,"b"');
    CREATE DOMAIN positive AS numeric CHECK (value > 0);
    CREATE TYPE place AS (x int, label text, tags text[]);
"""

VALUES: list[tuple[str, str, Any, str | None]] = [
    ("boolean", "true", True, None),
    ("boolean", "NULL", None, None),
    ("smallint", "-32768", -32768, None),
    ("integer", "2147483647", 2147483647, None),
    ("bigint", "-9223372036854775808", -(2**63), None),
    ("oid", "4294967295", 2**32 - 1, None),
    ("real", "0.1", 0.1, None),
    ("double precision", "0.1::float8 + 0.2::float8", 0.1 + 0.2, None),
    ("double precision", "'-Infinity'", float("-inf"), None),
    (
        "numeric",
        "12345678901234567890.12345678901234567890",
        Decimal("12345678901234567890.12345678901234567890"),
        None,
    ),
    ("numeric(10,4)", "1.5", Decimal("1.5000"), None),
    ("numeric", "'Infinity'", Decimal("Infinity"), None),
    ("positive", "0.10", Decimal("0.10"), None),
    ("text", "E'a\\tb\\n\\\\ \u00e4\U0001f600'", "a\tb\n\\ \u00e4\U0001f600", None),
    ("text", "''", "", None),
    ("varchar(5)", "'null'", "null", None),
    ("char(3)", "'a'", "a  ", None),
    ("bytea", "'\\x00ff5c'", b"\x00\xff\x5c", None),
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"), None),
    ("date", "'2024-02-29'", date(2024, 2, 29), None),
    ("date", "'infinity'", "infinity", "date"),
    ("date", "'0044-03-15 BC'", "0044-03-15 BC", "date"),
    ("date", "'12024-01-02'", "12024-01-02", "date"),
    ("timestamp", "'2024-01-02 03:04:05.000006'", datetime(2024, 1, 2, 3, 4, 5, 6), None),  # noqa: DTZ001
    ("timestamp", "'-infinity'", "-infinity", "timestamp without time zone"),
    ("timestamp", "'0044-03-15 01:02:03 BC'", "0044-03-15 01:02:03 BC", "timestamp without time zone"),
    ("timestamptz", "'2024-01-02 03:04:05.5+02'", datetime(2024, 1, 2, 1, 4, 5, 500000, UTC), None),
    ("timestamptz", "'20240-01-02 00:00+00'", "20240-01-02 00:00:00+00", "timestamp with time zone"),
    ("time", "'23:59:59.999999'", time(23, 59, 59, 999999), None),
    ("time", "'24:00'", "24:00:00", "time without time zone"),
    ("timetz", "'01:02:03+05:30'", time(1, 2, 3, tzinfo=timezone(timedelta(hours=5, minutes=30))), None),
    ("interval", "'1 year 2 days 00:00:03.5'", "P1Y2DT3.5S", "interval"),
    ("json", "'{\"a\": [1, 2.5, 12345678901234567890123]}'", {"a": [1, 2.5, 12345678901234567890123]}, None),
    ("json", '\'{"a": 1, "a": 2}\'', '{"a": 1, "a": 2}', "json"),
    ("jsonb", "'{\"a\": 0.10000000000000000001}'", '{"a": 0.10000000000000000001}', "jsonb"),
    ("jsonb", "'{\"a\": 1e400}'", {"a": 10**400}, None),
    ("jsonb", "'null'", "null", "jsonb"),
    ("jsonb", "'\"text\"'", '"text"', "jsonb"),
    ("int[]", "'{{1,NULL},{3,4}}'", [[1, None], [3, 4]], None),
    ("int[]", "'{}'", [], None),
    ("int[]", "'[0:1]={1,2}'", "[0:1]={1,2}", "integer[]"),
    ("text[]", """ARRAY['NULL', NULL, '', 'a"b\\c', '{x,y}', ' ']""", ["NULL", None, "", 'a"b\\c', "{x,y}", " "], None),
    ("timestamptz[]", "ARRAY['2024-01-01 00:00+00'::timestamptz]", [datetime(2024, 1, 1, tzinfo=UTC)], None),
    ("mood", "'a,\"b\"'", 'a,"b"', None),
    ("mood[]", "ARRAY['so so', 'happy']::mood[]", ["so so", "happy"], None),
    ("place", """ROW(1, 'a "b", \\c', ARRAY['x,y'])::place""", {"x": 1, "label": 'a "b", \\c', "tags": ["x,y"]}, None),
    ("place", "ROW(NULL, '', NULL)::place", {"x": None, "label": "", "tags": None}, None),
    ("place[]", "ARRAY[ROW(1, 'a', '{}')::place]", [{"x": 1, "label": "a", "tags": []}], None),
    ("int4range", "'[1,5)'", "[1,5)", "int4range"),
    ("tstzrange", "'[2024-01-01 00:00+00,)'", '["2024-01-01 00:00:00+00",)', "tstzrange"),
    ("box[]", "ARRAY[box '(1,1),(0,0)']", ["(1,1),(0,0)"], "box[]"),
    ("inet", "'10.0.0.1/8'", "10.0.0.1/8", "inet"),
    ("money", "'12.34'", "$12.34", "money"),
    ("bit(3)", "B'101'", "101", "bit"),
    ("xml", "'<a/>'", "<a/>", None),
]


async def test_every_type_is_exact_in_the_stream_and_in_a_snapshot(postgres: str) -> None:
    run_sql(postgres, TYPES)
    columns = ", ".join(f"c{number} {type_name}" for number, (type_name, *_) in enumerate(VALUES))
    literals = ", ".join(literal for _, literal, *_ in VALUES)
    run_sql(postgres, f"CREATE TABLE everything (id int PRIMARY KEY, {columns})")
    run_sql(postgres, f"INSERT INTO everything VALUES (1, {literals})")
    source = connector.Source(url=postgres, slot=slot_of(postgres), tables=["everything"])

    async with open_reader(source) as reader:
        [snapshot] = await reader.take(1)
        run_sql(postgres, f"INSERT INTO everything VALUES (2, {literals})")
        [streamed] = await reader.take(1)

    for record, id_ in ((snapshot, 1), (streamed, 2)):
        kept = json.loads(record.metadata["postgres.text"])
        after: Any = record.payload.after
        assert record.key == {"id": id_}
        for number, (type_name, literal, expected, text_type) in enumerate(VALUES):
            value = after[f"c{number}"]
            assert (value, type(value)) == (expected, type(expected)), (type_name, literal)
            assert kept.get(f"c{number}") == text_type, (type_name, literal)


async def test_not_a_number_is_not_a_number(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE nan (id int PRIMARY KEY, f float8, r real, n numeric)")
    run_sql(postgres, "INSERT INTO nan VALUES (1, 'NaN', 'NaN', 'NaN')")

    async with open_reader(connector.Source(url=postgres, slot=slot_of(postgres), tables=["nan"])) as reader:
        [record] = await reader.take(1)

    values: Any = record.payload.after
    assert values["f"] != values["f"]
    assert values["r"] != values["r"]
    assert isinstance(values["n"], Decimal)
    assert values["n"].is_nan()


async def test_settings_of_the_database_and_the_user_do_not_change_the_values(postgres: str) -> None:
    name = postgres.rpartition("/")[2]
    for setting in ("DateStyle = 'SQL, DMY'", "IntervalStyle = 'sql_standard'", "TimeZone = 'Asia/Kathmandu'"):
        run_sql(postgres, f"ALTER DATABASE {name} SET {setting}")
    run_sql(postgres, f"ALTER DATABASE {name} SET bytea_output = 'escape'")
    run_sql(postgres, f"ALTER DATABASE {name} SET extra_float_digits = -10")
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY, d date, z timestamptz, b bytea, f float8, i interval)")
    insert = "INSERT INTO t VALUES ({}, '2024-02-01', '2024-01-02 00:00+00', '\\x00', 0.1234567890123456, '1 day')"
    run_sql(postgres, insert.format(1))

    async with open_reader(connector.Source(url=postgres, slot=slot_of(postgres), tables=["t"])) as reader:
        records = await reader.take(1)
        run_sql(postgres, insert.format(2))
        records += await reader.take(1)

    exact = (date(2024, 2, 1), datetime(2024, 1, 2, tzinfo=UTC), b"\0", 0.1234567890123456, "P1D")
    for record in records:
        values: Any = record.payload.after
        assert tuple(values[name] for name in "dzbfi") == exact


async def test_a_database_whose_texts_have_no_encoding_is_refused(postgres_server: Any) -> None:
    dsn = postgres_server.create_database()
    postgres_server.drop_database(dsn)
    name = dsn.rpartition("/")[2]
    run_sql(postgres_server.dsn(), f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0")
    source = connector.Source(url=dsn, slot=slot_of(dsn), tables=["t"])

    with pytest.raises(FatalError, match="SQL_ASCII"):
        async with open_reader(source):
            pass

    postgres_server.drop_database(dsn)


texts = st.none() | st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=6)


@given(st.lists(texts, max_size=5), st.tuples(st.none() | st.integers(-5, 5), texts, texts))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_arrays_and_rows_of_any_text_are_read_as_the_server_writes_them(
    array_server: psycopg.Connection[Any], items: list[str | None], fields: tuple[int | None, str | None, str | None]
) -> None:
    statement = "SELECT %s::text[], ROW(%s::int, %s::text, %s::text), ARRAY[%s::text[]], ROW(%s::text[])"
    result = array_server.execute(statement, (items, *fields, items, items)).pgresult
    assert result is not None
    array, row, nested, inside = ((result.get_value(0, place) or b"").decode() for place in range(4))
    decode = decode_array(str, ",")

    assert decode(array) == items
    # An empty array inside of another is an empty array.
    assert decode(nested) == ([items] if items else [])
    assert decode_composite([("a", int), ("b", str), ("c", str)])(row) == dict(zip("abc", fields, strict=True))
    assert decode_composite([("a", decode)])(inside) == {"a": items}


@pytest.fixture(scope="module")
def array_server(postgres_server: Any) -> Any:
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        yield connection


@given(st.text('{}",\\ ()aN[]=:1;', max_size=12))
def test_what_is_no_array_or_row_is_refused_and_stays_text(text: str) -> None:
    array = CatalogType(1000, "integer[]", "b", "A", 23)
    row = CatalogType(1001, "pair", "c", "C", fields=(("a", 23), ("b", 23)))
    catalog = {1000: array, 1001: row}
    decoder = ColumnDecoder([("a", type_of(1000, catalog)), ("r", type_of(1001, catalog))])

    decoded = decoder.decode((text.encode(), text.encode()))

    assert isinstance(decoded.values["a"], list) or decoded.kept["a"] == "integer[]"
    assert isinstance(decoded.values["r"], dict) or decoded.kept["r"] == "pair"


def test_a_type_that_is_gone_is_text_with_its_number() -> None:
    decoded = ColumnDecoder([("a", type_of(99999, {}))]).decode((b"x",))

    assert decoded.values == {"a": "x"}
    assert decoded.kept == {"a": "type 99999"}
