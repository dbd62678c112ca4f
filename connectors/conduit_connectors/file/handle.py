"""Handle: one open file that is being read, which may grow, shrink or be replaced meanwhile."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from conduit_connectors.file.position import HEAD_SIZE, Position, hash_head, prefix
from conduit_py.sdk import FatalError, TransientError


class Handle:
    """Reads a regular file by offset and makes the positions of what was read.

    Blocks are read in order from wherever it starts. `head` is the beginning of the file as far as it was
    read, at most HEAD_SIZE bytes, by which a truncated and rewritten file is noticed.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.inode = os.fstat(fd).st_ino
        self.head = b""
        self._fd = fd
        self._position = b""

    @classmethod
    def open(cls, path: Path) -> "Handle | None":
        """Open a file for reading; None when there is none, FatalError when it cannot be read."""
        try:
            # Without O_NONBLOCK opening a named pipe would wait for a writer.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            advice = f"give the user that runs this read permission on {path} and its folders"
            if not isinstance(error, PermissionError):
                advice = "check the path and the device it is on"
            raise FatalError(f"cannot open {path}: {error.strerror}", suggestion=advice) from error
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            os.close(fd)
            what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise FatalError(f"cannot read {path}: it is {what}", suggestion="path must name one regular file")
        return cls(path, fd)

    def stat(self) -> os.stat_result:
        return os.fstat(self._fd)

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes at `offset`; none at the end of the file."""
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            raise TransientError(f"cannot read {self.path} at offset {offset}: {error.strerror}") from error

    def holds(self, position: Position) -> bool:
        """Whether this file begins like the one the position is of, and reaches as far."""
        head = self.read(0, min(HEAD_SIZE, position.offset))
        return self.stat().st_size >= position.offset and hash_head(head) == position.head

    def has_line_end(self, offset: int) -> bool:
        """Whether a line ends at `offset`, or did so when the file ended there."""
        around = self.read(offset - 1, 2)
        return around.startswith(b"\n") or around[1:] in (b"", b"\n", b"\r")

    def unchanged(self, offset: int) -> bool:
        """Whether the file still begins as it did and reaches to `offset`, up to which it was read.

        Asked after each read: if the answer is yes, what was read follows what was read before.
        """
        head = self.read(0, min(HEAD_SIZE, offset))
        if self.stat().st_size < offset or not head.startswith(self.head):
            return False
        if len(self.head) < len(head):
            self.head = head
            self._position = prefix(self.inode, hash_head(head)) + b"%d"
        return True

    def positions(self, ends: Sequence[int]) -> list[bytes]:
        """The positions of records that end at these offsets, ascending, all of them read."""
        if ends and ends[0] >= HEAD_SIZE:
            return list(map(self._position.__mod__, ends))
        return [bytes(self.position(end)) for end in ends]

    def position(self, offset: int) -> Position:
        return Position(self.inode, hash_head(self.head[:offset]), offset)

    def close(self) -> None:
        os.close(self._fd)
