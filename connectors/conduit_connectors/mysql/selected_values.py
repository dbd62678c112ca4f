"""Values that a SELECT returns, as the same Python values that the binary log has for them."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from conduit_connectors.mysql.catalog import TableColumn
from conduit_connectors.mysql.row_values import ExactRow, KeptText, shortest_float
from conduit_connectors.mysql.session import quote_name


def selected(column: TableColumn) -> str:
    """Return the expression that selects a column so that nothing of its value is lost."""
    name = quote_name(column.name)
    if column.type_name == "float":
        # As text it would have six digits.
        return f"CAST({name} AS DOUBLE)"
    if column.type_name == "bit":
        return f"CAST({name} AS UNSIGNED)"
    return name


class SelectedDecoder:
    """Reads the rows of a SELECT with `selected` for each column."""

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        self._columns = [(each.name, _DECODERS.get(each.type_name, _as_it_is)) for each in columns]

    def decode(self, row: Sequence[Any]) -> ExactRow:
        values: dict[str, Any] = {}
        kept: dict[str, str] = {}
        for (name, decode), raw in zip(self._columns, row, strict=True):
            value = None if raw is None else decode(raw)
            if isinstance(value, KeptText):
                kept[name] = value.type_name
                value = value.text
            values[name] = value
        return ExactRow(values, kept)


def ordered_by(column: TableColumn) -> str:
    """Return the expression by which the rows of a table are ordered and compared."""
    # Values of an enum are ordered by their numbers, and compared with a text as texts.
    return f"({quote_name(column.name)} + 0)" if column.type_name in ("enum", "set") else quote_name(column.name)


def literal(column: TableColumn, raw: Any, escape: Callable[[str], str]) -> str:
    """Return the literal of SQL that a value of `ordered_by` is equal to."""
    if isinstance(raw, bytes):
        return f"x'{raw.hex()}'"
    # The text of the server, but never anything else than a number.
    if column.type_name in ("float", "double"):
        # With an exponent it is a double, and without one a decimal.
        return f"{float(raw):.17e}"
    if column.type_name in _NUMBERS:
        return f"{Decimal(str(raw)):f}"
    return escape(str(raw))


_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit", "enum", "set")
_NUMBERS = frozenset((*_INTEGERS, "decimal"))


def _as_it_is(value: Any) -> Any:
    return value


def _decode_float(text: str) -> float:
    return shortest_float(float(text))


def _decode_date(text: str) -> Any:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return KeptText(text, "date")


def _decode_datetime(text: str) -> Any:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return KeptText(text, "datetime")


def _decode_timestamp(text: str) -> Any:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return KeptText(text, "timestamp")


def _decode_time(text: str) -> Any:
    try:
        # Newer versions of Python take 24:00 for midnight, which is a different time of the day.
        return time.fromisoformat(text if not text.startswith("24") else "")
    except ValueError:
        return KeptText(text, "time")


_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"), int),
    "decimal": Decimal,
    "float": _decode_float,
    "double": float,
    "date": _decode_date,
    "datetime": _decode_datetime,
    "timestamp": _decode_timestamp,
    "time": _decode_time,
    "uuid": UUID,
    "inet4": lambda text: KeptText(text, "inet4"),
    "inet6": lambda text: KeptText(text, "inet6"),
}
