"""The ways of writing that `benchmarks.scale` compares: the work, the pipelines, and the job of PySpark beside them."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import trio
from conduit_connectors import delta, file, iceberg, objects, parquet, postgres
from lake_tables import catalog_of
from pyspark.sql import SparkSession

from benchmarks.spark_engine import Delivery, on_spark, to_end
from benchmarks.spark_work import change
from benchmarks.workload import dropped
from conduit_py import Destination, Pipeline, Source, processor
from conduit_py.spark.session.shared_session import SparkOptions

COLUMNS = {
    "id": "int64", "ts": "string", "user": "string", "amount": "double", "note": "string", "cents": "int64",
    "band": "string", "digest": "string",
}  # fmt: skip
LAKE_COLUMNS = {name: "long" if kind == "int64" else kind for name, kind in COLUMNS.items()}
SCHEMA = ", ".join(f"{name} {'BIGINT' if kind == 'int64' else kind}" for name, kind in COLUMNS.items())
JOB = "job of PySpark → Parquet"


class OneByOne(file.Destination):
    """A file as most destinations are: the driver writes every record."""

    def prepares(self, *, exactly_once: bool) -> bool:
        return False


class Way(NamedTuple):
    """A destination, and how it is delivered to."""

    make: Callable[[], Any]
    delivery: Delivery = "at_least_once"


def work(order: dict[str, Any]) -> dict[str, Any] | None:
    """What everybody does to a record. A column of lists cannot be declared, so everybody leaves it out."""
    if dropped(order):
        return None
    del order["tags"]
    return change(order)


def ways(folder: Path, database: str) -> dict[str, Way]:
    """By name, all that can be written on Spark. `database` is the address of one of PostgreSQL."""
    dataset = partial(parquet.Destination, path=folder / "dataset", columns=COLUMNS)
    lake = partial(delta.Destination, path=str(folder / "delta"), columns=LAKE_COLUMNS)
    table = partial(_iceberg, folder)
    rows = partial(postgres.Destination, url=database, table="scale")
    return {
        "records → file": Way(partial(OneByOne, path=folder / "records.jsonl", format="json")),
        "prepared → file": Way(partial(file.Destination, path=folder / "prepared.jsonl", format="json")),
        "staged → JSON lines": Way(partial(objects.Destination, url=str(folder / "lines"))),
        "staged → Parquet": Way(dataset),
        "staged → Parquet, exactly once": Way(dataset, "exactly_once"),
        "staged → Delta, exactly once": Way(lake, "exactly_once"),
        "staged → Iceberg, exactly once": Way(table, "exactly_once"),
        "staged → PostgreSQL, exactly once": Way(rows, "exactly_once"),
    }


def _iceberg(folder: Path) -> iceberg.Destination:
    return iceberg.Destination(table="db.t", catalog=catalog_of(folder / "iceberg"), columns=LAKE_COLUMNS)


def run_pipeline(source: Path, part_size: int, *, folder: Path, way: Way, options: SparkOptions, database: str) -> None:
    """From nothing to everything visible, with the state in a folder of its own."""
    for path in (folder / name for name in ("dataset", "lines", "delta", "iceberg", "state")):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob("*.jsonl"):
        path.unlink()
    if database:
        # With the checkpoint of the run before, which is in the database too.
        with psycopg.connect(database) as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    pipeline = Pipeline(
        "scale",
        sources=[Source("in", file.Source(path=source, format="json"))],
        processors=[processor(work)],
        destinations=[Destination("out", way.make())],
        delivery=way.delivery,
    )
    trio.run(to_end, pipeline, folder / "state", on_spark(options, part_size))


def run_job(source: Path, part_size: int, *, session: SparkSession, folder: Path) -> None:
    """The same work as one would write it with PySpark alone, which keeps no position and no dead letters.

    Spark cuts the input itself: one part for each core, of 128 MiB at most.
    """
    lines = session.read.text(str(source)).selectExpr("cast(value AS binary) AS line")
    lines.mapInArrow(changed_rows, SCHEMA).write.mode("overwrite").parquet(str(folder / "job"))


def changed_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in COLUMNS.items()])
    for batch in batches:
        orders = map(orjson.loads, batch.column(0).to_pylist())
        rows = [row for order in orders if (row := work(order)) is not None]
        yield pa.RecordBatch.from_pylist(rows, schema)


def check_same_rows(folder: Path) -> None:
    """Raise AssertionError unless the job and the last pipeline wrote the same rows in the same compression."""
    tables, compressions = [], []
    for place in (folder / "job", folder / "dataset"):
        files = [pq.ParquetFile(path) for path in sorted(place.glob("part-*"))]
        tables.append(pa.concat_tables([each.read() for each in files]).sort_by("id"))
        compressions.append({each.metadata.row_group(0).column(0).compression for each in files})
    assert tables[0].equals(tables[1]), "the job and the pipeline wrote other rows"
    assert compressions[0] == compressions[1], f"the compressions differ: {compressions}"
