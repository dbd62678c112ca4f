"""The Parquet destination: whole files only, each row once if that is promised, and what does not fit is reported."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import batch_of
from conduit_connectors import parquet

from conduit_py.batch import Batch, Span
from conduit_py.payloads import Payloads
from conduit_py.record import Record
from conduit_py.sdk import FatalError, TransientError
from conduit_py.testing import destination_acceptance


def files(path: Path) -> list[Path]:
    return sorted(path.glob("*.parquet"))


def stored(path: Path) -> list[Any]:
    return [row for file in files(path) for row in pq.read_table(file).to_pylist()]


def a_folder(tmp_path: Path) -> tuple[parquet.Destination, Callable[[], list[Any]]]:
    path = tmp_path / "a folder"
    columns = {"n": "int64", "from": "string"}
    return parquet.Destination(path=path, columns=columns, rows_max=3), lambda: stored(path)


TestParquetDestination = destination_acceptance(a_folder, refused=Record.of({"n": 1.5}))


def opened(path: Path, **options: Any) -> parquet.Destination:
    made = parquet.Destination(path=path, **options)
    assert made.problems == []
    destination = made.fresh()
    destination.open()
    return destination


def table_batch(table: pa.Table) -> Batch:
    positions = [b"%d" % number for number in range(table.num_rows)]
    read = Payloads.of_table(table, positions)
    return Batch.of_payloads(Span("p", "s", 0, positions), read.payloads, range(table.num_rows), None, dict)


def test_values_arrive_in_the_declared_types(tmp_path: Path) -> None:
    columns = {"n": "int32", "d": "decimal(10, 2)", "t": "timestamp[us, UTC]", "day": "date32", "b": "binary"}
    row = {
        "n": 1,
        "d": Decimal("1.50"),
        "t": datetime(2026, 1, 2, 3, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "b": b"\xff",
    }
    destination = opened(tmp_path, columns=columns)
    refused = destination.write(batch_of(row, {"n": 2}, {"n": 2**31}, b"raw", None, {"n": 3, "more": 1}))
    destination.flush()

    assert sorted(refused) == [2, 3, 4, 5]
    assert "does not fit the column's type int32" in refused[2]
    assert "not in the schema: 'more'" in refused[5]
    assert stored(tmp_path) == [row, dict.fromkeys(row) | {"n": 2}]


def test_a_table_is_written_as_it_is(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([1, 2], pa.int16()), "tags": [["a"], []], "none": pa.nulls(2)})
    destination = opened(tmp_path)
    batch = table_batch(table)

    assert destination.write(batch) == {}
    assert batch.table is not None
    # Fields that the columns lack, if they are null, lose nothing.
    assert destination.write(table_batch(pa.table({"n": [3], "other": pa.nulls(1)}))) == {}
    assert "'other'" in destination.write(table_batch(pa.table({"n": [4, 5], "other": [1, None]})))[0]
    destination.flush()
    assert pq.read_schema(files(tmp_path)[0]) == table.schema.remove(2)
    assert [row["n"] for row in stored(tmp_path)] == [1, 2, 3, 5]


def test_the_first_records_decide_about_the_columns_of_all_runs(tmp_path: Path) -> None:
    destination = opened(tmp_path)
    destination.write(batch_of({"n": 1.5, "empty": None}, {"n": 2}))
    destination.flush()
    destination.teardown()
    again = opened(tmp_path)
    refused = again.write(batch_of({"n": 3}, {"n": "text"}, {"n": 4, "empty": None}, {"n": 5, "empty": 1}))
    again.flush()

    assert sorted(refused) == [1, 3]
    assert stored(tmp_path) == [{"n": 1.5}, {"n": 2.0}, {"n": 3.0}, {"n": 4.0}]
    assert {str(pq.read_schema(file).field("n").type) for file in files(tmp_path)} == {"double"}


def test_records_without_any_value_have_no_columns(tmp_path: Path) -> None:
    refused = opened(tmp_path).write(batch_of({"n": None}, {}, b"raw"))

    assert "name them in `columns`" in refused[0]
    assert sorted(refused) == [0, 1, 2]


def test_other_fields_can_be_ignored(tmp_path: Path) -> None:
    destination = opened(tmp_path, drift="ignore")
    destination.write(batch_of({"n": 1}))

    assert destination.write(batch_of({"n": 2, "more": 1})) == {}
    assert destination.write(table_batch(pa.table({"n": [3], "more": [1]}))) == {}
    destination.flush()
    assert stored(tmp_path) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_file_is_complete_after_its_rows_or_bytes_and_names_keep_the_order(tmp_path: Path) -> None:
    by_rows, by_size = opened(tmp_path / "rows", rows_max=4), opened(tmp_path / "size", size_max=1)
    for destination in (by_rows, by_size):
        destination.write(table_batch(pa.table({"n": range(10)})))
        destination.write(table_batch(pa.table({"n": range(10, 12)})))
        destination.flush()

    assert [pq.read_metadata(file).num_rows for file in files(tmp_path / "rows")] == [4, 4, 4]
    assert [pq.read_metadata(file).num_rows for file in files(tmp_path / "size")] == [10, 2]
    assert [row["n"] for row in stored(tmp_path / "rows")] == list(range(12))
    assert by_rows.flush_records == 4


def test_readers_never_see_a_file_before_it_is_complete(tmp_path: Path) -> None:
    destination = opened(tmp_path, rows_max=2)
    destination.write(batch_of({"n": 1}, {"n": 2}, {"n": 3}))
    before = files(tmp_path)
    destination.flush()
    destination.write(batch_of({"n": 4}))

    assert before == []
    query = f"SELECT n FROM '{tmp_path}/*.parquet' ORDER BY n"
    assert duckdb.sql(query).fetchall() == [(1,), (2,), (3,)]
    assert sorted(pa.dataset.dataset(tmp_path).to_table()["n"].to_pylist()) == [1, 2, 3]
    destination.teardown()
    assert list((tmp_path / "_conduit" / "open").iterdir()) == []


def test_what_a_killed_process_left_is_removed_but_not_what_another_one_writes(tmp_path: Path) -> None:
    other = opened(tmp_path)
    other.write(batch_of({"n": 1}))
    (tmp_path / "_conduit" / "open" / "0123456789abcdef.parquet").write_bytes(b"torn")
    opened(tmp_path).teardown()
    other.flush()

    assert stored(tmp_path) == [{"n": 1}]
    assert list((tmp_path / "_conduit" / "open").iterdir()) == []


def test_a_transaction_is_visible_after_its_commit_and_only_once(tmp_path: Path) -> None:
    crashed = opened(tmp_path, rows_max=2)
    crashed.begin("p/1", 1, [])
    crashed.write(batch_of({"n": 1}, {"n": 2}, {"n": 3}))
    committed = crashed.stage()
    before = files(tmp_path)
    crashed.write(batch_of({"n": 4}))
    crashed.stage()
    assert committed is not None
    for fence in (2, 3):
        again = opened(tmp_path)
        again.begin("p/1", fence, [committed])
    # A zombie that applies the same intent.
    crashed.apply(committed)

    assert before == []
    assert [row["n"] for row in stored(tmp_path)] == [1, 2, 3]
    assert list((tmp_path / "_conduit").rglob("*.parquet")) == []


def test_a_file_that_was_moved_away_does_not_come_back(tmp_path: Path) -> None:
    destination = opened(tmp_path)
    destination.begin("p", 1, [])
    destination.write(batch_of({"n": 1}))
    intent = destination.stage()
    assert intent is not None
    destination.apply(intent)
    files(tmp_path)[0].rename(tmp_path / "elsewhere")
    opened(tmp_path).begin("p", 2, [intent])

    assert files(tmp_path) == []


def test_a_hidden_folder_that_was_deleted_is_an_error(tmp_path: Path) -> None:
    destination = opened(tmp_path)
    destination.begin("p", 1, [])
    destination.write(batch_of({"n": 1}))
    intent = destination.stage()
    assert intent is not None
    for path in sorted((tmp_path / "_conduit").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()

    with pytest.raises(FatalError, match="is gone, where the files of the last transaction may have been"):
        opened(tmp_path).begin("p", 2, [intent])


def test_a_state_that_starts_afresh_overwrites_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        destination = opened(tmp_path)
        destination.begin("p", 1, [])
        destination.write(batch_of({"n": 1}))
        intent = destination.stage()
        assert intent is not None
        destination.apply(intent)

    assert stored(tmp_path) == [{"n": 1}, {"n": 1}]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_loud_and_nothing_is_acked_until_a_new_run(tmp_path: Path) -> None:
    destination = opened(tmp_path, columns={"n": "int64"}, compression="none")
    destination.write(table_batch(pa.table({"n": range(100_000)})))
    with files_of_at_most(50_000), pytest.raises(TransientError, match=r"cannot write to .*: File too large"):
        destination.flush()

    # The rows before are lost with their file, so what follows must not be acked.
    for call in (lambda: destination.write(batch_of({"n": 1})), destination.flush):
        with pytest.raises(TransientError, match="failed before"):
            call()
    destination.teardown()
    assert [name for name in os.listdir(tmp_path) if name != "_conduit"] == []
    assert list((tmp_path / "_conduit" / "open").iterdir()) == []


def test_a_disk_that_stays_full_does_not_keep_a_half_written_file(tmp_path: Path) -> None:
    destination = opened(tmp_path, columns={"n": "int64"}, compression="none")
    destination.write(table_batch(pa.table({"n": range(100_000)})))
    with files_of_at_most(50_000):
        with pytest.raises(TransientError):
            destination.flush()
        destination.teardown()

    assert list((tmp_path / "_conduit" / "open").iterdir()) == []


def test_a_file_that_is_deleted_while_it_is_written_is_not_acked(tmp_path: Path) -> None:
    destination = opened(tmp_path)
    destination.write(batch_of({"n": 1}))
    for path in (tmp_path / "_conduit" / "open").iterdir():
        path.unlink()

    with pytest.raises(TransientError, match="No such file"):
        destination.flush()


@pytest.mark.parametrize(
    ("columns", "why"),
    [({"n": "number"}, "no type for 'n': 'number' is not one"), ({"n": "decimal(99, 2)"}, "is not one")],
)
def test_types_that_there_are_not_are_reported(tmp_path: Path, columns: dict[str, str], why: str) -> None:
    with pytest.raises(FatalError, match=why):
        opened(tmp_path, columns=columns)


def test_columns_that_parquet_has_not_are_reported(tmp_path: Path) -> None:
    interval = pa.table({"x": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    with pytest.raises(FatalError, match="Parquet cannot store these columns"):
        opened(tmp_path).write(table_batch(interval))


WITHOUT = """
import sys
for name in ("pyspark", "py4j", "delta", "obstore", "fsspec", "fastavro", "boto3"):
    sys.modules[name] = None  # as if it were not installed
