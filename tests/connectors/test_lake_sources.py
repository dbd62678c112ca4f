"""The sources of lake tables: each row once in the order of versions, wherever reading goes on, or a loud error."""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from builders import batch_of
from conduit_connectors import delta, iceberg
from deltalake import DeltaTable, write_deltalake
from lake_tables import catalog_of, iceberg_table, load, opened, read_until_end

from conduit_py import Operation
from conduit_py.errors import FatalError
from conduit_py.sdk import Reading, Record
from conduit_py.testing import source_acceptance


def delta_rows(path: Path, *values: int, **options: Any) -> None:
    table = pa.table({"n": pa.array(values, pa.int64()), "day": ["a" if n % 2 else "b c%" for n in values]})
    write_deltalake(path, table, partition_by=["day"], mode="append", **options)


def a_delta_table(tmp_path: Path) -> delta.Source:
    for start in (0, 5):
        delta_rows(tmp_path / "table", *range(start, start + 5))
    return delta.Source(path=str(tmp_path / "table"))


def an_iceberg_table(tmp_path: Path) -> iceberg.Source:
    destination = opened(tmp_path, columns={"n": "long"})
    for start in (0, 5):
        destination.write(batch_of(*({"n": n} for n in range(start, start + 5))))
        destination.flush()
    return iceberg.Source(table="db.t", catalog=catalog_of(tmp_path))


TestDeltaSource = source_acceptance(a_delta_table)
TestIcebergSource = source_acceptance(an_iceberg_table)


def numbers(records: list[Record]) -> list[int]:
    return [record.payload["n"] for record in records]


class World:
    """A table to which rows are added, and a source for it."""

    def __init__(self, add: Callable[..., None], compact: Callable[[], Any], source: Callable[..., Any]) -> None:
        self.add = add
        self.compact = compact
        self.source = source


