"""The Iceberg destination: what is in the table, by DuckDB, and that each transaction is there once."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from traceback import format_exception
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa
import pytest
from builders import batch_of
from conduit_connectors.iceberg import Destination
from lake_tables import RacingCatalog, catalog_of, iceberg_rows, iceberg_table, opened, racing
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from conduit_py import Operation, Payload, Record
from conduit_py.errors import FatalError, Fenced, TransientError
from conduit_py.sdk import metadata
from conduit_py.testing import destination_acceptance

_LOCAL = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC).replace(tzinfo=None)
COLUMNS = {"n": "long", "from": "string"}


def a_table(tmp_path: Path) -> tuple[Destination, Callable[[], list[Any]]]:
    made = Destination(table="db.t", catalog=catalog_of(tmp_path), columns=COLUMNS)
    return made, lambda: iceberg_rows(tmp_path)


TestIceberg = destination_acceptance(a_table, refused=Record.of({"n": 1.5}))


def data_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("lake/**/*.parquet"))


def test_values_arrive_in_the_types_of_the_table_or_are_refused(tmp_path: Path) -> None:
    columns = {
        "n": "int", "d": "decimal(10, 2)", "at": "timestamptz", "local": "timestamp", "day": "date", "b": "binary",
        "x": "double", "ok": "boolean", "clock": "time", "big": "long",
    }  # fmt: skip
    row = {
        "n": 1,
        "d": Decimal("1.50"),
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "local": _LOCAL,
        "day": date(2026, 1, 2),
        "b": b"\x00\xff",
        "x": float("inf"),
        "ok": True,
        "clock": time(1, 2, 3, 4),
        "big": -(2**63),
    }
    unfit = [{"n": 2**31}, b"raw", None, {"n": 3, "more": 1}, {"n": 4, "d": Decimal("1.505")}, {"n": 5, "big": 2**63}]
    unfit += [{"n": 6, "local": datetime(2026, 1, 1, tzinfo=UTC)}, {"n": 7, "day": "2026-01-01"}, {"n": 8, "ok": 1}]
    destination = opened(tmp_path, columns=columns, partition_by=["day", "n"])
    refused = destination.write(batch_of(row, {"n": 2}, *unfit))
    destination.flush()

    assert sorted(refused) == list(range(2, 2 + len(unfit)))
    assert iceberg_rows(tmp_path) == [row, dict.fromkeys(row) | {"n": 2}]
    assert [field.name for field in iceberg_table(tmp_path).spec().fields] == ["day", "n"]


class TestTransactions:
    """I4, I8: nothing is seen before it is applied, and it is applied once."""

    def test_are_one_commit_however_many_files_they_staged(self, tmp_path: Path) -> None:
        destination = opened(tmp_path, columns={"n": "long", "day": "date"}, partition_by=["day"], rows_max=2)
        destination.begin("p:1", 3, [])
        for n in range(0, 6, 2):
            destination.write(batch_of({"n": n, "day": date(2026, 1, 1)}, {"n": n + 1, "day": None}))
        intent = destination.stage()
        assert intent is not None
        before = (iceberg_rows(tmp_path), len(data_files(tmp_path)))
        destination.apply(intent)
        # Another one that goes on with the work finds the commit by its number.
        opened(tmp_path).begin("p:1", 4, [intent])

        assert before == ([], 6)
        assert [row["n"] for row in iceberg_rows(tmp_path)] == [0, 1, 2, 3, 4, 5]
        [snapshot] = iceberg_table(tmp_path).snapshots()
        assert snapshot.summary is not None
        assert snapshot.summary["conduit-py.transaction"] == "3.1"
        assert snapshot.summary["conduit-py.pipeline"] == "p:1"

    def test_are_known_after_their_snapshots_expired(self, tmp_path: Path) -> None:
        destination = opened(tmp_path, columns=COLUMNS)
        destination.begin("p", 1, [])
        destination.write(batch_of({"n": 1}))
        intent = destination.stage()
        assert intent is not None
        destination.apply(intent)
        table = iceberg_table(tmp_path)
        [mine] = table.snapshots()
        table.append(pa.table({"n": [2]}))
        table.maintenance.expire_snapshots().by_id(mine.snapshot_id).commit()
        opened(tmp_path).begin("p", 2, [intent])

        assert [row["n"] for row in iceberg_rows(tmp_path)] == [1, 2]

    def test_of_a_zombie_add_nothing_even_between_the_look_and_the_commit(self, tmp_path: Path) -> None:
        zombie = opened(tmp_path, columns=COLUMNS, catalog=racing(tmp_path))
        zombie.begin("p", 1, [])
        zombie.write(batch_of({"n": 1}))
        intent = zombie.stage()
        assert intent is not None
        RacingCatalog.race = lambda: opened(tmp_path).begin("p", 2, [intent])
        zombie.apply(intent)

        assert RacingCatalog.race is None
        assert iceberg_rows(tmp_path) == [{"n": 1, "from": None}]
        assert len(iceberg_table(tmp_path).snapshots()) == 1

    def test_are_repeated_when_others_commit_meanwhile(self, tmp_path: Path) -> None:
        destination = opened(tmp_path, columns=COLUMNS, catalog=racing(tmp_path))
        destination.begin("p", 1, [])
        destination.write(batch_of({"n": 1}))
        intent = destination.stage()
        assert intent is not None
        RacingCatalog.race = lambda: iceberg_table(tmp_path).append(pa.table({"n": [2]}))
        destination.apply(intent)

        assert [row["n"] for row in iceberg_rows(tmp_path)] == [1, 2]

    def test_that_were_never_committed_leave_no_files(self, tmp_path: Path) -> None:
        first = opened(tmp_path, columns=COLUMNS)
        first.begin("p", 1, [])
        first.write(batch_of({"n": 1}))
        committed = first.stage()
        assert committed is not None
        first.apply(committed)
        first.write(batch_of({"n": 2}))
        first.stage()
        second = opened(tmp_path)
        second.begin("p", 2, [committed])
        second.write(batch_of({"n": 3}))
        second.stage()
        before = len(data_files(tmp_path))
        opened(tmp_path).begin("p", 3, [committed])

        assert before == 2
        assert len(data_files(tmp_path)) == 1
        assert [row["n"] for row in iceberg_rows(tmp_path)] == [1]

    def test_of_a_state_that_began_anew_are_not_passed_over(self, tmp_path: Path) -> None:
        destination = opened(tmp_path, columns=COLUMNS)
        destination.begin("p", 5, [])
        destination.write(batch_of({"n": 1}))
        intent = destination.stage()
        assert intent is not None
        destination.apply(intent)

        with pytest.raises(Fenced, match="state directory"):
            opened(tmp_path).begin("p", 1, [])


def upsert(id: int, **fields: Any) -> Record:
    return Record.of({"id": id} | fields, key={"id": id})


def delete(id: int) -> Record:
    return Record(operation=Operation.DELETE, key={"id": id}, payload=Payload(before={"id": id}))


class TestUpserts:
    COLUMNS: ClassVar = {"id": "long", "v": "string"}

    def test_leave_one_row_per_key(self, tmp_path: Path) -> None:
        destination = opened(tmp_path, columns=self.COLUMNS, mode="upsert")
        destination.write(batch_of(*(upsert(id, v="a") for id in range(6))))
        destination.flush()
        changes = [upsert(1, v="b"), delete(2), upsert(3, v="c"), upsert(3, v="d"), delete(4), upsert(4, v="e")]
        assert destination.write(batch_of(*changes, upsert(5, v="f"), delete(5), delete(99))) == {}
        destination.flush()

        rows = [(row["id"], row["v"]) for row in iceberg_rows(tmp_path, "id")]
        assert rows == [(0, "a"), (1, "b"), (3, "d"), (4, "e")]

    def test_of_a_transaction_are_applied_once(self, tmp_path: Path) -> None:
        destination = opened(tmp_path, columns=self.COLUMNS, mode="upsert", key=["id"])
        destination.begin("p", 1, [])
        destination.write(batch_of({"id": 1, "v": "a"}, {"id": 2, "v": "b"}))
        first = destination.stage()
        assert first is not None
        destination.apply(first)
        destination.write(batch_of({"id": 1, "v": "c"}, delete(2)))
        second = destination.stage()
        assert second is not None
        for fence in (2, 3):
            opened(tmp_path, mode="upsert", key=["id"]).begin("p", fence, [second])

        assert iceberg_rows(tmp_path, "id") == [{"id": 1, "v": "c"}]
        assert not [path for path in data_files(tmp_path) if path.name == "keys.parquet"]

    def test_delete_rows_of_a_table_whose_columns_take_no_null(self, tmp_path: Path) -> None:
        columns = [NestedField(1, "id", LongType(), required=True), NestedField(2, "v", StringType(), required=True)]
        catalog = load_catalog("default", **catalog_of(tmp_path))
        catalog.create_namespace("db")
        catalog.create_table("db.t", Schema(*columns))
        destination = opened(tmp_path, mode="upsert")
        assert destination.write(batch_of(upsert(1, v="a"), upsert(2, v="a"))) == {}
        destination.flush()
        refused = destination.write(batch_of(delete(1), upsert(3), delete(9), upsert(2, v="b")))
        destination.flush()

        assert set(refused) == {1}
        assert iceberg_rows(tmp_path, "id") == [{"id": 2, "v": "b"}]

    def test_refuse_what_is_no_whole_row(self, tmp_path: Path) -> None:
        destination = opened(tmp_path, columns=self.COLUMNS, mode="upsert")
        partial = upsert(1)
        partial.operation = Operation.UPDATE
        partial.metadata = {metadata.UNCHANGED_FIELDS: '["v"]'}
        truncate = Record(operation=Operation.DELETE, metadata={metadata.TRUNCATE: "true"})
        no_key, null_key = Record.of({"id": 1, "v": "a"}), Record.of({"id": None, "v": "a"}, key={"id": None})
        refused = destination.write(batch_of(partial, truncate, no_key, null_key, upsert(2, v=5), upsert(3, v="ok")))
        destination.flush()

        assert set(refused) == set(range(5))
        assert "whole rows" in refused[0]
        assert iceberg_rows(tmp_path, "id") == [{"id": 3, "v": "ok"}]


class TestColumns:
    def test_are_added_for_new_fields(self, tmp_path: Path) -> None:
        destination = opened(tmp_path, columns={"n": "long"}, on_new_field="add")
        at = datetime(2026, 1, 2, tzinfo=UTC)
        rows = [{"n": 2, "b": "x", "c": None}, {"n": 3, "c": Decimal("1.5"), "at": at, "o": {"a": [1]}}]
        assert destination.write(batch_of({"n": 1}, *rows)) == {}
        assert set(destination.write(batch_of({"n": 4, "b": 7}))) == {0}
        destination.flush()

        nothing = dict.fromkeys(("b", "c", "at", "o"))
        assert iceberg_rows(tmp_path) == [nothing | {"n": 1}, nothing | rows[0], nothing | rows[1]]

    def test_that_another_writer_adds_have_its_type(self, tmp_path: Path) -> None:
        one, other = (opened(tmp_path, columns={"n": "long"}, on_new_field="add") for _ in range(2))
        assert one.write(batch_of({"n": 1, "b": "x"})) == {}
        one.flush()

        assert set(other.write(batch_of({"n": 2, "b": 5}, {"n": 3, "b": "y"}))) == {0}
        other.flush()
        assert iceberg_rows(tmp_path) == [{"n": 1, "b": "x"}, {"n": 3, "b": "y"}]

    def test_are_widened_for_larger_values_and_hold_the_old_ones(self, tmp_path: Path) -> None:
        columns = {"n": "int", "d": "decimal(4, 2)"}
        assert set(opened(tmp_path, columns=columns).write(batch_of({"n": 2**40}))) == {0}
        destination = opened(tmp_path, columns=columns, on_type="widen", rows_max=1)
        destination.begin("p", 1, [])
        rows = [{"n": 1, "d": Decimal("1.25")}, {"n": 2**40, "d": Decimal("123456.25")}]
        for row in rows:
            assert destination.write(batch_of(row)) == {}
        assert set(destination.write(batch_of({"n": 2**63}, {"n": 2, "d": Decimal("0.125")}, {"n": "text"}))) == {
            0,
            1,
            2,
        }
        intent = destination.stage()
        assert intent is not None
        destination.apply(intent)

        assert iceberg_rows(tmp_path) == rows
        assert [str(field.field_type) for field in iceberg_table(tmp_path).schema().fields] == ["long", "decimal(8, 2)"]

    def test_cannot_have_hostile_names_and_the_record_says_why(self, tmp_path: Path) -> None:
        destination = opened(tmp_path, columns={"n": "long"}, on_new_field="add")
        fields: list[Any] = [
            {"N": 1},
            {"a.b": 1},
            {"": 1},
            {"a\0": 1},
            {"x": timedelta(1)},
            {"x": {1, 2}},
            {"y": 2**64},
        ]
        refused = destination.write(batch_of(*fields, {"n": 1, 'q"; DROP TABLE t; --': "v"}))
        destination.flush()

        assert set(refused) == set(range(len(fields)))
        assert "differ only in case" in refused[0]
        rows = iceberg_table(tmp_path).scan().to_arrow().to_pylist()
        assert rows == [{"n": 1, 'q"; DROP TABLE t; --': "v"}]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "there is no Iceberg table"),
        ({"columns": {"n": "number"}}, "`columns` cannot be parsed"),
        ({"columns": {"n": "long"}, "partition_by": ["x"]}, "no column and no transform"),
        ({"columns": {"n": "long"}, "partition_by": ["day(x)"]}, "no column and no transform"),
    ],
)
def test_what_is_missing_or_wrong_is_reported(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(FatalError, match=why):
        opened(tmp_path, **options)


def test_secrets_of_the_catalog_are_not_shown(tmp_path: Path) -> None:
    password = uuid4().hex
    destination = Destination(table="db.t", catalog={"type": "rest", "uri": "http://here", "token": password})

    assert password not in repr(destination.options)


@pytest.mark.parametrize(
    "uri", ["postgres//u:{}@h/d", "foo+x://u:{}@h/d", "http//u:{}@h/", "http://127.0.0.1:1/?token={}", "x//u:%41{}@h"]
)
def test_a_password_in_the_address_of_a_catalog_is_in_no_error(uri: str) -> None:
    password = uuid4().hex
    kind = {"type": "rest"} if uri.startswith("http") else {}
    with pytest.raises((FatalError, TransientError)) as caught:
        Destination(table="db.t", catalog=kind | {"uri": uri.format(password)}).fresh().open()

    # Traceback and all.
    assert password not in "".join(format_exception(caught.value))


def test_folders_above_staged_files_are_durable(tmp_path: Path, synced: set[Path]) -> None:
    destination = opened(tmp_path, columns={"n": "long", "day": "string"}, partition_by=["day"])
    destination.begin("p", 1, [])
    destination.write(batch_of({"n": 1, "day": "x"}))
    assert destination.stage() is not None

    [file] = data_files(tmp_path)
    assert {*file.parents} <= synced | {Path("/")}


def test_all_files_of_a_commit_are_durable_also_those_in_place_of_others(tmp_path: Path, synced: set[Path]) -> None:
    destination = opened(tmp_path, columns=COLUMNS, mode="upsert", key=["n"])
    destination.write(batch_of({"n": 1, "from": "a"}, {"n": 2, "from": "b"}))
    destination.flush()
    destination.write(batch_of({"n": 1, "from": "c"}))
    destination.flush()

    assert [row["from"] for row in iceberg_rows(tmp_path)] == ["c", "b"]
    assert {path for path in (tmp_path / "lake").rglob("*") if path.is_file()} <= synced