import conduit_py
from conduit_connectors import memory, parquet
outcome = conduit_py.run(
    conduit_py.Pipeline(
        "p",
        sources={"in": memory.Source(records=[{"n": 1}, {"n": 2}])},
        destinations={"out": parquet.Destination(path="out")},
    )
)
assert outcome.error is None, outcome.error
read = []
outcome = conduit_py.run(
    conduit_py.Pipeline(
        "q", sources={"in": parquet.Source(path="out")}, destinations={"out": memory.Destination(into=read)}
    )
)
assert [record.payload.after for record in read] == [{"n": 1}, {"n": 2}], read
"""


def test_it_needs_neither_spark_nor_java(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": "/nowhere"}
    ran = subprocess.run([sys.executable, "-c", WITHOUT], cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert ran.returncode == 0, ran.stderr


def test_columns_without_repeated_values_go_without_a_dictionary(tmp_path: Path) -> None:
    table = pa.table({"n": range(3000), "city": ["Bonn"] * 3000, "at": [{"x": n, "y": 1} for n in range(3000)]})
    destination = opened(tmp_path)
    for _ in range(2):
        destination.write(table_batch(table))
        destination.flush()
    more = table.append_column("more", pa.array(range(3000)))
    changed = opened(tmp_path, on_new_field="add")
    changed.write(table_batch(more))
    changed.flush()

    groups = [pq.ParquetFile(file).metadata.row_group(0) for file in files(tmp_path)]
    found = [{column.path_in_schema for column in _columns(group) if column.has_dictionary_page} for group in groups]
    assert found == [{"n", "city", "at.x", "at.y"}, {"city", "at.y"}, {"n", "city", "at.x", "at.y", "more"}]
    assert stored(tmp_path)[3000:6000] == table.to_pylist()


def _columns(group: Any) -> list[Any]:
    return [group.column(number) for number in range(group.num_columns)]
