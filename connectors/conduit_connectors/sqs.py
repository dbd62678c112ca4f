"""The SQS connector: reads work from a queue of Amazon SQS, or of a service with the same protocol."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Required, Unpack

from pydantic import Field, SecretStr

from conduit_connectors.objects import ObjectArguments, ObjectQueueOptions, ObjectReader
from conduit_py.sdk import FatalError, TransientError
from conduit_py.sdk.queue import LeasedQueue, QueueArguments, QueueDelivery, QueueSource

log = logging.getLogger("conduit_py.queue")

_CHUNK_SIZE = 10
_LEASE_SECONDS_MAX = 12 * 3600
_GONE = ("MessageNotInflight", "ReceiptHandleIsInvalid", "InvalidParameterValue")


class SourceOptions(ObjectQueueOptions):
    """Which queue, and what its messages are. Without a region or keys, those of the environment are used."""

    url: str = Field(min_length=1, description="the address of the queue, as https://sqs.<region>.amazonaws.com/…")
    wait_seconds: int = Field(default=20, ge=0, le=20, description="how long one request waits for messages")
    region: str | None = Field(default=None, description="the region of the queue")
    access_key: SecretStr | None = Field(default=None, description="the access key; None: that of the machine")
    secret_key: SecretStr | None = Field(default=None, description="the secret that belongs to the access key")
    endpoint: str | None = Field(default=None, description="the address of a service that is not Amazon's")


class SourceArguments(QueueArguments, ObjectArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    url: Required[str]
    wait_seconds: int
    region: str | None
    access_key: str | SecretStr | None
    secret_key: str | SecretStr | None
    endpoint: str | None


class Source(QueueSource[SourceOptions]):
    """Messages of an SQS queue, or the records of the objects that they announce.

    At-least-once; exactly-once in an exactly-once pipeline. In order within an announced object. Give the queue
    a dead-letter queue: messages that cannot be parsed are left to it.
    """

    requires: ClassVar = {"boto3": "conduit-dataflow[sqs]"}

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

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

    receive_max = _CHUNK_SIZE

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client: Any = None

    def open(self) -> None:
        boto3 = _boto3()
        options = self._options
        settings = {
            "region_name": options.region,
            "endpoint_url": options.endpoint,
            "aws_access_key_id": options.access_key and options.access_key.get_secret_value(),
            "aws_secret_access_key": options.secret_key and options.secret_key.get_secret_value(),
        }
        try:
            self._client = boto3.session.Session().client("sqs", **settings)
        except Exception as error:  # the plugin boundary: boto3 raises errors of many kinds for a missing setting
            raise FatalError(
                f"SQS cannot be used: {error}", suggestion="set region, or AWS_DEFAULT_REGION in the environment"
            ) from error
        self._request("get_queue_attributes", AttributeNames=["QueueArn"])

    def receive(self, count: int, lease_seconds: float) -> list[QueueDelivery]:
        answer = self._request(
            "receive_message",
            MaxNumberOfMessages=min(count, _CHUNK_SIZE),
            VisibilityTimeout=_whole(lease_seconds),
            WaitTimeSeconds=self._options.wait_seconds,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
        )
        return [_delivery(message) for message in answer.get("Messages", [])]

    def extend(self, delivery: QueueDelivery, lease_seconds: float) -> None:
        try:
            self._client.change_message_visibility(
                QueueUrl=self._options.url, ReceiptHandle=delivery.handle, VisibilityTimeout=_whole(lease_seconds)
            )
        except Exception as error:
            if _code(error).rpartition(".")[2] in _GONE:
                raise LookupError(f"message {delivery.id} is not held any more: {error}") from error
            raise self._failed(error) from error

    def ack(self, deliveries: Sequence[QueueDelivery]) -> None:
        for start in range(0, len(deliveries), _CHUNK_SIZE):
            chunk = deliveries[start : start + _CHUNK_SIZE]
            entries = [{"Id": str(index), "ReceiptHandle": each.handle} for index, each in enumerate(chunk)]
            answer = self._request("delete_message_batch", Entries=entries)
            for failed in answer.get("Failed", []):
                # Harmless: it is delivered again, recognised as done, and deleted then.
                log.info("message %s was not deleted: %s", chunk[int(failed["Id"])].id, failed.get("Message"))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _request(self, action: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, action)(QueueUrl=self._options.url, **arguments)
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> Exception:
        """Translate an error of boto3: name the queue, and raise FatalError unless trying again can help."""
        where = f"the SQS queue {self._options.url}"
        status = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
        if "NonExistentQueue" in _code(error) or "QueueDoesNotExist" in _code(error):
            return FatalError(f"there is no queue {self._options.url}", suggestion="check the url and the region")
        if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
            return FatalError(f"{where}: {error}", suggestion="set access_key and secret_key, or those of the machine")
        if 400 <= status < 500 and "Throttl" not in _code(error):
            return FatalError(f"{where}: {error}", suggestion="check the url and the rights of the keys")
        return TransientError(f"{where}: {error}", suggestion="check the url and that the service can be reached")


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


def _code(error: Exception) -> str:
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))


def _boto3() -> Any:
    try:
        import boto3
    except ImportError as error:
        raise FatalError(
            "SQS is used through boto3, which is not installed", suggestion="pip install 'conduit-dataflow[sqs]'"
        ) from error
    return boto3
