"""ParquetReader: reads the rows of Parquet objects, which are decoded in a process with a limit on its memory.

What an object takes in memory cannot be known from its size, nor from what it claims: 500 bytes may be gigabytes.
Arrow allocates what an object asks for. So it decodes where that is refused, and where a crash ends nothing else.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from conduit_connectors.objects import parquet_program as program
from conduit_connectors.objects.store import ObjectBytes
from conduit_py.sdk.arrow import rows_of
from conduit_py.sdk.queue import ObjectRecord

BATCH_ROWS = (4096, 256, 16, 1)
"""How many rows are decoded at once, at first and each time that they did not fit."""
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
"""Other allocators reserve more than they use, which would count."""


class ParquetLimits(NamedTuple):
    """How much memory decoding may take, and how large a row may be, in bytes. Also the options that say so."""

    memory_max: int
    row_size_max: int
    memory_option: str = "parquet_memory_max"
    row_option: str = "line_size_max"


class ParquetPart(NamedTuple):
    """Rows that were decoded together; `table` is None for a single row that is too long."""

    table: Any
    end: int
    """How many rows of the object there are up to the end of these."""
    size: int
    """How many bytes they take as Python objects."""
    rows: int
    """How many rows the object says that it has."""


class RowGroup(NamedTuple):
    """What a file says of a row group: its rows, and its bytes when they are not compressed."""

    rows: int
    size: int


class ParquetReader:
    """Reads one object after another, in one process while it can be used again."""

    def __init__(self, limits: ParquetLimits, batch_rows: Sequence[int] = BATCH_ROWS) -> None:
        self._limits = limits
        self._batch_rows = batch_rows
        self._idle: list[_Process] = []

    def read(self, offset: int, **place: Any) -> Iterator[ObjectRecord]:
        """Read the rows after the first `offset`, in stored order, as records."""
        for part in self.read_parts(offset, **place):
            if part.table is None:
                yield ObjectRecord(None, part.end, self.too_long(part))
                continue
            rows = rows_of(part.table)
            for number, row in enumerate(rows, part.end - len(rows) + 1):
                yield ObjectRecord(row, number, size=part.size // len(rows))

    def read_parts(
        self, offset: int, *, file: BinaryIO | None = None, content: ObjectBytes | None = None, **place: Any
    ) -> Iterator[ParquetPart]:
        """Read the rows after the first `offset`, in stored order: of a file, of `content`, or of `path` in `s3`.

        The `size` of `content` is needed too. This process reads its bytes, and the one that decodes asks for them.
        """
        number = offset
        with file or nullcontext():
            for rows in self._batch_rows:
                request = self._limits._asdict() | {"offset": number, "rows": rows} | place
                try:
                    for part in self._parts_after(number, request, file, content):
                        number = part.end
                        yield part
                    return
                except _DoesNotFit:
                    continue
        raise ValueError(
            f"row {number + 1} takes more than {self._limits.memory_max} bytes to decode: if the object is sound,"
            f" raise {self._limits.memory_option}, or write it with smaller values, pages and row groups"
        )

    def list_groups(self, file: BinaryIO) -> list[RowGroup]:
        """Return what a file says of its row groups. Raises ValueError if it is no Parquet."""
        process, kind, groups = self._idle.pop() if self._idle else _Process(), program.BEGIN, bytearray(b"[]")
        try:
            request = self._limits._asdict() | {"offset": 0, "rows": 1, "groups": True}
            process.send(json.dumps(request).encode(), file)
            while kind in (program.BEGIN, program.GROUPS):
                kind, _, content = process.receive(self._limits.memory_max)
                groups = content if kind == program.GROUPS else groups
        except _DoesNotFit:
            kind = program.NO_MEMORY
        finally:
            if kind == program.END:
                self._idle.append(process)
            else:
                process.end()
        if kind != program.END:
            raise ValueError(f"its row groups cannot be listed within {self._limits.memory_option}")
        return [RowGroup(rows, size) for rows, size in json.loads(groups)]

    def too_long(self, part: ParquetPart) -> str:
        """Return why a row is refused that is too long."""
        limit = f"{self._limits.row_option} ({self._limits.row_size_max})"
        return f"the row takes about {part.size} bytes, more than {limit}"

    def close(self) -> None:
        """End the process that decodes."""
        for process in self._idle:
            process.end()
        self._idle = []

    def _parts_after(
        self, number: int, request: dict[str, Any], file: BinaryIO | None, content_bytes: ObjectBytes | None
    ) -> Iterator[ParquetPart]:
        """Read rows until the end, or raise _DoesNotFit."""
        process = self._idle.pop() if self._idle else _Process()
        reusable, claimed = False, 0
        try:
            process.send(json.dumps(request).encode(), file)
            while True:
                kind, size, content = process.receive(2 * self._limits.memory_max)
                if kind == program.ASK:
                    assert content_bytes is not None
                    wanted = min(program.LENGTH.unpack(content)[0], program.ASK_BYTES)
                    process.give(content_bytes.read_at(size, wanted))
                elif kind == program.BEGIN:
                    claimed = size
                elif kind == program.ROWS:
                    table = _decode(content)
                    number += table.num_rows
                    yield ParquetPart(table, number, size, claimed)
                elif kind == program.LONG_ROW:
                    number += 1
                    yield ParquetPart(None, number, size, claimed)
                else:
                    break
            reusable = kind != program.NO_MEMORY
        finally:
            # Ended in the middle of an answer, or short of memory: the next object begins with a new one.
            if reusable:
                self._idle.append(process)
            else:
                process.end()
        if kind == program.NO_MEMORY:
            raise _DoesNotFit
        if kind == program.FAILED:
            raise _error(content)


class _DoesNotFit(Exception):
    """So many rows at once take more memory than is allowed."""


class _Process:
    """A process that decodes. It ends with this object, and with the process that started it."""

    def __init__(self) -> None:
        self._link, there = socket.socketpair()
        with there:
            self._process = subprocess.Popen(
                # -P: a file in the working directory must not shadow a module.
                [sys.executable, "-P", str(Path(program.__file__)), str(there.fileno())],
                pass_fds=(there.fileno(),),
                env=os.environ | _ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # What a crash prints is not text of ours, and may quote the object.
                stderr=subprocess.DEVNULL,
                # Ctrl-C is for the other process, which reads what is in flight to its end.
                start_new_session=True,
            )
        self.end = weakref.finalize(self, _end, self._process, self._link, os.getpid())

    def send(self, request: bytes, file: BinaryIO | None) -> None:
        socket.send_fds(self._link, [program.LENGTH.pack(len(request))], [file.fileno()] if file is not None else [])
        self._link.sendall(request)

    def give(self, content: bytes) -> None:
        """Answer a question for bytes."""
        self._link.sendall(program.LENGTH.pack(len(content)))
        self._link.sendall(content)

    def receive(self, length_max: int) -> tuple[bytes, int, bytearray]:
        """Return an answer. Raises _DoesNotFit if the process was ended for a lack of memory."""
        kind, size, length = program.ANSWER.unpack(self._receive(program.ANSWER.size))
        if length > length_max:
            raise _DoesNotFit
        return kind, size, self._receive(length)

    def _receive(self, size: int) -> bytearray:
        content = bytearray(size)
        view, filled = memoryview(content), 0
        while filled < size:
            try:
                count = self._link.recv_into(view[filled:])
            except ConnectionResetError:
                count = 0
            if not count:
                self._raise_loss()
            filled += count
        return content

    def _raise_loss(self) -> NoReturn:
        code = self._process.wait()
        # A program in C++ may abort without memory, and one in Python may have none for its error.
        if code in (-signal.SIGABRT, -signal.SIGKILL, 1):
            raise _DoesNotFit
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise OSError(f"the process that decodes Parquet ended with {how}")


def _end(process: "subprocess.Popen[bytes]", link: socket.socket, owner: int) -> None:
    # A fork of this process has the object too, but not the child.
    if os.getpid() == owner:
        link.close()
        process.kill()
        process.wait()


def _decode(content: bytearray) -> Any:
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(content)) as stream:
        return stream.read_all()


def _error(content: bytearray) -> Exception:
    name, text = json.loads(content)
    kinds = {"FileNotFoundError": FileNotFoundError, "PermissionError": PermissionError, "OSError": OSError}
    return kinds.get(name, ValueError)(f"it cannot be read as Parquet: {text}")
