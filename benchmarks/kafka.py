"""Kafka in, out, and in to out exactly once, each beside a loop by hand on the same client library.

    python -m benchmarks.kafka [--records N] [--rounds N] [--batch N]

It starts a broker of its own. What the figures mean: `benchmarks.against_loop`.

What both sides do, with keys and without headers in the messages:

- in: committed messages in batches, the loop of `--batch`, ours of the default size; of each the error, the value, the
  key and the headers are looked at. The offset of each batch is committed to the group, which ours does about twice
  a second.
- out: an idempotent producer, a value and a key for each message, lz4. Failed deliveries are reported, and the rest
  is known to be stored when `flush` returns. Ours flushes before each checkpoint, the loop once.
- in to out: a transaction for 4096 messages with value, key, headers and the offsets. Ours also keeps its own state,
  and starts with a claim, which reads the last checkpoint.
"""

import argparse
import tempfile
import uuid
from pathlib import Path
from typing import Any

from conduit_connectors import kafka
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import conduit_py
from benchmarks.against_loop import Counter, compare
from conduit_py import Destination, Pipeline, Source, sdk
from conduit_py.status import Status
from conduit_py.testing.services import KafkaServer

VALUE = b'{"order": 17, "customer": "c-4711", "amount": "129.90", "currency": "EUR", "lines": [1, 2, 3, 4, 5]}'
TRANSACTION = 4096


class Numbers(sdk.SourceConnector[sdk.Options]):
    """The same value with its number as the key, so many times."""

    blocking = False
    count = 0

    def open(self, position: bytes | None) -> None:
        self._next = 0

    def read(self, n: int) -> sdk.Payloads:
        taken = range(self._next, min(self._next + n, self.count))
        if not taken:
            raise sdk.EndOfSource
        self._next = taken.stop
        columns = sdk.Columns(keys=[b"%d" % number for number in taken])
        return sdk.Payloads([VALUE] * len(taken), sdk.Positions(b"%d", taken), bytes, columns)


class Bench:
    """One broker, topics for each measurement."""

    def __init__(self, address: str, records: int, batch: int) -> None:
        self.address = address
        self.records = records
        self.batch = batch
        self._settings: dict[str, Any] = {"bootstrap.servers": address, "log_level": 2}
        self._admin = AdminClient(self._settings)
        self.full = self.create()
        producer = Producer(self._settings | {"queue.buffering.max.messages": 1_000_000, "linger.ms": 5})
        for number in range(records):
            producer.produce(self.full, VALUE, b"%d" % number)
            if number % 10_000 == 0:
                producer.poll(0)
        producer.flush()

    def create(self) -> str:
        name = f"bench-{uuid.uuid4().hex[:12]}"
        [created] = self._admin.create_topics([NewTopic(name, 1, 1)]).values()
        created.result(60)
        return name

    def loop_in(self) -> None:
        consumer = self._consumer()
        count = size = 0
        while count < self.records:
            messages = consumer.consume(self.batch, 1.0)
            for message in messages:
                assert message.error() is None
                assert message.headers() is None
                size += len(message.value() or b"") + len(message.key() or b"")
            count += len(messages)
            # None, if the broker of a busy machine took longer than the wait.
            if messages:
                consumer.commit(message=messages[-1], asynchronous=True)
        consumer.close()

    def ours_in(self) -> None:
        Counter.arrived = 0
        source = kafka.Source(
            servers=self.address, topics=[self.full], partitions=[0], group=uuid.uuid4().hex, tail=False
        )
        self._run(source, Counter())
        assert Counter.arrived == self.records

    def loop_out(self) -> None:
        topic, failed = self.create(), []
        settings = {"enable.idempotence": True, "compression.type": "lz4", "linger.ms": 5}
        settings |= {"delivery.report.only.error": True, "partitioner": "murmur2_random"}
        producer = Producer(self._settings | settings | {"on_delivery": lambda error, message: failed.append(error)})
        for number in range(self.records):
            while True:
                try:
                    producer.produce(topic, VALUE, b"%d" % number)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 512 == 0:
                producer.poll(0)
        assert producer.flush() == 0
        assert not failed

    def ours_out(self) -> None:
        Numbers.count = self.records
        self._run(Numbers(), kafka.Destination(servers=self.address, topic=self.create()))

    def loop_once(self) -> None:
        topic = self.create()
        consumer = self._consumer()
        settings = {"transactional.id": topic, "compression.type": "lz4", "linger.ms": 5}
        producer = Producer(self._settings | settings)
        producer.init_transactions(60)
        count = 0
        while count < self.records:
            messages = consumer.consume(min(TRANSACTION, self.records - count), 1.0)
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                assert message.error() is None
                producer.produce(topic, message.value(), message.key(), headers=message.headers())
            count += len(messages)
            offsets = [TopicPartition(self.full, 0, (messages[-1].offset() or 0) + 1)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
            producer.commit_transaction(60)
        consumer.close()

    def ours_once(self) -> None:
        source = kafka.Source(servers=self.address, topics=[self.full], tail=False)
        destination = kafka.Destination(servers=self.address, topic=self.create())
        with tempfile.TemporaryDirectory() as folder:
            self._run(source, destination, delivery="exactly_once", state=Path(folder))

    def _consumer(self) -> Consumer:
        settings = {"group.id": uuid.uuid4().hex, "enable.auto.commit": False, "isolation.level": "read_committed"}
        consumer = Consumer(self._settings | settings)
        consumer.assign([TopicPartition(self.full, 0, 0)])
        return consumer

    def _run(self, source: Any, destination: Any, *, state: Path | None = None, **more: Any) -> None:
        pipeline = Pipeline("p", sources=[Source("in", source)], destinations=[Destination("out", destination)], **more)
        outcome = conduit_py.run(pipeline, state=state)
        assert outcome.status is Status.COMPLETED, outcome.error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1000, help="how many messages the loop takes at once")
    arguments = parser.parse_args()
    with KafkaServer.started() as server:
        bench = Bench(server.address, arguments.records, arguments.batch)
        pairs = {
            "in": (bench.loop_in, bench.ours_in),
            "out": (bench.loop_out, bench.ours_out),
            "in to out, exactly once": (bench.loop_once, bench.ours_once),
        }
        print(f"{arguments.records} records, ratios of {arguments.rounds} rounds: median (lowest to highest)")
        for name, (loop, ours) in pairs.items():
            compare(name, loop, ours, records=arguments.records, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
