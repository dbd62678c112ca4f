"""From Kafka through a registry into PostgreSQL, while the producer changes its schema. All three are real."""

from typing import Any

import pytest
import trio
from conduit_connectors import kafka
from conduit_connectors import postgres as postgres_connector
from conduit_processors import avro, schema
from kafka_topics import KafkaTopics
from postgres_changes import PATIENCE_SECONDS, run_sql
from registry_calls import new_subject, process, register

from conduit_py import DeadLetters, Destination, Pipeline, Processor, Source
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing.services import RegistryServer

FIELDS = [{"name": "id", "type": "long"}, {"name": "total", "type": "int"}]
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
LARGER = {"name": "total", "type": "long"}
VERSIONS = [FIELDS, [*FIELDS, NOTE], [FIELDS[0], LARGER, NOTE]]
"""What the producer writes with, one after another: a new field, then a type with more room."""
BATCHES: list[list[dict[str, Any]]] = [
    [{"id": 1, "total": 10}, {"id": 2, "total": 20}],
    [{"id": 1, "total": 11, "note": "paid"}, {"id": 3, "total": 30, "note": None}],
    [{"id": 2, "total": 2**40, "note": None}],
]


async def produce(number: int, topics: KafkaTopics, topic: str, url: str, subject: str) -> None:
    """Write the records of a version, each in the schema of that version, and a message that is not Avro."""
    register(url, subject, {"type": "record", "name": "order", "fields": VERSIONS[number]})
    made = await process(avro.Encode(url=url, subject=subject), *BATCHES[number])
    topics.fill(topic, [*(record.payload.after for record in made), b"no Avro"])


def copying(topics: KafkaTopics, topic: str, url: str, table: str, on_drift: Any) -> Pipeline:
    return Pipeline(
        "orders",
        sources=[Source("in", kafka.Source(servers=topics.address, topics=[topic]))],
        processors=[
            Processor("read", avro.Decode(url=url)),
            Processor("check", schema.Validate(against="inferred", sample_size=2, on_drift=on_drift)),
        ],
        destinations=[
            Destination(
                "table",
                postgres_connector.Destination(
                    url=table, table="orders", mode="upsert", key=["id"], on_new_field="add", on_type="widen"
                ),
            )
        ],
        dead_letters=DeadLetters.keep(),
        delivery="exactly_once",
    )


@pytest.mark.parametrize(
    ("on_drift", "rows", "kind", "letters", "drift"),
    [
        # The first record with the new field; those after it fit the schema that it led to.
        ("evolve", [(1, 11, "paid"), (2, 2**40, None), (3, 30, None)], "bigint", 3, 1),
        ("dead-letter", [(1, 10), (2, 20)], "integer", 6, 3),
    ],
)
async def test_an_evolving_topic_becomes_an_evolving_table_or_is_refused_and_counted(
    on_drift: str,
    rows: list[Any],
    kind: str,
    letters: int,
    drift: int,
    topics: KafkaTopics,
    registry_server: RegistryServer,
    postgres: str,
) -> None:
    topic, subject, url = topics.create(), new_subject(), registry_server.url
    run_sql(postgres, "CREATE TABLE orders (id bigint PRIMARY KEY, total integer)")
    supervisor = Supervisor(copying(topics, topic, url, postgres, on_drift), MemoryStore())
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            sent = 0
            for number, batch in enumerate(BATCHES):
                await produce(number, topics, topic, url, subject)
                sent += len(batch) + 1
                while supervisor.progress().acked < sent:
                    assert supervisor.state.status is not Status.DEGRADED, supervisor.state.error
                    await trio.sleep(0.05)
            supervisor.stop()

    progress = supervisor.progress()
    assert run_sql(postgres, "SELECT * FROM orders ORDER BY id") == rows
    assert run_sql(postgres, f"SELECT data_type FROM information_schema.columns WHERE {TOTAL}") == [(kind,)]
    assert progress.dead_letters == letters
    assert {meter.node: meter.drifted for meter in progress.nodes if meter.drifted} == {"check": drift}


TOTAL = "table_name = 'orders' AND column_name = 'total'"
