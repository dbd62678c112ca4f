"""Events of the binary log: what is damaged is refused by name, and statements do what they say."""

import zlib
from struct import pack
from typing import Any

import pytest
from conduit_connectors.mysql.binlog_events import (
    FORMAT_DESCRIPTION,
    GTID,
    GTID_LIST,
    QUERY,
    ROTATE,
    ROWS,
    TABLE_MAP,
    BinlogEvent,
    EventMalformed,
    Gtid,
    LoggedStatement,
    parse_format,
    parse_group_start,
    parse_gtid_list,
    parse_rotate,
    parse_statement,
    split_event,
    uncompress,
)
from conduit_connectors.mysql.log_cursor import LogCursor
from conduit_connectors.mysql.logged_statement import StatementEffect, parse_effect
from conduit_connectors.mysql.position import VERSION, BinlogPosition, GtidState, UnreadTable, parse_gtid
from conduit_connectors.mysql.row_values import LoggedRowDecoder
from conduit_connectors.mysql.table_map import parse_table_map, table_names
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.sdk import FatalError

# A table map and a row of `(id int unsigned PRIMARY KEY, v varchar(300), d decimal(30,10), t time(2))`, as logged.
MAP = bytes.fromhex(
    "170000000000 0100 0178 00 0174 00 04 030ff613 05 b004 1e0a 02 0e"
    "01 01 80 02 01 2d 04 09 02 6964 01 76 01 64 01 74 08 01 00".replace(" ", "")
)
ROW = bytes.fromhex("170000000000 0100 04 ff f0 05000000 0200 c3a4".replace(" ", "")) + bytes(
    [0x80, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
)


def event_of(kind: int, body: bytes, end: int = 100, flags: int = 0) -> BinlogEvent:
    return BinlogEvent(kind, 1, 1, 19 + len(body), end, flags, body)


def raw_event(kind: int, body: bytes) -> bytes:
    """The bytes of an event with its checksum."""
    data = pack("<IBIIIH", 1, kind, 1, 19 + len(body) + 4, 100, 0) + body
    return data + pack("<I", zlib.crc32(data))


@given(st.integers(0, 255).filter(lambda kind: kind != FORMAT_DESCRIPTION), st.binary(max_size=50), st.data())
def test_a_damaged_event_is_refused_by_its_checksum(kind: int, body: bytes, data: Any) -> None:
    whole = raw_event(kind, body)
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))

    assert split_event(whole, checksums=True).body == body
    if damaged[4] != FORMAT_DESCRIPTION:
        with pytest.raises(EventMalformed):
            split_event(bytes(damaged), checksums=True)


@given(st.binary(max_size=60))
def test_random_bytes_are_refused_or_are_an_event(raw: bytes) -> None:
    for checksums in (True, False):
        try:
            event = split_event(raw, checksums=checksums)
        except EventMalformed:
            continue
        assert event.size == len(raw)


def refusal_of(parse: Any) -> str | None:
    """The reason for which it is refused; None if it is not. Any other error fails the test."""
    try:
        parse()
    except (EventMalformed, FatalError) as refusal:
        return str(refusal)
    return None


PARSERS: dict[int, Any] = {
    FORMAT_DESCRIPTION: parse_format,
    ROTATE: parse_rotate,
    GTID: parse_group_start,
    GTID_LIST: parse_gtid_list,
    QUERY: parse_statement,
    165: parse_statement,
    TABLE_MAP: parse_table_map,
}


@given(st.sampled_from(sorted(PARSERS)), st.binary(max_size=80))
def test_random_bodies_are_refused_or_are_read(kind: int, body: bytes) -> None:
    assert refusal_of(lambda: PARSERS[kind](event_of(kind, body))) != ""


@given(st.data())
def test_a_damaged_table_map_is_refused_or_is_another_one(data: Any) -> None:
    damaged = bytearray(MAP)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(MAP) - 1))] = data.draw(st.integers(0, 255))

    def parse() -> None:
        table_names(event_of(TABLE_MAP, bytes(damaged)))
        table = parse_table_map(event_of(TABLE_MAP, bytes(damaged)))
        LoggedRowDecoder(table.columns, {45: "utf8mb4", 63: "binary"}, {})

    assert refusal_of(parse) != ""


