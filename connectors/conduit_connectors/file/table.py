"""CsvTable: records as rows of a CSV file under a fixed header."""

import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path

from conduit_connectors.encode import Encoded, encode_each, structured
from conduit_connectors.file.rows import CsvRows
from conduit_connectors.lines import LineBuffer
from conduit_py.sdk import FatalError, Record, RecordRefused


class CsvTable:
    """Encodes records as rows. Its columns are given, found in the file, or those of the first record.

    A record must have exactly these columns. None is an empty field and an empty text a quoted one, as
    PostgreSQL writes them. Text, numbers, booleans, dates and times have one obvious form; anything else
    is refused.
    """

    def __init__(self, path: Path, delimiter: str, columns: Sequence[str] | None) -> None:
        self._path = path
        self._delimiter = delimiter
        self._columns = columns
        self._special = frozenset(f'"\r\n{delimiter}')

    def adopt_header(self, start: bytes) -> None:
        """Take the columns from the first row of an existing file, whose beginning is given."""
        buffer = LineBuffer(0, len(start), skip_bom=True)
        buffer.feed(start)
        buffer.finish()
        rows = CsvRows(self._path, self._delimiter, None, len(start))
        rows.read(buffer, 0, lambda ends: [])
        columns = list(rows.names or ())
        if self._columns is not None and list(self._columns) != columns:
            what = f"{self._path} has the columns {', '.join(columns)}, not {', '.join(self._columns)}"
            raise FatalError(what, suggestion="write to a new file, or set `columns` to those of the file")
        self._columns = columns or self._columns

    def encode(self, records: Sequence[Record], *, header: bool) -> Encoded:
        """The rows, after the header if the file has none yet."""
        encoded = encode_each(records, self._row)
        if not header or self._columns is None or not encoded.text:
            return encoded
        return Encoded(self._line(self._columns) + encoded.text, encoded.refused)

    def _row(self, record: Record) -> bytes:
        fields = structured(record.payload.after, "csv")
        columns = list(fields) if self._columns is None else self._columns
        if not columns:
            raise RecordRefused("payload.after has no fields, so it makes no row")
        if fields.keys() != set(columns):
            raise RecordRefused(_difference(fields, columns))
        line = self._line([_text(name, fields[name]) for name in columns])
        # Only now: a first record that cannot be written must not decide what the columns are.
        self._columns = columns
        return line

    def _line(self, texts: Sequence[str | None]) -> bytes:
        fields = ["" if text is None else self._quoted(text) for text in texts]
        # A single empty field would be a blank line, which readers skip.
        line = self._delimiter.join(fields) or '""'
        try:
            return f"{line}\n".encode()
        except UnicodeEncodeError as error:
            raise RecordRefused(f"cannot be written as UTF-8: {error.reason}") from error

    def _quoted(self, text: str) -> str:
        if text and self._special.isdisjoint(text):
            return text
        doubled = text.replace('"', '""')
        return f'"{doubled}"'


def _text(name: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Decimal) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    shown = value if isinstance(value, float) else type(value).__name__
    raise RecordRefused(f"{name} is {shown}, which has no form in CSV (convert it to text first)")


def _difference(fields: Mapping[str, object], columns: Sequence[str]) -> str:
    missing = [name for name in columns if name not in fields]
    extra = [name for name in fields if name not in columns]
    parts = [
        f"{what} {', '.join(map(repr, names))}" for what, names in (("missing", missing), ("extra", extra)) if names
    ]
    return f"the fields do not fit the columns of the file: {'; '.join(parts)}"
