"""Text: how a value of a record reads when it becomes part of a text."""

from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from uuid import UUID

from conduit_py.sdk import RecordRefused, encode_json


def text_of(value: object, name: str) -> str:
    """Text as it is, bytes as UTF-8, scalars the way Conduit writes them, anything else as JSON.

    A value without such a form raises RecordRefused that calls it `name`.
    """
    if type(value) is str:
        return value
    if isinstance(value, bytes):
        return _utf8(value, name)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, (int, Decimal, date, time, UUID)):
        return str(value)
    if isinstance(value, Enum):
        return text_of(value.value, name)
    return _json(value, name)


def _utf8(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise RecordRefused(f"{name} is not UTF-8 text: {error}") from None


def _float(value: float) -> str:
    """The shortest digits that read back as the same number, without an exponent: 1e21 is 22 digits, 2.0 is 2."""
    return format(Decimal(repr(value)), "f").removesuffix(".0")


def _json(value: object, name: str) -> str:
    try:
        return encode_json(value).decode()
    except RecordRefused as refused:
        raise RecordRefused(f"{name} {refused.message}") from refused
