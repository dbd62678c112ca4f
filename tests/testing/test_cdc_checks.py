"""The checks of the CDC kit: each finds the copy that it is there for, and names what is wrong with it."""

import sqlite3
from functools import partial
from pathlib import Path

import pytest

from conduit_py.testing.cdc import CdcApplied, find_disorder
from conduit_py.testing.cdc_tables import (
    ANCHOR,
    KEYS,
    WRITERS,
    CdcDatabase,
    CdcWriter,
    Tables,
    find_gap,
    find_mangled,
    find_step_back,
    find_torn_pair,
    find_torn_sum,
    first_difference,
    ledger_id,
)

CHECKS = (find_gap, find_mangled, find_torn_pair, find_torn_sum)


@pytest.fixture
def database(tmp_path: Path) -> CdcDatabase:
    return CdcDatabase(
        connect=partial(sqlite3.connect, tmp_path / "load.db", isolation_level="IMMEDIATE"),
        away=sqlite3.OperationalError,
        types={"integer": "INTEGER", "text": "TEXT", "bytes": "BLOB"},
        begin_look="BEGIN",
        parameter="?",
    )


@pytest.fixture
def tables(database: CdcDatabase) -> Tables:
    """What the load has written after a hundred transactions of each writer, one column being added meanwhile."""
    database.create_tables()
    writers = [CdcWriter(database, 1, index) for index in range(WRITERS)]
    for writer in writers:
        writer.fill()
        change(database, writer, 50)
    database.add_column("added_1")
    for writer in writers:
        change(database, writer, 50)
    return database.read()


def change(database: CdcDatabase, writer: CdcWriter, transactions: int) -> None:
    with database.transaction() as connection:
        writer._read_rows(connection)
        for _ in range(transactions):
            writer._transact(connection, writer._draw_operations())


def test_the_load_itself_breaks_no_rule_and_uses_everything(tables: Tables) -> None:
    rows = [row for key, row in tables["cdc_rows"].items() if key != ANCHOR]

    assert [check(tables) for check in CHECKS] == [None] * len(CHECKS)
    assert first_difference(tables, tables) is None
    # About every tenth transaction is rolled back.
    assert 150 < len(tables["cdc_ledger"]) < 200
    assert {row["id"] % WRITERS for row in rows} == set(range(WRITERS))
    assert 20 < len(rows) <= KEYS * WRITERS
    assert any(row["added_1"] is not None for row in rows)
    assert any(row["note"] is None for row in rows)


def test_the_same_seed_gives_the_same_load(tables: Tables, tmp_path: Path, database: CdcDatabase) -> None:
    (tmp_path / "load.db").unlink()
    database.create_tables()
    again = CdcWriter(database, 1, 0)
    again.fill()
    change(database, again, 50)

    assert database.read()["cdc_ledger"].items() <= tables["cdc_ledger"].items()


def test_a_row_that_differs_is_shown_with_what_both_sides_have(tables: Tables) -> None:
    key = next(iter(tables["cdc_rows"]))
    row = tables["cdc_rows"][key]
    copy = {**tables, "cdc_rows": tables["cdc_rows"] | {key: row | {"body": None, "amount": 7}}}

    assert first_difference(tables, copy) == (
        f"1 rows of cdc_rows differ. The first has the id {key}\n"
        f"  origin: amount={row['amount']}, body={row['body']!r:.60}… (2402 characters)\n  copy:   amount=7, body=None"
    )


def test_a_row_that_is_missing_is_shown(tables: Tables) -> None:
    copy = {**tables, "cdc_markers": {key: row for key, row in tables["cdc_markers"].items() if key != 3}}

    assert str(first_difference(tables, copy)).startswith("1 rows of cdc_markers differ. The first has the id 3\n")
    assert str(first_difference(tables, copy)).endswith("\n  copy:   no such row")


def test_a_value_that_changed_on_its_way_is_found(tables: Tables) -> None:
    key = next(key for key in tables["cdc_rows"] if key != ANCHOR)
    tables["cdc_rows"][key]["note"] = "plain?"

    assert str(find_mangled(tables)).startswith(f"the row {key} of cdc_rows is mangled, its checksum should be ")


def test_a_missing_transaction_is_found(tables: Tables) -> None:
    del tables["cdc_ledger"][ledger_id(1, 7)]
    last = max(row["n"] for row in tables["cdc_ledger"].values() if row["writer"] == 1)

    assert find_gap(tables) == f"transaction 7 of writer 1 is missing, and {last} is there"


def test_a_torn_transaction_is_found_by_its_markers(tables: Tables) -> None:
    n = tables["cdc_markers"][2]["n"]
    tables["cdc_markers"][2]["n"] = n + 1

    assert find_torn_pair(tables) == (
        f"a transaction of writer 1 is torn: its first marker is {n + 1}, and its last is {n}"
    )


def test_a_torn_transaction_is_found_by_its_sum(tables: Tables) -> None:
    key = next(key for key in tables["cdc_rows"] if key % WRITERS == 0 and key != ANCHOR)
    del tables["cdc_rows"][key]

    assert "of writer 0 is torn: the sum of its rows is" in str(find_torn_sum(tables))


def test_a_row_that_goes_back_to_an_older_version_is_found(tables: Tables) -> None:
    key = next(key for key in tables["cdc_rows"] if key != ANCHOR)
    older = {**tables, "cdc_rows": tables["cdc_rows"] | {key: tables["cdc_rows"][key] | {"version": 1}}}

    assert find_step_back(older, tables) is None
    assert str(find_step_back(tables, older)).startswith(f"the row {key} of cdc_rows went back\n")


def test_repeated_deliveries_are_in_order_as_long_as_no_version_is_new() -> None:
    versions = [CdcApplied("cdc_rows", 4, version) for version in (1, 2, 3, 2, 3, 4)]

    assert find_disorder(versions, known=None) is None
    assert find_disorder([*versions, CdcApplied("cdc_rows", 4, 0)], known=None) == (
        "version 0 of the row 4 of cdc_rows was written first after 4"
    )


def test_later_transactions_are_behind_a_snapshot_in_the_order_of_keys() -> None:
    ids = [ledger_id(writer, number) for number in range(1, 5) for writer in reversed(range(WRITERS))]

    assert ids == sorted(set(ids), reverse=True)
    assert max(ids) < ANCHOR
    assert [each % WRITERS for each in ids[:WRITERS]] == list(reversed(range(WRITERS)))


def test_a_transaction_that_is_delivered_twice_is_found_unless_it_may_be() -> None:
    twice = [CdcApplied("cdc_ledger", 21, 10), CdcApplied("cdc_ledger", 21, 10)]

    assert find_disorder(twice, known=None) is None
    assert find_disorder(twice, known={0: 0, 1: 10}) is None
    assert find_disorder(twice, known={0: 99, 1: 9}) == "transaction 10 of writer 1 was written twice"
