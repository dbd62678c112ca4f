"""spark.Jdbc passes the acceptance suite on PostgreSQL, and its batches show in whole, once, or not at all."""

from collections.abc import Callable
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
from conduit_py.errors import FatalError, TransientError
from conduit_py.record import Record
from conduit_py.status import Status
from conduit_py.testing import destination_acceptance, run_to_end

Options = dict[str, Any]


def jdbc(postgres: str, spark_options: Options, **more: Any) -> Jdbc:
    at = urlsplit(postgres)
    url = f"jdbc:postgresql://{at.hostname}:{at.port}{at.path}"
    given = {"table": "numbers", "options": {"user": str(at.username)}, "delay_seconds": 0.01}
    return Jdbc(url=url, **(given | more), **spark_options)  # type: ignore[arg-type]


def run(postgres: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(postgres, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []


def rows(postgres: str) -> list[int]:
    return [n for (n,) in run(postgres, "SELECT n FROM numbers ORDER BY n")]


def tables(postgres: str) -> set[str]:
    return {name for (name,) in run(postgres, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}


def a_table(postgres: str, spark: SparkSession, spark_options: Options) -> tuple[Jdbc, Callable[[], list[Any]]]:
    run(postgres, 'CREATE TABLE numbers (n INT NOT NULL, "from" TEXT)')

    def stored() -> list[Any]:
        return [{"n": n, "from": source} for n, source in run(postgres, "SELECT * FROM numbers ORDER BY n")]

    return jdbc(postgres, spark_options), stored


TestJdbc = destination_acceptance(a_table, refused=Record.of({"n": 2**31}))


def opened(destination: Jdbc) -> Jdbc:
    destination = destination.fresh()
    destination.open()
    return destination


def test_what_breaks_a_constraint_is_refused_and_nothing_else(
    postgres: str, spark: SparkSession, spark_options: Options
) -> None:
    run(postgres, "CREATE TABLE numbers (n INT PRIMARY KEY CHECK (n < 100))")
    run(postgres, "INSERT INTO numbers VALUES (3)")
    destination = opened(jdbc(postgres, spark_options))
    refused = delivered(destination, batch_of({"n": 1}, {"n": 200}, {"n": 2}, {"n": 3}, {"n": None}))
    trio.run(destination.teardown)

    assert sorted(refused) == [1, 3, 4]
    assert "check constraint" in str(refused[1])
    assert "duplicate key" in str(refused[3])
    assert rows(postgres) == [1, 2, 3]
    assert tables(postgres) == {"numbers", "conduit_ledger"}


def test_stages_of_a_transaction_show_once_when_applied(
    postgres: str, spark: SparkSession, spark_options: Options
) -> None:
    run(postgres, "CREATE TABLE numbers (n INT)")
    destination = opened(jdbc(postgres, spark_options, rows_max=2))
    destination.begin("p", 1, [])
    destination.write(batch_of({"n": 0}, {"n": 1}))
    destination.write(batch_of({"n": 2}, first=2))
    intent = destination.stage()
    before = rows(postgres)
    assert intent is not None
    destination.apply(intent)
    destination.apply(intent)
    nothing = destination.stage()
    trio.run(destination.teardown)

    assert before == []
    assert rows(postgres) == [0, 1, 2]
    assert nothing is None
    assert tables(postgres) == {"numbers", "conduit_ledger"}


def test_a_new_fence_applies_what_was_committed_and_drops_the_rest(
    postgres: str, spark: SparkSession, spark_options: Options
) -> None:
    run(postgres, "CREATE TABLE numbers (n INT)")
    crashed = opened(jdbc(postgres, spark_options))
    crashed.begin("p", 1, [])
    crashed.write(batch_of({"n": 0}))
    committed = crashed.stage()
    crashed.write(batch_of({"n": 1}, first=1))
    crashed.stage()
    trio.run(crashed.teardown)
    assert committed is not None

    for fence in (2, 3):
        destination = opened(jdbc(postgres, spark_options))
        destination.begin("p", fence, [committed])
        trio.run(destination.teardown)

    assert rows(postgres) == [0]
    assert tables(postgres) == {"numbers", "conduit_ledger"}


async def test_an_exactly_once_pipeline_fills_a_table(
    postgres: str, spark: SparkSession, spark_options: Options
) -> None:
    run(postgres, "CREATE TABLE numbers (n INT NOT NULL)")
    given = [{"n": n} if n % 100 else {"n": "none"} for n in range(1000)]
    pipeline = p.Pipeline(
        "fill",
        sources=[p.Source("in", memory.Source(records=given))],
        destinations=[p.Destination("out", jdbc(postgres, spark_options))],
        dead_letters=p.DeadLetters("drop"),
        delivery="exactly_once",
    )

    outcome = await run_to_end(pipeline)

    assert outcome.status is Status.COMPLETED, outcome.error
    assert rows(postgres) == [n for n in range(1000) if n % 100]
    assert outcome.progress.dead_letters == 10


def test_what_is_missing_or_does_not_answer_is_reported(
    postgres: str, spark: SparkSession, spark_options: Options
) -> None:
    run(postgres, "CREATE TABLE numbers (n INT)")
    without_table = jdbc(postgres, spark_options, table="nowhere").fresh()
    with pytest.raises((FatalError, TransientError), match="nowhere"):
        without_table.open()
    trio.run(without_table.teardown)
    without_driver = jdbc(postgres, spark_options, driver="no.such.Driver").fresh()
    with pytest.raises(FatalError, match=r"Spark has no JDBC driver no\.such\.Driver"):
        without_driver.open()
    trio.run(without_driver.teardown)
    other_kind = Jdbc(url="jdbc:nosuch://127.0.0.1/x", table="t", **spark_options).fresh()
    with pytest.raises((FatalError, TransientError), match=r"(?i)url"):
        other_kind.open()
    trio.run(other_kind.teardown)
    without_server = Jdbc(url="jdbc:postgresql://127.0.0.1:1/x", table="t", **spark_options).fresh()
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:1 refused"):
        without_server.open()
    trio.run(without_server.teardown)
