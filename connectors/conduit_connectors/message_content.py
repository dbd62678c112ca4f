"""What a record is as a message of a broker: a body, a key, and attributes from its metadata."""

from typing import Any, Literal, TypedDict, TypeVar

import msgspec
from pydantic import Field

from conduit_py.sdk import (
    Batch,
    DestinationConnector,
    Options,
    Record,
    RecordRefused,
    WriteGuarantee,
    encode_json,
    metadata,
)


class MessageOptions(Options):
    """What of a record is sent, for every destination that sends messages."""

    body: Literal["payload", "record"] = Field(
        default="payload", description="what is sent: `payload.after`, or the whole record in its JSON form"
    )
    metadata: list[str] = Field(default=[], description="the metadata to send along, by name, if the record has it")


class MessageArguments(TypedDict, total=False):
    """MessageOptions as a caller writes them, for editors and type checkers."""

    body: Literal["payload", "record"]
    metadata: list[str]


OptionsT = TypeVar("OptionsT", bound=MessageOptions, covariant=True)


class KeyWindowDestination(DestinationConnector[OptionsT]):
    """A destination whose server ignores a message with a key that it has seen, within a window of time.

    Its options have `window_covers_restarts`: only the operator can say how long the pipeline may be down.
    """

    @property
    def guarantee(self) -> WriteGuarantee:  # type: ignore[override]
        options: Any = self._options
        covered = options is not None and options.window_covers_restarts
        return WriteGuarantee.IDEMPOTENT if covered else WriteGuarantee.AT_LEAST_ONCE


class MessageContent(msgspec.Struct, frozen=True):
    """The content of one message."""

    body: bytes
    attributes: dict[str, str]
    key: bytes | None


def encode_messages(batch: Batch, options: MessageOptions) -> tuple[dict[int, MessageContent], dict[int, str]]:
    """The messages of a batch by the index of their record, in order; and why others are refused."""
    messages: dict[int, MessageContent] = {}
    refused: dict[int, str] = {}
    for index, record in enumerate(batch):
        try:
            messages[index] = _encode(record, options)
        except RecordRefused as error:
            refused[index] = error.message
    return messages, refused


def _encode(record: Record, options: MessageOptions) -> MessageContent:
    if options.body == "record":
        body = record.to_json()
    elif record.payload.after is None:
        raise RecordRefused('has no payload.after, so there is nothing to send (body="record" sends whole records)')
    else:
        after = record.payload.after
        body = after if isinstance(after, bytes) else encode_json(after)
    attributes = {name: record.metadata[name] for name in options.metadata if name in record.metadata}
    # SQS takes ten attributes at most.
    if record.metadata and len(attributes) <= 8:
        attributes |= metadata.trace_headers(record.metadata)
    for name, value in attributes.items():
        if not value.isascii():
            _check_text(name, value)
    key = record.key
    return MessageContent(body, attributes, key if key is None or isinstance(key, bytes) else encode_json(key))


def _check_text(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RecordRefused(f"has half of a surrogate pair in its metadata {name!r}, which is no text") from error
