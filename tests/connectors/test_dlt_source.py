"""The dlt source: each row once, from whatever row it goes on, and never one skipped."""

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import dlt as the_dlt
import pendulum
import pyarrow as pa
import pytest
from conduit_connectors import dlt
from dlt.sources.sql_database import sql_table
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_py.sdk import EndOfSource, FatalError, Operation, Reading, Record, metadata
from conduit_py.testing import source_acceptance

ROWS = [{"id": number, "at": number // 3} for number in range(20)]


def orders(rows: list[dict[str, Any]] = ROWS, size: int = 4) -> Any:
    @the_dlt.resource(primary_key="id")
    def orders(at: Any = the_dlt.sources.incremental("at", initial_value=0)) -> Iterator[list[dict[str, Any]]]:
        for start in range(0, len(rows), size):
            yield [row for row in rows[start : start + size] if row["at"] >= at.start_value]

    return orders()


def shop() -> Any:
    @the_dlt.resource(primary_key="id")
    def people(id: Any = the_dlt.sources.incremental("id", initial_value=0)) -> Iterator[dict[str, Any]]:
        yield from ({"id": number} for number in range(5))

    @the_dlt.transformer(data_from=people, table_name="letters")
    def mail(person: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"to": person["id"]}

    @the_dlt.source
    def shop() -> Any:
        return orders(ROWS[:8]), people, mail

    return shop()


def table_of(folder: Path) -> Any:
    database = sqlite3.connect(folder / "a.db")
    database.execute("create table if not exists t(id integer primary key, at int)")
    database.executemany("insert or ignore into t values(?, ?)", [(row["id"], row["at"]) for row in ROWS])
    database.commit()
    database.close()
    cursor: Any = the_dlt.sources.incremental("at", row_order="asc")
    return sql_table(f"sqlite:///{folder}/a.db", table="t", incremental=cursor, chunk_size=7)


TestByRuns = source_acceptance(lambda tmp_path: dlt.Source(resource=shop))
TestByPages = source_acceptance(
    lambda tmp_path: dlt.Source(resource=table_of, arguments={"folder": tmp_path}, in_order=True)
)


def read_all(source: dlt.Source, position: bytes | None = None) -> tuple[list[Record], bytes | None]:
    """The records from a position on, and where the source stands at its end."""
    fresh, records, last = source.fresh(), [], position
    fresh.open(position)
    try:
        while True:
            reading = cast("Reading", fresh.read(1000))
            found = cast("list[Record]", reading.records)
            records += found
            last = reading.position or found[-1].position
    except EndOfSource:
        return records, last
    finally:
        fresh.teardown()


def ids(records: list[Record]) -> list[int]:
    return [cast("int", record.payload["id"]) for record in records]


@pytest.mark.parametrize("in_order", [False, True])
def test_it_goes_on_exactly_after_each_row(in_order: bool) -> None:
    source = dlt.Source(resource=orders, in_order=in_order)
    records, last = read_all(source)

    assert ids(records) == list(range(20))
    for index, record in enumerate(records):
        assert ids(read_all(source, record.position)[0]) == list(range(index + 1, 20))
    assert read_all(source, last)[0] == []


def test_a_second_run_reads_what_is_new() -> None:
    rows = ROWS[:10]
    source = dlt.Source(resource=orders, arguments={"rows": rows})
    _, last = read_all(source)
    # With the value of the cursor that the last row had, and with a later one.
    rows += [{"id": 100, "at": 3}, {"id": 101, "at": 7}]

    assert ids(read_all(source, last)[0]) == [100, 101]


@settings(max_examples=15, deadline=None)
@given(
    cursors=st.lists(st.integers(0, 6), min_size=1, max_size=14),
    size=st.integers(1, 5),
    stop_at=st.integers(0, 13),
    shuffled=st.booleans(),
    data=st.data(),
)
def test_no_row_is_skipped_whatever_the_order_is(
    cursors: list[int], size: int, stop_at: int, shuffled: bool, data: st.DataObject
) -> None:
    rows = [{"id": number, "at": cursor} for number, cursor in enumerate(cursors)]
    source = dlt.Source(resource=orders, arguments={"rows": rows, "size": size})
    before = read_all(source)[0][: stop_at + 1]
    if shuffled:
        rows[:] = data.draw(st.permutations(rows))
    again, _ = read_all(source, before[-1].position)

    assert {*ids(before), *ids(again)} == {row["id"] for row in rows}
    assert shuffled or not {*ids(before)} & {*ids(again)}


def test_a_cursor_that_goes_back_stops_a_source_in_order() -> None:
    source = dlt.Source(resource=orders, arguments={"rows": list(reversed(ROWS))}, in_order=True)

    with pytest.raises(FatalError, match=r"a row of 'orders' has at 5 after one with 6, so a restart"):
        read_all(source)


def test_rows_have_their_table_and_their_key() -> None:
    records, _ = read_all(dlt.Source(resource=shop))

    found = {name: [r for r in records if r.metadata[metadata.COLLECTION] == name] for name in ("orders", "people")}
    assert [record.key for record in found["people"]] == [{"id": number} for number in range(5)]
    assert len(found["orders"]) == 8
    letters = [record for record in records if record.metadata[metadata.COLLECTION] == "letters"]
    assert sorted(cast("int", record.payload["to"]) for record in letters) == list(range(5))
    assert letters[0].key is None


def test_some_resources_of_a_source() -> None:
    records, _ = read_all(dlt.Source(resource=shop, select=["people"]))

    assert {record.metadata[metadata.COLLECTION] for record in records} == {"people"}
    with pytest.raises(FatalError, match="no resource 'nobody'; the source has: orders, people, mail"):
        read_all(dlt.Source(resource=shop, select=["nobody"]))


def made_of(*items: Any, **hints: Any) -> Callable[[], Any]:
    def make() -> Any:
        return the_dlt.resource(list(items), name="items", **hints)

    return make


def test_a_row_that_says_so_is_deleted() -> None:
    columns = {"gone": {"hard_delete": True}}
    rows = made_of({"id": 1, "gone": False}, {"id": 2, "gone": True}, primary_key="id", columns=columns)
    kept, deleted = read_all(dlt.Source(resource=rows))[0]

    assert kept.operation is Operation.CREATE
    assert deleted.operation is Operation.DELETE
    assert (deleted.key, deleted.payload.before) == ({"id": 2}, {"id": 2, "gone": True})


def test_tables_and_names_of_rows() -> None:
    table = pa.table({"id": [1, 2]})
    other = the_dlt.mark.with_table_name({"id": 3}, "others")
    records, _ = read_all(dlt.Source(resource=made_of(table, other)))

    assert ids(records) == [1, 2, 3]
    assert [record.metadata[metadata.COLLECTION] for record in records] == ["items", "items", "others"]

    by_row = made_of({"id": 1, "kind": "a"}, {"id": 2, "kind": "b"}, table_name=lambda row: row["kind"])
    records, _ = read_all(dlt.Source(resource=by_row))
    assert [record.metadata[metadata.COLLECTION] for record in records] == ["a", "b"]


@dataclass
class Point:
    x: int


def test_values_become_plain_ones() -> None:
    moment = pendulum.datetime(2026, 1, 2, 3, tz="Europe/Berlin")
    row = {"at": moment, "day": pendulum.date(2026, 1, 2), "sum": Decimal("1.10"), "p": Point(1), "t": (1, 2)}
    [record] = read_all(dlt.Source(resource=made_of(row)))[0]

    found = cast("dict[str, Any]", record.payload.after)
    assert found["at"] == datetime(2026, 1, 2, 2, tzinfo=UTC)
    assert type(found["at"]) is datetime
    assert {name: found[name] for name in ("sum", "p", "t")} == {"sum": Decimal("1.10"), "p": {"x": 1}, "t": [1, 2]}
    assert type(found["day"]).__module__ == "datetime"


def test_a_value_that_no_record_holds_is_refused_alone() -> None:
    source = dlt.Source(resource=made_of({"id": 1, "v": object()}, {"id": 2})).fresh()
    source.open(None)
    readings = [cast("Reading", source.read(10)) for _ in range(2)]
    source.teardown()

    assert [reason for each in readings for reason in each.refused.values()] == [
        "the row.v is a builtins.object, which a record cannot hold"
    ]


def test_two_sources_of_one_process_do_not_meet() -> None:
    one, two = (dlt.Source(resource=orders, in_order=True).fresh() for _ in range(2))
    one.open(None)
    two.open(None)
    found: list[list[int]] = []
    for _ in range(5):
        found += [ids(cast("list[Record]", cast("Reading", source.read(4)).records)) for source in (one, two)]
    for source in (one, two):
        source.teardown()

    assert found == [list(range(start, start + 4)) for start in range(0, 20, 4) for _ in range(2)]


def test_a_state_with_other_types_comes_back() -> None:
    moments = [{"id": number, "at": pendulum.datetime(2026, 1, 1 + number)} for number in range(5)]

    def events() -> Any:
        return the_dlt.resource(moments, name="events", primary_key="id", incremental=the_dlt.sources.incremental("at"))

    source = dlt.Source(resource=events)
    records, last = read_all(source)
    moments.append({"id": 9, "at": pendulum.datetime(2026, 2, 1)})

    assert ids(records) == [0, 1, 2, 3, 4]
    assert ids(read_all(source, last)[0]) == [9]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"resource": "no_such_module:orders"}, "'no_such_module:orders' cannot be imported"),
        ({"resource": "json:nothing"}, "'json:nothing' cannot be imported"),
        ({"resource": "json:loads", "arguments": {"s": "1"}}, "made a int, which is no resource or source of dlt"),
        ({"resource": orders, "select": ["orders"]}, "`select` is for a source"),
        ({"resource": shop, "in_order": True}, "`in_order` is for a single resource"),
    ],
)
def test_problems_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(FatalError, match=text):
        read_all(dlt.Source(**cast("Any", options)))


def test_a_name_without_a_function_is_a_problem_of_the_pipeline() -> None:
    [problem] = dlt.Source(resource="shop").problems

    assert "must be `module:function`" in problem.message


def test_probe_names_the_resources() -> None:
    assert dlt.Source(resource=shop).probe() == "reads orders, people, mail"
