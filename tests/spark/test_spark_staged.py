"""Where executors stage what is written: the driver gets manifests, and only what it commits is ever visible."""

import gzip
import json
import logging
import os
import pickle
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import psycopg
import pyarrow.parquet as pq
import pytest
from builders import batch_of
from conduit_connectors import delta, file, iceberg, memory, objects, parquet, sqlalchemy
from deltalake import DeltaTable
from engine_world import kept, no_good, sorted_out
from hypothesis import given
from hypothesis import strategies as st
from lake_tables import catalog_of, iceberg_rows
from s3_server import BucketFolder
from sql_world import alchemy_url

from conduit_py import pipeline as p
from conduit_py.graph.compile import as_graph
from conduit_py.pipeline_settings import TransactionLimits
from conduit_py.sdk import PartId, PieceRefused
from conduit_py.spark.engine.executors import SMALL_PART, TASK_PARTS, JobPace, count_tasks, even_size
from conduit_py.spark.engine.remote_source import PART_SIZE
from conduit_py.spark.engine.split import PipelineSplit, plan, way_to_read, ways_to_write
from conduit_py.spark.engine.supervisor import SparkSupervisor
from conduit_py.spark.session.shared_session import SparkOptions
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., Any]
COLUMNS = {"n": "int64", "double": "int64", "name": "string"}


@pytest.fixture
def supervised(spark: "SparkSession", spark_options: dict[str, Any]) -> Run:
    def supervised(pipeline: p.Pipeline, store: Any = None) -> SparkSupervisor:
        return SparkSupervisor(pipeline, store or MemoryStore(), spark=SparkOptions(**spark_options), part_size=8000)

    return supervised


def into(folder: Path, *connectors: Any, **more: Any) -> p.Pipeline:
    rows = ({"n": n, "name": f"customer {n}"} for n in range(1000))
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ends: dict[str, Any] = {
        "sources": [p.Source("in", file.Source(path=folder / "in.jsonl", format="json"))],
        "dead_letters": p.DeadLetters(file.Destination(path=folder / "dead.jsonl", format="json")),
    }
    return p.Pipeline(
        "orders",
        destinations=[p.Destination(f"out-{place}", each) for place, each in enumerate(connectors)],
        **({"processors": [sorted_out]} | ends | more),
    )


def numbers(folder: Path) -> list[int]:
    """In the order of the names of files, which is that of the records."""
    return [number for path in sorted(folder.glob("part-*")) for number in _numbers_in(path)]


def _numbers_in(path: Path) -> list[int]:
    if path.suffix == ".parquet":
        found: list[int] = pq.ParquetFile(path).read(["n"]).column("n").to_pylist()
        return found
    if path.suffix == ".avro":
        with path.open("rb") as file_of_rows:
            rows: list[Any] = list(fastavro.reader(file_of_rows))
        return [row["n"] for row in rows]
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line)["n"] for line in content.splitlines()]


def staged(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("_conduit/*/*")]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_the_driver_gets_manifests_and_no_record(tmp_path: Path, supervised: Run, delivery: Any) -> None:
    sizes: list[int] = []

    class Measured(parquet.Destination):
        def take(self, pieces: Sequence[bytes]) -> None:
            sizes.extend(map(len, pieces))
            super().take(pieces)

        def write(self, batch: Any) -> Any:
            raise AssertionError("a record has come to the driver")

        def fresh(self) -> "Measured":
            return Measured(path=tmp_path / "lake", columns=COLUMNS)

    bucket = tmp_path / "lines"
    columns = {"n": "long", "double": "long", "name": "string"}
    pipeline = into(
        tmp_path,
        Measured(path=tmp_path / "lake", columns=COLUMNS),
        objects.Destination(url=str(bucket), compression="gzip"),
        delta.Destination(path=str(tmp_path / "delta"), columns=columns),
        iceberg.Destination(table="db.t", catalog=catalog_of(tmp_path / "iceberg"), columns=columns),
        objects.Destination(url=str(tmp_path / "avro"), format="avro", columns=COLUMNS),
        delivery=delivery,
    )
    supervisor = supervised(pipeline)

    state = await supervisor.run()

    assert state.status is Status.COMPLETED, state.error
    assert numbers(tmp_path / "lake") == numbers(bucket) == numbers(tmp_path / "avro") == kept(range(1000))
    table = DeltaTable(tmp_path / "delta").to_pyarrow_table()
    assert sorted(table["n"].to_pylist()) == [row["n"] for row in iceberg_rows(tmp_path / "iceberg")]
    assert sorted(table["n"].to_pylist()) == sorted(kept(range(1000)))
    letters = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert [letter["record"]["payload"]["after"]["n"] for letter in letters] == no_good(range(1000))
    meters = {meter.node: meter.records for meter in supervisor.progress().nodes}
    assert {meters[f"out-{place}"] for place in range(5)} == {len(kept(range(1000)))}
    assert len(sizes) > 2
    assert max(sizes) < 200
    assert [staged(tmp_path / name) for name in ("lake", "lines", "delta", "avro")] == 4 * [[]]
    assert list((tmp_path / "iceberg").rglob("_conduit/*/*")) == []


