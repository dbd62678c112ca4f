"""What columns of MariaDB hold as it is, for the SQL destinations. The rest MariaDB would cut, round or convert."""

import re
from collections.abc import Mapping
from typing import Any

from conduit_connectors.sql.column_fit import NEVER, ColumnType, Family, Fit, fit_of

_TYPE = re.compile(r"([a-z0-9]+)(?:\((\d+)(?:,(\d+))?\))?(.*)", re.DOTALL)
_FAMILIES: Mapping[str, Family] = {
    "tinyint": "int16",
    "smallint": "int16",
    "mediumint": "int32",
    "int": "int32",
    "bigint": "int64",
    "year": "int16",
    "float": "float32",
    "double": "float64",
    "decimal": "decimal",
    "bit": "decimal",
    "char": "text",
    "varchar": "text",
    "tinytext": "text",
    "text": "text",
    "mediumtext": "text",
    "longtext": "text",
    # As numbers they would be taken for the places of their values.
    "enum": "text",
    "set": "text",
    "binary": "bytes",
    "varbinary": "bytes",
    "tinyblob": "bytes",
    "blob": "bytes",
    "mediumblob": "bytes",
    "longblob": "bytes",
}
_SIZED = frozenset({"char", "varchar"})
_WIDER: Mapping[Family, Family] = {"int16": "int32", "int32": "int64"}
_TIMES = frozenset({"date", "datetime", "timestamp", "time"})
_NO_TIMES = frozenset({"boolean", "integer", "long", "wide", "real", "decimal", "bytes", "json"})
_INTEGERS = frozenset({"int16", "int32", "int64"})


def parse_type(text: str) -> ColumnType:
    """Return the type that MariaDB writes so."""
    found = _TYPE.fullmatch(text.lower())
    family = _FAMILIES.get(found[1]) if found else None
    if found is None or family is None:
        return ColumnType(text, "other")
    base, size, scale, rest = found.groups()
    if base == "decimal":
        return ColumnType(text, family, int(size or 10), int(scale or 0))
    if base == "bit" or (base == "bigint" and "unsigned" in rest):
        return ColumnType(text, "decimal", 20, 0)
    if "unsigned" in rest:
        return ColumnType(text, _WIDER.get(family, family))
    return ColumnType(text, family, int(size) if size and base in _SIZED else None)


def column_fit(kind: str, column: ColumnType) -> Fit | None:
    """Return when a column holds values of a kind; None: always, or MariaDB refuses others itself."""
    base = column.name.lower().partition("(")[0].partition(" ")[0]
    if kind == "none":
        return None
    if kind == "boolean" and column.family in _INTEGERS:
        # MariaDB has no booleans: they are the integers 0 and 1.
        return None
    if base in _TIMES:
        return NEVER if kind in _NO_TIMES else _fit_of_time(base, column.name)
    if kind == "bytes" and base == "binary":
        size = int(column.name.partition("(")[2].partition(")")[0] or 1)
        return Fit(lambda value: len(value) == size, silent=True)
    if kind == "text" and base == "char":
        # It reads without the spaces at its end.
        return Fit(lambda value: not value.endswith(" ") and len(value) <= (column.size or 0), silent=True)
    fit = fit_of(kind, column, typed=True)
    # MariaDB rounds a decimal to an integer without a word.
    return fit._replace(silent=True) if fit is not None and kind == "decimal" and fit.holds is not None else fit


def _fit_of_time(base: str, name: str) -> Fit:
    digits = 0 if base == "date" else int(name.partition("(")[2].partition(")")[0] or 0)

    def holds(value: Any) -> bool:
        # MariaDB cuts a fraction without a word.
        return not str(value).partition(".")[2][digits:].strip("0")

    return Fit(holds, silent=True)
