"""Envelopes: the object in a field that wraps a record, and the key that comes with it."""

from conduit_py.sdk import Data, Record, RecordRefused, Structured, decode_json
from conduit_py.sdk.template import FieldPath, kind_of, text_of


def open_envelope(field: FieldPath, record: Record) -> Structured:
    """The object in `field`, which is structured data or its JSON; anything else is refused."""
    value = field.get(record)
    if isinstance(value, (bytes, str)):
        try:
            value = decode_json(value)
        except RecordRefused as refused:
            raise RecordRefused(f"{field}: {refused.message}") from refused
    if not isinstance(value, dict):
        raise RecordRefused(f"{field}: there is nothing to unwrap: it is {kind_of(value)} and not an object")
    return value


def as_data(value: object, name: str) -> Data:
    """One side of a change: an object as structured data, text as raw bytes, null as absent."""
    if value is None or isinstance(value, dict):
        return value
    if isinstance(value, str):
        return value.encode()
    raise RecordRefused(f"{name} must be an object, text or null; it is {kind_of(value)}")


def unwrap_key(key: Data) -> Data:
    """The `payload` of a key in an envelope: an object as structured data, a scalar as text in raw bytes.

    Any other key is returned as it is.
    """
    content = _key_object(key)
    if content is None or "payload" not in content:
        return key
    payload = content["payload"]
    if payload is None or isinstance(payload, dict):
        return payload
    return text_of(payload, ".Key").encode()


def _key_object(key: Data) -> Structured | None:
    if isinstance(key, bytes):
        # The first byte tells most keys that are not objects, without the cost of an error.
        if not key.lstrip().startswith(b"{"):
            return None
        try:
            decoded: Structured = decode_json(key)
        except RecordRefused:
            return None
        return decoded
    return key
