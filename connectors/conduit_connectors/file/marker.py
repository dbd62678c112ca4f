"""Marker: a small file beside the one being written, which says what a crash may have left half written."""

import errno
import os
import re
import zlib
from pathlib import Path
from typing import NamedTuple

_PATTERN = re.compile(rb"(conduit-file 1 (\d+) (\d+) (\d+) (\d+) ([0-9a-f-]*) *)([0-9a-f]{8})\n")
_WIDTH = 160


class Begun(NamedTuple):
    """A batch of `size` bytes was about to be appended at `start` to the file with this inode.

    `before` is a checksum of the bytes before it: inodes are used again when files are deleted.
    """

    inode: int
    before: int
    start: int
    size: int
    same_boot: bool
    """Whether the machine has run ever since. If so this is the last batch; else it may be an earlier one."""


class Marker:
    """Exists while a file is open for appending; left behind only by a run that did not end cleanly.

    It is made durable when created and written before every batch, but not made durable then: a killed
    process leaves it exact, a power failure may leave the note of an earlier batch.
    """

    def __init__(self, target: Path) -> None:
        self.path = marker_path(target)
        self._side_path = side_path(target)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._boot = _boot_id()

    def load(self) -> Begun | None:
        """What the last run noted; None when there was none, or it ended cleanly, or the note itself is torn."""
        match = _PATTERN.fullmatch(os.pread(self._fd, 2 * _WIDTH, 0))
        if match is None or zlib.crc32(match[1]) != int(match[7], 16):
            return None
        inode, before, start, size = map(int, match.groups()[1:5])
        boot = match[6].decode()
        return Begun(inode, before, start, size, same_boot=bool(boot) and boot == self._boot)

    def note(self, inode: int, before: int, start: int, size: int) -> None:
        """Say that a batch is about to be appended. A fixed width makes it one write over the note before."""
        text = b"conduit-file 1 %d %d %d %d %s" % (inode, before, start, size, self._boot.encode())
        text = text.ljust(_WIDTH)
        note = b"%s%08x\n" % (text, zlib.crc32(text))
        if os.pwrite(self._fd, note, 0) < len(note):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self, *, clean: bool) -> None:
        """Let go of the marker, and leave nothing beside the file when nothing can be half written or left to do."""
        os.close(self._fd)
        if clean:
            self._side_path.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)


def marker_path(target: Path) -> Path:
    """The marker's name begins with a dot, so that whoever reads the whole folder passes over it."""
    return target.with_name(f".{target.name}.conduit")


def side_path(target: Path) -> Path:
    """Where the lines of a transaction wait until it is committed."""
    return target.with_name(f".{target.name}.conduit-staged")


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # Not Linux: never taken for the same boot, which only cuts with more care.
