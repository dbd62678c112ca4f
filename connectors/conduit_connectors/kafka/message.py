"""How a record is a message of Kafka: key, value, headers, tombstones."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from conduit_connectors.kafka.transactions import OutgoingMessage
from conduit_py.sdk import Operation, Record, RecordRefused, encode_json

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

    def encode(self, record: Record) -> OutgoingMessage:
        topic = self._topic or self._collection(record)
        key = self._key(record)
        deleted = record.operation is Operation.DELETE
        value = None if deleted else _to_bytes(record.payload.after)
        if key is None and deleted:
            raise RecordRefused("is a delete without a key, which Kafka cannot express")
        headers = encode_headers(record.metadata) if record.metadata else []
        self._topics[topic].check(key, value, headers)
        return OutgoingMessage(topic, key, value, headers)

    def _collection(self, record: Record) -> str:
        topic = record.metadata.get("opencdc.collection")
        if topic not in self._topics:
            raise RecordRefused(f"belongs to the collection {topic!r}, which is not among the `topics`")
        assert topic is not None
        return topic

    def _key(self, record: Record) -> bytes | None:
        if self._key_field is None:
            return _to_bytes(record.key)
        payload = record.payload.before if record.payload.after is None else record.payload.after
        if not isinstance(payload, dict) or self._key_field not in payload:
            raise RecordRefused(f"has no field {self._key_field!r} for the key")
        value = payload[self._key_field]
        return value.encode() if isinstance(value, str) else _to_bytes(value)


class TopicLimits:
    """What a topic takes, so that a record that it would refuse is refused alone, before it is sent."""

    def __init__(self, size_max: int, needs_key: bool) -> None:
        self.size_max = size_max
        self._needs_key = needs_key

    def check(self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> None:
        """Raise RecordRefused if the topic cannot hold such a message."""
        if key is None and self._needs_key:
            raise RecordRefused("has no key, which a compacted topic needs")
        size = _OVERHEAD + len(key or b"") + len(value or b"")
        size += sum(len(name) + len(content or b"") + 10 for name, content in headers)
        if size > self.size_max:
            raise RecordRefused(f"has {size} bytes, and the topic takes {self.size_max}")


_OVERHEAD = 100
"""More than Kafka adds to a batch of one message."""


def encode_headers(metadata: Mapping[str, str]) -> list[tuple[str, bytes | None]]:
    """The headers that metadata stands for."""
    if HEADERS in metadata:
        try:
            return [
                (name, None if content is None else b64decode(content))
                for name, content in json.loads(metadata[HEADERS])
            ]
        except (ValueError, TypeError) as error:
            raise RecordRefused(f"has metadata {HEADERS} that is no list of headers: {error}") from error
    return [(name.removeprefix(HEADER), value.encode()) for name, value in metadata.items() if name.startswith(HEADER)]


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


def _to_bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else encode_json(value)
