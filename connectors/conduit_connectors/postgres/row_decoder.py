"""ColumnDecoder: the rows of a table as dicts of values, from messages of the log or from the results of a SELECT."""

from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from struct import Struct, error
from typing import Any, Final

import msgspec

from conduit_connectors.postgres.column_values import (
    Decode,
    ReadType,
    decode_boolean,
    decode_jsonb_value,
    decode_timestamp,
)
from conduit_connectors.postgres.pgoutput import RowValues, UnchangedValue
from conduit_py.sdk import JSON_DEPTH_MAX, RecordRefused


class DecodedRow(msgspec.Struct, gc=False):
    """The values of a row by column. `kept` has the types of those that stayed text."""

    values: dict[str, Any]
    unchanged: list[str]
    kept: dict[str, str]


class ColumnDecoder:
    """Reads the rows of one shape."""

    def __init__(self, columns: Sequence[tuple[str, ReadType]]) -> None:
        self.width = len(columns)
        self._columns = [(name, kind.decode, kind.name) for name, kind in columns]
        self._nulls: dict[str, Any] = dict.fromkeys(name for name, _ in columns)
        self._readers = [(name, _reader_of(kind.decode)) for name, kind in columns]
        self.always_kept = {name: kind.name for name, kind in columns if not kind.plain}
        """The types of the columns whose values always stay text."""

    def read(self, data: bytes, at: int) -> tuple[dict[str, Any], list[str], int]:
        """Read a row in one pass from the bytes of its message. Return the values, what is unchanged, and the end.

        Raises one of NOT_READ for a row that is malformed, or that has a value which Python cannot hold: the caller
        must parse and `decode` it then. It must do so too if the row does not end where its message ends.
        """
        # A copy has room for all columns. A dict that grows is moved on the way.
        values = self._nulls.copy()
        unchanged: list[str] = []
        for name, read in self._readers:
            kind = data[at]
            if kind == _TEXT:
                at += 5
                end = at + _LENGTH(data, at - 4)[0]
                values[name] = read(data[at:end])
                at = end
            elif kind == _NULL:
                at += 1
            elif kind == _UNCHANGED:
                del values[name]
                unchanged.append(name)
                at += 1
            else:
                raise ValueError(kind)
        return values, unchanged, at

    def decode(self, row: RowValues) -> DecodedRow:
        """Return the values. Raises ValueError if their number is wrong or one is not UTF-8."""
        values: dict[str, Any] = {}
        unchanged: list[str] = []
        kept = self.always_kept
        for (name, decode, type_name), raw in zip(self._columns, row, strict=True):
            if raw is None:
                values[name] = None
            elif isinstance(raw, UnchangedValue):
                unchanged.append(name)
            else:
                text = raw.decode()
                try:
                    values[name] = decode(text)
                except _NOT_HELD:
                    # Invariant 12: a value that Python cannot hold is never rounded. It stays what the server sent.
                    values[name] = text
                    kept = kept | {name: type_name}
        return DecodedRow(values, unchanged, kept)


_NOT_HELD = (ValueError, ArithmeticError, LookupError, RecordRefused, msgspec.MsgspecError)
NOT_READ: Final = (*_NOT_HELD, error)
_TEXT, _NULL, _UNCHANGED = b"tnu"
_LENGTH = Struct("!I").unpack_from


def _reader_of(decode: Decode) -> Callable[[bytes], Any]:
    """Return the quick form of a decoder, for bytes. It raises one of NOT_READ for more than the decoder does."""
    return _READERS.get(decode) or (lambda raw: decode(raw.decode()))


def _read_timestamp(raw: bytes) -> datetime:
    if raw[4] != _HYPHEN or raw[10] != _SPACE:
        raise ValueError(raw)
    return datetime.fromisoformat(raw.decode())


def _read_jsonb(raw: bytes) -> Any:
    # A short text is not too deep. All others, and those that may have fractions, have more to be looked at.
    if raw[0] in _BRACKETS and len(raw) <= JSON_DEPTH_MAX and not (b"." in raw or b"e" in raw or b"E" in raw):
        return _JSON_DECODER.decode(raw)
    return decode_jsonb_value(raw.decode())


_HYPHEN, _SPACE = b"- "
_BRACKETS = b"{["
_JSON_DECODER = msgspec.json.Decoder()
_READERS: dict[Decode, Callable[[bytes], Any]] = {
    str: bytes.decode,
    int: int,
    float: float,
    Decimal: lambda raw: Decimal(raw.decode()),
    decode_boolean: {b"t": True, b"f": False}.__getitem__,
    decode_timestamp: _read_timestamp,
    decode_jsonb_value: _read_jsonb,
}
