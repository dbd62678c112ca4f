"""A password changes in PostgreSQL and in its file while a server runs: the pipeline goes on with the new one."""

import json
import signal
from typing import TYPE_CHECKING

from postgres_changes import run_sql, slot_of

from conduit_py.testing.services import PostgresServer

if TYPE_CHECKING:
    from tests.server.conftest import Running, Server

PIPELINE = """
from conduit_connectors import file, postgres
from conduit_py import Pipeline, secret

url = "{url}".replace("tester@", "{role}:" + secret("file:./password") + "@")
orders = Pipeline(
    "orders",
    sources={{"shop": postgres.Source(url=url, slot="{role}", tables=["t"])}},
    destinations={{"out": file.Destination(path="out.jsonl", format="json")}},
    delivery="exactly_once",
)
"""


def arrived(server: "Server") -> list[int]:
    path = server.folder / "out.jsonl"
    return [json.loads(line)["id"] for line in path.read_text().splitlines()] if path.exists() else []


def until_arrived(server: "Server", running: "Running", count: int) -> None:
    running.until("orders", lambda _: len(arrived(server)) >= count)


def test_a_pipeline_goes_on_after_a_rotation_without_a_restart_of_the_server(
    server: "Server", postgres_server: PostgresServer, postgres: str
) -> None:
    role = slot_of(postgres)
    postgres_server.create_user(role, "first-4711")
    run_sql(
        postgres,
        *(
            f"ALTER ROLE {role} REPLICATION SUPERUSER",
            "CREATE TABLE t (id int PRIMARY KEY)",
            "INSERT INTO t VALUES (1)",
        ),
    )
    server.write("password", "first-4711\n")
    server.write("orders.py", PIPELINE.format(url=postgres, role=role))
    running = server.start()
    until_arrived(server, running, 1)

    # The open connections go on, so this is delivered with the old password.
    run_sql(postgres, f"ALTER ROLE {role} PASSWORD 'second-4711'", "INSERT INTO t VALUES (2)")
    until_arrived(server, running, 2)
    ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"
    run_sql(postgres, "INSERT INTO t VALUES (3)", ended)
    refused = running.until("orders", lambda shown: shown["status"] == "degraded")
    server.write("password", "second-4711\n")
    until_arrived(server, running, 3)
    run_sql(postgres, "INSERT INTO t VALUES (4)")
    until_arrived(server, running, 4)
    shown, alive = running.pipeline("orders"), running.process.poll() is None
    running.signal(signal.SIGTERM)
    ended_well = running.wait() == 0
    run_sql(postgres, f"DROP OWNED BY {role}", f"DROP ROLE {role}")

    assert "refuses the user" in refused["error"]["message"]
    assert (alive, ended_well, shown["status"], shown["definition"]) == (True, True, "running", None)
    assert arrived(server) == [1, 2, 3, 4]
    assert "4711" not in server.log()
