"""Where records of a file end, so that it can be divided: at any line, or where a CSV row that spans lines ends."""

import re
from functools import cache, partial

from conduit_connectors.file.csv_format import cut_rows
from conduit_connectors.file.handle import FindEnd, Handle
from conduit_connectors.file.source_options import SourceOptions
from conduit_connectors.lines import LineBuffer

_BLOCK_SIZE = 64 * 1024


def end_finder(options: SourceOptions) -> FindEnd:
    """Return what finds the ends of records in a file of this format."""
    if options.format == "csv":
        return partial(find_row_end, delimiter=options.delimiter, size_max=options.line_size_max)
    return find_line_end


def find_line_end(handle: Handle, start: int, offset: int) -> int:
    """Return where the line ends that holds byte `offset - 1`."""
    offset -= 1
    while block := handle.read_at(offset, _BLOCK_SIZE):
        found = block.find(b"\n")
        if found >= 0:
            return offset + found + 1
        offset += len(block)
    return offset


def find_row_end(handle: Handle, start: int, offset: int, *, delimiter: str, size_max: int) -> int:
    """Return where the CSV row ends that holds byte `offset - 1`; a row begins at `start`.

    Whether a line begins a row depends on all quotes before it. Without a quote each line is a row, whatever else is in
    it. Rows that are sound are found by a pattern. Only what is left is parsed, as the source does it, so that both
    agree on malformed rows.
    """
    row, rows = _sound_rows(delimiter)
    while start < offset and (block := handle.read_at(start, _BLOCK_SIZE)):
        wanted = offset - start
        known = 0
        if b'"' not in block:
            known = block.rfind(b"\n") + 1
            if known >= wanted:
                return start + block.index(b"\n", wanted - 1) + 1
        # In a block that is smaller no row can be too long.
        elif len(block) <= size_max:
            known = _end_of(rows, block, 0)
            if known >= wanted:
                end = 0
                while end < wanted:
                    end = _end_of(row, block, end)
                return start + end
        start = start + known if known else _parse_rows(handle, start, offset, delimiter, size_max)
    return start


@cache
def _sound_rows(delimiter: str) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Return the patterns of a row, and of as many as there are, whose quotes open and close at the edges of fields."""
    cut = re.escape(delimiter.encode())
    quoted = rb'(?:(?<=%b)|(?<=\n)|\A)"[^"]*+(?:""[^"]*+)*+"(?=%b|\r|\n)' % (cut, cut)
    # A carriage return inside of a field makes the row malformed.
    row = rb'(?:[^"\r\n]*+%b)*+[^"\r\n]*+\r?\n' % quoted
    return re.compile(row), re.compile(rb"(?:%b)*+" % row)


def _end_of(pattern: re.Pattern[bytes], block: bytes, start: int) -> int:
    found = pattern.match(block, start)
    assert found is not None, "rows were found here before"
    return found.end()


def _parse_rows(handle: Handle, start: int, offset: int, delimiter: str, size_max: int) -> int:
    """Return where the first row ends at or after `offset`, or else the last one of a block."""
    buffer = LineBuffer(start, size_max, skip_bom=True)
    wanted = _BLOCK_SIZE
    end = start
    while end == start and not buffer.ended:
        # A row that is not complete is parsed from its start again, so each time there is twice as much of it.
        while buffer.size < wanted and (block := handle.read_at(buffer.offset, _BLOCK_SIZE)):
            buffer.feed(block)
        if buffer.size < wanted:
            buffer.finish()
        wanted = 2 * buffer.size
        lines = buffer.peek()
        for row in cut_rows(lines, delimiter, size_max, ended=buffer.ended):
            end = lines.ends[row.stop - 1]
            if end >= offset:
                break
    return end
