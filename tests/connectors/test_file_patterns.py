"""The file source with several files, and with compressed ones."""

import bz2
import gzip
import time
from pathlib import Path
from typing import Any

import pytest
from conduit_connectors import file

from conduit_py.sdk import EndOfSource, FatalError, NothingYet, Reading, Record
from conduit_py.testing import source_acceptance


def several_files(tmp_path: Path) -> file.Source:
    (tmp_path / "a.csv").write_text("n\n1\n2\n")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b'n\n3\n"4\n"\n'))
    (tmp_path / "c.csv.bz2").write_bytes(bz2.compress(b"n\n5\n"))
    return file.Source(path=tmp_path / "*.csv*", format="csv")


TestSeveralFiles = source_acceptance(several_files)


def read_all(path: Path, position: bytes | None = None, **options: Any) -> list[Record]:
    made = file.Source(path=path, **options)
    assert made.problems == []
    source = made.fresh()
    source.open(position)
    found: list[Record] = []
    try:
        while True:
            try:
                reading = source.read(100)
            except NothingYet:
                # The latest objects are about to settle.
                time.sleep(0.01)
                continue
            found += reading.records if isinstance(reading, Reading) else reading
    except EndOfSource:
        return found
    finally:
        source.teardown()


def values(records: list[Record]) -> list[Any]:
    return [record.payload.after for record in records]


def test_files_that_come_later_are_read_by_the_next_run(tmp_path: Path) -> None:
    (tmp_path / "2026-01.log").write_text("1\n2\n")
    first = read_all(tmp_path / "*.log")
    (tmp_path / "2026-02.log").write_text("3\n")
    second = read_all(tmp_path / "*.log", first[-1].position)
    (tmp_path / "2025-12.log").write_text("0\n")

    assert values(first) == [b"1", b"2"]
    assert values(second) == [b"3"]
    with pytest.raises(FatalError, match=r"2025-12\.log was added or replaced"):
        read_all(tmp_path / "*.log", second[-1].position)
    assert values(read_all(tmp_path / "*.log", on_replaced="reread")) == [b"0", b"1", b"2", b"3"]


def test_a_compressed_export_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    export = tmp_path / "export.jsonl.gz"
    export.write_bytes(gzip.compress(b'{"n": 1}\n'))
    options: dict[str, Any] = {"format": "json", "on_replaced": "reread"}
    first = read_all(export, **options)
    export.write_bytes(gzip.compress(b'{"n": 2}\n'))

    assert values(first) == [{"n": 1}]
    assert values(read_all(export, first[-1].position, **options)) == [{"n": 2}]
    assert file.Source(path=export, **options).locate_record(first[0].position) == f"{export} up to 9"


def test_a_name_with_a_wildcard_in_it_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "[1].txt").write_text("one\n")
    (tmp_path / "1.txt").write_text("another\n")

    assert values(read_all(tmp_path / "[1].txt")) == [b"one"]


def test_compression_can_be_named_and_does_not_go_with_tail(tmp_path: Path) -> None:
    (tmp_path / "plain.gz").write_text("no gzip\n")
    (tmp_path / "packed").write_bytes(gzip.compress(b"packed\n"))

    assert values(read_all(tmp_path / "plain.gz", compression="none")) == [b"no gzip"]
    assert values(read_all(tmp_path / "packed", compression="gzip")) == [b"packed"]
    assert "tail goes with a file that grows" in str(file.Source(path="a.gz", tail=True).problems)
