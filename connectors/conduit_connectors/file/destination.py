"""The file destination: appends each record as a line to one file."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Required, TypedDict, Unpack

from pydantic import Field, model_validator

from conduit_connectors.file.appender import Appender, Device, is_device
from conduit_connectors.file.csv_format import CsvTable, Delimiter, Names
from conduit_connectors.file.staging import Staging
from conduit_connectors.line_formats import (
    FORM_OF_LINES,
    Encoded,
    LineFormat,
    encode_json_lines,
    encode_opencdc_lines,
    encode_raw_lines,
)
from conduit_connectors.probe_path import probe_writable
from conduit_py import sdk
from conduit_py.sdk import AckMode, Batch, FatalError, Options

_ENCODERS = {"lines": encode_raw_lines, "json": encode_json_lines, "opencdc": encode_opencdc_lines}
_HEADER_SIZE_MAX = 1024 * 1024


class DestinationOptions(Options):
    """Options of the file destination."""

    path: Path = Field(description="the file to append to; it and its folders are created when missing")
    format: LineFormat = Field(
        default="opencdc",
        description="what a line is: raw payload bytes, the payload as a JSON object, a CSV row, or the whole record",
    )
    delimiter: Delimiter = ","
    columns: Names | None = Field(
        default=None, description="the columns of a CSV file; None: those of its first record"
    )

    @model_validator(mode="after")
    def _columns_are_for_csv(self) -> "DestinationOptions":
        if self.columns is not None and self.format != "csv":
            raise ValueError(f'columns goes with format="csv", not {self.format!r}')
        return self


class DestinationArguments(TypedDict, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    path: Required[str | Path]
    format: LineFormat
    delimiter: str
    columns: Sequence[str] | None


class Destination(sdk.StagedDestination[DestinationOptions], sdk.PreparingDestination[DestinationOptions]):
    """Appends a line per record; a record counts as handled once its line is on the disk.

    Exactly-once in an exactly-once pipeline: the lines of a transaction are appended after its commit, so readers
    see committed lines only, in order, each once. Until then those of a small transaction are held in memory and
    committed with it; those of a larger one are in a file beside this one, `.<name>.conduit-staged`. That file is as
    large as a transaction and is needed after a crash. A clean stop removes it.
    At-least-once in any other: after a crash the records that were not yet acked are appended again.

    Readers may rely on this: every line that ends in a line feed is whole. A batch goes into the file in
    full or not at all. When the disk is full or fails halfway, the part that was written is removed. When the
    process is killed halfway, the next run removes it before it appends. Only our own unfinished batch is ever
    removed, and it is delivered again: a marker beside the file, `.<name>.conduit`, exists while the file is
    being written and holds where the batch in progress began. Without that marker nothing is removed. An open
    last line of another program gets a line end, so that ours begin on a new line. A clean stop removes the marker.

    The file is locked: a second destination on it is an error. Other programs may read it, and move it
    away after a clean stop. A record that the format cannot carry is refused alone:
    raw or absent payloads (all but `opencdc`; `lines` takes only raw ones), NaN and infinity, a line
    feed inside a raw line, columns that do not fit.

    The path may also be a character device such as /dev/null. It is not locked, has no marker, and a record
    counts as handled once it is written; exactly-once is refused.
    """

    acks: ClassVar[AckMode] = AckMode.FLUSH
    # Not always in a thread: an append to the page cache is quick, and only `flush` waits for the disk.
    blocking = None
    _appender: Appender | None = None
    _device: Device | None = None
    _staging: Staging | None = None
    _prepared: list[bytes] | None = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    @property
    def claims(self) -> str | None:
        path = self.options.path
        return None if is_device(path) else f"the file {os.path.realpath(path)}"

    def data_file(self) -> Path:
        return self.options.path

    @property
    def takes(self) -> Any:
        return FORM_OF_LINES[self.options.format]

    def probe(self) -> str:
        return probe_writable(self.options.path)

    def open(self) -> None:
        options = self.options
        self._encode = self._encode_csv if options.format == "csv" else _ENCODERS[options.format]
        self._table = CsvTable(options.path, options.delimiter, options.columns)
        if is_device(options.path):
            self._device = Device(options.path)
            return
        self._appender = Appender(options.path)
        if options.format == "csv" and self._appender.size():
            self._table.adopt_header(self._appender.read_at(0, _HEADER_SIZE_MAX))

    def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> None:
        if self._device is not None:
            path = self.options.path
            raise FatalError(f"{path} keeps nothing, so no line can be in it exactly once", suggestion="name a file")
        # The fence needs no check: the lock on the file keeps every other run out.
        assert self._appender is not None
        self._staging = Staging(self._appender)
        self._staging.recover(intents)
        if self.options.format == "csv" and self._appender.size():
            self._table.adopt_header(self._appender.read_at(0, _HEADER_SIZE_MAX))

    def write(self, batch: Batch) -> dict[int, str]:
        text, refused = self._encode(batch)
        if text:
            self._add([text])
        return refused

    def prepares(self, *, exactly_once: bool) -> bool:
        # The columns of CSV are those of the file's first line, which only the process that writes it has read.
        return self.options.format != "csv"

    def prepare(self, batch: Batch) -> dict[int, str]:
        text, refused = _ENCODERS[self.options.format](batch)
        if self._prepared is None:
            self._prepared = []
        self._prepared.append(text)
        return refused

    def prepared(self) -> bytes:
        return b"".join(self._prepared or ())

    def take(self, pieces: Sequence[bytes]) -> None:
        self._add(pieces)

    def _add(self, pieces: Sequence[bytes]) -> None:
        if self._staging is not None:
            self._staging.add(pieces)
        elif self._device is not None:
            for piece in pieces:
                self._device.append(piece)
        else:
            assert self._appender is not None
            self._appender.append(pieces, sum(map(len, pieces)))

    def stage(self) -> bytes | None:
        assert self._staging is not None
        return self._staging.stage()

    def apply(self, intent: bytes) -> None:
        assert self._staging is not None
        self._staging.apply(intent)

    def flush(self) -> None:
        if self._device is not None:
            return
        assert self._appender is not None
        self._appender.sync()
        self._appender.fulfil()

    def teardown(self) -> None:
        for each in (self._staging, self._appender, self._device):
            if each is not None:
                each.close()
        self._staging = self._appender = self._device = None

    def _encode_csv(self, batch: Batch) -> Encoded:
        taker = self._staging or self._device or self._appender
        assert taker is not None, "opened"
        return self._table.encode(batch.records, header=taker.size() == 0)
