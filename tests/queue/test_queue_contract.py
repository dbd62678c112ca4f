"""What every leased queue promises, held against real servers (QW-Q1 to QW-Q3 for each)."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from conduit_connectors import nats, redis_streams, sqs
from queue_harness import LONG_SECONDS, NAMES, QueueHarness, drained

from conduit_py.sdk import FatalError, TransientError, registry

BODIES = [b"message %d" % number for number in range(25)]


def bodies(deliveries: list[Any], harness: QueueHarness) -> list[bytes]:
    found = [delivery.body for delivery in deliveries]
    return found if harness.ordered else sorted(found, key=BODIES.index)


@pytest.mark.parametrize("at_once", [1, 2, 10])
def test_qw_q1_q2_every_message_comes_once_while_it_is_held(harness: QueueHarness, at_once: int) -> None:
    harness.send(BODIES)
    worker = harness.worker()

    received = drained(worker, 25, LONG_SECONDS, at_once=at_once)

    assert bodies(received, harness) == BODIES
    assert {delivery.attempt for delivery in received} == {1}
    assert len({delivery.id for delivery in received}) == len({delivery.handle for delivery in received}) == 25
    worker.ack(received)
    assert worker.receive(10, LONG_SECONDS) == []


def test_qw_q3_fewer_messages_than_asked_for_come_early_and_none_from_an_empty_queue(harness: QueueHarness) -> None:
    worker = harness.worker()
    assert worker.receive(10, LONG_SECONDS) == []

    harness.send([b"one"])

    [only] = drained(worker, 1, LONG_SECONDS)
    assert only.body == b"one"


def test_two_workers_share_the_messages(harness: QueueHarness) -> None:
    harness.send(BODIES)
    one, other = harness.worker(), harness.worker()

    received = drained(one, 5, LONG_SECONDS, at_once=5)
    received += drained(other, 20, LONG_SECONDS)

    assert sorted(bodies(received, harness)) == sorted(BODIES)


def test_what_is_neither_acked_nor_extended_comes_again_to_somebody_else_under_a_new_handle(
    harness: QueueHarness,
) -> None:
    harness.send([b"one"])
    dead, heir = harness.worker(), harness.worker()
    [first] = drained(dead, 1, harness.lease_seconds)

    [again] = drained(heir, 1, harness.lease_seconds)

    assert (again.id, again.body, again.attempt) == (first.id, b"one", 2)
    assert again.handle != first.handle


def test_what_is_acked_never_comes_again_and_may_be_acked_twice(harness: QueueHarness) -> None:
    harness.send([b"one", b"two"])
    worker = harness.worker()
    received = drained(worker, 2, harness.lease_seconds)

    worker.ack(received)
    worker.ack(received)
    worker.ack([])

    assert comes(worker, harness.lease_seconds + 0.5) == []


def test_what_is_extended_stays_away_longer_than_its_first_lease(harness: QueueHarness) -> None:
    harness.send([b"one"])
    worker, other = harness.worker(), harness.worker()
    [held] = drained(worker, 1, harness.lease_seconds)

    def extend() -> None:
        worker.extend(held, harness.extension_seconds)

    assert comes(other, harness.lease_seconds + 1, meanwhile=extend) == []
    worker.ack([held])


def test_an_old_handle_does_no_harm(harness: QueueHarness) -> None:
    harness.send([b"one"])
    late, heir = harness.worker(), harness.worker()
    [old] = drained(late, 1, harness.lease_seconds)
    [new] = drained(heir, 1, harness.extension_seconds)

    if harness.strict:
        with pytest.raises(LookupError, match="is not held any more"):
            late.extend(old, LONG_SECONDS)
        late.ack([old])
        heir.extend(new, harness.extension_seconds)
    else:
        # Here it counts as the new one does: it is acked after the commit only, so that is right as well.
        late.ack([old])
    heir.ack([new])
    assert comes(heir, harness.lease_seconds + 0.5) == []


def comes(queue: Any, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> list[Any]:
    """What is delivered within so long, or as soon as something is."""
    until = time.monotonic() + seconds
    received: list[Any] = []
    while not received and time.monotonic() < until:
        meanwhile()
        received = queue.receive(10, 1.0)
    return received


@pytest.mark.parametrize("name", NAMES)
def test_it_is_known_by_name(name: str) -> None:
    plugin = {"sqlite": "sqlite.queue", "redis": "redis.streams"}.get(name, name)
    assert registry.find("source", plugin).__name__ == "Source"


UNREACHABLE = [
    (lambda: redis_streams.Source(url="redis://user:hidden@127.0.0.1:1/0", stream="s"), r"Redis at 127\.0\.0\.1:1"),
    (lambda: nats.Source(url="nats://user:hidden@127.0.0.1:1", stream="s"), r"NATS at 127\.0\.0\.1:1"),
    (
        lambda: sqs.Source(url="http://127.0.0.1:1/1/q", endpoint="http://127.0.0.1:1", region="eu-west-1",
                           access_key="a", secret_key="hidden"),
        r"the SQS queue http://127\.0\.0\.1:1/1/q",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "where"), UNREACHABLE)
def test_a_server_that_cannot_be_reached_is_named_without_its_password(make: Any, where: str) -> None:
    queue = make().queue()
    with pytest.raises(TransientError, match=where) as caught:
        queue.open()
    queue.close()

    assert "hidden" not in caught.value.message
    assert caught.value.suggestion is not None


def test_who_is_in_a_receive_when_the_queue_is_closed_does_not_stay_there(harness: QueueHarness) -> None:
    queue = harness.worker()
    waiting = threading.Thread(target=suppressed, args=(queue,), daemon=True)
    waiting.start()
    queue.close()

    waiting.join(300)
    assert not waiting.is_alive()


def suppressed(queue: Any) -> None:
    with suppress(Exception):
        queue.receive(1, LONG_SECONDS)


@pytest.mark.parametrize(("module", "name"), [("boto3", "sqs"), ("redis", "redis_streams"), ("nats", "nats")])
def test_what_has_to_be_installed_is_said(module: str, name: str) -> None:
    options = {"redis_streams": "url='redis://h', stream='s'", "nats": "url='nats://h', stream='s'", "sqs": "url='u'"}
    program = f"""
