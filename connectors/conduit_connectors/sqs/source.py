"""The SQS source: work from a queue of Amazon SQS, or of a service with the same protocol."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Required, Unpack

from pydantic import Field

from conduit_connectors.objects import ObjectArguments, ObjectQueueOptions, ObjectReader
from conduit_connectors.sqs.connection import CHUNK_SIZE, SqsArguments, SqsConnection, SqsOptions, code_of
from conduit_py.sdk import Dataset
from conduit_py.sdk.queue import LeasedQueue, QueueArguments, QueueDelivery, QueueSource

log = logging.getLogger("conduit_py.queue")

_LEASE_SECONDS_MAX = 12 * 3600
_GONE = ("MessageNotInflight", "ReceiptHandleIsInvalid", "InvalidParameterValue")


class SourceOptions(ObjectQueueOptions, SqsOptions):
    """Which queue, and what its messages are."""

    wait_seconds: int = Field(default=20, ge=0, le=20, description="how long one request waits for messages")


class SourceArguments(QueueArguments, ObjectArguments, SqsArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    url: Required[str]
    wait_seconds: int


class Source(QueueSource[SourceOptions]):
    """Messages of an SQS queue, or the records of the objects that they announce.

    At-least-once; exactly-once in an exactly-once pipeline. In order within an announced object. Give the queue
    a dead-letter queue: messages that cannot be parsed are left to it.
    """

    requires: ClassVar = {"boto3": "conduit-dataflow[sqs]"}

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[Dataset]:
        return [Dataset.at(self.options.url)]

    def probe(self) -> str:
        # To open a queue asks for its attributes, and changes nothing.
        queue = SqsQueue(self.options)
        queue.open()
        queue.close()
        return "the queue answers"

    def queue(self) -> LeasedQueue:
        return SqsQueue(self.options)

    def objects(self) -> ObjectReader:
        return ObjectReader(self.options)


class SqsQueue(LeasedQueue):
    """Leases are in whole seconds, at most 12 hours. Ten messages at most are received or deleted in one request.

    The protocol lets an old handle delete a message too. That is harmless, because nothing is acked before its
    commit.
    """

    receive_max = CHUNK_SIZE

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._connection: SqsConnection | None = None

    def open(self) -> None:
        self._connection = SqsConnection(self._options)
        self._connection.check()

    def receive(self, count: int, lease_seconds: float) -> list[QueueDelivery]:
        answer = self._opened.request(
            "receive_message",
            MaxNumberOfMessages=min(count, CHUNK_SIZE),
            VisibilityTimeout=_whole(lease_seconds),
            WaitTimeSeconds=self._options.wait_seconds,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
        )
        return [_delivery(message) for message in answer.get("Messages", [])]

    def extend(self, delivery: QueueDelivery, lease_seconds: float) -> None:
        try:
            self._opened.client.change_message_visibility(
                QueueUrl=self._options.url, ReceiptHandle=delivery.handle, VisibilityTimeout=_whole(lease_seconds)
            )
        except Exception as error:
            if code_of(error).rpartition(".")[2] in _GONE:
                raise LookupError(f"message {delivery.id} is not held any more: {error}") from error
            raise self._opened.failure(error) from error

    def ack(self, deliveries: Sequence[QueueDelivery]) -> None:
        for start in range(0, len(deliveries), CHUNK_SIZE):
            chunk = deliveries[start : start + CHUNK_SIZE]
            entries = [{"Id": str(index), "ReceiptHandle": each.handle} for index, each in enumerate(chunk)]
            answer = self._opened.request("delete_message_batch", Entries=entries)
            for failed in answer.get("Failed", []):
                # Harmless: it is delivered again, recognised as done, and deleted then.
                log.info("message %s was not deleted: %s", chunk[int(failed["Id"])].id, failed.get("Message"))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    @property
    def _opened(self) -> SqsConnection:
        assert self._connection is not None, "the queue is not open"
        return self._connection


def _delivery(message: Mapping[str, Any]) -> QueueDelivery:
    attributes = message.get("MessageAttributes", {})
    return QueueDelivery(
        id=message["MessageId"],
        handle=message["ReceiptHandle"],
        body=message["Body"].encode(),
        attempt=int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
        attributes={name: each["StringValue"] for name, each in attributes.items() if "StringValue" in each},
    )


def _whole(seconds: float) -> int:
    return min(math.ceil(seconds), _LEASE_SECONDS_MAX)
