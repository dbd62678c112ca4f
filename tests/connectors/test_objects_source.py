"""The source of objects: every format, from any record on, and what happens when objects come, change and go."""

import bz2
import gzip
import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conduit_connectors import objects
from conduit_connectors.objects.contents import ContentOptions
from conduit_connectors.objects.pattern import ObjectPattern
from conduit_connectors.objects.reading import ObjectReading, ReadingOptions
from conduit_connectors.objects.store import LocalStore, ObjectInfo

from conduit_py.sdk import EndOfSource, FatalError, NothingYet, Payloads, Reading, Record, TransientError
from conduit_py.testing import source_acceptance

ROWS = [{"n": number, "text": f"text {number}"} for number in range(1, 8)]


def json_lines(rows: list[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def csv_rows(rows: list[Any]) -> bytes:
    return b"n,text\n" + b"".join(f'{row["n"]},"{row["text"]}"\n'.encode() for row in rows)


def avro(rows: list[Any], codec: str = "deflate") -> bytes:
    schema = {
        "type": "record",
        "name": "row",
        "fields": [{"name": "n", "type": "long"}, {"name": "text", "type": "string"}],
    }
    file = io.BytesIO()
    fastavro.writer(file, schema, rows, codec=codec, sync_interval=20)
    return file.getvalue()


def parquet(rows: list[Any]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=2)
    return file.getvalue()


def zstd(content: bytes) -> bytes:
    return bytes(pa.compress(content, "zstd", asbytes=True))


CONTENTS: dict[str, Callable[[list[Any]], bytes]] = {
    "a.jsonl": json_lines,
    "a.json.gz": lambda rows: gzip.compress(json.dumps(rows, indent=1).encode()),
    "a.jsonl.zst": lambda rows: zstd(json_lines(rows)),
    "a.csv.bz2": lambda rows: bz2.compress(csv_rows(rows)),
    "a.avro": avro,
    "a.parquet": parquet,
    "a.txt": json_lines,
}


def of_format(name: str) -> Callable[[Path], objects.Source]:
    def some_objects(tmp_path: Path) -> objects.Source:
        folder = tmp_path / "100%d in"
        for path, rows in [("b", ROWS[4:]), ("a/x", ROWS[:4]), ("_draft", ROWS), ("a/.hidden", ROWS)]:
            target = folder / path / name
            target.parent.mkdir(parents=True)
            target.write_bytes(CONTENTS[name](rows))
        return objects.Source(url=str(folder))

    return some_objects


TestJsonLines = source_acceptance(of_format("a.jsonl"))
TestJsonArray = source_acceptance(of_format("a.json.gz"))
TestCsv = source_acceptance(of_format("a.csv.bz2"))
TestAvro = source_acceptance(of_format("a.avro"))
TestParquet = source_acceptance(of_format("a.parquet"))
TestText = source_acceptance(of_format("a.txt"))


def opened(url: Path | str | list[str], position: bytes | None = None, **options: Any) -> objects.Source:
    made = objects.Source(url=url if isinstance(url, list) else str(url), **options)
    assert made.problems == []
    source = made.fresh()
    source.open(position)
    return source


def read_on(source: objects.Source, n: int = 1000) -> list[Record]:
    """Read until there is no more."""
    found: list[Record] = []
    while True:
        try:
            reading = source.read(n)
        except EndOfSource:
            return found
        except NothingYet:
            if source.options.follow:
                return found
            # The latest objects are about to settle.
            time.sleep(0.01)
            continue
        found += reading.records if isinstance(reading, Reading) else reading


def read_all(url: Path | str | list[str], position: bytes | None = None, **options: Any) -> list[Record]:
    source = opened(url, position, **options)
    try:
        return read_on(source)
    finally:
        source.teardown()


def values(records: list[Record]) -> list[Any]:
    return [record.payload.after for record in records]


@pytest.mark.parametrize("name", CONTENTS)
def test_every_format_is_read_from_every_record_on(tmp_path: Path, name: str) -> None:
    for number, rows in enumerate((ROWS[:3], [], ROWS[3:])):
        (tmp_path / f"{number}{name}").write_bytes(CONTENTS[name](rows))
    records = read_all(tmp_path)

    if name == "a.txt":
        assert values(records) == json_lines(ROWS).splitlines()
    elif "csv" in name:
        assert values(records) == [{key: str(value) for key, value in row.items()} for row in ROWS]
    else:
        assert values(records) == ROWS
    for number, record in enumerate(records):
        assert read_all(tmp_path, record.position) == records[number + 1 :]


def test_patterns_name_what_they_say(tmp_path: Path) -> None:
    for name in ("a/1.csv", "a/b/2.csv", "a/b/_3.csv", "c/4.csv", "c/5.txt", "a-b/6.csv", ".d/7.csv", "[x]/8.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"n\n{name}\n")

    def names(*patterns: str) -> list[str]:
        records = read_all([str(tmp_path / each) for each in patterns], format="csv")
        return [row["n"] for row in values(records)]

    assert names("a/*.csv") == ["a/1.csv"]
    assert names("**/*.csv") == ["[x]/8.csv", "a-b/6.csv", "a/1.csv", "a/b/2.csv", "c/4.csv"]
    assert names("a*/?.csv", "c/[5-9]*") == ["a-b/6.csv", "a/1.csv", "c/5.txt"]
    assert names("a/b/_3.csv") == ["a/b/_3.csv"]
    assert names("a/b/_*") == ["a/b/_3.csv"]
    assert names("c/[!4]*") == ["c/5.txt"]
    assert names("a/") == ["a/1.csv", "a/b/2.csv"]


def test_an_export_that_is_replaced_every_night_is_read_once_each_time(tmp_path: Path) -> None:
    export = tmp_path / "export.csv"
    export.write_bytes(csv_rows(ROWS[:3]))
    first = read_all(export)
    again = read_all(export, first[-1].position)
    os.utime(export, (1, 1))  # restored from an archive: its time is older than that of the last one
    export.with_name("draft").write_bytes(csv_rows(ROWS[3:5]))
    os.utime(export.with_name("draft"), (1, 1))
    export.with_name("draft").rename(export)
    second = read_all(export, first[-1].position)

    assert [row["n"] for row in values(first)] == ["1", "2", "3"]
    assert again == []
    assert [row["n"] for row in values(second)] == ["4", "5"]
    assert read_all(export, second[-1].position) == []
    os.chmod(export, 0o600)  # the content is the same
    assert read_all(export, second[-1].position) == []


def test_what_is_added_is_found_whatever_its_name(tmp_path: Path) -> None:
    for name in ("b", "d"):
        (tmp_path / name).write_text(f"{name}\n")
    source = opened(tmp_path, follow=True, poll_seconds=1e-9)
    seen = values(read_on(source))
    for name in ("a", "c", "e"):
        (tmp_path / name).write_text(f"{name}\n")
    later = read_on(source)
    (tmp_path / "b").write_text("another b\n")
    last = read_on(source)
    source.teardown()

    assert seen == [b"b", b"d"]
    assert values(later) == [b"a", b"c", b"e"]
    assert values(last) == [b"another b"]
    assert values(read_all(tmp_path, later[0].position)) == [b"c", b"e", b"another b"]


def test_only_new_names_are_read_or_others_refused(tmp_path: Path) -> None:
    for name in ("b", "d"):
        (tmp_path / name).write_text(f"{name}\n")
    position = read_all(tmp_path, on_replaced="new-only")[-1].position
    strict = read_all(tmp_path, on_replaced="refuse")[-1].position
    (tmp_path / "e").write_text("e\n")
    grown = read_all(tmp_path, strict, on_replaced="refuse")
    (tmp_path / "c").write_text("c\n")

    assert values(grown) == [b"e"]
    assert values(read_all(tmp_path, position, on_replaced="new-only")) == [b"e"]
    with pytest.raises(FatalError, match=r"/c was added or replaced, but it is not after .*/e"):
        read_all(tmp_path, grown[-1].position, on_replaced="refuse")


def test_an_object_that_is_replaced_when_it_was_read_in_part(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("1\n2\n3\n")
    positions = [record.position for record in read_all(tmp_path, on_replaced="refuse")]
    loose = [record.position for record in read_all(tmp_path)]
    path.with_name("_new").write_text("4\n5\n")
    path.with_name("_new").rename(path)

    with pytest.raises(FatalError, match=r"a\.txt was replaced: it is not the object that was read up to 4"):
        read_all(tmp_path, positions[1], on_replaced="refuse")
    assert values(read_all(tmp_path, loose[1])) == [b"4", b"5"]
    path.unlink()
    with pytest.raises(FatalError, match="is gone, and it was read only in part"):
        read_all(tmp_path, loose[1])
    assert read_all(tmp_path, loose[2], follow=True) == []


@pytest.mark.parametrize("after", ["delete", "move"])
def test_objects_go_when_their_records_are_durable_and_not_before(tmp_path: Path, after: str) -> None:
    folder, done = tmp_path / "in", tmp_path / "done"
    folder.mkdir()
    options: dict[str, Any] = {"after": after, "move_to": str(done) if after == "move" else None}
    for name in "abc":
        (folder / name).write_text(f"{name}1\n{name}2\n")
    (folder / "d").write_text("")
    source = opened(folder, **options)
    records: list[Record] = []
    for _ in range(3):
        reading = source.read(2)
        assert not isinstance(reading, Reading)
        records += reading
    last = source.read(1)
    assert isinstance(last, Reading)
    assert last.records == []
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "c", "d"]
    source.ack([records[0].position])
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "c", "d"]
    source.ack([record.position for record in records[1:3]])
    assert sorted(path.name for path in folder.iterdir()) == ["b", "c", "d"]
    (folder / "b").write_text("another b\n")
    source.teardown()

    # Killed before the other acks: the next run finishes what the stored position says, and no more.
    (folder / "a").write_text("another a\n")
    assert last.position is not None
    source = opened(folder, last.position, **options)
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]
    found = read_on(source)
    assert values(found) == [b"another a", b"another b"]
    source.ack([found[-1].position])
    source.teardown()
    assert list(folder.iterdir()) == []
    if after == "move":
        assert sorted(path.read_text() for path in done.iterdir()) == sorted(
            ["a1\na2\n", "another a\n", "another b\n", "c1\nc2\n", ""]
        )


def test_damaged_objects_are_one_dead_letter_each_and_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl.gz").write_bytes(gzip.compress(json_lines(ROWS))[:-9])
    (tmp_path / "2.json").write_bytes(b'[{"n": 1}, {"n": 2}, oops')
    (tmp_path / "3.avro").write_bytes(avro(ROWS[:2])[:-3])
    (tmp_path / "4.parquet").write_bytes(b"PAR1 not really PAR1")
    (tmp_path / "5.csv").write_bytes(b"a,a\n1,2\n")
    (tmp_path / "6.json").write_bytes(b'{"n": 6}\n')
    source = opened(tmp_path)
    kept, refused = [], []
    while True:
        try:
            reading = source.read(100)
        except EndOfSource:
            break
        reasons = reading.refused if isinstance(reading, Reading) else {}
        records = reading.records if isinstance(reading, Reading) else reading
        refused += [reasons[index] for index in sorted(reasons)]
        kept += [record.payload.after for index, record in enumerate(records) if index not in reasons]
    source.teardown()

    assert kept[:4] == ROWS[:4] or kept[:2] == [{"n": 1}, {"n": 2}]
    assert kept[-1] == {"n": 6}
    assert len(refused) == 5
    for number, words in enumerate(
        (
            "ends in the middle",
            "ends in the middle",
            "ends in the middle",
            "cannot be read as Parquet",
            "more than once",
        ),
        1,
    ):
        assert f"{number}." in refused[number - 1]
        assert words in refused[number - 1]


def test_a_missing_object_is_an_error_and_an_empty_pattern_is_not(tmp_path: Path) -> None:
    with pytest.raises(FatalError, match="there is no object at"):
        read_all(tmp_path / "none.csv")
    assert read_all(tmp_path / "*.csv") == []
    assert read_all(tmp_path / "none.csv", follow=True) == []


def test_parts_are_what_reading_returns(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.jsonl").write_bytes(json_lines(ROWS[:number]))
    whole = read_all(tmp_path)
    for start in (None, whole[4].position, whole[-1].position):
        source = opened(tmp_path, start)
        found: list[Record] = []
        while True:
            try:
                part = source.split(150)
            except EndOfSource:
                break
            reader = objects.Source(url=str(tmp_path)).fresh()
            reader.open_part(part)
            found += read_on(reader, 3)
            reader.teardown()
        assert found == read_all(tmp_path, start)


def test_positions_stay_small_and_memory_flat_with_many_objects(tmp_path: Path) -> None:
    for number in range(1500):
        (tmp_path / f"{number:05d}").write_bytes(b"%d\n" % number)
    records = read_all(tmp_path)
    middle = records[700].position

    assert values(records) == [b"%d" % number for number in range(1500)]
    assert max(len(record.position) for record in records) < 12_000
    assert values(read_all(tmp_path, middle)) == [b"%d" % number for number in range(701, 1500)]
    assert read_all(tmp_path, records[-1].position) == []


def test_tables_stay_tables(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet(ROWS))
    source = opened(tmp_path)
    reading = source.read(5)
    source.teardown()

    assert isinstance(reading, Payloads)
    assert reading.table is not None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"url": "s3:///key"}, "names no bucket"),
        ({"url": ["s3://a/x", "s3://b/y"]}, "of one bucket"),
        ({"url": "/in/../etc"}, "has `..` in it"),
        ({"url": "/in", "after": "move"}, "go together"),
        ({"url": "/in", "after": "move", "move_to": "/in/done"}, "would be read again"),
        ({"url": "/in", "after": "move", "move_to": "s3://b/done"}, "must be in the store"),
        ({"url": "/in", "after": "delete", "on_replaced": "new-only"}, "goes with after"),
    ],
)
def test_options_that_make_no_sense_are_problems(options: Any, problem: str) -> None:
    assert problem in str(objects.Source(**options).problems)


class _Unreadable(LocalStore):
    """Every read of a file fails; `opened` has the files."""

    def __init__(self) -> None:
        self.opened: list[io.RawIOBase] = []

    def open(self, info: ObjectInfo) -> Any:
        file = _BrokenFile()
        self.opened.append(file)
        return file


class _BrokenFile(io.RawIOBase):
    def read_at(self, offset: int, size: int) -> bytes:
        raise OSError("the disk is broken")


def test_an_object_whose_first_read_fails_is_closed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines(ROWS))
    store = _Unreadable()
    reading = ObjectReading(store, ObjectPattern([str(tmp_path)]), ReadingOptions(ContentOptions("json")))
    with pytest.raises(TransientError, match="the disk is broken"):
        reading.read(1)

    assert [file.closed for file in store.opened] == [True]
