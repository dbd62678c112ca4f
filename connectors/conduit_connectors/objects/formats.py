"""Objects as records: plain lines, JSON and CSV."""

import csv
from collections.abc import Iterator
from typing import Any

from conduit_connectors.json_lines import JsonLines
from conduit_connectors.line_formats import parse_raw, too_long, without_line_end
from conduit_connectors.lines import LineBuffer, Lines
from conduit_py.sdk import Payloads
from conduit_py.sdk.queue import ObjectRecord

BLOCK_SIZE = 2**18


def read_lines(stream: Any, offset: int, size_max: int, *, json: bool) -> Iterator[ObjectRecord]:
    """Read the lines after `offset`. A line that the format cannot parse is refused, with its bytes."""
    parse = JsonLines().parse if json else parse_raw
    with stream:
        for lines in _lines(stream, offset, size_max):
            # The position of a line is its offset, not its number, so that blank lines can be skipped.
            reading = parse(lines, [b"%d" % end for end in lines.ends])
            assert isinstance(reading.records, Payloads)
            values = zip(reading.records.payloads, reading.records.positions, strict=True)
            for index, (value, position) in enumerate(values):
                before, offset = offset, int(position)
                yield ObjectRecord(value, offset, reading.refused.get(index), offset - before)


def read_csv(stream: Any, offset: int, size_max: int) -> Iterator[ObjectRecord]:
    """Read the rows after `offset`. The first row of the object names the columns."""
    with stream:
        rows = _Rows(stream, size_max)
        names = next(rows, None)
        if names is None:
            return
        before = rows.end
        for row in rows:
            if rows.end > offset:
                yield _row(names, row, rows.end)._replace(size=rows.end - before)
            before = rows.end


class _Rows(Iterator[list[str]]):
    """Rows of CSV, which may span lines. `end` is the offset just past the last one."""

    def __init__(self, stream: Any, size_max: int) -> None:
        self.end = 0
        self._lines = _lines(stream, 0, size_max)
        self._reader = csv.reader(self._texts(), strict=True)

    def __next__(self) -> list[str]:
        return next(self._reader)

    def _texts(self) -> Iterator[str]:
        for lines in self._lines:
            for text, end in zip(lines.texts, lines.ends, strict=True):
                if end in lines.long:
                    raise ValueError(too_long(lines.long[end], len(without_line_end(text))))
                self.end = end
                yield text.decode("utf-8")


def _row(names: list[str], row: list[str], end: int) -> ObjectRecord:
    if len(row) == len(names):
        return ObjectRecord(dict(zip(names, row, strict=True)), end)
    return ObjectRecord(",".join(row).encode(), end, f"the row has {len(row)} fields, the header {len(names)}")


def _lines(stream: Any, offset: int, size_max: int) -> Iterator[Lines]:
    _skip(stream, offset)
    buffer = LineBuffer(offset, size_max, skip_bom=True)
    while block := stream.read(BLOCK_SIZE):
        buffer.feed(bytes(block))
        if len(buffer):
            yield buffer.take(len(buffer))
    buffer.finish()
    if len(buffer):
        yield buffer.take(len(buffer))


def _skip(stream: Any, offset: int) -> None:
    """Skip to an offset: by seeking where that is possible, in compressed content by reading it."""
    if stream.seekable():
        stream.seek(offset)
        return
    while offset:
        block = stream.read(min(offset, BLOCK_SIZE))
        if not block:
            return
        offset -= len(block)
