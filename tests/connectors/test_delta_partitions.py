"""Partitions of a Delta table that tasks write are those that the library makes; what it does not keep is refused."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from builders import batch_of
from conduit_connectors.delta.adopted_files import move_files
from conduit_connectors.delta.destination import StagedCommit
from deltalake import DeltaTable
from staged_lakes import COLUMNS, DeltaLake, attempt, commit, driver, hidden, n

from conduit_py.sdk import PartId

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
PARTITIONS: dict[str, list[Any]] = {
    "string": ["Bonn", "a/b=c%2F é\n'\"\0", "..", "null", None, "x" * 200],
    "long": [-5, 0, 2**62, None],
    "byte": [-128, 127, None],
    "boolean": [True, False, None],
    "date": [date(1, 1, 1), date(2026, 1, 2), None],
    "timestamp": [MOMENT, datetime(1, 1, 1, tzinfo=UTC), None],
    "timestamp_ntz": [MOMENT.replace(tzinfo=None), None],
}


@pytest.mark.parametrize("kind", PARTITIONS)
def test_partitions_of_a_delta_table_that_tasks_write_are_those_of_the_library(kind: str, tmp_path: Path) -> None:
    """The same values in the log and for readers, whatever they are; and no rows are read by the driver."""
    rows = [{"n": number, "name": "x", "by": value} for number, value in enumerate(2 * PARTITIONS[kind])]
    kept: list[list[tuple[str, Any]]] = []
    found = []
    for staged in (False, True):
        lake = DeltaLake(tmp_path / str(staged))
        live = driver(lake, 1, columns=COLUMNS | {"by": kind}, partition_by=["by"])
        if staged:
            live._append = None  # type: ignore[attr-defined]
            live.take([attempt(live, live.grant(), 0, *rows)])
        else:
            assert not live.write(batch_of(*rows))
        commit(live)
        live.teardown()
        actions = pa.table(DeltaTable(lake.folder).get_add_actions()).to_pylist()
        kept.append(sorted((str(each["partition"]), each["num_records"]) for each in actions))
        found.append(DeltaTable(lake.folder).to_pyarrow_table().sort_by("n").to_pylist())

    assert found[0] == found[1] == rows
    assert kept[0] == kept[1]
    assert len(kept[1]) == len(PARTITIONS[kind])
    assert hidden(lake) == []


def test_a_delta_table_with_several_partitions_keeps_their_order_and_bounds(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    columns = {"n": "long", "a b": "string", "day": "date"}
    live = driver(lake, 1, columns=columns, partition_by=["a b", "day"])
    rows = [{"n": n, "a b": "xy"[n % 2], "day": date(2026, 1, 1 + n % 3)} for n in (5, 3, 9, 1, 4, 11, 17)]
    live.take([attempt(live, live.grant(), 0, *rows[:4]), attempt(live, live.grant(), 1, *rows[4:])])
    commit(live)
    live.teardown()
    table = DeltaTable(lake.folder)

    assert table.to_pyarrow_table().sort_by("n").to_pylist() == sorted(rows, key=lambda row: row["n"])
    some = table.to_pyarrow_table(partitions=[("a b", "=", "y"), ("day", "=", "2026-01-03")])
    assert some["n"].to_pylist() in ([5, 11, 17], [11, 17, 5])
    bounds = pa.table(table.get_add_actions(flatten=True)).select(["min.n", "max.n", "partition.day"]).to_pylist()
    assert {"min.n": 11, "max.n": 17, "partition.day": date(2026, 1, 3)} in bounds
    # Who looks only at the log finds nothing that a compaction or a vacuum would not.
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert sorted(DeltaTable(lake.folder).to_pyarrow_table()["n"].to_pylist()) == [1, 3, 4, 5, 9, 11, 17]


LOST = [
    ("string", ""), ("string", "__HIVE_DEFAULT_PARTITION__"), ("string", "é" * 60), ("binary", b"abc"),
    ("decimal(10,2)", Decimal("-0.01")), ("decimal(10,2)", Decimal("-1.50")), ("double", math.inf),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), LOST)
@pytest.mark.parametrize("staged", [True, False])
def test_a_value_that_a_partition_of_a_delta_table_does_not_keep_is_refused(
    kind: str, value: Any, staged: bool, tmp_path: Path
) -> None:
    """The library makes it null, or another value, or a table that nobody can read."""
    lake = DeltaLake(tmp_path)
    live = driver(lake, 1, columns=COLUMNS | {"by": kind}, partition_by=["by"])
    batch = batch_of(
        {"n": 1, "by": None}, {"n": 1.5}, {"n": 2, "by": value}, {"n": 3, "by": None}, {"n": 4, "by": value}
    )
    if staged:
        task = live.fresh()
        task.open_part(live.grant(), PartId(0, 0))
        refused = task.prepare(batch)
        live.take([task.prepared()])
        task.discard_part()
    else:
        refused = live.keep_rows(batch)
    commit(live)
    live.teardown()

    assert sorted(refused) == [1, 2, 4]
    assert all("'by' " in refused[row] for row in (2, 4))
    assert lake.numbers() == [1, 3]


def test_partitions_that_only_the_library_divides_are_written_from_the_files_of_tasks(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    columns = {"n": "long", "by": "decimal(10,2)"}
    driver(lake, columns=columns, partition_by=["by"]).teardown()
    live = driver(lake, 1)
    rows = [{"n": n, "by": Decimal(n) / 2} for n in range(4)]
    live.take([attempt(live, live.grant(), 0, *rows)])
    commit(live)
    live.teardown()

    assert DeltaTable(lake.folder).to_pyarrow_table().sort_by("n").to_pylist() == rows
    assert hidden(lake) == []


def test_divided_files_are_rows_again_where_the_library_has_to_see_them(tmp_path: Path) -> None:
    """A constraint that is added after tasks have staged; and rows of the driver in the same transaction."""
    lake = DeltaLake(tmp_path)
    columns = {"n": "long", "name": "string", "ok": "boolean", "at": "timestamp", "day": "date", "k": "short"}
    by = ["name", "ok", "at", "day", "k"]
    live = driver(lake, 1, columns=columns, partition_by=by)
    row = {"n": 1, "name": "x", "ok": True, "at": MOMENT, "day": MOMENT.date(), "k": -7}
    empty = dict.fromkeys(columns) | {"n": 2}
    live.take([attempt(live, live.grant(), 0, row, empty)])
    DeltaTable(lake.folder).alter.add_constraint({"positive": "n > 0"})
    intent = live.stage()
    assert isinstance(intent, bytes)
    driver(lake, 2, [intent]).teardown()
    again = driver(lake, 3)
    again.write(batch_of(row | {"n": 3}))
    again.take([attempt(again, again.grant(), 0, row | {"n": 4})])
    commit(again)
    again.teardown()
    live.teardown()

    expected = [row, empty, row | {"n": 3}, row | {"n": 4}]
    assert DeltaTable(lake.folder).to_pyarrow_table().sort_by("n").to_pylist() == expected
    assert hidden(lake) == []


def test_a_driver_that_was_killed_between_moves_shows_each_partition_once(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    dead = driver(lake, 1, partition_by=["name"])
    dead.take([attempt(dead, dead.grant(), 0, *n(1, 2, 3))])
    intent = dead.stage()
    assert isinstance(intent, bytes)
    first, *_ = msgspec.json.decode(intent, type=StagedCommit).adopted
    move_files(dead._files, [first])  # type: ignore[attr-defined]
    driver(lake, 2, [intent]).teardown()
    driver(lake, 3, [intent]).teardown()

    assert (lake.numbers(), hidden(lake), lake.commits()) == ([1, 2, 3], [], 1)


def test_an_intent_of_an_earlier_version_has_no_partitions(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    live = driver(lake, 1)
    live.take([attempt(live, live.grant(), 0, *n(1))])
    intent = live.stage()
    assert isinstance(intent, bytes)
    plain = msgspec.json.decode(intent)
    plain["adopted"] = [each[:2] for each in plain["adopted"]]
    live.apply(msgspec.json.encode(plain))
    live.teardown()

    assert lake.numbers() == [1]
