"""Rows that a dlt resource yields → rows with plain values, which a record can hold."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

from conduit_py.sdk import RecordRefused

_AS_THEY_ARE = frozenset({str, int, float, bool, bytes, type(None), Decimal, date, time, timedelta, UUID})


def rows_of(item: Any) -> Iterator[Any]:
    """Yield the rows of what a resource yielded: a row, a list of rows, an Arrow table or batch, or a DataFrame."""
    if isinstance(item, list):
        for each in item:
            yield from rows_of(each)
    elif hasattr(item, "to_pylist"):
        yield from item.to_pylist()
    elif hasattr(item, "to_dict") and hasattr(item, "columns"):
        yield from item.to_dict("records")
    else:
        yield item


def plain_row(row: Any) -> dict[str, Any]:
    """Return the row as a dict of plain values; a value that is no row is `{"value": …}`, as dlt has it.

    Raises RecordRefused for a value that a record cannot hold.
    """
    plain = _plain(row, "the row")
    return plain if isinstance(plain, dict) else {"value": plain}


def _plain(value: Any, path: str) -> Any:
    kind = type(value)
    if kind in _AS_THEY_ARE or (kind is datetime and type(value.tzinfo) in (timezone, type(None))):
        return value
    if isinstance(value, Mapping):
        return {_name(name, path): _plain(each, f"{path}.{name}") for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, f"{path}[{index}]") for index, each in enumerate(value)]
    # Only after those that most values are: dlt's own values, such as pendulum's times, are subclasses of these.
    for base, convert in _BASES.items():
        if isinstance(value, base):
            return convert(value)
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump(), path)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value), path)
    raise RecordRefused(
        f"{path} is a {kind.__module__}.{kind.__qualname__}, which a record cannot hold",
        suggestion="convert it in the resource, for example with `add_map`",
    )


def _name(name: Any, path: str) -> str:
    if not isinstance(name, str):
        raise RecordRefused(f"{path} has a key that is no text: {name!r}")
    return str(name)


def _plain_datetime(value: datetime) -> datetime:
    """The same moment with a fixed offset: names of zones have types of their own in pendulum."""
    offset = value.utcoffset()
    parts = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    return datetime(*parts, tzinfo=None if offset is None else timezone(offset), fold=value.fold)


# In this order: a datetime is a date, and a bool is an int.
_BASES: Mapping[type, Callable[[Any], Any]] = {
    datetime: _plain_datetime,
    date: lambda value: date(value.year, value.month, value.day),
    time: lambda value: time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo),
    timedelta: lambda value: timedelta(microseconds=value // timedelta(microseconds=1)),
    str: str,
    bool: bool,
    int: int,
    float: float,
    bytes: bytes,
    Decimal: Decimal,
    UUID: lambda value: UUID(int=value.int),
}
