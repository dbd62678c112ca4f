"""The example of each connector's page runs as it is written there, with the addresses of real servers.

The examples of Spark run in `tests/spark/test_spark_examples.py`.
"""

import gzip
import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from connector_examples import load_example, run_until
from connector_pages import EXAMPLES, FOLDER, all_files, all_pages, guarantee
from deltalake import DeltaTable
from kafka_topics import KafkaTopics
from mariadb_changes import replica_of
from mariadb_changes import run_sql as run_on_mariadb
from postgres_changes import run_sql, slot_of
from queue_harness import QueueHarness
from reference_pages import FOLDER as REFERENCE
from reference_pages import all_files as all_reference_files
from warm_python import COMMAND, run_warm

import conduit_py
from conduit_py import Pipeline, RunOutcome

ORDERS = [{"id": 1, "total": 3}, {"id": 2, "total": 4}]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The examples name files in the folder in which they run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_the_pages_are_those_that_the_classes_give() -> None:
    committed = {file.name: file.read_text() for file in FOLDER.glob("*.md")}

    assert committed == all_files(), "run: python tests/support/connector_pages.py"


def test_the_other_pages_of_the_reference_are_those_that_the_code_gives() -> None:
    """Here, because what they import is what the pages of connectors import."""
    expected = all_reference_files()
    committed = {name: (REFERENCE / name).read_text() for name in expected if (REFERENCE / name).exists()}
    folders = ("processors", "python")
    pages = {f"{folder}/{file.name}" for folder in folders for file in (REFERENCE / folder).glob("*.md")}

    assert committed == expected, "run: python tests/support/reference_pages.py"
    assert pages <= expected.keys(), "run: python tests/support/reference_pages.py"


def test_every_connector_has_an_example_and_every_example_a_connector() -> None:
    assert {page.example.name for page in all_pages()} == {file.name for file in EXAMPLES.glob("*.py")}


def test_a_page_says_what_the_class_declares() -> None:
    pages = {page.name: page for page in all_pages()}

    assert pages["postgres.polling"].extra == pages["postgres"].extra == "postgres"
    assert (pages["sqs"].extra, pages["delta"].extra, pages["file"].extra) == ("sqs", "delta", None)
    assert "atomic=True" in guarantee(pages["postgres"].sides["source"])
    assert "conduit_source_retained_bytes" in pages["postgres"].text()
    assert "conduit_source_retained_bytes" not in pages["file"].text()
    assert "conduit_leases_lost_total" in pages["nats"].text()


async def run_to_end(pipeline: Pipeline, folder: Path) -> RunOutcome:
    outcome = await conduit_py.run_async(pipeline, state=folder / "state")
    assert outcome.error is None, outcome
    return outcome


async def test_generator(folder: Path) -> None:
    [pipeline] = load_example("generator", folder, {})
    await run_to_end(pipeline, folder)

    assert [json.loads(line)["id"] for line in lines_of(folder / "orders.jsonl")] == list(range(100))


async def test_clock(folder: Path) -> None:
    [pipeline] = load_example("clock", folder, {})
    await run_to_end(pipeline, folder)

    assert sum(json.loads(line)["count"] for line in lines_of(folder / "minutes.jsonl")) == 100


@pytest.mark.parametrize("name", ["journal", "sqlite_queue"])
async def test_pipelines_joined_by_a_log_and_by_a_queue(name: str, folder: Path) -> None:
    first, second = load_example(name, folder, {})
    await run_to_end(first, folder)

    await run_until(second, lambda: len(lines_of(folder / "orders.jsonl")) == 100, state=folder / "state")


async def test_file(folder: Path) -> None:
    (folder / "orders.jsonl").write_text("".join(json.dumps(order) + "\n" for order in ORDERS))
    [pipeline] = load_example("file", folder, {})

    await run_to_end(pipeline, folder)

    assert [json.loads(line) for line in lines_of(folder / "copy.jsonl")] == ORDERS


