"""The file source: reads one file, to its end or for as long as it grows."""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Unpack

import msgspec

from conduit_connectors.file.csv_format import CsvRows
from conduit_connectors.file.handle import HEAD_SIZE, FilePart, FilePosition, FileStart, Handle, hash_head
from conduit_connectors.file.many_files import is_plain_file, locate_object, read_many_files
from conduit_connectors.file.record_ends import end_finder
from conduit_connectors.file.rotation import (
    find_first,
    find_next,
    find_rotated,
    locate_line,
    newest_rotated,
    warn_missed,
)
from conduit_connectors.file.source_options import SourceArguments, SourceOptions
from conduit_connectors.json_lines import JsonLines
from conduit_connectors.line_formats import FORM_OF_LINES, parse_opencdc, parse_raw
from conduit_connectors.lines import LineBuffer, Lines
from conduit_py import sdk
from conduit_py.sdk import EndOfSource, FatalError, Lag, NothingYet, Reading, Records

_logger = logging.getLogger(__name__)
_START_AFRESH = 'put the old file back to go on after it, or read this one from its start with on_replaced="reread"'


class Source(sdk.SplittableSource[SourceOptions]):
    r"""One record per line of a file; the position is the byte offset just past it.

    At-least-once on its own, exactly-once with a destination that can: positions are stable, and reading
    goes on exactly after any of them. Records come in the order of the file.

    Formats: `lines` (raw bytes; an empty line is an empty record), `json` (one object per line), `csv`
    (fields are text; quoted fields may span lines), `opencdc` (a whole record per line; its position is
    replaced by ours, because a position means something only to the source that made it). The last three
    are UTF-8, with or without byte order mark, and skip blank lines. Lines end in "\n" or "\r\n". A line
    that cannot be read becomes a dead letter with its bytes as they are; of one longer than
    `line_size_max` it keeps the beginning, so memory stays bounded. A JSON object with a key twice counts as
    one that cannot be read; with `duplicate_keys="last"` the key has the last of its values.

    Without `tail` the source ends at the end of the file, whose last line needs no line end. If the file was
    truncated or replaced since the last run, there is no place to go on from: that is an error, or, with
    `on_replaced="reread"`, the file is read from its start. That is the option for an export which is written
    again every night. Write it under another name and rename it, so that no run sees half of it.

    With `tail` it waits for more lines, and for the file itself when it is missing. A line counts once its
    line end is there. Rotation is followed, also when it happened while the pipeline was stopped:

    - Moved away and created again: the old file is read to its end, found by its inode in the same
      folder; then those rotated after it (`app.log.1`, `app.log-20261116`, in order of their last
      change); then the new one, as soon as it has content.
    - Copied away and truncated: the rest is read from the copy, then the file from its start.
    - When the old file is not found, or is compressed, the new file is read from its start. A warning names the
      offset after which lines may have been missed.

    A path with wildcards names several files, read in the order of their names; .gz, .bz2, .zst and .lz4 are
    decompressed. The next run reads the files after them; one that is added before is an error, or `"reread"`.

    A file is recognised by its inode and its first 1024 bytes. So a file that is truncated and at once
    written again with the same beginning, beyond the offset that was reached, is not noticed.
    """

    # A block is small and mostly in the page cache. On a slow disk the runtime moves `read` to a thread.
    blocking = None

    # A batch of usual lines. What a batch is made of takes as much again, so glibc keeps memory of this size.
    _block_size: ClassVar[int] = 224 * 1024
    _handle: Handle | None = None
    _next: Handle | None = None
    _rows: CsvRows | None = None
    _truncated: FatalError | None = None
    _end = sys.maxsize  # the offset at which a part of a file ends
    _many: Any = None  # reads the files of a pattern, and compressed ones

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    @property
    def endless(self) -> bool:
        return self.options.tail

    def data_file(self) -> Path | None:
        return self.options.path if is_plain_file(self.options) else None

    @property
    def gives(self) -> Any:
        return FORM_OF_LINES[self.options.format]

    def probe(self) -> str:
        if not os.access(self.options.path, os.R_OK):
            advice = "check the path, and the rights of this user"
            raise FatalError(f"{self.options.path} cannot be read", suggestion=advice)
        return f"{self.options.path} can be read"

    def open(self, position: bytes | None) -> None:
        self._buffer = LineBuffer(0, 0)
        if not is_plain_file(self.options):
            self._many = read_many_files(self.options, self.payload_type)
            self._many.start(position)
        elif position is not None and (start := FileStart.parse(position)) is not None:
            self._start_again(start)
        elif position is not None:
            self._resume(FilePosition.parse(position))
        else:
            handle = Handle.open(self.options.path)
            if handle is None and not self.options.tail:
                raise self._missing()
            self._start(handle, 0)

    def start_position(self) -> bytes | None:
        """Return what finds the file again if it is rotated before the first commit."""
        if not self.options.tail or self._many is not None:
            return None
        head = b"" if self._handle is None else self._handle.read_at(0, HEAD_SIZE)
        inode = 0 if self._handle is None else self._handle.inode
        return bytes(FileStart(inode, len(head), hash_head(head), newest_rotated(self.options.path)))

    def check_position(self, position: bytes) -> None:
        if locate_object(position) is None and FileStart.parse(position) is None:
            FilePosition.parse(position)

    def locate_record(self, position: bytes) -> str | None:
        return locate_object(position) or locate_line(self.options.path, FilePosition.parse(position))

    def read(self, n: int) -> Records | Reading:
        if self._many is not None:
            return self._many.read(n)  # type: ignore[no-any-return]
        while True:
            filled = len(self._buffer) < n and self._fill(n)
            waiting = len(self._buffer)
            reading = self._take(n)
            if reading.records:
                return reading if reading.refused else reading.records
            if len(self._buffer) < waiting:
                continue  # Only blank lines, or a header: there may be more lines behind them.
            # Lines that wait are a CSV row without its end. Doubling the buffer keeps the work linear, because the
            # row is parsed from its start each time.
            target = 2 * self._buffer.size if len(self._buffer) else 0
            if not self._fill_to(target) and not filled:
                self._reach_end()

    def reads_alone(self) -> str | None:
        return "it waits for more at the end" if self.options.tail else None

    def split(self, size: int) -> bytes:
        if self._many is not None:
            return self._many.split(size)  # type: ignore[no-any-return]
        assert self._handle is not None
        part = FilePart.after(self._handle, self._buffer.offset, size, end_finder(self.options))
        if part is None:
            raise EndOfSource
        self._buffer = LineBuffer(part.end, self.options.line_size_max)
        return msgspec.msgpack.encode(part)

    def open_part(self, part: bytes) -> None:
        self._buffer = LineBuffer(0, 0)
        if not is_plain_file(self.options):
            self._many = read_many_files(self.options, self.payload_type)
            self._many.start_part(part)
            return
        handle = (found := msgspec.msgpack.decode(part, type=FilePart)).open()
        self._start(handle, found.start)
        found.check(handle)
        self._end = found.end

    def lag(self) -> Lag | None:
        """Return the bytes not read yet, of the open file and of the one at the path if that is another."""
        if self._many is not None:
            return None
        handle, buffer = self._handle, self._buffer
        sizes = [] if handle is None else [handle.stat().st_size - buffer.offset + buffer.size]
        try:
            current = self._path.stat()
        except FileNotFoundError:
            current = None
        if current is not None and (handle is None or current.st_ino != handle.inode):
            sizes.append(current.st_size)
        return Lag(bytes=max(sum(sizes), 0))

    def teardown(self) -> None:
        for each in (self._handle, self._next, self._many):
            if each is not None:
                each.close()
        self._handle = self._next = self._many = None

    def _start(self, handle: Handle | None, offset: int) -> None:
        """Read `handle` from `offset` on; None waits for a file to appear."""
        if self._handle is not None:
            self._handle.close()
        self._handle = handle
        self._quiet = False
        options = self.options
        self._path, self._tail = options.path, options.tail
        self._buffer = LineBuffer(offset, options.line_size_max, skip_bom=options.format != "lines")
        self._rows = None
        self._parse = self._parser()
        if options.format == "csv":
            self._rows = CsvRows(options.path, options.delimiter, options.header, options.line_size_max)
        if handle is not None and offset:
            handle.unchanged(offset)
            self._read_header_again(handle)

    def _parser(self) -> Callable[[Lines, Sequence[bytes]], Reading]:
        options = self.options
        if options.format == "json":
            return JsonLines(self.payload_type, options.duplicate_keys).parse
        if options.format == "opencdc":
            return partial(parse_opencdc, duplicate_keys=options.duplicate_keys)
        return parse_raw

    def _read_header_again(self, handle: Handle) -> None:
        """Read the columns from the start of a CSV file that is continued in the middle."""
        buffer = LineBuffer(0, self.options.line_size_max, skip_bom=True)
        while self._rows is not None and self._rows.names is None:
            block = handle.read_at(buffer.offset, self._block_size)
            if not block:
                raise FatalError(f"{handle.path} has no header any more", suggestion=_START_AFRESH)
            buffer.feed(block)
            self._rows.read(buffer, 0, handle.positions)

    def _resume(self, position: FilePosition) -> None:
        path = self.options.path
        handle = Handle.open(path)
        if handle is not None and _is_same(handle, position):
            self._start(handle, position.offset)
        elif handle is not None and self.options.on_replaced == "reread":
            _logger.info("%s was replaced since the last run; it is read from its start", path)
            self._start(handle, 0)
        elif not self.options.tail:
            self._handle = handle
            raise self._missing() if handle is None else self._replaced(handle, position)
        elif (rotated := find_rotated(path, position)) is not None:
            if handle is not None:
                handle.close()
            self._start(rotated, position.offset)
        else:
            warn_missed(path, position.offset, "since the last run")
            self._start(handle, 0)

    def _start_again(self, start: FileStart) -> None:
        """Begin as the first run did, which committed nothing: with the same file, wherever it is now."""
        handle = find_first(self.options.path, start) if self.options.tail else Handle.open(self.options.path)
        if handle is None and not self.options.tail:
            raise self._missing()
        self._start(handle, 0)

    def _fill_to(self, size: int) -> bool:
        """Read a block, and more until the buffer holds `size` bytes. True if anything was read."""
        filled = self._fill()
        while filled and self._buffer.size < size and self._fill():
            pass
        return filled

    def _fill(self, n: int = sys.maxsize) -> bool:
        """Read the next block of the file into the buffer, if there is any, of about `n` lines."""
        handle, buffer = self._handle, self._buffer
        if handle is None or buffer.ended:
            return False
        most = min(self._block_size, self._end - buffer.offset)
        block = handle.read_at(buffer.offset, buffer.room_for(n, most))
        if not handle.unchanged(buffer.offset + len(block)):
            self._go_on_after_truncation(handle)
            return True
        if block:
            buffer.feed(block)
            self._quiet = False
        return bool(block)

    def _take(self, n: int) -> Reading:
        if self._handle is None:
            return Reading([], {})
        if self._rows is not None:
            return self._rows.read(self._buffer, n, self._handle.positions)
        lines = self._buffer.take(n)
        return self._parse(lines, self._handle.positions(lines.ends))

    def _reach_end(self) -> None:
        """Called at the end of the file: end, wait, or continue with the next file."""
        if not self._tail:
            if self._buffer.ended:
                raise self._truncated or EndOfSource
            self._buffer.finish()
        elif self._buffer.ended:
            following, self._next = self._next, None
            self._start(following, 0)
        elif self._handle is None:
            self._start(Handle.open(self._path), 0)
            if self._handle is None:
                raise NothingYet
        else:
            self._leave_when_rotated(self._handle)

    def _leave_when_rotated(self, handle: Handle) -> None:
        following = find_next(self.options.path, handle)
        if following is not None and self._quiet:
            self._next = following
            self._buffer.finish()
            return
        # A writer may still append to the old file for a moment after the rotation: only its end seen twice counts.
        self._quiet = following is not None
        if following is not None:
            following.close()
        raise NothingYet

    def _go_on_after_truncation(self, handle: Handle) -> None:
        """Handle a truncated file: continue in its copy, else at its start. A source without `tail` fails."""
        position = handle.position(self._buffer.offset)
        if not self.options.tail:
            # First the lines that are in the buffer: they are in no file any more.
            self._truncated = self._replaced(handle, position)
            self._buffer.finish(keep_rest=False)
            return
        copy = find_rotated(self.options.path, position)
        if copy is not None:
            # The copy has the same bytes at the same offsets, so the buffer stays valid.
            copy.unchanged(self._buffer.offset)
            self._handle = copy
            handle.close()
            return
        warn_missed(self.options.path, position.offset, "while it was read")
        self._next = Handle.open(self.options.path)
        self._buffer.finish(keep_rest=False)

    def _missing(self) -> FatalError:
        return FatalError(
            f"there is no file {self.options.path}",
            suggestion="create it, correct the path, or wait for it with tail=True",
        )

    def _replaced(self, handle: Handle, position: FilePosition) -> FatalError:
        path, size = self.options.path, handle.stat().st_size
        if size < position.offset:
            what = f"{path} was truncated: it was read up to byte {position.offset} and now has {size}"
        else:
            what = f"{path} was replaced: it is not the file that was read up to byte {position.offset}"
        return FatalError(what, suggestion=_START_AFRESH)


def _is_same(handle: Handle, position: FilePosition) -> bool:
    """True if a file at the path is still the one that was read up to the position."""
    return handle.inode == position.inode and handle.holds(position) and handle.has_line_end(position.offset)
