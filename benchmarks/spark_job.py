"""The job that one would write with PySpark alone: between Python data sources, or between Spark's own text files."""

import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession, datasource, types

from benchmarks.spark_work import change
from benchmarks.workload import dropped

ROWS = 10_000
PARTITION_SIZE = 4 * 1024 * 1024
"""As many bytes as the engine has in a task."""


def run(session: SparkSession, source: Path, out: Path) -> None:
    """Python reads, Python changes, Python writes."""
    shutil.rmtree(out, ignore_errors=True)
    session.dataSource.register(Lines)
    frame = session.read.format("lines").option("path", str(source)).load()
    frame.mapInArrow(changed, "line binary").write.format("lines").option("path", str(out)).mode("append").save()


def run_native(session: SparkSession, source: Path, out: Path) -> None:
    """Java reads, Python changes, Java writes."""
    shutil.rmtree(out, ignore_errors=True)
    lines = session.read.text(str(source)).selectExpr("cast(value AS binary) AS line")
    texts = lines.mapInArrow(changed, "line binary").selectExpr("cast(line AS string) AS value")
    texts.write.mode("overwrite").text(str(out))


def changed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        orders = map(orjson.loads, batch.column(0).to_pylist())
        yield _batch([orjson.dumps(change(order)) for order in orders if not dropped(order)])


class Lines(datasource.DataSource):
    """Files of lines, one row each."""

    @classmethod
    def name(cls) -> str:
        return "lines"

    def schema(self) -> str:
        return "line binary"

    def reader(self, schema: types.StructType) -> datasource.DataSourceReader:
        return Reader(self.options["path"])

    def writer(self, schema: types.StructType, overwrite: bool) -> datasource.DataSourceWriter:
        return Writer(self.options["path"])


class Reader(datasource.DataSourceReader):
    """A partition for each stretch of the file: the lines that begin in it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> Sequence[datasource.InputPartition]:
        return [datasource.InputPartition(start) for start in range(0, os.path.getsize(self._path), PARTITION_SIZE)]

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        with Path(self._path).open("rb") as file:
            if partition.value:
                file.seek(partition.value - 1)
                file.readline()
            lines = _until(file, partition.value + PARTITION_SIZE)
            while rows := list(islice(lines, ROWS)):
                yield _batch(rows)


class Written(datasource.WriterCommitMessage):
    """What a task has written, to be put in place if all have."""

    def __init__(self, part: str) -> None:
        self.part = part


class Writer(datasource.DataSourceArrowWriter):
    """A file for each partition, synced, and in place once all are written."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = TaskContext.get()
        assert task is not None
        self._path.mkdir(parents=True, exist_ok=True)
        part = f"_part-{task.partitionId():05d}-{task.attemptNumber()}"
        with (self._path / part).open("wb") as file:
            for batch in iterator:
                file.writelines(line + b"\n" for line in batch.column(0).to_pylist())
            file.flush()
            os.fsync(file.fileno())
        return Written(part)

    def commit(self, messages: list[Any]) -> None:
        for message in messages:
            (self._path / message.part).rename(self._path / message.part.strip("_").rpartition("-")[0])

    def abort(self, messages: list[Any]) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


def _until(file: Any, end: int) -> Iterator[bytes]:
    at = file.tell()
    while at < end and (line := file.readline()):
        at += len(line)
        yield line.rstrip(b"\n")


def _batch(lines: list[bytes]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(lines, pa.binary())], names=["line"])
