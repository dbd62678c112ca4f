"""Marker: a small file beside the one being written. It holds which batch a crash may have left half written."""

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

    `before` is a checksum of the bytes before it: a deleted file's inode is reused.
    """

    inode: int
    before: int
    start: int
    size: int
    same_boot: bool
    """True if the machine was not restarted since. Then this is the last batch; else it may be an earlier one."""


class Marker:
    """Exists while a file is open for appending; left behind only by a run that did not end cleanly.

    It is durable once created. It is written before every batch, but not synced then: after `kill -9` it is
    exact, after a power failure it may name an earlier batch.
    """

    def __init__(self, target: Path) -> None:
        self.path = marker_path(target)
        self._side_path = side_path(target)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._boot = _boot_id()

    def load(self) -> Begun | None:
        """Return what the last run wrote; None when there was none, it ended cleanly, or the marker itself is torn."""
        match = _PATTERN.fullmatch(os.pread(self._fd, 2 * _WIDTH, 0))
        if match is None or zlib.crc32(match[1]) != int(match[7], 16):
            return None
        inode, before, start, size = map(int, match.groups()[1:5])
        boot = match[6].decode()
        return Begun(inode, before, start, size, same_boot=bool(boot) and boot == self._boot)

    def note(self, inode: int, before: int, start: int, size: int) -> None:
        """Record that a batch is about to be appended. Its fixed width makes it one write over the last one."""
        text = b"conduit-file 1 %d %d %d %d %s" % (inode, before, start, size, self._boot.encode())
        text = text.ljust(_WIDTH)
        note = b"%s%08x\n" % (text, zlib.crc32(text))
        if os.pwrite(self._fd, note, 0) < len(note):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self, *, clean: bool) -> None:
        """Close the marker. Remove it when nothing can be half written or left to do."""
        os.close(self._fd)
        if clean:
            self._side_path.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)


def marker_path(target: Path) -> Path:
    """Return the path of the marker. It begins with a dot, so that programs that read the whole folder skip it."""
    return target.with_name(f".{target.name}.conduit")


def side_path(target: Path) -> Path:
    """Return the path of the side file, where the lines of a transaction wait for its commit."""
    return target.with_name(f".{target.name}.conduit-staged")


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # Not Linux: never the same boot. The repair then assumes the worst, a power failure.
