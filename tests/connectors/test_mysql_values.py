"""Values of MariaDB are exact Python values, the same from the log and from a SELECT."""

import json
import random
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal
from typing import Any
from uuid import UUID

import pytest
from conduit_connectors import mysql as connector
from conduit_connectors.mysql.charsets import _CODECS, decode_of
from mariadb_changes import open_reader, replica_of, run_sql

from conduit_py.sdk import FatalError, Record

EXACT = Context(prec=100)
CASES: list[tuple[str, str, Any]] = [
    ("tinyint", "-128", -128),
    ("tinyint unsigned", "255", 255),
    ("smallint", "-32768", -32768),
    ("smallint unsigned", "65535", 65535),
    ("mediumint", "-8388608", -8388608),
    ("mediumint unsigned", "16777215", 16777215),
    ("int", "-2147483648", -(2**31)),
    ("int unsigned zerofill", "4294967295", 2**32 - 1),
    ("bigint", "-9223372036854775808", -(2**63)),
    ("bigint unsigned", "18446744073709551615", 2**64 - 1),
    ("boolean", "true", 1),
    ("bit(1)", "b'1'", 1),
    ("bit(10)", "b'1000000001'", 513),
    ("bit(64)", "18446744073709551615", 2**64 - 1),
    ("year", "2155", 2155),
    ("year", "0", 0),
    ("float", "0.1", 0.1),
    ("float", "16777217", 16777216.0),
    ("float", "-3.4028234e38", -3.4028235e38),
    ("double", "0.1", 0.1),
    ("double", "1.7976931348623157e308", 1.7976931348623157e308),
    ("double", "5e-324", 5e-324),
    ("double", "-123456789.123456789", -123456789.123456789),
    ("decimal(65,30)", f"-{'9' * 35}.{'9' * 30}", Decimal(f"-{'9' * 35}.{'9' * 30}")),
    ("decimal(65,0)", "9" * 65, Decimal("9" * 65)),
    ("decimal(30,30)", "-0.000000000000000000000000000001", Decimal("-1E-30")),
    ("decimal(10,2)", "0", Decimal("0.00")),
    ("decimal(10,2)", "-1.50", Decimal("-1.50")),
    ("decimal(10,2) unsigned", "12345678.90", Decimal("12345678.90")),
    ("date", "'2020-02-29'", date(2020, 2, 29)),
    ("date", "'9999-12-31'", date(9999, 12, 31)),
    ("date", "'0000-00-00'", ("date", "0000-00-00")),
    ("date", "'2020-00-31'", ("date", "2020-00-31")),
    ("datetime", "'2020-01-02 03:04:05'", datetime(2020, 1, 2, 3, 4, 5)),  # noqa: DTZ001
    ("datetime(1)", "'2020-01-02 03:04:05.9'", datetime(2020, 1, 2, 3, 4, 5, 900_000)),  # noqa: DTZ001
    ("datetime(3)", "'0001-01-01 00:00:00.001'", datetime(1, 1, 1, 0, 0, 0, 1000)),  # noqa: DTZ001
    ("datetime(6)", "'9999-12-31 23:59:59.999999'", datetime(9999, 12, 31, 23, 59, 59, 999_999)),  # noqa: DTZ001
    ("datetime(2)", "'0000-00-00'", ("datetime", "0000-00-00 00:00:00.00")),
    ("timestamp null", "'2020-01-02 03:04:05'", datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ("timestamp(5) null", "'2038-01-19 03:14:07.12345'", datetime(2038, 1, 19, 3, 14, 7, 123_450, tzinfo=UTC)),
    ("timestamp(4) null", "0", ("timestamp", "0000-00-00 00:00:00.0000")),
    ("time", "'23:59:59'", time(23, 59, 59)),
    ("time(6)", "'00:00:00.000001'", time(0, 0, 0, 1)),
    ("time(3)", "'12:34:56.789'", time(12, 34, 56, 789_000)),
    ("time", "'24:00:00'", ("time", "24:00:00")),
    ("time", "'-838:59:59'", ("time", "-838:59:59")),
    ("time(1)", "'-12:30:01.2'", ("time", "-12:30:01.2")),
    ("time(4)", "'-00:00:00.0001'", ("time", "-00:00:00.0001")),
    ("time(6)", "'838:59:59.999999'", ("time", "838:59:59.999999")),
    ("char(10)", "'  ä x '", "  ä x"),
    ("char(255)", "repeat('€', 255)", "€" * 255),
    ("varchar(100)", "'x  '", "x  "),
    ("varchar(5000)", "repeat('😀', 5000)", "😀" * 5000),
    ("varchar(10) character set latin1", "'ä€'", "ä€"),
    ("varchar(10) character set utf16", "'ä😀'", "ä😀"),
    ("varchar(10) collate utf8mb4_bin", "''", ""),
    ("varchar(10) collate utf8mb4_uca1400_ai_ci", "'ß'", "ß"),
    ("tinytext", "'t'", "t"),
    ("mediumtext character set cp1251", "'Привет'", "Привет"),
    ("longtext", "repeat('x', 70000)", "x" * 70000),
    ("json", '\'{"b": 1.0, "a": [null]}\'', '{"b": 1.0, "a": [null]}'),
    ("binary(4)", "x'6100'", b"a\0\0\0"),
    ("binary(4)", "x'00000000'", b"\0\0\0\0"),
    ("binary(16)", "x'61'", b"a" + b"\0" * 15),
    ("varbinary(300)", "x'00ff00'", b"\0\xff\0"),
    ("blob", "x'ff'", b"\xff"),
    ("longblob", "''", b""),
    ("enum('a','ö,x','c')", "'ö,x'", "ö,x"),
    ("enum('a','b')", "0", ""),
    ("enum('a','b') character set latin1", "'b'", "b"),
    ("set('a','ö','c')", "'c,a'", "a,c"),
    ("set('a','b')", "''", ""),
    ("uuid", "'12345678-1234-1234-9234-123456789a00'", UUID("12345678-1234-1234-9234-123456789a00")),
    ("uuid", "'00000000-0000-0000-0000-000000000000'", UUID(int=0)),
    ("inet4", "'1.2.3.0'", ("inet4", "1.2.3.0")),
    ("inet6", "'2001:db8::ff00:0'", ("inet6", "2001:db8::ff00:0")),
    ("point", "point(1, 2)", bytes.fromhex("000000000101000000000000000000f03f0000000000000040")),
]


async def read_both(url: str, columns: list[str], rows: list[list[str]], *, mode: str = "") -> list[list[Record]]:
    """Return rows as the log has them and as a snapshot has them."""
    shape = ", ".join(f"c{index} {kind}" for index, kind in enumerate(columns))
    values = ", ".join(f"({number}, {', '.join(row)})" for number, row in enumerate(rows))
    run_sql(url, f"CREATE TABLE t (id int PRIMARY KEY, {shape})")
    changes = connector.Source(url=url, server_id=replica_of(url), tables=["t"], snapshot="never")
    async with open_reader(changes) as reader:
        run_sql(url, f"SET sql_mode = '{mode}'", f"INSERT INTO t VALUES {values}")
        logged = await reader.take(len(rows))
    async with open_reader(connector.Source(url=url, server_id=replica_of(url), tables=["t"])) as reader:
        selected = await reader.take(len(rows))
    run_sql(url, "DROP TABLE t")
    return [logged, selected]


async def test_every_type_is_exact_in_the_log_and_in_a_snapshot(mariadb: str) -> None:
    logged, selected = await read_both(
        mariadb, [kind for kind, _, _ in CASES], [[text for _, text, _ in CASES], ["NULL"] * len(CASES)]
    )

    for first, nulls in (logged, selected):
        kept = json.loads(first.metadata["mysql.text"])
        for index, (kind, text, expected) in enumerate(CASES):
            name = f"c{index}"
            value = (kept[name], first.payload[name]) if name in kept else first.payload[name]
            assert (value, type(value)) == (expected, type(expected)), (kind, text)
        assert {nulls.payload[f"c{index}"] for index in range(len(CASES))} == {None}
        assert "mysql.text" not in nulls.metadata


async def test_random_numbers_and_addresses_are_the_same_in_the_log_and_in_a_snapshot(mariadb: str) -> None:
    rng = random.Random(5)
    columns = ["float", "double", "decimal(65,30)", "decimal(23,9)", "time(6)", "inet6", "uuid", "bit(33)"]
    rows = [
        [
            repr(rng.uniform(-1, 1) * 10 ** rng.randrange(-37, 38)),
            repr(rng.uniform(-1, 1) * 10 ** rng.randrange(-300, 300)),
            f"{Decimal(rng.randrange(-(10**60), 10**60)).scaleb(-30, EXACT):f}",
            f"{Decimal(rng.randrange(-(10**20), 10**20)).scaleb(-9, EXACT):f}",
            f"'{rng.choice(['', '-'])}{rng.randrange(838)}:59:{rng.randrange(60)}.{rng.randrange(10**6):06}'",
            f"'{address(rng)}'",
            f"'{UUID(int=rng.getrandbits(128))}'",
            str(rng.getrandbits(33)),
        ]
        for _ in range(300)
    ]

    logged, selected = await read_both(mariadb, columns, rows)

    assert [record.payload.after for record in logged] == [record.payload.after for record in selected]
    assert [record.metadata["mysql.text"] for record in logged] == [each.metadata["mysql.text"] for each in selected]


def address(rng: random.Random) -> str:
    """Groups that are mostly zero, which have many ways of being written."""
    return ":".join(f"{rng.choice([0, 0, 0, 1, 0xFFFF, rng.getrandbits(16)]):x}" for _ in range(8))


def test_every_byte_of_a_character_set_is_read_as_the_server_reads_it(mariadb: str) -> None:
    for charset in _CODECS:
        order: Any = "little" if charset == "utf16le" else "big"
        width = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}.get(charset, 1)
        samples = [number.to_bytes(width, order) for number in range(256)]
        letters = {"utf8mb3": "€ä漢", "utf8": "€ä漢", "ucs2": "€ä漢"}.get(charset, "€ä漢😀")
        samples += [letter.encode(_CODECS[charset]) for letter in letters if width > 1 or charset.startswith("utf")]
        shown = ", ".join(
            f"CONVERT(CAST(x'{raw.hex()}' AS CHAR CHARACTER SET {charset}) USING utf8mb4)" for raw in samples
        )
        [texts] = run_sql(mariadb, "SET sql_mode = ''", f"SELECT {shown}")

        read = {raw: text for raw, text in zip(samples, texts, strict=True) if text not in (None, "?") or raw == b"?"}
        assert {raw: decode_of(charset, "c")(raw) for raw in read} == read, charset
        assert len(read) >= 128


async def test_a_character_set_that_python_reads_differently_is_refused(mariadb: str) -> None:
    run_sql(mariadb, "CREATE TABLE t (id int PRIMARY KEY, v varchar(10) CHARACTER SET sjis)")
    source = connector.Source(url=mariadb, server_id=replica_of(mariadb), tables=["t"], snapshot="never")
    async with open_reader(source) as reader:
        run_sql(mariadb, "INSERT INTO t VALUES (1, 'x')")
        with pytest.raises(FatalError, match="column v has the character set sjis") as refused:
            await reader.take(1)

    assert "utf8mb4" in str(refused.value.suggestion)
