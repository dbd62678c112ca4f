"""The queue in a SQLite file, alone and under pipelines that share it (QW-Q, QW-F)."""

import csv
import gzip
import io
import json
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from conduit_connectors import sqlite, sqlite_queue
from conduit_connectors.objects import Format, ObjectOptions, ObjectReader
from conduit_connectors.sqlite_queue import SqliteQueue

from conduit_py.sdk import registry


@pytest.fixture
def queue(tmp_path: Path) -> Any:
    queue = SqliteQueue(tmp_path / "queue.db", wait_seconds=0)
    queue.open()
    yield queue
    queue.close()


@pytest.mark.parametrize("opened", [SqliteQueue.open, sqlite.Destination.open])
def test_a_file_that_another_has_just_begun_to_write_is_waited_for(tmp_path: Path, opened: Any) -> None:
    path = tmp_path / "new.db"
    to_open = SqliteQueue(path) if opened is SqliteQueue.open else sqlite.Destination(path=path, table="t")
    with ThreadPoolExecutor(1) as threads, closing(sqlite3.connect(path, check_same_thread=False)) as other:
        # While one writes a file without a write-ahead log, SQLite refuses the log at once, whatever the timeout.
        other.execute("BEGIN IMMEDIATE")
        opening = threads.submit(opened, to_open)
        wait([opening], timeout=0.2)
        assert not opening.done()
        other.rollback()
        opening.result(300)


def test_qw_q1_messages_come_one_by_one_in_the_order_sent(queue: SqliteQueue) -> None:
    queue.send([b"a", b"b", b"c"])

    assert [queue.receive(1, 60)[0].body for _ in range(3)] == [b"a", b"b", b"c"]
    assert queue.receive(1, 60) == []


def test_qw_q2_messages_come_two_by_two(queue: SqliteQueue) -> None:
    queue.send([b"a", b"b", b"c", b"d"], {"kind": "letter"})

    received = [queue.receive(2, 60) for _ in range(2)]

    assert [[delivery.body for delivery in pair] for pair in received] == [[b"a", b"b"], [b"c", b"d"]]
    assert received[0][0].attributes == {"kind": "letter"}


def test_qw_q3_fewer_messages_than_asked_for_come_at_once(queue: SqliteQueue) -> None:
    queue.send([b"a"])

    assert [delivery.body for delivery in queue.receive(2, 60)] == [b"a"]


def test_a_message_comes_again_when_its_lease_is_over_and_the_old_handle_is_worth_nothing(queue: SqliteQueue) -> None:
    queue.send([b"a"])
    (first,) = queue.receive(1, 0)
    (second,) = queue.receive(1, 60)

    assert (first.id, first.attempt, second.attempt) == (second.id, 1, 2)
    with pytest.raises(LookupError, match="is not held any more"):
        queue.extend(first, 60)
    queue.ack([first])
    assert len(queue) == 1
    queue.extend(second, 60)
    queue.ack([second])
    assert len(queue) == 0


def test_a_lease_that_is_extended_keeps_the_message_away(queue: SqliteQueue) -> None:
    queue.send([b"a"])
    (delivery,) = queue.receive(1, 3)
    queue.extend(delivery, 60)
    time.sleep(3.1)

    assert queue.receive(1, 60) == []


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 9")
    connection.close()

    with pytest.raises(ValueError, match="is a queue of version 9; known is 1"):
        SqliteQueue(path).open()


ROWS = [
    {"id": str(number), "text": "x" * (number % 50) + ("\nline" if number % 7 == 0 else "")} for number in range(500)
]


def contents(folder: Path, name: str) -> Path:
    """An object with the rows in the form that its name says."""
    path = folder / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=64)
        return path
    if ".csv" in name:
        text = io.StringIO()
        writer = csv.DictWriter(text, ["id", "text"])
        writer.writeheader()
        writer.writerows(ROWS)
        data = text.getvalue().encode()
    else:
        data = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    if name.endswith(".gz"):
        data = gzip.compress(data)
    elif name.endswith(".zst"):
        data = pa.Codec("zstd").compress(data, asbytes=True)
    path.write_bytes(data)
    return path


NAMES = ["a.jsonl", "a.json.gz", "a.ndjson.zst", "a.csv", "a.csv.gz", "a.parquet"]


@pytest.mark.parametrize("name", NAMES)
def test_qw_f1_reading_on_from_any_point_gives_what_a_full_read_gives(tmp_path: Path, name: str) -> None:
    address = str(contents(tmp_path, name))
    reader = ObjectReader(ObjectOptions(allowed_prefixes=[str(tmp_path)]))

    parts = list(reader.open(address, 0))

    assert [part.record for part in parts] == ROWS
    for index in (0, 1, 63, 64, 250, 498, 499):
        rest = list(reader.open(f"file://{address}", parts[index].offset))
        assert [part.record for part in rest] == ROWS[index + 1 :]
        assert [part.offset for part in rest] == [part.offset for part in parts[index + 1 :]]


def test_qw_f2_an_empty_object_has_no_records(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.csv", "a.txt"):
        (tmp_path / name).write_bytes(b"")
        assert list(ObjectReader(ObjectOptions(allowed_prefixes=[str(tmp_path)])).open(str(tmp_path / name), 0)) == []


def test_what_is_not_json_is_refused_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n\nnot json\n{"a": 2}')

    parts = list(ObjectReader(ObjectOptions(allowed_prefixes=[str(tmp_path)])).open(str(path), 0))

    assert [part.record for part in parts] == [{"a": 1}, b"not json", {"a": 2}]
    assert [part.refused is not None for part in parts] == [False, True, False]
    assert [part.offset for part in parts] == [9, 19, 27]


def test_lines_of_any_other_object_are_bytes(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"one\ntwo\n")

    parts = list(ObjectReader(ObjectOptions(allowed_prefixes=[str(tmp_path)])).open(str(path), 4))

    assert [part.record for part in parts] == [b"two"]
    assert ObjectOptions().format is Format.AUTO


def test_an_object_that_cannot_be_had_is_said_to_be(tmp_path: Path) -> None:
    reader = ObjectReader(ObjectOptions(allowed_prefixes=[str(tmp_path)]))
    with pytest.raises(FileNotFoundError, match="missing"):
        reader.open(str(tmp_path / "missing.jsonl"), 0)
    with pytest.raises(PermissionError, match="announce paths, file: or s3: addresses"):
        reader.open("ftp://host/a.jsonl", 0)


def test_the_connectors_are_known_by_name() -> None:
    assert registry.find("source", "sqlite.queue") is sqlite_queue.Source
    assert registry.find("destination", "sqlite.queue") is sqlite_queue.Destination


async def test_a_receive_waits_for_a_message(tmp_path: Path) -> None:
    reading, writing = SqliteQueue(tmp_path / "q.db", wait_seconds=20), SqliteQueue(tmp_path / "q.db")
    reading.open()
    writing.open()
    received: list[bytes] = []

    async def receive() -> None:
        deliveries = await trio.to_thread.run_sync(reading.receive, 10, 60.0)
        received.extend(delivery.body for delivery in deliveries)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.to_thread.run_sync(writing.send, [b"late"])
    reading.close()
    writing.close()

    assert received == [b"late"]
