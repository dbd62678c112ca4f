"""spark.Destination passes the acceptance suite on a cluster, and commits each batch of files once and whole."""

import hashlib
import json
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio
from builders import batch_of
from conduit_connectors.spark import Destination
from conduit_connectors.spark.folder import HadoopFolder
from conduit_connectors.spark.manifest import Manifests, batch_folder, stage_folder
from delivered import delivered
from pyspark.sql import SparkSession

from conduit_py.batch import Batch, Span
from conduit_py.errors import FatalError, RunError
from conduit_py.record import Record
from conduit_py.testing import destination_acceptance, numbered_record

Options = dict[str, Any]


def stored(path: Path) -> list[Any]:
    """What a plain reader sees: the rows of all batches, in order."""
    return [row for file in sorted(path.glob("batch=*/*.parquet")) for row in pq.ParquetFile(file).read().to_pylist()]


def a_folder(tmp_path: Path, spark: SparkSession, spark_options: Options) -> tuple[Destination, Callable[[], Any]]:
    path = tmp_path / "a lake"
    return Destination(path=str(path), delay_seconds=0.01, **spark_options), lambda: stored(path)


TestFiles = destination_acceptance(a_folder, refused=Record.of(b"raw"))


def opened(path: Path, options: Options, **more: Any) -> Destination:
    destination = Destination(path=str(path), delay_seconds=0.01, **options, **more)
    assert destination.problems == []
    destination = destination.fresh()
    destination.open()
    return destination


