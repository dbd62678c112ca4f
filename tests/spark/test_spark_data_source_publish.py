"""What rows of Spark become, and how they are shown: all or none of a job, each batch of a stream once."""

import json
import os
import signal
import sqlite3
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio
from conduit_connectors import file, journal, postgres, sqlite
from pydantic import BaseModel
from pyspark.sql import types
from warm_python import run_warm

from conduit_py import sdk
from conduit_py.errors import FatalError, Fenced, PipelineInvalid, RecordRefused
from conduit_py.record import Operation, Payload, Record
from conduit_py.sdk import registry
from conduit_py.spark.datasource.open_source import read_all
from conduit_py.spark.datasource.publish import (
    RowRefused,
    TaskOutput,
    open_destination,
    pack_output,
    publish_batch,
    publish_once,
)
from conduit_py.spark.datasource.rows import COLUMNS, RowDecoder, record_of, row_of
from conduit_py.spark.datasource.settings import ReadSettings, WriteSettings, read_settings, write_settings
from conduit_py.spark.datasource.writer import BatchWriter, StreamWriter

NUMBERS = types.StructType([types.StructField("n", types.LongType())])


def output_of(*numbers: int, partition: int = 0) -> TaskOutput:
    return pack_output([Record.of({"n": number}) for number in numbers], partition, "query", None)


def place(kind: str, folder: Path) -> sdk.StagedDestination[Any]:
    if kind == "file":
        return file.Destination(path=folder / "out.jsonl", format="json")
    if kind == "sqlite":
        return sqlite.Destination(path=folder / "out.db", table="numbers")
    return journal.Destination(path=folder / "journal")


def shown(kind: str, folder: Path) -> list[int]:
    if kind == "file":
        path = folder / "out.jsonl"
        return [json.loads(line)["n"] for line in path.read_text().splitlines()] if path.exists() else []
    if kind == "sqlite":
        connection = sqlite3.connect(folder / "out.db")
        [there] = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'numbers'").fetchone()
        rows = connection.execute("SELECT n FROM numbers ORDER BY rowid").fetchall() if there else []
        connection.close()
        return [n for (n,) in rows]
    source = journal.Source(path=folder / "journal")
    return [each.record.payload["n"] for each in read_all(source, None)]


KINDS = ("file", "sqlite", "journal")


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_is_published_again_is_there_once(kind: str, tmp_path: Path) -> None:
    for batch, numbers in ((0, (1, 2)), (1, (3,)), (1, (3,)), (0, (1, 2)), (2, (4,))):
        trio.run(publish_batch, place(kind, tmp_path), "query", batch, str(tmp_path / "state"), [output_of(*numbers)])

    assert shown(kind, tmp_path) == [1, 2, 3, 4]


def test_a_database_has_the_batches_that_are_in_it(postgres: str) -> None:
    for batch, numbers in ((0, (1, 2)), (1, (3,)), (1, (3,)), (2, (4,))):
        trio.run(publish_batch, postgres_at(postgres), "query", batch, "", [output_of(*numbers)])
    trio.run(publish_batch, postgres_at(postgres), "another query", 0, "", [output_of(5)])

    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT n FROM numbers ORDER BY n").fetchall() == [(n,) for n in range(1, 6)]


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_follow_one_another_in_the_order_of_the_partitions(kind: str, tmp_path: Path) -> None:
    trio.run(
        publish_once, place(kind, tmp_path), "me", [output_of(1, 2), output_of(partition=1), output_of(3, partition=2)]
    )
    trio.run(publish_once, place(kind, tmp_path), "me", [output_of(4)])

    assert shown(kind, tmp_path) == [1, 2, 3, 4]


@pytest.mark.parametrize(("kind", "bad"), [("file", float("nan")), ("sqlite", 2**70)])
def test_a_row_that_is_refused_leaves_nothing_of_the_job(kind: str, bad: Any, tmp_path: Path) -> None:
    trio.run(publish_once, place(kind, tmp_path), "me", [output_of(1)])
    records = [Record.of({"n": 2}), Record.of({"n": bad})]

    with pytest.raises(RowRefused, match=r"row 1 of partition 7 is refused: .*'n'"):
        trio.run(publish_once, place(kind, tmp_path), "me", [output_of(5), pack_output(records, 7, "", None)])
    assert shown(kind, tmp_path) == [1]


