"""The pipelines of the how-tos about changes run as they are written there, with the addresses of real servers."""

import re
import runpy
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Producer
from kafka_topics import KafkaTopics
from postgres_changes import PATIENCE_SECONDS, run_sql, run_transaction, slot_of

import conduit_py
from conduit_py import Pipeline

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def run_block(page: str, name: str, folder: Path, **replaced: str) -> dict[str, Any]:
    """Run the file of this name that a page has, with other addresses in it; return its names."""
    [text] = re.findall(rf"^```python\n(# {name}\n.*?)^```$", (HOW_TO / page).read_text(), re.MULTILINE | re.DOTALL)
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text)
    return runpy.run_path(str(path))


async def run_until(pipeline: Pipeline, condition: Callable[[], bool], *, state: Path) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        async with conduit_py.running(pipeline, state=state) as run:
            while not condition():
                assert run.outcome is None, run.outcome
                await trio.sleep(0.05)


async def test_postgresql_to_a_lake(postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_sql(postgres, "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, total numeric(10, 2))")
    run_sql(postgres, "INSERT INTO orders SELECT g, 'c' || g, g FROM generate_series(1, 5) g")
    # So that the test does not wait for a file to be full.
    addresses = {
        "postgresql://conduit@localhost/shop": postgres,
        'slot="lake"': f'slot="{slot_of(postgres)}"',
        "max_seconds=60": "max_seconds=0.2",
    }
    pipeline = run_block("postgresql-to-a-lake.md", "lake.py", tmp_path, **addresses)["pipeline"]
    read = run_block("postgresql-to-a-lake.md", "state.py", tmp_path)["current_orders"]

    await run_until(pipeline, lambda: len(read("lake/orders")) == 5, state=tmp_path / "state")
    run_transaction(
        postgres,
        "UPDATE orders SET total = 9.99 WHERE id = 2",
        "DELETE FROM orders WHERE id = 3",
        "UPDATE orders SET id = 40 WHERE id = 4",
    )
    await run_until(pipeline, lambda: 40 in read("lake/orders"), state=tmp_path / "state")

    assert sorted(tuple(row.values()) for row in read("lake/orders").values()) == [
        (1, "c1", Decimal(1)),
        (2, "c2", Decimal("9.99")),
        (5, "c5", Decimal(5)),
        (40, "c4", Decimal(4)),
    ]


async def test_kafka_to_postgresql(topics: KafkaTopics, postgres: str, tmp_path: Path) -> None:
    topic = topics.create(partitions=2)
    addresses = {
        "localhost:9092": topics.address,
        'topics=["orders"]': f'topics=["{topic}"]',
        "postgresql://conduit@localhost/shop": postgres,
    }
    pipeline = run_block("kafka-to-postgresql.md", "orders.py", tmp_path, **addresses)["pipeline"]
    producer = Producer({"bootstrap.servers": topics.address})
    for key, value in (
        ("1", b'{"id": 1, "total": 3}'),
        ("2", b'{"id": 2, "total": 4}'),
        ("1", b'{"id": 1, "total": 5}'),
        ("2", None),
        ("3", b"no JSON"),
        ("4", b'{"id": 4, "total": 6}'),
    ):
        producer.produce(topic, value, key)
    producer.flush(60)

    def has_arrived() -> bool:
        [[table]] = run_sql(postgres, "SELECT to_regclass('orders')")
        return table is not None and run_sql(postgres, "TABLE orders ORDER BY id") == [(1, 5), (4, 6)]

    await run_until(pipeline, has_arrived, state=tmp_path / "state")


@pytest.mark.parametrize(
    ("name", "least"),
    [("read-changes-from-postgresql.md", 13), ("read-changes-from-mariadb.md", 16), ("kafka-to-postgresql.md", 9)],
)
def test_every_outcome_in_a_page_about_changes_has_its_test(name: str, least: int) -> None:
    page = (HOW_TO / name).read_text()
    file, named = "", 0
    for found, test in re.findall(r"`(test_\w+\.py)?::(?:\w+::)?(test_\w+)`", page):
        file = found or file
        assert f"def {test}(" in (Path(__file__).parent / file).read_text(), f"{file} has no {test}"
        named += 1

    assert named >= least
