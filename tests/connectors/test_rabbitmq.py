"""RabbitMQ, a real one: the destination, the leased queue behind the source, and both while it is killed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pika
import pytest
import trio
from broker_kills import ReadNumbers, in_first_order, write_through_a_kill, writing_to
from broker_servers import RabbitServer
from conduit_connectors import rabbitmq
from connector_examples import load_example, run_until
from direct_writes import write_records
from pydantic import SecretStr
from queue_harness import drained

from conduit_py.record import Operation, Payload, Record
from conduit_py.sdk import FatalError, TransientError
from conduit_py.testing import destination_acceptance, source_acceptance
from conduit_py.testing.connector_driver import batch_of
from conduit_py.testing.server_process import free_port


class RabbitClient:
    """Another client of the server, which makes queues and looks into them."""

    def __init__(self, url: str) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel = self._connection.channel()

    def create(self, queue: str, **arguments: Any) -> str:
        self._channel.queue_declare(queue, durable=True, arguments=arguments)
        return queue

    def send(self, queue: str, bodies: list[bytes], **properties: Any) -> None:
        for body in bodies:
            self._channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties))

    def look(self, queue: str) -> list[tuple[Any, bytes]]:
        """All messages in their order. They stay there."""
        channel = self._connection.channel()
        found = []
        while True:
            method, properties, body = channel.basic_get(queue)
            if method is None:
                break
            found.append((properties, body))
        channel.close()
        return found

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def client(rabbitmq: RabbitServer) -> Iterator[RabbitClient]:
    made = RabbitClient(rabbitmq.url)
    yield made
    made.close()


def make(server: RabbitServer, queue: str, **options: Any) -> rabbitmq.Destination:
    return rabbitmq.Destination(url=server.url, routing_key=queue, **options)


def queue_to_fill(
    rabbitmq: RabbitServer, client: RabbitClient, queue_name: str
) -> tuple[rabbitmq.Destination, Callable[[], list[Any]]]:
    client.create(queue_name)
    return make(rabbitmq, queue_name), lambda: [msgspec.json.decode(body) for _, body in client.look(queue_name)]


def five_messages(rabbitmq: RabbitServer, client: RabbitClient, queue_name: str) -> rabbitmq.Source:
    client.create(queue_name)
    for number in range(5):
        client.send(queue_name, [b"%d" % number], message_id=f"m-{number}")
    return rabbitmq_source(rabbitmq, queue_name, unique_ids=True)


TestSource = source_acceptance(five_messages, records=5)
TestDestination = destination_acceptance(queue_to_fill, refused=Record(operation=Operation.DELETE, key=b"k"))


def test_messages_are_persistent_and_named_and_have_headers(
    rabbitmq: RabbitServer, client: RabbitClient, queue_name: str
) -> None:
    client.create(queue_name)
    record = Record(b"1", payload=Payload(after=b"raw"), metadata={"trace": "ä", "other": "x"})
    large = Record(b"2", payload=Payload(after=b"x" * 101))
    refused = write_records(make(rabbitmq, queue_name, metadata=["trace"], size_max=100), record, large)

    [(properties, body)] = client.look(queue_name)
    assert (body, properties.delivery_mode, properties.headers) == (b"raw", 2, {"trace": "ä"})
    assert properties.message_id == batch_of([record]).delivery_key(0).hex()
    assert refused == {1: "has 101 bytes, and a message may have 100"}


def test_what_no_queue_takes_is_refused_and_a_full_queue_is_waited_for(
    rabbitmq: RabbitServer, client: RabbitClient, queue_name: str
) -> None:
    records = [Record(b"%d" % number, payload=Payload(after=b"v")) for number in range(3)]
    unbound = rabbitmq_destination(rabbitmq, exchange="amq.direct", routing_key=queue_name)
    assert write_records(unbound, *records) == dict.fromkeys(
        range(3), f"no queue of the exchange 'amq.direct' takes '{queue_name}': NO_ROUTE"
    )
    client.create(queue_name, **{"x-max-length": 1, "x-overflow": "reject-publish"})
    with pytest.raises(TransientError, match=r"rejects \d messages"):
        write_records(make(rabbitmq, queue_name), *records)


def rabbitmq_destination(server: RabbitServer, **options: Any) -> rabbitmq.Destination:
    return rabbitmq.Destination(url=server.url, **options)


def test_what_is_wrong_is_said_and_whether_waiting_helps(rabbitmq: RabbitServer, queue_name: str) -> None:
    with pytest.raises(FatalError, match="no queue"):
        write_records(make(rabbitmq, queue_name))
    with pytest.raises(FatalError, match="no exchange"):
        write_records(rabbitmq_destination(rabbitmq, exchange=queue_name))
    for wrong in ("guest:hush-hush-4711@", "nobody:hush-hush-4711@"):
        with pytest.raises(FatalError, match="refuses the user") as raised:
            write_records(rabbitmq_destination_at(rabbitmq.url.replace("guest:guest@", wrong)))
        assert "hush-hush" not in str(raised.value)
    with pytest.raises(FatalError, match="no-such-host"):
        write_records(rabbitmq_destination_at(rabbitmq.url.replace("%2F", "no-such-host")))
    with pytest.raises(TransientError, match="cannot be reached"):
        write_records(rabbitmq_destination_at(f"amqp://127.0.0.1:{free_port()}/%2F"))
    with pytest.raises(FatalError, match="certificates for RabbitMQ cannot be used"):
        write_records(rabbitmq_destination_at("amqps://localhost/%2F", ca_file="/nowhere/ca.pem"))


def rabbitmq_destination_at(url: str, **options: Any) -> rabbitmq.Destination:
    return rabbitmq.Destination(url=url, routing_key="q", **options)


def opened(server: RabbitServer, queue: str, **options: Any) -> Any:
    found = rabbitmq.RabbitQueue(
        rabbitmq.SourceOptions(url=SecretStr(server.url), queue=queue, wait_seconds=0.3, **options)
    )
    found.open()
    return found


def test_messages_are_leased_shared_acked_and_given_back(
    rabbitmq: RabbitServer, client: RabbitClient, queue_name: str
) -> None:
    client.create(queue_name)
    client.send(queue_name, [b"%d" % number for number in range(25)], headers={"trace": "abc", "table": {"a": 1}})
    one, other = opened(rabbitmq, queue_name), opened(rabbitmq, queue_name)
    # A worker takes what it asked for, and leaves the rest to others.
    taken = drained(one, 5, 60.0, at_once=5)
    rest = drained(other, 20, 60.0)
    assert [each.body for each in taken + rest] == [b"%d" % number for number in range(25)]
    assert taken[0].attributes == {
        "rabbitmq.exchange": "", "rabbitmq.routing_key": queue_name, "trace": "abc"
    }  # fmt: skip
    one.ack(taken[:4])
    one.ack(taken[:4])
    one.extend(taken[4], 60.0)
    # Those of the other are not extended any further.
    for each in rest:
        other.extend(each, 0.0)
    again = drained(one, 20, 60.0)
    assert sorted(each.body for each in again) == sorted(each.body for each in rest)
    assert {each.attempt for each in again} == {2}
    with pytest.raises(LookupError, match="not held any more"):
        other.extend(rest[0], 60.0)
    other.ack(rest)
    one.ack([*again, taken[4]])
    assert one.receive(10, 60.0) == []
    one.close()
    other.close()
    assert client.look(queue_name) == []


def test_with_unique_ids_a_message_has_its_id_and_needs_one(
    rabbitmq: RabbitServer, client: RabbitClient, queue_name: str
) -> None:
    client.create(queue_name)
    client.send(queue_name, [b"named"], message_id="m-1")
    queue = opened(rabbitmq, queue_name, unique_ids=True)
    [named] = queue.receive(1, 60.0)
    client.send(queue_name, [b"nameless"])
    with pytest.raises(FatalError, match="has no message_id"):
        queue.receive(1, 60.0)
    queue.close()

    assert named.id == "m-1"
    assert len(client.look(queue_name)) == 2
    assert rabbitmq_source(rabbitmq, queue_name).others_may_repeat
    assert not rabbitmq_source(rabbitmq, queue_name, unique_ids=True).others_may_repeat


def test_probes_look_and_change_nothing(rabbitmq: RabbitServer, client: RabbitClient, queue_name: str) -> None:
    client.create(queue_name)
    client.send(queue_name, [b"one", b"two"])

    assert rabbitmq_source(rabbitmq, queue_name).probe() == "the queue has 2 messages"
    assert make(rabbitmq, queue_name).probe() == "the queue is there"
    assert rabbitmq_destination(rabbitmq, exchange="amq.fanout").probe() == "the exchange amq.fanout is there"
    with pytest.raises(FatalError, match="no queue"):
        rabbitmq_source(rabbitmq, f"{queue_name}-2").probe()
    assert len(client.look(queue_name)) == 2


def rabbitmq_source(server: RabbitServer, queue: str, **options: Any) -> rabbitmq.Source:
    return rabbitmq.Source(url=server.url, queue=queue, **options)


async def test_the_example(
    rabbitmq: RabbitServer, client: RabbitClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    client.create("orders")
    send, receive = load_example("rabbitmq", tmp_path, {'"amqp://guest:guest@localhost/%2F"': "url"}, url=rabbitmq.url)

    def lines() -> int:
        out = tmp_path / "orders.jsonl"
        return len(out.read_text().splitlines()) if out.exists() else 0

    await run_until(send, lambda: len(client.look("orders")) == 100, state=tmp_path / "state")
    await run_until(receive, lambda: lines() == 100, state=tmp_path / "state")


async def test_killed_while_it_is_written_to_and_read_from(rabbitmq: RabbitServer, tmp_path: Path) -> None:
    queue = "numbers"
    client = await trio.to_thread.run_sync(RabbitClient, rabbitmq.url)
    client.create(queue)
    client.close()

    reading = ReadNumbers(rabbitmq_source(rabbitmq, queue, unique_ids=True), tmp_path, "exactly_once")
    writing = writing_to(make(rabbitmq, queue), "at_least_once")
    written = await write_through_a_kill(rabbitmq, writing, reading.numbers, tmp_path, beside=reading.pipeline)

    # What was published twice has the same message_id, so that its content is there once.
    assert sorted(written) == in_first_order(sorted(written)) == list(range(200))
