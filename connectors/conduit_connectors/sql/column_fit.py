"""Which values a column holds as they are, and which wider type would hold one that it does not."""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

Family: TypeAlias = Literal[
    "boolean", "int16", "int32", "int64", "float32", "float64", "decimal", "text", "bytes", "json", "any", "other",
]  # fmt: skip
"""What the types of columns have in common. "any" holds every value; of "other" the database decides."""

_INTEGERS: Final = {"int16": 2**15, "int32": 2**31, "int64": 2**63}
_FLOATS: Final = {"float32", "float64"}
_NUMBERS: Final = {*_INTEGERS, *_FLOATS, "decimal"}
_NUMBER_KINDS: Final = {"integer", "long", "wide", "real", "decimal"}
_TYPED_KINDS: Final = {*_NUMBER_KINDS, "boolean", "bytes", "json"}


def kind_of(value: Any) -> str:
    """Return the kind of a value: "integer" is the same as a float, "long" has 64 bits, "wide" has more."""
    kind = type(value)
    if kind is int:
        return _kind_of_integer(value)
    if name := _KIND_OF_TYPE.get(kind):
        return name
    for base, name in _KINDS:
        if isinstance(value, base):
            return name
    return _kind_of_integer(value) if isinstance(value, int) else "text"


def _kind_of_integer(value: int) -> str:
    if -_FLOAT_EXACT <= value <= _FLOAT_EXACT:
        return "integer"
    return "long" if -(2**63) <= value < 2**63 else "wide"


_FLOAT_EXACT = 2**53
"""Integers up to here are the same as floats."""
_KINDS: Sequence[tuple[type[Any], str]] = (
    (bool, "boolean"),
    (float, "real"),
    (Decimal, "decimal"),
    (bytes, "bytes"),
    (datetime, "datetime"),
    (date, "date"),
    (time, "time"),
    (timedelta, "duration"),
    (dict, "json"),
    (list, "json"),
    (UUID, "uuid"),
)
_KIND_OF_TYPE: Mapping[type[Any], str] = dict(_KINDS) | {type(None): "none", str: "text"}


class ColumnType(msgspec.Struct, frozen=True):
    """The type of a column: as its database writes it, and what it is like in all databases."""

    name: str
    family: Family
    size: int | None = None
    """The most characters of a text, or the digits of a decimal; None: no limit."""
    scale: int = 0
    """The digits after the point, if `size` is given."""


class Fit(NamedTuple):
    """When a column holds a value. A pair of kind and type without a Fit needs no look at the value."""

    holds: Callable[[Any], bool] | None
    """True if the column holds the value unchanged. None: the database alone can tell."""
    silent: bool
    """True if the value must be looked at before it is sent: the database would change it, or take it for another."""
    as_text: bool = False
    """True if the value is sent as text. A float that the database converts to a decimal loses digits."""


NEVER: Final = Fit(lambda value: False, silent=True)
_ASK: Final = Fit(None, silent=False)


def fit_of(kind: str, column: ColumnType, *, typed: bool) -> Fit | None:
    """Return when a column holds values of a kind; None: always, or the database refuses what it does not hold.

    `typed` is False for a database whose columns take values of every type and convert some of them.
    """
    family = column.family
    if kind == "none" or family in ("any", "other"):
        return _ASK if family == "other" and kind != "none" and typed else None
    if kind == "boolean":
        return None if family == "boolean" or (not typed and family in _NUMBERS) else NEVER
    if kind == "bytes" or family == "bytes":
        return None if kind == family else NEVER
    if kind in _NUMBER_KINDS:
        return _fit_of_number(kind, column, typed=typed)
    if family == "text":
        return None if column.size is None else Fit(lambda value: len(value) <= (column.size or 0), silent=False)
    if family == "json":
        return None if kind == "json" else _ASK
    if kind != "text":
        return NEVER
    return _ASK if typed else Fit(lambda value: _NUMBER.fullmatch(value.strip()) is not None, silent=True)


