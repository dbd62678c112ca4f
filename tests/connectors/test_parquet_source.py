"""The Parquet source: files in the order of their names, from any row on, as tables, whatever is in them."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conduit_connectors import parquet

from conduit_py.sdk import EndOfSource, FatalError, Payloads, Reading
from conduit_py.testing import source_acceptance


def numbers(path: Path, *values: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table({"n": pa.array(values, pa.int64()), "text": [str(n) for n in values]}), path, row_group_size=2
    )
    return path


def some_files(tmp_path: Path) -> parquet.Source:
    numbers(tmp_path / "in" / "b.parquet", 4, 5, 6, 7, 8)
    numbers(tmp_path / "in" / "a 100%d.parquet", 1, 2, 3)
    numbers(tmp_path / "in" / "empty.parquet")
    return parquet.Source(path=str(tmp_path / "in"))


TestParquetSource = source_acceptance(some_files)


def opened(path: Path | str, position: bytes | None = None, **options: Any) -> parquet.Source:
    made = parquet.Source(path=str(path), **options)
    assert made.problems == []
    source = made.fresh()
    source.open(position)
    return source


def read_all(source: parquet.Source, n: int = 1000) -> list[Any]:
    """Read to the end: the table of each read, or its records."""
    found: list[Any] = []
    while True:
        try:
            found.append(source.read(n))
        except EndOfSource:
            source.teardown()
            return found


def rows(path: Path | str, position: bytes | None = None, **options: Any) -> list[Any]:
    return [record.payload.after for read in read_all(opened(path, position, **options)) for record in read]


def test_a_folder_is_read_in_the_order_of_names_without_what_is_hidden(tmp_path: Path) -> None:
    numbers(tmp_path / "year=2026" / "1.parquet", 1)
    numbers(tmp_path / "year=2025" / "9.parquet", 0)
    numbers(tmp_path / "_conduit" / "open" / "x.parquet", 8)
    numbers(tmp_path / ".hidden.parquet", 9)
    (tmp_path / "notes.txt").write_text("no Parquet")

    assert [row["n"] for row in rows(tmp_path)] == [0, 1]
    assert [row["n"] for row in rows(f"{tmp_path}/year=*/1.parquet")] == [1]
    assert [row["n"] for row in rows(tmp_path / "year=2025" / "9.parquet")] == [0]


def test_rows_are_read_as_tables_in_their_own_types(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([1, 2], pa.int32()), "d": pa.array(["x", "x"]).dictionary_encode()})
    pq.write_table(table.replace_schema_metadata({"pandas": "{}"}), tmp_path / "a.parquet")
    [read] = read_all(opened(tmp_path))

    assert isinstance(read, Payloads)
    assert read.table is not None
    assert read.table.schema == pa.schema([("n", pa.int32()), ("d", pa.string())])
    assert read.table.schema.metadata is None


@pytest.mark.parametrize("n", [1, 2, 3, 1000])
def test_reading_goes_on_after_any_row(tmp_path: Path, n: int) -> None:
    some_files(tmp_path)
    records = [record for read in read_all(opened(tmp_path / "in"), n) for record in read]

    assert [record.payload["n"] for record in records] == [1, 2, 3, 4, 5, 6, 7, 8]
    for done, record in enumerate(records, 1):
        assert [row["n"] for row in rows(tmp_path / "in", record.position)] == list(range(done + 1, 9))


def test_a_file_that_was_read_to_its_end_may_be_gone_and_later_files_are_read(tmp_path: Path) -> None:
    path = numbers(tmp_path / "in" / "a.parquet", 1, 2)
    first, last = [record.position for read in read_all(opened(tmp_path / "in")) for record in read]
    path.unlink()
    numbers(tmp_path / "in" / "b.parquet", 3)

    assert [row["n"] for row in rows(tmp_path / "in", last)] == [3]
    with pytest.raises(FatalError, match=r"cannot open .*a\.parquet"):
        opened(tmp_path / "in", first)
    numbers(path, 7, 8)
    with pytest.raises(FatalError, match="was replaced: it is not the file that was read up to row 1"):
        opened(tmp_path / "in", first)
    assert parquet.Source(path="x").locate_record(first) == f"{path} row 1"


def test_columns_are_read_by_name(tmp_path: Path) -> None:
    numbers(tmp_path / "a.parquet", 1)

    assert rows(tmp_path, columns=["text"]) == [{"text": "1"}]
    with pytest.raises(FatalError, match=r"a\.parquet: .* no column 'none'"):
        rows(tmp_path, columns=["text", "none"])


def test_a_value_that_python_cannot_hold_is_a_dead_letter_and_its_neighbours_are_read(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2, 3], "at": pa.array([1000, 1, 2000], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "a.parquet")
    [reading] = read_all(opened(tmp_path))

    assert isinstance(reading, Reading)
    assert list(reading.refused) == [1]
    assert "would lose data" in reading.refused[1]
    assert [record.payload.after and record.payload["n"] for record in reading.records] == [1, None, 3]
    assert [row["n"] for row in rows(tmp_path, columns=["n"])] == [1, 2, 3]


def test_a_row_that_is_too_long_is_a_dead_letter(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["short", "x" * 3_000_000, "last"]}), tmp_path / "a.parquet")
    found = read_all(opened(tmp_path, row_size_max=2**21))

    assert [record.payload.after for read in found if isinstance(read, Payloads) for record in read] == [
        {"text": "short"},
        {"text": "last"},
    ]
    [refused] = [read for read in found if isinstance(read, Reading)]
    assert "more than row_size_max (2097152)" in refused.refused[0]


def test_a_file_that_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    bomb = pa.table({"text": pa.chunked_array([pa.array(["x" * 60_000_000])] * 3)})
    pq.write_table(bomb, tmp_path / "a.parquet", compression="zstd")

    assert os.path.getsize(tmp_path / "a.parquet") < 1_000_000
    with pytest.raises(FatalError, match=r"takes more than 50000000 bytes to decode.* raise memory_max"):
        rows(tmp_path, memory_max=50_000_000)


@pytest.mark.parametrize("content", [b"", b"no Parquet at all", b"PAR1" + b"\xff" * 100 + b"PAR1"])
def test_what_is_no_parquet_is_an_error_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)

    with pytest.raises(FatalError, match=r"a\.parquet: it cannot be read as Parquet"):
        rows(tmp_path)


def test_two_columns_of_one_name_are_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table([[1], [2]], names=["a", "a"]), tmp_path / "a.parquet")

    with pytest.raises(FatalError, match="two columns named 'a'"):
        rows(tmp_path)


def test_a_missing_file_and_a_position_of_another_source_are_reported(tmp_path: Path) -> None:
    with pytest.raises(FatalError, match="there is no file at"):
        opened(tmp_path / "none.parquet")
    with pytest.raises(FatalError, match="is not a position of the parquet source"):
        parquet.Source(path="x").check_position(b"file:1:2:3")


@pytest.mark.parametrize("size", [1, 100_000])
def test_parts_are_what_reading_returns(tmp_path: Path, size: int) -> None:
    """Small files together, and row groups of a large one apart; from any row on, also within a row group."""
    some_files(tmp_path)
    whole = [record for read in read_all(opened(tmp_path / "in")) for record in read]
    for start in (None, whole[5].position):
        splitting = opened(tmp_path / "in", start)
        parts = []
        while True:
            try:
                parts.append(splitting.split(size))
            except EndOfSource:
                break
        splitting.teardown()
        found = []
        for part in parts:
            reader = parquet.Source(path=str(tmp_path / "in")).fresh()
            reader.open_part(part)
            found += [record for read in read_all(reader, 1) for record in read]
        assert found == [record for read in read_all(opened(tmp_path / "in", start)) for record in read]
        if start is None:
            # Groups of two rows: 2 + 3, and the file without rows.
            assert len(parts) == (6 if size == 1 else 1)


def test_a_part_of_a_file_that_was_replaced_is_an_error(tmp_path: Path) -> None:
    path = numbers(tmp_path / "a.parquet", 1, 2, 3)
    part = opened(path).split(1)
    numbers(path, 1, 2, 4)

    reader = parquet.Source(path=str(path)).fresh()
    reader.open_part(part)

    with pytest.raises(FatalError, match="was replaced"):
        reader.read(1)


def test_a_damaged_file_is_found_by_whoever_reads_its_part(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no more of it")
    reader = parquet.Source(path=str(tmp_path)).fresh()
    reader.open_part(opened(tmp_path).split(1))

    with pytest.raises(FatalError, match="cannot be read as Parquet"):
        reader.read(1)
