"""MQTT with a real Mosquitto: the destination, the session behind the source, and both while it is killed."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import paho.mqtt.client as paho
import pytest
import trio
from breakable_relay import BreakableRelay
from broker_kills import COUNT, ReadNumbers, in_first_order, write_through_a_kill, writing_to
from broker_servers import MosquittoServer
from conduit_connectors import mqtt
from conduit_connectors.mqtt.source import MqttQueue, SourceOptions
from connector_examples import load_example, run_until
from direct_writes import write_records
from paho.mqtt.enums import CallbackAPIVersion
from pydantic import SecretStr
from waiting import until

import conduit_py
from conduit_py.record import Operation, Payload, Record
from conduit_py.sdk import FatalError, TransientError
from conduit_py.testing import destination_acceptance, source_acceptance
from conduit_py.testing.connector_driver import batch_of
from conduit_py.testing.server_process import free_port


class Subscriber:
    """Another client of the broker, which notes what it is sent."""

    def __init__(self, server: MosquittoServer, topic: str, *, topic_to_send: str | None = None) -> None:
        self._changed = threading.Condition()
        self._subscribed = False
        self._messages: list[Any] = []
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.on_message = self._note
        self._client.on_subscribe = self._begin
        self._client.connect("127.0.0.1", server.port)
        self._client.loop_start()
        self._topic = topic_to_send or topic
        self._client.subscribe(topic, 1)
        self._wait(lambda: self._subscribed)

    def messages(self) -> list[Any]:
        """All messages that were published before this call: one of our own follows them."""
        self._client.publish(self._topic, b"mark", 1)
        self._wait(lambda: self._messages and self._messages[-1].payload == b"mark")
        self._messages = [each for each in self._messages if each.payload != b"mark"]
        return self._messages

    def send(self, bodies: list[bytes], qos: int = 1) -> None:
        for body in bodies:
            self._client.publish(self._topic, body, qos).wait_for_publish(300)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _wait(self, condition: Callable[[], Any]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, 300)

    def _begin(self, *_: Any) -> None:
        with self._changed:
            self._subscribed = True
            self._changed.notify_all()

    def _note(self, _client: Any, _data: Any, message: Any) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()


@pytest.fixture
def subscriber(mosquitto: MosquittoServer, queue_name: str) -> Iterator[Subscriber]:
    made = Subscriber(mosquitto, queue_name)
    yield made
    made.close()


def topic_to_fill(
    mosquitto: MosquittoServer, subscriber: Subscriber, queue_name: str
) -> tuple[mqtt.Destination, Callable[[], list[Any]]]:
    def stored() -> list[Any]:
        return [msgspec.json.decode(each.payload) for each in subscriber.messages()]

    return mqtt.Destination(url=mosquitto.url, topic=queue_name), stored


def five_messages(mosquitto: MosquittoServer, subscriber: Subscriber, queue_name: str) -> mqtt.Source:
    # The broker keeps messages from the first start of a session on.
    opened(mosquitto, queue_name).close()
    subscriber.send([b"%d" % number for number in range(5)])
    return mqtt.Source(url=mosquitto.url, topics=[queue_name], client_id=queue_name)


TestSource = source_acceptance(five_messages, records=5)
TestDestination = destination_acceptance(topic_to_fill, refused=Record(operation=Operation.DELETE, key=b"k"))


def test_a_message_has_the_metadata_as_properties_and_the_delivery_key(
    mosquitto: MosquittoServer, subscriber: Subscriber, queue_name: str
) -> None:
    records = [
        Record(b"1", payload=Payload(after=b"raw"), metadata={"trace": "ä", "other": "x"}),
        Record(b"2", payload=Payload(after=b"long"), metadata={"trace": "x" * 70_000}),
        *[Record(b"%d" % number, payload=Payload(after=b"%d" % number)) for number in range(50)],
    ]
    refused = write_records(mqtt.Destination(url=mosquitto.url, topic=queue_name, metadata=["trace"]), *records)

    first, *others = subscriber.messages()
    assert (first.payload, first.qos) == (b"raw", 1)
    assert first.properties.UserProperty == [
        ("delivery-key", batch_of(records).delivery_key(0).hex()), ("trace", "ä")
    ]  # fmt: skip
    # More than the broker takes at a time.
    assert [each.payload for each in others] == [b"%d" % number for number in range(50)]
    assert refused == {1: "has metadata of more than 65535 bytes, which cannot be a property"}


def test_what_is_wrong_is_said_and_whether_waiting_helps(mosquitto: MosquittoServer, queue_name: str) -> None:
    for user in ("me:hush-hush-4711@", ""):
        with pytest.raises(FatalError, match="refuses the connection: Not authorized") as raised:
            write_records(mqtt.Destination(url=f"mqtt://{user}{mosquitto.guarded_address}", topic="t"))
        assert "hush-hush" not in str(raised.value)
        assert str(raised.value.suggestion).startswith("check the user and the password in `url`")
    right = f"mqtt://me:{mosquitto.password}@{mosquitto.guarded_address}"
    assert mqtt.Destination(url=right, topic="t").probe() == "the broker answers"
    assert mqtt.Source(url=right, topics=["t"], client_id="c").probe() == "the broker answers"
    with pytest.raises(TransientError, match="cannot be reached"):
        write_records(mqtt.Destination(url=f"mqtt://127.0.0.1:{free_port()}", topic="t"))
    with pytest.raises(FatalError, match="certificates for MQTT cannot be used"):
        write_records(mqtt.Destination(url="mqtts://localhost", topic="t", ca_file="/nowhere/ca.pem"))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"url": "http://host"}, "must be a URL as mqtt://host:port"),
        ({"topics": ["a/b#"]}, "in which + is a whole level"),
        ({"messages": "uri"}, 'must be "record"'),
        ({"ca_file": "x"}, "need a url that begins with mqtts://"),
    ],
)
def test_options_that_cannot_work_are_problems(wrong: dict[str, Any], why: str) -> None:
    options = {"url": "mqtt://host", "topics": ["t"], "client_id": "c"} | wrong
    [problem] = mqtt.Source(**options).problems

    assert why in problem.message


def opened(server: MosquittoServer, topic: str, **options: Any) -> Any:
    url = SecretStr(server.url)
    queue = MqttQueue(SourceOptions(url=url, topics=[topic], client_id=topic, wait_seconds=0.3, **options))
    queue.open()
    return queue


def received(queue: Any, count: int, lease_seconds: float = 60.0) -> list[Any]:
    found: list[Any] = []
    for _ in range(200):
        if len(found) >= count:
            break
        found += queue.receive(count - len(found), lease_seconds)
    return found


def test_the_broker_keeps_what_is_not_acked_and_what_comes_meanwhile(
    mosquitto: MosquittoServer, subscriber: Subscriber, queue_name: str
) -> None:
    first = opened(mosquitto, queue_name, receive_max=3)
    subscriber.send([b"%d" % number for number in range(5)])
    held = received(first, 3)
    # It has sent as many as it may.
    assert first.receive(10, 60.0) == []
    first.ack(held[:2])
    held += received(first, 2)
    assert [each.body for each in held] == [b"%d" % number for number in range(5)]
    assert held[0].attributes == {"mqtt.topic": queue_name}
    first.extend(held[2], 60.0)
    first.close()
    subscriber.send([b"5"])

    second = opened(mosquitto, queue_name)
    again = received(second, 4)
    assert sorted(each.body for each in again) == [b"2", b"3", b"4", b"5"]
    assert {each.attempt for each in again if each.body != b"5"} == {2}
    second.ack(again)
    with pytest.raises(LookupError, match="not held any more"):
        second.extend(again[0], 60.0)
    second.close()

    third = opened(mosquitto, queue_name)
    assert third.receive(10, 60.0) == []
    third.close()


def test_a_lease_that_is_over_gives_the_message_again(
    mosquitto: MosquittoServer, subscriber: Subscriber, queue_name: str
) -> None:
    queue = opened(mosquitto, queue_name)
    subscriber.send([b"one"])
    [first] = received(queue, 1, 0.01)
    [again] = received(queue, 1)
    queue.ack([again])
    queue.close()

    assert (again.id, again.attempt) == (first.id, 2)


def test_a_flood_without_qos_waits_in_the_socket(
    mosquitto: MosquittoServer, subscriber: Subscriber, queue_name: str
) -> None:
    queue = opened(mosquitto, queue_name, receive_max=5)
    subscriber.send([b"%d" % number for number in range(200)], qos=0)
    found: list[Any] = []
    for _ in range(200):
        assert len(queue._arrived) <= 5
        found += queue.receive(3, 60.0)
        if len(found) >= 200:
            break
    queue.close()

    assert [each.body for each in found] == [b"%d" % number for number in range(200)]


async def test_the_example(mosquitto: MosquittoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    receive, send = load_example("mqtt", tmp_path, {'"mqtt://localhost:1883"': "url"}, url=mosquitto.url)
    out = tmp_path / "readings.jsonl"

    def lines() -> int:
        return len(out.read_text().splitlines()) if out.exists() else 0

    async with conduit_py.running(receive, state=tmp_path / "receiver"):
        # The session begins with the first start of the reader: what was published before is not for it.
        subscribed = Subscriber(mosquitto, "sensors/+/temperature", topic_to_send="sensors/attic/temperature")
        while not lines():
            await trio.to_thread.run_sync(subscribed.send, [b"{}"])
            await trio.sleep(0.05)
        await run_until(send, lambda: '"n":99,' in out.read_text(), state=tmp_path / "sender")
        subscribed.close()

    assert [number for number in range(100) if f'"n":{number},' not in out.read_text()] == []


class SavedThenKilled(NamedTuple):
    """Mosquitto acks a message before it is on its disk. So it is cut off, saves what it acked, and is killed then."""

    server: MosquittoServer
    relay: BreakableRelay

    def kill(self) -> None:
        self.relay.kill()
        saved = self.server.folder / "mosquitto.db"
        before = saved.stat().st_mtime_ns
        os.kill(self.server.pid, signal.SIGUSR1)
        deadline = time.monotonic() + 300
        while saved.stat().st_mtime_ns == before:
            assert time.monotonic() < deadline, "it does not save"
            time.sleep(0.01)
        self.server.kill()

    def start(self) -> None:
        self.server.start()
        self.relay.start()


async def test_killed_while_it_is_written_to_and_read_from(tmp_path: Path) -> None:
    with MosquittoServer.started() as server, BreakableRelay(server.port) as relay:
        # The session must be there before the first message: without it the broker drops what nobody wants.
        await trio.to_thread.run_sync(lambda: opened(server, "numbers").close())
        source = mqtt.Source(url=server.url, topics=["numbers"], client_id="numbers")
        reading = ReadNumbers(source, tmp_path, "at_least_once")
        writing = writing_to(mqtt.Destination(url=f"mqtt://127.0.0.1:{relay.port}", topic="numbers"), "at_least_once")
        mortal = SavedThenKilled(server, relay)
        written = await write_through_a_kill(mortal, writing, reading.numbers, tmp_path, beside=reading.pipeline)
        await until(lambda: len(in_first_order(reading.numbers())) == COUNT)

    assert sorted(in_first_order(written)) == list(range(COUNT))
