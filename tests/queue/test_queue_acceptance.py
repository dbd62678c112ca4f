"""The sources over queues pass the acceptance suite, against real servers; RabbitMQ and MQTT are in their own tests."""

from collections.abc import Callable, Iterator
from typing import Any

from conduit_connectors import nats, redis_streams, sqlite_queue, sqs
from queue_harness import QueueHarness

from conduit_py.testing import source_acceptance

MakeHarness = Callable[[str], QueueHarness]


def five_messages(name: str, source: Callable[..., Any]) -> Callable[[MakeHarness], Iterator[Any]]:
    """A queue with five messages, for the acceptance suite."""

    def make(make_harness: MakeHarness) -> Iterator[Any]:
        harness = make_harness(name)
        harness.send([b"message %d" % number for number in range(5)])
        yield source(**harness.options())
        harness.close()

    return make


TestSqlite = source_acceptance(five_messages("sqlite", sqlite_queue.Source), records=5)
TestRedis = source_acceptance(five_messages("redis", redis_streams.Source), records=5)
TestNats = source_acceptance(five_messages("nats", nats.Source), records=5)
TestSqs = source_acceptance(five_messages("sqs", sqs.Source), records=5)
