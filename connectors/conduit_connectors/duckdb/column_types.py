"""What columns of DuckDB hold as it is. The rest DuckDB would round, cut or convert without a word."""

import math
import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from conduit_connectors.sql.column_fit import NEVER, ColumnType, Family, Fit, fit_of, kind_of, number_fit
from conduit_py.sdk import RecordRefused, decode_json

_TYPE = re.compile(r"([A-Z_ ]+?)(?:\((\d+),(\d+)\))?")
_FAMILIES: Final[Mapping[str, Family]] = {
    "BOOLEAN": "boolean",
    "SMALLINT": "int16",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "DECIMAL": "decimal",
    "VARCHAR": "text",
    "BLOB": "bytes",
    "JSON": "json",
}
_RANGES: Final = {
    "TINYINT": range(-(2**7), 2**7),
    "UTINYINT": range(2**8),
    "USMALLINT": range(2**16),
    "UINTEGER": range(2**32),
    "UBIGINT": range(2**64),
    "HUGEINT": range(-(2**127), 2**127),
    "UHUGEINT": range(2**128),
}
_NUMBERS: Final = frozenset({"boolean", "int16", "int32", "int64", "float32", "float64", "decimal"})
_ZONE = r"(?:Z|[+-]\d\d:?\d\d(?::\d\d)?)"
_CLOCK = r"\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?"
_DATE = r"\d{4}-\d\d-\d\d"
_TEXTS: Final = {
    "DATE": ({"date"}, re.compile(_DATE)),
    "TIME": ({"time"}, re.compile(_CLOCK)),
    "TIMESTAMP": ({"naive"}, re.compile(f"{_DATE}[T ]{_CLOCK}")),
    "TIMESTAMP WITH TIME ZONE": ({"datetime"}, re.compile(f"{_DATE}[T ]{_CLOCK}{_ZONE}")),
    "UUID": ({"uuid"}, re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)),
    "INTERVAL": ({"duration"}, re.compile(r"(?!)")),
}
"""The kinds of values that such a column holds, and how a text must be written for it."""
_NO_TEXTS: Final = (frozenset[str](), re.compile(r"(?!)"))
_ARROW: Final[Mapping[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", "UTC"),
}


def duckdb_kind(value: Any) -> str:
    """Return the kind of a value. A time without a zone is of the kind "naive": it is no instant."""
    kind = kind_of(value)
    return "naive" if kind == "datetime" and isinstance(value, datetime) and value.tzinfo is None else kind


def parse_type(text: str) -> ColumnType:
    """Return the type that DuckDB writes so."""
    found = _TYPE.fullmatch(text)
    family = _FAMILIES.get(found[1]) if found else None
    if found is None or family is None:
        return ColumnType(text, "other")
    return ColumnType(text, family, int(found[2]) if found[2] else None, int(found[3] or 0))


def column_fit(kind: str, column: ColumnType) -> Fit | None:
    """Return when a column holds values of a kind; None: always."""
    if kind == "none":
        return None
    if column.family == "other":
        return _fit_of_other(kind, column)
    if column.family == "decimal" and kind in ("decimal", "real"):
        return _fit_of_digits(kind, column)
    if column.family == "json":
        return None if kind == "json" else Fit(_is_json, silent=True) if kind in ("text", "decimal") else NEVER
    if kind == "text" and column.family in _NUMBERS:
        return _fit_of_text(column)
    fit = fit_of(kind, column, typed=True)
    # DuckDB refuses some of these, but its errors end the transaction: nothing is left to it.
    return fit._replace(silent=True) if fit is not None else None


def _fit_of_digits(kind: str, column: ColumnType) -> Fit:
    fit = fit_of(kind, column, typed=True) or NEVER

    def holds(value: Any) -> bool:
        # A NaN has no digits that could be lost, but there is none among the decimals of DuckDB.
        return math.isfinite(Decimal(value)) and fit.holds is not None and fit.holds(value)

    return Fit(holds, silent=True, as_text=fit.as_text)


def _fit_of_other(kind: str, column: ColumnType) -> Fit | None:
    if (limits := _RANGES.get(column.name)) is not None:
        if kind == "boolean" or kind not in ("integer", "long", "wide"):
            return NEVER
        return Fit(lambda value: int(value) in limits, silent=True)
    kinds, written = _TEXTS.get(column.name, _NO_TEXTS)
    if kind in kinds:
        # A time of the day may have a zone, for which the column has no room.
        return Fit(lambda value: written.fullmatch(value) is not None, silent=True) if kind == "time" else None
    if kind == "text" and kinds:
        return Fit(lambda value: written.fullmatch(value) is not None and _exists(column.name, value), silent=True)
    # Members of an ENUM are known to the database only, which refuses others.
    return None if kind == "text" and column.name.startswith("ENUM(") else NEVER


def _fit_of_text(column: ColumnType) -> Fit:
    """A text is taken for a number, or for a truth, if nothing of it is lost."""
    if column.family == "boolean":
        return Fit(lambda value: value in ("true", "false"), silent=True)
    return number_fit(column)


def _exists(name: str, text: str) -> bool:
    """True unless the text is written like a time, and there is no such one."""
    if name in ("UUID", "TIME"):
        return True
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _is_json(text: Any) -> bool:
    try:
        decode_json(str(text))
    except RecordRefused:
        return False
    return True


def arrow_schema(columns: Mapping[str, ColumnType]) -> pa.Schema | None:
    """Return the schema whose values these columns hold unchanged; None if that cannot be said of all of them."""
    kinds = [(name, _ARROW.get(column.name)) for name, column in columns.items()]
    return pa.schema(kinds) if kinds and all(kind is not None for _, kind in kinds) else None
