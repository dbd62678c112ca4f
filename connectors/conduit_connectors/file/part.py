"""Part: a stretch of a file, from the end of one line to the end of another, that can be read elsewhere."""

import msgspec

from conduit_connectors.file.handle import Handle
from conduit_connectors.file.position import Position
from conduit_py.sdk import FatalError

_BLOCK_SIZE = 64 * 1024


class Part(msgspec.Struct, frozen=True, array_like=True):
    """The bytes from `start` to `end` of the file at `path` that has this inode and, up to `start`, this head."""

    path: str
    """Absolute: whoever reads it may be in another folder."""
    inode: int
    head: str
    start: int
    end: int

    @classmethod
    def after(cls, handle: Handle, start: int, size: int) -> "Part | None":
        """What follows `start`: about `size` bytes, to the end of a line or of the file; None at its end."""
        file_size = handle.stat().st_size
        if start >= file_size:
            return None
        handle.unchanged(start)
        end = _line_end(handle, start + size, file_size) if start + size < file_size else file_size
        position = handle.position(start)
        return cls(str(handle.path.absolute()), position.inode, position.head, start, end)

    def check(self, handle: Handle) -> None:
        """Raise FatalError unless this is the file that was split: another machine may have another at its path."""
        position = Position(self.inode, self.head, self.start)
        if handle.inode != self.inode or not handle.holds(position) or handle.stat().st_size < self.end:
            raise FatalError(
                f"{handle.path} is not the file that was found when it was split, up to byte {self.end}",
                suggestion="leave the file alone while it is read, and let every machine see the same one at that path",
            )


def _line_end(handle: Handle, offset: int, file_size: int) -> int:
    """The end of the line that byte `offset - 1` is in."""
    offset -= 1
    while block := handle.read(offset, _BLOCK_SIZE):
        found = block.find(b"\n")
        if found >= 0:
            return offset + found + 1
        offset += len(block)
    return max(offset, file_size)
