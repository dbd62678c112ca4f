"""A CSV file, compressed objects and the row groups of a Parquet file, read by executors that die: each record once."""

import gzip
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from conduit_connectors import file, objects, parquet

from conduit_py import pipeline as p
from conduit_py.pipeline_settings import TransactionLimits
from conduit_py.record import Record, decode_json
from conduit_py.sdk import SourceConnector
from conduit_py.spark.engine.split import way_to_read
from conduit_py.spark.engine.supervisor import SparkSupervisor
from conduit_py.spark.session.shared_session import SparkOptions
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 1200
NOTES = ("plain", 'quoted, "twice"', "of two\nlines", "")
Run = Callable[[p.Pipeline, int], SparkSupervisor]


@pytest.fixture
def supervised(spark: "SparkSession", spark_options: dict[str, Any]) -> Run:
    def supervised(pipeline: p.Pipeline, part_size: int) -> SparkSupervisor:
        return SparkSupervisor(pipeline, MemoryStore(), spark=SparkOptions(**spark_options), part_size=part_size)

    return supervised


def note(n: int) -> str:
    return NOTES[n // 7 % len(NOTES)]


def csv_text(numbers: range) -> str:
    rows = ('{},"{}"\n'.format(n, note(n).replace('"', '""')) for n in numbers)
    return "n,note\n" + "".join(rows)


def csv_file(folder: Path) -> SourceConnector[Any]:
    """With quoted fields over two lines, so that not every line begins a row."""
    (folder / "in.csv").write_text(csv_text(range(COUNT)))
    return file.Source(path=folder / "in.csv", format="csv")


def compressed_files(folder: Path) -> SourceConnector[Any]:
    _write_compressed(folder)
    return file.Source(path=folder / "in" / "*.csv.gz", format="csv", on_replaced="reread")


def compressed_objects(folder: Path) -> SourceConnector[Any]:
    _write_compressed(folder)
    return objects.Source(url=f"{folder}/in/*.csv.gz")


def _write_compressed(folder: Path) -> None:
    (folder / "in").mkdir()
    for first in range(0, COUNT, 100):
        packed = gzip.compress(csv_text(range(first, first + 100)).encode())
        (folder / "in" / f"{first:06}.csv.gz").write_bytes(packed)


def row_groups(folder: Path) -> SourceConnector[Any]:
    table = pa.table({"n": list(range(COUNT)), "note": [note(n) for n in range(COUNT)]})
    pq.write_table(table, folder / "in.parquet", row_group_size=100, compression="none", use_dictionary=False)
    return parquet.Source(path=str(folder / "in.parquet"))


KINDS = [(csv_file, 1500), (compressed_files, 1), (compressed_objects, 1), (row_groups, 1500)]
"""With the size of parts: what is compressed is divided by files, so each is one."""


def rows(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "out").glob("part-*"))
    return [decode_json(line) for path in files for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize(("kind", "part_size"), KINDS, ids=[kind.__name__ for kind, _ in KINDS])
async def test_executors_read_all_of_it_once_in_order_though_one_is_killed(
    tmp_path: Path,
    supervised: Run,
    spark_options: dict[str, Any],
    kind: Callable[[Path], SourceConnector[Any]],
    part_size: int,
) -> None:
    """Killed from inside: the Java process above the Python worker that has read more than half of the records."""
    source, killed = kind(tmp_path), tmp_path / "killed"

    def kills_once(record: Record) -> Record:
        record.payload["n"] = int(record.payload["n"])
        record.payload["read_by"] = os.getpid()
        if record.payload["n"] == 800 and not killed.exists():
            executor = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
            assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
            killed.touch()
            os.kill(executor, signal.SIGKILL)
        return record

    pipeline = p.Pipeline(
        "numbers",
        sources=[p.Source("in", source)],
        processors=[kills_once],
        destinations=[p.Destination("out", objects.Destination(url=str(tmp_path / "out")))],
        delivery="exactly_once",
        transaction=TransactionLimits(max_records=200),
    )
    with trio.fail_after(300):
        supervisor = supervised(pipeline, part_size)
        state = await supervisor.run()

    assert state.status is Status.COMPLETED, state.error
    assert way_to_read(source, SparkOptions(**spark_options)).by == "executors"
    assert killed.exists()
    assert supervisor.progress().acked == COUNT
    read = rows(tmp_path)
    assert [(row["n"], row["note"]) for row in read] == [(n, note(n)) for n in range(COUNT)]
    assert os.getpid() not in {row["read_by"] for row in read}
    # A part for each file, object or row group, and about as many of the CSV file.
    assert len(list((tmp_path / "out").glob("part-*"))) >= COUNT // 100
