"""Prepared pieces: what executors make ready and the driver takes is what `write` would have written."""

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from builders import batch_of
from conduit_connectors import file, postgres
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conduit_py.batch import Batch
from conduit_py.record import Operation, Payload, Record
from conduit_py.sdk import PieceRefused, PreparingDestination


def prepared(declared: PreparingDestination[Any], batches: Sequence[Batch]) -> tuple[bytes, list[dict[int, Any]]]:
    elsewhere = declared.fresh()
    elsewhere.equip(declared.fresh().equipment())
    refused = [dict(elsewhere.prepare(batch) or {}) for batch in batches]
    return elsewhere.prepared(), refused


TEXTS = ["plain", "tab\tand\nline\r", "back\\slash \\N", "", "ünïcode ☃", "'quoted' \"twice\""]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    st.sampled_from(TEXTS),
)


@pytest.mark.parametrize("format", ["json", "opencdc", "lines"])
def test_a_file_is_the_same_bytes(tmp_path: Path, format: Any) -> None:
    payloads: list[Any] = [{"n": n, "text": text} for n, text in enumerate(TEXTS)]
    raw: list[Any] = [text.encode() for text in TEXTS]
    records = [Record.of(each) for each in (raw if format == "lines" else payloads)]
    records.insert(3, Record.of({"n": float("nan")} if format == "json" else b"two\nlines"))
    batches = [batch_of(*records[:4]), batch_of(*records[4:])]
    files = []
    refusals = []
    for way in ("written", "taken"):
        declared = file.Destination(path=tmp_path / way, format=format)
        opened = declared.fresh()
        opened.open()
        if way == "written":
            refusals.append([opened.write(batch) for batch in batches])
        else:
            piece, refused = prepared(declared, batches)
            opened.take([piece])
            refusals.append(refused)
        opened.flush()
        opened.teardown()
        files.append((tmp_path / way).read_bytes())
    assert files[0] == files[1]
    assert refusals[0] == refusals[1]


def test_a_csv_file_is_written_where_its_header_is_known(tmp_path: Path) -> None:
    assert not file.Destination(path=tmp_path / "a.csv", format="csv").prepares(exactly_once=True)


def rows_of(url: str, table: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(f"SELECT * FROM {table} ORDER BY id".encode()).fetchall()


def written_and_taken(url: str, records: list[Record], **options: Any) -> list[list[tuple[Any, ...]]]:
    tables = []
    for way in ("written", "taken"):
        declared = postgres.Destination(url=url, table=way, **options)
        opened = declared.fresh()
        opened.open()
        if way == "written":
            assert not opened.write(batch_of(*records))
        else:
            piece, [refused] = prepared(declared, [batch_of(*records)])
            assert not refused
            opened.take([piece])
        opened.teardown()
        tables.append(rows_of(url, way))
    return tables


def test_rows_are_the_same(postgres: str) -> None:
    values = {
        "flag": True,
        "many": 2**62,
        "ratio": 0.1 + 0.2,
        "exact": Decimal("12.340"),
        "raw": b"\x00\\x\xff",
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "tags": ["a\tb", {"c": "d\\"}],
        "uid": UUID(int=7),
    }
    nothing = dict.fromkeys(values)
    records = [Record.of({"id": n, "text": text, **(values if n % 2 else nothing)}) for n, text in enumerate(TEXTS)]
    records.insert(0, Record.of({"id": -1, "text": "first", **values}))
    # The first one decides about the types of the columns.
    written, taken = written_and_taken(postgres, records)
    assert len(written) == len(records)
    assert written == taken


def test_keys_are_replaced_and_deleted_in_order(postgres: str) -> None:
    records = [Record.of({"id": n % 3, "name": f"n{n}"}) for n in range(7)]
    gone = Record(operation=Operation.DELETE, key={"id": 1}, payload=Payload())
    records += [gone, Record.of({"id": 4, "name": "after"}), Record.of({"id": 2, "name": "last"})]
    written, taken = written_and_taken(postgres, records, mode="upsert", key=["id"])
    assert written == taken == [(0, "n6"), (2, "last"), (4, "after")]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=5))