CRASHING = """
import sys, trio
from pathlib import Path
sys.path[:0] = {places!r}
from test_spark_data_source_publish import output_of, place
from conduit_py.spark.datasource.publish import publish_batch
folder = Path({folder!r})
trio.run(publish_batch, place({kind!r}, folder), "query", 1, str(folder / "state"), [output_of(3, 4)])
"""


@pytest.mark.parametrize("kind", ["file", "journal"])
@pytest.mark.parametrize("point", ["spark.format.before_commit", "spark.format.before_apply"])
def test_a_driver_that_is_killed_while_it_publishes_does_so_when_it_is_back(
    kind: str, point: str, tmp_path: Path
) -> None:
    state = str(tmp_path / "state")
    trio.run(publish_batch, place(kind, tmp_path), "query", 0, state, [output_of(1, 2)])
    here = Path(__file__).parent
    places = [str(here), str(here.with_name("support"))]
    script = CRASHING.format(places=places, folder=str(tmp_path), kind=kind)

    ended = run_warm([sys.executable, "-c", script], env=os.environ | {"CONDUIT_KILL_AT": point})
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert shown(kind, tmp_path) == [1, 2]
    # Spark runs the batch again, and goes on.
    trio.run(publish_batch, place(kind, tmp_path), "query", 1, state, [output_of(3, 4)])
    assert shown(kind, tmp_path) == [1, 2, 3, 4]
    trio.run(publish_batch, place(kind, tmp_path), "query", 2, state, [output_of(5)])
    assert shown(kind, tmp_path) == [1, 2, 3, 4, 5]


def test_of_two_jobs_under_one_name_at_once_the_first_shows_nothing(postgres: str) -> None:
    destination = postgres_at(postgres)

    async def both() -> None:
        async with open_destination(destination, "me") as first:
            await first.call("claim", "me", 1)
            await first.write(0, [Record.of({"n": 1})])
            await publish_once(destination, "me", [output_of(2)])
            with pytest.raises(Fenced):
                await first.call("commit", b"")

    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE TABLE numbers (n BIGINT)")
        trio.run(both)
        assert connection.execute("SELECT n FROM numbers").fetchall() == [(2,)]


def postgres_at(address: str) -> postgres.Destination:
    return postgres.Destination(url=address, table="numbers")


def test_an_output_may_be_left_in_a_folder(tmp_path: Path) -> None:
    records = [Record.of({"n": number}) for number in range(3000)]
    left = pack_output(iter(records), 3, "query", tmp_path / "stage")

    assert [record for chunk in left.records() for record in chunk] == records
    assert (left.partition, left.rows, left.inline) == (3, 3000, b"")
    Path(left.file).unlink()
    with pytest.raises(FatalError, match="0 are there") as gone:
        list(left.records())
    assert "share" in str(gone.value.suggestion)


def test_a_partition_that_is_too_much_for_the_driver_is_refused_with_what_to_do() -> None:
    records = (Record.of(b"x" * 2**20) for _ in range(100))

    with pytest.raises(FatalError, match="too much") as full:
        pack_output(records, 0, "", None)
    assert "`stage`" in str(full.value.suggestion)


def test_a_record_is_the_same_after_it_was_a_row() -> None:
    record = Record(
        b"at 7", Operation.UPDATE, {"opencdc.collection": "t"}, {"id": 1}, Payload(b"\xff raw", {"n": [1, None]})
    )
    row = dict(zip(COLUMNS, row_of(record, None), strict=True))

    assert record_of(row) == record
    assert record_of({"after": '{"n": 1}'}) == Record.of({"n": 1})
    assert record_of({"after": b'{"n": 1}'}) == Record.of(b'{"n": 1}')
    assert record_of({"after": {"n": 1}, "key": b"k"}) == Record.of({"n": 1}, key=b"k")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"after": b"torn", "refused": "not valid JSON"}, "could not parse it: not valid JSON"),
        ({"after": "torn"}, "not valid JSON"),
        ({"after": "[1]"}, "after is JSON but not an object"),
        ({"after": None, "operation": "upsert"}, "operation must be one of create, update, delete, snapshot"),
        ({"after": None, "metadata": {"a": None}}, "metadata must map text to text"),
    ],
)
def test_a_row_that_is_no_record_is_refused(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecordRefused, match=reason.replace("[", r"\[")):
        record_of(row)


