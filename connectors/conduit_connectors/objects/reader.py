"""ObjectReader: opens an object by its address and reads its records, after any of them."""

from collections.abc import Iterator
from enum import Enum
from pathlib import PurePosixPath
from typing import Any, Literal, TypedDict
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr

from conduit_connectors.objects.formats import read_csv, read_lines, read_parquet
from conduit_py.sdk import FatalError, Options
from conduit_py.sdk.queue import ObjectRecord

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
    """How announced objects are read."""

    format: Format = Field(default=Format.AUTO, description="what an object holds")
    line_size_max: int = Field(default=16 * 2**20, ge=1, description="the longest line, in bytes; longer is refused")
    s3_endpoint: str | None = Field(default=None, description="the address of an S3 service that is not Amazon's")
    s3_region: str | None = None
    s3_access_key: SecretStr | None = None
    s3_secret_key: SecretStr | None = None


class ObjectArguments(TypedDict, total=False):
    """ObjectOptions as a caller writes them, for editors and type checkers."""

    format: Literal["auto", "lines", "json", "csv", "parquet"] | Format
    line_size_max: int
    s3_endpoint: str | None
    s3_region: str | None
    s3_access_key: str | SecretStr | None
    s3_secret_key: str | SecretStr | None


class ObjectReader:
    """Reads paths and `file:` and `s3:` addresses; names that end in .gz or .zst are decompressed.

    The offset of a record counts the bytes of the decompressed content up to its end, or in Parquet the rows. So
    it does not depend on how the object is read. An object must not change once it is announced.
    """

    blocking = True

    def __init__(self, options: ObjectOptions) -> None:
        self._options = options

    def open(self, address: str, offset: int) -> Iterator[ObjectRecord]:
        files, path = self._located(address)
        suffixes = PurePosixPath(path).suffixes
        compression = _COMPRESSED.get(suffixes[-1]) if suffixes else None
        format = self._format(suffixes[:-1] if compression else suffixes)
        if format is Format.PARQUET:
            return read_parquet(files.open_input_file(path), offset)
        if compression is None:
            stream = files.open_input_file(path)
        else:
            stream = files.open_input_stream(path, compression=compression)
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

    def _located(self, address: str) -> tuple[Any, str]:
        """Return the file system of an address, and the path in it."""
        fs = _arrow_files()
        parts = urlsplit(address)
        if parts.scheme == "s3":
            return fs.S3FileSystem(**self._s3()), f"{parts.netloc}/{address.split('/', 3)[3]}"
        if parts.scheme in ("", "file"):
            return fs.LocalFileSystem(), unquote(parts.path) if parts.scheme else address
        raise FatalError(
            f"{address}: objects with {parts.scheme}: addresses cannot be read",
            suggestion="announce paths, file: or s3: addresses",
        )

    def _s3(self) -> dict[str, Any]:
        options = self._options
        wanted = {
            "endpoint_override": options.s3_endpoint,
            "region": options.s3_region,
            "access_key": options.s3_access_key and options.s3_access_key.get_secret_value(),
            "secret_key": options.s3_secret_key and options.s3_secret_key.get_secret_value(),
        }
        return {name: value for name, value in wanted.items() if value is not None}


def _arrow_files() -> Any:
    try:
        from pyarrow import fs
    except ImportError as error:
        raise FatalError(
            "objects are read through pyarrow, which is not installed",
            suggestion="pip install 'conduit-dataflow[objects]'",
        ) from error
    return fs