async def test_dlt(folder: Path) -> None:
    [pipeline] = load_example("dlt", folder, {})
    for _ in range(2):
        await run_to_end(pipeline, folder)

    assert sqlite3.connect(folder / "shop.db").execute("SELECT id, total FROM orders").fetchall() == [(1, 3), (2, 4)]


async def test_objects(folder: Path) -> None:
    (folder / "inbox" / "may").mkdir(parents=True)
    rows = "".join(f"{order['id']},{order['total']},at\n" for order in ORDERS)
    (folder / "inbox" / "may" / "1.csv.gz").write_bytes(gzip.compress(f"id,total,country\n{rows}".encode()))
    [pipeline] = load_example("objects", folder, {})
    await run_to_end(pipeline, folder)

    found = pq.read_table(folder / "lake").to_pylist()
    assert found == [{name: str(value) for name, value in order.items()} | {"country": "at"} for order in ORDERS]


async def test_parquet(folder: Path) -> None:
    (folder / "export").mkdir()
    pq.write_table(pa.Table.from_pylist(ORDERS), folder / "export" / "orders.parquet")
    [pipeline] = load_example("parquet", folder, {})

    await run_to_end(pipeline, folder)

    assert pq.read_table(folder / "lake").to_pylist() == ORDERS


async def test_sqlite(folder: Path) -> None:
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER, total INTEGER)")
        database.executemany("INSERT INTO orders VALUES (:id, :total)", ORDERS)
    [pipeline] = load_example("sqlite", folder, {})

    await run_to_end(pipeline, folder)

    assert sqlite3.connect(folder / "copy.db").execute("SELECT * FROM orders").fetchall() == [(1, 3), (2, 4)]


async def test_duckdb(folder: Path) -> None:
    for pipeline in load_example("duckdb", folder, {}):
        await run_to_end(pipeline, folder)

    assert sorted(pq.read_table(folder / "export").column("id").to_pylist()) == list(range(50, 100))


async def test_iceberg(folder: Path) -> None:
    for pipeline in load_example("iceberg", folder, {}):
        await run_to_end(pipeline, folder)

    assert sorted(json.loads(line)["id"] for line in lines_of(folder / "orders.jsonl")) == list(range(100))


async def test_sqlalchemy(folder: Path) -> None:
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, changed_at TEXT NOT NULL)")
        database.execute("INSERT INTO orders VALUES (1, '2026-01-01'), (2, '2026-01-02')")
        [pipeline] = load_example("sqlalchemy", folder, {})
        database.commit()
        await run_to_end(pipeline, folder)
        database.execute("UPDATE orders SET changed_at = '2026-01-03' WHERE id = 1")
        database.commit()
    await run_to_end(pipeline, folder)

    found = sqlite3.connect(folder / "copy.db").execute("SELECT id, changed_at FROM orders ORDER BY id").fetchall()
    assert found == [(1, "2026-01-03"), (2, "2026-01-02")]


async def test_delta(folder: Path) -> None:
    [pipeline] = load_example("delta", folder, {})

    await run_to_end(pipeline, folder)

    assert sorted(DeltaTable("lake/orders").to_pyarrow_table().column("id").to_pylist()) == list(range(100))


@pytest.mark.parametrize(("name", "records"), [("log", 3), ("memory", 3)])
async def test_ends_that_keep_nothing(name: str, records: int, folder: Path) -> None:
    [pipeline] = load_example(name, folder, {})

    assert (await run_to_end(pipeline, folder)).counts.acked == records


def test_stdio(folder: Path) -> None:
    load_example("stdio", folder, {})
    (folder / "in").write_text('{"id": 1}\n')
    with (folder / "in").open() as given:
        ran = run_warm([COMMAND, "run", "pipeline.py"], stdin=given)

    assert (ran.returncode, ran.stdout) == (0, '{"id":1}\n'), ran.stderr


