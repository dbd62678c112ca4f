"""`probe`: connectors reach their systems, say what is there and what is wrong, and change nothing."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb as duckdb_library
import psycopg
import pytest
import redis
import trio
from conduit_connectors import (
    delta,
    duckdb,
    file,
    http,
    iceberg,
    journal,
    kafka,
    mysql,
    objects,
    parquet,
    postgres_polling,
    redis_streams,
    sqlalchemy,
    sqlite,
    sqlite_queue,
    sqs,
)
from conduit_connectors import nats as nats_connector
from conduit_connectors import postgres as postgres_connector
from http_peer import HttpPeer, PeerAnswer, PeerRequest
from kafka_topics import KafkaTopics

from conduit_py.cli.check import _probe
from conduit_py.sdk import ConduitError
from conduit_py.stream.plugin_calls import PluginCaller

NOBODY = "127.0.0.1:1"
PASSWORD = "hunter2hunter2"


def probe(connector: Any) -> str:
    """What a connector says, called as `check --connect` calls it."""

    async def call() -> str:
        calls = PluginCaller("node", connector.fresh())
        try:
            return str(await calls("probe"))
        finally:
            calls.close()

    assert connector.problems == []
    return trio.run(call)


def test_files_are_looked_at_and_not_made(tmp_path: Path) -> None:
    there = tmp_path / "there.csv"
    there.write_text("id\n1\n")

    assert probe(file.Source(path=there)) == f"{there} can be read"
    assert probe(file.Destination(path=there)) == f"{there} can be written"
    assert probe(file.Destination(path=tmp_path / "new" / "out.txt")).endswith("can be created")
    assert probe(parquet.Destination(path=tmp_path / "lake")).endswith("can be created")
    assert probe(delta.Destination(path=str(tmp_path / "table"), columns={"id": "long"})).startswith(
        "there is no table"
    )
    for missing in (file.Source(path=tmp_path / "no.csv"), file.Destination(path=there / "out.txt")):
        with pytest.raises(ConduitError, match="cannot be"):
            probe(missing)
    assert list(tmp_path.iterdir()) == [there]


def test_sqlite_is_looked_at_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    assert probe(sqlite.Destination(path=path, table="orders")).endswith("can be created")
    with pytest.raises(ConduitError, match="there is no"):
        probe(sqlite.Source(path=path, table="orders"))
    assert not path.exists()
    sqlite3.connect(path).execute("CREATE TABLE orders (id)").connection.close()
    assert probe(sqlite.Source(path=path, table="orders")).endswith("has the table")
    assert probe(sqlite.Destination(path=path, table="orders")) == "the database answers"
    with pytest.raises(ConduitError, match="has no table customers"):
        probe(sqlite.Source(path=path, table="customers"))


def test_files_of_other_databases_are_looked_at_and_not_made_or_changed(tmp_path: Path) -> None:
    path, lake = tmp_path / "shop.db", tmp_path / "shop.duckdb"
    through_sqlalchemy = sqlalchemy.Destination(url=f"sqlite:///{path}", table="orders")
    of_duckdb = duckdb.Destination(path=lake, table="orders")
    assert probe(through_sqlalchemy) == f"{path} can be created"
    assert probe(of_duckdb) == f"{lake} can be created"
    assert list(tmp_path.iterdir()) == []
    sqlite3.connect(path).execute("CREATE TABLE orders (id)").connection.close()
    duckdb_library.connect(str(lake)).close()
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    # The destination would write with another journal, which is kept in the file.
    for connector in (through_sqlalchemy, of_duckdb, sqlite.Destination(path=path, table="orders")):
        assert probe(connector) == "the database answers"
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_postgresql_answers_with_its_version(postgres: str) -> None:
    assert probe(postgres_connector.Source(url=postgres, tables=["orders"], slot="probed")).startswith("PostgreSQL 1")
    assert probe(postgres_connector.Destination(url=postgres, table="orders")) == "the database answers"
    with psycopg.connect(postgres) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
        slots = connection.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
        assert (tables, slots.fetchone()) == ((0,), (0,))


def test_a_table_that_cannot_be_polled_is_reported_before_it_runs(postgres: str) -> None:
    source = postgres_polling.Source(url=postgres, table="orders", column="at")
    with pytest.raises(ConduitError, match="there is no table"):
        probe(source)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, at timestamptz)")
        with pytest.raises(ConduitError, match="may be NULL"):
            probe(source)
        connection.execute("ALTER TABLE orders ALTER at SET NOT NULL")
        assert probe(source).endswith("has the table public.orders")


def test_mariadb_answers(mariadb: str) -> None:
    assert "MariaDB" in probe(mysql.Source(url=mariadb, tables=["orders"], server_id=77))
    assert probe(mysql.Destination(url=mariadb, table="orders")) == "the database answers"


def test_kafka_has_the_topics(topics: KafkaTopics) -> None:
    topics.fill("probed", [b"one"])
    servers = topics.address

    assert "partition" in probe(kafka.Source(servers=servers, topics=["probed"]))
    assert probe(kafka.Destination(servers=servers, topic="probed")) == "the topics probed are there"
    with pytest.raises(ConduitError, match="no topic"):
        probe(kafka.Source(servers=servers, topics=["not-there"]))


def test_queues_answer_and_no_group_or_consumer_is_made(
    redis_server: str, nats_server: str, moto_server: str, queue_name: str
) -> None:
    client = redis.Redis.from_url(redis_server)
    client.xadd(queue_name, {"body": "1"})
    assert probe(redis_streams.Source(url=redis_server, stream=queue_name)) == "the stream has 1 entries"
    assert probe(redis_streams.Destination(url=redis_server, stream=queue_name)) == "the stream has 1 entries"
    assert probe(redis_streams.Destination(url=redis_server, stream=f"{queue_name}-2")) == "the stream has 0 entries"
    assert client.xinfo_groups(queue_name) == []
    assert client.keys(f"{queue_name}*") == [queue_name.encode()]
    client.close()
    for of_nats in (
        nats_connector.Source(url=nats_server, stream=queue_name),
        nats_connector.Destination(url=nats_server, stream=queue_name, subject="s"),
    ):
        with pytest.raises(ConduitError, match="has no stream"):
            probe(of_nats)
    for of_sqs in (sqs.Source, sqs.Destination):
        with pytest.raises(ConduitError):
            probe(of_sqs(url=f"{moto_server}/1/none", region="eu-west-1", endpoint=moto_server))


@pytest.mark.parametrize(
    "connector",
    [
        postgres_connector.Source(url=f"postgresql://me:{PASSWORD}@{NOBODY}/shop", tables=["t"], slot="s"),
        mysql.Destination(url=f"mysql://me:{PASSWORD}@{NOBODY}/shop", table="t"),
        redis_streams.Source(url=f"redis://me:{PASSWORD}@{NOBODY}/0", stream="t"),
    ],
    ids=lambda connector: type(connector).__module__,
)
def test_a_system_that_is_not_there_is_said_without_the_password(connector: Any) -> None:
    found = trio.run(_probe, "p", "node", connector, 300)

    assert found.status == "failed"
    assert "127.0.0.1" in found.sentence()
    assert PASSWORD not in found.sentence()


def test_lakes_and_queries_are_looked_at_and_not_made(tmp_path: Path) -> None:
    path, url = tmp_path / "shop.duckdb", f"sqlite:///{tmp_path}/shop.db"
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/lake"}
    for missing in (
        duckdb.Source(path=path, table="orders", key=["id"]),
        sqlalchemy.Source(url=url, table="orders", column="id"),
        parquet.Source(path=str(tmp_path / "lake")),
        delta.Source(path=str(tmp_path / "lake")),
        objects.Source(url=str(tmp_path / "in")),
    ):
        with pytest.raises(ConduitError, match="there is no") as raised:
            probe(missing)
        assert raised.value.suggestion
    assert probe(objects.Destination(url=str(tmp_path / "lake"), format="json")).endswith("can be created")
    assert probe(journal.Source(path=tmp_path / "log")).endswith("the source waits for it")
    assert probe(journal.Destination(path=tmp_path / "log")).endswith("can be created")
    assert probe(sqlite_queue.Source(path=tmp_path / "queue.db")).endswith("can be created")
    assert probe(sqlite_queue.Destination(path=tmp_path / "queue.db")).endswith("can be created")
    assert list(tmp_path.iterdir()) == []

    with closing(sqlite3.connect(tmp_path / "shop.db")) as made:
        made.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL)")
    with duckdb_library.connect(str(path)) as made_by_duckdb:
        made_by_duckdb.execute("CREATE TABLE orders (id INTEGER, total DOUBLE)")
    assert probe(duckdb.Source(path=path, table="orders", key=["id"])).endswith("id, total")
    assert probe(sqlalchemy.Source(url=url, table="orders", column="id")).endswith("id, total")
    with pytest.raises(ConduitError, match="there is no column 'no'"):
        probe(duckdb.Source(path=path, table="orders", key=["no"]))
    (tmp_path / "in").mkdir()
    assert probe(objects.Source(url=str(tmp_path / "in"))).startswith("nothing among")
    (tmp_path / "in" / "a.jsonl").write_text("{}\n")
    assert probe(objects.Source(url=f"{tmp_path}/in/*.jsonl")).endswith("a.jsonl is there")

    new = iceberg.Destination(catalog=catalog, table="shop.orders", columns={"id": "long"})
    assert probe(new) == "there is no table yet; it will be created"
    with pytest.raises(ConduitError, match="there is no Iceberg table"):
        probe(iceberg.Source(catalog=catalog, table="shop.orders"))
    new.open()
    new.teardown()
    assert probe(new) == "the table has the columns id"
    assert probe(iceberg.Source(catalog=catalog, table="shop.orders")).startswith("the table is there")


def test_an_http_server_is_asked_and_given_nothing() -> None:
    def respond(request: PeerRequest) -> PeerAnswer:
        status = {"/orders": 200, "/closed": 401, "/ill": 503}.get(request.path, 404)
        return PeerAnswer([{"id": 1}] if request.method == "GET" else b"", status)

    with HttpPeer(respond).serving() as peer:
        assert "answers 200 with" in probe(http.Source(url=f"{peer.url}/orders"))
        assert "404 to HEAD; nothing was sent" in probe(http.Destination(url=f"{peer.url}/new"))
        for failing in (http.Source, http.Destination):
            with pytest.raises(ConduitError, match="answers 401") as raised:
                probe(failing(url=f"{peer.url}/closed"))
            assert raised.value.suggestion == "check the credentials"
            with pytest.raises(ConduitError, match="answers 503"):
                probe(failing(url=f"{peer.url}/ill"))
    assert {request.method for request in peer.requests} == {"GET", "HEAD"}
