"""Values of records in a form that a state gives back exactly: a decimal stays a decimal, a date a date."""

from types import NoneType
from typing import Any, Final

import msgspec

from conduit_py.sdk import decode_payload, encode_payload

_AS_THEY_ARE: Final = frozenset({NoneType, bool, float, str, bytes})
"""What a state itself gives back exactly, or refuses."""
_CODE: Final = 1
"""On disks: a value with this code is encoded as payloads of records are."""


def to_state(value: Any) -> Any:
    """Return a form of a value to put into a state. A value that cannot be kept exactly is refused."""
    kind = type(value)
    if kind in _AS_THEY_ARE or (kind is int and -(2**63) <= value < 2**64):
        return value
    # MessagePack has no decimals, dates, times without a zone or UUIDs, and would make texts of them.
    return msgspec.msgpack.Ext(_CODE, encode_payload(value))


def from_state(kept: Any) -> Any:
    """Return the value that `to_state` was given. Values that earlier versions have put come back as they are."""
    return decode_payload(bytes(kept.data)) if isinstance(kept, msgspec.msgpack.Ext) else kept