def test_a_table_map_whose_collations_are_no_pairs_is_refused_by_its_name() -> None:
    damaged = bytes([*MAP[:30], 12, *MAP[31:]])

    assert "table map of" in str(refusal_of(lambda: parse_table_map(event_of(TABLE_MAP, damaged))))


@given(st.sampled_from(sorted(ROWS)), st.binary(max_size=60), st.integers(0, len(ROW)))
def test_random_rows_are_refused_or_are_rows(kind: int, raw: bytes, kept: int) -> None:
    decoder = LoggedRowDecoder(parse_table_map(event_of(TABLE_MAP, MAP)).columns, {45: "utf8mb4", 63: "binary"}, {})
    for body in (raw, ROW[:kept], ROW[:kept] + raw):
        event = event_of(kind, body)
        assert refusal_of(lambda event=event: list(decoder.rows(event))) != ""


def test_a_row_is_read_as_it_was_logged() -> None:
    table = parse_table_map(event_of(TABLE_MAP, MAP))
    decoder = LoggedRowDecoder(table.columns, {45: "utf8mb4", 63: "binary"}, {})
    [(before, after)] = decoder.rows(event_of(23, ROW + b"\x80\0\0\0"))

    assert (table.database, table.name, table.key, table.described) == ("x", "t", ("id",), True)
    assert before is None
    assert after is not None
    assert list(after.values) == ["id", "v", "d", "t"]
    assert (after.values["id"], after.values["v"]) == (5, "ä")


@given(st.binary(max_size=300))
def test_what_is_compressed_is_the_same_again(data: bytes) -> None:
    size = len(data).to_bytes(2, "big")
    packed = bytes([0x80 | len(size)]) + size + zlib.compress(data)

    assert uncompress(packed) == data
    for wrong in (packed[:-1], b"", b"\x10" + packed[1:], bytes([0xF2]) + packed[1:]):
        with pytest.raises(EventMalformed):
            uncompress(wrong)


NONE, EMPTIES, REPLACES = StatementEffect.NONE, StatementEffect.EMPTIES, StatementEffect.REPLACES


@pytest.mark.parametrize(
    ("sql", "effect", "tables"),
    [
        ("TRUNCATE TABLE t", EMPTIES, ["d.t"]),
        ("truncate `a``b`.`c d` /* x */ WAIT 5", EMPTIES, ["a`b.c d"]),
        ("/* TRUNCATE x */ -- drop\n# no\n TRUNCATE t", EMPTIES, ["d.t"]),
        ("/*!50000 TRUNCATE */ TABLE t", EMPTIES, ["d.t"]),
        ("DROP TABLE IF EXISTS `t`,`x`.`u` /* generated by server */", EMPTIES, ["d.t", "x.u"]),
        ("DROP TEMPORARY TABLE t", NONE, []),
        ("DROP VIEW t", NONE, []),
        ("DROP INDEX i ON t", NONE, []),
        ("CREATE TABLE t (a int COMMENT 'TRUNCATE TABLE t')", NONE, []),
        ("CREATE OR REPLACE TABLE t (a int)", EMPTIES, ["d.t"]),
        ("CREATE OR REPLACE VIEW t AS SELECT 1", NONE, []),
        ("RENAME TABLE a TO b, x.c TO x.d", REPLACES, ["d.a", "d.b", "x.c", "x.d"]),
        ("RENAME TABLE a TO old, new TO a", REPLACES, ["d.old", "d.new"]),
        ("ALTER TABLE t ADD truncate_partition int", NONE, []),
        ("ALTER TABLE t ADD c varchar(9) DEFAULT 'DROP PARTITION'", NONE, []),
        ("ALTER TABLE t RENAME COLUMN a TO b", NONE, []),
        ("ALTER TABLE t RENAME INDEX a TO b", NONE, []),
        ("ALTER TABLE t RENAME x.u", REPLACES, ["d.t", "x.u"]),
        ("ALTER TABLE t ADD a int, RENAME TO u", REPLACES, ["d.t", "d.u"]),
        ("ALTER TABLE IF EXISTS t DROP PARTITION p", REPLACES, ["d.t"]),
        ("ALTER ONLINE TABLE t TRUNCATE PARTITION ALL", REPLACES, ["d.t"]),
        ("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE x.u", REPLACES, ["d.t", "x.u"]),
        ("ALTER IGNORE TABLE t ADD UNIQUE (a)", REPLACES, ["d.t"]),
        ("ALTER TABLE t IMPORT TABLESPACE", REPLACES, ["d.t"]),
        ("ALTER TABLE t REORGANIZE PARTITION p INTO (PARTITION q VALUES LESS THAN (1))", NONE, []),
        ("ALTER DATABASE d CHARACTER SET utf8mb4", NONE, []),
        ("ALTER USER x IDENTIFIED BY 'y'", NONE, []),
        ("GRANT INSERT ON *.* TO x", NONE, []),
        ("SAVEPOINT `a`", NONE, []),
        ("", NONE, []),
        ("COMMIT", StatementEffect.COMMIT, []),
        ("ROLLBACK", StatementEffect.ROLLBACK, []),
        ("ROLLBACK TO `a`", StatementEffect.ROLLBACK_TO, []),
        ("insert into t values (1)", StatementEffect.ROWS, []),
        ("WITH x AS (SELECT 1) DELETE FROM t", StatementEffect.ROWS, []),
    ],
)
def test_what_a_statement_does_to_rows(sql: str, effect: StatementEffect, tables: list[str]) -> None:
    parsed = parse_effect(LoggedStatement("d", sql))

    assert (parsed.effect, [".".join(name) for name in parsed.tables]) == (effect, tables)


