"""The one encoding of records, for the store, the journal, Spark and worker processes: the same record comes back.

The form is a MessagePack array that begins with a version. What MessagePack has no type for is an extension.
There is no pickle: decoding runs nobody else's code, and makes nothing but the types named here.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from types import NoneType
from typing import Any, Literal, NoReturn
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from conduit_py.batch import Batch, Piece, Span
from conduit_py.errors import FatalError, RecordRefused
from conduit_py.payloads import to_plain
from conduit_py.record import CollectionSchema, Operation, Payload, Record

VERSION = 2
"""Version 1 was a byte 1 and then the array without a version; it is still read."""


def encode_record(record: Record, *, with_position: bool = True) -> bytes:
    """The record as bytes. A value that they cannot carry raises RecordRefused naming it (invariant 12).

    Without its position, which means something only to the source it came from, the record has an empty one.
    """
    payload, metadata, key = record.payload, record.metadata, record.key
    before, after = payload.before, payload.after
    position = record.position if with_position else b""
    fields = (VERSION, position, record.operation, metadata, key, before, after)
    try:
        # The check of a flat dict is written out, because most records are one, and a call costs a tenth of it all.
        if (
            (
                (type(after) is dict and _is_all_plain(map(type, after.values())) and _is_all_text(map(type, after)))
                or _is_plain(after)
            )
            and (key is None or _is_plain(key))
            and (before is None or _is_plain(before))
            and (not metadata or _is_all_text(map(type, metadata.values())))
        ):
            return _ENCODER.encode(fields)
    except (OverflowError, UnicodeEncodeError):
        # An integer of more than 64 bits or a lone surrogate, which `_is_plain` does not look for.
        pass
    except RecursionError as error:
        raise _nested_too_deeply() from error
    # Invariant 12: what MessagePack itself would change is encoded exactly, or refused by name.
    return _encode_extended(fields)


def decode_record(encoded: bytes, position: bytes | None = None) -> Record:
    """The record that `encode_record` encoded; with `position` it gets that one. Other bytes raise ValueError."""
    try:
        if encoded and encoded[0] == _V1:
            own, operation, metadata, key, before, after = _V1_DECODER.decode(memoryview(encoded)[1:])
        else:
            _, own, operation, metadata, key, before, after = _DECODER.decode(encoded)
    except (msgspec.DecodeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"not an encoded record, or one of a later version: {error}") from error
    return Record(own if position is None else position, operation, metadata, key, Payload(before, after))


def decode_records(encoded: Sequence[bytes], positions: Sequence[bytes]) -> list[Record]:
    """The records, each with its position of those given. Bytes that are no record raise ValueError."""
    try:
        # One expression, because a source decodes every record of a journal here.
        return [
            Record(position, operation, metadata, key, Payload(before, after))
            for position, (_, _, operation, metadata, key, before, after) in zip(
                positions, map(_DECODER.decode, encoded), strict=True
            )
        ]
    except msgspec.DecodeError:
        return [decode_record(each, position) for each, position in zip(encoded, positions, strict=True)]


def encode_payload(value: Any) -> bytes:
    """A payload without its record, as bytes. A value that they cannot carry raises RecordRefused (invariant 12)."""
    try:
        if _is_plain(value):
            return _ENCODER.encode(value)
    except (OverflowError, UnicodeEncodeError):
        # As above: what `_is_plain` does not look for.
        pass
    except RecursionError as error:
        raise _nested_too_deeply() from error
    try:
        return _ENCODER.encode(_carry(value, "payload.after"))
    except RecursionError as error:
        raise _nested_too_deeply() from error


def decode_payload(encoded: bytes) -> Any:
    """The payload that `encode_payload` encoded, or the list of `encode_all`."""
    return _ANY.decode(encoded)


def encode_all(values: Sequence[Any]) -> bytes | None:
    """Payloads or None, as one list; None if there is one among them that MessagePack itself would change."""
    kinds = {*map(type, values)}
    if not kinds <= _TOGETHER:
        return None
    rows = values if kinds == {dict} else [value for value in values if type(value) is dict]
    try:
        # All values and all keys in one look each: a call for each payload costs twice as much.
        flat = _is_all_plain(map(type, chain.from_iterable(map(dict.values, rows))))
        if (flat and _is_all_text(map(type, chain.from_iterable(rows)))) or all(map(_is_plain, rows)):
            return _ENCODER.encode(values)
    except (OverflowError, UnicodeEncodeError, RecursionError):
        pass
    return None


class EncodedBatch(msgspec.Struct, frozen=True):
    """A batch for another process. Its values are encoded records or, if `kind` is not "record", encoded payloads."""

    kind: Literal["record", "dict", "bytes", "mixed"]
    values: list[bytes]
    owner: tuple[str, str, str, str] = ("", "", "", "")
    """Pipeline, source, origin and scope of the span."""
    sequences: list[int] | None = None
    """None if identities are not needed there; the rest is empty then."""
    positions: list[bytes] = []
    pieces: list[Piece] | None = None
    schemas: dict[str, CollectionSchema] = {}
    together: bytes | None = None
    """All payloads in one list, in place of `values`, if they can be encoded so."""

    @classmethod
    def of(cls, batch: Batch, *, identities: bool) -> "EncodedBatch":
        """Encode a batch. Raises RecordRefused if a value cannot be encoded. Payloads of the user's types are dicts."""
        kind: Literal["record", "dict", "bytes", "mixed"] = "record"
        values, together = list[bytes](), None
        if batch.holds_records:
            values = list(map(encode_record, batch.records))
        elif batch.kind is dict or batch.kind is bytes:
            kind, together = "dict" if batch.kind is dict else "bytes", encode_all(batch.payloads)
            values = list(map(encode_payload, batch.payloads)) if together is None else []
        else:
            kind, values = "mixed", [encode_payload(to_plain(payload)) for payload in batch.payloads]
        span = batch.span
        owner = (span.pipeline, span.source, span.origin, span.scope)
        if not identities:
            return cls(kind, values, owner, together=together)
        pieces = None if batch.pieces is None else list(batch.pieces)
        sequences, positions = list(batch.sequences), list(batch.positions)
        return cls(kind, values, owner, sequences, positions, pieces, dict(span.schemas), together)

    def decode(self) -> Batch:
        """The batch again, to which no handler of fates can be added."""
        payloads: list[Any] = self.values if self.together is None else decode_payload(self.together)
        sequences = self.sequences if self.sequences is not None else range(len(payloads))
        first = sequences[0]
        # Of the messages that a processor has filtered no position is here, and none is needed.
        positions = [b""] * (sequences[-1] + 1 - first) if self.positions else []
        for sequence, position in zip(sequences, self.positions, strict=False):
            positions[sequence - first] = position
        pipeline, source, origin, scope = self.owner
        span = Span(pipeline, source, first, positions, origin=origin, scope=scope, schemas=self.schemas)
        span.fate_handlers = _NoFates()
        if self.kind == "record":
            return Batch(span, list(map(decode_record, self.values)), sequences, self.pieces)
        kind = {"dict": dict, "bytes": bytes}.get(self.kind)
        if self.together is None:
            payloads = list(map(decode_payload, payloads))
        return Batch.of_payloads(span, payloads, sequences, self.pieces, kind)


