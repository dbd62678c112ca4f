"""A pipeline from MariaDB to MariaDB that is killed again and again under load: both databases have the same rows."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest
from conduit_connectors.mysql.address import connect
from mariadb_changes import run_sql

from conduit_py.errors import ConduitError

CHILD = Path(__file__).with_name("mariadb_kills_child.py")
ROUNDS = int(os.environ.get("CONDUIT_MARIADB_KILLS", "0"))
"""How many kills at random times come after those at named points; every fourth is one of the server."""
PATIENCE_SECONDS = 300
ROWS = 300

POINTS = {
    # In the first chunks; after a position is stored.
    "at_least_once": ["dispatcher.after_register:9", "settler.after_persist:4"],
    "exactly_once": ["transaction.before_commit:3", "transaction.after_home_commit:4", "writer.after_write:20"],
}


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_both_databases_are_equal_after_kills_of_the_process_and_of_the_server(
    own_mariadb: Any, tmp_path: Path, delivery: str
) -> None:
    origin, target = own_mariadb.create_database(), own_mariadb.create_database()
    for url in (origin, target):
        run_sql(
            url,
            "CREATE TABLE t (id int PRIMARY KEY, v int, big longtext)",
            "CREATE TABLE marker (id int PRIMARY KEY, n int)",
        )
    run_sql(origin, f"INSERT INTO t SELECT seq, 0, 'x' FROM seq_1_to_{ROWS}")
    run_sql(origin, "INSERT INTO marker VALUES (1, 0), (2, 0)")
    command = [sys.executable, str(CHILD), origin, target, str(tmp_path / "state"), delivery]
    rng = random.Random(3)

    with load(origin, rng.randrange(1000)):
        for point in POINTS[delivery]:
            with child(command, point) as process:
                assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL, point
                check_marker(target, delivery)
        for number in range(ROUNDS):
            with child(command) as process:
                time.sleep(rng.uniform(0.5, 4))
                if number % 4 == 3:
                    own_mariadb.kill()
                    own_mariadb.start()
                assert process.poll() is None
            check_marker(target, delivery)
        with child(command) as process:
            # The pipeline survives the server: it is killed once there is a sign of life.
            wait_for_change(target)
            own_mariadb.kill()
            own_mariadb.start()
            wait_for_change(target)
            check_marker(target, delivery)
            assert process.poll() is None
    with child(command):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while rows(origin) != rows(target) and time.monotonic() < deadline:
            check_marker(target, delivery)
            time.sleep(0.05)

    assert rows(target) == rows(origin)


@contextmanager
def child(command: list[str], kill_at: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run the pipeline, with its death at this point, and kill it at the end."""
    support = str(Path(__file__).parents[1] / "support")
    process = subprocess.Popen(command, env=os.environ | {"CONDUIT_KILL_AT": kill_at, "PYTHONPATH": support})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def load(url: str, seed: int) -> Iterator[None]:
    """Change rows at random, keys and large values too, in transactions that all count up the marker."""
    ended = threading.Event()
    thread = threading.Thread(target=change_until, args=(url, seed, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def change_until(url: str, seed: int, ended: threading.Event) -> None:
    rng = random.Random(seed)
    while not ended.is_set():
        try:
            with closing(connect(url)) as connection, connection.cursor() as cursor:
                while not ended.wait(0.01):
                    change(cursor, rng)
        except (pymysql.Error, ConduitError):
            ended.wait(0.1)  # the server is being restarted


def change(cursor: Any, rng: random.Random) -> None:
    cursor.execute("BEGIN")
    cursor.execute("UPDATE marker SET n = n + 1 WHERE id = 1")
    for _ in range(rng.choice([1, 2, 5, 40])):
        one, other = rng.randrange(ROWS), rng.randrange(ROWS)
        cursor.execute(
            rng.choice(
                [
                    f"UPDATE t SET v = v + 1 WHERE id = {one}",
                    f"UPDATE t SET big = repeat(md5(rand()), 300) WHERE id = {one}",
                    f"DELETE FROM t WHERE id = {one}",
                    f"INSERT IGNORE INTO t VALUES ({one}, 1, NULL)",
                    f"UPDATE IGNORE t SET id = {other} WHERE id = {one}",
                ]
            )
        )
    cursor.execute("UPDATE marker SET n = n + 1 WHERE id = 2")
    cursor.execute(rng.choice(["COMMIT"] * 9 + ["ROLLBACK"]))


def check_marker(url: str, delivery: str) -> None:
    """Readers never see half of a transaction of the source, if its groups are atomic."""
    numbers = run_sql(url, "SELECT n FROM marker ORDER BY id")
    assert delivery != "exactly_once" or len(numbers) < 2 or numbers[0] == numbers[1]


def wait_for_change(url: str) -> None:
    before, deadline = run_sql(url, "SELECT n FROM marker"), time.monotonic() + PATIENCE_SECONDS
    while run_sql(url, "SELECT n FROM marker") == before:
        assert time.monotonic() < deadline, "nothing arrives any more"
        time.sleep(0.05)


def rows(url: str) -> list[tuple[Any, ...]]:
    return run_sql(url, "SELECT * FROM t ORDER BY id") + run_sql(url, "SELECT * FROM marker ORDER BY id")
