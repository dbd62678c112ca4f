"""Pipelines that pages only check, with real systems: the first one of the README, and two of the how-tos."""

import json
import re
import runpy
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from command_folder import COMMAND
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from kafka_topics import KafkaTopics
from postgres_changes import run_sql, slot_of
from warm_python import run_command

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
HOW_TO = ROOT / "docs" / "how-to"


def write(folder: Path, page: Path, name: str, **replaced: str) -> None:
    """Write the first file of this name on a page, with the addresses of this test in the place of those shown."""
    text = page.read_text().partition(f"```python\n# {name}\n")[2].partition("```")[0]
    for kind, value in replaced.items():
        text, count = re.subn(rf'\b{kind}=("[^"]*"|\["[^"]*"\]|\d+)', f"{kind}={value}", text)
        assert count == 1, kind
    (folder / name).write_text(text)


@contextmanager
def running(folder: Path, file: str, ends_by: signal.Signals = signal.SIGINT) -> Iterator[None]:
    """A run of the file, which the signal ends."""
    process = subprocess.Popen([COMMAND, "run", file], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield
        assert process.poll() is None, process.communicate()[1]
    finally:
        process.send_signal(ends_by)
        _, log = process.communicate(timeout=300)
    assert (process.returncode == 0) == (ends_by is signal.SIGINT), log


def wait_until(read: Callable[[], object], wanted: object) -> None:
    deadline = time.monotonic() + 300
    while read() != wanted and time.monotonic() < deadline:
        time.sleep(0.2)
    assert read() == wanted


def test_the_first_pipeline_of_the_readme(postgres: str, tmp_path: Path) -> None:
    write(tmp_path, README, "lake.py", url=f'"{postgres}"', slot=f'"{slot_of(postgres)}"')

    def rows() -> list[tuple[int, str]]:
        try:
            found = DeltaTable(tmp_path / "lake" / "events").to_pyarrow_table().to_pylist()
        except TableNotFoundError:
            return []
        return sorted((row["id"], row["kind"]) for row in found)

    run_sql(postgres, "CREATE TABLE events (id bigint PRIMARY KEY, kind text)")
    run_sql(postgres, "INSERT INTO events VALUES (1, 'sale'), (2, 'test')")
    with running(tmp_path, "lake.py", signal.SIGKILL):
        wait_until(rows, [(1, "sale")])
        run_sql(postgres, "INSERT INTO events VALUES (3, 'sale')")
        wait_until(rows, [(1, "sale"), (3, "sale")])
    run_sql(postgres, "INSERT INTO events VALUES (4, 'sale')")
    with running(tmp_path, "lake.py"):
        wait_until(rows, [(1, "sale"), (3, "sale"), (4, "sale")])
        run_sql(postgres, "DELETE FROM events WHERE id = 3", "UPDATE events SET kind = 'refund' WHERE id = 1")
        wait_until(rows, [(1, "refund"), (1, "sale"), (3, "sale"), (4, "sale")])
    kept = run_command("dlq", "list", "--state", ".conduit/state", "--json", cwd=tmp_path)

    assert [letter["node"] for letter in json.loads(kept.stdout)["letters"]] == ["real"]


def test_postgresql_to_a_lake(postgres: str, tmp_path: Path) -> None:
    page = HOW_TO / "postgresql-to-a-lake.md"
    # A file is made when a transaction ends, which takes a minute on the page.
    write(tmp_path, page, "lake.py", url=f'"{postgres}"', slot=f'"{slot_of(postgres)}"', max_seconds="1")
    write(tmp_path, page, "state.py")
    current_orders = runpy.run_path(str(tmp_path / "state.py"))["current_orders"]

    def state() -> list[tuple[int, str, str]]:
        found = current_orders(tmp_path / "lake" / "orders").values()
        return sorted((row["id"], row["customer"], str(row["total"])) for row in found)

    run_sql(postgres, "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, total numeric(10, 2))")
    run_sql(postgres, "INSERT INTO orders VALUES (1, 'ada', 12.5), (2, 'bob', 7)")
    with running(tmp_path, "lake.py"):
        wait_until(state, [(1, "ada", "12.50"), (2, "bob", "7.00")])
        run_sql(postgres, "UPDATE orders SET total = 8 WHERE id = 2", "DELETE FROM orders WHERE id = 1")
        wait_until(state, [(2, "bob", "8.00")])


def test_kafka_to_postgresql(postgres: str, topics: KafkaTopics, tmp_path: Path) -> None:
    topic = topics.create()
    here = {"servers": f'"{topics.address}"', "topics": f'["{topic}"]', "url": f'"{postgres}"'}
    write(tmp_path, HOW_TO / "kafka-to-postgresql.md", "orders.py", **here)

    def rows() -> list[tuple[int, int]]:
        there = run_sql(postgres, "SELECT to_regclass('orders')")[0][0]
        return run_sql(postgres, "SELECT id, total FROM orders ORDER BY id") if there else []

    topics.fill(topic, [b'{"id": 0, "total": 1}', b'{"id": 1, "total": 2}', b'{"id": 0, "total": 3}'], keys=2)
    with running(tmp_path, "orders.py", signal.SIGKILL):
        wait_until(rows, [(0, 3), (1, 2)])
    topics.fill(topic, [None, b'{"id": 1, "total": 4}'], keys=2)
    with running(tmp_path, "orders.py"):
        wait_until(rows, [(1, 4)])