async def test_a_bucket_is_written_by_executors(tmp_path: Path, supervised: Run, s3_server: str) -> None:
    bucket = BucketFolder(s3_server)
    lake = objects.Destination(url=bucket.url("lake"), format="parquet", columns=COLUMNS, **bucket.options)
    pipeline = into(tmp_path, lake, delivery="exactly_once", transaction=TransactionLimits(max_records=2))

    state = await supervised(pipeline).run()

    assert state.status is Status.COMPLETED, state.error
    (tmp_path / "lake").mkdir()
    for key in bucket.keys("lake/part-"):
        (tmp_path / key).write_bytes(bucket.get(key))
    assert len(bucket.keys("lake/part-")) > 2
    assert numbers(tmp_path / "lake") == kept(range(1000))
    assert bucket.keys("lake/_conduit/") == ["lake/_conduit/schema"]


async def test_m2_an_attempt_that_dies_after_it_has_staged_is_never_seen(tmp_path: Path, supervised: Run) -> None:
    """The worst moment: its file is complete and durable, and nobody will ever know of it."""
    died = tmp_path / "died"

    class Mortal(objects.Destination):
        def prepared(self) -> bytes:
            manifest = super().prepared()
            if not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return manifest

    pipeline = into(tmp_path, Mortal(url=str(tmp_path / "out")), delivery="exactly_once")

    state = await supervised(pipeline).run()

    assert state.status is Status.COMPLETED, state.error
    assert died.exists()
    assert numbers(tmp_path / "out") == kept(range(1000))
    assert staged(tmp_path / "out") == []


async def test_m2_a_task_that_dies_between_two_of_its_parts_stages_all_of_them_again(
    tmp_path: Path, spark: "SparkSession", spark_options: dict[str, Any]
) -> None:
    """What it has staged of the first is complete, and lost with it. Jobs grow until tasks have several."""
    died = tmp_path / "died"

    class Mortal(objects.Destination):
        task = -1

        def prepared(self) -> bytes:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            manifest = super().prepared()
            if Mortal.task == context.taskAttemptId() and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            Mortal.task = context.taskAttemptId()
            return manifest

    pipeline = into(tmp_path, Mortal(url=str(tmp_path / "out")), delivery="exactly_once")
    state = await SparkSupervisor(pipeline, MemoryStore(), spark=SparkOptions(**spark_options), part_size=1500).run()

    assert state.status is Status.COMPLETED, state.error
    assert died.exists()
    assert numbers(tmp_path / "out") == kept(range(1000))
    assert staged(tmp_path / "out") == []


async def test_a_place_that_executors_do_not_reach_is_written_by_the_driver(
    tmp_path: Path, supervised: Run, caplog: pytest.LogCaptureFixture
) -> None:
    class Unreached(objects.Destination):
        def open_part(self, grant: bytes, part: PartId) -> None:
            raise PieceRefused("executor x does not reach the place")

    pipeline = into(tmp_path, Unreached(url=str(tmp_path / "out")), delivery="exactly_once")

    with caplog.at_level(logging.WARNING, "conduit_py"):
        state = await supervised(pipeline).run()

    assert state.status is Status.COMPLETED, state.error
    assert numbers(tmp_path / "out") == kept(range(1000))
    assert "the driver now writes record by record, because executor x does not reach the place" in caplog.text


