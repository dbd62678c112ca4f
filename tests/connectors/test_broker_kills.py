"""Brokers killed with `kill -9` while pipelines write to them and read from them, and started again: nothing is lost.

What is there twice, and in which order, is what each destination promises.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import nats as nats_library
import pytest
import redis
import trio
from breakable_relay import BreakableRelay
from broker_kills import COUNT, Delivery, ReadNumbers, in_first_order, write_through_a_kill, writing_to
from conduit_connectors import nats, redis_streams, sqs
from queue_servers import ElasticMqServer, NatsServer, RedisServer


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_redis(delivery: Delivery, tmp_path: Path) -> None:
    with RedisServer.started() as server:

        def stored() -> list[int]:
            with redis.Redis.from_url(server.url) as client:
                return [msgspec.json.decode(fields[b"body"])["n"] for _, fields in client.xrange("numbers")]

        pipeline = writing_to(redis_streams.Destination(url=server.url, stream="numbers"), delivery)
        written = await write_through_a_kill(server, pipeline, stored, tmp_path)

    assert in_first_order(written) == list(range(COUNT))
    assert delivery == "at_least_once" or len(written) == COUNT


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_nats(delivery: Delivery, tmp_path: Path) -> None:
    async def read(url: str) -> list[int]:
        client = await nats_library.connect(url)
        try:
            jetstream = client.jetstream(timeout=300)
            # As long as the slowest machine may need.
            await jetstream.add_stream(name="numbers", subjects=["numbers"], duplicate_window=3600)
            last = (await jetstream.stream_info("numbers")).state.last_seq
            messages = [await jetstream.get_msg("numbers", number) for number in range(1, last + 1)]
            return [msgspec.json.decode(each.data or b"")["n"] for each in messages]
        finally:
            await client.close()

    with NatsServer.started() as server:

        def stored() -> list[int]:
            return asyncio.run(read(server.url))

        await trio.to_thread.run_sync(stored)
        window = delivery == "exactly_once"
        connector = nats.Destination(url=server.url, stream="numbers", subject="numbers", window_covers_restarts=window)
        written = await write_through_a_kill(server, writing_to(connector, delivery), stored, tmp_path)

    # The server recognises what it has, whatever the pipeline was promised.
    assert written == list(range(COUNT))


async def test_redis_while_it_is_read_from(tmp_path: Path) -> None:
    with RedisServer.started() as server:
        reading = ReadNumbers(redis_streams.Source(url=server.url, stream="numbers"), tmp_path, "exactly_once")
        writing = writing_to(redis_streams.Destination(url=server.url, stream="numbers"), "exactly_once")
        read = await write_through_a_kill(server, writing, reading.numbers, tmp_path, beside=reading.pipeline)

    assert sorted(read) == list(range(COUNT))


async def test_nats_while_it_is_read_from(tmp_path: Path) -> None:
    async def create(url: str) -> None:
        client = await nats_library.connect(url)
        await client.jetstream(timeout=300).add_stream(name="numbers", subjects=["numbers"], duplicate_window=3600)
        await client.close()

    with NatsServer.started() as server:
        await trio.to_thread.run_sync(asyncio.run, create(server.url))
        source = nats.Source(url=server.url, stream="numbers", lease_seconds=5, commit_seconds=1)
        reading = ReadNumbers(source, tmp_path, "exactly_once")
        writing = writing_to(nats.Destination(url=server.url, stream="numbers", subject="numbers"), "at_least_once")
        read = await write_through_a_kill(server, writing, reading.numbers, tmp_path, beside=reading.pipeline)

    assert sorted(read) == list(range(COUNT))


KEYS: dict[str, Any] = {"access_key": "tester", "secret_key": "not-a-secret", "region": "eu-west-1"}


class KillableSqs:
    """An ElasticMQ with a queue. It is killed with `kill -9`, and the way to it is open again when it has the queue."""

    def __init__(self, server: ElasticMqServer, relay: BreakableRelay, name: str) -> None:
        self._server, self.relay, self._name = server, relay, name
        self._client = server.client()
        attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        self._url = self._client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        self._received: list[int] = []
        self.options: dict[str, Any] = {"url": self._url, "endpoint": f"http://127.0.0.1:{relay.port}", **KEYS}

    @classmethod
    @contextmanager
    def started(cls, name: str = "numbers") -> "Iterator[KillableSqs]":
        with ElasticMqServer.started() as server, BreakableRelay(server.port) as relay:
            made = cls(server, relay, name)
            yield made
            made._client.close()

    def kill(self) -> None:
        self._server.kill()
        self.relay.kill()

    def start(self) -> None:
        self._server.start()
        deadline = time.monotonic() + 300
        while not self._server.has_queue(self._name):
            assert time.monotonic() < deadline, self._server.log_tail()
            time.sleep(0.05)
        self.relay.start()

    def stored(self) -> list[int]:
        """What was taken from the queue so far, in this order."""
        while True:
            messages = self._client.receive_message(QueueUrl=self._url, MaxNumberOfMessages=10).get("Messages")
            if not messages:
                return self._received
            self._received += [msgspec.json.decode(each["Body"])["n"] for each in messages]
            handles = [each["ReceiptHandle"] for each in messages]
            entries = [{"Id": str(id), "ReceiptHandle": handle} for id, handle in enumerate(handles)]
            self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)


async def test_sqs(tmp_path: Path) -> None:
    with KillableSqs.started() as server:
        pipeline = writing_to(sqs.Destination(**server.options), "at_least_once")
        written = await write_through_a_kill(server, pipeline, server.stored, tmp_path)

    assert set(written) == set(range(COUNT))


async def test_sqs_with_a_fifo_queue(tmp_path: Path) -> None:
    with KillableSqs.started("numbers.fifo") as server:
        destination = sqs.Destination(**server.options, message_group="all", window_covers_restarts=True)
        written = await write_through_a_kill(server, writing_to(destination, "exactly_once"), server.stored, tmp_path)

    assert in_first_order(written) == list(range(COUNT))


async def test_sqs_while_it_is_read_from(tmp_path: Path) -> None:
    with KillableSqs.started() as server:
        source = sqs.Source(**server.options, wait_seconds=1, lease_seconds=5, commit_seconds=1)
        reading = ReadNumbers(source, tmp_path, "exactly_once")
        writing = writing_to(sqs.Destination(**server.options), "at_least_once")
        read = await write_through_a_kill(server, writing, reading.numbers, tmp_path, beside=reading.pipeline)

    assert set(read) == set(range(COUNT))


async def test_the_way_to_sqs_breaks_in_the_middle_of_requests(tmp_path: Path) -> None:
    with KillableSqs.started() as server:
        pipeline = writing_to(sqs.Destination(**server.options), "at_least_once", count=50)
        written = await write_through_a_kill(server.relay, pipeline, server.stored, tmp_path)

    assert set(written) == set(range(50))
