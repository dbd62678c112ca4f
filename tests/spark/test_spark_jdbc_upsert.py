"""spark.Jdbc with mode "upsert": one row for each key, of which the last change counts, in one transaction."""

from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import trio
from builders import batch_of
from conduit_connectors import memory
from conduit_connectors.spark import Jdbc
from delivered import delivered
from pyspark.sql import SparkSession

from conduit_py import pipeline as p
from conduit_py.errors import FatalError
from conduit_py.record import Operation, Payload, Record
from conduit_py.status import Status
from conduit_py.testing import run_to_end

Options = dict[str, Any]


def jdbc(postgres: str, spark_options: Options, **more: Any) -> Jdbc:
    at = urlsplit(postgres)
    given = {"table": "people", "options": {"user": str(at.username)}, "delay_seconds": 0.01, "key": ["id"]}
    url = f"jdbc:postgresql://{at.hostname}:{at.port}{at.path}"
    return Jdbc(url=url, mode="upsert", **(given | more), **spark_options)  # type: ignore[arg-type]


def run(postgres: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(postgres, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []


def people(postgres: str) -> list[tuple[Any, ...]]:
    return run(postgres, "SELECT * FROM people ORDER BY 1, 2")


def put(number: int, name: str | None, operation: Operation = Operation.UPDATE) -> Record:
    return Record(b"x", operation, {}, {"id": number}, Payload(after={"id": number, "Name": name}))


def gone(number: int) -> Record:
    return Record(b"x", Operation.DELETE, {}, {"id": number}, Payload(before={"id": number, "Name": "?"}))


def opened(destination: Jdbc) -> Jdbc:
    assert destination.problems == []
    destination = destination.fresh()
    try:
        destination.open()
    except BaseException:
        trio.run(destination.teardown)
        raise
    return destination


@pytest.fixture
def table(postgres: str) -> str:
    run(postgres, 'CREATE TABLE people (id INT PRIMARY KEY, "Name" TEXT NOT NULL CHECK ("Name" <> \'nobody\'))')
    run(postgres, "INSERT INTO people VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    return postgres


def test_the_last_change_of_a_key_counts(table: str, spark: SparkSession, spark_options: Options) -> None:
    destination = opened(jdbc(table, spark_options))
    changes = [
        put(1, "ONE"),
        gone(2),
        put(4, "four"),
        put(4, "FOUR"),
        put(5, "five"),
        gone(5),
        gone(3),
        put(3, "3"),
    ]
    refused = delivered(destination, batch_of(*changes))
    # At least once: what comes again changes nothing.
    again = delivered(destination, batch_of(*changes))
    trio.run(destination.teardown)

    assert (refused, again) == ({}, {})
    assert people(table) == [(1, "ONE"), (3, "3"), (4, "FOUR")]


def test_only_what_the_table_does_not_take_is_refused(table: str, spark: SparkSession, spark_options: Options) -> None:
    destination = opened(jdbc(table, spark_options))
    keyless = Record(b"x", Operation.DELETE, {}, None, Payload())
    refused = delivered(
        destination,
        batch_of(
            *[put(7, "seven"), put(1, "nobody"), gone(2), put(8, None), keyless, Record.of(b"raw"), put(9, "nine")]
        ),
    )
    trio.run(destination.teardown)

    assert sorted(refused) == [1, 3, 4, 5]
    assert "check constraint" in refused[1]
    assert refused[4] == "has no value for 'id', which is part of the key"
    assert people(table) == [(1, "one"), (3, "three"), (7, "seven"), (9, "nine")]


def test_an_intent_changes_rows_once(table: str, spark: SparkSession, spark_options: Options) -> None:
    destination = opened(jdbc(table, spark_options))
    destination.begin("p", 1, [])
    destination.write(batch_of(put(1, "ONE"), gone(2)))
    intent = destination.stage()
    before = people(table)
    trio.run(destination.teardown)
    assert intent is not None
    for fence in (2, 3):
        destination = opened(jdbc(table, spark_options))
        destination.begin("p", fence, [intent])
        trio.run(destination.teardown)
        # Somebody else changes it in between: an intent that was applied twice would undo that.
        run(table, "UPDATE people SET \"Name\" = 'other' WHERE id = 1")

    assert before == [(1, "one"), (2, "two"), (3, "three")]
    assert people(table) == [(1, "other"), (3, "three")]


async def test_an_exactly_once_pipeline_keeps_a_copy(
    postgres: str, spark: SparkSession, spark_options: Options
) -> None:
    """By a key of two columns, which are all there is."""
    run(postgres, 'CREATE TABLE people (id INT, "Name" TEXT, UNIQUE ("Name", id))')
    records = [put(n % 50, f"{n % 3}", Operation.CREATE) for n in range(600)]
    pipeline = p.Pipeline(
        "copy",
        sources=[p.Source("in", memory.Source(records=records))],
        destinations=[p.Destination("out", jdbc(postgres, spark_options, key=["id", "Name"]))],
        delivery="exactly_once",
    )

    outcome = await run_to_end(pipeline)

    assert outcome.status is Status.COMPLETED, outcome.error
    assert people(postgres) == sorted({(n % 50, f"{n % 3}") for n in range(600)})


@pytest.mark.parametrize(
    ("columns", "key", "why"),
    [
        ('id INT, "Name" TEXT', ["id"], "id is not unique"),
        ('id INT, "Name" TEXT, PRIMARY KEY (id, "Name")', ["id"], "id is not unique"),
        ('id INT PRIMARY KEY, "Name" TEXT', ["number"], "there is no column 'number'"),
    ],
)
def test_a_table_without_the_key_is_reported(
    columns: str, key: list[str], why: str, postgres: str, spark: SparkSession, spark_options: Options
) -> None:
    run(postgres, f"CREATE TABLE people ({columns})")

    with pytest.raises(FatalError, match=f"people cannot be updated by its key: {why}"):
        opened(jdbc(postgres, spark_options, key=key))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "upsert"}, "go together"),
        ({"key": ["id"]}, "go together"),
        ({"mode": "upsert", "key": ["id"], "payload": "envelope"}, "envelope"),
        ({"mode": "upsert", "key": ["id"], "url": "jdbc:derby:x"}, "PostgreSQL only"),
        ({"remote": "sc://host"}, "needs a Spark driver in this process"),
    ],
)
def test_options_that_do_not_go_together_are_reported(options: Options, why: str) -> None:
    given = {"url": "jdbc:postgresql://x/y", "table": "t"} | options

    assert [why in problem.message for problem in Jdbc(**given).problems] == [True]  # type: ignore[arg-type]