import sys
sys.modules[{module!r}] = None  # as if it were not installed
from conduit_connectors import {name} as connector
try:
    connector.Source({options[name]}).queue().open()
except Exception as error:
    print(type(error).__name__, error, error.suggestion)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)

    extra = name.partition("_")[0]
    assert ran.stdout.startswith("FatalError ")
    assert f"which is not installed pip install 'conduit-dataflow[{extra}]'" in ran.stdout


def test_a_stream_or_queue_that_is_missing_or_something_else_is_named(
    nats_server: str, redis_server: str, moto_server: str, queue_name: str
) -> None:
    import redis

    redis.Redis.from_url(redis_server).set(queue_name, "text")
    with pytest.raises(FatalError, match=f"the stream {queue_name} of Redis"):
        redis_streams.Source(url=redis_server, stream=queue_name).queue().open()
    absent = nats.Source(url=nats_server, stream=queue_name).queue()
    with pytest.raises(FatalError, match=f"has no stream '{queue_name}'"):
        absent.open()
    absent.close()
    url = f"{moto_server}/123456789012/{queue_name}"
    keys = {"region": "eu-west-1", "access_key": "a", "secret_key": "b"}
    with pytest.raises(FatalError, match=f"there is no queue {url}"):
        sqs.Source(url=url, endpoint=moto_server, **keys).queue().open()  # type: ignore[arg-type]


def test_an_entry_without_the_field_is_a_message_of_all_its_fields(redis_server: str, queue_name: str) -> None:
    import redis

    redis.Redis.from_url(redis_server).xadd(queue_name, {"a": "1"})
    redis.Redis.from_url(redis_server).xadd(queue_name, {"text": "x", "kind": "letter"})
    queue: Any = redis_streams.Source(url=redis_server, stream=queue_name, field="text").queue()
    queue.open()

    whole, one = drained(queue, 2, LONG_SECONDS)

    assert (whole.body, one.body, one.attributes) == (b'{"a":"1"}', b"x", {"kind": "letter"})
    queue.ack([whole, one])
    queue.close()
    [group] = redis.Redis.from_url(redis_server).xinfo_groups(queue_name)
    assert group["consumers"] == 0
    assert redis.Redis.from_url(redis_server).xlen(queue_name) == 2
