"""How a record is a message of Kafka: key, value, headers, tombstones."""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import msgspec
from confluent_kafka import Message

from conduit_connectors.kafka.transactions import OutgoingMessage
from conduit_py.sdk import (
    Batch,
    Columns,
    Data,
    LazyColumn,
    Operation,
    RecordRefused,
    decode_json,
    encode_json,
    metadata,
)

HEADER = "kafka.header."
HEADERS = "kafka.headers"
"""Metadata for headers that text by name cannot carry: a JSON list of names and base64."""

Headers = Sequence[tuple[str, bytes | None]]


class MessageEncoder:
    """Makes messages of records. Raises RecordRefused for a record that Kafka cannot hold as it is."""

    def __init__(self, topic: str | None, topics: Mapping[str, "TopicLimits"], key_field: str | None) -> None:
        self._topic = topic
        self._topics = topics
        self._key_field = key_field

    def find_plain(self, batch: Batch) -> "Iterable[tuple[bytes, bytes | None]] | None":
        """The values and keys of a batch that needs no work at all, as from a Kafka source; None for any other."""
        columns = batch.columns or Columns()
        if batch.holds_records or batch.kind is not bytes or self._topic is None or self._key_field is not None:
            return None
        if columns.operations or (columns.metadata is not None and _have_headers(columns.metadata)):
            return None
        keys: Sequence[Any] = columns.keys or [None]
        kinds = set(map(type, keys))
        if not _KINDS_OF_KEYS.issuperset(kinds):
            return None
        longest = max(map(len, keys if kinds == {bytes} else filter(None, keys)), default=0)
        size = max(map(len, batch.payloads), default=0) + longest
        if not self._topics[self._topic].takes(size, has_keys=kinds == {bytes}):
            return None
        return zip(batch.payloads, columns.keys or repeat(None), strict=False)  # type: ignore[arg-type]

    def encode_batch(self, batch: Batch) -> tuple[list[OutgoingMessage], dict[int, str]]:
        """The messages of a batch in order, and why some of its records are refused."""
        messages: list[OutgoingMessage] = []
        refused: dict[int, str] = {}
        for index, parts in enumerate(_take_apart(batch)):
            try:
                messages.append(self._encode(*parts))
            except RecordRefused as error:
                refused[index] = error.message
        return messages, refused

    def _encode(
        self, operation: Operation, metadata: Mapping[str, str], key: Data, before: Data, after: Data
    ) -> OutgoingMessage:
        topic = self._topic or self._collection(metadata)
        raw = _to_bytes(key) if self._key_field is None else self._key(after if after is not None else before)
        deleted = operation is Operation.DELETE
        if raw is None and deleted:
            raise RecordRefused("is a delete without a key, which Kafka cannot express")
        if after is None and not deleted:
            raise RecordRefused("has no payload, which readers of Kafka would take for a delete")
        value = None if deleted else _to_bytes(after)
        headers = encode_headers(metadata) if metadata else []
        self._topics[topic].check(raw, value, headers)
        return OutgoingMessage(topic, raw, value, headers)

    def _collection(self, metadata: Mapping[str, str]) -> str:
        topic = metadata.get("opencdc.collection")
        if topic not in self._topics:
            raise RecordRefused(f"belongs to the collection {topic!r}, which is not among the `topics`")
        assert topic is not None
        return topic

    def _key(self, payload: Data) -> bytes | None:
        if not isinstance(payload, dict) or self._key_field not in payload:
            raise RecordRefused(f"has no field {self._key_field!r} for the key")
        value: Any = payload[self._key_field]
        return _encode_text(value, "a key") if isinstance(value, str) else _to_bytes(value)


def _have_headers(column: Sequence[dict[str, str]]) -> bool:
    if isinstance(column, LazyColumn) and column.make is make_metadata:
        # Messages as they were read: no metadata is made only to find none of their headers in it.
        return any(map(Message.headers, column.items))
    return not all(map(_NO_HEADERS.issuperset, column))


_NO_HEADERS = frozenset({metadata.COLLECTION, metadata.CREATED_AT, metadata.READ_AT, metadata.OPENCDC_VERSION})
"""Metadata that is common, and no header."""
_KINDS_OF_KEYS = frozenset({bytes, type(None)})
_Parts = tuple[Operation, Mapping[str, str], Data, Data, Data]


def _take_apart(batch: Batch) -> Iterable[_Parts]:
    """The parts of each record. A batch that holds payloads makes no records for that, and no positions."""
    if batch.holds_records or batch.kind not in (bytes, dict):
        return [
            (each.operation, each.metadata, each.key, each.payload.before, each.payload.after) for each in batch.records
        ]
    columns = batch.columns or Columns()
    return zip(
        columns.operations or repeat(Operation.CREATE),
        columns.metadata or repeat(_NO_METADATA),
        columns.keys or repeat(None),
        columns.befores or repeat(None),
        batch.payloads,
        strict=False,
    )


_NO_METADATA: Mapping[str, str] = {}