def _fit_of_number(kind: str, column: ColumnType, *, typed: bool) -> Fit | None:
    family = column.family
    if family == "decimal":
        if column.size is not None:
            return Fit(lambda value: _fits_digits(value, column), silent=True, as_text=kind == "real")
        if kind == "real" and typed:
            return Fit(lambda value: True, silent=True, as_text=True)
        return None if typed or kind not in ("decimal", "wide") else Fit(_survives_as_number, silent=True)
    if family in _INTEGERS:
        return _fit_of_number_in_integers(kind, _INTEGERS[family], typed=typed)
    if family in _FLOATS:
        # A float in a column of shorter floats is what such a column is for: it gets the nearest one.
        if kind == "real" or (kind == "integer" and family == "float64"):
            return None
        return Fit(lambda value: _survives_as_float(value, family), silent=True)
    if family == "boolean":
        return NEVER if typed else Fit(lambda value: value in (0, 1), silent=True)
    if family == "text" and kind == "decimal":
        return None
    return _ASK if family == "json" and kind == "decimal" else NEVER


def number_fit(column: ColumnType) -> Fit:
    """Return when a column of numbers holds a text, for a database that rounds what it has no room for."""
    fit = _fit_of_number("decimal", column, typed=False)

    def holds(value: Any) -> bool:
        return _NUMBER.fullmatch(value) is not None and (fit is None or fit.holds is None or fit.holds(value))

    return Fit(holds, silent=True)


def _fit_of_number_in_integers(kind: str, limit: int, *, typed: bool) -> Fit | None:
    if kind == "wide":
        return NEVER
    if kind == "real":
        return Fit(lambda value: value.is_integer() and -limit <= value < limit, silent=True)
    if kind == "decimal":
        return Fit(
            lambda value: _DIGITS.fullmatch(value) is not None and -limit <= int(value) < limit, silent=not typed
        )
    return None if limit == _INTEGERS["int64"] else Fit(lambda value: -limit <= value < limit, silent=False)


def wider_family(kind: str, column: ColumnType, value: Any) -> Family | None:
    """Return the narrowest family whose values include this one and all of the column; None if there is none."""
    if column.family == "text":
        return "text" if column.size is not None and kind not in _TYPED_KINDS else None
    if column.family not in _NUMBERS or kind not in _NUMBER_KINDS:
        return None
    if column.family in _INTEGERS and kind in ("integer", "long"):
        return "int32" if column.family == "int16" and -(2**31) <= value < 2**31 else "int64"
    if column.family == "float32" and kind == "integer":
        return "float64"
    # Every integer and the digits of every float are a decimal.
    return "decimal" if column.family != "decimal" or column.size is not None else None


def text_of(value: Any) -> str | None:
    """Return a value as text, from which it can be read again; None for bytes, which have no text."""
    if isinstance(value, bytes):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_DIGITS = re.compile(r"[+-]?\d{1,19}")


def _fits_digits(value: Any, column: ColumnType) -> bool:
    number = _exact(value)
    if number is None or column.size is None or not number.is_finite():
        return number is not None and number.is_nan()
    if not number:
        return True
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int), "finite"
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return -exponent - zeros <= column.scale and len(digits) + exponent <= column.size - column.scale


def _survives_as_number(value: Any) -> bool:
    """True for a decimal that a column of 64-bit integers and floats has with all of its digits."""
    number = _exact(value)
    if number is None or not number.is_finite():
        return False
    return (number == number.to_integral_value() and -(2**63) <= number < 2**63) or _survives_as_float(value, "float64")


def _survives_as_float(value: Any, family: str) -> bool:
    """True if the float is written with the same digits."""
    try:
        number, held = _exact(value), float(value)
        digits = repr(held)
        if family == "float32":
            held = struct.unpack("f", struct.pack("f", held))[0]
            digits = f"{held:.6g}"
    except (OverflowError, ValueError):
        return False
    return number is not None and (number.is_nan() or Decimal(digits) == number)


def _exact(value: Any) -> Decimal | None:
    try:
        return Decimal(repr(value) if isinstance(value, float) else value)
    except (InvalidOperation, ValueError):
        return None