def test_what_json_cannot_carry_is_a_refused_row() -> None:
    row = row_of(Record.of({"n": float("inf")}, position=b"7"), None)

    assert row[0] == b"7"
    assert row[5] is None
    assert "n is inf" in str(row[6])


def test_columns_are_fields_and_some_of_them_the_key() -> None:
    fields = [("id", types.LongType()), ("at", types.TimestampType()), ("sum", types.DecimalType(10, 2))]
    schema = types.StructType([types.StructField(name, kind) for name, kind in fields])
    row = {"id": 1, "at": datetime(2026, 1, 1, tzinfo=UTC), "sum": Decimal("1.50")}

    assert RowDecoder(schema, ["id"]).record(row) == Record.of(row, key={"id": 1})
    assert RowDecoder(schema, []).record(row) == Record.of(row)


def problems(made: Any, *args: Any) -> dict[str, str]:
    with pytest.raises(PipelineInvalid) as raised:
        made(*args)
    return {each.path: f"{each.message} ({each.suggestion})" for each in raised.value.problems}


def test_columns_that_records_cannot_carry_are_all_reported() -> None:
    inner = types.StructType([types.StructField("i", types.YearMonthIntervalType())])
    odd = types.StructType(
        [
            types.StructField("v", types.VariantType()),
            types.StructField("m", types.MapType(types.IntegerType(), types.StringType())),
            types.StructField("s", types.ArrayType(inner)),
        ]
    )
    record = types.StructType(
        [types.StructField("after", types.IntegerType()), types.StructField("position", types.StringType())]
    )

    assert set(problems(RowDecoder, odd, ["k"])) == {"key_columns", "columns.v", "columns.m", "columns.s[].i"}
    assert set(problems(RowDecoder, record, ["k"])) == {"key_columns", "columns.after", "columns.position"}


def test_wrong_options_are_all_reported() -> None:
    assert problems(read_settings, {"connector": "flie"}) == {
        "connector": "there is no source plugin 'flie' (did you mean 'file'?)"
    }
    assert set(problems(read_settings, {"connector": "file", "paht": "x", "rows_per_batch": "0"})) == {
        "path",
        "paht",
        "rows_per_batch",
    }
    assert set(problems(read_settings, {})) == {"connector"}
    assert "leases" in problems(read_settings, {"connector": "sqlite.queue", "path": "x"})["connector"]
    assert "Spark itself" in problems(write_settings, {"connector": "spark.jdbc"})["connector"]
    stdio = {"connector": "stdio", "delivery": "exactly_once"}
    assert "at_least_once" in problems(write_settings, stdio)["delivery"]


def test_overwriting_and_forgetful_streams_are_refused(tmp_path: Path) -> None:
    options = {"connector": "file", "path": str(tmp_path / "out")}
    nowhere = options | {"checkpointlocation": "hdfs://host/checkpoint"}

    assert 'mode("append")' in problems(BatchWriter, options, NUMBERS, True)["mode"]
    assert 'outputMode("append")' in problems(StreamWriter, options, NUMBERS, True)["mode"]
    assert "checkpointLocation" in problems(StreamWriter, options, NUMBERS, False)["state"]
    assert 'option("state", …)' in problems(StreamWriter, nowhere, NUMBERS, False)["state"]
    StreamWriter(nowhere | {"state": str(tmp_path)}, NUMBERS, False)
    StreamWriter(nowhere | {"delivery": "at_least_once"}, NUMBERS, False)
    StreamWriter({"connector": "sqlite", "path": str(tmp_path / "db")}, NUMBERS, False)


def test_no_connector_has_an_option_of_the_same_name_as_the_format() -> None:
    pairs: list[tuple[registry.Kind, type[BaseModel]]] = [("source", ReadSettings), ("destination", WriteSettings)]
    taken = {
        (name, option)
        for kind, settings in pairs
        for name in registry.installed(kind)
        for option in settings.model_fields.keys() & registry.find(kind, name).options_model.model_fields.keys()
        if not name.startswith("spark")
    }

    assert taken == set()
