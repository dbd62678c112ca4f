"""The Parquet source: the rows of files, as Arrow tables."""

import glob
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Required, TypedDict, Unpack

import msgspec
from pydantic import Field

from conduit_connectors.objects.parquet import ParquetLimits, ParquetPart, ParquetReader, RowGroup
from conduit_connectors.objects.parquet_chunks import CHUNK_BYTES, CHUNK_ROWS
from conduit_connectors.table_rows import read_rows
from conduit_py import sdk
from conduit_py.sdk import (
    EndOfSource,
    FatalError,
    Positions,
    Reading,
    Record,
    Records,
    TransientError,
    foreign_position,
)

_POSITION = re.compile(rb"parquet:1:([0-9a-f]{16}):(\d{1,18}):(\d{1,18}):(.+)", re.DOTALL)
_TAIL_SIZE = 64 * 1024


class SourceOptions(sdk.Options):
    """Options of the Parquet source."""

    path: str = Field(min_length=1, description='a file, a folder, or a pattern such as "orders/**/*.parquet"')
    columns: list[str] | None = Field(default=None, min_length=1, description="the columns to read; None: all")
    memory_max: int = Field(
        default=256 * 1024 * 1024, ge=2**20, description="the most memory that decoding may take beside the program"
    )
    row_size_max: int = Field(
        default=16 * 1024 * 1024, ge=2**21, description="a row that takes more bytes is a dead letter without content"
    )


