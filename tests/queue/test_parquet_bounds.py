"""Parquet objects of strangers: what they take in memory is bounded, whatever they claim, and sound ones are read."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conduit_connectors.objects import ObjectOptions, ObjectReader

MEGABYTE = 2**20

READER = """
import json, resource, sys
from conduit_connectors.objects import ObjectOptions, ObjectReader

path, options = sys.argv[1], json.loads(sys.argv[2])
rows, refused, error = 0, [], None
reader = ObjectReader(ObjectOptions(allowed_prefixes=[path], **options))
try:
    parts = reader.open(path, 0)
    for part in parts:
        rows = part.offset
        refused += [part.refused] if part.refused else []
        if rows == 20_000:
            break
except (ValueError, OSError) as raised:
    error = str(raised)
# With them the child ends, and counts.
parts = part = reader = None
# Not the ru_maxrss of this process: that is at least what the process had that started it.
(own,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
peaks = [int(own) // 1024, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024]
print(json.dumps({"rows": rows, "refused": refused, "error": error, "peaks": peaks}))
"""


class Outcome:
    """What came of reading an object in another process, and the most memory that it and its child took, in MiB."""

    def __init__(self, path: Path, **options: int) -> None:
        command = [sys.executable, "-c", READER, str(path), json.dumps(options)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
        assert ended.returncode == 0, ended.stderr
        found: dict[str, Any] = json.loads(ended.stdout)
        self.rows: int = found["rows"]
        self.refused: list[str] = found["refused"]
        self.error: str | None = found["error"]
        self.reader_peak, self.decoder_peak = found["peaks"]

    @property
    def bounded(self) -> bool:
        """True within `parquet_memory_max` of 32 MiB, and what Python and Arrow take before they read anything."""
        assert (self.reader_peak < 200, self.decoder_peak < 200) == (True, True), (self.reader_peak, self.decoder_peak)
        return True


def read(path: Path, **options: int) -> Outcome:
    return Outcome(path, parquet_memory_max=32 * MEGABYTE, **options)


def write(path: Path, column: Any, **options: Any) -> Path:
    pq.write_table(pa.table({"a": column}), path, **options)
    return path


def repeated(value: Any, count: int, kind: pa.DataType | None = None) -> pa.Array:
    """One value many times, which takes no memory here."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int8()), pa.array([value], kind))


def test_a_long_text_that_is_stored_once(tmp_path: Path) -> None:
    """Found once: each batch of 4096 rows took 1.16 GB."""
    path = write(tmp_path / "a.parquet", repeated("x" * 283_000, 5000), compression="brotli", store_schema=False)
    assert path.stat().st_size < 2000
    outcome = read(path)

    assert (outcome.rows, outcome.refused, outcome.error) == (5000, [], None)
    assert outcome.bounded


@pytest.mark.parametrize("value", [None, 7, True], ids=repr)
def test_a_column_of_one_value(value: Any, tmp_path: Path) -> None:
    column = pa.nulls(10_000_000) if value is None else pa.repeat(pa.scalar(value), 10_000_000)
    path = write(tmp_path / "a.parquet", column)
    del column
    outcome = read(path)

    assert (outcome.rows, outcome.error) == (20_000, None)
    assert outcome.bounded


def test_a_row_that_is_long_as_python_objects_is_refused_alone(tmp_path: Path) -> None:
    inner = pa.repeat(pa.scalar(True), 2_000_000)
    column = pa.ListArray.from_arrays(pa.array([0, 1, 2_000_000 - 1, 2_000_000], pa.int32()), inner)
    outcome = read(write(tmp_path / "a.parquet", column))

    assert (outcome.rows, outcome.error) == (3, None)
    assert len(outcome.refused) == 1
    assert "more than line_size_max (16777216)" in outcome.refused[0]
    assert outcome.bounded


@pytest.mark.parametrize("kind", ["page", "list", "dictionary"])
def test_a_row_that_cannot_be_decoded_ends_the_object(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    if kind == "page":
        write(path, [b"\0" * 80 * MEGABYTE], compression="zstd", use_dictionary=False)
    elif kind == "list":
        column = pa.ListArray.from_arrays(pa.array([0, 10_000_000], pa.int32()), pa.repeat(pa.scalar(7), 10_000_000))
        write(path, column)
    else:
        write(path, repeated(b"\0" * 80 * MEGABYTE, 2), compression="zstd", dictionary_pagesize_limit=2**30)
    outcome = read(path)

    assert outcome.rows == 0
    assert outcome.error is not None
    assert "raise parquet_memory_max" in outcome.error
    assert outcome.bounded


def varint(number: int) -> bytes:
    """A number as Thrift's compact protocol writes it."""
    number *= 2
    coded = bytearray()
    while number > 127:
        coded.append(number & 127 | 128)
        number >>= 7
    return bytes([*coded, number])


@pytest.mark.parametrize("claim", [999, 8000])
def test_a_footer_that_lies(claim: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.array(["text"] * 1000), write_statistics=False)
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    assert len(varint(claim)) == len(varint(1000))
    path.write_bytes(content[:footer] + content[footer:].replace(varint(1000), varint(claim)))
    outcome = read(path)

    assert outcome.rows <= 1000
    assert outcome.bounded


def test_pages_that_lie(tmp_path: Path) -> None:
    """The sizes in the header of the only page say 2 GB."""
    path = write(tmp_path / "a.parquet", pa.array(["text"] * 1000), compression="zstd", use_dictionary=False)
    content = path.read_bytes()
    claimed = pq.ParquetFile(path).metadata.row_group(0).column(0)
    # A plain page: its level bytes and 1000 lengths with texts.
    sizes = [size for size in range(8000, 8100) if varint(size) in content[:40]]
    assert sizes, claimed.total_uncompressed_size
    longer = varint(2**31 - 1)
    path.write_bytes(content.replace(varint(sizes[0]), longer[: len(varint(sizes[0]))], 1))
    outcome = read(path)

    assert outcome.rows == 0 or outcome.error is None
    assert outcome.bounded


def test_an_object_may_take_what_the_option_allows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [b"\0" * 40 * MEGABYTE], compression="zstd", use_dictionary=False)
    outcome = Outcome(path, parquet_memory_max=1000 * MEGABYTE, line_size_max=200 * MEGABYTE)

    assert (outcome.rows, outcome.refused, outcome.error) == (1, [], None)


def test_what_is_no_parquet_is_said_to_be_that_and_the_next_object_is_read(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" + b"nonsense" * 100 + b"PAR1")
    write(tmp_path / "good.parquet", [1, 2, 3])
    reader = ObjectReader(ObjectOptions(allowed_prefixes=[str(tmp_path)]))

    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        list(reader.open(str(tmp_path / "bad.parquet"), 0))
    assert [part.record for part in reader.open(str(tmp_path / "good.parquet"), 1)] == [
        {"a": 2},
        {"a": 3},
    ]


def test_values_of_every_kind_come_as_they_are(tmp_path: Path) -> None:
    rows = [{"i": 1, "t": "ä", "l": [1, None], "s": {"x": [{"y": b"z"}]}, "m": [("k", 1)], "n": None}] * 10_000
    kinds = {"s": pa.struct({"x": pa.list_(pa.struct({"y": pa.binary()}))}), "m": pa.map_(pa.string(), pa.int64())}
    schema = pa.schema({"i": pa.int64(), "t": pa.string(), "l": pa.list_(pa.int8())} | kinds | {"n": pa.null()})
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "a.parquet", row_group_size=3000)
    reader = ObjectReader(ObjectOptions(allowed_prefixes=[str(tmp_path)]))
    parts = list(reader.open(str(tmp_path / "a.parquet"), 7))

    assert [part.record for part in parts] == rows[7:]
    assert [part.offset for part in parts] == list(range(8, 10_001))


def test_the_process_ends_with_its_reader(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [1, 2, 3])
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    reader = ObjectReader(ObjectOptions(allowed_prefixes=[str(tmp_path)]))
    parts = reader.open(str(tmp_path / "a.parquet"), 0)
    next(parts)
    del parts, reader

    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime > before


SLOW_RUN = """
import resource, sys, trio
from conduit_connectors import sqlite_queue
from conduit_connectors.sqlite_queue import SqliteQueue
from conduit_py import Destination, Pipeline, Source, sdk
import conduit_py

class Slow(sdk.DestinationConnector[sdk.Options]):
    count = 0

    async def write(self, batch):
        await trio.sleep(0 if Slow.count else 15)
        Slow.count += len(batch)
        if Slow.count >= 1800:
            (own,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
            print(Slow.count, int(own) // 1024, flush=True)
            raise conduit_py.FatalError("enough")

queue = SqliteQueue("queue.db", wait_seconds=0)
queue.open()
queue.send([sys.argv[1].encode()])
queue.close()
source = sqlite_queue.Source(
    path="queue.db", messages="uri", allowed_prefixes=[sys.argv[1]], in_flight_bytes_max=32 * 2**20
)
conduit_py.run(Pipeline("p", sources=[Source("q", source)], destinations=[Destination("slow", Slow())]), state=None)
"""


def test_a_pipeline_with_a_slow_destination_stays_bounded(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", repeated("x" * 283_000, 1800), compression="brotli", store_schema=False)
    command = [sys.executable, "-c", SLOW_RUN, str(path)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False)
    assert ended.stdout, ended.stderr
    count, peak = map(int, ended.stdout.split()[:2])

    # All rows together would take 486 MiB: without a limit on what is in flight, they would be held.
    assert count >= 1800
    assert peak < 300
