"""Packing: a record as bytes, so that exactly the same record comes out again, Python values included.

The form is MessagePack with extension codes for what it has no type for, after a byte with the version.
Code of somebody else is never run: there is no pickle, and unpacking makes nothing but these types.
"""

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from conduit_py.errors import RecordRefused
from conduit_py.record import Operation, Payload, Record

VERSION = b"\x01"


def encode_record(record: Record) -> bytes:
    """The record as bytes. A value that they cannot carry raises RecordRefused naming it (invariant 12)."""
    try:
        return VERSION + _ENCODER.encode(_fields(record))
    except RecursionError as error:
        raise RecordRefused("is nested too deeply to be kept") from error


def decode_record(packed: bytes) -> Record:
    """The record of which `encode_record` made these bytes. Others raise ValueError."""
    if packed[:1] != VERSION:
        raise ValueError(f"a packed record of version {packed[:1].hex() or 'nothing'}; known is {VERSION.hex()}")
    position, operation, metadata, key, before, after = _DECODER.decode(packed[1:])
    return Record(position, Operation(operation), metadata, key, Payload(before, after))


def _fields(record: Record) -> list[Any]:
    payload = record.payload
    return [
        _plain(record.position, "position"),
        str(record.operation),
        _plain(record.metadata, "metadata"),
        _plain(record.key, "key"),
        _plain(payload.before, "payload.before"),
        _plain(payload.after, "payload.after"),
    ]


def _plain(value: Any, path: str) -> Any:
    """The value in types that MessagePack carries as they are, and extensions."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**64 else _extended(int, hex(value))
    if kind is str:
        return value if _encodes(value) else _extended(str, value.encode("utf-8", "surrogatepass"))
    if kind is list:
        return [_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if kind is dict:
        return _plain_dict(value, path)
    if kind in (tuple, set, frozenset):
        return _extended(kind, _ENCODER.encode([_plain(item, f"{path}[…]") for item in value]))
    if kind in _TEXTS:
        return _extended(kind, _TEXTS[kind](value))
    raise RecordRefused(
        f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be kept",
        suggestion="keep plain values in records: numbers, text, bytes, dates, lists and dicts",
    )


def _plain_dict(value: dict[Any, Any], path: str) -> Any:
    if all(type(key) is str and _encodes(key) for key in value):
        return {key: _plain(item, f"{path}.{key}") for key, item in value.items()}
    pairs = [[_plain(key, f"{path} key"), _plain(item, f"{path}.{key}")] for key, item in value.items()]
    return _extended(dict, _ENCODER.encode(pairs))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _extended(kind: type[Any], data: str | bytes) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(_KINDS.index(kind) + 1, data.encode() if isinstance(data, str) else data)


def _datetime_text(value: datetime) -> str:
    zone = value.tzinfo.key if isinstance(value.tzinfo, ZoneInfo) and value.tzinfo.key else ""
    # With the name of its zone the offset says nothing new, and would make another object of it.
    text = (value.replace(tzinfo=None) if zone else value).isoformat()
    return f"{text} {value.fold} {zone}"


def _datetime(text: str) -> datetime:
    said, fold, zone = text.split(" ", 2)
    value = datetime.fromisoformat(said).replace(fold=int(fold))
    return value.replace(tzinfo=ZoneInfo(zone)) if zone else value


def _timedelta_text(value: timedelta) -> str:
    return f"{value.days} {value.seconds} {value.microseconds}"


_AS_THEY_ARE = {type(None), bool, float, bytes}
_TEXTS: dict[type[Any], Callable[[Any], str]] = {
    Decimal: str,
    datetime: _datetime_text,
    date: date.isoformat,
    time: lambda value: f"{value.isoformat()} {value.fold}",
    timedelta: _timedelta_text,
    UUID: str,
    bytearray: bytearray.hex,
}
_KINDS: list[type[Any]] = [
    int, str, tuple, set, frozenset, dict, Decimal, datetime, date, time, timedelta, UUID, bytearray,
]  # fmt: skip
"""The code of a type is its place here, from 1 on: new ones go to the end."""


def _revived(code: int, data: memoryview) -> Any:
    raw = bytes(data)
    if not 0 < code <= len(_KINDS):
        raise ValueError(f"extension {code} is not known")
    return _MADE_OF[_KINDS[code - 1]](raw)


def _time(text: str) -> time:
    said, fold = text.split(" ")
    return time.fromisoformat(said).replace(fold=int(fold))


_MADE_OF: dict[type[Any], Callable[[bytes], Any]] = {
    int: lambda raw: int(raw, 16),
    str: lambda raw: raw.decode("utf-8", "surrogatepass"),
    tuple: lambda raw: tuple(_DECODER.decode(raw)),
    set: lambda raw: set(_DECODER.decode(raw)),
    frozenset: lambda raw: frozenset(_DECODER.decode(raw)),
    dict: lambda raw: dict(map(tuple, _DECODER.decode(raw))),
    Decimal: lambda raw: Decimal(raw.decode()),
    datetime: lambda raw: _datetime(raw.decode()),
    date: lambda raw: date.fromisoformat(raw.decode()),
    time: lambda raw: _time(raw.decode()),
    timedelta: lambda raw: timedelta(*map(int, raw.split())),
    UUID: lambda raw: UUID(raw.decode()),
    bytearray: lambda raw: bytearray.fromhex(raw.decode()),
}
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_revived)
