"""ObjectReader: opens an object by its address and reads its records, after any of them."""

from collections.abc import Iterator
from enum import Enum
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Any, Literal, Self, TypedDict

from pydantic import Field, SecretStr, field_validator, model_validator

from conduit_connectors.lines import LINE_SIZE_MAX
from conduit_connectors.objects.formats import read_csv, read_lines
from conduit_connectors.objects.location import Address, AllowedPrefixes, parse_address
from conduit_py.sdk import FatalError, Options
from conduit_py.sdk.queue import ObjectRecord, QueueOptions

_COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}


class Format(Enum):
    """The format of an object."""

    AUTO = "auto"
    """By its name: .jsonl, .ndjson and .json are JSON lines, .csv is CSV, .parquet Parquet, others plain lines."""
    LINES = "lines"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


class ObjectOptions(Options):
    """Which announced objects are read, and how."""

    allowed_prefixes: list[str] = Field(
        default=[], description="folders and s3:// prefixes; what is announced elsewhere is not read"
    )

    format: Format = Field(default=Format.AUTO, description="what an object holds")
    line_size_max: int = Field(
        default=LINE_SIZE_MAX, ge=1, description="the longest line or row, in bytes; longer is refused"
    )
    parquet_memory_max: int = Field(
        default=256 * 2**20, ge=2**24, description="the most memory that decoding Parquet may take, in bytes"
    )
    s3_endpoint: str | None = Field(default=None, description="the address of an S3 service that is not Amazon's")
    s3_region: str | None = Field(default=None, description="the region of the S3 service")
    s3_access_key: SecretStr | None = Field(default=None, description="the access key of the S3 service")
    s3_secret_key: SecretStr | None = Field(default=None, description="the secret that belongs to the access key")

    @field_validator("allowed_prefixes")
    @classmethod
    def _are_prefixes(cls, prefixes: list[str]) -> list[str]:
        AllowedPrefixes(prefixes)
        return prefixes


class ObjectQueueOptions(QueueOptions, ObjectOptions):
    """Options of a source over a queue whose messages may announce objects."""

    @model_validator(mode="after")
    def _limits_what_is_read(self) -> Self:
        if self.announces_objects and not self.allowed_prefixes:
            raise ValueError(
                f"messages={self.messages.value!r} needs allowed_prefixes:"
                " all who may send to the queue choose what is read"
            )
        return self

    @model_validator(mode="after")
    def _can_read_objects(self) -> Self:
        if self.announces_objects and find_spec("pyarrow") is None:
            hint = "pip install 'conduit-dataflow[objects]'"
            raise ValueError(f"messages={self.messages.value!r} needs pyarrow, which is not installed: {hint}")
        return self


class ObjectArguments(TypedDict, total=False):
    """ObjectOptions as a caller writes them, for editors and type checkers."""

    allowed_prefixes: list[str]
    format: Literal["auto", "lines", "json", "csv", "parquet"] | Format
    line_size_max: int
    parquet_memory_max: int
    s3_endpoint: str | None
    s3_region: str | None
    s3_access_key: str | SecretStr | None
    s3_secret_key: str | SecretStr | None


class ObjectReader:
    """Reads paths and `file:` and `s3:` addresses; names that end in .gz or .zst are decompressed.

    The offset of a record counts the bytes of the decompressed content up to its end, or in Parquet the rows. So
    it does not depend on how the object is read. An object must not change once it is announced. An address is
    text of a stranger: only regular files and keys below `allowed_prefixes` are opened. So is its content: one line
    or one row is in memory at a time, of at most `line_size_max` bytes, with a block of the next ones.
    """

    blocking = True

    def __init__(self, options: ObjectOptions) -> None:
        self._options = options
        self._allowed = AllowedPrefixes(options.allowed_prefixes)
        self._parquet: Any = None

    def open(self, address: str, offset: int) -> Iterator[ObjectRecord]:
        scheme, path = _parse(address)
        suffixes = PurePosixPath(path).suffixes
        compression = _COMPRESSED.get(suffixes[-1]) if suffixes else None
        format = self._format(suffixes[:-1] if compression else suffixes)
        if format is Format.PARQUET:
            return self._read_parquet(scheme, path, offset)
        stream = self._open_stream(scheme, path)
        if compression is not None:
            stream = _arrow().CompressedInputStream(stream, compression)
        if format is Format.CSV:
            return read_csv(stream, offset, self._options.line_size_max)
        return read_lines(stream, offset, self._options.line_size_max, json=format is Format.JSON)

    def _format(self, suffixes: list[str]) -> Format:
        if self._options.format is not Format.AUTO:
            return self._options.format
        last = suffixes[-1] if suffixes else ""
        if last in (".jsonl", ".ndjson", ".json"):
            return Format.JSON
        return {".csv": Format.CSV, ".parquet": Format.PARQUET}.get(last, Format.LINES)

    def _read_parquet(self, scheme: str, path: str, offset: int) -> Iterator[ObjectRecord]:
        _arrow()
        # Imported only here: pyarrow may not be installed.
        from conduit_connectors.objects.parquet import ParquetLimits, ParquetReader
        from conduit_connectors.objects.parquet_program import PIECE_BYTES

        if self._parquet is None:
            # At least 2 MiB: what a row takes in memory is more than what it would be as a line.
            row_size_max = max(self._options.line_size_max, PIECE_BYTES)
            limits = ParquetLimits(self._options.parquet_memory_max, row_size_max)
            self._parquet = ParquetReader(limits)
        parquet: ParquetReader = self._parquet
        if scheme == "file":
            return parquet.read(offset, file=self._allowed.open_file(path))
        self._allowed.check_key(path)
        return parquet.read(offset, path=path, s3=self._s3())

    def _open_stream(self, scheme: str, path: str) -> Any:
        """Open the bytes of an object."""
        if scheme == "file":
            return _arrow().PythonFile(self._allowed.open_file(path), mode="r")
        self._allowed.check_key(path)
        from pyarrow import fs

        return fs.S3FileSystem(**self._s3()).open_input_file(path)

    def _s3(self) -> dict[str, Any]:
        options = self._options
        wanted = {
            "endpoint_override": options.s3_endpoint,
            "region": options.s3_region,
            "access_key": options.s3_access_key and options.s3_access_key.get_secret_value(),
            "secret_key": options.s3_secret_key and options.s3_secret_key.get_secret_value(),
        }
        return {name: value for name, value in wanted.items() if value is not None}


def _parse(address: str) -> Address:
    try:
        return parse_address(address)
    except ValueError as error:
        raise PermissionError(str(error)) from error


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise FatalError(
            "objects are read through pyarrow, which is not installed",
            suggestion="pip install 'conduit-dataflow[objects]'",
        ) from error
    return pyarrow
