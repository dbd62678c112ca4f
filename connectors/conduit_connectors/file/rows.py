"""CsvRows: the rows of a CSV file, whose quoted fields may go on over several lines."""

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from conduit_connectors.file.dialect import repeated
from conduit_connectors.lines import LineBuffer, Lines
from conduit_connectors.parse import too_long, without_line_end
from conduit_py.sdk import FatalError, Payload, Reading, Record


class CsvRows:
    """Turns lines into records with the fields of a row under the names of the header.

    A row that cannot be read is refused as a whole and kept as it is. One without end, because a quote is
    never closed or the row exceeds `size_max`, is given up: its first line is refused and the next line
    begins a row. What is a row depends on the file alone, not on how it came in.
    """

    def __init__(self, path: Path, delimiter: str, names: Sequence[str] | None, size_max: int) -> None:
        self.names = names
        self._path = path
        self._delimiter = delimiter
        self._size_max = size_max
        # The limit of the csv module is for the whole process, so it is only ever raised.
        csv.field_size_limit(max(csv.field_size_limit(), size_max))

    def read(self, buffer: LineBuffer, n: int, positions: Callable[[Sequence[int]], list[bytes]]) -> Reading:
        """Take at most `n` rows from the buffer, none when the next one is not complete; the header first."""
        names = self.names or self._read_header(buffer)
        if not names:
            return Reading([], {})
        lines = buffer.peek()
        rows = self._take(buffer, lines, n)
        records: list[Record] = []
        refused: dict[int, str] = {}
        for row, position in zip(rows, positions([lines.ends[row.stop - 1] for row in rows]), strict=True):
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
        """The next complete rows, at most `n`, taken from the buffer together with blank lines."""
        rows: list[_Row] = []
        stop = 0
        for row in _cut(lines, self._delimiter, self._size_max, buffer.ended) if n else ():
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
    """The row goes on beyond the lines there are."""


class _LineTooLong(Exception):
    """The row goes on into a line of which only the beginning was kept."""


class _RowTooLong(Exception):
    """The row ends, but has more bytes than allowed."""


def _cut(lines: Lines, delimiter: str, size_max: int, ended: bool) -> Iterator[_Row]:
    """The rows that `lines` hold, as far as they are complete."""
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
    """Where a malformed row ends: where a reader that forgives stray quotes ends it."""
    reader = csv.reader(_decoded(lines, start, set()), delimiter=delimiter, strict=False)
    with suppress(csv.Error):  # What even this reader does not forgive is on the line it has come to.
        next(reader)
    return start + reader.line_num


def _decoded(lines: Lines, start: int, invalid: set[int]) -> Iterator[str]:
    """The lines as text. Those that are not UTF-8 are told apart, so that the row they are in keeps its extent."""
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
    """How many bytes the lines have, the last line end not counted."""
    if stop - start == 1:
        return 0  # The limit for a single line was applied when it was cut.
    return sum(map(len, lines.texts[start:stop])) - 1


def _misfit(fields: list[str], names: Sequence[str]) -> str | None:
    if len(fields) == len(names):
        return None
    return f"the row has {len(fields)} fields, the header has {len(names)}"
