"""FaultyDisk: a disk that fails where a test says, as real ones do."""

import errno
import os

from conduit_py.journal.disk import Disk


class FaultyDisk(Disk):
    """Fails the next write or sync when the test says so; a failed write leaves half of its bytes."""

    def __init__(self) -> None:
        self.fail_write: int | None = None
        self.fail_sync: int | None = None
        self.fail_truncate: int | None = None
        self.syncs = 0

    def write(self, descriptor: int, data: bytes, at: int) -> None:
        if self.fail_write is not None:
            super().write(descriptor, data[: len(data) // 2], at)
            number, self.fail_write = self.fail_write, None
            raise OSError(number, os.strerror(number))
        super().write(descriptor, data, at)

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        if self.fail_sync is not None:
            number, self.fail_sync = self.fail_sync, None
            raise OSError(number, os.strerror(number))
        super().sync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        if self.fail_truncate is not None:
            raise OSError(self.fail_truncate, os.strerror(self.fail_truncate))
        super().truncate(descriptor, size)


EIO, ENOSPC = errno.EIO, errno.ENOSPC
