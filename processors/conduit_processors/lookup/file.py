"""`lookup.file` adds rows of a file, which is read into memory and again when it has changed."""

import csv
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Required, Unpack

from pydantic import Field, field_validator

from conduit_processors.lookup.enrichment import LookupArguments, LookupOptions, enrich
from conduit_py.sdk import FatalError, Processor, Record, RecordRefused, Structured, decode_json
from conduit_py.sdk.template import option_error, text_of

_logger = logging.getLogger(__name__)
_FORMATS = (".csv", ".json", ".jsonl", ".ndjson")


class FileOptions(LookupOptions):
    """Options of lookup.file."""

    path: Path = Field(description="the file: .csv with a header, .json with a list of objects, or .jsonl, .ndjson")
    refresh_seconds: float = Field(default=60.0, ge=0, description="how often to look if the file has changed")
    rows_max: int = Field(default=1_000_000, ge=1, description="how many rows may be in memory; a longer file fails")

    @field_validator("path")
    @classmethod
    def _check_suffix(cls, path: Path) -> Path:
        if path.suffix.lower() not in _FORMATS:
            raise option_error(f"must end in {', '.join(_FORMATS)}")
        return path


class FileArguments(LookupArguments, total=False):
    """FileOptions as a caller writes them, for editors and type checkers."""

    path: Required[str | Path]
    refresh_seconds: float
    rows_max: int


class File(Processor[FileOptions]):
    """Looks up a value in a file that fits into memory. Values are compared as text, because CSV has nothing else.

    The file is read at the start, and again when it has changed. If it cannot be read then, the rows of before stay,
    and the log says so.
    """

    def __init__(self, **options: Unpack[FileArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        self._look_at = 0.0
        self._version: tuple[int, int, int] | None = None
        self._rows: dict[str, Structured] = {}
        self._refresh(first=True)

    def process(self, record: Record) -> Record | None:
        if time.monotonic() >= self._look_at:
            self._refresh()
        value = self.options.key.get(record)
        row = None if value is None else self._rows.get(text_of(value))
        # A copy: the next processor may change the record.
        return enrich(record, row and dict(row), self.options, value)

    def _refresh(self, *, first: bool = False) -> None:
        options = self.options
        self._look_at = time.monotonic() + options.refresh_seconds
        try:
            found = os.stat(options.path)
            version = (found.st_mtime_ns, found.st_size, found.st_ino)
            if version != self._version:
                self._rows = self._read()
                self._version = version
        except (OSError, ValueError, csv.Error, RecordRefused) as error:
            if first:
                raise FatalError(
                    f"the table {options.path} cannot be read: {error}", suggestion="check the path and the format"
                ) from error
            _logger.warning("the table %s cannot be read, so the last one stays: %s", options.path, error)

    def _read(self) -> dict[str, Structured]:
        options = self.options
        rows: dict[str, Structured] = {}
        for row in self._each_row():
            if options.column not in row or row[options.column] is None:
                raise ValueError(f"row {len(rows) + 1} has no {options.column!r}")
            key = text_of(row[options.column])
            if key in rows:
                raise ValueError(f"two rows have {options.column} = {key[:100]!r}")
            if len(rows) == options.rows_max:
                raise ValueError(f"it has more than rows_max={options.rows_max} rows")
            rows[key] = row if options.columns is None else {name: row.get(name) for name in options.columns}
        return rows

    def _each_row(self) -> Iterator[Structured]:
        path = self.options.path
        if path.suffix.lower() == ".csv":
            with path.open(newline="", encoding="utf-8-sig") as lines:
                reader = csv.DictReader(lines, strict=True)
                if self.options.column not in (reader.fieldnames or ()):
                    raise ValueError(f"its first line has no {self.options.column!r}")
                for row in reader:
                    if None in row or None in row.values():
                        raise ValueError(f"line {reader.line_num} has not as many values as the first line has names")
                    yield row
            return
        if path.suffix.lower() == ".json":
            rows = decode_json(path.read_bytes())
        else:
            rows = (decode_json(line) for line in path.read_bytes().splitlines() if line.strip())
        if isinstance(rows, dict):
            raise ValueError("it is an object, and must be a list of objects")
        for row in rows:
            if not isinstance(row, dict):
                raise ValueError("it must be a list of objects")
            yield row
