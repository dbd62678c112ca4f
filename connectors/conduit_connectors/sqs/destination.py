"""The SQS destination: messages of a queue, ten in a request."""

import hashlib
import re
from collections.abc import Iterator
from typing import Any, ClassVar, Final, Required, Unpack

from pydantic import Field, field_validator

from conduit_connectors.message_content import (
    KeyWindowDestination,
    MessageArguments,
    MessageContent,
    MessageOptions,
    encode_messages,
)
from conduit_connectors.sqs.connection import CHUNK_SIZE, SqsArguments, SqsConnection, SqsOptions
from conduit_py.sdk import AckMode, Batch, Dataset, KeptOrder, TransientError
from conduit_py.sdk.template import option_error

_ATTRIBUTES_MAX: Final = 10
_NAME: Final = re.compile(r"(?!aws\.|amazon\.)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.IGNORECASE)
# What XML 1.0 allows, as SQS does, whichever protocol is used.
_NO_TEXT: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_GROUP_SIZE_MAX: Final = 128
_NO_GROUP: Final = re.compile(r"[^A-Za-z0-9!-/:-@\[-`{-~]")


class DestinationOptions(SqsOptions, MessageOptions):
    """Which queue, and what its messages are."""

    message_group: str | None = Field(
        default=None, pattern=r"^[!-~]{1,128}$", description="of a FIFO queue: the group of all messages; None: by key"
    )
    size_max: int = Field(default=1024 * 1024, ge=1, description="the most bytes of a message, and of a request")
    window_covers_restarts: bool = Field(
        default=False,
        description="of a FIFO queue: whether the pipeline always starts again within five minutes: then nothing is "
        "doubled",
    )

    @field_validator("metadata")
    @classmethod
    def _check_attributes(cls, names: list[str]) -> list[str]:
        if len(names) > _ATTRIBUTES_MAX:
            raise option_error(f"must be at most {_ATTRIBUTES_MAX} names: a message has no more attributes")
        for name in names:
            if not _NAME.fullmatch(name) or len(name) > 256:
                raise option_error(
                    f"must be names of attributes: letters, digits, '.', '_' and '-' (there is {name!r})"
                )
        return names

    @field_validator("window_covers_restarts")
    @classmethod
    def _check_window(cls, covers: bool, info: Any) -> bool:
        if covers and not str(info.data.get("url", ".fifo")).endswith(".fifo"):
            raise option_error("needs a FIFO queue, whose name ends in .fifo: others recognise no message")
        return covers

    @property
    def is_fifo(self) -> bool:
        return self.url.endswith(".fifo")


class DestinationArguments(SqsArguments, MessageArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    url: Required[str]
    message_group: str | None
    size_max: int
    window_covers_restarts: bool


class Destination(KeyWindowDestination[DestinationOptions]):
    """Sends each record as a message to an SQS queue, and acks it when the service has stored it.

    At-least-once. A standard queue promises no order. A FIFO queue (its name ends in `.fifo`) keeps the order of the
    records of a message group: those with the same key, or all of them with `message_group`. Its
    `MessageDeduplicationId` is the delivery key, which is the same after every restart: a record that is written again
    within five minutes is there once. With `window_covers_restarts=True` that counts as idempotent, and exactly-once
    pipelines may use it: a pipeline that starts again later sends what was not acked twice.

    Messages are text: raw bytes that are no UTF-8, and characters that XML does not have, are refused, and so is what
    is larger than `size_max`. Metadata named in `metadata` are attributes. Tested with ElasticMQ, which is killed and
    started again, and with moto; both speak the protocol of SQS. Not tested with Amazon's service.
    """

    requires: ClassVar = {"boto3": "conduit-dataflow[sqs]"}
    acks: ClassVar[AckMode] = AckMode.WRITE
    _connection: SqsConnection | None = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[Dataset]:
        return [Dataset.at(self.options.url)]

    @property
    def order(self) -> KeptOrder:
        return KeptOrder.GROUP if self.options.is_fifo else KeptOrder.NOTHING

    def probe(self) -> str:
        connection = SqsConnection(self.options)
        try:
            connection.check()
        finally:
            connection.close()
        return "the queue answers"

    def open(self) -> None:
        self._connection = SqsConnection(self.options)
        self._connection.check()

    def write(self, batch: Batch) -> dict[int, str]:
        assert self._connection is not None, "opened"
        messages, refused = encode_messages(batch, self.options)
        fitting: dict[int, MessageContent] = {}
        for index, message in messages.items():
            why = self._unfit(message)
            if why is None:
                fitting[index] = message
            else:
                refused[index] = why
        for chunk in self._chunks(fitting):
            entries = [self._entry(batch, index, message) for index, message in chunk.items()]
            answer = self._connection.request("send_message_batch", Entries=entries)
            refused |= self._refusals(answer.get("Failed", []))
        return refused

    def teardown(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _unfit(self, message: MessageContent) -> str | None:
        """Why the queue would not take a message; None if it would."""
        size = _size(message)
        if size > self.options.size_max:
            return f"has {size} bytes with its attributes, and a message may have {self.options.size_max}"
        if not message.body:
            return "is empty, and SQS has no empty messages"
        try:
            texts = {"its content": message.body.decode(), **message.attributes}
        except UnicodeDecodeError:
            return "is no UTF-8 text, and SQS carries only text (encode it, for example by base64.encode)"
        for name, text in texts.items():
            found = _NO_TEXT.search(text)
            if found or not text:
                what = f"the character {found[0]!r}" if found else "no text"
                return f"has {what} in {name}, which SQS does not carry"
        return None

    def _chunks(self, messages: dict[int, MessageContent]) -> Iterator[dict[int, MessageContent]]:
        chunk: dict[int, MessageContent] = {}
        size = 0
        for index, message in messages.items():
            if chunk and (len(chunk) == CHUNK_SIZE or size + _size(message) > self.options.size_max):
                yield chunk
                chunk, size = {}, 0
            chunk[index] = message
            size += _size(message)
        if chunk:
            yield chunk

    def _entry(self, batch: Batch, index: int, message: MessageContent) -> dict[str, Any]:
        entry: dict[str, Any] = {"Id": str(index), "MessageBody": message.body.decode()}
        if message.attributes:
            entry["MessageAttributes"] = {
                name: {"DataType": "String", "StringValue": value} for name, value in message.attributes.items()
            }
        if self.options.is_fifo:
            entry["MessageDeduplicationId"] = batch.delivery_key(index).hex()
            entry["MessageGroupId"] = self.options.message_group or _group_of(message.key)
        return entry

    def _refusals(self, failed: list[dict[str, Any]]) -> dict[int, str]:
        """The messages that are at fault themselves. Others are sent again, with the whole batch."""
        refused: dict[int, str] = {}
        for each in failed:
            why = f"{each.get('Code')}: {str(each.get('Message', ''))[:200]}"
            if not each.get("SenderFault"):
                raise TransientError(
                    f"the SQS queue {self.options.url} did not store a message: {why}",
                    suggestion="check that the service is well",
                )
            refused[int(each["Id"])] = f"SQS refuses it: {why}"
        return refused


def _size(message: MessageContent) -> int:
    return len(message.body) + sum(len(name) + len(value.encode()) + 6 for name, value in message.attributes.items())


def _group_of(key: bytes | None) -> str:
    """The message group of a key: the key itself if it can be one, else its hash."""
    if not key:
        return "none"
    text = key.decode(errors="replace")
    if len(text) <= _GROUP_SIZE_MAX and not _NO_GROUP.search(text):
        return text
    return hashlib.blake2b(key, digest_size=32).hexdigest()