async def test_kafka(topics: KafkaTopics, folder: Path) -> None:
    source, copy = topics.create(), topics.create()
    topics.fill(source, [b"one", b"two"])
    addresses = {"localhost:9092": topics.address, '"orders-copy"': f'"{copy}"', '["orders"]': f'["{source}"]'}
    [pipeline] = load_example("kafka", folder, addresses)

    await run_until(pipeline, lambda: topics.values(copy) == [b"one", b"two"], state=folder / "state")


async def test_postgres(postgres: str, folder: Path) -> None:
    run_sql(postgres, "CREATE TABLE orders (id bigint PRIMARY KEY, total bigint)", "INSERT INTO orders VALUES (1, 3)")
    addresses = {"postgresql://conduit@localhost/shop": postgres, 'slot="orders_copy"': f'slot="{slot_of(postgres)}"'}
    [pipeline] = load_example("postgres", folder, addresses)

    def has_arrived() -> bool:
        [[table]] = run_sql(postgres, "SELECT to_regclass('orders_copy')")
        return table is not None and run_sql(postgres, "TABLE orders_copy") == [(1, 3)]

    await run_until(pipeline, has_arrived, state=folder / "state")


async def test_postgres_polling(postgres: str, folder: Path) -> None:
    run_sql(postgres, "CREATE TABLE orders (id bigint PRIMARY KEY)", "INSERT INTO orders VALUES (1), (2)")
    [pipeline] = load_example("postgres_polling", folder, {"postgresql://conduit@localhost/shop": postgres})

    await run_until(pipeline, lambda: len(lines_of(folder / "orders.jsonl")) == 2, state=folder / "state")


async def test_mysql(mariadb: str, folder: Path) -> None:
    run_on_mariadb(mariadb, "CREATE TABLE orders (id bigint PRIMARY KEY, total bigint)")
    run_on_mariadb(mariadb, "INSERT INTO orders VALUES (1, 3)")
    # The number first: the port of the address may contain it.
    addresses = {"4711": str(replica_of(mariadb)), "mysql://conduit@localhost/shop": mariadb}
    [pipeline] = load_example("mysql", folder, addresses)

    def has_arrived() -> bool:
        tables = run_on_mariadb(mariadb, "SHOW TABLES LIKE 'orders_copy'")
        return bool(tables) and run_on_mariadb(mariadb, "SELECT * FROM orders_copy") == [("1", "3")]

    await run_until(pipeline, has_arrived, state=folder / "state")


async def test_singer(folder: Path) -> None:
    (folder / "rows.json").write_text(json.dumps(ORDERS))
    tap = [sys.executable, str(Path(__file__).parent / "scripted_tap.py")]
    [pipeline] = load_example("singer", folder, {'["uvx", "--from", "tap-shop", "tap-shop"]': repr(tap)})
    await run_to_end(pipeline, folder)

    with closing(sqlite3.connect(folder / "shop.db")) as database:
        assert database.execute("SELECT id, total FROM orders").fetchall() == [(1, 3), (2, 4)]


@pytest.mark.parametrize(
    ("name", "queue", "replaced"),
    [
        ("redis_streams", "redis", {'"redis://localhost:6379/0"': "url", 'stream="orders"': "stream=stream"}),
        (
            "nats",
            "nats",
            {
                '"nats://localhost:4222"': "url",
                'stream="orders"': "stream=stream",
                'subject="orders"': "subject=stream",
            },
        ),
        ("sqs", "sqs", {'url="https://sqs.eu-west-1.amazonaws.com/123456789012/orders"': "**options"}),
    ],
)
async def test_queues(
    name: str, queue: str, replaced: dict[str, str], folder: Path, make_harness: Callable[[str], QueueHarness]
) -> None:
    options = make_harness(queue).options()
    options.pop("wait_seconds", None)
    names = {"options": options, "url": options.get("url"), "stream": options.get("stream")}
    send, receive = load_example(name, folder, replaced, **names)

    await run_to_end(send, folder)
    await run_until(receive, lambda: len(lines_of(folder / "orders.jsonl")) == 100, state=folder / "state")
