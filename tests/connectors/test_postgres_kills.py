"""A pipeline from PostgreSQL to PostgreSQL that is killed again and again under load: both have the same rows."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_changes import run_sql, slot_of

CHILD = Path(__file__).with_name("postgres_kills_child.py")
CHILD_OF_REQUEST = Path(__file__).with_name("postgres_request_child.py")
ROUNDS = int(os.environ.get("CONDUIT_POSTGRES_KILLS", "0"))
"""How many kills at random times come after those at named points."""
PATIENCE_SECONDS = 300
ROWS = 300

POINTS = {
    "at_least_once": [
        # In the first chunks; before and after a position is stored; after the slot has moved.
        "dispatcher.after_register:9",
        "settler.before_persist:3",
        "settler.after_persist:4",
        "settler.after_ack:6",
    ],
    "exactly_once": ["transaction.before_commit:3", "transaction.after_home_commit:4", "writer.after_write:20"],
}


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_both_databases_are_equal_after_kills_of_the_process_and_of_the_server(
    own_postgres: Any, tmp_path: Path, delivery: str
) -> None:
    origin, target = own_postgres.create_database(), own_postgres.create_database()
    for dsn in (origin, target):
        run_sql(
            dsn,
            "CREATE TABLE t (id int PRIMARY KEY, v int, big text)",
            "ALTER TABLE t REPLICA IDENTITY FULL",
            "CREATE TABLE marker (id int PRIMARY KEY, n int)",
        )
    run_sql(origin, f"INSERT INTO t SELECT g, 0, 'x' FROM generate_series(1, {ROWS}) g")
    run_sql(origin, "INSERT INTO marker VALUES (1, 0), (2, 0)")
    command = [sys.executable, str(CHILD), origin, target, str(tmp_path / "state"), slot_of(origin), delivery]
    rng = random.Random(3)

    with load(origin, rng.randrange(1000)):
        for point in POINTS[delivery]:
            with child(command, point) as process:
                assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL, point
                check_marker(target, delivery)
        for _ in range(ROUNDS):
            with child(command) as process:
                time.sleep(rng.uniform(0.5, 4))
                assert process.poll() is None
            check_marker(target, delivery)
        with child(command) as process:
            # The pipeline survives the server: it is killed once there is a sign of life.
            wait_for_change(target)
            own_postgres.stop()
            own_postgres.start()
            wait_for_change(target)
            check_marker(target, delivery)
            assert process.poll() is None
    with child(command):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while rows(origin) != rows(target) and time.monotonic() < deadline:
            check_marker(target, delivery)
            time.sleep(0.05)

    assert rows(target) == rows(origin)


@pytest.mark.slow
def test_a_requested_snapshot_survives_kills(postgres_server: Any, tmp_path: Path) -> None:
    origin, target = postgres_server.create_database(), postgres_server.create_database()
    for dsn in (origin, target):
        run_sql(dsn, "CREATE TABLE t (id int PRIMARY KEY, v int, big text)", "ALTER TABLE t REPLICA IDENTITY FULL")
        run_sql(dsn, "CREATE TABLE marker (id int PRIMARY KEY, n int)")
    # The load changes rows below ROWS. The others are in the target only by the snapshot.
    run_sql(origin, f"INSERT INTO t SELECT g, 0, 'x' FROM generate_series(1, {3 * ROWS}) g")
    command = [sys.executable, str(CHILD_OF_REQUEST), origin, target, str(tmp_path / "state"), slot_of(origin)]
    quiet_rows = f"SELECT count(*) FROM t WHERE id > {ROWS}"

    with load(origin, seed=5):
        with child([*command, "id % 2 = 0"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"durable\n"
        with child(command, "settler.after_persist:6") as process:
            assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        assert run_sql(target, quiet_rows)[0][0] < ROWS
    with child(command):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while even_rows(target) != even_rows(origin) and time.monotonic() < deadline:
            time.sleep(0.05)

    assert even_rows(target) == even_rows(origin)
    assert run_sql(target, quiet_rows) == [(ROWS,)]
    for dsn in (origin, target):
        postgres_server.drop_database(dsn)


def even_rows(dsn: str) -> list[tuple[Any, ...]]:
    return run_sql(dsn, "SELECT * FROM t WHERE id % 2 = 0 ORDER BY id")


@contextmanager
def child(command: list[str], kill_at: str = "", **streams: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run the pipeline, with its death at this point, and kill it at the end."""
    process = subprocess.Popen(command, env=os.environ | {"CONDUIT_KILL_AT": kill_at}, **streams)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def load(dsn: str, seed: int) -> Iterator[None]:
    """Change rows at random, keys and large values too, in transactions that all count up the marker."""
    ended = threading.Event()
    thread = threading.Thread(target=change_until, args=(dsn, seed, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def change_until(dsn: str, seed: int, ended: threading.Event) -> None:
    rng = random.Random(seed)
    while not ended.is_set():
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                while not ended.wait(0.01):
                    change(connection, rng)
        except psycopg.OperationalError:
            ended.wait(0.1)  # the server is being restarted


def change(connection: psycopg.Connection[Any], rng: random.Random) -> None:
    with connection.transaction(force_rollback=rng.random() < 0.1):
        connection.execute("UPDATE marker SET n = n + 1 WHERE id = 1")
        for _ in range(rng.choice([1, 2, 5, 40])):
            one, other = rng.randrange(ROWS), rng.randrange(ROWS)
            statement = rng.choice(
                [
                    f"UPDATE t SET v = v + 1 WHERE id = {one}",
                    f"UPDATE t SET big = repeat(md5(random()::text), 300) WHERE id = {one}",
                    f"DELETE FROM t WHERE id = {one}",
                    f"INSERT INTO t VALUES ({one}, 1, NULL) ON CONFLICT DO NOTHING",
                    f"UPDATE t SET id = {other} WHERE id = {one} AND NOT EXISTS (SELECT FROM t WHERE id = {other})",
                ]
            )
            connection.execute(statement.encode())
        connection.execute("UPDATE marker SET n = n + 1 WHERE id = 2")


def check_marker(dsn: str, delivery: str) -> None:
    """Readers never see half of a transaction of the source, if its groups are atomic."""
    numbers = run_sql(dsn, "SELECT n FROM marker")
    assert delivery != "exactly_once" or len(numbers) < 2 or numbers[0] == numbers[1]


def wait_for_change(dsn: str) -> None:
    before, deadline = run_sql(dsn, "SELECT n FROM marker"), time.monotonic() + PATIENCE_SECONDS
    while run_sql(dsn, "SELECT n FROM marker") == before:
        assert time.monotonic() < deadline, "nothing arrives any more"
        time.sleep(0.05)


def rows(dsn: str) -> list[tuple[Any, ...]]:
    return run_sql(dsn, "TABLE t ORDER BY id") + run_sql(dsn, "TABLE marker ORDER BY id")
