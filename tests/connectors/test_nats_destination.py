"""The NATS destination on a real server: what messages are, what is stored once, and what is refused alone."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import nats as library
import pytest
from conduit_connectors import nats
from direct_writes import write_records

from conduit_py.record import Operation, Payload, Record
from conduit_py.sdk import FatalError, TransientError, WriteGuarantee
from conduit_py.testing import destination_acceptance
from conduit_py.testing.connector_driver import batch_of
from conduit_py.testing.server_process import free_port


async def create_stream(url: str, name: str, **config: Any) -> None:
    client = await library.connect(url)
    try:
        await client.jetstream(timeout=300).add_stream(name=name, subjects=[f"{name}.>"], **config)
    finally:
        await client.close()


async def read_stream(url: str, name: str) -> list[Any]:
    client = await library.connect(url)
    try:
        jetstream = client.jetstream(timeout=300)
        state = (await jetstream.stream_info(name)).state
        numbers = range(state.first_seq, state.last_seq + 1) if state.messages else range(0)
        return [await jetstream.get_msg(name, number) for number in numbers]
    finally:
        await client.close()


def messages(url: str, name: str) -> list[Any]:
    return asyncio.run(read_stream(url, name))


def make(url: str, name: str, **options: Any) -> nats.Destination:
    return nats.Destination(url=url, stream=name, subject=f"{name}.new", **options)


def stream_to_fill(nats_server: str, queue_name: str) -> tuple[nats.Destination, Callable[[], list[Any]]]:
    asyncio.run(create_stream(nats_server, queue_name))
    destination = make(nats_server, queue_name, window_covers_restarts=True)
    return destination, lambda: [msgspec.json.decode(each.data) for each in messages(nats_server, queue_name)]


TestDestination = destination_acceptance(stream_to_fill, refused=Record(operation=Operation.DELETE, key=b"k"))


def test_a_message_has_the_metadata_as_headers_and_the_delivery_key(nats_server: str, queue_name: str) -> None:
    asyncio.run(create_stream(nats_server, queue_name))
    record = Record(b"1", payload=Payload(after=b"raw"), metadata={"trace": "abc", "other": "x"})
    assert write_records(make(nats_server, queue_name, metadata=["trace"]), record) == {}

    [stored] = messages(nats_server, queue_name)
    assert (stored.subject, stored.data, stored.headers["trace"]) == (f"{queue_name}.new", b"raw", "abc")
    assert stored.headers["Nats-Msg-Id"] == batch_of([record]).delivery_key(0).hex()


def test_what_the_server_or_the_stream_would_refuse_is_refused_alone(nats_server: str, queue_name: str) -> None:
    asyncio.run(create_stream(nats_server, queue_name, max_msg_size=2000))
    bodies = [b"one", b"x" * 1_048_500, b"y" * 3000, b"two"]
    records = [Record(b"%d" % index, payload=Payload(after=body)) for index, body in enumerate(bodies)]
    hostile = Record(b"h", payload=Payload(after=b"h"), metadata={"trace": "a\r\nNats-Rollup: all"})
    refused = write_records(make(nats_server, queue_name, metadata=["trace"]), *records, hostile)

    assert [each.data for each in messages(nats_server, queue_name)] == [b"one", b"two"]
    assert sorted(refused) == [1, 2, 4]
    assert refused[1] == "has 1048700 bytes with its headers, and the server takes 1048576"
    assert refused[2] == "has 3000 bytes, which is more than the stream takes"
    assert refused[4] == "has a line break in its metadata 'trace', which cannot be a header"


def test_a_full_stream_is_waited_for(nats_server: str, queue_name: str) -> None:
    asyncio.run(create_stream(nats_server, queue_name, max_msgs=1, discard="new"))
    records = [Record(b"%d" % number, payload=Payload(after=b"v")) for number in range(2)]
    with pytest.raises(TransientError, match=r"does not store a message: .*maximum messages exceeded"):
        write_records(make(nats_server, queue_name), *records)


def test_what_is_wrong_is_said_and_whether_waiting_helps(nats_server: str, queue_name: str) -> None:
    with pytest.raises(FatalError, match="has no stream"):
        write_records(make(nats_server, queue_name))
    asyncio.run(create_stream(nats_server, queue_name))
    elsewhere = nats.Destination(url=nats_server, stream=queue_name, subject="another")
    with pytest.raises(FatalError, match="does not take 'another'"):
        write_records(elsewhere)
    with pytest.raises(FatalError, match="certificates for NATS cannot be used"):
        write_records(make(nats_server, queue_name, ca_file="/nowhere/ca.pem"))
    with pytest.raises(TransientError, match="cannot be reached"):
        write_records(make(f"nats://127.0.0.1:{free_port()}", queue_name))


def test_records_cannot_steer_the_server_and_only_the_operator_vouches_for_the_window() -> None:
    [problem] = make("nats://h", "s", metadata=["Nats-Rollup"]).problems
    assert "a record would steer it" in problem.message
    assert make("nats://h", "s").guarantee is WriteGuarantee.AT_LEAST_ONCE
    assert make("nats://h", "s", window_covers_restarts=True).guarantee is WriteGuarantee.IDEMPOTENT
