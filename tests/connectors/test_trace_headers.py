"""A record that comes with `traceparent` leaves with it: in headers of Kafka, HTTP and brokers, metadata in between."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx2
import nats as library
import pika
import pytest
import trio
from broker_servers import MosquittoServer, RabbitServer
from builders import batch_of
from conduit_connectors import http, kafka, memory, mqtt, nats, rabbitmq, redis_streams, sqs, webhook
from conduit_connectors.kafka.message import decode_headers, encode_headers
from conduit_connectors.message_content import MessageOptions, encode_messages
from direct_writes import write_records
from http_peer import HttpPeer, PeerAnswer, free_port
from kafka_topics import KafkaTopics
from queue_servers import sqs_client

from conduit_py import Destination, Pipeline, Source
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import DestinationConnector, Record, SourceConnector
from conduit_py.store.memory import MemoryStore

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "shop=1"}
FORGED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nX-Admin: yes"}


def record(metadata: dict[str, str]) -> Record:
    made = Record.of({"n": 1})
    made.metadata.update(metadata)
    return made


def test_headers_of_kafka_are_the_same_behind_a_pipeline() -> None:
    headers: list[tuple[str, Any]] = [(name, value.encode()) for name, value in TRACE.items()]

    assert encode_headers(decode_headers(headers)) == headers


def test_a_record_of_another_system_keeps_its_trace_in_kafka() -> None:
    assert dict(encode_headers(TRACE)) == {name: value.encode() for name, value in TRACE.items()}
    assert encode_headers(FORGED) == []


def test_brokers_get_the_trace_as_attributes() -> None:
    messages, _ = encode_messages(batch_of(record(TRACE), record(FORGED), record({})), MessageOptions())

    assert [messages[index].attributes for index in range(3)] == [TRACE, {}, {}]


async def test_a_message_keeps_its_trace_from_nats_through_kafka_to_nats(
    nats_server: str, queue_name: str, topics: KafkaTopics
) -> None:
    before, topic, after = f"{queue_name}-before", topics.create(), f"{queue_name}-after"
    await trio.to_thread.run_sync(asyncio.run, _publish(nats_server, before, after))
    to_kafka = Pipeline(
        "to-kafka",
        sources=[Source("in", nats.Source(url=nats_server, stream=before))],
        destinations=[Destination("out", kafka.Destination(servers=topics.address, topic=topic))],
    )
    back = Pipeline(
        "back",
        sources=[Source("in", kafka.Source(servers=topics.address, topics=[topic], tail=False))],
        destinations=[Destination("out", nats.Destination(url=nats_server, stream=after, subject=after))],
    )
    supervisor = Supervisor(to_kafka, MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        with trio.fail_after(300):
            arrived = await trio.to_thread.run_sync(_wait_for_messages, topics, topic)
        supervisor.stop()
    await Supervisor(back, MemoryStore()).run()

    assert dict(arrived[0].headers() or ()) == {name: value.encode() for name, value in TRACE.items()}
    stored = await trio.to_thread.run_sync(asyncio.run, _first_of(nats_server, after))
    assert {name: stored.headers.get(name) for name in TRACE} == TRACE


def _wait_for_messages(topics: KafkaTopics, topic: str) -> list[Any]:
    while not (found := topics.messages(topic)):
        time.sleep(0.05)
    return found


async def _publish(url: str, *streams: str) -> None:
    """Create the streams, and publish a message with a trace to the first."""
    client = await library.connect(url)
    for each in streams:
        await client.jetstream(timeout=300).add_stream(name=each, subjects=[each])
    await client.jetstream(timeout=300).publish(streams[0], b"hello", headers=TRACE)
    await client.close()


async def _first_of(url: str, stream: str) -> Any:
    client = await library.connect(url)
    stored = await client.jetstream(timeout=300).get_msg(stream, 1)
    await client.close()
    return stored


Ends = tuple[DestinationConnector[Any], SourceConnector[Any]]


def rabbitmq_ends(request: pytest.FixtureRequest, name: str) -> Ends:
    server: RabbitServer = request.getfixturevalue("rabbitmq")
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    connection.channel().queue_declare(name, durable=True)
    connection.close()
    return rabbitmq.Destination(url=server.url, routing_key=name), rabbitmq.Source(url=server.url, queue=name)


def mqtt_ends(request: pytest.FixtureRequest, name: str) -> Ends:
    server: MosquittoServer = request.getfixturevalue("mosquitto")
    return mqtt.Destination(url=server.url, topic=name), mqtt.Source(url=server.url, client_id=name, topics=[name])


def redis_ends(request: pytest.FixtureRequest, name: str) -> Ends:
    server: str = request.getfixturevalue("redis_server")
    return redis_streams.Destination(url=server, stream=name), redis_streams.Source(url=server, stream=name)


def sqs_ends(request: pytest.FixtureRequest, name: str) -> Ends:
    endpoint: str = request.getfixturevalue("sqs_server")
    options: Any = {"endpoint": endpoint, "access_key": "a", "secret_key": "not-a-secret", "region": "eu-west-1"}
    options["url"] = sqs_client(endpoint).create_queue(QueueName=name)["QueueUrl"]
    return sqs.Destination(**options), sqs.Source(**options)


@pytest.mark.parametrize("ends", [rabbitmq_ends, mqtt_ends, redis_ends, sqs_ends])
async def test_a_broker_keeps_the_trace_from_a_destination_to_a_source(
    ends: Callable[[pytest.FixtureRequest, str], Ends], request: pytest.FixtureRequest, queue_name: str
) -> None:
    destination, source = await trio.to_thread.run_sync(ends, request, queue_name)
    arrived: list[Record] = []
    pipeline = Pipeline("p", sources={"in": source}, destinations={"out": memory.Destination(into=arrived)})
    supervisor = Supervisor(pipeline, MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        with trio.fail_after(300):
            # What is published before a client of MQTT has subscribed is not for it.
            while not arrived:
                await trio.to_thread.run_sync(write_records, destination, record(TRACE))
                await trio.sleep(0.1)
        supervisor.stop()

    assert {name: arrived[0].metadata.get(name) for name in TRACE} == TRACE


async def test_a_webhook_passes_its_trace_on_to_an_http_destination() -> None:
    port = free_port()
    with HttpPeer(lambda request: PeerAnswer(status=201)).serving() as peer:
        pipeline = Pipeline(
            "p",
            sources=[Source("in", webhook.Source(listen=f"127.0.0.1:{port}"))],
            destinations=[Destination("out", http.Destination(url=f"{peer.url}/in"))],
        )
        supervisor = Supervisor(pipeline, MemoryStore())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await _post(f"http://127.0.0.1:{port}/", TRACE)
            supervisor.stop()

    [request] = peer.requests
    assert {name: request.headers.get(name) for name in TRACE} == TRACE


async def _post(url: str, headers: dict[str, str]) -> None:
    with trio.fail_after(300):
        async with httpx2.AsyncClient() as client:
            while True:
                try:
                    answer = await client.post(url, json={"n": 1}, headers=headers)
                    assert answer.status_code < 300, answer.text
                    return
                except httpx2.ConnectError:
                    await trio.sleep(0.05)
