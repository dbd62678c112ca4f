"""Compressed content as a stream: gzip, bzip2, zstd and lz4, decompressed with bounded memory."""

import bz2
import gzip
import zlib
from pathlib import PurePosixPath
from typing import IO, Any, Literal, Protocol

from conduit_py.sdk import FatalError

Compression = Literal["gzip", "bz2", "zstd", "lz4"]
CompressionOption = Literal["auto", "none", "gzip", "bz2", "zstd", "lz4"]
"""What the option of a source may be. "auto" is by the name."""
_SUFFIXES: dict[str, Compression] = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_BLOCK_SIZE = 2**18


class ByteStream(Protocol):
    """Bytes in order."""

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none only at the end."""
        ...


def compression_of(name: str) -> Compression | None:
    """Return how the content of this name is compressed."""
    return _SUFFIXES.get(PurePosixPath(name).suffix.lower())


def without_compression(name: str) -> str:
    """Return the name without the ending that says how it is compressed."""
    return str(PurePosixPath(name).with_suffix("")) if compression_of(name) else name


def decompress(stream: ByteStream, compression: Compression) -> ByteStream:
    """Return the decompressed content. A few bytes may become gigabytes: no more is in memory than is asked for.

    Raises ValueError for content that is damaged or ends in the middle. Several compressed contents in a row, as
    of files that were joined, are read as one.
    """
    if compression in ("zstd", "lz4"):
        return _Arrow(stream, compression)
    return _Members(stream, _GzipMember if compression == "gzip" else bz2.BZ2Decompressor)


class _GzipMember:
    """Decompresses one member of gzip, with the face of bz2.BZ2Decompressor."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data


class _Members:
    """One compressed member after another."""

    def __init__(self, stream: ByteStream, make: Any) -> None:
        self._stream = stream
        self._make = make
        self._member: Any = None
        self._input = b""

    def read(self, size: int) -> bytes:
        while True:
            if self._member is None and not self._begin_member():
                return b""
            block = self._input if self._member.needs_input else b""
            if self._member.needs_input and not block and not (block := self._stream.read(_BLOCK_SIZE)):
                raise ValueError("the compressed content ends in the middle")
            self._input = b"" if block else self._input
            try:
                found: bytes = self._member.decompress(block, size)
            except (zlib.error, OSError, EOFError) as error:
                raise ValueError(f"the compressed content is damaged: {error}") from error
            if self._member.eof:
                self._input, self._member = self._member.unused_data, None
            if found:
                return found

    def _begin_member(self) -> bool:
        # Zeros behind a member are padding, which gzip allows.
        self._input = self._input.lstrip(b"\0") or self._stream.read(_BLOCK_SIZE).lstrip(b"\0")
        if self._input:
            self._member = self._make()
        return bool(self._input)


class _Arrow:
    """Codecs that only Arrow has."""

    def __init__(self, stream: ByteStream, codec: str) -> None:
        self._reader = _arrow(codec).CompressedInputStream(_arrow(codec).PythonFile(_Readable(stream), mode="r"), codec)

    def read(self, size: int) -> bytes:
        try:
            return bytes(self._reader.read(size))
        except OSError as error:
            raise ValueError(f"the compressed content is damaged: {error}") from error


class _Readable:
    """A stream as Arrow wants one."""

    closed = False

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        return self._stream.read(size if size > 0 else _BLOCK_SIZE)

    def close(self) -> None:
        pass


def compressing_file(file: IO[bytes], compression: Compression) -> Any:
    """Return a file that compresses what is written to it into another one, which stays open when it is closed."""
    if compression == "gzip":
        # Without a name and a time: equal content is equal bytes.
        return gzip.GzipFile("", "wb", fileobj=file, mtime=0)
    if compression == "bz2":
        return bz2.BZ2File(file, "wb")
    return _arrow(compression).CompressedOutputStream(_Writable(file), compression)


class _Writable:
    """A file that Arrow must not close."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        pass


def _arrow(codec: str) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise FatalError(
            f"{codec} needs pyarrow, which is not installed", suggestion="pip install 'conduit-dataflow[objects]'"
        ) from error
    return pyarrow
