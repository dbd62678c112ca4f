"""Positions from people and for people: what a source accepts as its own, and which line of a file a record is."""

from pathlib import Path
from typing import Any

import pytest
from conduit_connectors import file, generator, journal, memory, sqlite, stdio
from conduit_connectors.file import handle
from conduit_connectors.spark.positions import OrderedPosition, encode

from conduit_py import sdk

SOURCES: list[tuple[sdk.SourceConnector[Any], list[bytes]]] = [
    (
        file.Source(path="in.jsonl"),
        [b"file:1:7:0123456789abcdef:12", b"file:start:1:7:3:0123456789abcdef:99"],
    ),
    (generator.Source(), [b"generator:1:0"]),
    (memory.Source(records=[]), [b"memory:1:12"]),
    (stdio.Source(), [b"stdio:1:3"]),
    (sqlite.Source(path="a.db", table="t"), [b"sqlite:1:999999999999999999"]),
    (journal.Source(path="journal"), [b"journal:1:" + b"a" * 16 + bytes(12)]),
]
RUBBISH = [
    b"", b"rubbish", b"\xff\x00", b"7", b"file:1:7:0123456789abcdef:", b"memory:1:", b"memory:1:-1", b"generator:2:0",
    b"sqlite:1:" + b"9" * 5000, b"journal:1:short", b"journal:1:" + b"\xff" * 28,
]  # fmt: skip


@pytest.mark.parametrize(("source", "own"), SOURCES, ids=lambda each: getattr(type(each), "__module__", ""))
def test_a_source_accepts_its_own_positions_and_no_others(source: sdk.SourceConnector[Any], own: list[bytes]) -> None:
    for position in own:
        source.check_position(position)
    for position in [*RUBBISH, *(each for other, theirs in SOURCES if other is not source for each in theirs)]:
        with pytest.raises((sdk.FatalError, UnicodeDecodeError)):
            source.check_position(position)


def test_a_spark_source_accepts_only_positions_of_its_mode() -> None:
    spark = pytest.importorskip("conduit_connectors.spark")
    position = encode(OrderedPosition(("1",)))
    spark.Source(query="SELECT 1 AS n", mode="keyed", key=["n"]).check_position(position)

    with pytest.raises(sdk.FatalError, match="not one of mode 'snapshot'"):
        spark.Source(query="SELECT 1 AS n", stage="stage").check_position(position)


def test_lines_are_counted_up_to_the_position(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"long" * 400_000 + b"\n\nthree\r\nno line end")
    source = file.Source(path=path)
    source.open(None)
    records = [*source.read(10), *source.read(10)]  # type: ignore[misc]
    source.teardown()

    lines = [source.fresh().locate_record(record.position) for record in records]
    assert lines == [f"{path} line {number}" for number in (1, 2, 3, 4)]


def test_a_record_far_into_a_large_file_is_located_by_its_offset(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"first\n")
    source = file.Source(path=path)
    source.open(None)
    source.read(10)
    with path.open("ab") as out:
        out.truncate(handle.COUNTED_MAX + 1)
        out.seek(0, 2)
        out.write(b"\n")
    offset = path.stat().st_size
    with path.open("rb") as whole:
        head = handle.hash_head(whole.read(handle.HEAD_SIZE))
    position = bytes(handle.FilePosition(path.stat().st_ino, head, offset))
    source.teardown()

    assert source.fresh().locate_record(position) == f"{path}, before byte {offset}"
