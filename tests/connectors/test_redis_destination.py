"""The Redis destination on a real server: what entries are, and that a transaction is there once or not at all."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import redis
from conduit_connectors import redis_streams

from conduit_py.record import Operation, Payload, Record
from conduit_py.sdk import FatalError, Fenced, TransientError
from conduit_py.testing import destination_acceptance, numbered_record
from conduit_py.testing.connector_driver import batch_of
from conduit_py.testing.server_process import free_port


@pytest.fixture
def client(redis_server: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_server) as client:
        yield client


def entries(client: Any, stream: str) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in client.xrange(stream)]


def stream_to_fill(
    redis_server: str, client: Any, queue_name: str
) -> tuple[redis_streams.Destination, Callable[[], list[Any]]]:
    destination = redis_streams.Destination(url=redis_server, stream=queue_name)
    return destination, lambda: [msgspec.json.decode(each[b"body"]) for each in entries(client, queue_name)]


NO_PAYLOAD = Record(operation=Operation.DELETE, key=b"k")
TestDestination = destination_acceptance(stream_to_fill, refused=NO_PAYLOAD)


def opened(destination: redis_streams.Destination) -> redis_streams.Destination:
    made = destination.fresh()
    made.open()
    return made


def test_an_entry_has_the_body_the_key_and_the_metadata_that_is_wanted(
    redis_server: str, client: Any, queue_name: str
) -> None:
    destination = opened(
        redis_streams.Destination(
            url=redis_server, stream=queue_name, field="text", key_field="key", metadata=["trace", "missing"]
        )
    )
    refused = destination.write(
        batch_of(
            [
                Record(b"1", key={"id": 7}, payload=Payload(after=b"raw"), metadata={"trace": "abc", "other": "x"}),
                Record(b"2", payload=Payload(after={"n": 1}), metadata={"trace": "\ud800"}),
                Record(b"3", Operation.DELETE, key=b"k", payload=Payload(before={"n": 1})),
                Record(b"4", payload=Payload(after={"n": 2})),
            ]
        )
    )
    destination.teardown()

    assert entries(client, queue_name) == [
        {b"trace": b"abc", b"key": b'{"id":7}', b"text": b"raw"},
        {b"text": b'{"n":2}'},
    ]
    assert list(refused) == [1, 2]
    assert refused[1] == "has half of a surrogate pair in its metadata 'trace', which is no text"


def test_a_stream_may_have_a_limit_and_whole_records(redis_server: str, client: Any, queue_name: str) -> None:
    destination = opened(redis_streams.Destination(url=redis_server, stream=queue_name, length_max=100, body="record"))
    destination.write(batch_of([numbered_record(number) for number in range(1000)]))
    destination.teardown()

    kept = entries(client, queue_name)
    assert 100 <= len(kept) < 400
    assert msgspec.json.decode(kept[-1][b"body"])["payload"]["after"] == numbered_record(999).payload.after


def test_a_commit_whose_answer_was_lost_and_that_arrives_again_appends_nothing(
    redis_server: str, client: Any, queue_name: str
) -> None:
    destination = opened(redis_streams.Destination(url=redis_server, stream=queue_name))
    assert destination.claim("p", 1) is None
    destination.write(batch_of([numbered_record(1)]))
    kept = list(destination._entries)
    destination.commit(b"first")
    destination._entries, destination._number = kept, 0
    destination.commit(b"first")
    destination.teardown()

    assert len(entries(client, queue_name)) == 1
    assert client.hget(f"{queue_name}:conduit:p", "changes") == b"first"


def test_a_zombie_can_commit_nothing(redis_server: str, client: Any, queue_name: str) -> None:
    declared = redis_streams.Destination(url=redis_server, stream=queue_name)
    old, new = opened(declared), opened(declared)
    old.claim("p", 1)
    old.write(batch_of([numbered_record(1)]))
    new.claim("p", 2)
    with pytest.raises(Fenced, match="has a newer run"):
        old.commit(b"old")
    with pytest.raises(Fenced, match="has a newer run"):
        old.claim("p", 1)
    new.commit(b"new")
    old.teardown()
    new.teardown()

    assert entries(client, queue_name) == []
    assert client.hget(f"{queue_name}:conduit:p", "changes") == b"new"


def test_the_work_of_another_pipeline_is_applied_once(redis_server: str, client: Any, queue_name: str) -> None:
    declared = redis_streams.Destination(url=redis_server, stream=queue_name)
    dead, heir = opened(declared), opened(declared)
    dead.claim("dead", 1)
    dead.write(batch_of([numbered_record(1)]))
    intent = dead.stage()
    assert intent is not None
    assert not heir.apply_for("stranger", intent)
    assert heir.apply_for("dead", intent)
    dead.apply(intent)
    dead.teardown()
    heir.teardown()

    assert len(entries(client, queue_name)) == 1


def test_what_is_wrong_is_said_and_whether_waiting_helps(redis_server: str, client: Any, queue_name: str) -> None:
    client.set(queue_name, "text")
    with pytest.raises(FatalError, match=f"the stream {queue_name} of Redis at .*WRONGTYPE"):
        opened(redis_streams.Destination(url=redis_server, stream=queue_name))
    with pytest.raises(TransientError, match="cannot be reached"):
        opened(redis_streams.Destination(url=f"redis://me:hush-hush-1@127.0.0.1:{free_port()}/0", stream="s"))
    with pytest.raises(FatalError, match="cannot be used"):
        opened(redis_streams.Destination(url="http://localhost", stream="s"))


def test_two_destinations_of_one_stream_claim_the_same(redis_server: str) -> None:
    one = redis_streams.Destination(url="redis://me:hush-hush-1@host:6379/0", stream="s")
    other = redis_streams.Destination(url="redis://host:6379/0", stream="s")

    assert one.claims == other.claims == "the stream s of Redis at host:6379/0"
