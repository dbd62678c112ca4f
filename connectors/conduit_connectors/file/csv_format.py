"""CSV: reads rows whose quoted fields may span lines, and writes rows under a fixed header."""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field

from conduit_connectors.integer_text import integer_text
from conduit_connectors.line_formats import Encoded, encode_each, structured_fields, too_long, without_line_end
from conduit_connectors.lines import LineBuffer, Lines
from conduit_py.sdk import FatalError, Payload, Reading, Record, RecordRefused


def repeated(names: list[str]) -> list[str]:
    """Return the names that occur more than once, in order."""
    return [name for index, name in enumerate(names) if name in names[:index]]


def _distinct(names: list[str]) -> list[str]:
    if twice := repeated(names):
        raise ValueError(f"names must differ, but {', '.join(map(repr, twice))} is there more than once")
    return names


Delimiter = Annotated[
    str,
    Field(
        pattern=r'^[^"\r\n]$', description='what separates the fields of a CSV row: one character, not " or a line end'
    ),
]
Names = Annotated[list[str], Field(min_length=1), AfterValidator(_distinct)]
"""The names of the columns, in order, each once."""


class CsvRows:
    """Turns lines into records with the fields of a row under the names of the header.

    A row that cannot be read is refused as a whole, with its bytes. If a quote is never closed, or the row
    exceeds `size_max`, its first line is refused and the next line begins a row. Where rows begin depends on
    the file alone, not on the blocks in which it was read.
    """

    def __init__(self, path: Path, delimiter: str, names: Sequence[str] | None, size_max: int) -> None:
        self.names = names
        self._path = path
        self._delimiter = delimiter
        self._size_max = size_max
        # The limit of the csv module is global to the process: lowering it would break another reader's rows.
        csv.field_size_limit(max(csv.field_size_limit(), size_max))

    def read(self, buffer: LineBuffer, n: int, positions: Callable[[Sequence[int]], Sequence[bytes]]) -> Reading:
        """Take at most `n` rows from the buffer, and none while the next one is incomplete. Reads the header first."""
        names = self.names or self._read_header(buffer)
        if not names:
            return Reading([], {})
        lines = buffer.peek()
        rows = self._take(buffer, lines, n)
        records: list[Record] = []
        refused: dict[int, str] = {}
        ends = list(lines.ends)
        for row, position in zip(rows, positions([ends[row.stop - 1] for row in rows]), strict=True):
            reason = row.refused or _misfit(row.fields, names)
            if reason is None:
                after = dict(zip(names, row.fields, strict=True))
                records.append(Record(position=position, payload=Payload(after=after)))
            else:
                refused[len(records)] = reason
                raw = without_line_end(b"".join(lines.texts[row.start : row.stop]))
                records.append(Record.of(raw, position=position))
        return Reading(records, refused)

    def _read_header(self, buffer: LineBuffer) -> Sequence[str]:
        rows = self._take(buffer, buffer.peek(), 1)
        if not rows:
            return ()
        problem = rows[0].refused
        if problem is None and (twice := repeated(rows[0].fields)):
            problem = f"{', '.join(map(repr, twice))} is there more than once"
        if problem is not None:
            hint = "correct the first row; if it is not a header, name the columns with header=[…]"
            raise FatalError(f"the header of {self._path} cannot be used: {problem}", suggestion=hint)
        self.names = rows[0].fields
        return self.names

    def _take(self, buffer: LineBuffer, lines: Lines, n: int) -> list["_Row"]:
        """Take the next complete rows from the buffer, at most `n`, together with blank lines."""
        rows: list[_Row] = []
        stop = 0
        for row in cut_rows(lines, self._delimiter, self._size_max, ended=buffer.ended) if n else ():
            stop = row.stop
            if row.fields or row.refused:
                rows.append(row)
                if len(rows) == n:
                    break
        buffer.take(stop)
        return rows


class _Row(NamedTuple):
    """The lines from `start` to before `stop`: their fields, or why they are refused. A blank line has neither."""

    start: int
    stop: int
    fields: list[str]
    refused: str | None


class _OutOfLines(Exception):
    """The row continues beyond the lines in the buffer."""


class _LineTooLong(Exception):
    """The row continues into a line that was too long, of which only the beginning was kept."""


class _RowTooLong(Exception):
    """The row ends, but has more bytes than allowed."""


