"""AvroFile: the records of an Avro container file, block by block, with bounded memory."""

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Iterator
from typing import Any

from conduit_connectors.compression import ByteStream
from conduit_py.sdk import FatalError

_MAGIC = b"Obj\x01"
_HEADER_MAX = 4 * 2**20
_EMPTY_MAX = 100_000
"""How many records that take no byte one block may have."""


class AvroFile:
    """Reads records after the first `skipped`, which are passed over without being decoded where blocks allow it.

    A block may take `block_size_max` bytes, compressed or not. Raises ValueError for what is no such file.
    """

    def __init__(self, stream: ByteStream, skipped: int, block_size_max: int) -> None:
        self._bytes = _Exact(stream)
        self._skipped = skipped
        self._block_size_max = block_size_max
        self._number = 0
        self._avro = _import_fastavro()
        self._read_header()

    def blocks(self) -> Iterator[tuple[list[Any], int]]:
        """Return the records of each block, and the number of the first one, counted from 1."""
        while (count := self._bytes.read_long(end=True)) is not None:
            size = self._bytes.read_long() or 0
            if count < 0 or not 0 <= size <= self._block_size_max:
                raise ValueError(f"a block says that it has {size} bytes, which is more than line_size_max allows")
            content = self._bytes.read(size)
            if self._bytes.read(16) != self._sync:
                raise ValueError("a block does not end where it says")
            first, self._number = self._number + 1, self._number + count
            if self._number > self._skipped:
                records = self._decode(content, count)
                skip = max(0, self._skipped - first + 1)
                yield records[skip:], first + skip

    def _read_header(self) -> None:
        if self._bytes.read(4) != _MAGIC:
            raise ValueError("it is no Avro file: it does not begin with the sign of one")
        meta: dict[bytes, bytes] = {}
        while count := self._bytes.read_long():
            if count < 0:
                self._bytes.read_long()
            for _ in range(abs(count)):
                key = self._bytes.read_sized(_HEADER_MAX)
                meta[key] = self._bytes.read_sized(_HEADER_MAX)
                if self._bytes.taken > 2 * _HEADER_MAX:
                    raise ValueError("the header of the Avro file is too long")
        self._sync = self._bytes.read(16)
        self._codec = meta.get(b"avro.codec", b"null").decode(errors="replace")
        try:
            self._schema: Any = self._avro.parse_schema(json.loads(meta[b"avro.schema"]))
        except Exception as error:  # a boundary: the library raises many kinds for a schema of a stranger
            raise ValueError(f"its schema cannot be used: {error}") from error
        if _repeats_nothing(self._schema):
            raise ValueError("its schema has an array of values that take no bytes, which could be endless")

    def _decode(self, content: bytes, count: int) -> list[Any]:
        content = _decompress(content, self._codec, self._block_size_max)
        if count > max(len(content), _EMPTY_MAX):
            raise ValueError(f"a block of {len(content)} bytes says that it has {count} records")
        source = io.BytesIO(content)
        try:
            return [self._avro.schemaless_reader(source, self._schema) for _ in range(count)]
        except Exception as error:  # a boundary: whatever the library raises is about this file
            raise ValueError(f"a record cannot be decoded: {type(error).__name__}: {error}") from error


