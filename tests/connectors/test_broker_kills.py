"""Brokers killed with `kill -9` while pipelines write to them and read from them, and started again: nothing is lost.

What is there twice, and in which order, is what each destination promises.
"""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import msgspec
import nats as nats_library
import pytest
import redis
import trio
from breakable_relay import BreakableRelay
from broker_kills import COUNT, Delivery, ReadNumbers, in_first_order, write_through_a_kill, writing_to
from conduit_connectors import nats, redis_streams, sqs
from queue_servers import NatsServer, RedisServer


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


async def test_sqs(sqs_server: str, queue_name: str, tmp_path: Path) -> None:
    """Nobody can kill SQS, but the way to it breaks: in the middle of requests, and for a while."""
    keys: dict[str, Any] = {"access_key": "tester", "secret_key": "not-a-secret", "region": "eu-west-1"}
    client = boto3.session.Session().client(
        "sqs", endpoint_url=sqs_server, region_name="eu-west-1", aws_access_key_id="tester",
        aws_secret_access_key="not-a-secret",
    )  # fmt: skip
    url = client.create_queue(QueueName=queue_name)["QueueUrl"]
    received: list[int] = []

    def stored() -> list[int]:
        while True:
            answer = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
            if "Messages" not in answer:
                return received
            received.extend(msgspec.json.decode(each["Body"])["n"] for each in answer["Messages"])
            handles = [each["ReceiptHandle"] for each in answer["Messages"]]
            entries = [{"Id": str(id), "ReceiptHandle": handle} for id, handle in enumerate(handles)]
            client.delete_message_batch(QueueUrl=url, Entries=entries)

    with BreakableRelay(urlsplit(sqs_server).port or 0) as relay:
        connector = sqs.Destination(url=url, endpoint=f"http://127.0.0.1:{relay.port}", **keys)
        written = await write_through_a_kill(relay, writing_to(connector, "at_least_once", count=50), stored, tmp_path)
    client.close()

    assert set(written) == set(range(50))
