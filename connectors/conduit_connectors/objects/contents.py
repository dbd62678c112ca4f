"""The content of an object as records: lines, JSON, CSV, Avro and Parquet, from any record on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from conduit_connectors.compression import (
    ByteStream,
    Compression,
    CompressionOption,
    compression_of,
    decompress,
    without_compression,
)
from conduit_connectors.file.csv_format import CsvRows
from conduit_connectors.json_lines import JsonLines
from conduit_connectors.line_formats import parse_opencdc, parse_raw, too_long
from conduit_connectors.lines import LINE_SIZE_MAX, LineBuffer, LineEnds, Lines
from conduit_connectors.objects.avro_file import AvroFile
from conduit_connectors.objects.json_array import JsonArray
from conduit_connectors.objects.store import ObjectBytes
from conduit_py.sdk import DuplicateKeys, FatalError, Payloads, Positions, Reading, Record

ContentFormat: TypeAlias = Literal["auto", "lines", "json", "json-array", "csv", "opencdc", "avro", "parquet"]
_BLOCK_SIZE = 2**18
_ROWS_AT_ONCE = 100_000
_NUMBER = b"%d"


class RecordChunk(NamedTuple):
    """Consecutive records without their positions, and where each ends in the object.

    `values` are payloads, a `pyarrow.Table` of them, or whole records. A refused one is the bytes that were read.
    """

    values: Any
    ends: Sequence[int]
    refused: Mapping[int, str]
    kind: type | None = None

    def split(self, n: int) -> tuple["RecordChunk", "RecordChunk | None"]:
        """Return the first `n` records, and the others if there are any."""
        if len(self.ends) <= n:
            return self, None
        is_table = not isinstance(self.values, list)
        first = self.values.slice(0, n) if is_table else self.values[:n]
        rest = self.values.slice(n) if is_table else self.values[n:]
        early = {index: reason for index, reason in self.refused.items() if index < n}
        late = {index - n: reason for index, reason in self.refused.items() if index >= n}
        return self._replace(values=first, ends=self.ends[:n], refused=early), self._replace(
            values=rest, ends=self.ends[n:], refused=late
        )


class ContentOptions(NamedTuple):
    """How contents are read. `header` has the columns of CSV that begins with a row."""

    format: ContentFormat = "auto"
    compression: CompressionOption = "auto"
    line_size_max: int = LINE_SIZE_MAX
    duplicate_keys: DuplicateKeys = "refuse"
    delimiter: str = ","
    header: Sequence[str] | None = None
    payload_type: Any = None

    @classmethod
    def of(cls, options: "HasContentOptions", payload_type: Any) -> "ContentOptions":
        """Return what the options of a source say about its contents."""
        names = (name for name in cls._fields if name != "payload_type")
        return cls(**{name: getattr(options, name) for name in names}, payload_type=payload_type)


class HasContentOptions(Protocol):
    """The options of a source, of which several are ContentOptions."""

    @property
    def format(self) -> Any: ...
    @property
    def compression(self) -> CompressionOption: ...
    @property
    def line_size_max(self) -> int: ...
    @property
    def duplicate_keys(self) -> DuplicateKeys: ...
    @property
    def delimiter(self) -> str: ...
    @property
    def header(self) -> Sequence[str] | None: ...


def format_of(name: str, options: ContentOptions) -> ContentFormat:
    """Return the format of an object: the one that the options name, else by the ending of its name."""
    if options.format != "auto":
        return options.format
    name = without_compression(name) if options.compression == "auto" else name
    return _FORMATS.get(PurePosixPath(name).suffix.lower(), "lines")


_FORMATS: dict[str, ContentFormat] = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "auto",
    ".csv": "csv",
    ".avro": "avro",
    ".parquet": "parquet",
}
"""`.json` may be lines or an array: the first byte tells."""


def read_content(name: str, content: ObjectBytes, offset: int, options: ContentOptions) -> Iterator[RecordChunk]:
    """Read the records after `offset`, which is where another record ends. Raises ValueError for what is damaged.

    Offsets count the bytes of the decompressed content, or the records of Avro.
    """
    format = format_of(name, options)
    if format == "auto":
        stream, first = _open_stream(name, content, options), b""
        while block := stream.read(1):
            first = block.strip() or first
            if first and first not in (b"\xef", b"\xbb", b"\xbf"):
                break
        format = "json-array" if first == b"[" else "json"
    stream = _open_stream(name, content, options)
    if format == "avro":
        yield from _read_avro(stream, offset, options)
    elif format == "json-array":
        _skip(stream, offset)
        yield from _read_array(stream, offset, options)
    elif format == "csv":
        yield from _read_csv(name, stream, offset, options)
    else:
        _skip(stream, offset)
        yield from _read_lines(stream, offset, format, options)


class _InOrder:
    """The bytes of an object in order. `skip` costs nothing."""

    def __init__(self, content: ObjectBytes, block_size: int) -> None:
        self._content = content
        self._offset = 0
        self._block_size = block_size

    def skip(self, size: int) -> None:
        self._offset += size

    def read(self, size: int) -> bytes:
        found = self._content.read_at(self._offset, size)
        self._offset += len(found)
        return found


class _Buffered:
    """Reads large blocks of a stream and returns small ones: a request to a service takes long, whatever its size."""

    def __init__(self, stream: _InOrder, block_size: int) -> None:
        self._stream = stream
        self._block_size = block_size
        self._block = memoryview(b"")

    def skip(self, size: int) -> None:
        kept = min(size, len(self._block))
        self._block = self._block[kept:]
        self._stream.skip(size - kept)

    def read(self, size: int) -> bytes:
        if not self._block:
            self._block = memoryview(self._stream.read(self._block_size))
        found, self._block = bytes(self._block[:size]), self._block[size:]
        return found


def _open_stream(name: str, content: ObjectBytes, options: ContentOptions) -> Any:
    stream: Any = _InOrder(content, _BLOCK_SIZE)
    if not hasattr(content, "fileno"):
        stream = _Buffered(stream, 32 * _BLOCK_SIZE)
    compression: Compression | None = None
    if options.compression == "auto":
        compression = compression_of(name)
    elif options.compression != "none":
        compression = options.compression
    return stream if compression is None else decompress(stream, compression)


def _skip(stream: Any, offset: int) -> None:
    if hasattr(stream, "skip"):
        stream.skip(offset)
        return
    while offset:
        block = stream.read(min(offset, _BLOCK_SIZE))
        if not block:
            raise ValueError("it is shorter than it was")
        offset -= len(block)


def _feed(stream: ByteStream, buffer: LineBuffer) -> bool:
    block = stream.read(_BLOCK_SIZE)
    if block:
        buffer.feed(block)
    else:
        buffer.finish()
    return bool(block)


def _read_lines(stream: ByteStream, offset: int, format: str, options: ContentOptions) -> Iterator[RecordChunk]:
    parse = _line_parser(format, options)
    buffer = LineBuffer(offset, options.line_size_max, skip_bom=format != "lines")
    while not buffer.ended:
        _feed(stream, buffer)
        if len(buffer):
            lines = buffer.take(len(buffer))
            chunk = _chunk_of(parse(lines, Positions(_NUMBER, lines.ends, ascending=True)))
            if chunk.ends:
                yield chunk


def _line_parser(format: str, options: ContentOptions) -> Callable[[Lines, Sequence[bytes]], Reading]:
    if format == "json":
        return JsonLines(options.payload_type, options.duplicate_keys).parse
    if format == "opencdc":
        return partial(parse_opencdc, duplicate_keys=options.duplicate_keys)
    return parse_raw


def _chunk_of(reading: Reading) -> RecordChunk:
    records = reading.records
    if isinstance(records, Payloads):
        positions = records.positions
        ends = positions.numbers if isinstance(positions, Positions) else list(map(int, positions))
        return RecordChunk(records.payloads, ends, reading.refused, records.kind)
    return RecordChunk(records, [int(record.position) for record in records], reading.refused, Record)


def _read_csv(name: str, stream: ByteStream, offset: int, options: ContentOptions) -> Iterator[RecordChunk]:
    rows = CsvRows(Path(name), options.delimiter, options.header, options.line_size_max)
    buffer = LineBuffer(0, options.line_size_max, skip_bom=True)
    # The header first, then the rows after the offset: where a row begins may depend on all before it.
    while rows.names is None and not buffer.ended:
        _feed(stream, buffer)
        try:
            rows.read(buffer, 0, _numbers)
        except FatalError as error:
            # It is about this object only, and there are others.
            raise ValueError(error.message) from error
    if offset and buffer.offset < offset and hasattr(stream, "skip"):
        stream.skip(offset - buffer.offset)
        buffer = LineBuffer(offset, options.line_size_max)
    while True:
        reading = rows.read(buffer, _ROWS_AT_ONCE, _numbers)
        records = [record for record in reading.records if int(record.position) > offset]
        shift = len(reading.records) - len(records)
        if records:
            ends = [int(record.position) for record in records]
            refused = {index - shift: reason for index, reason in reading.refused.items() if index >= shift}
            yield RecordChunk([record.payload.after for record in records], ends, refused)
        if len(reading.records) == _ROWS_AT_ONCE:
            # More rows may wait, also after the end of the input. To feed before they are taken would let them grow.
            continue
        if buffer.ended:
            return
        # Lines that wait are a row without its end, which is parsed from its start each time: so ever more is read.
        wanted = 2 * buffer.size if not reading.records else 0
        while _feed(stream, buffer) and buffer.size < wanted:
            pass


def _numbers(ends: Sequence[int]) -> list[bytes]:
    return [_NUMBER % end for end in ends]


def _read_array(stream: ByteStream, offset: int, options: ContentOptions) -> Iterator[RecordChunk]:
    # Not into the type that a processor wants: that needs elements which have no line end in them.
    parse = JsonLines(None, options.duplicate_keys).parse
    array = JsonArray(stream, offset, options.line_size_max)
    while True:
        texts, ends, long = array.take(_BLOCK_SIZE)
        if not texts:
            return
        sizes = list(map(len, texts))
        # As lines that follow each other: only their sizes are looked at, and that they are all there.
        made = LineEnds(0, sizes, sum(sizes))
        chunk = _chunk_of(parse(Lines(texts, made, {}), Positions(_NUMBER, ends, ascending=True)))
        refused = dict(chunk.refused)
        for index, size in long.items():
            refused[index] = too_long(size, len(texts[index])).replace("line", "element", 1)
        yield chunk._replace(refused=refused)


def _read_avro(stream: ByteStream, offset: int, options: ContentOptions) -> Iterator[RecordChunk]:
    for records, first in AvroFile(stream, offset, options.line_size_max).blocks():
        if records:
            refused = {index: _NO_RECORD for index, each in enumerate(records) if not isinstance(each, dict)}
            kept = [b"" if index in refused else each for index, each in enumerate(records)]
            yield RecordChunk(kept, range(first, first + len(records)), refused, None if refused else dict)


_NO_RECORD = "its schema is no record, so it has no fields"
