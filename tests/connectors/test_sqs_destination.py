"""The SQS destination on ElasticMQ and on moto's server: what messages are, FIFO queues, and what is refused alone."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from conduit_connectors import sqs
from direct_writes import write_records
from queue_servers import sqs_client

from conduit_py.record import Operation, Payload, Record
from conduit_py.sdk import FatalError, TransientError, WriteGuarantee
from conduit_py.testing import destination_acceptance
from conduit_py.testing.connector_driver import batch_of
from conduit_py.testing.server_process import free_port

KEYS: dict[str, Any] = {"access_key": "tester", "secret_key": "not-a-secret", "region": "eu-west-1"}


class SqsQueue:
    """A queue, and what is in it."""

    def __init__(self, endpoint: str, name: str) -> None:
        self._client = sqs_client(endpoint)
        self.endpoint = endpoint
        attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        self.url = self._client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        self._received: list[dict[str, Any]] = []

    def make(self, **options: Any) -> sqs.Destination:
        return sqs.Destination(url=self.url, endpoint=self.endpoint, **KEYS, **options)

    def messages(self) -> list[dict[str, Any]]:
        """All messages so far, in the order in which they are received."""
        while True:
            answer = self._client.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=10,
                VisibilityTimeout=3600,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            )
            received = answer.get("Messages", [])
            if not received:
                return self._received
            self._received += received
            # Messages of a group are held back while one of them is held.
            entries = [{"Id": str(id), "ReceiptHandle": each["ReceiptHandle"]} for id, each in enumerate(received)]
            self._client.delete_message_batch(QueueUrl=self.url, Entries=entries)

    def close(self) -> None:
        self._client.close()


@pytest.fixture(params=["sqs_server", "moto_server"])
def endpoint(request: pytest.FixtureRequest) -> str:
    """ElasticMQ, which keeps messages, and moto, which answers as Amazon does."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def queue(endpoint: str, queue_name: str) -> Iterator[SqsQueue]:
    made = SqsQueue(endpoint, queue_name)
    yield made
    made.close()


@pytest.fixture
def fifo(endpoint: str, queue_name: str) -> Iterator[SqsQueue]:
    made = SqsQueue(endpoint, f"{queue_name}.fifo")
    yield made
    made.close()


def fifo_to_fill(endpoint: str, name: str) -> Iterator[tuple[sqs.Destination, Callable[[], list[Any]]]]:
    fifo = SqsQueue(endpoint, f"{name}.fifo")
    destination = fifo.make(message_group="all", window_covers_restarts=True)
    yield destination, lambda: [msgspec.json.decode(each["Body"]) for each in fifo.messages()]
    fifo.close()


def fifo_of_elasticmq(sqs_server: str, queue_name: str) -> Iterator[Any]:
    yield from fifo_to_fill(sqs_server, queue_name)


def fifo_of_moto(moto_server: str, queue_name: str) -> Iterator[Any]:
    yield from fifo_to_fill(moto_server, queue_name)


TestFifo = destination_acceptance(fifo_of_elasticmq, refused=Record(operation=Operation.DELETE, key=b"k"))
TestFifoOfMoto = destination_acceptance(fifo_of_moto, refused=Record(operation=Operation.DELETE, key=b"k"))


def test_messages_are_sent_ten_by_ten_and_what_is_no_text_is_refused_alone(queue: SqsQueue) -> None:
    good = [Record(b"%d" % number, payload=Payload(after={"n": number})) for number in range(25)]
    hostile = [
        Record(b"a", payload=Payload(after=b"\xff\xfe")),
        Record(b"b", payload=Payload(after=b"a\x00b")),
        Record(b"c", payload=Payload(after=b"")),
        Record(b"d", payload=Payload(after=b"d" * 3000)),
        Record(b"e", payload=Payload(after=b"e"), metadata={"trace": "\x1b[0m"}),
    ]
    with_trace = Record(b"f", payload=Payload(after=b"f"), metadata={"trace": "abc"})
    refused = write_records(queue.make(size_max=2000, metadata=["trace"]), *good, *hostile, with_trace)

    received = queue.messages()
    assert sorted(each["Body"] for each in received) == sorted([f'{{"n":{number}}}' for number in range(25)] + ["f"])
    assert [each["MessageAttributes"]["trace"]["StringValue"] for each in received if each["Body"] == "f"] == ["abc"]
    assert sorted(refused) == [25, 26, 27, 28, 29]
    assert refused[26] == "has the character '\\x00' in its content, which SQS does not carry"
    assert refused[28] == "has 3000 bytes with its attributes, and a message may have 2000"


def test_a_fifo_queue_has_a_group_for_each_key_and_the_delivery_key(fifo: SqsQueue) -> None:
    keys = [b"a", b"b", "ä".encode(), None]
    records = [Record(b"%d" % n, key=key, payload=Payload(after=b"%d" % n)) for n, key in enumerate(keys)]
    assert write_records(fifo.make(), *records) == {}

    found = {each["Body"]: each["Attributes"] for each in fifo.messages()}
    groups = [found[str(number)]["MessageGroupId"] for number in range(4)]
    assert (groups[0], groups[1], len(groups[2]), groups[3]) == ("a", "b", 64, "none")
    assert found["1"]["MessageDeduplicationId"] == batch_of(records).delivery_key(1).hex()


def test_what_is_wrong_is_said_and_whether_waiting_helps(queue: SqsQueue) -> None:
    with pytest.raises(FatalError, match="there is no queue"):
        write_records(sqs.Destination(url=f"{queue.url}-missing", endpoint=queue.endpoint, **KEYS))
    nobody = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(TransientError, match="the SQS queue"):
        write_records(sqs.Destination(url=f"{nobody}/1/q", endpoint=nobody, **KEYS))


def test_only_the_operator_vouches_for_the_window_and_only_of_a_fifo_queue() -> None:
    def make(url: str, **options: Any) -> sqs.Destination:
        return sqs.Destination(url=url, **KEYS, **options)

    assert make("https://h/q.fifo").guarantee is WriteGuarantee.AT_LEAST_ONCE
    assert make("https://h/q.fifo", window_covers_restarts=True).guarantee is WriteGuarantee.IDEMPOTENT
    [problem] = make("https://h/q", window_covers_restarts=True).problems
    assert "needs a FIFO queue" in problem.message
    assert make("https://h/q", metadata=["AWS.trace"]).problems
