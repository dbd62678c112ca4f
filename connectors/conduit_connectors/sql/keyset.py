"""Rows in the order of a key: the position of each is its values, from which the rows after it are found again."""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from conduit_py.sdk import FatalError, foreign_position

KeyValues: TypeAlias = tuple[Any, ...]

_VERSION = 1


class KeyPosition(msgspec.Struct, frozen=True):
    """The values of a row in the columns of the order, each with its type."""

    version: int
    values: tuple[tuple[str, str], ...]


class KeyRange(msgspec.Struct, frozen=True, array_like=True):
    """The rows after one position, up to that of another and with it; the columns of the table, and its key."""

    after: bytes | None
    until: bytes
    columns: list[str]
    key: list[str]

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, encoded: bytes) -> "KeyRange":
        return msgspec.msgpack.decode(encoded, type=cls)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(KeyPosition)
_TAGS: Mapping[type, str] = {
    int: "int",
    str: "text",
    Decimal: "decimal",
    datetime: "time",
    date: "date",
    UUID: "uuid",
    bytes: "bytes",
}
_WRITERS: Mapping[str, Callable[[Any], str]] = {
    "time": datetime.isoformat,
    "date": date.isoformat,
    "bytes": bytes.hex,
}
_READERS: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "text": str,
    "decimal": Decimal,
    "time": datetime.fromisoformat,
    "date": date.fromisoformat,
    "uuid": UUID,
    "bytes": bytes.fromhex,
}


def encode_key(values: Sequence[Any]) -> bytes:
    """Return the position of the row with these values, which `check_keys` has seen."""
    tagged = []
    for value in values:
        tag = _TAGS[type(value)]
        tagged.append((tag, _WRITERS.get(tag, str)(value)))
    return _ENCODER.encode(KeyPosition(_VERSION, tuple(tagged)))


def decode_key(position: bytes, columns: Sequence[str]) -> KeyValues:
    """Return the values in a position. Raises FatalError if it is no position of rows in the order of these columns."""
    try:
        found = _DECODER.decode(position)
        if found.version != _VERSION:
            raise ValueError(f"its version is {found.version}")
        values = tuple(_READERS[tag](text) for tag, text in found.values)
    except (msgspec.DecodeError, ValueError, ArithmeticError, LookupError) as error:
        raise foreign_position(position, reason=error) from error
    if len(values) != len(columns):
        raise FatalError(
            f"the position has {len(values)} values, and rows are now ordered by {', '.join(columns)}",
            suggestion="order by the columns of before, or give the source a new id to start afresh",
        )
    return values


def check_keys(keys: Sequence[KeyValues], columns: Sequence[str]) -> None:
    """Raise FatalError if rows could not be found again by these values, given in the order in which they were read."""
    for key in keys:
        for name, value in zip(columns, key, strict=True):
            _check_value(name, value)
    for key, following in pairwise(keys):
        if key == following:
            shown = ", ".join(map(str, key))[:200]
            raise FatalError(
                f"several rows have {', '.join(columns)} = {shown}, so one of them would be lost",
                suggestion="order by columns that are unique together: add to `key`",
            )


def _check_value(name: str, value: Any) -> None:
    if value is None:
        raise FatalError(
            f"a row has no {name}, so its place in the order is unknown",
            suggestion=f"leave such rows out, or make {name} NOT NULL",
        )
    if type(value) not in _TAGS or value != value:
        raise FatalError(
            f"a row has a {type(value).__name__} in {name}, which gives no exact order to resume in",
            suggestion="order by integers, decimals, text, dates or timestamps",
        )
