"""The body of a message in a journal: a record without its position, which is the journal's own."""

from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from conduit_py.errors import RecordRefused
from conduit_py.record import Data, Operation, Payload, Record
from conduit_py.record_codec import decode_record, decode_records, encode_record

# A partial, not a function: its call is free, and a journal makes one for every record.
encode_body: Callable[[Record], bytes] = partial(encode_record, with_position=False)
"""The body of a record. A value that it cannot carry raises RecordRefused naming it (invariant 12)."""


def decode_bodies(bodies: Sequence[bytes], positions: Sequence[bytes]) -> list[Record] | None:
    """The records in bodies, all in one go; None when one of them is no record, or an old one."""
    try:
        return decode_records(bodies, positions)
    except ValueError:
        return None


def decode_body(body: bytes, position: bytes) -> Record:
    """The record in a body; what is none raises RecordRefused."""
    try:
        if body and body[0] == _FIRST_FORM:
            return _decode_first_form(body, position)
        return decode_record(body, position)
    except (msgspec.DecodeError, ValueError, ArithmeticError) as error:
        raise RecordRefused(f"is not a record: {error}") from error


# The form of journals up to version 0.1: an array of five without a version, with extensions of its own. It kept
# neither the zone of a datetime nor its fold, which is why nothing is written in it any more.
_FIRST_FORM = 0x95


def _decode_first_form(body: bytes, position: bytes) -> Record:
    operation, metadata, key, before, after = _FIRST_DECODER.decode(body)
    return Record(position, operation, metadata, key, Payload(before, after))


def _decode_extension(code: int, data: memoryview) -> Any:
    read = _READERS.get(code)
    if read is None:
        raise ValueError(f"it has an extension {code} that this version does not know")
    return read(bytes(data))


_READERS: dict[int, Callable[[bytes], Any]] = {
    1: int,
    2: lambda data: Decimal(data.decode()),
    3: lambda data: datetime.fromisoformat(data.decode()),
    4: lambda data: date.fromisoformat(data.decode()),
    5: lambda data: time.fromisoformat(data.decode()),
    6: lambda data: timedelta(*map(int, data.split())),
    7: lambda data: UUID(data.decode()),
    8: lambda data: tuple(_FIRST_ANY.decode(data)),
}
_FIRST_ANY: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_decode_extension)
_FIRST_DECODER = msgspec.msgpack.Decoder(tuple[Operation, dict[str, str], Data, Data, Data], ext_hook=_decode_extension)
