"""Keys of records as text, for the state of a processor: another text for each value."""

from typing import Any, Final

import msgspec

from conduit_py.sdk import Record, RecordRefused
from conduit_py.sdk.template import FieldPath

KEY_BYTES_MAX: Final = 1024
"""A key is kept for long. A record with a longer one is refused."""

_ENCODER: Final = msgspec.msgpack.Encoder(order="deterministic")
_decode: Final = msgspec.msgpack.Decoder().decode


def key_of(record: Record, field: FieldPath | None) -> str:
    """Return the key of a record: another text for each value. 1, 1.0, true and "1" differ."""
    try:
        encoded = _ENCODER.encode(None if field is None else field.get(record))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RecordRefused(f"{field} cannot be a key: {error}") from error
    if len(encoded) > KEY_BYTES_MAX:
        raise RecordRefused(f"{field} has {len(encoded)} bytes, and a key at most {KEY_BYTES_MAX}")
    # One character for each byte: keys of a state are text.
    return encoded.decode("latin-1")


def key_value(text: str) -> Any:
    """Return the value of a key."""
    return _decode(text.encode("latin-1"))
