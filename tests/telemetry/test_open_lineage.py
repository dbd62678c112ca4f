"""What `--observe openlineage` sends to a backend: an event at the start and the end of each run, with datasets."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conduit_connectors import (
    delta,
    file,
    http,
    iceberg,
    journal,
    kafka,
    mqtt,
    mysql,
    nats,
    objects,
    opensearch,
    postgres,
    postgres_polling,
    rabbitmq,
    redis_streams,
    spark,
    sqlalchemy,
    sqlite,
    sqlite_queue,
    sqs,
    websocket,
)
from http_peer import HttpPeer, PeerAnswer, PeerRequest, free_port
from jsonschema import Draft202012Validator, FormatChecker
from warm_python import run_command

from conduit_py.sdk import Dataset, registry
from conduit_py.sdk.plugin import Connector

SECRET = "the-content-of-a-record"

TEXT = {"type": "string", "minLength": 1}
FACETS = {"type": "object", "additionalProperties": {"type": "object", "required": ["_producer", "_schemaURL"]}}
DATASETS = {
    "type": "array",
    "items": {"type": "object", "required": ["namespace", "name"], "properties": {"namespace": TEXT, "name": TEXT}},
}
EVENT = {
    "type": "object",
    "required": ["run", "job", "eventTime", "producer", "schemaURL"],
    "properties": {
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "eventTime": {"type": "string", "format": "date-time"},
        "producer": {"type": "string", "format": "uri"},
        "run": {
            "type": "object",
            "required": ["runId"],
            "properties": {"runId": {"type": "string", "format": "uuid"}, "facets": FACETS},
        },
        "job": {
            "type": "object",
            "required": ["namespace", "name"],
            "properties": {"namespace": TEXT, "name": TEXT, "facets": FACETS},
        },
        "inputs": DATASETS,
        "outputs": DATASETS,
    },
}
"""What the specification of OpenLineage requires of an event; the client has no schema of it."""


class Backend:
    """Takes events, each of which must be valid."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.received = b""
        self.peer = HttpPeer(self._take)

    @property
    def environment(self) -> dict[str, str]:
        return {"OPENLINEAGE_URL": self.peer.url, "OPENLINEAGE_NAMESPACE": "shop"}

    def _take(self, request: PeerRequest) -> PeerAnswer:
        self.received += request.body
        self.events.append(json.loads(request.body))
        return PeerAnswer({}, 201)


@pytest.fixture
def backend() -> Iterator[Backend]:
    made = Backend()
    with made.peer.serving():
        yield made
    for event in made.events:
        Draft202012Validator(EVENT, format_checker=FormatChecker()).validate(event)


def run(folder: Path, environment: dict[str, str], refuse: str = "False") -> "subprocess.CompletedProcess[str]":
    (folder / "in.jsonl").write_text("".join(f'{{"n":{n},"text":"{SECRET}"}}\n' for n in range(10)))
    (folder / "p.py").write_text(f"""
from conduit_connectors import file
from conduit_py import Pipeline, processor

@processor
def mark(row: dict) -> dict:
    if {refuse}:
        raise ValueError(row["text"])
    return row

pipeline = Pipeline(
    "p", sources={{"in": file.Source(path="in.jsonl", format="json")}}, processors=[mark],
    destinations={{"out": file.Destination(path="out.jsonl", format="json")}},
)
""")
    return run_command("run", "p.py", "--observe", "openlineage", cwd=folder, env=os.environ | environment)


def test_a_run_that_completes_sends_start_and_complete(tmp_path: Path, backend: Backend) -> None:
    ran = run(tmp_path, backend.environment)

    assert ran.returncode == 0, ran.stderr
    assert [event["eventType"] for event in backend.events] == ["START", "COMPLETE"]
    assert len({event["run"]["runId"] for event in backend.events}) == 1
    for event in backend.events:
        assert (event["job"]["namespace"], event["job"]["name"]) == ("shop", "p")
        assert event["job"]["facets"]["jobType"]["processingType"] == "BATCH"
        assert [(each["namespace"], each["name"]) for each in event["inputs"]] == [("file", str(tmp_path / "in.jsonl"))]
        assert [(each["namespace"], each["name"]) for each in event["outputs"]] == [
            ("file", str(tmp_path / "out.jsonl"))
        ]


def test_a_run_that_fails_sends_fail_with_the_code_and_nothing_of_the_record(tmp_path: Path, backend: Backend) -> None:
    ran = run(tmp_path, backend.environment, refuse="True")

    assert ran.returncode == 1
    assert [event["eventType"] for event in backend.events] == ["START", "FAIL"]
    assert backend.events[1]["run"]["facets"]["errorMessage"]["message"] == "dead_letter.not_allowed in mark"
    assert SECRET.encode() not in backend.received


def test_without_a_backend_everything_is_delivered(tmp_path: Path) -> None:
    ran = run(tmp_path, {"OPENLINEAGE_URL": f"http://127.0.0.1:{free_port()}"})

    assert ran.returncode == 0, ran.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 10


def test_a_backend_that_never_answers_holds_up_nothing(tmp_path: Path) -> None:
    def never(_: object) -> PeerAnswer:
        time.sleep(3600)
        return PeerAnswer()

    with HttpPeer(never).serving() as peer:
        ran = run(tmp_path, {"OPENLINEAGE_URL": peer.url})

    # It has ended, and the backend still has not answered: that takes an hour.
    assert ran.returncode == 0, ran.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 10


