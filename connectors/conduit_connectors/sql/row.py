"""TableRow: a record as a row of a table, in values that every SQL database accepts."""

from collections.abc import Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, ClassVar, Literal, TypedDict
from uuid import UUID

import msgspec
from pydantic import Field, field_validator

from conduit_connectors.change_marks import says_truncate, unchanged_fields
from conduit_connectors.integer_text import integer_text
from conduit_connectors.policy_options import NewFieldOption, OnNewField, OnType
from conduit_connectors.sql.column_fit import kind_of
from conduit_py.sdk import Batch, Operation, Options, Record, RecordRefused, encode_json, metadata

OUR_TABLES = "conduit_"
OUR_SCHEMA = "conduit_py"


class NameRules(msgspec.Struct, frozen=True):
    """Which names of tables and columns a database cannot have, or keeps for itself."""

    columns_max: int
    reserved: tuple[str, ...]
    """How names of its own tables and schemas begin."""
    bytes_max: int | None = None
    """A longer name is cut without an error, so that two names may become one."""
    ignores_case: bool = False
    allows_empty: bool = False

    def check(self, table: str, columns: Sequence[str]) -> None:
        """Raise RecordRefused for a table or columns that no record can be written to."""
        for part in table.split("."):
            self._check_name(part)
            if part.lower().startswith((OUR_TABLES, *self.reserved)):
                raise RecordRefused(f"names the table {table!r}, which belongs to the database or to conduit-py")
        for column in columns:
            self._check_name(column)
        if len(columns) > self.columns_max:
            raise RecordRefused(f"has {len(columns)} fields, and a table has at most {self.columns_max} columns")
        if self.ignores_case and len({column.lower() for column in columns}) < len(columns):
            raise RecordRefused("has two fields whose names differ only in case, which are one column")

    def _check_name(self, name: str) -> None:
        # The type is a promise of the code that made the record, and code of users makes records.
        if not isinstance(name, str):
            raise RecordRefused(f"has the field {name!r}, whose name is no text")
        if not is_name(name) or not (name or self.allows_empty):
            raise RecordRefused(f"has the name {name[:100]!r}, which no table or column can have")
        if self.bytes_max is not None and len(name) * 4 > self.bytes_max and len(name.encode()) > self.bytes_max:
            raise RecordRefused(f"has the name {name[:100]!r}…, which is longer than {self.bytes_max} bytes")


def is_name(text: str) -> bool:
    """True for text without a NUL and without half of a surrogate pair."""
    return "\0" not in text and (text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text))


class TableOptions(Options):
    """How records become rows."""

    table: str | None = Field(
        default=None, min_length=1, description="the table to write; None: the one that opencdc.collection names"
    )
    mode: Literal["append", "upsert"] = Field(
        default="append", description="insert every record, or have one row per key: insert, update or delete it"
    )
    key: list[str] | None = Field(
        default=None,
        min_length=1,
        description="the columns of the key for upsert; None: the fields of the record's key",
    )
    layout: Literal["columns", "json"] = Field(
        default="columns", description="a column per field, or the columns key, operation, metadata and payload as JSON"
    )
    create: bool = Field(default=True, description="create a missing table, with the columns of its first record")
    on_new_field: NewFieldOption = "refuse"
    on_type: OnType = Field(
        default="refuse",
        description='a value that its column does not hold: "refuse" the record, "widen" the column to a type that'
        ' holds it exactly, or "text": as "widen", and where there is no such type, the column becomes text',
    )

    @field_validator("table")
    @classmethod
    def _table_is_the_users(cls, table: str | None) -> str | None:
        parts = (table or "").lower().split(".")
        if not is_name(table or "") or parts[-1].startswith(OUR_TABLES) or OUR_SCHEMA in parts[:-1]:
            raise ValueError(f"no table of yours is called {table!r}: names that begin with conduit_ are our own")
        return table

    @property
    def names_are_the_records(self) -> bool:
        """True if a record names its table, or the columns of its key."""
        by_its_key = self.mode == "upsert" and self.key is None and self.layout == "columns"
        return self.table is None or by_its_key


class TableArguments(TypedDict, total=False):
    """TableOptions as a caller writes them, for editors and type checkers."""

    table: str | None
    mode: Literal["append", "upsert"]
    key: Sequence[str] | None
    layout: Literal["columns", "json"]
    create: bool
    on_new_field: OnNewField
    on_type: OnType


