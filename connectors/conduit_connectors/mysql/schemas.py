"""Schemas of tables: the same fields for a table of the log and for one of the catalog, so that a version is the same.

What only one of both has is left out: the choices of an enum, the kind of a geometry, the width of a display.
"""

from collections.abc import Iterable, Mapping, Sequence

from conduit_connectors.change_queue import make_schema
from conduit_connectors.mysql import table_map as kinds
from conduit_connectors.mysql.charsets import BINARY
from conduit_connectors.mysql.table_map import LoggedColumn
from conduit_py.sdk import CollectionSchema, FieldType, SchemaField

NamedType = tuple[str, str]
"""The name of a column, and its type as `native_type` writes it."""


def table_schema(collection: str, columns: Iterable[NamedType], key: Sequence[str]) -> CollectionSchema:
    """Return the schema of a table with these columns."""
    # Whether a column may be NULL is not the same in the log and in the catalog of now. A key never is.
    return make_schema(
        collection,
        [SchemaField(name, _field_type(native), name not in key, name in key, native) for name, native in columns],
    )


def native_type(name: str, size: int | None = None, scale: int | None = None, *, unsigned: bool = False) -> str:
    """Return a type as MariaDB writes it, with what both the log and the catalog have of it."""
    sizes = ",".join(str(each) for each in (size, scale) if each is not None)
    return f"{name}{f'({sizes})' if sizes else ''}{' unsigned' if unsigned else ''}"


def logged_type(column: LoggedColumn, collations: Mapping[int, str], type_name: str) -> str:
    """Return the type of a column of the log. `type_name` is that of the catalog, for types that look like BINARY."""
    kind, charset = column.kind, collations.get(column.collation, BINARY)
    if kind in _PLAIN:
        return native_type(_PLAIN[kind], unsigned=column.unsigned)
    if kind == kinds.NEWDECIMAL:
        return native_type("decimal", column.length, column.scale, unsigned=column.unsigned)
    if kind in _TIMES:
        return native_type(_TIMES[kind], column.length or None)
    if kind == kinds.BIT:
        return native_type("bit", column.length)
    if kind == kinds.BLOB:
        return f"{_LENGTHS.get(column.length, '')}{'blob' if charset == BINARY else 'text'}"
    if kind == kinds.STRING and charset == BINARY and type_name in _LIKE_BINARY:
        return type_name
    if kind in (kinds.STRING, kinds.VARCHAR, kinds.VAR_STRING):
        varies = "" if kind == kinds.STRING else "var"
        if charset == BINARY:
            return native_type(f"{varies}binary", column.length)
        return native_type(f"{varies}char", column.length // _WIDTHS.get(charset, 1))
    return _OTHERS.get(kind, "unknown")


def selected_type(
    name: str, written: str, length: str | None, precision: str | None, scale: str | None, digits: str | None
) -> str:
    """Return the type of a column of the catalog. `written` is the whole type as the catalog has it."""
    unsigned = "unsigned" in written.partition(")")[2] or written.endswith(" unsigned")
    if name == "decimal":
        return native_type(name, int(precision or 0), int(scale or 0), unsigned=unsigned)
    if name in ("datetime", "timestamp", "time"):
        return native_type(name, int(digits or 0) or None)
    if name == "bit":
        return native_type(name, int(precision or 0))
    if name in ("char", "varchar", "binary", "varbinary"):
        return native_type(name, int(length or 0))
    if name in _GEOMETRIES:
        return "geometry"
    # A year is unsigned in the log, and nothing in the catalog.
    return native_type(name, unsigned=unsigned)


def _field_type(native: str) -> FieldType:
    return _FIELDS.get(native.partition("(")[0].partition(" ")[0], "unknown")


_PLAIN = {
    kinds.TINY: "tinyint",
    kinds.SHORT: "smallint",
    kinds.INT24: "mediumint",
    kinds.LONG: "int",
    kinds.LONGLONG: "bigint",
    kinds.FLOAT: "float",
    kinds.DOUBLE: "double",
}
_TIMES = {kinds.DATETIME2: "datetime", kinds.TIMESTAMP2: "timestamp", kinds.TIME2: "time"}
_OTHERS = {
    kinds.DATE: "date",
    kinds.YEAR: "year",
    kinds.ENUM: "enum",
    kinds.SET: "set",
    kinds.GEOMETRY: "geometry",
}
_LENGTHS = {1: "tiny", 3: "medium", 4: "long"}
_LIKE_BINARY = frozenset({"uuid", "inet4", "inet6"})
_GEOMETRIES = frozenset(
    {
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
    }
)
_WIDTHS = {"utf8mb4": 4, "utf8mb3": 3, "utf8": 3, "ucs2": 2, "utf16": 4, "utf16le": 4, "utf32": 4}
"""The bytes of a character at most, by which the log counts."""
_FIELDS: Mapping[str, FieldType] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"), "integer"),
    **dict.fromkeys(("float", "double"), "float"),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"), "string"),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "geometry"), "bytes"),
    "decimal": "decimal",
    "date": "date",
    "datetime": "timestamp",
    "timestamp": "timestamptz",
    "time": "time",
    "uuid": "uuid",
}
