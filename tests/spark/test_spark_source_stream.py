"""spark.Source in mode "stream": batches are handed on once, in order, and Spark goes on when they are acked."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from conduit_connectors import file
from conduit_connectors.spark import Source
from pyspark.sql import DataFrame, SparkSession
from waiting import until
from warm_python import COMMAND, run_warm
from warm_workers import DRIVER_MODULES

from conduit_py import pipeline as p
from conduit_py.errors import FatalError, TransientError
from conduit_py.record import Record
from conduit_py.sdk import EndOfSource
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import run_to_end, source_acceptance

Options = dict[str, Any]


def numbers(path: Path, start: int = 0, stop: int = 5) -> Path:
    """A folder of parquet files, to which each call adds one."""
    path.mkdir(exist_ok=True)
    pq.write_table(pa.table({"n": list(range(start, stop))}), path / f"{start}.parquet")
    return path


def a_stream(tmp_path: Path, spark: SparkSession, spark_options: Options, **more: Any) -> Source:
    path = numbers(tmp_path / "numbers")
    given = {"format": "parquet", "columns": "n BIGINT", "path": str(path), "poll_seconds": 0.05}
    return Source(mode="stream", stage=tmp_path / "stage", **(given | more), **spark_options)  # type: ignore[arg-type]


def the_stream(tmp_path: Path, spark: SparkSession, spark_options: Options) -> Source:
    return a_stream(tmp_path, spark, spark_options)


TestStream = source_acceptance(the_stream, records=5)


def opened(source: Source, position: bytes | None = None) -> Source:
    assert source.problems == []
    source = source.fresh()
    try:
        source.open(position)
    except BaseException:
        trio.run(source.teardown)
        raise
    return source


def payloads(records: list[Record]) -> list[Any]:
    return [record.payload["n"] for record in records]


def commits(tmp_path: Path) -> set[str]:
    """The batches that Spark has committed."""
    return {path.name for path in tmp_path.glob("stage/*/checkpoint-*/commits/*") if path.name.isdecimal()}


def test_spark_goes_on_when_all_of_a_batch_is_acked(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    numbers(tmp_path / "numbers", 5, 8)
    one_at_a_time = a_stream(tmp_path, spark, spark_options, options={"maxFilesPerTrigger": "1"})
    os.utime(tmp_path / "numbers" / "0.parquet", (1, 1))
    source = opened(one_at_a_time)
    first = source.read(3) + source.read(10)
    source.ack([record.position for record in first[:-1]])
    before = commits(tmp_path)
    source.ack([first[-1].position])
    second = source.read(10)
    between = commits(tmp_path)
    trio.run(source.teardown)

    assert payloads(first) == [0, 1, 2, 3, 4]
    assert payloads(second) == [5, 6, 7]
    assert (before, between, commits(tmp_path)) == (set(), {"0"}, {"0"})

    # Whether or not Spark runs the second batch again: its rows are the same, with the same positions.
    source = opened(one_at_a_time, first[-1].position)
    again = source.read(10)
    trio.run(source.teardown)

    assert again == second


async def test_a_run_reads_what_the_last_one_has_not(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    """Two streams in one session, exactly once."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.json").write_text('{"n": 100}\n{"n": 101}\n')

    def pipeline() -> p.Pipeline:
        ends = {"available_now": True}
        other = {"format": "json", "path": str(tmp_path / "other")}
        return p.Pipeline(
            "follow",
            sources=[
                p.Source("parquet", a_stream(tmp_path, spark, spark_options, **ends)),
                p.Source("json", a_stream(tmp_path, spark, spark_options, **ends, **other)),
            ],
            destinations=[p.Destination("out", file.Destination(path=tmp_path / "out.jsonl", format="json"))],
            delivery="exactly_once",
        )

    def written() -> list[int]:
        return sorted(json.loads(line)["n"] for line in (tmp_path / "out.jsonl").read_text().splitlines())

    store = MemoryStore()
    first = await run_to_end(pipeline(), store)
    after_first = written()
    numbers(tmp_path / "numbers", 10, 13)
    second = await run_to_end(pipeline(), store)

    assert (first.status, second.status) == (Status.COMPLETED, Status.COMPLETED), (first.error, second.error)
    assert after_first == [0, 1, 2, 3, 4, 100, 101]
    assert written() == [0, 1, 2, 3, 4, 10, 11, 12, 100, 101]