def test_records_that_come_again_after_a_crash_are_acked_and_not_written(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    first = opened(tmp_path, spark_options)
    delivered(first, batch_of({"n": 0}, {"n": 1}, {"n": 2}))
    trio.run(first.teardown)

    again = opened(tmp_path, spark_options)
    refused = delivered(again, batch_of({"n": 1}, {"n": 2}, {"n": 3}, b"bad", first=1))
    trio.run(again.teardown)

    assert stored(tmp_path) == [{"n": 0}, {"n": 1}, {"n": 2}, {"n": 3}]
    assert list(refused) == [3]


def test_a_crash_at_any_step_of_a_commit_leaves_all_or_nothing(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    """A crash before the manifest: the batch is gone. After it: the next run shows it."""
    first = opened(tmp_path, spark_options)
    delivered(first, batch_of({"n": 0}))
    delivered(first, batch_of({"n": 1}, first=1))
    trio.run(first.teardown)
    # What a crash between manifest and move, and one before the manifest, would have left.
    manifest = json.loads((tmp_path / "_conduit/000000000001.json").read_bytes())
    (tmp_path / "batch=000000000001").rename(tmp_path / manifest["stage"])
    (tmp_path / "_conduit/plain/half").mkdir()
    (tmp_path / "_conduit/plain/half/part-0.parquet").write_bytes(b"half")

    again = opened(tmp_path, spark_options)
    delivered(again, batch_of({"n": 1}, {"n": 2}, first=1))
    trio.run(again.teardown)

    assert stored(tmp_path) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_other_file_systems_keep_the_same_promises(tmp_path: Path, spark: SparkSession) -> None:
    """The folder that is used for HDFS and object stores, here on local files."""
    java: Any = spark._jvm
    root = java.org.apache.hadoop.fs.Path(str(tmp_path / "lake"))
    folder = HadoopFolder(java, root.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), root)
    manifests = Manifests(folder, 4)
    manifests.recover()
    for number in range(3):
        path = tmp_path / "lake" / stage_folder(str(number))
        path.mkdir(parents=True)
        (path / "part-0").write_text(str(number))
        assert manifests.commit(stage_folder(str(number)), [{"p": [b"%d" % number]}, {"q": [b"%d" % number]}]) == number
        if number < 2:
            folder.move(stage_folder(str(number)), batch_folder(number))
    (tmp_path / "lake" / stage_folder("7")).mkdir()

    again = Manifests(folder, 4)
    again.recover()
    again.recover()

    assert [(tmp_path / "lake" / batch_folder(number) / "part-0").read_text() for number in range(3)] == ["0", "1", "2"]
    assert folder.names("_conduit/plain") == []
    assert folder.names("_conduit")[-1] == "plain"
    assert [name for name in folder.names("_conduit") if "names" in name] == [f"{n:012d}.names" for n in (1, 2)]
    assert len(again.written) == 4
    assert again.next == 3
    assert not folder.create("_conduit/format", b"other")
    (tmp_path / "lake" / stage_folder("8")).mkdir(parents=True)
    with pytest.raises(OSError, match="could not be renamed"):
        # Somebody else's: what is staged would never be seen.
        folder.move(stage_folder("8"), batch_folder(0))


def test_no_run_uses_the_stages_of_another(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    """A manifest names the stage of its batch for ever, and what is found there must not be taken for that batch."""
    for first in range(2):
        destination = opened(tmp_path, spark_options)
        delivered(destination, batch_of({"n": first}, first=first))
        trio.run(destination.teardown)

    stages = [json.loads(path.read_bytes())["stage"] for path in (tmp_path / "_conduit").glob("*.json")]
    assert len(set(stages)) == 2


def test_a_batch_that_could_not_be_moved_is_moved_before_the_next_is_committed(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    destination = opened(tmp_path, spark_options)
    in_the_way = tmp_path / "batch=000000000000" / "something"
    in_the_way.mkdir(parents=True)
    destination.write(batch_of({"n": 0}))
    with pytest.raises(RunError):
        destination.answers()
    shutil.rmtree(in_the_way.parent)
    assert delivered(destination, batch_of({"n": 0})) == {}, "it is known, and not written again"
    delivered(destination, batch_of({"n": 1}, first=1))
    trio.run(destination.teardown)
    trio.run(opened(tmp_path, spark_options).teardown)

    assert stored(tmp_path) == [{"n": 0}, {"n": 1}]


def test_only_the_newest_names_are_kept(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    destination = opened(tmp_path, spark_options, remember=2)
    for number in range(4):
        delivered(destination, batch_of({"n": number}, first=number))
    trio.run(destination.teardown)

    kept = sorted(path.stem for path in (tmp_path / "_conduit").glob("*.names"))

    assert kept == ["000000000002", "000000000003"]


def test_stages_of_a_transaction_show_only_when_applied(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    destination = opened(tmp_path, spark_options, rows_max=2)
    destination.begin("p:1", 3, [])
    refused = destination.write(batch_of({"n": 0}, {"n": 1}, b"bad"))
    destination.write(batch_of({"n": 2}, first=3))
    intent = destination.stage()
    before = stored(tmp_path)
    assert intent is not None
    destination.apply(intent)
    destination.apply(intent)
    nothing = destination.stage()
    trio.run(destination.teardown)

    assert refused is not None
    assert list(refused) == [2]
    assert before == []
    assert stored(tmp_path) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert nothing is None


def test_a_transaction_of_which_a_job_failed_cannot_be_staged_whatever_is_written_again(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    """A write that fails may be tried again; the batches before it, which failed with it, would be missing."""
    destination = opened(tmp_path, spark_options, rows_max=2)
    destination.begin("p", 1, [])
    name = hashlib.blake2b(b"p", digest_size=16).hexdigest()
    (tmp_path / "_conduit/staged" / name).mkdir(parents=True)
    in_the_way = tmp_path / "_conduit/staged" / name / f"{1:012d}"
    in_the_way.write_text("a file where a folder should be")
    destination.write(batch_of({"n": 0}, {"n": 1}))
    with pytest.raises(RunError):
        destination.stage()
    in_the_way.unlink()

    destination.write(batch_of({"n": 2}, {"n": 3}, first=2))
    with pytest.raises(RunError):
        destination.write(batch_of({"n": 4}, {"n": 5}, first=4))
    with pytest.raises(RunError):
        destination.stage()
    trio.run(destination.teardown)
    assert stored(tmp_path) == []


def test_a_new_fence_discards_what_was_not_committed_and_applies_what_was(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    crashed = opened(tmp_path, spark_options)
    crashed.begin("p", 1, [])
    crashed.write(batch_of({"n": 0}))
    committed = crashed.stage()
    crashed.write(batch_of({"n": 1}, first=1))
    uncommitted = crashed.stage()
    trio.run(crashed.teardown)
    assert committed is not None
    assert uncommitted is not None

    destination = opened(tmp_path, spark_options)
    destination.begin("p", 2, [committed])
    destination.write(batch_of({"n": 11}, first=1))
    intent = destination.stage()
    assert intent is not None
    destination.apply(intent)
    trio.run(destination.teardown)

    assert stored(tmp_path) == [{"n": 0}, {"n": 11}]


def test_values_arrive_in_the_declared_types(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    columns = "i INT, d DECIMAL(10,2), t TIMESTAMP, n TIMESTAMP_NTZ, day DATE, m MAP<STRING, INT>, "
    columns += "s STRUCT<a: ARRAY<INT>>, b BINARY"
    row = {
        "i": 1,
        "d": Decimal("1.50"),
        "t": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "n": datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001
        "day": date(2026, 1, 2),
        "m": [("a", 1)],
        "s": {"a": [1, 2]},
        "b": b"\x00\xff",
    }
    destination = opened(tmp_path, spark_options, columns=columns)
    refused = delivered(destination, batch_of(row, {}))
    trio.run(destination.teardown)

    assert refused == {}
    assert stored(tmp_path) == [row, dict.fromkeys(row)]


def test_records_that_would_be_changed_are_refused_with_the_reason(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    columns = "i INT NOT NULL, day DATE, s STRUCT<a: INT>"
    destination = opened(tmp_path, spark_options, columns=columns)
    refused = delivered(
        destination,
        batch_of(
            {"i": 1},
            {"i": 1.5},
            {"i": 2**31},
            {"i": "1"},
            {},
            {"i": 1, "day": datetime(2026, 1, 1, tzinfo=UTC)},
            {"i": 1, "new": 1},
            {"i": 1, "s": {"a": 1, "b": 2}},
            None,
        ),
    )
    trio.run(destination.teardown)

    assert {at: reason.split(":")[0] for at, reason in refused.items()} == {
        1: "i is 1.5, and its column takes integers",
        2: "i does not fit the column's type int32",
        3: "i is '1', and its column takes integers",
        4: "i is missing, and its column takes no null",
        5: "day is a time, and its column takes dates",
        6: "has fields that are not in the schema",
        7: "s has fields that are not in the schema",
        8: 'payload.after is absent, so it has no fields to write (write whole records with payload="envelope", '
        "or filter records without payload.after)",
    }
    assert stored(tmp_path) == [{"i": 1, "day": None, "s": None}]


def test_the_first_records_decide_about_the_schema_for_all_runs(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    first = opened(tmp_path, spark_options)
    delivered(first, batch_of({"n": 1, "x": None}, {"n": 2, "x": "a"}))
    trio.run(first.teardown)

    second = opened(tmp_path, spark_options)
    refused = delivered(second, batch_of({"n": "three"}, {"n": 4}, first=2))
    trio.run(second.teardown)

    assert list(refused) == [0]
    assert stored(tmp_path) == [{"n": 1, "x": None}, {"n": 2, "x": "a"}, {"n": 4, "x": None}]


def test_unknown_fields_can_be_ignored_or_end_the_run(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    lenient = opened(tmp_path, spark_options, columns="n INT", drift="ignore")
    delivered(lenient, batch_of({"n": 1, "more": 2}))
    trio.run(lenient.teardown)
    strict = opened(tmp_path, spark_options, columns="n INT", drift="stop")
    with pytest.raises(FatalError, match="has fields that are not in the schema: 'more'"):
        strict.write(batch_of({"n": 1, "more": 2}, first=1))
    trio.run(strict.teardown)

    assert stored(tmp_path) == [{"n": 1}]


def test_columns_other_than_those_of_the_files_are_refused(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    destination = opened(tmp_path, spark_options, columns="n INT, old STRING")
    delivered(destination, batch_of({"n": 1}))
    trio.run(destination.teardown)

    other = Destination(path=str(tmp_path), columns="n BIGINT, new INT", **spark_options).fresh()
    with pytest.raises(FatalError, match="new is new; old is gone; n was int32 and is int64"):
        other.open()
    trio.run(other.teardown)


def test_a_path_that_cannot_be_written_is_reported_at_once(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    (tmp_path / "file").write_text("in the way")
    # Nobody may make folders in /proc, not even the user who may do everything else.
    forbidden = ("/proc/lake", r"cannot write to /proc/lake: .*No such file or directory.*")
    for path, why in ((tmp_path / "file" / "x", "Not a directory"), ("nosuch://x/y", "nosuch"), forbidden):
        destination = Destination(path=str(path), **spark_options).fresh()
        with pytest.raises(FatalError, match=why):
            destination.open()
        trio.run(destination.teardown)


def test_columns_that_are_no_sql_are_reported_at_once(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    destination = Destination(path=str(tmp_path), columns="n NUMBER(", **spark_options).fresh()
    with pytest.raises(FatalError, match="cannot be parsed"):
        destination.open()
    trio.run(destination.teardown)


def test_whole_records_can_be_written(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    destination = opened(tmp_path, spark_options, payload="envelope")
    refused = delivered(destination, batch_of({"n": 1}, b"\xff", None))
    trio.run(destination.teardown)

    assert refused == {}
    assert [row["after"] for row in stored(tmp_path)] == [
        json.dumps({"n": 1}, separators=(",", ":")).encode(),
        b"\xff",
        None,
    ]
    assert [row["position"] for row in stored(tmp_path)] == [b"0", b"1", b"2"]


def answered(destination: Destination) -> list[int]:
    """The messages that it answers for, each batch as a whole."""
    batches = [each for each in destination.answers() if isinstance(each, Batch)]
    return [sequence for batch in batches for sequence in batch.sequences]


def test_nothing_is_waited_for_once_it_is_said_that_nothing_will_come(
    tmp_path: Path, spark: SparkSession, spark_options: Options
) -> None:
    destination = Destination(path=str(tmp_path), delay_seconds=36_000, **spark_options).fresh()
    destination.open()
    destination.write(batch_of({"n": 0}, {"n": 1}))
    destination.finish()

    assert answered(destination) == [0, 1]
    assert stored(tmp_path) == [{"n": 0}, {"n": 1}]
    trio.run(destination.teardown)


def test_many_batches_become_few_jobs(tmp_path: Path, spark: SparkSession, spark_options: Options) -> None:
    destination = Destination(path=str(tmp_path), rows_max=50, delay_seconds=60, **spark_options).fresh()
    destination.open()
    for first in range(0, 100, 10):
        given = [numbered_record(number) for number in range(first, first + 10)]
        destination.write(Batch.whole(Span("p", "s", first, [record.position for record in given]), given))
        if first == 40:
            answers = answered(destination)
    more = answered(destination)
    trio.run(destination.teardown)

    assert answers == list(range(50))
    assert more == list(range(50, 100))
    assert len(list(tmp_path.glob("batch=*"))) == 2
