"""Records as bodies of messages: MessagePack, every Python value of a record exactly as it was."""

from collections.abc import Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any
from uuid import UUID

import msgspec

from conduit_py.errors import RecordRefused
from conduit_py.record import Data, Operation, Payload, Record


def encode_body(record: Record) -> bytes:
    """The body of a record, without its position, which means something only where it came from."""
    payload = record.payload
    key, before, after = record.key, payload.before, payload.after
    fields = (record.operation, record.metadata, key, before, after)
    try:
        if not (_is_plain(after) and _is_plain(key) and _is_plain(before)):
            fields = (*fields[:2], *(_carried(each) for each in fields[2:]))
        return _ENCODER.encode(fields)
    except OverflowError:
        # An integer of more than 64 bits, which the quick look takes for any other.
        return _ENCODER.encode((*fields[:2], *(_carried(each) for each in fields[2:])))
    except (UnicodeEncodeError, RecursionError) as error:
        raise RecordRefused(f"cannot be written to a journal: {error}") from error


def decode_bodies(bodies: Sequence[bytes], positions: Sequence[bytes]) -> list[Record] | None:
    """The records in bodies, all in one go; None when one of them is no record."""
    try:
        return [
            Record(position, operation, metadata, key, Payload(before, after))
            for position, (operation, metadata, key, before, after) in zip(
                positions, map(_DECODER.decode, bodies), strict=True
            )
        ]
    except _UNREADABLE:
        return None


def decode_body(body: bytes, position: bytes) -> Record:
    """The record in a body; what is none raises RecordRefused."""
    try:
        operation, metadata, key, before, after = _DECODER.decode(body)
    except _UNREADABLE as error:
        raise RecordRefused(f"is not a record: {error}") from error
    return Record(position, operation, metadata, key, Payload(before, after))


_UNREADABLE = (msgspec.DecodeError, ValueError, ArithmeticError)
_PLAIN = frozenset({str, int, float, bool, NoneType, bytes})
_NESTED = frozenset({dict, list})


def _is_plain(value: Any) -> bool:
    """Whether MessagePack has a form of its own for everything in a value. Most records are flat: one look does."""
    kind = type(value)
    if kind in _PLAIN or (kind is dict and _PLAIN.issuperset(map(type, value.values()))):
        return True
    items: Iterable[Any] = value.values() if kind is dict else value if kind is list else ()
    kinds = set(map(type, items))
    if kinds <= _PLAIN:
        return kind in _NESTED
    return kinds <= _PLAIN | _NESTED and all(_is_plain(item) for item in items if type(item) in _NESTED)


_BIG, _DECIMAL, _DATETIME, _DATE, _TIME, _TIMEDELTA, _UUID, _TUPLE = range(1, 9)
_INT64 = range(-(2**63), 2**64)


def _carried(value: Any) -> Any:
    """A value with what MessagePack does not know put into extensions; anything else is refused by name."""
    kind = type(value)
    if kind is dict:
        return {key: _carried(item) for key, item in value.items()}
    if kind is list:
        return [_carried(item) for item in value]
    if kind is int and value not in _INT64:
        return msgspec.msgpack.Ext(_BIG, str(value).encode())
    if kind in _PLAIN:
        return value
    if kind is tuple:
        return msgspec.msgpack.Ext(_TUPLE, _ENCODER.encode([_carried(item) for item in value]))
    if kind not in _TEXTS:
        raise RecordRefused(f"holds a {kind.__qualname__}, which a journal cannot carry (convert it first)")
    code, text = _TEXTS[kind]
    return msgspec.msgpack.Ext(code, text(value).encode())


_TEXTS: dict[type, tuple[int, Any]] = {
    Decimal: (_DECIMAL, str),
    datetime: (_DATETIME, datetime.isoformat),
    date: (_DATE, date.isoformat),
    time: (_TIME, time.isoformat),
    timedelta: (_TIMEDELTA, lambda each: f"{each.days} {each.seconds} {each.microseconds}"),
    UUID: (_UUID, str),
}


def _extension(code: int, data: memoryview) -> Any:
    read = _READERS.get(code)
    if read is None:
        raise ValueError(f"it has an extension {code} that this version does not know")
    return read(bytes(data))


def _tuple(data: bytes) -> tuple[Any, ...]:
    return tuple(_ANY.decode(data))


_READERS: dict[int, Any] = {
    _BIG: int,
    _DECIMAL: lambda data: Decimal(data.decode()),
    _DATETIME: lambda data: datetime.fromisoformat(data.decode()),
    _DATE: lambda data: date.fromisoformat(data.decode()),
    _TIME: lambda data: time.fromisoformat(data.decode()),
    _TIMEDELTA: lambda data: timedelta(*map(int, data.split())),
    _UUID: lambda data: UUID(data.decode()),
    _TUPLE: _tuple,
}

_ENCODER = msgspec.msgpack.Encoder()
_ANY = msgspec.msgpack.Decoder(ext_hook=_extension)
_DECODER = msgspec.msgpack.Decoder(tuple[Operation, dict[str, str], Data, Data, Data], ext_hook=_extension)