NAMELESS = {
    *("source clock", "source dlt", "source generator", "source memory", "source singer", "source stdio"),
    *("source webhook", "destination log", "destination memory", "destination spark.sink", "destination stdio"),
}
"""They make their records, or have them from a program or a client that only it knows."""
CATALOG = {"type": "rest", "uri": "https://user:s3cret@lake:8181/api?token=s3cret"}
PG, MARIA = "postgresql://user:s3cret@db:5433/shop?sslmode=require", "mysql://user:s3cret@maria/shop"


@pytest.mark.parametrize(
    ("connector", "datasets"),
    [
        (file.Source(path="/data/in.jsonl", format="json"), [("file", "/data/in.jsonl")]),
        (postgres.Source(url=PG, slot="s"), [("postgres://db:5433", "shop")]),
        (
            postgres.Source(url=PG, slot="s", tables=["orders", "sales.items"]),
            [("postgres://db:5433", "shop.public.orders"), ("postgres://db:5433", "shop.sales.items")],
        ),
        (postgres.Destination(url="postgresql://db/shop", table="t"), [("postgres://db:5432", "shop.public.t")]),
        (postgres_polling.Source(url=PG, table="t", column="id"), [("postgres://db:5433", "shop.public.t")]),
        (mysql.Source(url=MARIA, server_id=7, tables=["shop.orders"]), [("mysql://maria:3306", "shop.orders")]),
        (mysql.Destination(url=MARIA, table="orders"), [("mysql://maria:3306", "shop.orders")]),
        (kafka.Source(servers="a:9092,b:9092", topics=["x", "y"]), [("kafka://a:9092", "x"), ("kafka://a:9092", "y")]),
        (kafka.Destination(servers="a:9092", topic="x"), [("kafka://a:9092", "x")]),
        (objects.Source(url="s3://bucket/in/*.jsonl", format="json"), [("s3://bucket", "in/*.jsonl")]),
        (objects.Destination(url="s3://bucket/out", format="json"), [("s3://bucket", "out")]),
        (delta.Destination(path="s3://lake/orders", columns={"n": "long"}), [("s3://lake", "orders")]),
        (delta.Source(path="/lake/orders"), [("file", "/lake/orders")]),
        (sqlite.Source(path="/data/shop.db", table="orders"), [("sqlite:///data/shop.db", "orders")]),
        (sqlalchemy.Source(url=f"{PG}", table="t", column="id"), [("postgres://db:5433", "shop.public.t")]),
        (
            sqlalchemy.Destination(url="mysql+pymysql://user:s3cret@maria/shop", table="t"),
            [("mysql://maria:3306", "shop.t")],
        ),
        (sqlalchemy.Source(url="sqlite:////data/a.db", table="t", column="id"), [("sqlite:///data/a.db", "t")]),
        (
            spark.Jdbc(url="jdbc:postgresql://db/shop?password=s3cret", table="t"),
            [("postgres://db:5432", "shop.public.t")],
        ),
        (spark.Source(format="parquet", path="s3://lake/orders", stage="/data/stage"), [("s3://lake", "orders")]),
        (iceberg.Source(table="shop.orders", catalog=CATALOG), [("https://lake:8181/api", "shop.orders")]),
        (nats.Source(url="nats://user:s3cret@a:4223,nats://b", stream="orders"), [("nats://a:4223", "orders")]),
        (rabbitmq.Source(url="amqps://user:s3cret@mq/%2F", queue="orders"), [("amqps://mq:5671", "orders")]),
        (rabbitmq.Destination(url="amqp://mq", exchange="orders"), [("amqp://mq:5672", "orders")]),
        (
            mqtt.Source(url="mqtt://user:s3cret@mq", client_id="c", topics=["a", "b/#"]),
            [("mqtt://mq:1883", "a"), ("mqtt://mq:1883", "b/#")],
        ),
        (mqtt.Destination(url="mqtts://mq", topic="a"), [("mqtts://mq:8883", "a")]),
        (redis_streams.Source(url="redis://:s3cret@db/0", stream="orders"), [("redis://db:6379", "orders")]),
        (sqs.Destination(url="https://sqs.eu.amazonaws.com/1/orders"), [("https://sqs.eu.amazonaws.com", "1/orders")]),
        (http.Source(url="https://shop.local/orders?token=s3cret"), [("https://shop.local", "orders")]),
        (http.Destination(url="https://shop.local/orders"), [("https://shop.local", "orders")]),
        (websocket.Source(url="wss://shop.local/feed?token=s3cret"), [("wss://shop.local", "feed")]),
        (
            opensearch.Destination(url="https://search.local:9200", index="orders"),
            [("https://search.local:9200", "orders")],
        ),
        (journal.Source(path="/data/journal"), [("file", "/data/journal")]),
        (sqlite_queue.Destination(path="/data/queue.db"), [("file", "/data/queue.db")]),
    ],
)
def test_connectors_name_datasets_without_secrets(connector: Connector[Any], datasets: list[tuple[str, str]]) -> None:
    named = connector.datasets()

    assert list(named) == [Dataset(*each) for each in datasets]
    assert "s3cret" not in str(named)


def test_every_connector_of_a_place_names_it() -> None:
    plugins = {
        f"{kind} {name}": registry.load_plugin(kind, name)
        for kind in ("source", "destination")
        for name, entry in registry.installed(kind).items()
        if entry.module.startswith("conduit_connectors.")
    }
    default = (Connector.datasets, Connector.data_file)
    nameless = {name for name, plugin in plugins.items() if (plugin.datasets, plugin.data_file) == default}

    assert nameless == NAMELESS
