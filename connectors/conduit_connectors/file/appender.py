"""Appender: appends whole batches of lines to a file durably, or not at all. Device: the same without durability."""

import fcntl
import logging
import os
import stat
import zlib
from collections.abc import Iterable
from pathlib import Path

from conduit_connectors.file.disk import FULL, advice, make_folders, sync_data, sync_path, write_all
from conduit_connectors.file.marker import Begun, Marker, marker_path
from conduit_py.sdk import FatalError, TransientError

_logger = logging.getLogger(__name__)


class Appender:
    """Owns a file for appending: one process at a time, one batch at a time, never half a line.

    A batch that cannot be written in full is removed before the error is raised. The next Appender removes a
    batch that a crash cut short. After a failed `sync` every later call fails: only a new Appender, which
    starts from what the file really holds, can continue.
    """

    def __init__(self, path: Path) -> None:
        """Lock the file, creating it and its folders when missing, and repair its end after a crash."""
        self.path = path
        self._marker: Marker | None = None
        self._failed: str | None = None
        self._dirty = True
        self._promised = False
        self._fd = _open(path)
        try:
            _lock(self._fd, path)
            self._inode = os.fstat(self._fd).st_ino
            self.ended_well = not marker_path(path).exists()
            """True if the last run closed the file cleanly, or there was none."""
            # A run that dies right after opening the file must not look like one that repaired it.
            self._promised = not self.ended_well
            self._marker = _open_marker(path)
            self._repair(self._marker.load())
            self._doubtful_from = self._end = self._begin(self._marker)
        except OSError as error:
            self.close()
            what = f"cannot get {path} ready for appending: {error.strerror}"
            raise TransientError(what, suggestion=advice(error, path)) from error
        except FatalError:
            self.close()
            raise
        self._dirty = False

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def promise(self) -> None:
        """Until `fulfil`, closing the file does not count as a clean end: committed lines are still missing from it."""
        self._promised = True

    def fulfil(self) -> None:
        self._promised = False

    def append(self, pieces: Iterable[bytes | memoryview], size: int) -> None:
        """Add whole lines, `size` bytes in all. On an error the file is as it was before: TransientError."""
        self._refuse_after_failure()
        assert self._marker is not None
        written = 0
        try:
            start = self.size()
            self._marker.note(self._inode, self._before(start), start, size)
            self._dirty = True
            for count in write_all(self._fd, pieces):
                written += count
        except OSError as error:
            self._take_back(written)
            what = f"cannot append {size} bytes to {self.path}: {error.strerror}"
            outcome = self._failed or "nothing of them was kept"
            raise TransientError(f"{what}; {outcome}", suggestion=advice(error, self.path)) from error
        end = self._offset()
        if end - size != self._end:
            self._doubtful_from = end - size  # What somebody else appended in between is never cut.
        self._end = end

    def sync(self) -> None:
        """Make everything appended durable. After an error every later call fails."""
        self._refuse_after_failure()
        if not self._dirty:
            return
        try:
            sync_data(self._fd)
        except OSError as error:
            # The kernel may drop pages that it failed to write, and the next fsync would then succeed without them.
            self._failed = f"what was appended to {self.path} could not be made durable: {error.strerror}"
            self._cut(self._doubtful_from, expected=self._end)
            raise TransientError(self._failed, suggestion=advice(error, self.path)) from error
        if os.fstat(self._fd).st_nlink == 0:
            self._failed = f"{self.path} was deleted while it was being written"
            raise TransientError(self._failed, suggestion="move the file away only while the pipeline is stopped")
        self._dirty = False
        self._doubtful_from = self._end

    def read_at(self, offset: int, size: int) -> bytes:
        """Read at most `size` bytes of the file from `offset` on."""
        return os.pread(self._fd, size, offset)

    def close(self) -> None:
        """Unlock the file. The marker is removed if all batches are durable."""
        try:
            if self._marker is not None:
                self._marker.close(clean=not self._dirty and self._failed is None and not self._promised)
        finally:
            os.close(self._fd)

    def _repair(self, begun: Begun | None) -> None:
        """Remove what a crashed run left half written, and end a last line that somebody else left open."""
        size = self.size()
        stop = size
        if begun is not None and begun.inode == self._inode and begun.before == self._before(begun.start):
            stop = self._end_of_whole(begun, size)
        if stop < size:
            _logger.warning("%s: removing %d bytes that an interrupted run left half written", self.path, size - stop)
            os.ftruncate(self._fd, stop)
        elif size and os.pread(self._fd, 1, size - 1) != b"\n":
            # Not ours, so it may be a whole line. Keep it, and begin our own on a new line.
            os.write(self._fd, b"\n")

    def _end_of_whole(self, begun: Begun, size: int) -> int:
        """Return the size of the file before the last batch if that batch is incomplete, else None."""
        if begun.start < size < begun.start + begun.size:
            return begun.start
        if begun.same_boot or size <= begun.start:
            return size
        # After a power failure the marker may name an earlier batch. What follows is ours, but its end may be torn.
        return self._last_line_end(begun.start, size)

    def _last_line_end(self, start: int, stop: int) -> int:
        block = 64 * 1024
        while stop > start:
            begin = max(start, stop - block)
            found = os.pread(self._fd, stop - begin, begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            stop = begin
        return start

    def _begin(self, marker: Marker) -> int:
        """Make the marker durable before any batch, so that the next run can tell our torn batch from others' data."""
        size = self.size()
        os.fsync(self._fd)
        marker.note(self._inode, self._before(size), size, 0)
        marker.sync()
        sync_path(self.path.parent)
        return size

    def _before(self, offset: int) -> int:
        """Return a checksum of what is before an offset, to recognise the file."""
        start = max(0, offset - 64)
        return zlib.crc32(os.pread(self._fd, offset - start, start))

    def _take_back(self, written: int) -> None:
        """Remove the first part of a batch whose rest could not be written."""
        if written:
            end = self._offset()
            if not self._cut(end - written, expected=end):
                self._failed = f"{self.path} has half a batch at its end that could not be removed"

    def _offset(self) -> int:
        """Return where our last write ended. With O_APPEND another program's data may stand before it."""
        return os.lseek(self._fd, 0, os.SEEK_CUR)

    def _cut(self, size: int, *, expected: int) -> bool:
        """Shorten the file, unless somebody else has appended to it since."""
        if self.size() != expected:
            _logger.error("%s: another program appended to it, so what failed to be written stays in it", self.path)
            return False
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            _logger.error("%s: cannot be cut back to %d bytes: %s", self.path, size, error.strerror)
            return False
        return True

    def _refuse_after_failure(self) -> None:
        if self._failed is not None:
            raise TransientError(f"{self._failed}; it must be opened again")


def _open(path: Path) -> int:
    try:
        make_folders(path.parent)
        # Without O_NONBLOCK opening a named pipe would wait for a reader.
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    except OSError as error:
        kind = TransientError if error.errno in FULL else FatalError
        what = f"cannot open {path} for appending: {error.strerror}"
        raise kind(what, suggestion=advice(error, path)) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        hint = 'path must name a regular file; for standard output use the destination "stdio"'
        raise FatalError(f"cannot append to {path}: it is not a regular file", suggestion=hint)
    return fd


def _open_marker(path: Path) -> Marker:
    try:
        return Marker(path)
    except OSError as error:
        what = f"cannot create the marker beside {path} that tells a torn write from others' data: {error.strerror}"
        raise FatalError(what, suggestion=f"allow creating files in {path.parent}") from error


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FatalError(
            f"{path} is being written by another destination or process",
            suggestion="give every destination a path of its own, and stop the other process if it should not run",
        ) from None


class Device:
    """Writes lines to a character device. What was written cannot be removed, read, locked or made durable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            raise FatalError(
                f"cannot open {path} for writing: {error.strerror}",
                suggestion="give the user that runs this write permission on it",
            ) from error

    def size(self) -> int:
        """How many bytes this run has written."""
        return self._size

    def append(self, text: bytes) -> None:
        """Write whole lines. On an error part of them may be written: TransientError."""
        view = memoryview(text)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise TransientError(f"cannot write {len(text)} bytes to {self.path}: {error.strerror}") from error
        self._size += len(text)

    def close(self) -> None:
        os.close(self._fd)


def is_device(path: Path) -> bool:
    """True if there is a character device at the path."""
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False
