"""SideFile: a file beside the target that holds the lines of a transaction until they are committed and copied."""

import errno
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from conduit_connectors.file.disk import advice, sync_data, sync_path, write_all
from conduit_connectors.file.marker import marker_path, side_path
from conduit_py.sdk import FatalError, TransientError

BLOCK_SIZE = 1024 * 1024
"""How many bytes are copied at once. Smaller blocks cost more calls; larger ones do not fit the processor's cache."""


class StagedRange(msgspec.Struct, frozen=True, array_like=True):
    """Size and checksum of what a side file holds, to recognise it."""

    size: int
    checksum: int


class SideFile:
    """Holds one transaction at a time: `write` as lines come, `sync` once, `read` until it is released.

    It is created when first needed. The next transaction overwrites the last one: syncing existing blocks is
    cheaper than syncing new ones. What was staged is recognised by size and checksum. An older transaction, or
    half of a newer one, is never taken for it.
    """

    def __init__(self, target: Path) -> None:
        self.path = side_path(target)
        self.size = 0
        """How many bytes were written of the transaction that waits."""
        self._target = target
        self._fd: int | None = None
        self._checksum = 0
        self._sealed: StagedRange | None = None
        self._failed: str | None = None

    def write(self, pieces: Sequence[bytes]) -> None:
        """Add lines to the transaction. On TransientError none of them were added."""
        assert self._sealed is None, "what is staged is applied before more is written"
        self._refuse_after_failure()
        fd = self._fd if self._fd is not None else self._create()
        try:
            os.lseek(fd, self.size, os.SEEK_SET)
            written = sum(write_all(fd, pieces))
        except OSError as error:
            self._give_back(fd)
            what = f"cannot write {sum(map(len, pieces))} bytes to {self.path}: {error.strerror}"
            hint = advice(error, self.path)
            raise TransientError(f"{what}; nothing of them was kept", suggestion=hint) from error
        self.size += written
        for piece in pieces:
            self._checksum = zlib.crc32(piece, self._checksum)

    def sync(self) -> StagedRange:
        """Make the transaction durable, and hold it until it is released."""
        self._refuse_after_failure()
        assert self._fd is not None, "something was written"
        try:
            sync_data(self._fd)
        except OSError as error:
            # The kernel may have dropped what it could not write, and the next sync would not say so.
            self._failed = f"what was written to {self.path} could not be made durable: {error.strerror}"
            raise TransientError(self._failed, suggestion=advice(error, self.path)) from error
        if os.fstat(self._fd).st_nlink == 0:
            self._failed = f"{self.path} was deleted while it was being written"
            raise TransientError(self._failed, suggestion="leave it alone: it goes away when the pipeline stops")
        self._sealed = StagedRange(self.size, self._checksum)
        return self._sealed

    def check(self, staged: StagedRange) -> None:
        """Raise FatalError unless it holds this: the lines are nowhere else."""
        if staged == self._sealed:
            return
        if self._fd is None:
            self._fd = self._open_existing(staged)
        if os.fstat(self._fd).st_size < staged.size:
            raise self._lost(staged, f"has only {os.fstat(self._fd).st_size} bytes")
        checksum = 0
        for at, size in blocks(0, staged.size):
            checksum = zlib.crc32(self.read_at(at, size), checksum)
        if checksum != staged.checksum:
            raise self._lost(staged, "has something else in it")

    def read_at(self, offset: int, size: int) -> bytes:
        assert self._fd is not None, "it was written or checked"
        found = os.pread(self._fd, size, offset)
        if len(found) < size:
            raise OSError(errno.EIO, f"{self.path} has become shorter")
        return found

    def release(self, staged: StagedRange) -> None:
        """Release what was staged: it is in the target, and the next transaction may overwrite it."""
        if staged == self._sealed:
            self.size = self._checksum = 0
            self._sealed = None

    def discard(self) -> None:
        """Remove it with everything in it."""
        self.close()
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            what = f"cannot remove {self.path}, which has lines that were not committed: {error.strerror}"
            raise TransientError(what, suggestion=advice(error, self.path)) from error

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _create(self) -> int:
        try:
            # The mode of the target: only users who may read the lines there may read them here.
            mode = stat.S_IMODE(os.stat(self._target).st_mode)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.fchmod(fd, mode)
                sync_path(self.path.parent)
            except OSError:
                # A file whose name is not durable must not be used by the next attempt: a power failure would lose it.
                os.close(fd)
                self.path.unlink()
                raise
        except OSError as error:
            what = f"cannot create {self.path}, where lines wait for their commit: {error.strerror}"
            raise TransientError(what, suggestion=advice(error, self.path)) from error
        self._fd = fd
        return fd

    def _open_existing(self, staged: StagedRange) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise self._lost(staged, "is missing") from None
        except OSError as error:
            what = f"cannot open {self.path}, which has lines that are committed: {error.strerror}"
            raise FatalError(what, suggestion=advice(error, self.path)) from error

    def _give_back(self, fd: int) -> None:
        """Free the space of what could not be written in full. If that fails too, the next write overwrites it."""
        try:
            os.ftruncate(fd, self.size)
        except OSError:
            return

    def _refuse_after_failure(self) -> None:
        if self._failed is not None:
            raise TransientError(f"{self._failed}; it must be opened again")

    def _lost(self, staged: StagedRange, what: str) -> FatalError:
        return FatalError(
            f"{self.path} {what}, but the last transaction is committed and {staged.size} bytes of it were left there, "
            f"to be appended to {self._target.name}",
            suggestion=f"put {self.path.name} back as it was when the pipeline ended; if it is lost, remove "
            f"{marker_path(self._target).name} to go on without them, and set the sources back to read them again",
        )


def blocks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Return the offsets and sizes of the blocks in which to read a range of a file."""
    for at in range(start, stop, BLOCK_SIZE):
        yield at, min(BLOCK_SIZE, stop - at)
