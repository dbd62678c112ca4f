"""The pytest plugin of real servers: each is there, is what it says it is, and can be killed and started again."""

import subprocess
import sys
from pathlib import Path

import httpx2
import psycopg
import pytest

from conduit_py.testing.services import KafkaServer, MariaDbServer, PostgresServer, RegistryServer


def test_postgres_has_an_empty_database_for_each_test_and_logical_decoding(postgres: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
        level = connection.execute("SHOW wal_level").fetchone()
        # The fixture removes a slot with its database.
        connection.execute(f"SELECT pg_create_logical_replication_slot('{connection.info.dbname}', 'pgoutput')")

    assert (tables, level) == ((0,), ("logical",))


def test_a_postgres_of_ones_own_keeps_what_was_committed_when_it_is_killed(own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
        own_postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    own_postgres.start()

    with psycopg.connect(own_postgres.dsn()) as connection:
        assert connection.execute("SELECT n FROM kept").fetchall() == [(1,)]


def test_mariadb_has_an_empty_database_for_each_test_and_a_log_of_rows(
    mariadb: str, mariadb_server: MariaDbServer
) -> None:
    name = mariadb.rpartition("/")[2]
    mariadb_server.execute(f"CREATE TABLE {name}.t (n INT PRIMARY KEY); INSERT INTO {name}.t VALUES (1)")

    assert mariadb_server.execute("SELECT @@log_bin, @@binlog_format").split()[-2:] == ["1", "ROW"]
    assert mariadb_server.execute(f"SELECT n FROM {name}.t").split() == ["n", "1"]


def test_kafka_takes_records_and_gives_them_back(kafka_server: KafkaServer) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    settings = {"bootstrap.servers": kafka_server.address}
    producer = Producer(settings)
    producer.produce("services-there-and-back", b"hello")
    assert producer.flush(60) == 0
    consumer = Consumer(settings | {"group.id": "services", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("services-there-and-back", 0, 0)])
    message = consumer.poll(60)
    consumer.close()

    assert message is not None
    assert message.value() == b"hello"


WORKER = """
import os, sys
from contextlib import contextmanager
from pathlib import Path
from conduit_py.testing.server_process import share, stop_shared

folder = Path(sys.argv[1])

@contextmanager
def start():
    yield f"started by {os.getpid()}"
    print("stopped, in use by", [user.name for user in (folder / "users").iterdir()], flush=True)

with share(folder, start) as given:
    print(given, flush=True)
    sys.stdin.readline()
print("left", flush=True)
stop_shared()
"""


def test_workers_share_one_server_and_the_first_stops_it_after_the_last_has_left(tmp_path: Path) -> None:
    def start_worker() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WORKER, str(tmp_path)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with start_worker() as first, start_worker() as second:
        workers = {worker.pid: worker for worker in (first, second)}
        assert first.stdout is not None
        assert second.stdout is not None
        said = [first.stdout.readline(), second.stdout.readline()]
        starter = workers[int(said[0].split()[-1])]
        other = second if starter is first else first
        assert starter.stdin is not None
        assert starter.stdout is not None
        starter.stdin.write("\n")
        starter.stdin.flush()
        left = starter.stdout.readline()
        rest = other.communicate("\n")[0], starter.communicate()[0]

    assert said == [f"started by {starter.pid}\n"] * 2
    assert left == "left\n"
    assert rest == ("left\n", "stopped, in use by []\n")


def test_a_registry_gives_a_schema_an_id_and_the_schema_for_the_id(registry_server: RegistryServer) -> None:
    number = httpx2.post(f"{registry_server.url}/subjects/words/versions", json={"schema": '"string"'}).json()["id"]

    assert httpx2.get(f"{registry_server.url}/schemas/ids/{number}").json()["schema"] == '"string"'
    assert httpx2.get(f"{registry_server.url}/schemas/ids/{number + 10**6}").json()["error_code"] == 40403