def cut_rows(lines: Lines, delimiter: str, size_max: int, *, ended: bool) -> Iterator[_Row]:
    """Return the rows that `lines` hold, as far as they are complete. No line follows if it `ended`."""
    start = 0
    while start < len(lines.texts):
        base = start
        invalid: set[int] = set()
        reader = csv.reader(_decoded(lines, base, invalid), delimiter=delimiter, strict=True)
        try:
            for fields in reader:
                stop = base + reader.line_num
                if _size(lines, start, stop) > size_max:
                    raise _RowTooLong
                bad = invalid and not invalid.isdisjoint(range(start, stop))
                yield _Row(start, stop, fields, "the row is not valid UTF-8" if bad else None)
                start = stop
        except (_OutOfLines, _LineTooLong, _RowTooLong, csv.Error) as error:
            row = _broken(lines, start, delimiter, size_max, ended, error) if start < len(lines.texts) else None
        if row is None:
            return
        yield row
        start = row.stop


def _broken(lines: Lines, start: int, delimiter: str, size_max: int, ended: bool, error: Exception) -> _Row | None:
    """The lines to refuse where the row at `start` cannot be read; None when more lines may complete it."""
    size = lines.long.get(lines.ends[start])
    if size is not None:
        return _Row(start, start + 1, [], too_long(size, len(without_line_end(lines.texts[start]))))
    try:
        stop = _lenient_stop(lines, start, delimiter)
    except _OutOfLines:
        if not ended and _size(lines, start, len(lines.texts)) <= size_max:
            return None
        return _Row(start, start + 1, [], _ENDLESS)
    except _LineTooLong:
        return _Row(start, start + 1, [], _ENDLESS)
    if _size(lines, start, stop) > size_max:
        return _Row(start, start + 1, [], _ENDLESS)
    return _Row(start, stop, [], f"not a valid CSV row: {error}")


_ENDLESS = (
    "a quoted field that begins on this line is not closed within line_size_max or the file; "
    "reading went on with the next line"
)


def _lenient_stop(lines: Lines, start: int, delimiter: str) -> int:
    """Return where a malformed row ends, as a reader that accepts stray quotes sees it."""
    reader = csv.reader(_decoded(lines, start, set()), delimiter=delimiter, strict=False)
    with suppress(csv.Error):  # An error of even this reader is on the line that it has reached.
        next(reader)
    return start + reader.line_num


def _decoded(lines: Lines, start: int, invalid: set[int]) -> Iterator[str]:
    """Return the lines as text, and which are not UTF-8. Those still take part, so that their row keeps its extent."""
    for index in range(start, len(lines.texts)):
        if lines.long and lines.ends[index] in lines.long:
            raise _LineTooLong
        try:
            text = lines.texts[index].decode()
        except UnicodeDecodeError:
            invalid.add(index)
            text = lines.texts[index].decode(errors="surrogateescape")
        yield text
    raise _OutOfLines


def _size(lines: Lines, start: int, stop: int) -> int:
    """Return the size of the lines in bytes, without the last line end."""
    if stop - start == 1:
        return 0  # The limit for a single line was applied when it was cut.
    return sum(map(len, lines.texts[start:stop])) - 1


def _misfit(fields: list[str], names: Sequence[str]) -> str | None:
    if len(fields) == len(names):
        return None
    return f"the row has {len(fields)} fields, the header has {len(names)}"


class CsvTable:
    """Encodes records as rows. The columns are given, or those of the file, or those of the first record.

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

    @property
    def columns(self) -> Sequence[str] | None:
        """The columns; None before the first record, if nobody gave them."""
        return self._columns

    def header(self) -> bytes:
        """The first row of a file."""
        return self._line(self._columns or ())

    def encode(self, records: Sequence[Record], *, header: bool) -> Encoded:
        """The rows, after the header if the file has none yet."""
        encoded = encode_each(records, self._row)
        if not header or self._columns is None or not encoded.text:
            return encoded
        return Encoded(self.header() + encoded.text, encoded.refused)

    def _row(self, record: Record) -> bytes:
        fields = structured_fields(record.payload.after, "csv")
        columns = list(fields) if self._columns is None else self._columns
        if not columns:
            raise RecordRefused("payload.after has no fields, so it makes no row")
        if fields.keys() != set(columns):
            raise RecordRefused(_difference(fields, columns))
        line = self._line([_text(name, fields[name]) for name in columns])
        # Only now: a first record that is refused must not decide the columns of the file.
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
    if isinstance(value, int):
        return integer_text(name, value)
    if isinstance(value, Decimal) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    # Invariant 12: str() of anything else could not be distinguished from text, or read back.
    shown = value if isinstance(value, float) else type(value).__name__
    raise RecordRefused(f"{name} is {shown}, which has no form in CSV (convert it to text first)")


def _difference(fields: Mapping[str, object], columns: Sequence[str]) -> str:
    missing = [name for name in columns if name not in fields]
    extra = [name for name in fields if name not in columns]
    parts = [
        f"{what} {', '.join(map(repr, names))}" for what, names in (("missing", missing), ("extra", extra)) if names
    ]
    return f"the fields do not fit the columns of the file: {'; '.join(parts)}"