class SourceArguments(TypedDict, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    path: Required[str]
    columns: Sequence[str] | None
    memory_max: int
    row_size_max: int


class RowPosition(NamedTuple):
    """A row of a file, counted from 1. The mark recognises the file; `rows` is how many it has."""

    mark: str
    rows: int
    row: int
    path: str

    @classmethod
    def parse(cls, raw: bytes) -> "RowPosition":
        found = _POSITION.fullmatch(raw)
        if found is None:
            raise foreign_position(raw, "the parquet source")
        return cls(found[1].decode(), int(found[2]), int(found[3]), os.fsdecode(found[4]))


class RowRange(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a file: those after `start`, up to `end`, or to the end of the file if there is none."""

    path: str
    mark: str
    start: int
    end: int | None


class Source(sdk.SplittableSource[SourceOptions]):
    """The rows of Parquet files, file after file in the order of their names, as tables.

    At-least-once on its own, exactly-once with a destination that can: reading goes on exactly after any row. It ends
    after the last file. The next run reads the files whose names sort after the last one that was read. A file that was
    read to its end may be deleted. One that was read in part must still be there and unchanged, else that is an error.

    In a folder, files are read whose names end in `.parquet`, at any depth. Files and folders whose names begin with a
    dot or an underscore are left out.

    Files are decoded in another process with a limit on its memory. So a hostile or damaged file ends neither this
    process nor its memory. A row with a value that Python cannot hold becomes a dead letter without content: a time in
    nanoseconds, a text that is no UTF-8. `columns` can leave such columns out.

    On Spark the executors read several files at once, and the row groups of large ones.
    """

    gives = dict
    # Rows mostly wait in the socket. On a slow disk the runtime moves `read` to a thread.
    blocking = None

    _reader: ParquetReader | None = None
    _parts: Iterator[ParquetPart] | None = None
    _part: ParquetPart | None = None
    _files: Iterator[RowRange]
    _ranges: Iterator[tuple[RowRange, int]] | None = None
    _next_range: tuple[RowRange, int] | None = None

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def data_file(self) -> Path | None:
        return None if glob.has_magic(self.options.path) else Path(self.options.path)

    def probe(self) -> str:
        files = list_files(self.options.path)
        if not files:
            raise FatalError(f"there is no file at {self.options.path}", suggestion="correct `path`, or write one")
        return f"{len(files)} files are there" if len(files) > 1 else f"{files[0]} is there"

    def open(self, position: bytes | None) -> None:
        options = self.options
        self._reader = self._make_reader()
        files = list_files(options.path)
        if position is None:
            if not files:
                raise FatalError(f"there is no file at {options.path}", suggestion="correct `path`, or write one")
            self._files = map(_whole, files)
            return
        last = RowPosition.parse(position)
        self._files = map(_whole, [path for path in files if path > last.path])
        if last.row < last.rows:
            rest = RowRange(last.path, last.mark, last.row, None)
            self._check_unchanged(rest)
            self._files = chain([rest], self._files)

    def read(self, n: int) -> Records | Reading:
        while True:
            if self._part is None:
                self._part = self._next_part()
            if self._part is not None:
                return self._take(self._part, n)
            rows = next(self._files, None)
            if rows is None:
                raise EndOfSource
            self._open_file(rows)

    def split(self, size: int) -> bytes:
        """Return ranges of about so many bytes: several small files, or some row groups of a large one."""
        if self._ranges is None:
            self._ranges = self._cut_files(size)
            self._next_range = next(self._ranges, None)
        part: list[RowRange] = []
        total = 0
        while self._next_range is not None and (not part or total + self._next_range[1] <= size):
            rows, more = self._next_range
            total += more
            if part and part[-1].path == rows.path:
                rows = msgspec.structs.replace(part.pop(), end=rows.end)
            part.append(rows)
            self._next_range = next(self._ranges, None)
        if not part:
            raise EndOfSource
        return msgspec.msgpack.encode(part)

    def open_part(self, part: bytes) -> None:
        self._reader = self._make_reader()
        self._files = iter(msgspec.msgpack.decode(part, type=list[RowRange]))

    def _cut_files(self, size: int) -> Iterator[tuple[RowRange, int]]:
        """Return ranges with their sizes, in order: a row group each in files that are larger than `size`."""
        assert self._reader is not None
        for whole in self._files:
            with self._open_bytes(whole) as file:
                whole = msgspec.structs.replace(whole, mark=_mark(file))
                file_size = os.fstat(file.fileno()).st_size
                groups = _groups_of(self._reader, file) if file_size > size else []
            groups = groups or [RowGroup(0, file_size)]
            # Sizes in the file: those of groups are without their compression.
            shares = [file_size * each.size // max(1, sum(group.size for group in groups)) for each in groups]
            start = 0
            for group, share in zip(groups[:-1], shares, strict=False):
                end = start + group.rows
                if end > whole.start:
                    yield RowRange(whole.path, whole.mark, max(start, whole.start), end), share
                start = end
            # Without an end: what a file says of its rows may be wrong, and all of them are read on one machine.
            yield RowRange(whole.path, whole.mark, max(start, whole.start), None), shares[-1]

    def _make_reader(self) -> ParquetReader:
        options = self.options
        limits = ParquetLimits(options.memory_max, options.row_size_max, "memory_max", "row_size_max")
        return ParquetReader(limits, CHUNK_ROWS)

    def check_position(self, position: bytes) -> None:
        RowPosition.parse(position)

    def locate_record(self, position: bytes) -> str:
        place = RowPosition.parse(position)
        return f"{place.path} row {place.row}"

    def teardown(self) -> None:
        self._parts = self._part = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _open_file(self, rows: RowRange) -> None:
        assert self._reader is not None
        file = self._open_bytes(rows)
        self._path, self._mark = rows.path, _mark(file)
        columns = self.options.columns
        # At most one row: only a row that comes alone is checked for its size.
        request: dict[str, Any] = {"columns": columns, "piece_bytes": min(CHUNK_BYTES, self.options.row_size_max)}
        request |= {} if rows.end is None else {"end": rows.end}
        self._parts = self._reader.read_parts(rows.start, file=file, **request)

    def _check_unchanged(self, rows: RowRange) -> None:
        self._open_bytes(rows).close()

    def _open_bytes(self, rows: RowRange) -> BinaryIO:
        """Open the file that has these rows. Raises FatalError if it is another by now."""
        path = rows.path
        try:
            file = open(path, "rb")  # noqa: SIM115 - the caller closes it
        except OSError as error:
            hint = "put it back: it was read in part" if rows.start else "check the path and its permissions"
            raise FatalError(f"cannot open {path}: {error.strerror}", suggestion=hint) from error
        if rows.mark and _mark(file) != rows.mark:
            file.close()
            raise FatalError(
                f"{path} was replaced: it is not the file that was read up to row {rows.start}",
                suggestion="put the old file back, or give the source a new id to read all files from their start",
            )
        return file

    def _next_part(self) -> ParquetPart | None:
        try:
            return next(self._parts, None) if self._parts is not None else None
        except ValueError as error:
            hint = "repair the file, or move it away"
            raise FatalError(f"{self._path}: {error}", suggestion=hint) from error
        except OSError as error:
            raise TransientError(f"{self._path}: {error}", suggestion="check the disk of the file") from error

    def _take(self, part: ParquetPart, n: int) -> Records | Reading:
        assert self._reader is not None
        if part.table is None:
            self._part = None
            return Reading([Record(position=self._positions(part, 1)[0])], {0: self._reader.too_long(part)})
        positions, table = self._positions(part, min(n, part.table.num_rows)), part.table.slice(0, n)
        rest = part.table.slice(n)
        self._part = part._replace(table=rest) if rest.num_rows else None
        return read_rows(table, positions, self._path)

    def _positions(self, part: ParquetPart, count: int) -> Positions:
        first = part.end - (1 if part.table is None else part.table.num_rows) + 1
        path = os.fsencode(self._path).replace(b"%", b"%%")
        template = b"parquet:1:%s:%d:%%d:%s" % (self._mark.encode(), part.rows, path)
        return Positions(template, range(first, first + count), ascending=True)


def _whole(path: str) -> RowRange:
    return RowRange(path, "", 0, None)


def _groups_of(reader: ParquetReader, file: BinaryIO) -> list[RowGroup]:
    try:
        return reader.list_groups(file)
    except ValueError:
        # A later read finds what is wrong, and reports it.
        return []


def list_files(path: str) -> list[str]:
    """Return the files that a path names, in the order of their names."""
    if os.path.isdir(path):
        found = glob.glob(os.path.join(glob.escape(path), "**", "*.parquet"), recursive=True)
        hidden = re.compile(r"(^|/)[._]")
        return sorted(each for each in found if not hidden.search(os.path.relpath(each, path)) and os.path.isfile(each))
    if glob.has_magic(path) and not os.path.exists(path):
        return sorted(each for each in glob.glob(path, recursive=True) if os.path.isfile(each))
    return [path] if os.path.isfile(path) else []


def _mark(file: BinaryIO) -> str:
    """Return what recognises a file: a hash of its size and its end, where Parquet has what the file contains."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise FatalError(f"{file.name} is not a regular file", suggestion="name files that can be read from any place")
    end = os.pread(file.fileno(), _TAIL_SIZE, max(0, status.st_size - _TAIL_SIZE))
    return hashlib.blake2b(b"%d:%s" % (status.st_size, end), digest_size=8).hexdigest()
