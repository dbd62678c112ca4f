"""Disk, AppendLock and SyncMark: how a journal changes its files, the lock that admits one writer at a time, and up
to where the files were synced.

Each call of Disk has a crash point before and after it. Tests of disk errors give a journal a Disk that fails at a
chosen call.
"""

import errno
import fcntl
import os
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from conduit_py import crash_point
from conduit_py.journal.errors import JournalBusy, JournalFailed, JournalUnfit


class Disk:
    """The calls of the operating system that change files."""

    def write(self, descriptor: int, data: bytes, at: int) -> None:
        """Write all of `data`; an error may leave a part of it."""
        crash_point.reach("journal.before_write")
        view = memoryview(data)
        while view:
            # A signal, or a disk that is nearly full, can cut a write short without an error.
            written = os.pwrite(descriptor, view, at)
            view, at = view[written:], at + written
        crash_point.reach("journal.after_write")

    def sync(self, descriptor: int) -> None:
        """Return when everything written to the file is on the disk."""
        crash_point.reach("journal.before_sync")
        # fdatasync covers the size of the file too. It leaves out only its times, which nothing reads.
        os.fdatasync(descriptor)
        crash_point.reach("journal.after_sync")

    def truncate(self, descriptor: int, size: int) -> None:
        crash_point.reach("journal.before_truncate")
        os.ftruncate(descriptor, size)
        crash_point.reach("journal.after_truncate")

    def create(self, path: Path, content: bytes) -> None:
        """Create a whole file, or none. Its content and its name are durable on return."""
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        # O_TRUNC: a process with the same pid may have died and left a longer draft.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self.write(descriptor, content, 0)
            # Before the rename: after a power cut the name could otherwise stand for an empty file.
            self.sync(descriptor)
        finally:
            os.close(descriptor)
        crash_point.reach("journal.before_rename")
        os.rename(temporary, path)
        crash_point.reach("journal.after_rename")
        self.sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        crash_point.reach("journal.before_remove")
        path.unlink()
        crash_point.reach("journal.after_remove")

    def sync_directory(self, directory: Path) -> None:
        """Return when the names in the directory are on the disk."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Without this, a power cut could remove the file although its content was synced.
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        crash_point.reach("journal.after_directory_sync")


WAIT_SECONDS = 30.0
"""An append takes as long as an fsync: a process that holds the lock for longer is stuck or suspended."""


class AppendLock:
    """Held for one append, or one repair. The system releases it when the process ends, also by `kill -9`."""

    def __init__(self, directory: Path, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._directory = directory
        self._wait_seconds = wait_seconds
        try:
            # O_CLOEXEC: a child process would keep the lock held after this process has died.
            self._descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise directory_error(f"journal {directory} cannot be used", error) from error

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Wait for the lock and hold it. Raises JournalBusy when another process has it for too long."""
        self._acquire()
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._descriptor)

    def _acquire(self) -> None:
        deadline, pause = time.monotonic() + self._wait_seconds, 0.0002
        while True:
            try:
                # Not a blocking call: that has no timeout, and a suspended holder would hang every writer.
                return fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno != errno.EWOULDBLOCK:
                    raise
            if time.monotonic() > deadline:
                raise JournalBusy(
                    f"journal {self._directory} has been held by {self._holder()} for {self._wait_seconds:g} seconds",
                    suggestion="that process is stuck or was suspended in an append: resume it or kill it",
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.01)

    def _holder(self) -> str:
        """The process that holds the lock, as the system reports it, for an error message."""
        inode = f":{os.fstat(self._descriptor).st_ino}"
        try:
            lines = Path("/proc/locks").read_text().splitlines()
        except OSError:
            return "another process"
        holders = [fields[4] for line in lines if (fields := line.split())[1] == "FLOCK" and fields[5].endswith(inode)]
        return f"process {holders[0]}" if holders else "another process"


_STAYS_SO = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP}


def directory_error(what: str, error: OSError) -> JournalUnfit | JournalFailed:
    """The error for a directory that cannot be used: a full disk may have room later, a missing permission stays."""
    if error.errno in _STAYS_SO:
        return JournalUnfit(f"{what}: {error.strerror}", suggestion="choose a directory that this user may write to")
    return JournalFailed(f"{what}: {error.strerror or error}")


NAME = "synced"
_MARK = struct.Struct("<16sQ")


class SyncMark:
    """The file `synced` of a journal, written after each sync and never synced itself.

    So it never says more than was on the disk. After a power cut it may say less.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._descriptor: int | None = None

    def write(self, journal: str, end: int) -> None:
        """Note that everything before `end` is on the disk. Call this with the lock of the journal held."""
        packed = _MARK.pack(journal.encode(), end)
        # An old mark only says less. The messages are on the disk, so their append must not fail for it.
        with suppress(OSError):
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.pwrite(self._descriptor, packed + zlib.crc32(packed).to_bytes(4, "little"), 0)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_mark(directory: Path) -> tuple[str, int] | None:
    """The id of a journal, and the offset before which everything was synced; None if that is unknown."""
    try:
        data = (directory / NAME).read_bytes()
    except FileNotFoundError:
        return None
    packed, checksum = data[: _MARK.size], data[_MARK.size :]
    if len(packed) < _MARK.size or zlib.crc32(packed).to_bytes(4, "little") != checksum:
        return None
    id, end = _MARK.unpack(packed)
    return id.decode(), end


def synced_end(directory: Path, journal: str) -> int:
    """The offset before which everything was synced; 0 if that is unknown, as for a journal without a mark."""
    id, end = read_mark(directory) or ("", 0)
    # Of an earlier journal in this directory it says nothing.
    return end if id == journal else 0
