"""The program that decodes Parquet, in a process with a limit on its memory. It imports nothing of conduit-py.

A request is its length, then JSON, with the descriptor of a file beside the length. An answer is a kind, the size of
its rows as Python objects and a length, then the content. The program ends when its socket is closed, which the end of
the other process does too.
"""

import io
import json
import os
import resource
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

if __name__ == "__main__":
    # Arrow decodes without it, and its import is half of the start of this program.
    sys.modules["numpy"] = None  # type: ignore[assignment]

import pyarrow as pa
from pyarrow import fs, parquet

LENGTH = struct.Struct(">Q")
ANSWER = struct.Struct(">cQQ")
BEGIN, ROWS, LONG_ROW, END, FAILED, NO_MEMORY, ASK, GROUPS = b"B", b"R", b"L", b"E", b"F", b"M", b"A", b"G"
"""The number of all rows; rows as an Arrow stream; a row that is too long; no more rows; an error; out of memory;
a question for bytes of the object at an offset, answered by them with their length in front; the row groups."""
ASK_BYTES = 8 * 2**20

BATCH_BYTES = 8 * 2**20
PIECE_BYTES = 2 * 2**20
"""How much the rows of one answer take as Python objects, if they are more than one."""
VALUE_BYTES = 40
"""What a value takes as a Python object, with the reference to it and without the bytes of a text."""


def serve(link: socket.socket) -> None:
    """Answer one request after another until the link is closed."""
    limited = False
    while True:
        head, files, _, _ = socket.recv_fds(link, LENGTH.size, 1, socket.MSG_WAITALL)
        if len(head) < LENGTH.size:
            return
        request = json.loads(_receive(link, LENGTH.unpack(head)[0]))
        with ExitStack() as stack:
            try:
                stream = stack.enter_context(_open(request, files, link))
                if not limited:
                    # After the file system is there: its threads and their stacks are not what an object takes.
                    _limit_memory(request["memory_max"])
                    limited = True
                for kind, size, content in _answers(stream, request):
                    link.sendall(ANSWER.pack(kind, size, len(content)))
                    link.sendall(content)
                end: tuple[bytes, bytes] = END, b""
            except MemoryError:
                end = NO_MEMORY, b""
            except (BrokenPipeError, ConnectionResetError):
                return
            except Exception as error:  # a boundary: whatever Arrow raises is about this object
                end = FAILED, json.dumps([type(error).__name__, str(error)[:2000]]).encode()
        link.sendall(ANSWER.pack(end[0], 0, len(end[1])) + end[1])


def _receive(link: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size and (more := link.recv(size - len(content))):
        content += more
    return bytes(content)


def _open(request: dict[str, Any], files: list[int], link: socket.socket) -> Any:
    if files:
        return pa.PythonFile(os.fdopen(files[0], "rb"), mode="r")
    if "size" in request:
        return pa.PythonFile(_Remote(link, request["size"]), mode="r")
    return fs.S3FileSystem(**request["s3"]).open_input_file(request["path"])


class _Remote(io.RawIOBase):
    """An object whose bytes the other process reads: it alone has the connection and the credentials."""

    def __init__(self, link: socket.socket, size: int) -> None:
        self._link = link
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        found = bytearray()
        while self._at < end:
            length = min(end - self._at, ASK_BYTES)
            self._link.sendall(ANSWER.pack(ASK, self._at, LENGTH.size) + LENGTH.pack(length))
            got = LENGTH.unpack(_receive(self._link, LENGTH.size))[0]
            if not got:
                raise OSError("the object became shorter while it was read")
            found += _receive(self._link, got)
            self._at += got
        return bytes(found)


def _limit_memory(size: int) -> None:
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (used + size, used + size))


def _answers(stream: Any, request: dict[str, Any]) -> Iterator[tuple[bytes, int, "bytes | memoryview[int]"]]:
    offset, end, row_size_max = request["offset"], request.get("end", sys.maxsize), request["row_size_max"]
    piece_bytes = request.get("piece_bytes", PIECE_BYTES)
    with parquet.ParquetFile(stream) as table:
        columns = _columns(table, request.get("columns"))
        yield BEGIN, table.metadata.num_rows, b""
        if "groups" in request:
            claims = (table.metadata.row_group(group) for group in range(table.num_row_groups))
            yield GROUPS, 0, json.dumps([(each.num_rows, each.total_byte_size) for each in claims]).encode()
            return
        number = 0
        for group in range(table.num_row_groups):
            if number >= end:
                return
            claimed = table.metadata.row_group(group)
            if number + claimed.num_rows <= offset:
                number += claimed.num_rows
                continue
            count = min(request["rows"], max(1, BATCH_BYTES * claimed.num_rows // max(1, claimed.total_byte_size)))
            # Without threads: each would decode a column of its own at the same time.
            for batch in table.iter_batches(count, row_groups=[group], columns=columns, use_threads=False):
                skipped = min(max(0, offset - number), batch.num_rows)
                wanted = batch.slice(skipped, max(0, end - number - skipped))
                number += batch.num_rows
                for piece, size in _pieces(wanted, piece_bytes):
                    if size > row_size_max and piece.num_rows == 1:
                        yield LONG_ROW, size, b""
                    else:
                        yield ROWS, size, _encode(piece)


def _columns(table: parquet.ParquetFile, names: list[str] | None) -> list[str] | None:
    """Return the names of the columns to read; Arrow would leave out a missing one without an error."""
    missing = [name for name in names or () if name not in table.schema_arrow.names]
    if missing:
        raise ValueError(f"it has no column {missing[0]!r}")
    return names


def _pieces(batch: pa.RecordBatch, size_max: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Cut a batch into pieces that are small as Python objects, or one row; each with its size."""
    if not batch.num_rows:
        return
    size = sum(map(_size, batch.columns))
    if size <= size_max or batch.num_rows == 1:
        yield batch, size
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half), size_max)
    yield from _pieces(batch.slice(half), size_max)


def _size(values: pa.Array) -> int:
    """Return about how many bytes the values take as Python objects. Arrow's may take none: nulls, a dictionary."""
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return _size(values.storage)
    if pa.types.is_dictionary(kind):
        return _size(values.dictionary_decode())
    size = len(values) * VALUE_BYTES
    if pa.types.is_map(kind):
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        return size + sum(_size(each.slice(first, last - first)) for each in (values.keys, values.items))
    if pa.types.is_nested(kind):
        children = values.flatten()
        return size + sum(map(_size, children if isinstance(children, list) else [children]))
    return size + int(values.nbytes)


def _encode(rows: pa.RecordBatch) -> "memoryview[int]":
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return memoryview(sink.getvalue())


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as its_link:
        serve(its_link)
