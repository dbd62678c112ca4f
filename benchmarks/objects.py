"""Files to files through the connectors of objects, against a loop on the same libraries; and what memory they take.

    python -m benchmarks.objects                    CPU of JSON lines and of Parquet, in and out, as ratios
    python -m benchmarks.objects --many 1000000     memory while so many small objects are read, which are made up
    python -m benchmarks.objects --large 5          memory while one object of so many GB is read

A ratio is the CPU of the loop divided by that of the pipeline, in the same round: 1 is as little as the loop. The loop
against itself says how much of a ratio is noise. The process that decodes Parquet is counted with the pipeline.
"""

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from conduit_connectors import objects
from conduit_connectors.objects.contents import ContentOptions
from conduit_connectors.objects.pattern import ObjectPattern
from conduit_connectors.objects.reading import ObjectReading, ReadingOptions
from conduit_connectors.objects.store import LocalStore, ObjectInfo
from obstore.store import LocalStore as ObstoreFiles

import conduit_py
from conduit_py.sdk import EndOfSource

FILES = 8
BATCH = {"json": 512, "parquet": 16_384}


def make_input(folder: Path, format: str, records: int) -> None:
    """Write the input once: several files of equal size."""
    folder.mkdir()
    for number in range(FILES):
        rows = [_row(number * records // FILES + row) for row in range(records // FILES)]
        if format == "json":
            (folder / f"{number}.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(rows))
        else:
            pq.write_table(pa.Table.from_pylist(rows), folder / f"{number}.parquet")


def _row(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"customer {number}", "total": number / 7, "paid": number % 3 == 0, "city": "Köln"}


def json_loop(source: Path, target: Path) -> None:
    """What one would write by hand: each line decoded and encoded, in blocks."""
    read, written = ObstoreFiles(source), ObstoreFiles(target, mkdir=True)
    decode, encode = msgspec.json.Decoder(dict).decode, msgspec.json.Encoder().encode_lines
    for name in sorted(each["path"] for page in obstore.list(read) for each in page):
        rest, made = b"", bytearray()
        for block in obstore.get(read, name).stream(min_chunk_size=2**18):
            *lines, rest = (rest + bytes(block)).split(b"\n")
            made += encode(list(map(decode, lines)))
        obstore.put(written, name, bytes(made))


def parquet_loop(source: Path, target: Path) -> None:
    target.mkdir()
    for path in sorted(source.iterdir()):
        with pq.ParquetFile(path) as file, pq.ParquetWriter(target / path.name, file.schema_arrow) as writer:
            for batch in file.iter_batches(16_384):
                writer.write_batch(batch)


def pipeline(format: Any) -> Callable[[Path, Path], None]:
    def run(source: Path, target: Path) -> None:
        outcome = conduit_py.run(
            conduit_py.Pipeline(
                "copy",
                # Tables are worth larger batches than records are.
                sources=[
                    conduit_py.Source("in", objects.Source(url=str(source)), batch_size=BATCH[format], window=131_072)
                ],
                destinations={"out": objects.Destination(url=str(target), format=format)},
            )
        )
        assert outcome.error is None, outcome.error

    return run


WORKS: dict[str, tuple[Callable[[Path, Path], None], Callable[[Path, Path], None]]] = {
    "json": (json_loop, pipeline("json")),
    "parquet": (parquet_loop, pipeline("parquet")),
}


def count_rows(folder: Path, format: str) -> int:
    paths = [path for path in folder.rglob("*") if path.is_file() and "_conduit" not in path.parts]
    if format == "json":
        return sum(path.read_bytes().count(b"\n") for path in paths)
    return sum(pq.ParquetFile(path).metadata.num_rows for path in paths)


def measure(work: str, run: Callable[[Path, Path], None], source: Path, records: int) -> tuple[float, float]:
    """Run one contender; return its CPU, with that of the processes it started, and its time."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        cpu, began = _cpu(), time.perf_counter()
        run(source, Path(folder) / "out")
        taken = _cpu() - cpu, time.perf_counter() - began
        if count_rows(Path(folder) / "out", work) != records:
            sys.exit("a contender wrote another number of rows")
    return taken


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def compare(records: int, rounds: int) -> None:
    for work, (loop, ours) in WORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "in"
            make_input(source, work, records)
            # Once without counting: what is imported and compiled is no part of the work.
            timed = [
                tuple(measure(work, run, source, records) for run in (loop, ours, loop)) for _ in range(rounds + 1)
            ][1:]
        ratios = [(first[0] + last[0]) / 2 / own[0] for first, own, last in timed]
        control = [first[0] / last[0] for first, _, last in timed]
        rate = records / statistics.median(own[1] for _, own, _ in timed)
        print(f"{work}: CPU ratio {_shown(ratios)}, loop against itself {_shown(control)}, {rate:,.0f} records/s")


def _shown(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


class _MadeUp(LocalStore):
    """A store whose objects are made up when they are read: `count` of them, each of `size` bytes."""

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._size = size

    def list(self, folder: str, after: str | None) -> Iterator[ObjectInfo]:
        first = 0 if after is None else int(after.removeprefix("in/")) + 1
        for number in range(first, self._count):
            # Stored one after the other, in another order than that of their names.
            yield ObjectInfo(f"in/{number:09d}", self._size, 1_000_000 * (number * 7919 % self._count + 1), "mark")

    def find(self, name: str) -> ObjectInfo | None:
        return None

    def open(self, info: ObjectInfo) -> Any:
        return _MadeUpBytes(self._size)


class _MadeUpBytes:
    _LINES = b"".join(b'{"id": "%07d", "name": "customer", "city": "Cologne"}\n' % number for number in range(20_000))

    def __init__(self, size: int) -> None:
        self._size = size

    def read_at(self, offset: int, size: int) -> bytes:
        lines = self._LINES
        start = offset % len(lines)
        return lines[start : start + min(size, self._size - offset)]

    def close(self) -> None:
        pass


def watch_memory(count: int, size: int) -> None:
    """Read everything, and print the memory of the process on the way: it must not grow."""
    options = ReadingOptions(ContentOptions("json"))
    reading = ObjectReading(_MadeUp(count, size), ObjectPattern(["in"]), options)
    records = 0
    total = count * size // len(b'{"id": "0000000", "name": "customer", "city": "Cologne"}\n')
    shown = total // 10
    longest = 0
    began = time.perf_counter()
    while True:
        try:
            found: Any = reading.read(512)
        except EndOfSource:
            break
        records += len(found)
        if records >= shown:
            shown += total // 10
            longest = max(longest, len(found.positions[-1]))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(f"{records:>12,} records, {time.perf_counter() - began:6.1f} s, peak memory {peak} MiB", flush=True)
    print(f"{records:,} records of {count:,} objects, the longest position seen has {longest} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--many", type=int, metavar="OBJECTS")
    parser.add_argument("--large", type=float, metavar="GB")
    given = parser.parse_args()
    if given.many is not None:
        watch_memory(given.many, 2 * 57)
    elif given.large is not None:
        watch_memory(1, int(given.large * 10**9) // 57 * 57)
    else:
        compare(given.records, given.rounds)


if __name__ == "__main__":
    main()