def test_names_in_double_quotes_and_databases_that_are_dropped() -> None:
    assert parse_effect(LoggedStatement("d", 'TRUNCATE "a ""b"', ansi_quotes=True)).tables == (("d", 'a "b'),)
    assert parse_effect(LoggedStatement("", "DROP DATABASE IF EXISTS `x y`")).database == "x y"


@given(st.text(max_size=60))
def test_no_text_of_a_statement_stops_the_reader(sql: str) -> None:
    parse_effect(LoggedStatement("d", sql))
    parse_effect(LoggedStatement("d", f"ALTER TABLE {sql}"))


def test_a_place_is_known_only_after_what_the_server_skips() -> None:
    cursor = LogCursor(GtidState.parse("0-1-5,2-1-9"))
    cursor.enter_file("binlog.000007", 4)
    cursor.pass_event(event_of(161, b"", end=325))
    cursor.pass_list(event_of(GTID_LIST, b"", end=285), [Gtid(0, 1, 5)])
    assert cursor.place is None

    cursor.pass_list(event_of(GTID_LIST, b"", end=900, flags=0x20), [Gtid(0, 3, 6), Gtid(2, 1, 9)])
    assert cursor.place == (7, 900)
    cursor.pass_event(event_of(ROTATE, b"", end=0, flags=0x20))
    assert cursor.place == (7, 900)
    cursor.enter_file("binlog.000010", 4)
    assert cursor.place == (10, 4)


def test_a_file_may_be_longer_than_its_offsets_can_say() -> None:
    cursor = LogCursor(GtidState())
    cursor.enter_file("a.1", 4)
    cursor.pass_list(event_of(GTID_LIST, b"", end=2**32 - 50), [])
    cursor.pass_event(event_of(16, b"", end=20))
    assert cursor.place == (1, 2**32 + 20)

    assert cursor.begin_group(event_of(GTID, b"x" * 23, end=62)) == (1, 2**32 + 20)
    cursor.enter_file("a.2", 4)
    cursor.pass_event(event_of(16, b"", end=20))
    assert cursor.place == (2, 20)


gtids = st.builds(Gtid, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))


@given(st.lists(gtids, max_size=4, unique_by=lambda gtid: gtid.domain), gtids, st.text(max_size=5))
def test_positions_come_back_as_they_were(last: list[Gtid], gtid: Gtid, key: str) -> None:
    state = GtidState(tuple(sorted(last)))
    todo = (UnreadTable("d.t", (key,), key, "r"),)

    assert GtidState.parse(str(state)) == state
    assert parse_gtid(str(gtid)) == gtid
    for position in (
        BinlogPosition.at("1", state, todo),
        BinlogPosition("1", str(state), str(gtid), 1, 2, 1, version=VERSION),
    ):
        assert BinlogPosition.decode(position.encode()) == position
    assert state.plus(gtid).is_before([gtid, *last])
    assert not state.plus(gtid).is_before([]) or gtid.sequence == 0


@pytest.mark.parametrize("wrong", ["0", "0-1", "0-1-2-3", "a-1-2", "0-1--2", "0-1-2,", ",", " ", "0-1-2 0-1-3"])
def test_what_is_no_gtid_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="not a GTID"):
        GtidState.parse(wrong)
