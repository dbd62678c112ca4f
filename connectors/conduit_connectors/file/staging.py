"""Staging: holds the lines of a transaction until its commit, then appends them exactly once."""

import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from conduit_connectors.file.appender import Appender
from conduit_connectors.file.side_file import SideFile, StagedRange, blocks
from conduit_py.sdk import FatalError

INLINE_MAX = 128 * 1024
"""Transactions up to this size are carried by their intent: syncing a side file would take longer."""


class FileIntent(msgspec.Struct, frozen=True, array_like=True):
    """An intent: the file has these lines at `offset`, or those that the side file holds.

    Versions without side files read the first form only, and refuse the second.
    """

    offset: int
    content: bytes | StagedRange

    @property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.size


class Staging:
    """Buffers the lines of a transaction; `apply` appends them once, however often it is called.

    A small transaction waits in memory and is carried by its intent. Of a larger one memory holds at most
    `inline_max` bytes; the rest is in a side file. `apply` recognises what is already in the file by its content. So
    another call repairs a crash at any moment, also in the middle of a write.
    """

    def __init__(self, appender: Appender, inline_max: int = INLINE_MAX) -> None:
        self._appender = appender
        self._inline_max = inline_max
        self._side = SideFile(appender.path)
        self._lines: list[bytes] = []
        self._lines_size = 0

    def recover(self, intents: Sequence[bytes]) -> None:
        """Append what the last transaction has not appended yet, and discard what was not committed.

        After a clean end there is nothing to do, wherever the file is.
        """
        if not self._appender.ended_well:
            for intent in intents:
                self.apply(intent)
        self._side.discard()
        self._appender.fulfil()

    def size(self) -> int:
        """The size that the file will have with everything that waits."""
        return self._appender.size() + self._side.size + self._lines_size

    def add(self, pieces: Sequence[bytes]) -> None:
        """Buffer whole lines. On TransientError none of them are buffered."""
        size = self._lines_size + sum(map(len, pieces))
        if size <= self._inline_max:
            self._lines += pieces
            self._lines_size = size
        else:
            self._side.write([*self._lines, *pieces])
            self._lines, self._lines_size = [], 0

    def stage(self) -> bytes | None:
        content: bytes | StagedRange
        if self._side.size:
            self._side.write(self._lines)
            content = self._side.sync()
        elif self._lines:
            content = b"".join(self._lines)
        else:
            return None
        self._lines, self._lines_size = [], 0
        # From now on the file counts as cleanly closed only after `apply`.
        self._appender.promise()
        return msgspec.msgpack.encode(FileIntent(self._appender.size(), content))

    def apply(self, encoded: bytes) -> None:
        """Append the lines, or the part that is missing. They are durable on return."""
        intent = msgspec.msgpack.decode(encoded, type=FileIntent)
        content, size = intent.content, intent.size
        there = min(self._appender.size() - intent.offset, size)
        if there < 0 or not self._begins(intent, there):
            raise _file_changed(self._appender.path, intent)
        if isinstance(content, bytes):
            missing = iter([memoryview(content)[there:]])
        else:
            missing = (memoryview(self._side.read_at(at, length)) for at, length in blocks(there, size))
        if there < size:
            self._appender.append(missing, size - there)
        self._appender.sync()
        self._appender.fulfil()
        if isinstance(content, StagedRange):
            self._side.release(content)

    def close(self) -> None:
        """Close the side file. It is removed when the appender is closed, unless an intent is still to be applied."""
        self._side.close()

    def _begins(self, intent: FileIntent, there: int) -> bool:
        """True if the `size` bytes in the file at the offset are how the transaction begins."""
        content = intent.content
        if isinstance(content, bytes):
            return self._appender.read_at(intent.offset, there) == content[:there]
        if there == content.size:
            # Then the side file is not needed: it may hold the next transaction already, or be removed.
            checksum = 0
            for at, size in blocks(intent.offset, intent.offset + there):
                checksum = zlib.crc32(self._appender.read_at(at, size), checksum)
            return checksum == content.checksum
        self._side.check(content)
        return all(
            self._appender.read_at(intent.offset + at, size) == self._side.read_at(at, size)
            for at, size in blocks(0, there)
        )


def _file_changed(path: Path, intent: FileIntent) -> FatalError:
    return FatalError(
        f"{path} is not as it was left: {intent.size} bytes of the last transaction belong at {intent.offset}, "
        f"but {'there is something else' if os.path.getsize(path) >= intent.offset else 'it is shorter than that'}",
        suggestion=f"put {path.name} back as it was when the pipeline ended; it may be moved away only after an "
        "orderly stop, and nobody else may write it",
    )