class TableRow(msgspec.Struct, frozen=True, array_like=True):
    """A change of one row: it gets these values, or, with `gone`, the row with these values is deleted."""

    table: str
    columns: tuple[str, ...]
    values: tuple[Any, ...]
    keys: tuple[str, ...] = ()
    """The columns by which an existing row is found; none: always a new row."""
    gone: bool = False
    kinds: tuple[str, ...] = ()
    """The kinds of the values, by which columns are created and checked."""
    unchanged: tuple[str, ...] = ()
    """Columns that keep the values which they have in the row with this key. Without such a row nothing is written."""
    required: bool = False
    """With `unchanged`: True if the row is refused where there is none with its key."""
    truncate: bool = False
    """True if all rows of the table are deleted."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """Rows of the same shape are written by the same statement."""
        return self.table, self.columns, self.keys, self.gone, self.unchanged, self.required, self.truncate


_JSON_COLUMNS = ("key", "operation", "metadata", "payload")


class RowEncoder:
    """Turns records into rows. `int_max` bounds integers; `finite` refuses NaN and infinity."""

    kind_of: ClassVar[Any] = staticmethod(kind_of)
    """Returns the kind of a value, by which columns are created and checked."""

    def __init__(self, options: TableOptions, names: NameRules, *, int_max: int | None, finite: bool) -> None:
        self._options = options
        self._names = names
        self._checked: tuple[str, tuple[str, ...]] | None = None
        self._int_max = int_max
        self._finite = finite

    def of(self, batch: Batch) -> tuple[dict[int, TableRow], dict[int, str]]:
        """Return index → row, and index → reason for the records that are refused."""
        rows: dict[int, TableRow] = {}
        refused: dict[int, str] = {}
        for index, record in enumerate(batch):
            try:
                rows[index] = self._row(record)
            except RecordRefused as error:
                refused[index] = error.message
        return rows, refused

    def _row(self, record: Record) -> TableRow:
        table = self._options.table or record.metadata.get(metadata.COLLECTION)
        if not table:
            raise RecordRefused(f"has no {metadata.COLLECTION}, which names the table if `table` is not set")
        upsert = self._options.mode == "upsert"
        if upsert and record.operation is Operation.DELETE and record.key is None and says_truncate(record):
            self._names.check(table, ())
            return TableRow(table, (), (), truncate=True)
        fields = _json_fields(record) if self._options.layout == "json" else _fields(record)
        keys = self._keys(record) if upsert else ()
        gone = record.operation is Operation.DELETE and upsert
        if gone:
            fields = {name: fields[name] for name in keys if name in fields}
        for name in keys:
            if fields.get(name) is None:
                raise RecordRefused(f"has no value for {name!r}, which is part of the key")
        if not fields:
            raise RecordRefused("has no fields, so it makes no row")
        columns = tuple(fields)
        # Records of one table mostly have the same fields, and checking a name costs more than comparing it.
        if (table, columns) != self._checked:
            self._names.check(table, columns)
            self._checked = (table, columns)
        values = tuple([self._plain(name, value) for name, value in fields.items()])
        kinds = tuple([self.kind_of(value) for value in fields.values()])
        if not upsert or gone or self._options.layout == "json":
            return TableRow(table, columns, values, keys, gone, kinds)
        unchanged = unchanged_fields(record, fields)
        required = bool(unchanged) and record.operation is not Operation.UPDATE
        return TableRow(table, columns, values, keys, gone, kinds, unchanged, required)

    def _keys(self, record: Record) -> tuple[str, ...]:
        if self._options.layout == "json":
            return ("key",)
        if self._options.key is not None:
            return tuple(self._options.key)
        if isinstance(record.key, dict) and record.key:
            return tuple(record.key)
        raise RecordRefused('has no structured key; name its columns with the option "key"')

    def _plain(self, name: str, value: Any) -> Any:
        # Invariant 12: a database may cut text at a NUL, round a large integer or store NaN as NULL without an error.
        if value is None or isinstance(value, bool | str | bytes):
            if isinstance(value, str) and "\0" in value:
                raise RecordRefused(f"{name!r} has a NUL character in it, which no SQL text can carry")
            return value
        if isinstance(value, int):
            too_large = self._int_max is not None and not -self._int_max - 1 <= value <= self._int_max
            if too_large and self._options.on_type != "text":
                digits = integer_text(repr(name), value)
                raise RecordRefused(f"{name!r} is {digits}, which is too large for an integer of this database")
            return value if -(2**63) <= value < 2**63 else integer_text(repr(name), value)
        if isinstance(value, float):
            if self._finite and not _is_finite(value):
                raise RecordRefused(f"{name!r} is {value}, which this database cannot store")
            return value
        if isinstance(value, datetime | date | time):
            return value.isoformat()
        if isinstance(value, Decimal | UUID):
            return str(value)
        if isinstance(value, dict | list):
            return encode_json(value).decode()
        if isinstance(value, timedelta):
            return f"{_exact_seconds(value)} seconds"
        raise RecordRefused(f"{name!r} is a {type(value).__name__}, which has no form in SQL")


def _exact_seconds(duration: timedelta) -> str:
    exact = Decimal(duration // timedelta(microseconds=1)).scaleb(-6)
    short = str(duration.total_seconds())
    # Invariant 12: a float has no room for the microseconds of centuries. Where it has, its text stays, because a
    # duration may be a key of a row that was written so.
    return short if Decimal(short) == exact else f"{exact:f}"


def group_rows(rows: Iterable[tuple[int, TableRow]]) -> list[list[tuple[int, TableRow]]]:
    """Group consecutive rows that go into one statement, in order."""
    groups: list[list[tuple[int, TableRow]]] = []
    last: tuple[Any, ...] | None = None
    for index, row in rows:
        shape = row.shape
        if shape != last:
            groups.append([])
            last = shape
        groups[-1].append((index, row))
    return groups


def _fields(record: Record) -> dict[str, Any]:
    """Return the fields of the payload, and those of the key that the payload lacks."""
    key = record.key if isinstance(record.key, dict) else {}
    after = record.payload.after
    if after is None and record.operation is Operation.DELETE:
        return dict(key)
    if not isinstance(after, dict):
        what = "absent" if after is None else "raw bytes"
        hint = 'decode it first, for example with the processor "json.decode", or use layout="json"'
        raise RecordRefused(f"payload.after is {what}, so it has no columns ({hint})")
    return {**key, **after}


def _json_fields(record: Record) -> dict[str, Any]:
    key, after = record.key, record.payload.after
    return dict(
        zip(
            _JSON_COLUMNS,
            (
                _text(key, "key"),
                record.operation.value,
                encode_json(record.metadata).decode(),
                _text(after, "payload.after"),
            ),
            strict=True,
        )
    )


def _text(data: Any, path: str) -> str | None:
    if data is None:
        return None
    if isinstance(data, dict):
        return encode_json(data).decode()
    try:
        return str(data.decode())
    except UnicodeDecodeError:
        raise RecordRefused(f"{path} is raw bytes that are not UTF-8, so it is no text") from None


def _is_finite(value: float) -> bool:
    return value - value == 0
