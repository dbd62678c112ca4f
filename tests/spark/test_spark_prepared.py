"""Where executors make ready what destinations write: the same output as record by record, and what happens if not."""

import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow.parquet as pq
import pytest
from conduit_connectors import file, postgres
from conduit_connectors import spark as spark_connector
from engine_world import kept, no_good, sorted_out

from conduit_py import pipeline as p
from conduit_py.spark.engine.supervisor import SparkSupervisor
from conduit_py.spark.session.shared_session import SparkOptions
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Supervised = Callable[[p.Pipeline, Store], SparkSupervisor]
COLUMNS = "n BIGINT, double BIGINT, name STRING"


@pytest.fixture
def supervised(spark: "SparkSession", spark_options: dict[str, Any]) -> Supervised:
    def supervised(pipeline: p.Pipeline, store: Store) -> SparkSupervisor:
        return SparkSupervisor(pipeline, store, spark=SparkOptions(**spark_options), part_size=4000)

    return supervised


def orders(path: Path, count: int) -> file.Source:
    path.write_text("".join(json.dumps({"n": n, "name": f"customer\t{n}\\"}) + "\n" for n in range(count)))
    return file.Source(path=path, format="json")


def into(folder: Path, *destinations: p.Destination, **more: Any) -> p.Pipeline:
    return p.Pipeline(
        "orders",
        sources=[p.Source("in", orders(folder / "in.jsonl", 1000))],
        processors=[sorted_out],
        destinations=list(destinations),
        **({"dead_letters": p.DeadLetters(file.Destination(path=folder / "dead.jsonl", format="json"))} | more),
    )


def lake(folder: Path) -> list[dict[str, Any]]:
    files = sorted(path for path in folder.rglob("batch=*/*.parquet"))
    return [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]


def table(url: str, name: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(f"SELECT n, double, name FROM {name} ORDER BY ctid".encode()).fetchall()


async def test_parquet_and_a_table_get_what_executors_made_ready(
    tmp_path: Path, supervised: Supervised, postgres: str, spark: "SparkSession"
) -> None:
    pipeline = into(
        tmp_path,
        p.Destination("lake", spark_connector.Destination(path=str(tmp_path / "lake"), columns=COLUMNS)),
        p.Destination("table", postgres_destination(postgres, "orders")),
        delivery="exactly_once",
    )
    supervisor = supervised(pipeline, MemoryStore())

    state = await supervisor.run()

    assert state.status is Status.COMPLETED, state.error
    rows = [(n, 2 * n, f"customer\t{n}\\") for n in kept(range(1000))]
    assert [tuple(row.values()) for row in lake(tmp_path / "lake")] == rows
    assert table(postgres, "orders") == rows
    assert spark.read.parquet(str(tmp_path / "lake")).count() == len(rows)
    # Whole parts arrived, not single records: there are far fewer files and writes than records.
    meters = {meter.node: meter for meter in supervisor.progress().nodes}
    assert meters["table"].records == meters["lake"].records == len(rows)
    assert meters["table"].batches < 50


async def test_a_row_that_the_table_refuses_is_found_by_going_back_to_single_records(
    tmp_path: Path, supervised: Supervised, postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Executors cannot know what is in the table: the driver can, and then says which record it is."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (n BIGINT, double BIGINT CHECK (double <> 24), name TEXT)")
    destination = p.Destination("table", postgres_destination(postgres, "orders"))
    supervisor = supervised(into(tmp_path, destination, delivery="exactly_once"), MemoryStore())

    with caplog.at_level(logging.WARNING, "conduit_py"):
        state = await supervisor.run()

    assert state.status is Status.COMPLETED, state.error
    assert [row[0] for row in table(postgres, "orders")] == [n for n in kept(range(1000)) if n != 12]
    letters = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    [refused] = [letter for letter in letters if letter["node"] == "table"]
    assert refused["record"]["payload"]["after"]["n"] == 12
    assert len(letters) == 1 + len(no_good(range(1000)))
    assert "the driver now writes record by record" in caplog.text


async def test_where_a_refused_record_stops_it_all_before_it_are_delivered(
    tmp_path: Path, supervised: Supervised
) -> None:
    destination = p.Destination("out", file.Destination(path=tmp_path / "out.jsonl", format="json"))
    supervisor = supervised(into(tmp_path, destination, dead_letters=p.DeadLetters()), MemoryStore())

    state = await supervisor.run()

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert "6 is no good" in state.error.message
    delivered = [json.loads(line)["n"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert delivered[: len(kept(range(6)))] == kept(range(6))
    assert Counter(delivered) <= Counter(kept(range(1000)))


def postgres_destination(url: str, name: str) -> Any:
    return postgres.Destination(url=url, table=name)
