"""LakeSource: the rows of a table with versions: all files of one version, then what each later version adds."""

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar

import pyarrow as pa
from pydantic import Field

from conduit_connectors.table_rows import read_rows
from conduit_py import sdk
from conduit_py.sdk import (
    EndOfSource,
    FatalError,
    NothingYet,
    Operation,
    Payload,
    Positions,
    Reading,
    Record,
    Records,
    foreign_position,
)

ChangeKind = Literal["rows", "deleted", "changes"]

_POSITION = re.compile(rb"lake:1:([0-9a-f-]{1,64}):(\d{1,19}):([wc]):(\d{1,9}):(\d{1,18})")
_CHANGE = "_change_type"
_COMMIT = (_CHANGE, "_commit_version", "_commit_timestamp")


class LakeOptions(sdk.Options):
    """The options of all sources that read tables of a lake."""

    tail: bool = Field(default=False, description="wait for later versions of the table at the end")
    key: list[str] | None = Field(
        default=None, min_length=1, description="the columns that become the key of a record; None: it has no key"
    )


class LakeArguments(TypedDict, total=False):
    """LakeOptions as a caller writes them, for editors and type checkers."""

    tail: bool
    key: Sequence[str] | None


OptionsT = TypeVar("OptionsT", bound=LakeOptions)


class LakePlace(NamedTuple):
    """A row: of which version, whether that is read as a whole, in which of its files, and which row of that."""

    table: str
    version: int
    whole: bool
    file: int
    row: int

    @classmethod
    def parse(cls, position: bytes) -> "LakePlace":
        """Read what was encoded. Raises FatalError for a position of another source."""
        found = _POSITION.fullmatch(position)
        if found is None:
            raise foreign_position(position, "the lake source")
        return cls(found[1].decode(), int(found[2]), found[3] == b"w", int(found[4]), int(found[5]))

    def template(self) -> bytes:
        """Return the position without the number of the row."""
        whole = b"w" if self.whole else b"c"
        return b"lake:1:%s:%d:%s:%d:%%d" % (self.table.encode(), self.version, whole, self.file)


class LakeFile(NamedTuple):
    """A file of a version: its name, and what its rows are."""

    name: str
    kind: ChangeKind = "rows"