@pytest.mark.parametrize(
    ("connectors", "said"),
    [
        ([objects.Destination(url="s3://bucket/out")], ["staged by executors"]),
        ([objects.Destination(url="/out"), file.Destination(path="out")], ["staged by", "prepared by"]),
        (
            [delta.Destination(path="/out", columns={"n": "long", "day": "date"}, partition_by=["day"])],
            ["staged by executors"],
        ),
        ([parquet.Destination(path="/out")], ["written by the driver: its columns are those of the first records"]),
        (
            [parquet.Destination(path="/out", columns={"n": "int64"}), memory.Destination(into=[])],
            [
                "written by the driver: out-1 is written by the driver",
                "written by the driver: executors cannot prepare",
            ],
        ),
    ],
)
def test_each_destination_has_its_way_and_a_reason(tmp_path: Path, connectors: list[Any], said: list[str]) -> None:
    graph = as_graph(into(tmp_path, *connectors))

    found = ways_to_write(PipelineSplit(graph), SparkOptions(master="local[2]"))

    for told, (way, why) in zip(said, found.values(), strict=True):
        assert f"{way}: {why}".startswith(told)


async def test_a_table_of_a_server_is_read_and_written_by_executors(
    tmp_path: Path, supervised: Run, postgres: str
) -> None:
    """No record comes to the driver, neither from the source nor for the destination."""
    with psycopg.connect(postgres) as connection:
        connection.execute("CREATE TABLE orders (n INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("INSERT INTO orders SELECT n, 'customer ' || n FROM generate_series(0, 999) n")

    class Unread(sqlalchemy.Source):
        def read(self, n: int) -> Any:
            assert self._part is not None, "the driver has read"
            return super().read(n)

    source = Unread(url=alchemy_url(postgres), table="orders", column="n")
    lake = parquet.Destination(path=tmp_path / "out", columns=COLUMNS)
    pipeline = into(tmp_path, lake, delivery="exactly_once", sources=[p.Source("in", source)])

    state = await supervised(pipeline).run()

    assert state.status is Status.COMPLETED, state.error
    assert numbers(tmp_path / "out") == kept(range(1000))
    assert len(list((tmp_path / "out").glob("part-*"))) > 1


@pytest.mark.parametrize("master", ["local[2]", "spark://elsewhere:7077"])
def test_credentials_of_a_source_go_only_where_spark_authenticates(master: str) -> None:
    source = sqlalchemy.Source(url="postgresql+psycopg://user:secret@host/db", table="t", column="n")
    opened = SparkOptions(master=master, conf={"spark.authenticate": "false"})
    closed = SparkOptions(master=master, conf={"spark.authenticate": "true"})

    assert way_to_read(source, closed).by == "executors"
    assert way_to_read(source, opened).by == "driver"
    assert "executors get no credentials" in way_to_read(source, opened).why
    assert way_to_read(file.Source(path="in"), opened).by == "executors"


def test_m8_executors_get_no_credentials_where_nobody_is_authenticated(tmp_path: Path) -> None:
    graph = as_graph(into(tmp_path, objects.Destination(url="s3://bucket/out")))

    for master in ("local[2]", "spark://elsewhere:7077"):
        options = SparkOptions(master=master, conf={"spark.authenticate": "false"})
        [(way, why)] = ways_to_write(PipelineSplit(graph), options).values()
        assert (way, "executors get no credentials: set spark.authenticate" in why) == ("written by the driver", True)


def test_m8_tasks_get_the_keys_of_the_store_and_none_of_the_catalog(tmp_path: Path) -> None:
    """They write files of the table. Only the driver asks the catalog, which has all tables."""
    folder = catalog_of(tmp_path / "iceberg")
    catalog = folder | {
        "token": "canary-token",
        "uri": f"{folder['uri']}?password=canary-url",
        "s3.access-key-id": "k-3",
    }
    columns = {"n": "long"}
    lake = iceberg.Destination(table="db.t", catalog=catalog, columns=columns)
    other = delta.Destination(path=str(tmp_path / "delta"), columns=columns, storage={"aws_session_token": "k-4"})
    split = PipelineSplit(as_graph(into(tmp_path, lake, other)))
    planned = plan(split, SparkOptions(master="local[2]"), prepared=True)
    live = lake.fresh()
    live.open()
    grant = live.grant()

    assert b"canary" not in planned + grant
    assert b"k-3" in grant
    assert b"k-4" in planned
    task = pickle.loads(planned).pipeline.destinations[0].connector.fresh()  # noqa: S301 - made above
    task.open_part(grant, PartId(0, 0))
    task.prepare(batch_of({"n": 1}, {"n": 1.5}))
    live.take([task.prepared()])
    live.flush()
    live.teardown()
    assert iceberg_rows(tmp_path / "iceberg") == [{"n": 1}]


def placed(order: dict[str, Any]) -> dict[str, Any]:
    """An order with the job and the task that had it."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    return {"n": order["n"], "job": task.stageId(), "task": task.partitionId()}


@pytest.mark.parametrize("most", [1, JobPace.ROUNDS_MAX])
async def test_only_jobs_whose_parts_are_staged_have_several_for_each_core(
    tmp_path: Path, spark: "SparkSession", spark_options: dict[str, Any], most: int
) -> None:
    path = tmp_path / "out"
    connector = objects.Destination(url=str(path)) if most > 1 else file.Destination(path=path, format="json")
    pipeline = into(tmp_path, connector, processors=[placed])
    state = await SparkSupervisor(pipeline, MemoryStore(), spark=SparkOptions(**spark_options), part_size=1500).run()

    assert state.status is Status.COMPLETED, state.error
    files = sorted(path.glob("part-*")) if path.is_dir() else [path]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [row["n"] for row in rows] == list(range(1000))
    jobs: dict[int, set[int]] = {}
    for row in rows:
        jobs.setdefault(row["job"], set()).add(row["task"])
    # How many they have depends on how quick they are: on a busy machine they have one.
    assert len(jobs) > 1
    assert max(map(len, jobs.values())) <= most * spark.sparkContext.defaultParallelism


def test_a_job_that_takes_long_or_returns_much_has_fewer_parts() -> None:
    pace = JobPace()
    noted = []
    jobs = [*(5 * [(1, 300)]), (7, 300), (11, 300), *(4 * [(1, 2**21)]), (1, 300)]
    for seconds, returned in jobs:
        pace.note(seconds, returned)
        noted.append(pace.rounds)

    assert noted == [2, 4, 8, 16, 16, 16, 8, 4, 2, 1, 1, 2]


@given(parts=st.integers(1, 5000), cores=st.integers(1, 500))
def test_a_task_has_several_parts_only_if_every_core_has_one(parts: int, cores: int) -> None:
    tasks = count_tasks(parts, cores)

    assert tasks <= parts <= tasks * TASK_PARTS
    assert tasks == parts or tasks >= cores


@given(left=st.integers(0, 10**12), cores=st.integers(1, 500), most=st.sampled_from([1000, SMALL_PART, PART_SIZE]))
def test_parts_are_as_many_for_each_core_and_no_more_than_the_largest_would_be(
    left: int, cores: int, most: int
) -> None:
    size = even_size(most, left, cores)

    assert min(most, SMALL_PART) <= size <= most
    # No core has a part more than it has to: with the largest size the fullest one would have as many.
    assert -(-left // (size * cores)) == -(-left // (most * cores))
    if min(most, SMALL_PART) < size < most:
        parts = -(-left // size)
        assert cores * (-(-left // (most * cores)) - 1) < parts <= cores * -(-left // (most * cores))


def test_who_cannot_tell_how_much_is_left_has_the_largest_parts() -> None:
    assert even_size(PART_SIZE, None, 4) == even_size(PART_SIZE, 0, 4) == PART_SIZE


async def test_a_small_input_is_divided_among_all_cores(
    tmp_path: Path, spark: "SparkSession", spark_options: dict[str, Any]
) -> None:
    cores = spark.sparkContext.defaultParallelism
    lines = (json.dumps({"n": n, "text": "x" * 100_000}) + "\n" for n in range(cores * SMALL_PART // 90_000))
    (tmp_path / "large.jsonl").write_text("".join(lines))
    source = p.Source("in", file.Source(path=tmp_path / "large.jsonl", format="json"))
    pipeline = into(tmp_path, objects.Destination(url=str(tmp_path / "out")), sources=[source], processors=[])

    state = await SparkSupervisor(pipeline, MemoryStore(), spark=SparkOptions(**spark_options)).run()

    assert state.status is Status.COMPLETED, state.error
    sizes = [path.stat().st_size for path in (tmp_path / "out").glob("part-*")]
    assert len(sizes) == cores
    assert max(sizes) < min(sizes) + 1_000_000