def test_whatever_is_taken_is_what_would_have_been_written(postgres: str, values: list[Any]) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        for table in ("written", "taken"):
            connection.execute(f"DROP TABLE IF EXISTS {table}".encode())
    records = [Record.of({"id": n, "value": value}) for n, value in enumerate(values)]
    one_by_one = postgres_destination(postgres, "written")
    refused = one_by_one.write(batch_of(*records))
    one_by_one.teardown()
    declared = postgres_destination(postgres, "taken", opened=False)
    piece, _ = prepared(declared, [batch_of(*records)])
    whole = postgres_destination(postgres, "taken")
    try:
        whole.take([piece])
    except PieceRefused:
        # Then they are written one by one after all.
        return
    finally:
        whole.teardown()
    assert not refused
    assert rows_of(postgres, "taken") == rows_of(postgres, "written")


def postgres_destination(url: str, table: str, *, opened: bool = True) -> Any:
    declared = postgres.Destination(url=url, table=table)
    if not opened:
        return declared
    destination = declared.fresh()
    destination.open()
    return destination


def test_a_refused_piece_leaves_nothing_behind(postgres: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE TABLE strict (id BIGINT PRIMARY KEY, name TEXT NOT NULL)")
    declared = postgres_destination(postgres, "strict", opened=False)
    good, _ = prepared(declared, [batch_of(*[Record.of({"id": n, "name": "x"}) for n in range(3)])])
    bad, _ = prepared(declared, [batch_of(*[Record.of({"id": 7, "name": "x"}), Record.of({"id": 1, "name": "y"})])])
    opened = postgres_destination(postgres, "strict")
    opened.take([good])
    with pytest.raises(PieceRefused, match=r"strict refuses one of 2 rows: .*duplicate key"):
        opened.take([bad])
    opened.teardown()
    assert [row[0] for row in rows_of(postgres, "strict")] == [0, 1, 2]


def test_half_a_surrogate_pair_is_refused_by_itself(postgres: str) -> None:
    declared = postgres_destination(postgres, "texts", opened=False)
    records = [Record.of({"id": n, "text": text}) for n, text in enumerate(["a", json.loads('"\\ud800"'), "b"])]
    piece, [refused] = prepared(declared, [batch_of(*records)])
    opened = postgres_destination(postgres, "texts")
    opened.take([piece])
    opened.teardown()
    assert list(refused) == [1]
    assert [row[0] for row in rows_of(postgres, "texts")] == [0, 2]


def test_pieces_commit_with_the_transaction_of_their_home(postgres: str) -> None:
    declared = postgres_destination(postgres, "home", opened=False)
    piece, _ = prepared(declared, [batch_of(*[Record.of({"id": n}) for n in range(3)])])
    for commits in (False, True):
        opened = postgres_destination(postgres, "home")
        assert opened.claim("p", 1) is None
        opened.take([piece])
        if commits:
            opened.commit(b"changes")
        opened.teardown()
    assert rows_of(postgres, "home") == [(0,), (1,), (2,)]


def test_staged_pieces_are_shown_once(postgres: str) -> None:
    declared = postgres_destination(postgres, "staged", opened=False)
    piece, _ = prepared(declared, [batch_of(*[Record.of({"id": n}) for n in range(3)])])
    opened = postgres_destination(postgres, "staged")
    opened.claim("p", 1)
    opened.begin("p", 1, [])
    opened.take([piece])
    intent = opened.stage()
    opened.teardown()
    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT to_regclass('staged')").fetchone() == (None,)
    for _ in range(2):
        again = postgres_destination(postgres, "staged")
        again.claim("p", 2)
        again.apply(intent)
        again.teardown()
    assert rows_of(postgres, "staged") == [(0,), (1,), (2,)]


def test_rows_and_pieces_of_one_stage_are_tried_together(postgres: str) -> None:
    """Dead letters that are sent again come as rows between pieces, and what is committed must fit."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE TABLE strict (id BIGINT PRIMARY KEY)")
    declared = postgres_destination(postgres, "strict", opened=False)
    pieces = [prepared(declared, [batch_of(*[Record.of({"id": n})])])[0] for n in range(3)]
    opened = postgres_destination(postgres, "strict")
    opened.claim("p", 1)
    opened.begin("p", 1, [])
    opened.take([pieces[0]])
    refused = opened.write(batch_of(*[Record.of({"id": 0}), Record.of({"id": 1})]))
    with pytest.raises(PieceRefused, match=r"strict refuses one of 1 rows: .*duplicate key"):
        opened.take([pieces[1]])
    opened.take([pieces[2]])
    opened.apply(opened.stage())
    opened.teardown()
    assert list(refused) == [0]
    assert rows_of(postgres, "strict") == [(0,), (1,), (2,)]