def test_without_its_checkpoint_a_stream_does_not_begin_again_by_itself(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    stream = a_stream(tmp_path, spark, spark_options)
    source = opened(stream)
    first = source.read(10)
    source.ack([record.position for record in first])
    numbers(tmp_path / "numbers", 10, 12)
    second = source.read(10)
    trio.run(source.teardown)
    [checkpoint] = tmp_path.glob("stage/*/checkpoint-0")
    for offsets in (checkpoint / "offsets", checkpoint / "commits"):
        offsets.rename(checkpoint / f"old-{offsets.name}")

    source = opened(stream, second[0].position)
    rest = source.read(10)
    source.ack([record.position for record in rest])
    with pytest.raises(FatalError, match=r"Spark runs batch 0 of .* after batch 1: an older checkpoint was restored"):
        source.read(1)
    trio.run(source.teardown)
    (checkpoint / "metadata").unlink()
    with pytest.raises(FatalError, match=r"the checkpoint and the stage of .* are no longer in"):
        opened(stream, rest[-1].position)
    again = opened(stream)
    everything = again.read(10) + again.read(10)
    trio.run(again.teardown)

    assert payloads(second + rest[1:]) == [10, 11]
    assert sorted(payloads(everything)) == [0, 1, 2, 3, 4, 10, 11]
    assert not {record.position for record in everything} & {record.position for record in first}


def test_rows_that_do_not_fit_end_the_stream_with_the_reason(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()
    stream = a_stream(tmp_path, spark, spark_options, format="json", path=str(folder))
    source = opened(stream)
    (folder / "a.json").write_text('{"n": 1}\n')
    good = source.read(10)
    source.ack([record.position for record in good])
    (folder / "b.json").write_text('{"n": 2}\n{"n": "three"}\n')
    with pytest.raises(FatalError, match=r"batch 1 of .*lines cannot be read: .*value three of the JSON token type"):
        source.read(10)
    trio.run(source.teardown)
    (folder / "b.json").write_text('{"n": 2}\n{"n": 3}\n')
    source = opened(stream, good[-1].position)
    rest = source.read(10)
    trio.run(source.teardown)

    assert payloads(good + rest) == [1, 2, 3]


def test_what_is_no_stream_is_reported(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    def rows(session: SparkSession) -> DataFrame:
        return session.range(3)

    for given, why in (
        ({"function": rows}, "rows is not a stream"),
        ({"format": "parquet", "path": str(tmp_path)}, "cannot be read: .*[Ss]chema"),
        ({"format": "no_such_format"}, "no_such_format"),
    ):
        with pytest.raises(FatalError, match=why):
            opened(Source(mode="stream", stage=tmp_path / "stage", **given, **spark_options))


def test_two_sources_do_not_share_a_stage(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    stream = a_stream(tmp_path, spark, spark_options)
    source = opened(stream)
    with pytest.raises(TransientError, match="another source reads the stream of"):
        opened(stream)
    trio.run(source.teardown)


def test_options_of_a_stream_are_checked() -> None:
    for options, why in (
        ({"format": "rate"}, 'mode "stream" needs `stage`'),
        ({"format": "rate", "stage": "x", "remote": "sc://x"}, "needs a Spark driver in this process"),
    ):
        assert [why in problem.message for problem in Source(mode="stream", **options).problems] == [True]  # type: ignore[arg-type]
    misplaced = Source(query="SELECT 1", stage="x", available_now=True)
    assert ['`available_now` goes with mode "stream"' in problem.message for problem in misplaced.problems] == [True]


async def test_a_forceful_end_cancels_a_batch_that_is_being_taken(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    def slow(session: SparkSession) -> DataFrame:
        stream = session.readStream.schema("n BIGINT").parquet(str(numbers(tmp_path / "numbers")))
        return stream.selectExpr("reflect('java.lang.Thread', 'sleep', 300000L) AS n")

    source = Source(mode="stream", function=slow, stage=tmp_path / "stage", **spark_options).fresh()
    await trio.to_thread.run_sync(source.open, None)
    ended = trio.Event()

    async def read_until_stopped() -> None:
        with pytest.raises(EndOfSource):
            await trio.to_thread.run_sync(source.read, 1)
        ended.set()

    with trio.fail_after(300):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_until_stopped)
            await until(spark.sparkContext.statusTracker().getActiveJobsIds)
            await source.teardown()
            await ended.wait()

    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
    assert commits(tmp_path) == set()


KILLED = """
import os, signal
from pathlib import Path
from conduit_connectors import file, spark
from conduit_py import Destination, Pipeline, Source, processor

folder = Path(os.environ["FOLDER"])
seen = 0

@processor
def fatal(record):
    global seen
    seen += 1
    if seen == int(os.environ["KILL_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return record

pipeline = Pipeline(
    "killed",
    sources=[Source("numbers", spark.Source(
        mode="stream", format="parquet", columns="n BIGINT", path=str(folder / "numbers"), stage=folder / "stage",
        options={"maxFilesPerTrigger": "1"}, available_now=True, master="local[1]",
    ), window=100)],
    processors=[fatal],
    destinations=[Destination("out", file.Destination(path=folder / "out.jsonl", format="json"))],
    delivery="exactly_once",
)
"""


def test_every_row_comes_once_when_the_process_is_killed(tmp_path: Path) -> None:
    """In the second batch, of which some rows are acked and some are not."""
    for start in (0, 300):
        path = numbers(tmp_path / "numbers", start, start + 300) / f"{start}.parquet"
        os.utime(path, (start + 1, start + 1))
    (tmp_path / "killed.py").write_text(KILLED)
    command: list[str | Path] = [COMMAND, "run", "killed.py", "--state", tmp_path / "state"]

    def run(kill_at: int) -> int:
        environment = os.environ | {"FOLDER": str(tmp_path), "KILL_AT": str(kill_at)}
        ran = run_warm(command, cwd=tmp_path, env=environment, preloaded=DRIVER_MODULES)
        assert ran.returncode in (0, -signal.SIGKILL), ran.stderr
        return ran.returncode

    assert [run(450), run(0)] == [-signal.SIGKILL, 0]
    written = [json.loads(line)["n"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert written == list(range(600))
