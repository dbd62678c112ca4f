"""A snapshot that was requested of a PostgreSQL source, under load: it goes on after kills, to its end."""

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
from warm_python import WarmPython

CHILD_OF_REQUEST = Path(__file__).with_name("postgres_request_child.py")
PATIENCE_SECONDS = 300
ROWS = 300


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
def child(command: list[str], kill_at: str = "", **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run the pipeline, with its death at this point, and kill it at the end."""
    process = WarmPython(command, env=os.environ | {"CONDUIT_KILL_AT": kill_at}, **streams)
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
