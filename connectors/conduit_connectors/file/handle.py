"""Handle: one open file that may grow, shrink or be replaced while it is read; positions in it, and parts of it."""

import hashlib
import os
import re
import stat
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from conduit_py.sdk import FatalError, Positions, TransientError, foreign_position

HEAD_SIZE = 1024
"""A file is recognised by at most so many bytes of its beginning."""

COUNTED_MAX = 64 * 1024 * 1024
"""Lines are counted in at most so many bytes: a message about a record must not read a whole disk."""
_COUNTED_BLOCK_SIZE = 1024 * 1024

_PATTERN = re.compile(rb"file:1:(\d+):([0-9a-f]{16}):(\d+)")
_START_PATTERN = re.compile(rb"file:start:1:(\d+):(\d+):([0-9a-f]{16}):(\d+)")


class FilePosition(NamedTuple):
    """The offset just past a record, in the file with this inode and this beginning.

    `head` is a hash of the first bytes of the file, at most HEAD_SIZE and none beyond `offset`. So a record has
    the same position, and the same delivery key, however long the file was when it was read. The device is
    left out: its number may change with every boot.
    """

    inode: int
    head: str
    offset: int

    @classmethod
    def parse(cls, raw: bytes) -> "FilePosition":
        match = _PATTERN.fullmatch(raw)
        if match is None:
            raise foreign_position(raw, "the file source")
        return cls(int(match[1]), match[2].decode(), int(match[3]))

    def __bytes__(self) -> bytes:
        return prefix(self.inode, self.head) + b"%d" % self.offset


class FileStart(NamedTuple):
    """Where a tailing source began, before it read a record: in this file, or where there was none yet.

    Once the file is rotated, the first bytes find its copy. Where these are too few to tell, as of an empty
    file, `since` does: a rotated file that was changed after it was rotated after the start.
    """

    inode: int
    """0 if there was no file."""
    size: int
    """The number of first bytes that `head` is made of."""
    head: str
    since: int
    """The last change, in nanoseconds, of the newest rotated file at the start; 0 if there was none."""

    @classmethod
    def parse(cls, raw: bytes) -> "FileStart | None":
        """Return None for a position of another kind."""
        match = _START_PATTERN.fullmatch(raw)
        return match and cls(int(match[1]), int(match[2]), match[3].decode(), int(match[4]))

    def __bytes__(self) -> bytes:
        return b"file:start:1:%d:%d:%s:%d" % (self.inode, self.size, self.head.encode(), self.since)

    def begins(self, handle: "Handle") -> bool:
        """Return True if a file begins like the one at the start."""
        return handle.hash_start(self.size) == self.head


def prefix(inode: int, head: str) -> bytes:
    """Return what all positions with this head in one file begin with. The offset in decimal follows."""
    return b"file:1:%d:%s:" % (inode, head.encode())


def hash_head(head: bytes) -> str:
    return hashlib.blake2b(head, digest_size=8).hexdigest()


class Handle:
    """Reads a regular file by offset and makes the positions of what was read.

    Blocks are read in order from any start. `head` is the beginning of the file as far as it was read, at most
    HEAD_SIZE bytes: a truncated and rewritten file is recognised by it.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.inode = os.fstat(fd).st_ino
        self.head = b""
        self._fd = fd
        self._position = b""

    @classmethod
    def open(cls, path: Path) -> "Handle | None":
        """Open a file for reading; None when there is none. Raises FatalError when it cannot be read."""
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

    def read_at(self, offset: int, size: int) -> bytes:
        """Read at most `size` bytes at `offset`; none at the end of the file."""
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            raise TransientError(f"cannot read {self.path} at offset {offset}: {error.strerror}") from error

    def hash_start(self, size: int) -> str:
        return hash_head(self.read_at(0, size))

    def holds(self, position: FilePosition) -> bool:
        """True if this file begins like the file of the position and is at least as long."""
        head = self.hash_start(min(HEAD_SIZE, position.offset))
        return self.stat().st_size >= position.offset and head == position.head

    def has_line_end(self, offset: int) -> bool:
        """True if a line ends at `offset`, or did when the file ended there."""
        around = self.read_at(offset - 1, 2)
        return around.startswith(b"\n") or around[1:] in (b"", b"\n", b"\r")

    def unchanged(self, offset: int) -> bool:
        """True if the file still begins as it did and reaches to `offset`, up to which it was read.

        Checked after each read: if true, what was read follows what was read before.
        """
        head = self.read_at(0, min(HEAD_SIZE, offset))
        if self.stat().st_size < offset or not head.startswith(self.head):
            return False
        if len(self.head) < len(head):
            self.head = head
            self._position = prefix(self.inode, hash_head(head)) + b"%d"
        return True

    def line_at(self, end: int) -> int | None:
        """Return the number of the line that ends at this offset; None if it is too far from the start to count."""
        if end > COUNTED_MAX:
            return None
        line, offset = 1, 0
        # Without the last byte, which is the end of the line itself.
        while offset < end - 1 and (block := self.read_at(offset, min(_COUNTED_BLOCK_SIZE, end - 1 - offset))):
            line += block.count(b"\n")
            offset += len(block)
        return line

    def positions(self, ends: Sequence[int]) -> Sequence[bytes]:
        """The positions of records that end at these offsets, ascending, all of them read."""
        if ends and ends[0] >= HEAD_SIZE:
            return Positions(self._position, ends, ascending=True)
        # Each of the first ones has a head of its own.
        first = bisect_left(ends, HEAD_SIZE)
        return [*(bytes(self.position(end)) for end in ends[:first]), *map(self._position.__mod__, ends[first:])]

    def position(self, offset: int) -> FilePosition:
        return FilePosition(self.inode, hash_head(self.head[:offset]), offset)

    def close(self) -> None:
        os.close(self._fd)


FindEnd: TypeAlias = Callable[[Handle, int, int], int]
"""Is given a file, where a record of it begins, and an `offset`. Returns where the record ends that holds `offset - 1`,
or the end of the file."""


class FilePart(msgspec.Struct, frozen=True, array_like=True):
    """The bytes from `start` to `end` of the file at `path` that has this inode and, up to `start`, this head."""

    path: str
    """Absolute: the process that reads it may be in another folder."""
    inode: int
    head: str
    start: int
    end: int

    @classmethod
    def after(cls, handle: Handle, start: int, size: int, find_end: FindEnd) -> "FilePart | None":
        """Return the part after `start`: about `size` bytes, to the end of a record or of the file; None at its end."""
        file_size = handle.stat().st_size
        if start >= file_size:
            return None
        handle.unchanged(start)
        end = find_end(handle, start, start + size) if start + size < file_size else file_size
        position = handle.position(start)
        return cls(str(handle.path.absolute()), position.inode, position.head, start, end)

    def open(self) -> Handle:
        handle = Handle.open(Path(self.path))
        if handle is None:
            hint = "let every machine see the same file at that path"
            raise FatalError(f"there is no file {self.path} where a part of it is to be read", suggestion=hint)
        return handle

    def check(self, handle: Handle) -> None:
        """Raise FatalError unless this is the file that was split: another machine may have another at its path."""
        position = FilePosition(self.inode, self.head, self.start)
        if handle.inode != self.inode or not handle.holds(position) or handle.stat().st_size < self.end:
            raise FatalError(
                f"{handle.path} is not the file that was found when it was split, up to byte {self.end}",
                suggestion="leave the file alone while it is read, and let every machine see the same one at that path",
            )