@pytest.fixture(params=["delta", "iceberg"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A table of each kind, with the rows 0 to 4."""
    if request.param == "delta":
        path = tmp_path / "table"
        delta_rows(path, *range(5))
        return World(
            lambda *values: delta_rows(path, *values),
            lambda: DeltaTable(path).optimize.compact(),
            lambda **options: delta.Source(path=str(path), **options),
        )
    destination = opened(tmp_path, columns={"n": "long"})

    def add(*values: int) -> None:
        destination.write(batch_of(*({"n": n} for n in values)))
        destination.flush()

    add(*range(5))
    return World(
        add, lambda: None, lambda **options: iceberg.Source(table="db.t", catalog=catalog_of(tmp_path), **options)
    )


class TestVersions:
    def test_are_followed_from_any_row(self, world: World) -> None:
        whole = read_until_end(world.source())
        world.add(5, 6, 7)
        world.compact()
        world.add(8)

        assert sorted(numbers(whole)) == [0, 1, 2, 3, 4]
        for place, record in enumerate(whole):
            later = read_until_end(world.source(), record.position, n=2)
            assert numbers(later)[: len(whole) - place - 1] == numbers(whole)[place + 1 :]
            assert sorted(numbers(later)[len(whole) - place - 1 :]) == [5, 6, 7, 8]
            assert numbers(later)[-1] == 8
        assert sorted(numbers(read_until_end(world.source()))) == list(range(9))

    def test_without_rows_move_the_position_on(self, world: World) -> None:
        [*_, last] = read_until_end(world.source())
        world.add(5)
        world.compact()
        source = world.source(tail=True).fresh()
        source.open(last.position)
        readings = [source.read(10)]
        if isinstance(source, delta.Source):
            readings.append(source.read(10))
            assert isinstance(readings[1], Reading)
            assert readings[1].position is not None
        source.teardown()

        assert numbers(list(readings[0])) == [5]

    def test_with_a_key_name_their_rows(self, world: World) -> None:
        records = read_until_end(world.source(key=["n"]))

        assert all(record.key == {"n": record.payload["n"]} for record in records)
        with pytest.raises(FatalError, match="no column 'm'"):
            read_until_end(world.source(key=["m"]))

    def test_of_another_table_are_not_read_on(self, world: World, tmp_path: Path) -> None:
        [first, *_] = read_until_end(world.source())
        other = tmp_path / "other"
        delta_rows(other, 1)

        with pytest.raises(FatalError, match="was replaced"):
            read_until_end(delta.Source(path=str(other)), first.position)
        with pytest.raises(FatalError, match="not a position"):
            world.source().check_position(b"file:1:2")


class TestDeltaChanges:
    """What cannot be read exactly is refused."""

    def test_of_a_table_that_keeps_them_are_reported(self, tmp_path: Path) -> None:
        delta_rows(tmp_path, 1, 2, 3, configuration={"delta.enableChangeDataFeed": "true"})
        source = delta.Source(path=str(tmp_path), key=["n"])
        [*_, last] = read_until_end(source)
        table = DeltaTable(tmp_path)
        table.update(predicate="n = 1", updates={"n": "10"})
        table.delete("n = 2")
        delta_rows(tmp_path, 4)
        write_deltalake(tmp_path, pa.table({"n": [7], "day": ["a"]}), mode="overwrite")
        changes = read_until_end(source, last.position, n=1)

        changed = [(change.operation, change.payload.before, change.payload.after) for change in changes]
        assert changed[:3] == [
            (Operation.UPDATE, None, {"n": 10, "day": "a"}),
            (Operation.DELETE, {"n": 2, "day": "b c%"}, None),
            (Operation.CREATE, None, {"n": 4, "day": "b c%"}),
        ]
        gone = sorted(before["n"] for _, before, _ in changed[3:] if isinstance(before, dict))
        assert (gone, changed[-1][2]) == ([3, 4, 10], {"n": 7, "day": "a"})
        for place, change in enumerate(changes):
            again = read_until_end(source, change.position, n=3)
            assert [each.position for each in again] == [each.position for each in changes[place + 1 :]]

    @pytest.mark.parametrize("change", ["delete", "overwrite"])
    def test_of_a_table_that_does_not_are_refused(self, tmp_path: Path, change: str) -> None:
        delta_rows(tmp_path, 1, 2)
        source = delta.Source(path=str(tmp_path))
        [*_, last] = read_until_end(source)
        if change == "delete":
            DeltaTable(tmp_path).delete("n = 1")
        else:
            write_deltalake(tmp_path, pa.table({"n": [7], "day": ["a"]}), mode="overwrite")

        with pytest.raises(FatalError, match=r"does not keep which"):
            read_until_end(source, last.position)

    def test_that_were_vacuumed_are_refused(self, tmp_path: Path) -> None:
        delta_rows(tmp_path, *range(6))
        source = delta.Source(path=str(tmp_path))
        [first, *_] = read_until_end(source)
        delta_rows(tmp_path, 7)
        table = DeltaTable(tmp_path)
        table.optimize.compact()
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

        with pytest.raises(FatalError, match="are gone"):
            read_until_end(source, first.position)

    def test_whose_log_was_cleaned_are_refused(self, tmp_path: Path) -> None:
        delta_rows(tmp_path, 1)
        source = delta.Source(path=str(tmp_path))
        [last] = read_until_end(source)
        for n in (2, 3):
            delta_rows(tmp_path, n)
        DeltaTable(tmp_path).create_checkpoint()
        for version in (0, 1):
            (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()

        with pytest.raises(FatalError, match="are gone"):
            read_until_end(source, last.position)

    def test_new_columns_are_read_and_dropped_ones_refused(self, tmp_path: Path) -> None:
        delta_rows(tmp_path, 1)
        source = delta.Source(path=str(tmp_path))
        [last] = read_until_end(source)
        more = pa.table({"n": [2], "day": ["a"], "x": ["new"]})
        write_deltalake(tmp_path, more, mode="append", schema_mode="merge")
        records = read_until_end(source, last.position)
        write_deltalake(tmp_path, pa.table({"n": ["text"], "day": ["a"]}), mode="overwrite", schema_mode="overwrite")

        assert [record.payload.after for record in records] == [{"n": 2, "day": "a", "x": "new"}]
        with pytest.raises(FatalError, match=r"drops the column|does not keep"):
            read_until_end(source, records[-1].position)


class TestIcebergSnapshots:
    def test_that_overwrite_are_refused(self, tmp_path: Path) -> None:
        source = an_iceberg_table(tmp_path)
        [*_, last] = read_until_end(source)
        iceberg_table(tmp_path).delete("n = 3")

        with pytest.raises(FatalError, match="deletes or overwrites"):
            read_until_end(source, last.position)

    def test_that_expired_are_refused(self, tmp_path: Path) -> None:
        source = an_iceberg_table(tmp_path)
        [*_, last] = read_until_end(source)
        table = iceberg_table(tmp_path)
        old = [each.snapshot_id for each in table.snapshots()]
        table.append(pa.table({"n": [9]}))
        for each in old:
            table.maintenance.expire_snapshots().by_id(each).commit()

        with pytest.raises(FatalError, match="is gone"):
            read_until_end(source, last.position)

    def test_of_an_empty_table_begin_with_its_first_rows(self, tmp_path: Path) -> None:
        destination = opened(tmp_path, columns={"n": "long"})
        source = iceberg.Source(table="db.t", catalog=catalog_of(tmp_path))
        empty = read_until_end(source)
        destination.write(batch_of({"n": 1}))
        destination.flush()

        assert (empty, numbers(read_until_end(source))) == ([], [1])
        assert load(tmp_path).table_exists("db.t")


def test_values_are_the_same_by_duckdb(tmp_path: Path) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    row = {
        "n": 1,
        "d": Decimal("1.50"),
        "at": at,
        "b": b"\0",
        "o": {"a": [1, None]},
        "x": float("inf"),
        "big": -(2**63),
    }
    write_deltalake(tmp_path / "delta", pa.Table.from_pylist([row]))
    [record] = read_until_end(delta.Source(path=str(tmp_path / "delta")))
    table = DeltaTable(tmp_path / "delta").to_pyarrow_table()

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("seen", table)
        [values] = connection.execute("SELECT * FROM seen").fetchall()
    assert record.payload.after == row == dict(zip(row, values, strict=True))