class TopicLimits:
    """What a topic takes, so that a record that it would refuse is refused alone, before it is sent."""

    def __init__(self, size_max: int, needs_key: bool) -> None:
        self.size_max = size_max
        self._needs_key = needs_key

    def takes(self, size: int, *, has_keys: bool) -> bool:
        """True for messages without headers whose keys and values have at most this size."""
        return size + _OVERHEAD <= self.size_max and (has_keys or not self._needs_key)

    def check(self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> None:
        """Raise RecordRefused if the topic cannot hold such a message."""
        if key is None and self._needs_key:
            raise RecordRefused("has no key, which a compacted topic needs")
        size = _OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
        if headers:
            size += sum(len(name.encode()) + len(content or b"") + 10 for name, content in headers)
        if size > self.size_max:
            raise RecordRefused(f"has {size} bytes, and the topic takes {self.size_max}")


_OVERHEAD = 100
"""More than Kafka adds to a batch of one message."""


def encode_headers(metadata: Mapping[str, str]) -> list[tuple[str, bytes | None]]:
    """The headers that metadata stands for. Raises RecordRefused for what cannot be one."""
    headers = _parse_headers(metadata[HEADERS]) if HEADERS in metadata else _plain_headers(metadata)
    for name, _ in headers:
        # The client library ends the process for half of a surrogate pair, and cuts a name at a NUL.
        if _NO_NAME.search(name):
            raise RecordRefused(f"has the header {name!r}, which is no name for Kafka")
    return headers


_TRACEPARENT, _trace_headers = metadata.TRACEPARENT, metadata.trace_headers
_NO_NAME = re.compile("[\0\ud800-\udfff]")


def _plain_headers(metadata: Mapping[str, str]) -> list[tuple[str, bytes | None]]:
    headers: list[tuple[str, bytes | None]] = [
        (name.removeprefix(HEADER), _encode_text(value, "a header"))
        for name, value in metadata.items()
        if name.startswith(HEADER)
    ]
    # A record of another system keeps its trace. One of Kafka has it among its headers already.
    if _TRACEPARENT in metadata and HEADER + _TRACEPARENT not in metadata:
        headers += [(name, value.encode()) for name, value in _trace_headers(metadata).items()]
    return headers


def _parse_headers(text: str) -> list[tuple[str, bytes | None]]:
    try:
        return [
            (name, None if content is None else b64decode(content, validate=True))
            for name, content in _HEADERS_DECODER.decode(text)
        ]
    except (ValueError, msgspec.MsgspecError) as error:
        raise RecordRefused(f"has metadata {HEADERS} that is no list of headers: {error}") from error


_HEADERS_DECODER = msgspec.json.Decoder(list[tuple[str, str | None]])


def make_metadata(message: Message, has_headers: bool = True) -> dict[str, str]:
    """The metadata of the record of a message."""
    made = {metadata.COLLECTION: message.topic() or "", metadata.CREATED_AT: f"{message.timestamp()[1]}000000"}
    if has_headers and (headers := message.headers()):
        made |= decode_headers(headers)  # type: ignore[arg-type]
    return made


def decode_headers(headers: Headers) -> dict[str, str]:
    """Metadata for headers. What text by name cannot carry is kept whole, as JSON (invariant 12)."""
    plain = {HEADER + name: _to_text(content) for name, content in headers}
    if len(plain) == len(headers) and None not in plain.values():
        return plain  # type: ignore[return-value]
    kept = [(name, None if content is None else b64encode(content).decode()) for name, content in headers]
    return {HEADERS: json.dumps(kept)}


def _to_text(content: bytes | None) -> str | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None


def _encode_text(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RecordRefused(f"has half of a surrogate pair in {what}, which is no text") from error


def _to_bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else encode_json(value)


def find_nameless(messages: Sequence[Message]) -> dict[int, str]:
    """The messages whose headers cannot be read, and why. Those of all others can be read from now on.

    For a name that is not UTF-8 the client library returns a list that must not be looked at, and leaves an error
    behind. A call in C looks for that error. A plain `message.headers()` does not once Python has optimised it, and the
    process would die. The second call for the same message has no error.
    """
    refused: dict[int, str] = {}
    found: list[object] = []
    calls = map(Message.headers, messages)
    while len(found) < len(messages):
        try:
            found.extend(calls)
        except SystemError:
            refused[len(found)] = "has a header whose name is not UTF-8"
            found.append(None)
    return refused


def parse_values(values: Sequence[bytes | None]) -> tuple[list[Any], dict[int, str]]:
    """Objects, and why some of the values are none; those stay bytes."""
    parsed: list[Any] = []
    refused: dict[int, str] = {}
    for index, value in enumerate(values):
        try:
            parsed.append(None if value is None else _parse_object(value))
        except RecordRefused as error:
            parsed.append(value)
            refused[index] = error.message
    return parsed, refused


def _parse_object(value: bytes) -> dict[str, Any]:
    parsed = decode_json(value)
    if not isinstance(parsed, dict):
        raise RecordRefused("is JSON, but no object")
    return parsed