class _Exact:
    """Reads exactly as many bytes as are asked for."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._rest = b""
        self.taken = 0

    def read(self, size: int) -> bytes:
        parts = [self._rest]
        missing = size - len(self._rest)
        while missing > 0 and (block := self._stream.read(max(missing, 2**16))):
            parts.append(block)
            missing -= len(block)
        whole = b"".join(parts)
        self._rest = whole[size:]
        self.taken += size
        if len(whole) < size:
            raise ValueError("the Avro file ends in the middle")
        return whole[:size]

    def read_long(self, *, end: bool = False) -> int | None:
        """Return a number of variable length; with `end`, None at the end of the file."""
        if end and not self._rest:
            self._rest = self._stream.read(2**16)
            if not self._rest:
                return None
        value = shift = 0
        while True:
            byte = self.read(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift > 63:
                raise ValueError("the Avro file has a number that is too long")

    def read_sized(self, size_max: int) -> bytes:
        size = self.read_long() or 0
        if not 0 <= size <= size_max:
            raise ValueError("the header of the Avro file is too long")
        return self.read(size)


def _decompress(content: bytes, codec: str, size_max: int) -> bytes:
    """Return the content of a block; a few bytes that would become more than `size_max` are refused."""
    made: bytes
    try:
        if codec == "null":
            return content
        if codec == "deflate":
            made = zlib.decompressobj(-15).decompress(content, size_max + 1)
        elif codec == "bzip2":
            made = bz2.BZ2Decompressor().decompress(content, size_max + 1)
        elif codec == "xz":
            made = lzma.LZMADecompressor(memlimit=2**28).decompress(content, size_max + 1)
        elif codec in ("snappy", "zstandard"):
            made = _decompress_by_arrow(content, codec, size_max)
        else:
            raise ValueError(f"the codec {codec!r} is not known")
    except (zlib.error, OSError, lzma.LZMAError, EOFError) as error:
        raise ValueError(f"a block is damaged: {error}") from error
    if len(made) > size_max:
        raise ValueError("a block takes more than line_size_max allows when it is decompressed")
    return made


def _decompress_by_arrow(content: bytes, codec: str, size_max: int) -> bytes:
    import pyarrow as pa

    if codec == "zstandard":
        return bytes(pa.CompressedInputStream(pa.BufferReader(content), "zstd").read(size_max + 1))
    # Snappy says first how much it becomes, and Avro puts a checksum of 4 bytes behind it.
    size = shift = 0
    for byte in content[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    if size > size_max:
        raise ValueError("a block takes more than line_size_max allows when it is decompressed")
    made = pa.Codec("snappy").decompress(content[:-4], size, asbytes=True)
    if zlib.crc32(made) != int.from_bytes(content[-4:]):
        raise ValueError("a block is damaged: its checksum is another one")
    return bytes(made)


def _repeats_nothing(schema: Any) -> bool:
    """Return True if a part of a schema is an array of values that take no bytes."""
    parts = list(_parts(schema))
    named = {each["name"]: each for each in parts if isinstance(each, dict) and "name" in each}
    arrays = (each for each in parts if isinstance(each, dict) and each.get("type") == "array")
    return any(_takes_nothing(each["items"], named) for each in arrays)


def _parts(schema: Any) -> Iterator[Any]:
    """Return the schema and all that it is made of."""
    yield schema
    if isinstance(schema, list):
        inner = schema
    elif isinstance(schema, dict):
        inner = [schema.get("items"), schema.get("values"), *(field["type"] for field in schema.get("fields", ()))]
        inner += [schema["type"]] if isinstance(schema.get("type"), dict | list) else []
    else:
        return
    for each in inner:
        yield from _parts(each)


def _takes_nothing(schema: Any, named: dict[str, Any]) -> bool:
    if isinstance(schema, str):
        # Without the name itself: a record takes a byte if a part does that is not the record again.
        others = {name: each for name, each in named.items() if name != schema}
        return _takes_nothing(named[schema], others) if schema in named else schema not in _WITH_BYTES
    if not isinstance(schema, dict):
        return False
    kind = schema.get("type")
    if kind in ("record", "error"):
        return all(_takes_nothing(field["type"], named) for field in schema.get("fields", ()))
    return kind == "null" or (kind == "fixed" and not schema.get("size"))


_WITH_BYTES = {"boolean", "int", "long", "float", "double", "bytes", "string"}


def _import_fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise FatalError(
            "Avro is read and written through fastavro, which is not installed",
            suggestion="pip install 'conduit-dataflow[avro]'",
        ) from error
    return fastavro