class LakeSource(sdk.SourceConnector[OptionsT]):
    """The base of sources that read tables of a lake. A version never changes, so each row has its place for ever.

    A connector lists the files of a version in an order that is always the same, and reads rows of a file in theirs.
    """

    gives = dict
    _batches: Iterator[pa.Table] | None = None

    @abstractmethod
    def open_table(self) -> tuple[str, int]:
        """Open the table; return its id, and its newest version."""

    @abstractmethod
    def first_files(self, version: int) -> list[LakeFile]:
        """Return all files of a version, in an order that is always the same. Raises FatalError if it is gone."""

    @abstractmethod
    def next_version(self, version: int) -> int | None:
        """Return the version after this one; None if there is none yet. Raises FatalError if it cannot be known."""

    @abstractmethod
    def changed_files(self, version: int) -> list[LakeFile]:
        """Return the files that a version brought. Raises FatalError if it did more than can be read exactly."""

    @abstractmethod
    def read_file(self, version: int, file: LakeFile) -> Iterator[pa.Table]:
        """Return the rows of a file, always in the same order. Raises FatalError if the file is gone."""

    def probe(self) -> str:
        try:
            return f"the table is there, in version {self.open_table()[1]}"
        finally:
            self.teardown()

    def open(self, position: bytes | None) -> None:
        self._rest: pa.Table | None = None
        self._batches = None
        table, newest = self.open_table()
        if position is None:
            self._place = LakePlace(table, newest, True, 0, 0)
            self._files = self.first_files(newest)
            return
        place = LakePlace.parse(position)
        if place.table != table:
            raise FatalError(
                "the table was replaced: it is not the one that was read before",
                suggestion="give the source a new id to read the new table from its start",
            )
        self._place = place
        self._files = self.first_files(place.version) if place.whole else self.changed_files(place.version)
        if place.file < len(self._files):
            self._open_file(place.row)

    def read(self, n: int) -> Records | Reading:
        while True:
            if self._rest is None:
                self._rest = self._next_rows()
            if self._rest is not None:
                return self._take(n)
            if self._place.file < len(self._files) and self._batches is not None:
                self._place = self._place._replace(file=self._place.file + 1, row=0)
                self._batches = None
            if self._place.file < len(self._files):
                self._open_file(0)
            elif not self._start_version():
                raise NothingYet if self.options.tail else EndOfSource
            elif not self._files:
                # Without this a table that is only compacted would be read from an ever older version.
                return Reading([], position=self._place.template() % 0)

    def check_position(self, position: bytes) -> None:
        LakePlace.parse(position)

    def locate_record(self, position: bytes) -> str:
        place = LakePlace.parse(position)
        return f"version {place.version}, file {place.file + 1}, row {place.row}"

    def teardown(self) -> None:
        self._rest = self._batches = None

    def _start_version(self) -> bool:
        version = self.next_version(self._place.version)
        if version is None:
            return False
        self._files = self.changed_files(version)
        self._place = LakePlace(self._place.table, version, False, 0, 0)
        return True

    def _open_file(self, after: int) -> None:
        self._place = self._place._replace(row=after)
        self._batches = _skip(self.read_file(self._place.version, self._files[self._place.file]), after)

    def _next_rows(self) -> pa.Table | None:
        if self._batches is None:
            return None
        return next((table for table in self._batches if table.num_rows), None)

    def _take(self, n: int) -> Records | Reading:
        assert self._rest is not None
        table, rest = self._rest.slice(0, n), self._rest.slice(n)
        self._rest = rest if rest.num_rows else None
        first = self._place.row + 1
        self._place = self._place._replace(row=self._place.row + table.num_rows)
        positions = Positions(self._place.template(), range(first, first + table.num_rows), ascending=True)
        kind = self._files[self._place.file].kind
        if kind == "rows" and self.options.key is None:
            return read_rows(table, positions, self._files[self._place.file].name)
        return self._records(table, positions, kind)

    def _records(self, table: pa.Table, positions: Positions, kind: ChangeKind) -> Reading:
        """Return the rows as records with a key and an operation. What a row was before its update is no record."""
        types = table.column(_CHANGE).to_pylist() if kind == "changes" else [_KINDS[kind]] * table.num_rows
        rows = table.drop_columns([name for name in _COMMIT if name in table.column_names])
        reading = read_rows(rows, positions, self._files[self._place.file].name)
        given = list(reading.records if isinstance(reading, Reading) else reading)
        refused = reading.refused if isinstance(reading, Reading) else {}
        records: list[Record] = []
        told_why: dict[int, str] = {}
        for index, (record, change) in enumerate(zip(given, types, strict=True)):
            if change == "update_preimage":
                continue
            if index in refused:
                told_why[len(records)] = refused[index]
            else:
                record = self._changed(record, change)
            records.append(record)
        # The place after all of them, in case that the last was left out.
        end = self._place.template() % self._place.row if len(records) < len(given) else None
        last = records[-1].position if records else None
        return Reading(records, told_why, position=end if end != last else None)

    def _changed(self, record: Record, change: str) -> Record:
        row: Any = record.payload.after
        key = None if self.options.key is None else {name: row.get(name) for name in self.options.key}
        if change == "delete":
            return Record(record.position, Operation.DELETE, record.metadata, key, Payload(before=row))
        operation = Operation.UPDATE if change == "update_postimage" else Operation.CREATE
        return Record(record.position, operation, record.metadata, key, Payload(after=row))


_KINDS = {"rows": "insert", "deleted": "delete"}


def _skip(tables: Iterator[pa.Table], count: int) -> Iterator[pa.Table]:
    for table in tables:
        skipped = min(count, table.num_rows)
        count -= skipped
        if skipped < table.num_rows:
            yield table.slice(skipped)
