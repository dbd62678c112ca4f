"""Values of PostgreSQL as Python values, read from its text form, and exact.

What a Python value cannot hold stays text: infinity in a date, a day before the year 1, an array that does not begin
at 1. Types without a Python value stay text too. The caller names the types of all of these (`ColumnDecoder`).

A session that sends such text has the settings of `SESSION_SETTINGS`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from conduit_py.sdk import DuplicateKeys, FieldType, decode_json

SESSION_SETTINGS: Final[Mapping[str, str]] = {
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
}
"""Without these, the text of a value would depend on the settings of the server and the user."""

Decode = Callable[[str], Any]


class ReadType(msgspec.Struct, frozen=True):
    """How the text of one type is read. `decode` raises ValueError for what has no exact Python value."""

    name: str
    decode: Decode
    plain: bool = True
    """False if the type is not a text type and its values are text all the same."""
    field: FieldType = "unknown"


def decode_boolean(text: str) -> bool:
    return _BOOLEANS[text]


_BOOLEANS = {"t": True, "f": False}


def decode_bytes(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError(text[:10])
    return bytes.fromhex(text[2:])


def decode_date(text: str) -> date:
    # Newer versions of Python read some texts beyond the year 9999 as another date.
    if len(text) != 10:
        raise ValueError(text)
    return date.fromisoformat(text)


def decode_timestamp(text: str) -> datetime:
    # A year has four digits, or Python would read another one; "BC" at the end is no ISO time.
    if text[4:5] != "-" or text[10:11] != " ":
        raise ValueError(text)
    return datetime.fromisoformat(text)


def decode_time(text: str) -> time:
    # Newer versions of Python take 24:00 for midnight, which is a different time of the day.
    if text.startswith("24"):
        raise ValueError(text)
    return time.fromisoformat(text)


def decode_json_value(text: str) -> Any:
    """Return an object or a list. Raises ValueError for anything that would not come back as it was.

    A single value stays text: null would be the same as no value, and a string the same as its JSON text.
    """
    return _exact_json(text, "refuse")


def decode_jsonb_value(text: str) -> Any:
    """Do the same for the other type, in which the server has removed repeated keys."""
    return _exact_json(text, "last")


def _exact_json(text: str, duplicate_keys: DuplicateKeys) -> Any:
    if text.lstrip()[:1] not in ("{", "["):
        raise ValueError("a single value")
    value = decode_json(text, duplicate_keys=duplicate_keys)
    if _FRACTION.search(text):
        _FLOATS_DECODER.decode(text)
    return value


def _refuse_inexact(number: str) -> float:
    held = float(number)
    if Decimal(number) != Decimal(repr(held)):
        raise ValueError(f"{number} is not the same as a float")
    return held


_FRACTION = re.compile(r"\d[.eE]")
_FLOATS_DECODER = msgspec.json.Decoder(float_hook=_refuse_inexact)


def decode_array(element: Decode, delimiter: str) -> Decode:
    """Return the function that reads an array of any depth as nested lists; NULL is None."""
    end = re.escape(delimiter)
    # A quoted element, or a bare one, or a mark. The server quotes everything that could be mistaken.
    token = re.compile(rf'"((?:[^"\\]|\\.)*)"|([^{{}}"\\{end}]+)|([{{}}{end}])', re.DOTALL)

    def decode(text: str) -> list[Any]:
        result: list[list[Any]] = [[]]
        at, expects_element = 0, True
        while at < len(text):
            found = token.match(text, at)
            if found is None:
                raise ValueError(f"not an array: {text[:50]!r}")
            at = found.end()
            quoted, bare, mark = found.groups()
            if mark == "{":
                inner: list[Any] = []
                result[-1].append(inner)
                result.append(inner)
                expects_element = True
            elif mark == "}":
                if len(result) == 1 or (expects_element and result[-1]):
                    raise ValueError(f"not an array: {text[:50]!r}")
                result.pop()
                expects_element = False
            elif mark is not None:
                expects_element = True
            else:
                if not expects_element or len(result) == 1:
                    raise ValueError(f"not an array: {text[:50]!r}")
                result[-1].append(_element(quoted, bare, element))
                expects_element = False
        if len(result) != 1 or len(result[0]) != 1 or not isinstance(result[0][0], list):
            raise ValueError(f"not an array: {text[:50]!r}")
        return result[0][0]

    return decode


def _element(quoted: str | None, bare: str | None, decode: Decode) -> Any:
    if quoted is not None:
        return decode(_ESCAPED.sub(r"\1", quoted))
    assert bare is not None, "an element is quoted or bare"
    return None if bare == "NULL" else decode(bare)


_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_FIELD = re.compile(r'"((?:[^"\\]|""|\\.)*)"|([^,()"\\]*)', re.DOTALL)
_FIELD_ESCAPED = re.compile(r'\\(.)|"(")', re.DOTALL)


def decode_composite(fields: Sequence[tuple[str, Decode]]) -> Decode:
    """Return the function that reads a row value as a dict of its fields."""

    def decode(text: str) -> dict[str, Any]:
        if text[:1] != "(" or text[-1:] != ")":
            raise ValueError(f"not a row: {text[:50]!r}")
        at, values = 1, []
        while True:
            found = _FIELD.match(text, at)
            assert found is not None, "the pattern matches an empty text"
            quoted, bare = found.groups()
            values.append(quoted and _FIELD_ESCAPED.sub(r"\1\2", quoted) if quoted is not None else bare or None)
            at = found.end()
            if at == len(text) - 1:
                break
            if text[at] != ",":
                raise ValueError(f"not a row: {text[:50]!r}")
            at += 1
        # ValueError if the type was changed since: the text is the truth.
        pairs = zip(fields, values, strict=True)
        return {name: None if value is None else each(value) for (name, each), value in pairs}

    return decode


_BUILT_IN: dict[int, tuple[str, Decode, FieldType]] = {
    16: ("boolean", decode_boolean, "boolean"),
    17: ("bytea", decode_bytes, "bytes"),
    18: ('"char"', str, "string"),
    19: ("name", str, "string"),
    20: ("bigint", int, "integer"),
    21: ("smallint", int, "integer"),
    23: ("integer", int, "integer"),
    25: ("text", str, "string"),
    26: ("oid", int, "integer"),
    114: ("json", decode_json_value, "json"),
    142: ("xml", str, "string"),
    700: ("real", float, "float"),
    701: ("double precision", float, "float"),
    1042: ("character", str, "string"),
    1043: ("character varying", str, "string"),
    1082: ("date", decode_date, "date"),
    1083: ("time without time zone", decode_time, "time"),
    1114: ("timestamp without time zone", decode_timestamp, "timestamp"),
    1184: ("timestamp with time zone", decode_timestamp, "timestamptz"),
    1266: ("time with time zone", decode_time, "time"),
    1700: ("numeric", Decimal, "decimal"),
    2950: ("uuid", UUID, "uuid"),
    3802: ("jsonb", decode_jsonb_value, "json"),
}
BUILT_IN: Final[Mapping[int, ReadType]] = {
    oid: ReadType(name, decode, field=field) for oid, (name, decode, field) in _BUILT_IN.items()
}
"""The types whose numbers are the same on every server."""


class CatalogType(msgspec.Struct, frozen=True):
    """A row of pg_type. `kind` and `category` are its letters there; `fields` are those of a composite type."""

    oid: int
    name: str
    kind: str
    category: str
    element: int = 0
    base: int = 0
    delimiter: str = ","
    fields: tuple[tuple[str, int], ...] = ()
    modifier: int = -1
    """The modifier of the base type, if it is a domain."""

    def parts(self) -> Iterable[int]:
        """The types that this one is made of."""
        return [oid for oid in (self.base, self.element, *(oid for _, oid in self.fields)) if oid]


def type_of(oid: int, catalog: Mapping[int, CatalogType]) -> ReadType:
    """Return how to read a type. One that is not in the catalog is text, named by its number."""
    if oid in BUILT_IN:
        return BUILT_IN[oid]
    found = catalog.get(oid)
    if found is None:
        return ReadType(f"type {oid}", str, plain=False)
    if found.kind == "d":
        return type_of(found.base, catalog)
    if found.kind == "c":
        fields = [(name, type_of(each, catalog)) for name, each in found.fields]
        plain = all(kind.plain for _, kind in fields)
        return ReadType(found.name, decode_composite([(name, kind.decode) for name, kind in fields]), plain, "record")
    if found.category == "A":
        element = type_of(found.element, catalog)
        return ReadType(found.name, decode_array(element.decode, found.delimiter), element.plain, "list")
    # An enum, and types of extensions that are strings, such as citext, are text by their nature.
    plain = found.kind == "e" or found.category == "S"
    field: FieldType = "string" if plain else "interval" if oid == _INTERVAL else "unknown"
    return ReadType(found.name, str, plain, field)


_INTERVAL = 1186