class _NoFates(dict[int, Any]):
    """Refuses handlers of fates: messages are settled in another process, where nobody would call them."""

    def setdefault(self, key: int, default: Any = None) -> NoReturn:
        what = 'on_fate cannot be used with where="process": messages are settled in another process'
        raise FatalError(what, suggestion='use where="thread"')


_PLAIN = frozenset({str, int, float, bool, NoneType, bytes})
_NESTED = frozenset({dict, list})
_TOGETHER = frozenset({dict, bytes, NoneType})
_is_all_plain = _PLAIN.issuperset
_is_all_text = frozenset({str}).issuperset


def _is_plain(value: Any) -> bool:
    """Whether MessagePack itself carries everything in a value exactly. Most records are flat: one look does."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is dict:
        # A key of another type would come back as text, or not at all.
        if not _is_all_text(map(type, value)):
            return False
        items: Iterable[Any] = value.values()
    elif kind is list:
        items = value
    else:
        return False
    if _is_all_plain(map(type, items)):
        return True
    return all(type(item) in _PLAIN or (type(item) in _NESTED and _is_plain(item)) for item in items)


def _encode_extended(fields: tuple[Any, ...]) -> bytes:
    version, position, operation, *rest = fields
    names = ("metadata", "key", "payload.before", "payload.after")
    try:
        carried = [_carry(value, name) for name, value in zip(names, rest, strict=True)]
        return _ENCODER.encode([version, _carry(position, "position"), operation, *carried])
    except RecursionError as error:
        raise _nested_too_deeply() from error


def _nested_too_deeply() -> RecordRefused:
    return RecordRefused("is nested too deeply to be encoded")


def _carry(value: Any, path: str) -> Any:
    """The value in types that MessagePack carries exactly, and extensions."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**64 else _extension(int, hex(value))
    if kind is str:
        return value if _encodes(value) else _extension(str, value.encode("utf-8", "surrogatepass"))
    if kind is list:
        return [_carry(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if kind is dict:
        return _carry_dict(value, path)
    if kind in (tuple, set, frozenset):
        return _extension(kind, _ENCODER.encode([_carry(item, f"{path}[…]") for item in value]))
    if kind in _TEXTS:
        return _extension(kind, _TEXTS[kind](value))
    raise RecordRefused(
        f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be encoded",
        suggestion="keep plain values in records: numbers, text, bytes, dates, lists and dicts",
    )


def _carry_dict(value: dict[Any, Any], path: str) -> Any:
    if all(type(key) is str and _encodes(key) for key in value):
        return {key: _carry(item, f"{path}.{key}") for key, item in value.items()}
    pairs = [[_carry(key, f"{path} key"), _carry(item, f"{path}.{key}")] for key, item in value.items()]
    return _extension(dict, _ENCODER.encode(pairs))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _extension(kind: type[Any], data: str | bytes) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(_KINDS.index(kind) + 1, data.encode() if isinstance(data, str) else data)


_AS_THEY_ARE = {NoneType, bool, float, bytes}
_KINDS: list[type[Any]] = [
    int, str, tuple, set, frozenset, dict, Decimal, datetime, date, time, timedelta, UUID, bytearray,
]  # fmt: skip
"""The code of a type is its place here, from 1 on. These codes are on disks: new types go to the end."""


def _datetime_text(value: datetime) -> str:
    zone = _zone_name(value)
    # With the name of its zone the offset says nothing new, and would make another object of it.
    text = (value.replace(tzinfo=None) if zone else value).isoformat()
    return f"{text} {value.fold} {zone}"


def _datetime(text: str) -> datetime:
    said, fold, zone = text.split(" ", 2)
    value = datetime.fromisoformat(said).replace(fold=int(fold))
    return value.replace(tzinfo=_zone(zone)) if zone else value


def _time_text(value: time) -> str:
    zone = _zone_name(value)
    text = (value.replace(tzinfo=None) if zone else value).isoformat()
    return f"{text} {value.fold} {zone}" if zone else f"{text} {value.fold}"


def _time(text: str) -> time:
    # Earlier versions wrote no zone: two words.
    said, fold, *zone = text.split(" ", 2)
    value = time.fromisoformat(said).replace(fold=int(fold))
    return value.replace(tzinfo=_zone(zone[0])) if zone else value


def _zone_name(value: datetime | time) -> str:
    return (value.tzinfo.key or "") if isinstance(value.tzinfo, ZoneInfo) else ""


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except ZoneInfoNotFoundError as error:
        raise ValueError(f"the time zone {name!r} is not known on this machine") from error


_TEXTS: dict[type[Any], Callable[[Any], str]] = {
    Decimal: str,
    datetime: _datetime_text,
    date: date.isoformat,
    time: _time_text,
    timedelta: lambda value: f"{value.days} {value.seconds} {value.microseconds}",
    UUID: str,
    bytearray: bytearray.hex,
}


def _decode_extension(code: int, data: memoryview) -> Any:
    if not 0 < code <= len(_KINDS):
        raise ValueError(f"extension {code} is not known")
    return _READERS[_KINDS[code - 1]](bytes(data))


_READERS: dict[type[Any], Callable[[bytes], Any]] = {
    int: lambda raw: int(raw, 16),
    str: lambda raw: raw.decode("utf-8", "surrogatepass"),
    tuple: lambda raw: tuple(_ANY.decode(raw)),
    set: lambda raw: set(_ANY.decode(raw)),
    frozenset: lambda raw: frozenset(_ANY.decode(raw)),
    dict: lambda raw: dict(map(tuple, _ANY.decode(raw))),
    Decimal: lambda raw: Decimal(raw.decode()),
    datetime: lambda raw: _datetime(raw.decode()),
    date: lambda raw: date.fromisoformat(raw.decode()),
    time: lambda raw: _time(raw.decode()),
    timedelta: lambda raw: timedelta(*map(int, raw.split())),
    UUID: lambda raw: UUID(raw.decode()),
    bytearray: lambda raw: bytearray.fromhex(raw.decode()),
}
_ENCODER = msgspec.msgpack.Encoder()
_ANY: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_decode_extension)
_DECODER = msgspec.msgpack.Decoder(tuple[Literal[2], Any, Operation, Any, Any, Any, Any], ext_hook=_decode_extension)
_V1 = 1
_V1_DECODER = msgspec.msgpack.Decoder(tuple[Any, Operation, Any, Any, Any, Any], ext_hook=_decode_extension)
